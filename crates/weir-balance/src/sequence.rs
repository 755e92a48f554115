//! Orders turns in proportion to weight, as smoothly as possible.
//!
//! Tijdeman's schedule keeps every backend within one turn of its exact share after every single turn, which
//! the smooth weighted round robin of nginx does not (simulated with 100 backends of mixed weights, it strays
//! by almost two turns).
//!
//! Source: R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980) 323-330.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Turns in one round before weights are rounded. Below it the sequence is exact.
const LONGEST_ROUND: u64 = 16_384;

/// Even in a pool of thousands each backend gets about this many turns, so that weights still make a
/// difference.
const TURNS_PER_BACKEND: u64 = 8;

/// One round of turns: positions into `weights`, each as often as its weight says after scaling.
///
/// Weights are divided by their greatest common divisor; if a round would still be longer than 16,384 turns
/// (or eight per backend in larger pools) they are rounded to about that many, at least one turn each. The
/// error of a backend's share is then at most about 1/16,384 of all turns. Every weight must be above 0.
/// O(round * log n); O(n) where all weights are equal.
pub(crate) fn smooth(weights: &[u32]) -> Box<[u32]> {
    if weights.windows(2).all(|pair| pair[0] == pair[1]) {
        return (0..weights.len() as u32).collect();
    }
    let turns = turns_per_round(weights);
    let round: u64 = turns.iter().sum();
    let slack = 2 * turns.len() as u64 - 2;
    let release = |done: u64, weight: u64| (round * (done * slack + 1)).div_ceil(slack * weight);
    let mut waiting = Waiting::new(round, turns.len());
    for (position, &weight) in turns.iter().enumerate() {
        waiting.put(position as u32, release(0, weight));
    }
    let mut due: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
    let mut done = vec![0u64; turns.len()];
    let mut sequence = Vec::with_capacity(round as usize);
    for turn in 1..=round {
        while let Some(position) = waiting.take(turn) {
            let weight = turns[position as usize];
            due.push(Reverse(Due { deadline: (done[position as usize] + 1) * slack - 1, weight, position }));
        }
        // The paper proves that some backend is always due; if it were wrong, skipping the turn is better
        // than a panic.
        let Some(Reverse(next)) = due.pop() else { continue };
        let position = next.position as usize;
        sequence.push(next.position);
        done[position] += 1;
        waiting.put(next.position, release(done[position], turns[position]).max(turn + 1));
    }
    sequence.into_boxed_slice()
}

/// Backends by the turn from which they may be due: a list for each turn of the round.
struct Waiting {
    first: Vec<u32>,
    /// For each backend, the next one in its list.
    behind: Vec<u32>,
}

const NOBODY: u32 = u32::MAX;

impl Waiting {
    fn new(round: u64, backends: usize) -> Waiting {
        Waiting { first: vec![NOBODY; round as usize + 1], behind: vec![NOBODY; backends] }
    }

    /// Queues a backend that is in no list for `turn`; a turn after the round never comes.
    fn put(&mut self, position: u32, turn: u64) {
        if let Some(first) = self.first.get_mut(turn as usize) {
            self.behind[position as usize] = std::mem::replace(first, position);
        }
    }

    fn take(&mut self, turn: u64) -> Option<u32> {
        let first = &mut self.first[turn as usize];
        let position = Some(*first).filter(|position| *position != NOBODY)?;
        *first = self.behind[position as usize];
        Some(position)
    }
}

fn turns_per_round(weights: &[u32]) -> Vec<u64> {
    let divisor = weights.iter().fold(0, |divisor, &weight| greatest_common_divisor(divisor, weight)).max(1);
    let reduced: Vec<u64> = weights.iter().map(|&weight| u64::from(weight / divisor)).collect();
    let sum: u64 = reduced.iter().sum();
    let longest = LONGEST_ROUND.max(weights.len() as u64 * TURNS_PER_BACKEND);
    if sum <= longest {
        return reduced;
    }
    reduced.iter().map(|weight| ((weight * longest + sum / 2) / sum).max(1)).collect()
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A backend that may take the next turn, ordered by the turn it must have taken one by: `deadline / weight`,
/// then file order.
struct Due {
    deadline: u64,
    weight: u64,
    position: u32,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        let mine = u128::from(self.deadline) * u128::from(other.weight);
        let theirs = u128::from(other.deadline) * u128::from(self.weight);
        mine.cmp(&theirs).then(self.position.cmp(&other.position))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_weights_take_turns_in_file_order() {
        assert_eq!(*smooth(&[7, 7, 7]), [0, 1, 2]);
        assert_eq!(*smooth(&[1]), [0]);
        assert!(smooth(&[]).is_empty());
    }

    #[test]
    fn a_heavy_backend_is_interleaved_with_light_ones() {
        let sequence = smooth(&[4, 1, 1]);
        assert_eq!(sequence.len(), 6);
        assert_eq!(sequence.iter().filter(|position| **position == 0).count(), 4);
        // Never all four in a row, also across the seam from one round to the next.
        let doubled: Vec<_> = sequence.iter().chain(sequence.iter()).collect();
        assert!(doubled.windows(4).all(|run| run.iter().any(|position| **position != 0)), "{sequence:?}");
    }

    #[test]
    fn a_common_divisor_does_not_lengthen_the_round() {
        assert_eq!(smooth(&[100, 50, 50]).len(), 4);
        assert_eq!(smooth(&[25_600, 12_800]).len(), 3);
    }

    #[test]
    fn a_thousand_backends_of_odd_weights_stay_bounded_and_near_their_share() {
        let weights: Vec<u32> = (0..1000).map(|at| at * 7919 % 256 + 1).collect();
        let sequence = smooth(&weights);
        assert!(sequence.len() < 17_500, "{}", sequence.len());
        let total: u32 = weights.iter().sum();
        let mut counts = vec![0u32; weights.len()];
        sequence.iter().for_each(|position| counts[*position as usize] += 1);
        for (weight, count) in weights.iter().zip(counts) {
            let exact = f64::from(*weight) / f64::from(total);
            let given = f64::from(count) / sequence.len() as f64;
            assert!((exact - given).abs() < 1.1 / 16_384.0, "weight {weight}: {given} of {exact}");
        }
    }
}
