//! The statistics that the lab reports: medians, percentiles, spread, and the confidence of a ratio of two
//! medians.
//!
//! Pure: no clock, no randomness of its own. The bootstrap takes its seed as an argument, so a report can be
//! made again from its raw samples to the last digit.

use serde::Serialize;

/// The summary of one row of samples, in the samples' unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Middle value; the mean of the two middle ones for an even count.
    pub median: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// How many samples there are; at least 1.
    pub count: usize,
}

/// Sums up `samples`; `None` when there are none or one is not a number.
pub fn summary(samples: &[f64]) -> Option<Summary> {
    let median = median(samples)?;
    let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Summary { median, min, max, count: samples.len() })
}

/// The median; `None` when there are no samples or one is not a number.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The `q` quantile (0 to 1) by linear interpolation between the two nearest ranks; `None` when there are no
/// samples or one is not a number.
///
/// Source: Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996, definition 7.
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    if samples.is_empty() || samples.iter().any(|sample| sample.is_nan()) {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = sorted[rank.floor() as usize];
    let above = sorted[rank.ceil() as usize];
    Some(below + (above - below) * rank.fract())
}

/// The value at or below which `fraction` (0 to 1) of all latencies lie: the nearest rank, never an
/// interpolation, so it is a latency that did occur. Sorts `latencies` in place; `None` when there are none.
pub fn latency_percentile(latencies: &mut [u32], fraction: f64) -> Option<u32> {
    if latencies.is_empty() {
        return None;
    }
    latencies.sort_unstable();
    let rank = (fraction.clamp(0.0, 1.0) * latencies.len() as f64).ceil() as usize;
    Some(latencies[rank.max(1) - 1])
}

/// A ratio of medians with the interval that resampled rounds give it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Median of the first row divided by the median of the second.
    pub ratio: f64,
    /// Lower end of the 95 % bootstrap interval.
    pub low: f64,
    /// Upper end of the 95 % bootstrap interval.
    pub high: f64,
}

/// What an interval shows about two contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The first is better: the whole interval says so.
    Better,
    /// The first is worse: the whole interval says so.
    Worse,
    /// The interval holds 1.
    NoDifferenceShown,
    /// Too few rounds to show anything.
    TooFewRounds,
}

/// Fewest rounds from which a difference is told.
///
/// The interval of a median can never be wider than the span of its samples. That span holds the true median
/// with probability 1 - 2 (1/2)^n: 75 % for three rounds, 94 % for five. With fewer than five an interval
/// that is called one of 95 % would be a false claim.
pub const FEWEST_ROUNDS: usize = 5;

impl Ratio {
    /// What the interval shows, when `rounds` pairs went into it.
    pub fn verdict(&self, lower_is_better: bool, rounds: usize) -> Verdict {
        let (better, worse) = if lower_is_better {
            (self.high < 1.0, self.low > 1.0)
        } else {
            (self.low > 1.0, self.high < 1.0)
        };
        match (rounds < FEWEST_ROUNDS, better, worse) {
            (true, ..) => Verdict::TooFewRounds,
            (false, true, _) => Verdict::Better,
            (false, _, true) => Verdict::Worse,
            (false, false, false) => Verdict::NoDifferenceShown,
        }
    }
}

/// How often rounds are drawn anew for an interval.
const RESAMPLES: usize = 10_000;

/// The ratio of the medians of two contenders' samples from the same interleaved rounds, with a 95 %
/// percentile bootstrap interval.
///
/// `pairs` holds one (first, second) pair per round. Whole rounds are drawn with replacement, so a slow
/// minute of the machine, which hits both contenders of a round, is not mistaken for a difference between
/// them. `None` when there are no pairs, a sample is not a number, or a median is zero.
///
/// Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13 (percentile interval).
pub fn ratio_of_medians(pairs: &[(f64, f64)], seed: u64) -> Option<Ratio> {
    let ratio_of = |pairs: &[(f64, f64)]| -> Option<f64> {
        let (first, second): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let ratio = median(&first)? / median(&second)?;
        ratio.is_finite().then_some(ratio)
    };
    let ratio = ratio_of(pairs)?;
    let mut random = SplitMix64(seed);
    let mut drawn = vec![(0.0, 0.0); pairs.len()];
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        drawn.fill_with(|| pairs[random.below(pairs.len())]);
        ratios.extend(ratio_of(&drawn));
    }
    Some(Ratio { ratio, low: quantile(&ratios, 0.025)?, high: quantile(&ratios, 0.975)? })
}

