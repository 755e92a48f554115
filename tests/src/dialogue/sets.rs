//! Ends what runs beside a test.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when dropped, also by a panic, so that nothing runs forever beside a test that has failed.
#[derive(Debug)]
pub struct Sets<'f>(pub &'f AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
