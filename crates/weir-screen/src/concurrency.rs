//! Limits how many requests are in progress at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::adaptive::Gradient;
use crate::digest::Digest;
use crate::refused_keys::{RefusedKey, RefusedKeys};
use crate::screen::Facts;
use crate::settings::ConcurrencyLimit;

/// Shards of the counts by key, each with its own lock.
const SHARDS: usize = 32;
/// A shard with capacity for more than this that uses less than an eighth of it shrinks.
const KEPT: usize = 256;

type Counts = HashMap<Digest, u32, BuildHasherDefault<Already>>;

/// A limit with its counts, shared by all workers. Only keys with requests in progress are stored, so memory
/// is bounded by whatever bounds those: connections and streams.
pub(crate) struct ConcurrencyLimiter {
    pub settings: ConcurrencyLimit,
    counts: Shares,
    adaptive: Option<Adaptive>,
    refused: RefusedKeys,
    seed: [u64; 2],
}

/// A limit that adapts its size.
struct Adaptive {
    gradient: Mutex<Gradient>,
    /// The current limit, for readers without the lock.
    limit: AtomicU32,
}

enum Shares {
    One(AtomicU32),
    Each(Box<[Mutex<Counts>]>),
}

/// A request in progress, counted until this is dropped.
pub struct Slot {
    limiter: Arc<ConcurrencyLimiter>,
    key: Option<Digest>,
}

impl ConcurrencyLimiter {
    pub fn new(settings: &ConcurrencyLimit, seed: [u64; 2]) -> ConcurrencyLimiter {
        let counts = match settings.key.is_whole() {
            true => Shares::One(AtomicU32::new(0)),
            false => Shares::Each((0..SHARDS).map(|_| Mutex::default()).collect()),
        };
        let adaptive = settings.adaptive.as_ref().map(|adaptive| {
            let gradient = Gradient::new(adaptive, settings.max);
            Adaptive { limit: AtomicU32::new(gradient.in_force()), gradient: Mutex::new(gradient) }
        });
        let refused = RefusedKeys::new();
        ConcurrencyLimiter { settings: settings.clone(), counts, adaptive, refused, seed }
    }

    /// The current limit.
    pub fn limit(&self) -> u32 {
        self.adaptive.as_ref().map_or(self.settings.max, |adaptive| adaptive.limit.load(Relaxed))
    }

    /// The unloaded response time, if the limit is adaptive and it is known.
    pub fn unloaded(&self) -> Option<Duration> {
        self.adaptive.as_ref()?.gradient.lock().unwrap_or_else(PoisonError::into_inner).unloaded()
    }

    fn answered(&self, now: Duration, took: Option<Duration>) {
        let (Some(adaptive), Shares::One(count)) = (&self.adaptive, &self.counts) else { return };
        let mut gradient = adaptive.gradient.lock().unwrap_or_else(PoisonError::into_inner);
        adaptive.limit.store(gradient.answered(now, took, count.load(Relaxed)), Relaxed);
    }

    /// Counts a request in; `None` when the limit is reached.
    fn enter(self: &Arc<Self>, facts: &Facts<'_>) -> Option<Slot> {
        let key = self.settings.key.digest(self.seed, facts);
        let max = self.limit();
        let entered = match (&self.counts, key) {
            (Shares::Each(shards), Some(key)) => {
                let mut counts = shard(shards, key).lock().unwrap_or_else(PoisonError::into_inner);
                let count = counts.entry(key).or_insert(0);
                let room = *count < max;
                *count += u32::from(room);
                room
            }
            (Shares::One(count), _) => {
                count.fetch_update(Relaxed, Relaxed, |count| (count < max).then_some(count + 1)).is_ok()
            }
            // Unreachable: a limit by key always gives a digest.
            (Shares::Each(_), None) => true,
        };
        entered.then(|| Slot { limiter: self.clone(), key })
    }

