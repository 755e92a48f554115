//! `hedge` of a `retry` table: when a request is also sent to a second backend because the first one is slow.

use std::time::Duration;

use crate::fields::{Fields, KeyValue, Value};
use crate::keys::{HOUR, Limit, Shape, duration, flag, millis, text, text_or, timer, timer_off, yes_or_no};
use crate::report::{Findings, quote};
use crate::setting::{one, table};
use crate::units::{self, Refused, refuse, show_duration};

table! {
    /// A request that is still without an answer after some time is sent to a second backend as well, and
    /// the first answer counts. Each costs a retry of the pool's `budget`. GET, HEAD, OPTIONS and TRACE
    /// alone, and none that a cookie keeps on its backend.
    #[derive(Copy, Eq)]
    pub struct Hedge at "hedge = { … }" {
        /// After how long: a percentile of the pool's times to the head of an answer in the last minute,
        /// `p50` to `p99.9`, or a duration. `"off"`: never.
        after: HedgeAfter = text_or(&AFTER, "p95").also(&["delay", "hedging_delay", "percentile"]);
        /// Where `after` is a percentile, not before.
        least as "min": Duration =
            duration(Limit::new(millis(1), millis(0), HOUR, MIN_REASON)).also(&["at_least", "min_delay"]);
        /// Where `after` is a percentile, not later.
        most as "max": Duration =
            timer_off(Limit::optional(millis(1), HOUR, MAX_REASON))
                .default("\"off\"")
                .also(&["at_most", "max_delay"]);
        /// PUT and DELETE too: the copy that lost may be executed after what the client asks for next.
        idempotent: bool = flag(false);
    }
}

table! {
    /// The `hedge` of requests that the route takes. What it does not say is as the pool has it.
    #[derive(Copy, Eq)]
    pub struct RouteHedge at "hedge = { … }" {
        /// After how long: a percentile or a duration; `"off"`: never.
        after: Option<HedgeAfter> = text(&AFTER).default("as the pool, else `p95`");
        /// Where `after` is a percentile, not before.
        least as "min": Option<Duration> =
            duration(Limit::optional(millis(0), HOUR, MIN_REASON)).default("as the pool");
        /// Where `after` is a percentile, not later.
        most as "max": Option<Duration> =
            timer(Limit::optional(millis(1), HOUR, MAX_REASON)).default("as the pool");
        /// PUT and DELETE too.
        idempotent: Option<bool> = yes_or_no().default("as the pool");
    }
}

const MIN_REASON: &str = "what answers at once needs no second backend";
const MAX_REASON: &str = "a pool that is slow as a whole is not helped by asking it twice";

/// When to send the request to another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HedgeAfter {
    /// After the time within which this many of 1000 answers come (500..=999).
    Percentile(u32),
    /// After this time.
    Time(Duration),
    /// Never.
    Off,
}

/// Accepted percentiles, in thousandths. Below, more than half of all requests would be sent twice.
const PERCENTILES: std::ops::RangeInclusive<u32> = 500..=999;

static AFTER: Shape = Shape::new("a percentile or a duration", "p95", |text| after(text).map(written));

one!(
    HedgeAfter,
    Value::Text(text) => after(text).ok(),
    |it| Value::Text(written(*it)),
    HedgeAfter::Percentile(950)
);

impl HedgeAfter {
    /// As written in the file.
    pub fn word(self) -> String {
        written(self)
    }
}

fn written(after: HedgeAfter) -> String {
    match after {
        HedgeAfter::Percentile(per_mille) if per_mille % 10 == 0 => format!("p{}", per_mille / 10),
        HedgeAfter::Percentile(per_mille) => format!("p{}.{}", per_mille / 10, per_mille % 10),
        HedgeAfter::Time(time) => show_duration(time),
        HedgeAfter::Off => "off".to_owned(),
    }
}

fn after(text: &str) -> Result<HedgeAfter, Refused> {
    if text == "off" {
        return Ok(HedgeAfter::Off);
    }
    if let Some(number) = text.strip_prefix(['p', 'P']) {
        return match percentile(number).filter(|per_mille| PERCENTILES.contains(per_mille)) {
            Some(per_mille) => Ok(HedgeAfter::Percentile(per_mille)),
            None => refuse(
                format!("{} is no percentile that a hedge goes by", quote(text)),
                "expected \"p50\" to \"p99.9\": below, most requests would be sent twice",
            ),
        };
    }
    match units::duration(text) {
        Ok(time) if (millis(1)..=HOUR).contains(&time) => Ok(HedgeAfter::Time(time)),
        Ok(_) => refuse(format!("{} is out of bounds", quote(text)), "expected \"1ms\" to \"1h\""),
        Err(_) => refuse(
            format!("{} is neither a percentile nor a duration", quote(text)),
            "expected something like \"p95\" or \"50ms\"",
        ),
    }
}

/// Parses `95` or `99.9` into thousandths.
fn percentile(number: &str) -> Option<u32> {
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(tenths) || whole.len() > 2 || tenths.len() > 1 {
        return None;
    }
    Some(whole.parse::<u32>().ok()? * 10 + tenths.parse::<u32>().ok()?)
}

/// Reports parts of `hedge` in a `retry` table that have no effect.
pub(crate) fn check(retry: &Fields, findings: &mut Findings<'_>) {
    let Some(hedge) = retry.table("hedge") else { return };
    let is_good = |entry: &&KeyValue| !matches!(entry.value, Value::Bad);
    let bound = |name: &str| hedge.get(name).filter(is_good);
    let by = hedge.get("after").and_then(|entry| match &entry.value {
        Value::Text(text) => after(text).ok(),
        _ => None,
    });
    if let Some(by @ (HedgeAfter::Time(_) | HedgeAfter::Off)) = by {
        let names: &[&str] =
            if by == HedgeAfter::Off { &["min", "max", "idempotent"] } else { &["min", "max"] };
        for (name, entry) in names.iter().filter_map(|name| Some((name, bound(name)?))) {
            let hint = match by {
                HedgeAfter::Off => "`after` is \"off\"",
                _ => "it bounds a percentile, and `after` is a duration",
            };
            findings.warning(entry.key, format!("`{name}` has no effect"), hint);
        }
    }
    let least = bound("min").map(|entry| &entry.value);
    if let (Some(Value::Duration(least)), Some(entry)) = (least, bound("max"))
        && let Value::Duration(most) = &entry.value
        && most < least
    {
        let hint = format!("`min` is {}", show_duration(*least));
        findings.error(entry.key, "`max` is less than `min`", hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_durations_are_read_and_written_alike() {
        for text in ["p50", "p95", "p99", "p99.9", "p97.5", "1ms", "50ms", "1h", "off"] {
            assert_eq!(after(text).map(written).ok().as_deref(), Some(text));
        }
        assert_eq!(after("P99.0").ok(), Some(HedgeAfter::Percentile(990)));
        for text in ["p49", "p100", "p", "p95.", "p.5", "p99.99", "p-1", "p+95", "95", "0ms", "2h", "95%", ""]
        {
            assert!(after(text).is_err(), "{text}");
        }
    }
}
