//! What no value shows by itself: names that must exist, addresses that clash, keys that contradict each other.

use crate::build::Draft;
use crate::report::Findings;

/// Notes every contradiction of a draft.
pub(crate) fn check(_draft: &Draft, _findings: &mut Findings<'_>) {}
