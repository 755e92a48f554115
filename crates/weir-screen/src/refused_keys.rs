//! The keys that a limit has refused, so that an operator can see whom the limit keeps out.
//!
//! Only refusals write here; requests that pass don't touch it. Memory is bounded by [`GROUPS`],
//! [`GROUP_KEYS`] and the length of a key, whatever is refused. Keys are counted by the "space-saving"
//! algorithm: when a group is full, a new key replaces the one with the least refusals and inherits its
//! weight. So a key with more than one in [`GROUP_KEYS`] of its group's refusals is always listed, however
//! many others come, whereas a ring of the last refusals would lose it in any flood of new keys. A key
//! without refusals for [`STALE`] is replaced first.
//!
//! A key's digest determines its group, and outsiders can't choose digests without the seed; each group has
//! its own lock. A refusal costs a comparison with 16 digests and, for a new key, the text that displays it.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", 2005.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::digest::Digest;
use crate::shown::{Remembered, Whose};

/// Groups of keys of one limit.
const GROUPS: usize = 16;
/// Most keys in a group. All groups together remember 256 keys of a limit, in some 50 KiB.
const GROUP_KEYS: usize = 16;
/// A key without refusals for this long may be replaced by any other.
const STALE: Duration = Duration::from_secs(3_600);

/// The keys that one limit has refused, shared by all workers.
pub(crate) struct RefusedKeys {
    groups: Box<[Mutex<RefusedGroup>]>,
}

#[derive(Default)]
struct RefusedGroup {
    /// All refusals, including those of keys no longer listed.
    refused: u64,
    keys: Vec<KeptKey>,
}

/// A refused key.
pub(crate) struct KeptKey {
    digest: Digest,
    /// Refusals since it entered, plus the weight of the key it replaced: at least all of its refusals ever.
    weight: u64,
    /// Refusals since it entered.
    refused: u64,
    last: Duration,
    shown: Remembered,
}

/// A key that a limit has refused, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedKey {
    /// Whose key it is.
    pub whose: Whose,
    /// Refusals since it entered the list; a key that was replaced starts again.
    pub refused: u64,
    /// Time since the last refusal.
    pub since: Duration,
    /// Of a rate limit: time until it is let in again; zero if it is now.
    pub wait: Option<Duration>,
    /// Of a concurrency limit: its requests in progress.
    pub under_way: Option<u32>,
}

impl RefusedKeys {
    pub fn new() -> RefusedKeys {
        RefusedKeys { groups: (0..GROUPS).map(|_| Mutex::default()).collect() }
    }

    /// Records a refusal of the key; `shown` gives what to display, and is called only if the key is new
    /// here.
    pub fn note(&self, digest: Digest, now: Duration, shown: impl FnOnce() -> Remembered) {
        let mut group = self.group(digest).lock().unwrap_or_else(PoisonError::into_inner);
        group.refused += 1;
        if let Some(key) = group.keys.iter_mut().find(|key| key.digest == digest) {
            key.weight += 1;
            key.refused += 1;
            // Another thread's clock may be a little ahead.
            key.last = key.last.max(now);
            return;
        }
        let mut key = KeptKey { digest, weight: 1, refused: 1, last: now, shown: shown() };
        if group.keys.len() < GROUP_KEYS {
            group.keys.push(key);
            return;
        }
        let is_fresh = |key: &KeptKey| key.last + STALE > now;
        let Some(place) = group.keys.iter_mut().min_by_key(|key| (is_fresh(key), key.weight)) else { return };
        if is_fresh(place) {
            key.weight += place.weight;
        }
        *place = key;
    }

    /// Removes the key, as if it had never been refused.
    pub fn forget(&self, digest: Digest) {
        let mut group = self.group(digest).lock().unwrap_or_else(PoisonError::into_inner);
        group.keys.retain(|key| key.digest != digest);
    }

    /// Removes all keys.
    pub fn forget_all(&self) {
        for group in &self.groups {
            group.lock().unwrap_or_else(PoisonError::into_inner).keys.clear();
        }
    }

