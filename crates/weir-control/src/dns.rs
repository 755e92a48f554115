//! What host names stand for: resolved beside the data path, again and again, and never forgotten for an answer that fails.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use weir_proxy::snapshot::{Backend, Snapshot};

use crate::events::{Bus, What};

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
    changed: Arc<Notify>,
    bus: Arc<Bus>,
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
    backends: Vec<Arc<Backend>>,
}

impl Names {
    /// `changed` is notified whenever a backend's address has become another.
    pub fn new(bus: Arc<Bus>, changed: Arc<Notify>) -> Names {
        Names { names: Mutex::default(), slots: Arc::new(Semaphore::new(AT_ONCE)), changed, bus }
    }

    /// Resolves the names that `snapshot` has, from now on. Names it had before go on; nothing is asked anew.
    pub fn adopt(&self, snapshot: &Snapshot) {
        let mut wanted: HashMap<String, Vec<Arc<Backend>>> = HashMap::new();
        for backend in snapshot.pools.iter().flat_map(|pool| &pool.backends) {
            if backend.address.parse::<SocketAddr>().is_err() {
                wanted.entry(backend.address.clone()).or_default().push(backend.clone());
            }
        }
        let mut names = self.lock();
        names.retain(|name, _| wanted.contains_key(name));
        for (name, backends) in wanted {
            match names.get(&name) {
                Some(known) => lock(&known.shared).serve(backends),
                None => {
                    let shared = Arc::new(Mutex::new(Known { backends, ..Known::default() }));
                    let (slots, changed, bus) = (self.slots.clone(), self.changed.clone(), self.bus.clone());
                    let (answer, answered) = watch::channel(false);
                    let following = follow(name.clone(), shared.clone(), slots, changed, bus, answer);
                    names.insert(name, Name { shared, answered, task: tokio::spawn(following) });
                }
            }
        }
    }

    /// Waits until each name has been answered once, well or badly, at most two seconds. Names that were there before
    /// cost nothing.
    pub async fn first_answers(&self) {
        let pending: Vec<_> = self.lock().values().map(|name| name.answered.clone()).collect();
        let all_answered = async {
            for mut answered in pending {
                let _ = answered.wait_for(|answered| *answered).await;
            }
        };
        let _ = tokio::time::timeout(FIRST_ANSWER, all_answered).await;
    }

    /// Why the name has no new address: the last look-up's error.
    pub fn error(&self, name: &str) -> Option<String> {
        let names = self.lock();
        names.get(name).and_then(|known| lock(&known.shared).error.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn serve(&mut self, backends: Vec<Arc<Backend>>) {
        if let Some(address) = self.address {
            backends
                .iter()
                .filter(|it| it.resolved.address() != Some(address))
                .for_each(|it| it.resolved.set(address));
        }
        self.backends = backends;
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
                self.backends
                    .iter()
                    .filter(|it| it.resolved.address() != Some(address))
                    .for_each(|it| it.resolved.set(address));
                other.then_some(address)
            }
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address in use stays as long as the answer holds it: resolvers rotate their answers, and following that would move
/// connections for nothing. Otherwise the first, which is the system's preference (RFC 6724).
fn choose(in_use: Option<SocketAddr>, answer: &[SocketAddr]) -> Option<SocketAddr> {
    let answer = &answer[..answer.len().min(ADDRESSES)];
    in_use.filter(|address| answer.contains(address)).or_else(|| answer.first().copied())
}

/// Follows one name until aborted.
async fn follow(
    name: String,
    shared: Arc<Mutex<Known>>,
    slots: Arc<Semaphore>,
    changed: Arc<Notify>,
    bus: Arc<Bus>,
    answered: watch::Sender<bool>,
) {
    loop {
        let answer = look_up(&name, &slots).await;
        let (before, found, error, resolved) = {
            let mut known = lock(&shared);
            let before = known.error.clone();
            let found = known.take(answer);
            (before, found, known.error.clone(), known.address.is_some())
        };
        if let Some(address) = found {
            tracing::info!(name, %address, "host name resolved");
            bus.tell(What::Resolved { backend: name.clone(), address: address.to_string() });
            changed.notify_one();
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

    #[test]
    fn an_answer_with_a_thousand_addresses_is_cut() {
        let answer: Vec<SocketAddr> = (0..1000u32).map(|n| SocketAddr::from((n.to_be_bytes(), 80))).collect();
        assert_eq!(choose(Some(answer[ADDRESSES - 1]), &answer), Some(answer[ADDRESSES - 1]));
        assert_eq!(choose(Some(answer[ADDRESSES]), &answer), Some(answer[0]));
    }
}