/// How the first of several contenders changed between two runs, in proportion to the others that ran beside
/// it: its new median over its old one, divided by the geometric mean of the same ratio of each other.
///
/// A row of `old` and `new` is one round, the first contender's figure first. Whole rounds are drawn with
/// replacement in both runs, so what hits a round as a whole is not mistaken for a change of one contender.
/// `None` when a run has no rounds, a sample is not a number, or a median is zero.
pub fn change(old: &[Vec<f64>], new: &[Vec<f64>], seed: u64) -> Option<Ratio> {
    let columns = old.first()?.len();
    let middle =
        |rows: &[&Vec<f64>], column: usize| median(&rows.iter().map(|row| row[column]).collect::<Vec<f64>>());
    let change_of = |old: &[&Vec<f64>], new: &[&Vec<f64>]| -> Option<f64> {
        let logarithm = |column| Some((middle(new, column)? / middle(old, column)?).ln());
        let own = logarithm(0)?;
        let others = (1..columns).map(logarithm).sum::<Option<f64>>()? / (columns - 1).max(1) as f64;
        let change = (own - others).exp();
        change.is_finite().then_some(change)
    };
    let ratio = change_of(&old.iter().collect::<Vec<_>>(), &new.iter().collect::<Vec<_>>())?;
    let mut random = SplitMix64(seed);
    let mut ratios = Vec::with_capacity(RESAMPLES);
    let (mut old_drawn, mut new_drawn) = (vec![&old[0]; old.len()], vec![new.first()?; new.len()]);
    for _ in 0..RESAMPLES {
        old_drawn.fill_with(|| &old[random.below(old.len())]);
        new_drawn.fill_with(|| &new[random.below(new.len())]);
        ratios.extend(change_of(&old_drawn, &new_drawn));
    }
    Some(Ratio { ratio, low: quantile(&ratios, 0.025)?, high: quantile(&ratios, 0.975)? })
}

