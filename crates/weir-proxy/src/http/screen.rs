//! Compiles the screens of listeners and routes from the config.

use std::sync::OnceLock;

use weir_screen::{Screen, Seeds, Settings};
use weir_state::Snapshot;

/// Compiles a screen; the state of the limits of `before` is kept. `None` if nothing is configured: then a
/// request costs one comparison.
pub fn compile(settings: &Settings, seeds: &Seeds, before: Option<&Screen>) -> Option<Box<Screen>> {
    Screen::compile(settings, seeds, before).map(Box::new)
}

/// The seeds for the limits of a snapshot.
pub fn seeds(snapshot: &Snapshot) -> Seeds {
    Seeds { own: seed(), shared: snapshot.peer_keys.as_ref().map(|keys| keys.seed) }
}

/// Drawn once per process and kept secret: whoever knew it could make keys collide.
fn seed() -> [u64; 2] {
    static SEED: OnceLock<[u64; 2]> = OnceLock::new();
    *SEED.get_or_init(|| {
        let mut bytes = [0; 16];
        // This does not fail on any system that has `getrandom(2)`; without it the seed at least differs
        // between processes.
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
