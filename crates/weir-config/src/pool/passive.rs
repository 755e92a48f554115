//! `passive` of `[pool.NAME.health]`: ejection by the results of real traffic.

use std::time::Duration;

use crate::fields::{Fields, Value};
use crate::keys::{
    Each, HOUR, Limit, Shape, count, duration, factor, list_or, millis, seconds, table as below,
};
use crate::report::{Findings, quote};
use crate::setting::{Section as _, table};
use crate::units::refuse;

use super::health::{show_range, status_range};

table! {
    /// Ejects a backend for a while when real traffic fails on it. On unless it is `"off"`.
    pub struct Passive at "passive = { … }" {
        /// Failures that eject.
        errors: u32 = count(Limit::new(5, 1, 1_000_000, "one failure at least")).also(&["max_fails"]);
        /// Within this time.
        within: Duration =
            duration(Limit::new(seconds(10), millis(100), HOUR, "a window of failures"))
                .also(&["window"]);
        /// The first ejection lasts this long.
        eject: Duration =
            duration(Limit::new(seconds(10), millis(100), HOUR, "a backend must get its chance again"))
                .also(&["fail_timeout", "base_ejection_time"]);
        /// Never more than this share of the pool is ejected.
        max_ejected: f64 = factor(Limit::new(0.5, 0.0, 1.0, "a share of the pool, from 0 to 1"));
        /// Statuses by which a backend says itself that it failed, as inclusive ranges.
        statuses: Vec<(u16, u16)> = list_or(Each::Text(&FAILED_STATUS), &["502-504"]).also(&["status"]);
        /// Ejects backends that fail much more often than the others do.
        success_rate: Option<SuccessRate> =
            below(SuccessRate::TABLE).default("off").also(&["outlier", "outlier_detection"]);
    }
}

table! {
    /// Compares what share of attempts succeeded at each backend in each interval.
    #[derive(Copy)]
    pub struct SuccessRate at "success_rate = { … }" {
        /// What is counted together.
        interval: Duration =
            duration(Limit::new(seconds(10), seconds(1), HOUR, "an interval to count in"));
        /// Standard deviations below the mean that are too far.
        factor: f64 =
            factor(Limit::new(1.9, 0.1, 100.0, "standard deviations")).also(&["stdev_factor"]);
        /// Backends with enough attempts that it takes to compare.
        min_backends: u32 =
            count(Limit::new(5, 3, 10_000, "of two it cannot be told which one is odd"))
                .also(&["minimum_hosts", "min_hosts"]);
        /// Attempts in one interval that it takes to be compared.
        min_requests: u32 =
            count(Limit::new(100, 1, 1_000_000, "of few attempts the share is luck"))
                .also(&["request_volume"]);
    }
}

static FAILED_STATUS: Shape = Shape::new("a status or a range", "502-504", |text| {
    let (first, last) = status_range(text)?;
    if first < 400 {
        let hint = "expected statuses from 400 to 599, such as \"429\" or \"500-504\"";
        return refuse(format!("{} is no failure", quote(text)), hint);
    }
    Ok(show_range((first, last)))
})
.or_number();

impl Passive {
    /// Whether an answer with this status counts as the backend's failure.
    pub fn is_failure(&self, status: u16) -> bool {
        self.statuses.iter().any(|&(first, last)| (first..=last).contains(&status))
    }
}

/// Reports what can never happen.
pub(super) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    if let Some(entry) = fields.get("max_ejected")
        && matches!(entry.value, Value::Factor(0.0))
    {
        findings.warning(
            entry.at,
            "no backend is ever ejected",
            "say `passive = \"off\"`, or a larger share",
        );
    }
    let Some(rate) = fields.table("success_rate") else { return };
    if rate.is_bad("factor") || rate.is_bad("min_backends") {
        return;
    }
    let SuccessRate { factor, min_backends, .. } = crate::setting::Part::of(rate);
    // One of n values that differs from all others is sqrt(n - 1) standard deviations below their mean.
    let farthest = f64::from(min_backends.saturating_sub(1)).sqrt();
    if factor >= farthest {
        let hint = format!("expected a `factor` below {farthest:.2}, or more `min_backends`");
        let message =
            format!("of {min_backends} backends none can be {factor} standard deviations below the mean");
        findings.warning(rate.at, message, hint);
    }
}
