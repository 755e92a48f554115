//! The ring of consistent hashing: every backend owns points on it in proportion to its weight, and a key
//! belongs to the next point.

use crate::stable_hash::mix64;
use std::cmp::Ordering;

/// Points per unit of weight, as ketama has them: shares of equal backends then differ by about 8 % (one
/// standard deviation).
const POINTS_PER_WEIGHT: u64 = 160;

/// A ring of 4 MiB. Pools whose weights sum to more than 3,276 get half the points per weight, or a quarter,
/// and so on.
const MOST_POINTS: u64 = 1 << 19;

#[derive(Debug)]
pub(crate) struct Ring {
    /// Sorted; each has its place on the ring in the upper half and the position in the tier in the lower.
    points: Box<[u64]>,
    /// For each value of a place's upper bits, the first point at or after them.
    starts: Box<[u32]>,
    shift: u32,
}

impl Ring {
    /// A ring of `backends`, pairs of id and weight in hundredths (above 0). `configured_weight` is the sum
    /// of the configured weights of all members, up or not; it alone decides how many points a unit of weight
    /// gets.
    pub(crate) fn new(backends: &[(u64, u32)], configured_weight: u64) -> Ring {
        let mut per_weight = POINTS_PER_WEIGHT;
        while per_weight > 1 && configured_weight * per_weight > MOST_POINTS {
            per_weight /= 2;
        }
        let mut points = Vec::new();
        for (position, (id, hundredths)) in backends.iter().enumerate() {
            let count = (u64::from(*hundredths) * per_weight / 100).max(1);
            // Point j doesn't depend on the number of points, so a weight that rises adds points and moves
            // none.
            let places = (0..count).map(|point| mix64(id ^ mix64(point)) & !u64::from(u32::MAX));
            points.extend(places.map(|place| place | position as u64));
        }
        let bits = (points.len().next_power_of_two().trailing_zeros()).min(31);
        let shift = 32 - bits;
        let (mut points, starts) = in_buckets(&points, bits);
        // Equal places are rare (one pair in 2^32 / points). Ordering them by id instead of file order makes
        // the result the same everywhere.
        let id = |point: &u64| backends[(point & 0xffff_ffff) as usize].0;
        let order =
            |one: &u64, other: &u64| (one >> 32).cmp(&(other >> 32)).then_with(|| id(one).cmp(&id(other)));
        sort_nearly_sorted(&mut points, order);
        Ring { points: points.into_boxed_slice(), starts: starts.into_boxed_slice(), shift }
    }

    /// Number of points, over all backends.
    pub(crate) fn count(&self) -> usize {
        self.points.len()
    }

    /// Index of the point that owns a place: the first one at or after it, wrapping around. O(1) expected.
    pub(crate) fn next_after(&self, place: u32) -> usize {
        let bucket = u64::from(place) >> self.shift;
        let mut at = self.starts[bucket as usize] as usize;
        while at < self.points.len() && self.points[at] >> 32 < u64::from(place) {
            at += 1;
        }
        if at == self.points.len() { 0 } else { at }
    }

    /// The position in the tier of the point's backend.
    pub(crate) fn position(&self, point: usize) -> usize {
        (self.points[point] & 0xffff_ffff) as usize
    }
}

/// The points, grouped by the upper `bits` of their places, and the start of each group.
fn in_buckets(points: &[u64], bits: u32) -> (Vec<u64>, Vec<u32>) {
    let bucket = |point: u64| (point >> 32 >> (32 - bits)) as usize;
    let mut starts = vec![0; 1 << bits];
    points.iter().for_each(|point| starts[bucket(*point)] += 1);
    let mut end = 0;
    for start in &mut starts {
        end += *start;
        *start = end;
    }
    let mut sorted = vec![0; points.len()];
    for point in points {
        let start = &mut starts[bucket(*point)];
        *start -= 1;
        sorted[*start as usize] = *point;
    }
    (sorted, starts)
}

/// Insertion sort. Places are spread so evenly that there is about one per bucket, so this takes a third of
/// the time that sorting without buckets takes.
fn sort_nearly_sorted(points: &mut [u64], order: impl Fn(&u64, &u64) -> Ordering) {
    for at in 1..points.len() {
        let point = points[at];
        let mut to = at;
        while to > 0 && order(&points[to - 1], &point).is_gt() {
            points[to] = points[to - 1];
            to -= 1;
        }
        points[to] = point;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(weights: &[u32]) -> Vec<(u64, u32)> {
        let id = |at: usize| crate::stable_hash(format!("10.2.{at}.1:80").as_bytes());
        weights.iter().enumerate().map(|(at, weight)| (id(at), weight * 100)).collect()
    }

    fn owner(ring: &Ring, key: u64) -> usize {
        ring.position(ring.next_after((mix64(key) >> 32) as u32))
    }

    #[test]
    fn the_bucket_index_finds_what_a_plain_search_finds() {
        for weights in [vec![1], vec![1, 2, 3], vec![1; 50]] {
            let ring = Ring::new(&backends(&weights), 100);
            assert!(ring.points.is_sorted());
            for key in 0..20_000u64 {
                let place = mix64(key) >> 32;
                let expected = ring.points.partition_point(|point| point >> 32 < place) % ring.points.len();
                assert_eq!(ring.next_after(place as u32), expected);
            }
            assert_eq!(
                ring.next_after(u32::MAX),
                ring.points.partition_point(|p| p >> 32 < u64::from(u32::MAX)) % ring.points.len()
            );
        }
    }

    #[test]
    fn keys_are_shared_in_proportion_to_weight() {
        let weights = [1, 2, 4, 8];
        let ring = Ring::new(&backends(&weights), 15);
        let mut counts = [0u32; 4];
        (0..150_000).for_each(|key| counts[owner(&ring, key)] += 1);
        for (weight, count) in weights.iter().zip(counts) {
            let expected = f64::from(*weight) * 10_000.0;
            let error = (f64::from(count) - expected).abs() / expected;
            assert!(error < 0.25, "weight {weight}: {count} of {expected}");
        }
    }

    #[test]
    fn a_rising_weight_takes_keys_and_gives_none() {
        let (id, _) = backends(&[1])[0];
        let mut others = backends(&[1, 1, 1, 1]);
        let mut before: Option<Vec<usize>> = None;
        for percent in (10..=100).step_by(5) {
            others[0] = (id, percent);
            let ring = Ring::new(&others, 4);
            let owners: Vec<usize> = (0..10_000).map(|key| owner(&ring, key)).collect();
            if let Some(before) = before {
                assert!(before.iter().zip(&owners).all(|(old, new)| old == new || *new == 0));
            }
            before = Some(owners);
        }
    }

    #[test]
    fn a_pool_of_heavy_weights_keeps_the_ring_bounded() {
        let weights = vec![256; 400];
        let ring = Ring::new(&backends(&weights), 256 * 400);
        assert!(ring.points.len() as u64 <= MOST_POINTS, "{}", ring.points.len());
        assert!(ring.points.len() as u64 > MOST_POINTS / 4);
    }
}
