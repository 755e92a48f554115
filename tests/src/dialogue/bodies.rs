//! Bodies in which every byte depends on its position, and reproducible random draws.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

/// `length` bytes that depend on `seed` and on their position, so that a lost, doubled or swapped block
/// shows.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(length + 8);
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    while body.len() < length {
        state = next(state);
        body.extend_from_slice(&state.to_le_bytes());
    }
    body.truncate(length);
    body
}

/// A 64-bit hash of `bytes`, the same in every run.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(bytes)
}

fn next(state: u64) -> u64 {
    // xorshift64*; zero is its only fixed point and never reached from a seed mixed as above.
    let mut x = state | u64::from(state == 0);
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

/// Random draws that a failed test can repeat: prints its seed, and takes it back from `WEIR_SEED`.
#[derive(Debug)]
pub struct Draws(u64);

impl Draws {
    /// Seeded from `WEIR_SEED`, or from the clock.
    pub fn new() -> Draws {
        let given = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
        let clock = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |now| now.as_nanos() as u64)
        };
        let seed = given.unwrap_or_else(clock);
        println!("WEIR_SEED={seed}");
        Draws(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Draws that depend on `seed` alone.
    pub fn seeded(seed: u64) -> Draws {
        Draws(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// A uniform number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = next(self.0);
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }
}

impl Default for Draws {
    fn default() -> Draws {
        Draws::new()
    }
}
