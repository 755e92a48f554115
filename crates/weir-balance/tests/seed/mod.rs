//! Random tests print their seed and take it back from `WEIR_SEED`.
#![allow(dead_code, reason = "each test binary uses its own part")]

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};
use std::hash::{BuildHasher, RandomState};

/// `WEIR_SEED`, or a fresh one; printed, so that a failing run can be repeated.
#[expect(clippy::disallowed_methods, reason = "tests may draw and be told a seed; the crate may not")]
pub fn seed() -> u64 {
    let given = std::env::var("WEIR_SEED").ok();
    let seed = match given {
        Some(text) => text.parse().expect("WEIR_SEED is a decimal number"),
        None => RandomState::new().hash_one("weir"),
    };
    println!("repeat with WEIR_SEED={seed}");
    seed
}

/// Runs `claim` on `cases` values and shrinks the first that fails.
pub fn for_all<S: Strategy>(cases: u32, values: S, claim: impl Fn(S::Value) -> TestCaseResult) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    if let Err(failure) = runner.run(&values, claim) {
        panic!("{failure}");
    }
}

/// splitmix64: enough for load, and the same numbers everywhere.
pub struct Draws(pub u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn pair(&mut self) -> [u32; 2] {
        let both = self.next();
        [both as u32, (both >> 32) as u32]
    }

    /// Uniform in 0.0..1.0.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.fraction()).ln()
    }
}
