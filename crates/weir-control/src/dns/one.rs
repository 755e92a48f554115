//! Names of which each backend is at one address: the one in use for as long as the answer holds it, or the
//! first.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, watch};
use weir_config::Dns;
use weir_state::Backend;

use super::settings::{Counts, Settings, tell_refused};
use crate::events::{Bus, What};
use crate::lock;

/// Addresses of one answer that are looked at; a name with a thousand is somebody's mistake or attack (H5).
const ADDRESSES: usize = 64;

/// A backend, and the pool it belongs to.
#[derive(Clone)]
pub struct Member {
    /// Name of the pool.
    pub pool: String,
    /// The backend.
    pub backend: Arc<Backend>,
}

/// Backends whose address has become another.
#[derive(Default)]
pub struct Moved {
    members: Mutex<Vec<Member>>,
    arrived: Notify,
}

impl Moved {
    /// Waits for some, and gives all there are.
    pub async fn next(&self) -> Vec<Member> {
        self.arrived.notified().await;
        std::mem::take(&mut *lock(&self.members))
    }

    fn tell(&self, members: &[Member]) {
        lock(&self.members).extend_from_slice(members);
        self.arrived.notify_one();
    }
}

/// What is known of a name.
#[derive(Default)]
pub(super) struct Known {
    address: Option<SocketAddr>,
    pub error: Option<String>,
    pub members: Vec<Member>,
    /// Addresses of the last answer that may not be used (count).
    refused_count: usize,
}

impl Known {
    /// Of members who may know an address from the process before.
    pub fn of(members: Vec<Member>) -> Known {
        let address = members.iter().find_map(|member| member.backend.resolved.address());
        Known { members, address, ..Known::default() }
    }

    /// Forgets an address that an answer may not hold any more.
    pub fn restrict(&mut self, dns: &Dns) {
        if self.address.is_some_and(|address| !dns.allows(address.ip())) {
            self.address = None;
            self.members.iter().for_each(|member| member.backend.resolved.forget());
        }
    }

    pub fn serve(&mut self, members: Vec<Member>) {
        self.members = members;
        if let Some(address) = self.address {
            self.point_to(address);
        }
    }

    fn point_to(&self, address: SocketAddr) {
        let resolved = self.members.iter().map(|member| &member.backend.resolved);
        resolved.filter(|it| it.address() != Some(address)).for_each(|it| it.set(address));
    }

    /// Takes an answer; gives the new address if it is another.
    pub fn take(&mut self, answer: Result<Vec<SocketAddr>, String>) -> Option<SocketAddr> {
        let chosen = match answer {
            Ok(addresses) => {
                choose(self.address, &addresses).ok_or_else(|| "the name has no address".to_owned())
            }
            Err(error) => Err(error),
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

/// The address in use stays as long as the answer holds it: resolvers rotate their answers, and following
/// that would move connections for nothing. Otherwise the first, which is the system's preference (RFC 6724).
fn choose(in_use: Option<SocketAddr>, answer: &[SocketAddr]) -> Option<SocketAddr> {
    let answer = &answer[..answer.len().min(ADDRESSES)];
    in_use.filter(|address| answer.contains(address)).or_else(|| answer.first().copied())
}

/// What a follower is given.
pub(super) struct Following {
    pub name: String,
    pub known: Arc<Mutex<Known>>,
    pub settings: Arc<Settings>,
    pub counts: Arc<Counts>,
    pub moved: Arc<Moved>,
    pub bus: Arc<Bus>,
}

/// Follows one name until aborted.
pub(super) async fn follow(following: Following, answered: watch::Sender<bool>) {
    let Following { name, known, settings, counts, moved, bus } = &following;
    loop {
        let (answer, ttl) = match settings.addresses_of(name, counts).await {
            Ok((addresses, found)) => {
                tell_refused(name, found.refused_count, &mut lock(known).refused_count);
                (Ok(addresses), found.ttl)
            }
            Err(error) => (Err(error), None),
        };
        let (before, found, error, is_resolved) = {
            let mut known = lock(known);
            let before = known.error.clone();
            let found = known.take(answer);
            if found.is_some() {
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
        assert_eq!(known.take(Ok(vec![address(1)])), Some(address(1)));
        assert_eq!(known.take(Err("server failure".into())), None);
        assert_eq!(known.take(Ok(Vec::new())), None);
        assert_eq!(
            (known.address, known.error.as_deref()),
            (Some(address(1)), Some("the name has no address"))
        );
        assert_eq!(known.take(Ok(vec![address(1)])), None, "no change is no news");
        assert_eq!(known.error, None);
    }

    #[test]
    fn an_answer_with_a_thousand_addresses_is_cut() {
        let answer: Vec<SocketAddr> = (0..1000u32).map(|n| SocketAddr::from((n.to_be_bytes(), 80))).collect();
        assert_eq!(choose(Some(answer[ADDRESSES - 1]), &answer), Some(answer[ADDRESSES - 1]));
        assert_eq!(choose(Some(answer[ADDRESSES]), &answer), Some(answer[0]));
    }
}
