//! The response times of a pool: percentiles of the last minute, in bounded memory.
//!
//! Times fall into buckets that are a sixteenth of their power of two wide, so a percentile is at most 6 %
//! above the measured time. A ring of slices holds the counts of ten seconds each; slices older than the
//! window are overwritten. All cells are atomic and shared by all workers.
//!
//! Source: the log-linear buckets of Gil Tene's HdrHistogram; the window of slices is that of Finagle's
//! `WindowedPercentileHistogram`.

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Length of the window: the current slice and the five before it.
pub const WINDOW_SECONDS: u64 = SLICES_READ * SLICE_SECONDS;
const SLICE_SECONDS: u64 = 10;
const SLICES_READ: u64 = 6;
/// One more than are read, so that a worker that is a little late doesn't read a slice being started anew.
const SLICES: usize = 7;

/// Buckets per power of two.
const STEPS: u32 = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Longest distinguishable time, in microseconds: 134 s; longer ones count as this.
const LONGEST_MICROS: u64 = (1 << 27) - 1;
const BUCKETS: usize = ((27 - STEP_BITS) * STEPS + STEPS) as usize;

/// How long a computed percentile is served before it is computed again.
const FRESH_MILLIS: u64 = 250;
/// Percentiles that are cached; a prime, so that the usual ones get different places.
const REMEMBERED: usize = 7;

/// A percentile is given only if at least this many times lie above it.
const ABOVE: u64 = 5;
/// Fewest times from which a percentile is given.
const FEWEST: u64 = 20;

/// The response times of one pool. Allocates nothing before the first one is recorded.
#[derive(Debug, Default)]
pub struct ResponseTimes(OnceLock<Box<Times>>);

#[derive(Debug)]
struct Times {
    slices: [Slice; SLICES],
    /// Recently computed percentiles, see [`pack`].
    remembered: [AtomicU64; REMEMBERED],
}

#[derive(Debug)]
struct Slice {
    /// Number of the ten seconds being counted, plus one; 0: none yet.
    number: AtomicU64,
    counts: [AtomicU32; BUCKETS],
}

impl ResponseTimes {
    /// Records one answer. O(1), one atomic addition; the first call allocates 11 KiB.
    pub fn record(&self, now: Duration, took: Duration) {
        let times = self.0.get_or_init(Times::new);
        let number = now.as_secs() / SLICE_SECONDS + 1;
        let slice = &times.slices[(number % SLICES as u64) as usize];
        let seen = slice.number.load(Ordering::Acquire);
        if seen > number {
            // The caller's clock read is more than a minute old.
            return;
        }
        // The worker that starts a slice empties it; a few counts that others add meanwhile may be lost.
        let (won, lost) = (Ordering::AcqRel, Ordering::Relaxed);
        if seen < number && slice.number.compare_exchange(seen, number, won, lost).is_ok() {
            slice.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        }
        slice.counts[bucket_of(took)].fetch_add(1, Ordering::Relaxed);
    }

    /// The time within which `per_mille` (1..=999) of the answers came; `None` if there are fewer than
    /// [`ResponseTimes::needed`]. The result is up to 250 ms old: usually one atomic load, otherwise some
    /// microseconds. Does not allocate.
    pub fn percentile(&self, now: Duration, per_mille: u32) -> Option<Duration> {
        let times = self.0.get()?;
        let tick = now.as_millis() as u64 / FRESH_MILLIS;
        let cell = &times.remembered[per_mille as usize % REMEMBERED];
        if let Some(known) = unpack(cell.load(Ordering::Relaxed), tick, per_mille) {
            return micros(known);
        }
        let found = times.find(now, per_mille).unwrap_or(0);
        cell.store(pack(found, tick, per_mille), Ordering::Relaxed);
        micros(found)
    }

    /// Answers (count) of the last minute.
    pub fn counted(&self, now: Duration) -> u64 {
        self.0.get().map_or(0, |times| times.total(now))
    }

    /// Answers (count) needed for that percentile: enough for five to lie above it.
    pub fn needed(per_mille: u32) -> u64 {
        let above = u64::from(1000_u32.saturating_sub(per_mille).max(1));
        (ABOVE * 1000).div_ceil(above).max(FEWEST)
    }
}

