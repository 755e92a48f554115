//! A pessimistic estimate of a backend's response time: peak EWMA in one atomic word.
//!
//! A response slower than the estimate raises it at once; faster ones lower it gradually, by elapsed time. An
//! estimate without new responses fades, so that a backend that was slow gets another try. Each try restores
//! the estimate until the answer arrives, so that a faded estimate attracts one request and not a flood.
//!
//! Source: Finagle's `PeakEwma` load metric and linkerd's `tower-balance`; the one-try rule is ours.

use crate::moment::nanoseconds;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Cost of a backend that has been tried but has never answered: more than any measured one.
const UNANSWERED_SECONDS: f32 = 1.0e6;

/// Stamps count 65.536 us; 32 bits of them wrap after 78 hours. A backend idle for that long may look fresher
/// than it is, which delays its next try by a few decay times.
const TICK_SHIFT: u32 = 16;

/// The decay time, ten seconds: how fast old observations lose weight, and how long an unanswered first try
/// keeps other requests away.
const TICKS_PER_DECAY: f32 = 10.0e9 / 65_536.0;

/// Seconds as `f32` bits in the upper half, the stamp of the last observation in the lower. 0 = never
/// observed.
#[derive(Debug, Default)]
pub(crate) struct PeakEwma {
    cell: AtomicU64,
    /// Stamp of the last pick; 0 = never picked. Kept only where the algorithm is least-time.
    picked_at: AtomicU32,
}

impl PeakEwma {
    pub(crate) fn observe(&self, now: Duration, rtt: Duration) {
        let stamp = ticks(now);
        // A zero would read as "never observed".
        let rtt = rtt.as_secs_f32().max(1.0e-9);
        let mut seen = self.cell.load(Ordering::Relaxed);
        loop {
            let estimate = match unpack(seen) {
                Some((before, at)) if rtt <= before => {
                    let kept = fade(age(stamp, at));
                    before * kept + rtt * (1.0 - kept)
                }
                _ => rtt,
            };
            let wanted = pack(estimate, stamp);
            match self.cell.compare_exchange_weak(seen, wanted, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(actual) => seen = actual,
            }
        }
    }

    /// Records that a request is trying this backend now.
    pub(crate) fn note_pick(&self, now: Duration) {
        self.picked_at.store(ticks(now), Ordering::Relaxed);
    }

    pub(crate) fn stored(&self) -> Option<Duration> {
        unpack(self.cell.load(Ordering::Relaxed)).map(|(seconds, _)| Duration::from_secs_f32(seconds))
    }

    /// Expected seconds for one request on an idle backend, as seen at `now`. 0 invites a try.
    pub(crate) fn expected_seconds(&self, now: Duration) -> f32 {
        let stamp = ticks(now);
        let picked_at = self.picked_at.load(Ordering::Relaxed);
        let since_pick = if picked_at == 0 { f32::INFINITY } else { age(stamp, picked_at) };
        match unpack(self.cell.load(Ordering::Relaxed)) {
            Some((seconds, observed_at)) => seconds * fade(since_pick.min(age(stamp, observed_at))),
            None if since_pick < 1.0 => UNANSWERED_SECONDS,
            None => 0.0,
        }
    }
}

/// Never 0, which stands for "never observed".
fn ticks(now: Duration) -> u32 {
    ((nanoseconds(now) >> TICK_SHIFT) as u32).max(1)
}

/// Time between two stamps in units of the decay time; a stamp from the future (another worker's clock read)
/// counts as now.
fn age(now: u32, then: u32) -> f32 {
    let elapsed = now.wrapping_sub(then);
    // The upper quarter is where "slightly in the future" lands after wrapping.
    if elapsed > u32::MAX - (1 << 30) { 0.0 } else { elapsed as f32 / TICKS_PER_DECAY }
}

/// Divides by the first terms of e^x instead of multiplying by e^-x: close to it below 1, monotonic, and only
/// a few cycles on the pick path.
fn fade(age: f32) -> f32 {
    1.0 / (1.0 + age + age * age * 0.5 + age * age * age * 0.166_666_67)
}

fn pack(seconds: f32, stamp: u32) -> u64 {
    u64::from(seconds.to_bits()) << 32 | u64::from(stamp)
}

fn unpack(cell: u64) -> Option<(f32, u32)> {
    (cell != 0).then(|| (f32::from_bits((cell >> 32) as u32), cell as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn milliseconds(latency: &PeakEwma) -> f32 {
        latency.stored().unwrap().as_secs_f32() * 1000.0
    }

    #[test]
    fn a_peak_counts_at_once_and_recovery_takes_time() {
        let latency = PeakEwma::default();
        latency.observe(at(1), Duration::from_millis(10));
        latency.observe(at(2), Duration::from_millis(500));
        assert!((milliseconds(&latency) - 500.0).abs() < 0.1);
        latency.observe(at(3), Duration::from_millis(10));
        let soon = milliseconds(&latency);
        assert!((430.0..470.0).contains(&soon), "one second of ten: {soon}");
        for second in 4..60 {
            latency.observe(at(second), Duration::from_millis(10));
        }
        assert!(milliseconds(&latency) < 15.0);
    }

    #[test]
    fn a_backend_never_tried_invites_a_try_and_then_keeps_others_away() {
        let latency = PeakEwma::default();
        assert_eq!(latency.expected_seconds(at(5)), 0.0);
        latency.note_pick(at(5));
        assert_eq!(latency.expected_seconds(at(6)), UNANSWERED_SECONDS);
        // No answer came: a little later one more request may try.
        assert_eq!(latency.expected_seconds(at(16)), 0.0);
    }

    #[test]
    fn a_faded_estimate_attracts_one_try_not_a_flood() {
        let latency = PeakEwma::default();
        latency.observe(at(1), Duration::from_secs(1));
        let faded = latency.expected_seconds(at(100));
        assert!(faded < 0.01, "{faded}");
        latency.note_pick(at(100));
        let restored = latency.expected_seconds(at(100));
        assert!((restored - 1.0).abs() < 0.001, "{restored}");
    }

    #[test]
    fn a_stamp_slightly_in_the_future_counts_as_now() {
        let latency = PeakEwma::default();
        latency.observe(at(10), Duration::from_millis(100));
        assert!((latency.expected_seconds(at(9)) - 0.1).abs() < 1.0e-6);
    }

    #[test]
    fn fading_is_monotonic_and_starts_at_one() {
        assert_eq!(fade(0.0), 1.0);
        let mut before = 1.0;
        for step in 1..1000 {
            let now = fade(step as f32 * 0.1);
            assert!(now < before && now > 0.0);
            before = now;
        }
        assert_eq!(fade(f32::INFINITY), 0.0);
    }

    #[test]
    fn a_wrapped_stamp_keeps_the_estimate_finite() {
        let latency = PeakEwma::default();
        let late = Duration::from_secs(79 * 3600);
        latency.observe(late - at(1), Duration::from_millis(20));
        latency.observe(late, Duration::from_millis(5));
        assert!(milliseconds(&latency) <= 20.0 && milliseconds(&latency) >= 5.0);
    }
}
