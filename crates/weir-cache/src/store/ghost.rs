//! Remembers keys that were evicted recently: fingerprints only, four per bucket; the oldest is replaced.

const WAYS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Trace {
    fingerprint: u32,
    /// When it was recorded; 0 for a free place.
    at: u32,
}

#[derive(Debug)]
pub(super) struct Ghost {
    /// The number of buckets is a power of two.
    buckets: Vec<[Trace; WAYS]>,
    /// Counts the records made.
    clock: u32,
}

impl Ghost {
    pub fn new() -> Ghost {
        Ghost { buckets: vec![[Trace::default(); WAYS]; 16], clock: 0 }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.buckets.as_slice())
    }

    /// Makes room for as many fingerprints as there are objects, and as many again, because some buckets fill
    /// before others. Earlier records stay.
    fn reserve(&mut self, count: usize) {
        if self.buckets.len() * WAYS >= count * 2 {
            return;
        }
        let doubled = vec![[Trace::default(); WAYS]; self.buckets.len() * 2];
        let before = std::mem::replace(&mut self.buckets, doubled);
        for trace in before.into_iter().flatten().filter(|trace| trace.at != 0) {
            self.place(trace);
        }
    }

    fn place(&mut self, trace: Trace) {
        let bucket = trace.fingerprint as usize & (self.buckets.len() - 1);
        let Some(bucket) = self.buckets.get_mut(bucket) else { return };
        let clock = self.clock;
        if let Some(oldest) = bucket.iter_mut().max_by_key(|place| age(clock, place.at)) {
            *oldest = trace;
        }
    }

    /// Records that a key was evicted; the last `count` records are remembered.
    pub fn note(&mut self, hash: u64, count: usize) {
        self.reserve(count);
        self.clock = self.clock.wrapping_add(1).max(1);
        self.place(Trace { fingerprint: fingerprint(hash), at: self.clock });
    }

    /// Whether a key is among the last `count` that were evicted; forgets it.
    pub fn recall(&mut self, hash: u64, count: usize) -> bool {
        let wanted = fingerprint(hash);
        let bucket = wanted as usize & (self.buckets.len() - 1);
        let clock = self.clock;
        let Some(bucket) = self.buckets.get_mut(bucket) else { return false };
        let found = bucket.iter_mut().find(|trace| trace.at != 0 && trace.fingerprint == wanted);
        found.is_some_and(|trace| {
            let recent = (age(clock, trace.at) as usize) < count;
            *trace = Trace::default();
            recent
        })
    }
}

/// How many were recorded since; free places are older than any.
fn age(clock: u32, at: u32) -> u32 {
    if at == 0 { u32::MAX } else { clock.wrapping_sub(at) }
}

/// Bits that determine neither the shard nor all of the place within it.
fn fingerprint(hash: u64) -> u32 {
    (hash >> 16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Well-spread hashes.
    fn hash(number: u64) -> u64 {
        crate::key::hash(1, &number.to_le_bytes())
    }

    #[test]
    fn it_remembers_the_last_ones_once() {
        let mut ghost = Ghost::new();
        for number in 0..10_000 {
            ghost.note(hash(number), 1000);
        }
        let recent = (9500..10_000).filter(|number| ghost.recall(hash(*number), 1000)).count();
        // A bucket may be full of newer ones.
        assert!(recent > 480, "{recent} of 500");
        let again = (9500..10_000).filter(|number| ghost.recall(hash(*number), 1000)).count();
        let old = (0..8000).filter(|number| ghost.recall(hash(*number), 1000)).count();
        assert_eq!((again, old), (0, 0));
    }

    #[test]
    fn it_grows_with_what_it_is_to_remember_and_forgets_nothing_by_it() {
        let mut ghost = Ghost::new();
        for number in 0..1000 {
            ghost.note(hash(number), number as usize + 1);
        }
        let found = (0..1000).filter(|number| ghost.recall(hash(*number), 1000)).count();
        assert!(found > 900, "{found}");
    }
}