/// A small generator whose whole state is its seed. Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom
/// Number Generators", 2014.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 uniform bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound` (at least 1); the bias of this method is below 2^-50 for any count of rounds.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_odd_count_is_the_middle_sample() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
    }

    #[test]
    fn the_median_of_an_even_count_is_between_the_two_middle_samples() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn no_samples_and_not_a_number_give_no_statistic() {
        assert_eq!(median(&[]), None);
        assert_eq!(summary(&[1.0, f64::NAN]), None);
        assert_eq!(ratio_of_medians(&[], 1), None);
        assert_eq!(ratio_of_medians(&[(1.0, 0.0)], 1), None);
    }

    #[test]
    fn quantiles_agree_with_the_published_definition() {
        // What R's quantile(c(15, 20, 35, 40, 50), type = 7) prints.
        let samples = [15.0, 20.0, 35.0, 40.0, 50.0];
        assert_eq!(quantile(&samples, 0.0), Some(15.0));
        assert_eq!(quantile(&samples, 0.25), Some(20.0));
        assert_eq!(quantile(&samples, 0.4), Some(29.0));
        assert_eq!(quantile(&samples, 1.0), Some(50.0));
    }

    #[test]
    fn a_latency_percentile_is_a_latency_that_occurred() {
        let mut latencies: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(latency_percentile(&mut latencies, 0.5), Some(50));
        assert_eq!(latency_percentile(&mut latencies, 0.99), Some(99));
        assert_eq!(latency_percentile(&mut latencies, 1.0), Some(100));
        assert_eq!(latency_percentile(&mut [7], 0.0), Some(7));
        assert_eq!(latency_percentile(&mut [], 0.5), None);
    }

    #[test]
    fn a_summary_names_both_ends_and_the_count() {
        let expected = Summary { median: 2.0, min: 1.0, max: 4.0, count: 3 };
        assert_eq!(summary(&[4.0, 1.0, 2.0]), Some(expected));
    }

    #[test]
    fn samples_that_never_vary_give_an_interval_of_no_width() {
        let ratio = ratio_of_medians(&[(8.0, 10.0); 5], 42).unwrap();
        assert_eq!(ratio, Ratio { ratio: 0.8, low: 0.8, high: 0.8 });
    }

    #[test]
    fn a_slow_round_that_hits_both_contenders_leaves_the_ratio_alone() {
        // The machine is up to three times slower in some rounds, the contenders differ by a steady 20 %.
        let pairs = [(8.0, 10.0), (24.0, 30.0), (12.0, 15.0), (16.0, 20.0), (8.8, 11.0)];
        let ratio = ratio_of_medians(&pairs, 42).unwrap();
        for value in [ratio.ratio, ratio.low, ratio.high] {
            assert!((value - 0.8).abs() < 1e-12, "{ratio:?}");
        }
    }

    #[test]
    fn the_interval_reaches_the_ends_the_rounds_allow_and_holds_the_ratio() {
        // With three rounds the median of a resample is the smallest pair's with probability 7/27, so the 95
        // % interval must reach both ends.
        let pairs = [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)];
        let ratio = ratio_of_medians(&pairs, 7).unwrap();
        assert_eq!(ratio, Ratio { ratio: 2.0, low: 1.0, high: 3.0 });
    }

    #[test]
    fn a_difference_is_called_only_when_the_whole_interval_shows_it() {
        let ratio = |low, high| Ratio { ratio: 0.9, low, high };
        assert_eq!(ratio(0.85, 0.95).verdict(true, 5), Verdict::Better);
        assert_eq!(ratio(0.85, 0.95).verdict(false, 5), Verdict::Worse);
        assert_eq!(ratio(0.85, 1.0).verdict(true, 5), Verdict::NoDifferenceShown);
        assert_eq!(ratio(1.01, 1.2).verdict(true, 9), Verdict::Worse);
        assert_eq!(ratio(0.5, 0.6).verdict(true, 4), Verdict::TooFewRounds);
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let pairs: Vec<(f64, f64)> =
            (1..20_u8).map(|n| (10.0 + f64::from(n * 7 % 5), 20.0 + f64::from(n))).collect();
        assert_eq!(ratio_of_medians(&pairs, 3), ratio_of_medians(&pairs, 3));
    }

    #[test]
    fn a_change_is_told_in_proportion_to_the_others() {
        // The machine is twice as slow in the second run; the first contender became another 10 % slower.
        let old = vec![vec![10.0, 20.0, 5.0]; 5];
        let new = vec![vec![22.0, 40.0, 10.0]; 5];
        let found = change(&old, &new, 42).unwrap();
        for value in [found.ratio, found.low, found.high] {
            assert!((value - 1.1).abs() < 1e-12, "{found:?}");
        }
        let alone = change(&[vec![10.0]], &[vec![22.0]], 42).unwrap();
        assert!((alone.ratio - 2.2).abs() < 1e-12, "{alone:?}");
        assert_eq!(change(&[], &new, 42), None);
        assert_eq!(change(&[vec![0.0]], &[vec![1.0]], 42), None);
    }

    #[test]
    fn the_interval_of_a_change_reaches_as_far_as_both_runs_allow() {
        // With one round in each run there is nothing to draw from; with two, the ends are the extreme
        // quotients.
        let found = change(&[vec![1.0], vec![2.0]], &[vec![4.0], vec![8.0]], 7).unwrap();
        for (value, expected) in [(found.ratio, 4.0), (found.low, 2.0), (found.high, 8.0)] {
            assert!((value - expected).abs() < 1e-12, "{found:?}");
        }
    }

    #[test]
    fn the_generator_gives_the_published_numbers() {
        // First outputs for seed 1234567 of the reference implementation in C.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
