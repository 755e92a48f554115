//! Fetches the public keys that verify signed tokens: when a config that has them comes into force, at each
//! reload, again after `refresh`, and earlier if a request needs it.
//!
//! [`fetch`] makes a fetch; [`weir_state::token_keys`] determines which keys are valid meanwhile, and which
//! requests may ask for a fetch. A failed fetch changes nothing.

mod carried;
mod fetch;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use weir_config::FetchedKeys;
use weir_io::clock;
use weir_state::Snapshot;
use weir_state::token_keys::FetchedSet;

pub(crate) use self::carried::{Inherited, lines};
use self::fetch::Answer;
use crate::events::{Bus, What};
use crate::{lock, tasks};

/// Least time before keys are fetched again, whatever lifetime a provider gives: some say 15 seconds.
const SHORTEST: Duration = Duration::from_secs(300);
/// The first wait after a failed fetch: longer if there are valid keys.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const FIRST_WAIT_WITH_KEYS: Duration = Duration::from_secs(10);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT_WITH_KEYS: Duration = Duration::from_secs(300);

/// All key sets that are fetched.
pub struct Fetches {
    running: Mutex<Vec<Running>>,
    bus: Arc<Bus>,
}

struct Running {
    set: Arc<FetchedSet>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        self.set.retire();
    }
}

impl Fetches {
    /// Without sets.
    pub fn new(bus: Arc<Bus>) -> Fetches {
        Fetches { running: Mutex::default(), bus }
    }

    /// Fetches the sets in `snapshot` from now on, and no others. Those that it had before continue.
    pub fn follow(&self, snapshot: &Snapshot) {
        let wanted = snapshot.token_keys.as_ref().map_or(&[][..], |keys| keys.all());
        let mut running = lock(&self.running);
        running.retain(|it| wanted.iter().any(|set| Arc::ptr_eq(set, &it.set)));
        for set in wanted {
            if !running.iter().any(|it| Arc::ptr_eq(set, &it.set)) {
                let task = tokio::spawn(keep_on(set.clone(), self.bus.clone()));
                running.push(Running { set: set.clone(), task });
            }
        }
    }

    /// Has all sets fetched now.
    pub fn hasten(&self) {
        lock(&self.running).iter().for_each(|it| it.set.hasten());
    }
}

/// What was last reported about a set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Good,
    Failed,
    Stale,
}

/// As [`keep`], but restarts after a panic: otherwise keys would become stale unnoticed.
async fn keep_on(set: Arc<FetchedSet>, bus: Arc<Bus>) {
    let task = format!("keys of tokens from {}", set.config.shown());
    tasks::keep_on(task, || keep(set.clone(), bus.clone())).await;
}

/// Fetches one set repeatedly until its task is ended.
async fn keep(set: Arc<FetchedSet>, bus: Arc<Bus>) {
    let mut failures = 0;
    let mut told = Told::Nothing;
    loop {
        let under_way = set.begin(clock::now());
        let fetched = fetch::set(&set.config).await;
        let now = clock::now();
        let wait = match fetched {
            Ok(Answer { set: keys, max_age }) => {
                failures = 0;
                let (count, skipped) = (keys.keys.len(), keys.skipped);
                let is_new = set.take_over(keys, now);
                if is_new || told != Told::Good {
                    tell_good(&set, &bus, (count, skipped), is_new);
                }
                told = Told::Good;
                next_after(&set.config, max_age)
            }
            Err(error) => {
                failures += 1;
                set.fail(error.clone());
                let now_told = if set.good(now).is_some() { Told::Failed } else { Told::Stale };
                if now_told != told {
                    tell_failed(&set, &bus, &error, now);
                }
                told = now_told;
                wait_after(failures, set.good(now).is_some()).min(set.config.refresh)
            }
        };
        drop(under_way);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = set.asked() => {}
        }
    }
}

/// How long to wait after a successful fetch: keys are fetched again before they are stale.
fn next_after(config: &FetchedKeys, max_age: Option<Duration>) -> Duration {
    let said = max_age.map_or(Duration::MAX, |age| age.max(SHORTEST));
    config.refresh.min(said).min(config.stale * 3 / 4)
}

/// How long to wait after this many failures in a row.
fn wait_after(failures: u32, has_keys: bool) -> Duration {
    let (first, longest) = match has_keys {
        true => (FIRST_WAIT_WITH_KEYS, LONGEST_WAIT_WITH_KEYS),
        false => (FIRST_WAIT, LONGEST_WAIT),
    };
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest)
}

fn tell_good(set: &FetchedSet, bus: &Bus, (keys, skipped): (usize, usize), is_new: bool) {
    let source = set.config.shown();
    tracing::info!(source, keys, skipped, is_new, "keys for tokens were fetched");
    let detail = match skipped {
        0 => format!("{keys} keys"),
        _ => format!("{keys} keys, {skipped} of another kind were skipped"),
    };
    bus.tell(What::TokenKeys { source: source.to_owned(), result: "fetched", detail });
}

fn tell_failed(set: &FetchedSet, bus: &Bus, error: &str, now: Duration) {
    let source = set.config.shown();
    let (result, holds) = match (set.held(), set.good(now)) {
        (_, Some(held)) => {
            let left = set.config.stale.saturating_sub(held.age(now)).as_secs();
            ("failed", format!("those of before hold for {left}s more"))
        }
        (Some(_), None) => ("stale", "those of before hold no more, no token passes".to_owned()),
        (None, None) => ("none", "there are none yet, no token passes".to_owned()),
    };
    tracing::error!(source, error, "keys for tokens can't be fetched: {holds}");
    bus.tell(What::TokenKeys { source: source.to_owned(), result, detail: format!("{error}; {holds}") });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_fetched_again_by_the_shortest_of_what_operator_and_provider_say() {
        let seconds = Duration::from_secs;
        let next = |refresh, stale, max_age: Option<u64>| {
            let config = FetchedKeys {
                url: String::new(),
                ca: None,
                refresh: seconds(refresh),
                early_refresh: seconds(1),
                stale: seconds(stale),
                timeout: seconds(1),
                waiting: 0,
            };
            next_after(&config, max_age.map(seconds)).as_secs()
        };
        assert_eq!((next(3600, 86_400, None), next(3600, 86_400, Some(7200))), (3600, 3600));
        assert_eq!((next(3600, 86_400, Some(600)), next(3600, 86_400, Some(0))), (600, 300));
        assert_eq!((next(60, 86_400, Some(0)), next(3600, 40, None)), (60, 30));
    }

    #[test]
    fn a_provider_that_is_away_is_asked_less_and_less_often() {
        let waits = |has_keys| [1, 2, 3, 6, 7, 1000].map(|failures| wait_after(failures, has_keys).as_secs());
        assert_eq!(waits(false), [1, 2, 4, 30, 30, 30]);
        assert_eq!(waits(true), [10, 20, 40, 300, 300, 300]);
    }
}
