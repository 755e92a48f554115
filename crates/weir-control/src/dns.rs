//! What host names stand for: resolved beside the data path, again and again, and never forgotten for an
//! answer that fails.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use weir_config::is_host_name;
use weir_state::{Backend, Snapshot};

use crate::events::{Bus, What};
use crate::lock;

/// Between two look-ups of one name: drawn anew each time, so that names do not end up asking together.
const EVERY_MS: std::ops::RangeInclusive<u64> = 5_000..=10_000;
/// Before the next try while a name has never been resolved.
const UNRESOLVED_RETRY: Duration = Duration::from_secs(1);
/// For the first answers of new names before they are served: without one, a backend starts out as down.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// A look-up that takes longer counts as failed.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Look-ups at once: each holds a thread, since the C library's resolver blocks.
const AT_ONCE: usize = 8;
/// Addresses of one answer that are looked at; a name with a thousand is somebody's mistake or attack (H5).
const ADDRESSES: usize = 64;

/// All names being resolved.
pub struct Names {
    names: Mutex<HashMap<String, Name>>,
    slots: Arc<Semaphore>,
    moved: Arc<Moved>,
    bus: Arc<Bus>,
}

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

struct Name {
    shared: Arc<Mutex<Known>>,
    /// Whether there has been an answer, good or bad.
    answered: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Drop for Name {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
struct Known {
    address: Option<SocketAddr>,
    error: Option<String>,
    members: Vec<Member>,
}

impl Names {
    /// `moved` is told of backends whose address has become another.
    pub fn new(bus: Arc<Bus>, moved: Arc<Moved>) -> Names {
        Names { names: Mutex::default(), slots: Arc::new(Semaphore::new(AT_ONCE)), moved, bus }
    }

    /// Resolves the names that `snapshot` has, from now on. Names it had before go on; nothing is asked anew.
    pub fn adopt(&self, snapshot: &Snapshot) {
        let mut wanted: HashMap<String, Vec<Member>> = HashMap::new();
        for pool in &snapshot.pools {
            for backend in pool.backends.iter().filter(|backend| is_host_name(&backend.address)) {
                let member = Member { pool: pool.config.name.clone(), backend: backend.clone() };
                wanted.entry(backend.address.clone()).or_default().push(member);
            }
        }
        let mut names = lock(&self.names);
        names.retain(|name, _| wanted.contains_key(name));
        for (name, members) in wanted {
            match names.get(&name) {
                Some(known) => lock(&known.shared).serve(members),
                None => drop(names.insert(name.clone(), self.resolve(name, members))),
            }
        }
    }

    /// Resolves the name of a backend that a pool is to get, from now on. Others go on; nothing is asked
    /// anew.
    pub fn add(&self, pool: &str, backend: &Arc<Backend>) {
        let name = &backend.address;
        if !is_host_name(name) {
            return;
        }
        let member = Member { pool: pool.to_owned(), backend: backend.clone() };
        let mut names = lock(&self.names);
        match names.get(name) {
            Some(known) => {
                let mut known = lock(&known.shared);
                let members = known.members.iter().cloned().chain([member]).collect();
                known.serve(members);
            }
            None => drop(names.insert(name.clone(), self.resolve(name.clone(), vec![member]))),
        }
    }

    /// Ends what was begun for a backend that is no longer in its pool, or has not come into it.
    pub fn remove(&self, backend: &Arc<Backend>) {
        let mut names = lock(&self.names);
        let Some(known) = names.get(&backend.address) else { return };
        let is_left = {
            let members = &mut lock(&known.shared).members;
            members.retain(|member| !Arc::ptr_eq(&member.backend, backend));
            !members.is_empty()
        };
        if !is_left {
            names.remove(&backend.address);
        }
    }

    fn resolve(&self, name: String, members: Vec<Member>) -> Name {
        let shared = Arc::new(Mutex::new(Known { members, ..Known::default() }));
        let (slots, moved, bus) = (self.slots.clone(), self.moved.clone(), self.bus.clone());
        let (answer, answered) = watch::channel(false);
        let following = follow(name, shared.clone(), slots, moved, bus, answer);
        Name { shared, answered, task: tokio::spawn(following) }
    }

    /// Waits until this name, or each without one, has been answered once, well or badly, at most two
    /// seconds. Names that were there before cost nothing.
    pub async fn first_answers(&self, of: Option<&str>) {
        let pending: Vec<_> = {
            let names = lock(&self.names);
            let wanted = names.iter().filter(|(name, _)| of.is_none_or(|of| *name == of));
            wanted.map(|(_, name)| name.answered.clone()).collect()
        };
        let all_answered = async {
            for mut answered in pending {
                let _ = answered.wait_for(|answered| *answered).await;
            }
        };
        let _ = tokio::time::timeout(FIRST_ANSWER, all_answered).await;
    }

    /// Names being resolved.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        lock(&self.names).len()
    }

    /// Why the name has no new address: the last look-up's error.
    pub fn error(&self, name: &str) -> Option<String> {
        let names = lock(&self.names);
        names.get(name).and_then(|known| lock(&known.shared).error.clone())
    }
}

impl Known {
    fn serve(&mut self, members: Vec<Member>) {
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
    fn take(&mut self, answer: Result<Vec<SocketAddr>, String>) -> Option<SocketAddr> {
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

/// Follows one name until aborted.
async fn follow(
    name: String,
    shared: Arc<Mutex<Known>>,
    slots: Arc<Semaphore>,
    moved: Arc<Moved>,
    bus: Arc<Bus>,
    answered: watch::Sender<bool>,
) {
    loop {
        let answer = look_up(&name, &slots).await;
        let (before, found, error, resolved) = {
            let mut known = lock(&shared);
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
            let kept = if resolved { "the last address is kept" } else { "the backend is down (dns)" };
            tracing::warn!(name, error, "host name not resolved; {kept}");
        }
        answered.send_replace(true);
        tokio::time::sleep(if resolved { jittered() } else { UNRESOLVED_RETRY }).await;
    }
}

async fn look_up(name: &str, slots: &Arc<Semaphore>) -> Result<Vec<SocketAddr>, String> {
    let Ok(slot) = slots.clone().acquire_owned().await else { return Err("resolving has ended".to_owned()) };
    let name = name.to_owned();
    // The slot goes into the task: a look-up given up on still holds its thread until the resolver returns.
    let mut asking = tokio::spawn(async move {
        let _slot = slot;
        tokio::net::lookup_host(name).await.map(|answer| answer.take(ADDRESSES).collect::<Vec<_>>())
    });
    match tokio::time::timeout(LOOK_UP_TIMEOUT, &mut asking).await {
        Ok(Ok(Ok(addresses))) => Ok(addresses),
        Ok(Ok(Err(error))) => Err(error.to_string()),
        Ok(Err(panicked)) => Err(panicked.to_string()),
        Err(_) => Err(format!("no answer within {LOOK_UP_TIMEOUT:?}")),
    }
}

fn jittered() -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    let span = EVERY_MS.end() - EVERY_MS.start();
    Duration::from_millis(EVERY_MS.start() + RandomState::new().hash_one(0u8) % (span + 1))
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

    fn names() -> Names {
        Names::new(Arc::new(Bus::default()), Arc::new(Moved::default()))
    }

    fn backend(address: &str) -> Arc<Backend> {
        let text = format!(
            "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[pool.app]\nbackends = ['{address}']\n"
        );
        let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        Snapshot::compile(Arc::new(config), &Default::default(), None, 1).pools[0].backends[0].clone()
    }

    #[tokio::test]
    async fn a_name_is_resolved_as_long_as_a_backend_has_it() {
        let names = names();
        let (one, other) = (backend("app.invalid:80"), backend("app.invalid:80"));
        names.add("app", &one);
        names.add("shop", &other);
        names.add("app", &backend("10.0.0.1:80"));
        names.add("app", &backend("unix:/run/app.sock"));
        assert_eq!(names.count(), 1, "neither an address nor a Unix socket is a name");
        names.remove(&one);
        assert_eq!(names.count(), 1);
        names.remove(&other);
        assert_eq!(names.count(), 0);
    }

    #[tokio::test]
    async fn a_backend_with_a_known_name_has_its_address_at_once_and_nothing_is_asked_anew() {
        let names = names();
        let (one, other) = (backend("app.invalid:80"), backend("app.invalid:80"));
        names.add("app", &one);
        lock(&lock(&names.names)["app.invalid:80"].shared).take(Ok(vec![address(1)]));
        let task = lock(&names.names)["app.invalid:80"].task.id();
        names.add("shop", &other);
        assert_eq!(other.resolved.address(), Some(address(1)));
        assert_eq!(lock(&names.names)["app.invalid:80"].task.id(), task);
    }

    #[test]
    fn an_answer_with_a_thousand_addresses_is_cut() {
        let answer: Vec<SocketAddr> = (0..1000u32).map(|n| SocketAddr::from((n.to_be_bytes(), 80))).collect();
        assert_eq!(choose(Some(answer[ADDRESSES - 1]), &answer), Some(answer[ADDRESSES - 1]));
        assert_eq!(choose(Some(answer[ADDRESSES]), &answer), Some(answer[0]));
    }
}
