//! The verdict.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::SoakPlan;
use super::chaos::Chaos;
use super::judge::Judgement;
use super::traffic::Kind;
use super::usage::Holding;
use crate::storm::{Failures, table};

/// The results.
#[derive(Debug)]
pub struct SoakReport {
    /// Everything that failed and is not explained by a backend that was killed or stopped.
    failures: Failures,
    /// Changes made, by name.
    changes: Vec<(String, u64)>,
    rows: Vec<(String, String)>,
}

impl SoakReport {
    pub(super) fn new(
        chaos: &mut Chaos,
        plan: &SoakPlan,
        judged: &Judgement,
        trend: Option<(u64, u64)>,
        [left, fresh]: [Holding; 2],
    ) -> SoakReport {
        let shared = &chaos.shared;
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
        row("seed", plan.seed.to_string());
        row("seconds, clients a second", format!("{}, {}", plan.seconds, plan.rate));
        row("clients", shared.begun().to_string());
        let of_kinds = Kind::ALL.iter().zip(&shared.counts).map(|((_, name, _), count)| {
            let (begun, failed) = (count.begun.load(Ordering::Relaxed), count.failed.load(Ordering::Relaxed));
            if failed == 0 { format!("{name} {begun}") } else { format!("{name} {begun} ({failed} failed)") }
        });
        row("of them", of_kinds.collect::<Vec<_>>().join(", "));
        let (explained, stalled) = (judged.explained.len(), judged.stalled);
        row("failed, explained", format!("{explained}, {stalled} of them by a machine that was too busy"));
        let stalls = shared.stalls();
        let stalled: f64 =
            stalls.iter().map(|(from, until)| (*until - *from).as_secs_f64()).sum::<f64>() + 0.0;
        row("machine too busy", format!("{} times, {stalled:.1} s in all", stalls.len()));
        row("sent again as refused", shared.repeated.load(Ordering::Relaxed).to_string());
        row("left out, too many at once", shared.left_out.load(Ordering::Relaxed).to_string());
        let (done, undone, unknown) =
            shared.sql_ledger.lock().unwrap_or_else(PoisonError::into_inner).counts();
        row(
            "rows written to MySQL",
            format!("{done} acknowledged, {undone} refused or rolled back, {unknown} without an answer"),
        );
        let (resumed, all) =
            (shared.resumed.load(Ordering::Relaxed), shared.handshakes.load(Ordering::Relaxed));
        row("handshakes resumed", format!("{resumed} of {all}"));
        let ends = judged.ends.iter().map(|(end, count)| format!("{end} {count}"));
        row("lines in the access log", ends.collect::<Vec<_>>().join(", "));
        let changes: Vec<(String, u64)> =
            chaos.counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let counted = changes.iter().map(|(name, count)| format!("{name} {count}"));
        row("changes", counted.collect::<Vec<_>>().join(", "));
        if let Some((first, last)) = trend {
            let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let (first, last) = (mebibytes(first), mebibytes(last));
            row(
                "memory, last process",
                format!("{first:.1} MiB in its first third, {last:.1} MiB in its last, since the last crowd"),
            );
        }
        row("held after all", left.text());
        row("held by a fresh process", fresh.text());
        let failures = std::mem::take(&mut chaos.failures);
        SoakReport { failures, changes, rows }
    }

    /// Everything that failed.
    pub fn failed(&self) -> u64 {
        self.failures.count()
    }

    /// How often this was done, such as `reload`.
    pub fn changed(&self, name: &str) -> u64 {
        self.changes.iter().find(|(of, _)| of == name).map_or(0, |(_, count)| *count)
    }

    /// The table, the first failures and the verdict.
    pub fn text(&self) -> String {
        let rows: Vec<(&str, String)> =
            self.rows.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let mut text = table("soak", &rows);
        for failure in self.failures.first() {
            text += &format!("  failure: {failure}\n");
        }
        let verdict = match self.failed() {
            0 => "passed: nothing failed, and nothing was left behind".to_owned(),
            count => format!("FAILED: {count} failures"),
        };
        text + &verdict + "\n"
    }
}
