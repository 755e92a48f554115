//! Names whose backends each have one address: the current one as long as the answer has it, otherwise the
//! first.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use weir_config::{Dns, NEVER};
use weir_state::{Backend, Choice};

use super::settings::{Counts, Settings, tell_refused};
use crate::events::{Bus, What};
use crate::lock;

/// Most addresses of one answer that are considered; a name with a thousand is a mistake or an attack (H5).
const ADDRESSES: usize = 64;

/// A backend, and the pool it belongs to.
#[derive(Clone)]
pub struct Member {
    /// Name of the pool.
    pub pool: String,
    /// The backend.
    pub backend: Arc<Backend>,
}

/// Backends whose address has changed.
#[derive(Default)]
pub struct Moved {
    members: Mutex<Vec<Member>>,
    arrived: Notify,
}

impl Moved {
    /// Waits until there are some, and returns all of them.
    pub async fn next(&self) -> Vec<Member> {
        self.arrived.notified().await;
        std::mem::take(&mut *lock(&self.members))
    }

    pub(super) fn tell(&self, members: &[Member]) {
        lock(&self.members).extend_from_slice(members);
        self.arrived.notify_one();
    }
}

/// What is known about a name.
#[derive(Default)]
pub(super) struct Known {
    address: Option<SocketAddr>,
    /// The addresses to choose from, if there are several.
    choice: Option<Arc<Choice>>,
    pub error: Option<String>,
    pub members: Vec<Member>,
    /// Addresses in the last answer that are not allowed (count).
    refused_count: usize,
}

impl Known {
    /// For members that may know an address from the previous process.
    pub fn of(members: Vec<Member>) -> Known {
        let address = members.iter().find_map(|member| member.backend.resolved.address());
        Known { members, address, ..Known::default() }
    }

    /// Drops an address that is no longer allowed.
    pub fn restrict(&mut self, dns: &Dns) {
        if self.address.is_some_and(|address| !dns.allows(address.ip())) {
            self.address = None;
            self.members.iter().for_each(|member| member.backend.resolved.forget());
        }
        // The next answer provides the addresses.
        self.choice = None;
        self.offer();
    }

    /// Stores the addresses of an answer, to try if the current one does not accept connections, and the
    /// pause before the next one is tried; returns whether they differ from before.
    pub fn choose_among(&mut self, answer: &[SocketAddr], pause: Duration) -> bool {
        let mut addresses = answer[..answer.len().min(ADDRESSES)].to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        let has_choice = addresses.len() > 1 && pause != NEVER;
        self.choice = has_choice.then(|| Arc::new(Choice { addresses: addresses.into(), pause }));
        self.offer()
    }

    fn offer(&self) -> bool {
        let resolved = self.members.iter().map(|member| &member.backend.resolved);
        resolved.fold(false, |is_new, it| it.set_choice(self.choice.clone()) | is_new)
    }

    /// The current address did not accept a connection, and another did: uses that one from now on. False if
    /// it is already in use, or no longer belongs to the name.
    pub fn settle(&mut self, first: SocketAddr, address: SocketAddr) -> bool {
        let has_it = self.choice.as_ref().is_some_and(|choice| choice.addresses.contains(&address));
        if self.address != Some(first) || !has_it {
            return false;
        }
        self.address = Some(address);
        self.point_to(address);
        true
    }

    pub fn serve(&mut self, members: Vec<Member>) {
        self.members = members;
        if let Some(address) = self.address {
            self.point_to(address);
        }
        self.offer();
    }

    fn point_to(&self, address: SocketAddr) {
        let resolved = self.members.iter().map(|member| &member.backend.resolved);
        resolved.filter(|it| it.address() != Some(address)).for_each(|it| it.set(address));
    }

    /// Whether an answer with these addresses is conclusive: one that `is_partial` has no addresses of one
    /// family, and says nothing about a current address of that family.
    fn is_told_by(&self, addresses: &[SocketAddr], is_partial: bool) -> bool {
        let is_missing = |in_use: SocketAddr| addresses.iter().all(|it| it.is_ipv4() != in_use.is_ipv4());
        !(addresses.is_empty() || is_partial && self.address.is_some_and(is_missing))
    }