    /// The number of refusals, and the keys refused most often, at most `most`, in descending order.
    /// `describe` gets each key's digest and its entry so far, and completes the entry.
    pub fn list(
        &self,
        most: usize,
        now: Duration,
        describe: impl Fn(Digest, RefusedKey) -> RefusedKey,
    ) -> (u64, Vec<RefusedKey>) {
        let (mut all, mut kept) = (0, Vec::new());
        for group in &self.groups {
            let group = group.lock().unwrap_or_else(PoisonError::into_inner);
            all += group.refused;
            kept.extend(group.keys.iter().map(|key| (key.refused, key.last, key.digest, key.shown.clone())));
        }
        kept.sort_by(|(refused, last, digest, _), (others, other_last, other, _)| {
            others.cmp(refused).then(other_last.cmp(last)).then(digest.cmp(other))
        });
        kept.truncate(most);
        let shown = kept.into_iter().map(|(refused, last, digest, shown)| {
            let since = now.saturating_sub(last);
            let key = RefusedKey { whose: shown.whose(digest), refused, since, wait: None, under_way: None };
            describe(digest, key)
        });
        (all, shown.collect())
    }

    fn group(&self, [low, _]: Digest) -> &Mutex<RefusedGroup> {
        // Tables and counts choose their shards by the lowest bits, so use others.
        &self.groups[(low >> 32) as usize % GROUPS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::digest;

    const NOW: Duration = Duration::from_secs(10);

    fn key(number: u64) -> Digest {
        digest([3, 4], 0, &number.to_le_bytes())
    }

    fn note(keys: &RefusedKeys, number: u64, now: Duration) {
        let text = number.to_string().into_bytes().into();
        keys.note(key(number), now, || Remembered::Text { text, hidden: false, cut: false });
    }

    /// Number, refusals and time since the last refusal of the listed keys.
    fn listed(keys: &RefusedKeys, most: usize, now: Duration) -> Vec<(u64, u64, u64)> {
        let listed = keys.list(most, now, |_, key| key).1;
        let row = |key: RefusedKey| match key.whose {
            Whose::Text { text, .. } => (text.parse().unwrap(), key.refused, key.since.as_secs()),
            other => panic!("{other:?}"),
        };
        listed.into_iter().map(row).collect()
    }

    #[test]
    fn those_refused_more_often_come_first_and_then_those_refused_last() {
        let keys = RefusedKeys::new();
        for (number, at) in [(1, 10), (2, 10), (2, 12), (3, 11)] {
            note(&keys, number, Duration::from_secs(at));
        }
        let now = Duration::from_secs(15);
        assert_eq!(listed(&keys, 9, now), [(2, 2, 3), (3, 1, 4), (1, 1, 5)]);
        assert_eq!(listed(&keys, 1, now), [(2, 2, 3)]);
        keys.forget(key(2));
        assert_eq!(listed(&keys, 9, now), [(3, 1, 4), (1, 1, 5)]);
        keys.forget_all();
        assert_eq!((listed(&keys, 9, now).len(), keys.list(9, now, |_, key| key).0), (0, 4));
    }

    /// Threat D44.
    #[test]
    fn d44_a_flood_of_keys_takes_no_more_memory_and_hides_nobody_who_is_refused_often() {
        let keys = RefusedKeys::new();
        for number in 0..500_000 {
            note(&keys, 1_000_000 + number, NOW);
            // Eight clients cause a quarter of all refusals.
            if number % 3 == 0 {
                note(&keys, number / 3 % 8, NOW);
            }
        }
        let kept: usize = keys.groups.iter().map(|group| group.lock().unwrap().keys.len()).sum();
        let room: usize = keys.groups.iter().map(|group| group.lock().unwrap().keys.capacity()).sum();
        assert!(kept == GROUPS * GROUP_KEYS && room <= GROUPS * GROUP_KEYS, "{kept} in {room}");
        let mut first: Vec<u64> = listed(&keys, 8, NOW).iter().map(|(number, ..)| *number).collect();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(keys.list(0, NOW, |_, key| key).0, 500_000 + 166_667);
    }

    #[test]
    fn who_was_not_refused_for_an_hour_gives_up_its_place_first() {
        let keys = RefusedKeys::new();
        for number in 0..5_000 {
            (0..9).for_each(|_| note(&keys, number, NOW));
        }
        let later = NOW + STALE;
        (10_000..10_064).for_each(|number| note(&keys, number, later));
        let newcomers = listed(&keys, 999, later).iter().filter(|(number, ..)| *number >= 10_000).count();
        assert_eq!(newcomers, 64, "none of them took another's place");
    }
}
