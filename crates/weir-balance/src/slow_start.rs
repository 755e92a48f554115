//! The share of its weight that a backend carries while it warms up.

use std::time::Duration;

pub(crate) const FULL_PERCENT: u32 = 100;

/// A fresh backend gets a tenth of its share at once: with less, a small pool would never warm it.
const FIRST_PERCENT: u32 = 10;

/// The ramp rises in steps of 5 %: every step publishes a new view, so a smooth line would cost more without
/// a noticeable difference.
const STEP_PERCENT: u32 = 5;
const STEPS: u32 = FULL_PERCENT / STEP_PERCENT;

/// The share of weight and `max_connections` in force at `now` (percent, 10..=100), for a ramp that began at
/// `began`.
pub(crate) fn percent(began: Duration, now: Duration, length: Duration) -> u32 {
    let elapsed = now.saturating_sub(began);
    if elapsed >= length {
        return FULL_PERCENT;
    }
    let steps = elapsed.as_nanos() * u128::from(STEPS) / length.as_nanos();
    (steps as u32 * STEP_PERCENT).max(FIRST_PERCENT)
}

/// The moment of the share's next change; `None` when the ramp is over.
pub(crate) fn next_step(began: Duration, now: Duration, length: Duration) -> Option<Duration> {
    let elapsed = now.saturating_sub(began);
    if elapsed >= length {
        return None;
    }
    let steps = (elapsed.as_nanos() * u128::from(STEPS) / length.as_nanos()) as u32;
    let wanted = (steps + 1).max(FIRST_PERCENT / STEP_PERCENT + 1);
    // Rounded up, so that a caller that wakes at this moment finds the step taken.
    let offset = (length.as_nanos() * u128::from(wanted)).div_ceil(u128::from(STEPS));
    Some(began.saturating_add(Duration::from_nanos(offset as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: Duration = Duration::from_secs(100);
    const LENGTH: Duration = Duration::from_secs(10);

    #[test]
    fn the_share_rises_from_a_tenth_to_all_in_at_least_ten_even_steps() {
        let mut shares = vec![];
        for tenth in 0..=110 {
            shares.push(percent(BEGAN, BEGAN + Duration::from_millis(tenth * 100), LENGTH));
        }
        assert_eq!((shares[0], shares[50], shares[99], shares[100]), (10, 50, 95, 100));
        assert!(shares.is_sorted());
        shares.dedup();
        assert!(shares.len() >= 10);
        assert!(shares.windows(2).all(|pair| pair[1] - pair[0] == 5));
    }

    #[test]
    fn waking_at_each_next_step_sees_every_share_once() {
        for length in [LENGTH, Duration::from_nanos(7), Duration::from_millis(333)] {
            let (mut now, mut before, mut wakes) = (BEGAN, 0, 0);
            while let Some(next) = next_step(BEGAN, now, length) {
                assert!(next > now, "{length:?} {now:?}");
                now = next;
                let share = percent(BEGAN, now, length);
                assert!(share > before, "{length:?}");
                before = share;
                wakes += 1;
            }
            assert!(wakes <= 19, "{wakes}");
            assert_eq!(percent(BEGAN, now, length), 100);
        }
    }

    #[test]
    fn a_ramp_of_no_length_is_over_at_once() {
        assert_eq!(percent(BEGAN, BEGAN, Duration::ZERO), 100);
        assert_eq!(next_step(BEGAN, BEGAN, Duration::ZERO), None);
    }
}
