//! The end of what goes on beside a test.

use std::sync::atomic::{AtomicBool, Ordering};

/// Says that something is over when it is dropped, also by a panic: nobody goes on for ever beside a test
/// that has failed.
#[derive(Debug)]
pub struct Sets<'f>(pub &'f AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
