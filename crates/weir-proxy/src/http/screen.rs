//! The screens of listeners and routes, made of what the config says of them.

use std::sync::OnceLock;

use weir_screen::{Screen, Settings};

/// Makes a screen; limits of `before` go on. `None` when nothing is asked: then a request costs one
/// comparison.
pub fn compile(settings: &Settings, before: Option<&Screen>) -> Option<Box<Screen>> {
    Screen::compile(settings, seed(), before).map(Box::new)
}

/// Drawn once per process, and told to nobody: who knew it could make keys meet.
fn seed() -> [u64; 2] {
    static SEED: OnceLock<[u64; 2]> = OnceLock::new();
    *SEED.get_or_init(|| {
        let mut bytes = [0; 16];
        // It does not fail on any system that has `getrandom(2)`; without it the seed is at least another in
        // each process.
        if aws_lc_rs::rand::fill(&mut bytes).is_err() {
            let state = foldhash::fast::RandomState::default();
            for (part, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *bytes = std::hash::BuildHasher::hash_one(&state, part).to_ne_bytes();
            }
        }
        let [low, high] = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte])));
        [low, high]
    })
}