impl Times {
    fn new() -> Box<Times> {
        Box::new(Times {
            slices: array::from_fn(|_| Slice {
                number: AtomicU64::new(0),
                counts: array::from_fn(|_| AtomicU32::new(0)),
            }),
            remembered: array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    /// The slices within the window.
    fn recent(&self, now: Duration) -> impl Iterator<Item = &Slice> {
        let number = now.as_secs() / SLICE_SECONDS + 1;
        let oldest = number.saturating_sub(SLICES_READ - 1).max(1);
        self.slices.iter().filter(move |slice| {
            let held = slice.number.load(Ordering::Acquire);
            (oldest..=number).contains(&held)
        })
    }

    fn total(&self, now: Duration) -> u64 {
        let counts = self.recent(now).flat_map(|slice| &slice.counts);
        counts.map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }

    /// In microseconds, at least 1; `None` if too few were counted.
    fn find(&self, now: Duration, per_mille: u32) -> Option<u64> {
        let mut counts = [0_u64; BUCKETS];
        for slice in self.recent(now) {
            for (sum, count) in counts.iter_mut().zip(&slice.counts) {
                *sum += u64::from(count.load(Ordering::Relaxed));
            }
        }
        let total: u64 = counts.iter().sum();
        if total < ResponseTimes::needed(per_mille) {
            return None;
        }
        let mut wanted = (total * u64::from(per_mille)).div_ceil(1000);
        for (bucket, count) in counts.iter().enumerate() {
            if *count >= wanted {
                return Some(end_of(bucket));
            }
            wanted -= count;
        }
        Some(LONGEST_MICROS)
    }
}

fn micros(found: u64) -> Option<Duration> {
    (found > 0).then(|| Duration::from_micros(found))
}

/// Packs a percentile (10 bits), its value in microseconds (27 bits, 0 for none) and the time it was computed
/// (27 bits of 250 ms, which wrap after a year) into one word.
fn pack(found: u64, tick: u64, per_mille: u32) -> u64 {
    (tick & LONGEST_MICROS) << 37 | found.min(LONGEST_MICROS) << 10 | u64::from(per_mille)
}

fn unpack(cell: u64, tick: u64, per_mille: u32) -> Option<u64> {
    let is_it = cell & 1023 == u64::from(per_mille) && cell >> 37 == tick & LONGEST_MICROS;
    is_it.then_some(cell >> 10 & LONGEST_MICROS)
}

fn bucket_of(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).min(LONGEST_MICROS);
    if micros < u64::from(STEPS) {
        return micros as usize;
    }
    let shift = micros.ilog2() - STEP_BITS;
    (shift * STEPS) as usize + (micros >> shift) as usize
}

/// The longest time that falls into `bucket`, in microseconds; at least 1.
fn end_of(bucket: usize) -> u64 {
    let (bucket, steps) = (bucket as u64, u64::from(STEPS));
    if bucket < steps {
        return bucket.max(1);
    }
    let shift = bucket / steps - 1;
    ((bucket - shift * steps + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(1000);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn every_time_falls_into_one_bucket_whose_end_is_at_most_a_sixteenth_above_it() {
        let mut before = 0;
        for micros in (0..100_000).chain((100_000..LONGEST_MICROS).step_by(7919)) {
            let bucket = bucket_of(Duration::from_micros(micros));
            assert!(bucket == before || bucket == before + 1 || micros > 100_000, "{micros}");
            before = bucket;
            let end = end_of(bucket);
            assert!(end >= micros && end <= micros + micros / 16 + 1, "{micros} in {bucket} to {end}");
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
        assert_eq!(end_of(BUCKETS - 1), LONGEST_MICROS);
    }

    #[test]
    fn a_percentile_is_that_of_the_last_minute() {
        let times = ResponseTimes::default();
        (0..190).for_each(|_| times.record(AT, ms(10)));
        (0..10).for_each(|_| times.record(AT, ms(500)));
        let near = |found: Option<Duration>, wanted: Duration| {
            let found = found.expect("enough answers");
            assert!(found >= wanted && found <= wanted.mul_f64(1.07), "{found:?} for {wanted:?}");
        };
        near(times.percentile(AT, 950), ms(10));
        near(times.percentile(AT, 960 - 1), ms(500));
        near(times.percentile(AT + Duration::from_secs(50), 500), ms(10));
        assert_eq!(times.percentile(AT + Duration::from_secs(60), 500), None, "they are over");
        assert_eq!(times.counted(AT + Duration::from_secs(60)), 0);
    }

    #[test]
    fn too_few_answers_say_nothing_and_it_takes_more_for_a_higher_percentile() {
        assert_eq!([500, 950, 990, 999].map(ResponseTimes::needed), [20, 100, 500, 5000]);
        let times = ResponseTimes::default();
        assert_eq!((times.percentile(AT, 500), times.counted(AT)), (None, 0));
        (0..99).for_each(|_| times.record(AT, ms(3)));
        assert_eq!(times.percentile(AT, 950), None);
        times.record(AT, ms(3));
        assert_eq!(times.percentile(AT, 950), None, "what was read holds for a moment");
        assert!(times.percentile(AT + ms(300), 950).is_some());
    }

    #[test]
    fn slices_are_used_again_and_a_clock_read_of_long_ago_is_left_out() {
        let times = ResponseTimes::default();
        for second in 0..500 {
            times.record(Duration::from_secs(second), ms(1));
        }
        let now = Duration::from_secs(499);
        assert_eq!(times.counted(now), 60);
        times.record(Duration::from_secs(1), ms(1));
        assert_eq!(times.counted(now), 60);
    }

    #[test]
    fn workers_that_count_at_once_lose_nothing_within_a_slice() {
        let times = ResponseTimes::default();
        times.record(AT, ms(1));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| times.record(AT, ms(1))));
            }
        });
        assert_eq!(times.counted(AT), 4001);
    }
}
