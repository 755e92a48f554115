//! What other Weirs are still to be told of a limit, beside what its table notes.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::digest::Digest;

/// Most keys that operators clear between two looks and that others are told about (count).
const CLEARED_MOST: usize = 1_024;

/// What other Weirs are still to be told of a limit.
#[derive(Default)]
pub(crate) struct Untold {
    /// Whether anything was noted since the last look.
    is_touched: AtomicBool,
    /// Of a limit that counts all together.
    whole: AtomicI64,
    /// Keys whose debts an operator has cleared; `None` for all of them.
    cleared: Mutex<Vec<Option<Digest>>>,
}

impl Untold {
    /// The limit has taken tokens, or returned some. The table notes whose.
    pub fn note(&self, is_whole: bool, tokens: i64) {
        if is_whole {
            self.whole.fetch_add(tokens, Relaxed);
        }
        // The others' caches keep the line as long as nobody writes to it.
        if !self.is_touched.load(Relaxed) {
            self.is_touched.store(true, Relaxed);
        }
    }

    /// An operator has cleared the debt of a key, or all debts.
    pub fn clear(&self, key: Option<Digest>) {
        let mut cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        match key {
            None => *cleared = vec![None],
            Some(_) if cleared.len() < CLEARED_MOST => cleared.push(key),
            Some(_) => {}
        }
        self.whole.store(0, Relaxed);
        self.is_touched.store(true, Relaxed);
    }

    /// Whether anything was noted since this was last asked.
    pub fn is_touched(&self) -> bool {
        self.is_touched.swap(false, Relaxed)
    }

    /// The tokens taken from the one bucket of all since this was last asked.
    pub fn take_whole(&self) -> i32 {
        let tokens = self.whole.swap(0, Relaxed);
        i32::try_from(tokens).unwrap_or(if tokens < 0 { i32::MIN } else { i32::MAX })
    }

    /// The keys whose debts were cleared since this was last asked; `None` for all keys.
    pub fn take_cleared(&self) -> Vec<Option<Digest>> {
        std::mem::take(&mut *self.cleared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