    /// Handles an answer; returns the new address if it changes. An answer that `is_partial` has no addresses
    /// of one family, and says nothing about a current address of that family.
    pub fn take(&mut self, answer: Result<Vec<SocketAddr>, String>, is_partial: bool) -> Option<SocketAddr> {
        let chosen = match (answer, self.address) {
            (Ok(addresses), Some(in_use))
                if !addresses.is_empty() && !self.is_told_by(&addresses, is_partial) =>
            {
                Ok(in_use)
            }
            (Ok(addresses), _) => {
                choose(self.address, &addresses).ok_or_else(|| "the name has no address".to_owned())
            }
            (Err(error), _) => Err(error),
        };
        match chosen {
            Ok(address) => {
                self.error = None;
                let other = self.address != Some(address);
                self.address = Some(address);
                self.point_to(address);
                other.then_some(address)
            }
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

/// The current address, as long as the answer has it: resolvers rotate their answers, and following that
/// would move connections for no reason. Otherwise the first, which the system prefers (RFC 6724).
fn choose(in_use: Option<SocketAddr>, answer: &[SocketAddr]) -> Option<SocketAddr> {
    let answer = &answer[..answer.len().min(ADDRESSES)];
    in_use.filter(|address| answer.contains(address)).or_else(|| answer.first().copied())
}

/// What the task for a name needs.
pub(super) struct Following {
    pub name: String,
    pub known: Arc<Mutex<Known>>,
    pub settings: Arc<Settings>,
    pub counts: Arc<Counts>,
    pub moved: Arc<Moved>,
    pub bus: Arc<Bus>,
}

/// Resolves one name repeatedly until aborted.
pub(super) async fn follow(following: Arc<Following>, answered: Arc<watch::Sender<bool>>) {
    let Following { name, known, settings, counts, moved, bus } = &*following;
    loop {
        let (answer, ttl, is_partial) = match settings.addresses_of(name, counts).await {
            Ok((addresses, found)) => {
                tell_refused(name, found.refused_count, &mut lock(known).refused_count);
                (Ok(addresses), found.ttl, found.is_partial)
            }
            Err(error) => (Err(error), None, false),
        };
        let (before, found, error, is_resolved) = {
            let mut known = lock(known);
            let before = known.error.clone();
            let has_other_choice = match &answer {
                Ok(addresses) if known.is_told_by(addresses, is_partial) => {
                    known.choose_among(addresses, settings.config.try_next)
                }
                _ => false,
            };
            let found = known.take(answer, is_partial);
            if found.is_some() || has_other_choice {
                moved.tell(&known.members);
            }
            (before, found, known.error.clone(), known.address.is_some())
        };
        if let Some(address) = found {
            tracing::info!(name, %address, "host name resolved");
            bus.tell(What::Resolved { backend: name.clone(), address: address.to_string() });
        }
        if let Some(error) = error.filter(|error| before.as_ref() != Some(error)) {
            let kept = if is_resolved { "the last address is kept" } else { "the backend is down (dns)" };
            tracing::warn!(name, error, "host name not resolved; {kept}");
        }
        answered.send_replace(true);
        tokio::time::sleep(settings.pause(ttl, is_resolved)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    #[test]
    fn the_address_in_use_stays_while_the_answer_holds_it() {
        let answer = [address(1), address(2)];
        assert_eq!(choose(None, &answer), Some(address(1)));
        assert_eq!(choose(Some(address(2)), &answer), Some(address(2)));
        assert_eq!(choose(Some(address(3)), &answer), Some(address(1)));
    }

    #[test]
    fn a_failing_or_empty_answer_keeps_the_last_good_address() {
        let mut known = Known::default();
        assert_eq!(known.take(Ok(vec![address(1)]), false), Some(address(1)));
        assert_eq!(known.take(Err("server failure".into()), false), None);
        assert_eq!(known.take(Ok(Vec::new()), false), None);
        assert_eq!(
            (known.address, known.error.as_deref()),
            (Some(address(1)), Some("the name has no address"))
        );
        assert_eq!(known.take(Ok(vec![address(1)]), false), None, "no change is no news");
        assert_eq!(known.error, None);
    }

    /// The addresses of one family were not answered for once: that is no reason to move to the other.
    #[test]
    fn the_address_in_use_stays_while_answers_are_partial() {
        let mut known = Known::default();
        let six = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 80));
        assert_eq!(known.take(Ok(vec![six]), true), Some(six), "better than none");
        assert_eq!(known.take(Ok(vec![address(2)]), true), None);
        assert_eq!((known.address, known.error.as_deref()), (Some(six), None));
        assert_eq!(known.take(Ok(vec![address(2)]), false), Some(address(2)));
        // Some servers never answer for IPv6.
        assert_eq!(known.take(Ok(vec![address(3)]), true), Some(address(3)));
    }

    #[test]
    fn an_address_that_accepted_is_in_use_as_long_as_the_name_has_it() {
        let mut known = Known::default();
        let pause = Duration::from_millis(250);
        known.choose_among(&[address(2), address(1)], pause);
        known.take(Ok(vec![address(2), address(1)]), false);
        assert!(!known.settle(address(2), address(3)), "not an address of the name");
        assert!(!known.settle(address(1), address(2)), "not the one in use");
        assert!(known.settle(address(2), address(1)));
        assert!(!known.settle(address(2), address(1)), "told by another worker");
        assert_eq!(known.take(Ok(vec![address(2), address(1)]), false), None, "it stays");
        known.choose_among(&[address(1)], pause);
        assert!(known.choice.is_none() && !known.settle(address(1), address(2)));
        known.choose_among(&[address(1), address(2)], NEVER);
        assert!(known.choice.is_none(), "switched off");
    }

    #[test]
    fn an_answer_with_a_thousand_addresses_is_cut() {
        let answer: Vec<SocketAddr> = (0..1000u32).map(|n| SocketAddr::from((n.to_be_bytes(), 80))).collect();
        assert_eq!(choose(Some(answer[ADDRESSES - 1]), &answer), Some(answer[ADDRESSES - 1]));
        assert_eq!(choose(Some(answer[ADDRESSES]), &answer), Some(answer[0]));
    }
}
