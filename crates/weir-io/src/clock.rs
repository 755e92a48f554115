//! The one monotonic clock of the process: every other part is told the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A second of the system's clock shortly before the process first asked; 0 before that.
static ORIGIN_SECONDS: AtomicU64 = AtomicU64::new(0);

/// Time since a moment shortly before the process first asked, monotonic: wall-clock jumps do not move it.
/// About 20 ns.
///
/// Of a request's own instructions a fortieth was what `std::time::Instant` does beyond that: a difference of
/// two times that may be either way round, and a cell that may be empty.
#[inline]
pub fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative.
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
    let mut origin = ORIGIN_SECONDS.load(Ordering::Relaxed);
    if origin == 0 {
        origin = first_asked(seconds);
    }
    Duration::new(seconds.saturating_sub(origin), nanoseconds)
}

/// The second before: another thread that asks first as well may have read its time in that one.
#[cold]
fn first_asked(seconds: u64) -> u64 {
    let origin = seconds.saturating_sub(1);
    match ORIGIN_SECONDS.compare_exchange(0, origin, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => origin,
        Err(earlier) => earlier,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_as_that_of_the_standard_library_does() {
        let (begun, first) = (std::time::Instant::now(), now());
        std::thread::sleep(Duration::from_millis(20));
        let (last, spent) = (now(), begun.elapsed());
        assert!(last - first >= Duration::from_millis(20) && last - first <= spent, "{first:?}, {last:?}");
    }
}