    /// [`Self::enter`] at `now`; before an adaptive limit refuses, it is asked whether it still applies.
    pub fn enter_at(self: &Arc<Self>, facts: &Facts<'_>, now: Duration) -> Option<Slot> {
        self.enter(facts).or_else(|| {
            let adaptive = self.adaptive.as_ref()?;
            // If another thread holds the lock, it adjusts the limit anyway.
            let mut gradient = adaptive.gradient.try_lock().ok()?;
            let before = adaptive.limit.load(Relaxed);
            let limit = gradient.refused(now);
            adaptive.limit.store(limit, Relaxed);
            drop(gradient);
            (limit > before).then(|| self.enter(facts)).flatten()
        })
    }

    /// Records the key of a refused request.
    pub fn note_refusal(&self, facts: &Facts<'_>, now: Duration) {
        let key = &self.settings.key;
        let digest = key.digest(self.seed, facts).unwrap_or_default();
        self.refused.note(digest, now, || key.remembered(facts));
    }

    /// The number of refusals, and the keys refused most often, at most `most`.
    pub fn refused_keys(&self, most: usize, now: Duration) -> (u64, Vec<RefusedKey>) {
        self.refused.list(most, now, |digest, key| {
            let under_way = Some(self.under_way_of(Some(digest)));
            RefusedKey { under_way, ..key }
        })
    }

    /// Number of keys with requests in progress.
    pub fn counted(&self) -> u64 {
        match &self.counts {
            Shares::One(count) => u64::from(count.load(Relaxed) > 0),
            Shares::Each(shards) => {
                let counts = shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
                counts.map(|counts| counts.len() as u64).sum()
            }
        }
    }

    /// Number of requests of this key in progress.
    pub fn under_way(&self, facts: &Facts<'_>) -> u32 {
        self.under_way_of(self.settings.key.digest(self.seed, facts))
    }

    fn under_way_of(&self, key: Option<Digest>) -> u32 {
        match (&self.counts, key) {
            (Shares::Each(shards), Some(key)) => {
                let counts = shard(shards, key).lock().unwrap_or_else(PoisonError::into_inner);
                counts.get(&key).copied().unwrap_or(0)
            }
            (Shares::One(count), _) => count.load(Relaxed),
            (Shares::Each(_), None) => 0,
        }
    }
}

impl Slot {
    /// See [`Passage::answered`](crate::Passage::answered).
    pub(crate) fn answered(&self, now: Duration, took: Option<Duration>) {
        self.limiter.answered(now, took);
    }
}

fn shard(shards: &[Mutex<Counts>], key: Digest) -> &Mutex<Counts> {
    &shards[key[0] as usize % shards.len()]
}

impl Drop for Slot {
    fn drop(&mut self) {
        match (&self.limiter.counts, self.key) {
            (Shares::Each(shards), Some(key)) => {
                let mut counts = shard(shards, key).lock().unwrap_or_else(PoisonError::into_inner);
                if let Entry::Occupied(mut count) = counts.entry(key) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
                if counts.capacity() > KEPT && counts.len() < counts.capacity() / 8 {
                    let half = counts.capacity() / 2;
                    counts.shrink_to(half);
                }
            }
            (Shares::One(count), _) => {
                count.fetch_sub(1, Relaxed);
            }
            (Shares::Each(_), None) => {}
        }
    }
}

/// A hasher for keys that are digests already: it uses their second half, which the choice of a shard does
/// not.
#[derive(Default)]
struct Already(u64);

impl Hasher for Already {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.as_chunks::<8>().0 {
            self.0 = u64::from_ne_bytes(*word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::settings::Checkpoint;

    fn limiter(key: Key, max: u32) -> Arc<ConcurrencyLimiter> {
        let (at, adaptive) = (Checkpoint::Edge, None);
        let settings = ConcurrencyLimit { max, adaptive, key, at, dry_run: false, status: 429 };
        Arc::new(ConcurrencyLimiter::new(&settings, [1, 2]))
    }

    fn facts(client: &str) -> Facts<'static> {
        Facts {
            client: client.parse().unwrap(),
            path: b"/",
            method: b"GET",
            user_agent: b"",
            header: &|_| None,
            cookie: &|_| None,
            values: &(),
        }
    }

