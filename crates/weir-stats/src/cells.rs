//! Cells with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A count that only grows, written by one thread.
///
/// Adding is a load and a store, not an atomic read-modify-write: about a nanosecond. Two writers would lose
/// counts.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the owning worker may call this.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// The count so far, from any thread.
    pub fn total(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One counter for each word of a closed set, by its number.
#[derive(Debug)]
pub struct Counters<const COUNT: usize>([Counter; COUNT]);

// Arrays longer than 32 have no `Default` of their own.
impl<const COUNT: usize> Default for Counters<COUNT> {
    fn default() -> Self {
        Counters(std::array::from_fn(|_| Counter::default()))
    }
}

impl<const COUNT: usize> std::ops::Deref for Counters<COUNT> {
    type Target = [Counter; COUNT];

    fn deref(&self) -> &[Counter; COUNT] {
        &self.0
    }
}

/// Number of buckets of a [`Histogram`]; the last one is unbounded.
pub const BUCKET_COUNT: usize = 2 * OCTAVES + 2;
/// Powers of two that the bounded buckets span.
const OCTAVES: usize = 20;
/// Upper bound of the first bucket: 2^6 us.
const FIRST_SHIFT: u32 = 6;

/// Durations in log-linear buckets: two per power of two from 64 us to 67 s, so that a quantile is at most 50
/// % off and usually a quarter. Written by one thread.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKET_COUNT],
    sum_us: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: std::array::from_fn(|_| Counter::default()), sum_us: Counter::default() }
    }
}

impl Histogram {
    /// Counts one duration. A few nanoseconds; no allocation.
    #[inline]
    pub fn record(&self, duration: Duration) {
        let us = duration.as_micros() as u64;
        self.buckets[bucket_of(us)].increment();
        self.sum_us.add(us);
    }

    /// Adds what was recorded so far to `sum`.
    pub fn add_to(&self, sum: &mut HistogramSum) {
        for (total, bucket) in sum.counts.iter_mut().zip(&self.buckets) {
            *total += bucket.total();
        }
        sum.sum_us += self.sum_us.total();
    }
}

/// The bucket for a duration of `us` microseconds.
#[inline]
fn bucket_of(us: u64) -> usize {
    // A bucket's upper bound is inclusive, as Prometheus' `le` is.
    let below = us.saturating_sub(1);
    let octave = (u64::BITS - (below >> FIRST_SHIFT).leading_zeros()) as usize;
    if octave == 0 {
        return 0;
    }
    let upper_half = (below >> (FIRST_SHIFT as usize + octave - 2)) & 1;
    (2 * octave - 1 + upper_half as usize).min(BUCKET_COUNT - 1)
}

/// The sum of several workers' histograms.
#[derive(Clone, Debug)]
pub struct HistogramSum {
    /// Durations per bucket (not cumulative).
    pub counts: [u64; BUCKET_COUNT],
    /// Sum of all durations in microseconds.
    pub sum_us: u64,
}

impl Default for HistogramSum {
    fn default() -> Self {
        HistogramSum { counts: [0; BUCKET_COUNT], sum_us: 0 }
    }
}

impl HistogramSum {
    /// Durations counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Inclusive upper bound of bucket `index` in seconds; the last one is infinite.
    pub fn upper_bound_seconds(index: usize) -> f64 {
        if index + 1 >= BUCKET_COUNT {
            return f64::INFINITY;
        }
        let base = (1u64 << FIRST_SHIFT) as f64 / 1e6;
        match index {
            0 => base,
            // Odd indexes end at 1.5 times a power of two, even ones at the next power.
            _ if index % 2 == 1 => base * 2f64.powi((index as i32 - 1) / 2) * 1.5,
            _ => base * 2f64.powi(index as i32 / 2),
        }
    }

    /// The upper bound of the bucket that holds quantile `q` (0 to 1), in seconds; `None` when nothing was
    /// counted.
    pub fn quantile_seconds(&self, q: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, bucket) in self.counts.iter().enumerate() {
            seen += bucket;
            if seen >= rank {
                return Some(Self::upper_bound_seconds(index));
            }
        }
        None
    }
}

/// One copy of `T` per worker, each on cache lines of its own.
#[derive(Debug)]
pub struct PerWorker<T> {
    copies: Box<[Padded<T>]>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

impl<T: Default> PerWorker<T> {
    /// A copy for each of `workers` (at least one).
    pub fn new(workers: usize) -> Self {
        PerWorker { copies: (0..workers.max(1)).map(|_| Padded::default()).collect() }
    }

    /// The copy that worker number `worker` writes. Panics if there are not that many workers: that is a bug
    /// of ours, not the fault of a peer.
    #[inline]
    pub fn of(&self, worker: usize) -> &T {
        &self.copies[worker].0
    }

    /// The last copy, after those of the workers: the kernel plane counts in it.
    pub fn last(&self) -> &T {
        self.of(self.copies.len() - 1)
    }

    /// All copies, for a reader that sums them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.copies.iter().map(|copy| &copy.0)
    }

    /// The sum of one counter over all workers; `count` selects it.
    pub fn total(&self, count: impl Fn(&T) -> &Counter) -> u64 {
        self.iter().map(|copy| count(copy).total()).sum()
    }

    /// The sum of one histogram over all workers; `histogram` selects it.
    pub fn histogram(&self, histogram: impl Fn(&T) -> &Histogram) -> HistogramSum {
        let mut sum = HistogramSum::default();
        self.iter().for_each(|copy| histogram(copy).add_to(&mut sum));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lands_in_the_bucket_whose_bounds_hold_it() {
        for us in (0..5_000).chain((5_000..200_000_000).step_by(99_991)) {
            let index = bucket_of(us);
            let seconds = us as f64 / 1e6;
            assert!(seconds <= HistogramSum::upper_bound_seconds(index), "{us} us above bucket {index}");
            if index > 0 {
                assert!(
                    seconds > HistogramSum::upper_bound_seconds(index - 1),
                    "{us} us below bucket {index}"
                );
            }
        }
    }

    #[test]
    fn bucket_bounds_grow() {
        for index in 1..BUCKET_COUNT {
            assert!(HistogramSum::upper_bound_seconds(index) > HistogramSum::upper_bound_seconds(index - 1));
        }
    }

    #[test]
    fn workers_copies_are_summed() {
        let cells: PerWorker<Counter> = PerWorker::new(3);
        (0..3).for_each(|worker| cells.of(worker).add(worker as u64 + 1));
        assert_eq!(cells.total(|cell| cell), 6);
    }

    #[test]
    fn a_quantile_is_the_bound_of_the_bucket_that_holds_it() {
        let histogram = Histogram::default();
        (0..99).for_each(|_| histogram.record(Duration::from_micros(100)));
        histogram.record(Duration::from_millis(50));
        let mut sum = HistogramSum::default();
        histogram.add_to(&mut sum);
        assert_eq!(sum.count(), 100);
        assert_eq!(sum.quantile_seconds(0.5), Some(128e-6));
        assert!(sum.quantile_seconds(1.0).unwrap() >= 0.05);
        assert_eq!(HistogramSum::default().quantile_seconds(0.5), None);
    }
}
