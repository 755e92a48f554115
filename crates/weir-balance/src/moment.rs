//! Moments in one atomic word: nanoseconds.

use std::time::Duration;

/// Stands for no moment at all.
pub(crate) const NEVER: u64 = u64::MAX;

/// Encodes a moment in a word; saturates after 584 years.
pub(crate) fn nanoseconds(moment: Duration) -> u64 {
    moment
        .as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(moment.subsec_nanos()))
        .min(NEVER - 1)
}

/// Decodes what [`nanoseconds`] encoded; `None` for [`NEVER`].
pub(crate) fn moment(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != NEVER).then(|| Duration::from_nanos(nanoseconds))
}