    #[test]
    fn no_more_are_under_way_than_may_be_and_each_that_ends_makes_room() {
        for key in [Key::Route, Key::CLIENT] {
            let limiter = limiter(key, 2);
            let one = facts("192.0.2.1");
            let first = limiter.enter(&one).unwrap();
            let second = limiter.enter(&one).unwrap();
            assert!(limiter.enter(&one).is_none());
            assert_eq!(limiter.under_way(&one), 2);
            drop(first);
            let third = limiter.enter(&one).unwrap();
            assert!(limiter.enter(&one).is_none());
            drop((second, third));
            assert_eq!(limiter.under_way(&one), 0);
        }
    }

    /// Threat D1: a client that reads slowly, or a stream without end, is in progress all the time.
    #[test]
    fn streams_that_never_end_keep_others_out_for_a_moment_and_not_for_ever() {
        use crate::settings::AdaptiveLimit;
        let adaptive = Some(AdaptiveLimit { min: 3, tolerance: 1.5 });
        let (max, key, at) = (100, Key::Route, Checkpoint::Edge);
        let settings = ConcurrencyLimit { max, adaptive, key, at, dry_run: false, status: 503 };
        let limiter = Arc::new(ConcurrencyLimiter::new(&settings, [1, 2]));
        let client = facts("192.0.2.1");
        let streams: Vec<Slot> = (0..60).map(|_| limiter.enter(&client).unwrap()).collect();
        let mut refused_in_a_row = Duration::ZERO;
        let mut longest = Duration::ZERO;
        let step = Duration::from_millis(10);
        for number in 1..60_000 {
            let now = step * number;
            match limiter.enter_at(&client, now) {
                Some(slot) => {
                    slot.answered(now, Some(Duration::from_millis(5)));
                    refused_in_a_row = Duration::ZERO;
                }
                None => refused_in_a_row += step,
            }
            longest = longest.max(refused_in_a_row);
        }
        assert!(longest > Duration::ZERO, "it was measured");
        assert!(longest <= Duration::from_secs(2), "for {longest:?} nobody got in");
        // A limit below the number of streams grows by one every other second until a request gets in.
        let Some(adaptive) = &limiter.adaptive else { panic!() };
        adaptive.limit.store(adaptive.gradient.lock().unwrap().lowered_to(57), Relaxed);
        let late = step * 60_000;
        let got_in =
            (0..20).find(|second| limiter.enter_at(&client, late + Duration::from_secs(*second)).is_some());
        assert!(got_in.is_some_and(|second| (4..=10).contains(&second)), "{got_in:?}");
        drop(streams);
    }

    #[test]
    fn keys_are_counted_apart_and_forgotten_when_nothing_is_under_way() {
        let limiter = limiter(Key::CLIENT, 1);
        let clients: Vec<String> =
            (0..50_000).map(|n| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255)).collect();
        let slots: Vec<_> = clients.iter().map(|client| limiter.enter(&facts(client)).unwrap()).collect();
        assert!(limiter.enter(&facts(&clients[7])).is_none());
        drop(slots);
        let Shares::Each(shards) = &limiter.counts else { panic!() };
        let kept: usize = shards.iter().map(|shard| shard.lock().unwrap().capacity()).sum();
        assert!(kept <= SHARDS * KEPT * 4, "room for {kept} keys is kept");
        assert!(shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn threads_that_race_for_slots_never_hold_too_many_and_lose_none() {
        for key in [Key::Route, Key::CLIENT] {
            let limiter = limiter(key, 5);
            let most = AtomicU32::new(0);
            let held = AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..20_000 {
                            let slots: Vec<_> =
                                (0..3).filter_map(|_| limiter.enter(&facts("192.0.2.1"))).collect();
                            let count = slots.len() as u32;
                            most.fetch_max(held.fetch_add(count, Relaxed) + count, Relaxed);
                            held.fetch_sub(count, Relaxed);
                        }
                    });
                }
            });
            assert!(most.load(Relaxed) <= 5);
            assert_eq!(limiter.under_way(&facts("192.0.2.1")), 0);
        }
    }
}
