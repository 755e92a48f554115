//! `adaptive` of a `concurrency_limit`: a limit that adapts its size.

use weir_screen::AdaptiveLimit;

use crate::fields::Fields;
use crate::keys::{Limit, Row, Table, count, factor};
use crate::report::Findings;
use crate::setting::{Part, Section, Setting as _};

static ADAPTIVE: Table = Table {
    path: "adaptive = { … }",
    doc: "How far a limit may go that finds its size by itself.",
    rows: AdaptiveLimit::ROWS,
};

impl Section for AdaptiveLimit {
    const TABLE: &'static Table = &ADAPTIVE;
}

impl Part for AdaptiveLimit {
    const ROWS: &'static [Row] = &[
        Row::Key(
            count(Limit::new(3, 1, 10_000_000, "a limit of none would be found by nobody"))
                .also(&["min_concurrency", "least"])
                .named("min", "The limit never falls below."),
        ),
        Row::Key(
            factor(Limit::new(1.5, 1.0, 100.0, "by 1 any wait at all is too long"))
                .also(&["rtt_tolerance", "buffer"])
                .named("tolerance", "So many times as long as without a wait answers may take."),
        ),
    ];

    fn of(fields: &Fields) -> AdaptiveLimit {
        AdaptiveLimit {
            min: u32::read(fields.holds("min").as_deref()).max(1),
            tolerance: f64::read(fields.holds("tolerance").as_deref()),
        }
    }

    fn put(&self, fields: &mut Fields) {
        fields.put("min", self.min.write());
        fields.put("tolerance", self.tolerance.write());
    }
}

/// Reports limits that can't adapt: a limit per client sees too few requests, and each of two limits would
/// mistake the other's refusals for the effect of its own.
pub(crate) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    let mut has_one = false;
    for (_, limit) in fields.tables("concurrency_limit") {
        let Some((entry, adaptive)) = limit.get("adaptive").zip(limit.table("adaptive")) else { continue };
        if !matches!(limit.text("key"), Some("route" | "listener")) {
            let hint = "such a limit is for all requests together: `key = \"route\"`, or `\"listener\"`";
            findings.error(entry.key, "`adaptive` needs another `key`", hint);
        }
        if adaptive.number("min") > limit.number("max") {
            let hint = format!("expected at most `max`, {}", limit.number("max"));
            findings.error(adaptive.at("min"), "`min` is above the limit", hint);
        }
        if std::mem::replace(&mut has_one, true) {
            let hint = "one limit here can find its size; give the others a fixed `max`";
            findings.error(entry.key, "a second `adaptive` limit", hint);
        }
    }
}
