//! Compares two runs: what became better or worse.
//!
//! A machine is seldom equally fast on two days, so the first contender's change is divided by that of the
//! contenders that ran beside it in the same rounds. What remains is its own change.

use std::fmt::Write as _;

use crate::metric::{Direction, Metric};
use crate::report::number::{Scale, plain, ratio};
use crate::report::summary::directed;
use crate::report::{Report, aligned};
use crate::rounds::VariantOutcome;
use crate::sample::Outcome;
use crate::scenario::VariantName;
use crate::statistics::{Ratio, Verdict, change, median};

/// The bootstrap's seed. Fixed, so that the same two files always give the same answer.
const SEED: u64 = 0x5765_6972;

/// One figure of one contender at one point, in both runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    scenario: String,
    variant: VariantName,
    at: Option<f64>,
    metric: Metric,
    deciding: bool,
    /// Medians, old and new, in the metric's unit.
    medians: (f64, f64),
    /// Number of contenders that it is compared with; with none, the change includes the machine's.
    peers: usize,
    /// New over old, with the peers' change taken out.
    ratio: Ratio,
    /// What that shows: `Worse` is a regression.
    verdict: Verdict,
}

/// All figures of the first contenders that both runs have. `tolerance` is the share by which a figure may
/// change before it counts as better or worse: the whole confidence interval must lie beyond it.
pub fn changes(old: &Report, new: &Report, tolerance: f64) -> Vec<Change> {
    let mut changes = Vec::new();
    let scenarios = |report: &Report| -> Vec<_> {
        report.series.iter().flat_map(|series| series.scenarios.clone()).collect()
    };
    let before = scenarios(old);
    for scenario in scenarios(new) {
        let Some(earlier) = before.iter().find(|earlier| earlier.scenario == scenario.scenario) else {
            continue;
        };
        for variant in &scenario.variants {
            let Some(was) = earlier.variants.iter().find(|was| was.variant == variant.variant) else {
                continue;
            };
            for (index, metric) in directed(&scenario).into_iter().enumerate() {
                for at in &variant.points {
                    let Some(found) = at_point(was, variant, metric, *at) else { continue };
                    let (medians, peers, ratio, rounds) = found;
                    let lower = metric.direction() == Direction::Lower;
                    changes.push(Change {
                        scenario: scenario.scenario.clone(),
                        variant: variant.variant,
                        at: *at,
                        metric,
                        deciding: index == 0,
                        medians,
                        peers,
                        ratio,
                        verdict: beyond(ratio, tolerance).verdict(lower, rounds),
                    });
                }
            }
        }
    }
    changes
}

/// The interval moved towards 1 by `tolerance`, so that it contains 1 unless all of it lies beyond.
fn beyond(ratio: Ratio, tolerance: f64) -> Ratio {
    Ratio { low: ratio.low / (1.0 + tolerance), high: ratio.high * (1.0 + tolerance), ..ratio }
}

type Found = ((f64, f64), usize, Ratio, usize);

fn at_point(old: &VariantOutcome, new: &VariantOutcome, metric: Metric, at: Option<f64>) -> Option<Found> {
    let subject = new.outcomes.first()?;
    let has = |variant: &VariantOutcome, name: &str| {
        of(variant, name).is_some_and(|outcome| !outcome.figures(metric, at).is_empty())
    };
    let others = new.outcomes.iter().skip(1).map(|outcome| outcome.contender.as_str());
    let peers: Vec<&str> = others.filter(|name| has(old, name) && has(new, name)).collect();
    let names: Vec<&str> = [subject.contender.as_str()].into_iter().chain(peers.iter().copied()).collect();
    let (old_rows, new_rows) = (rows(old, &names, metric, at), rows(new, &names, metric, at));
    let first = |rows: &[Vec<f64>]| median(&rows.iter().map(|row| row[0]).collect::<Vec<f64>>());
    let medians = (first(&old_rows)?, first(&new_rows)?);
    let rounds = old_rows.len().min(new_rows.len());
    Some((medians, peers.len(), change(&old_rows, &new_rows, SEED)?, rounds))
}

fn of<'a>(variant: &'a VariantOutcome, name: &str) -> Option<&'a Outcome> {
    variant.outcomes.iter().find(|outcome| outcome.contender == name)
}

/// The rounds in which all of `names` took part, with one figure for each of them.
fn rows(variant: &VariantOutcome, names: &[&str], metric: Metric, at: Option<f64>) -> Vec<Vec<f64>> {
    (1..=variant.rounds)
        .filter_map(|round| {
            let figure =
                |name: &&str| of(variant, name)?.at(at).find(|sample| sample.round == round)?.figure(metric);
            names.iter().map(figure).collect()
        })
        .collect()
}

/// Number of regressions among `changes`: of the deciding figures, or of `all`.
pub fn regressions(changes: &[Change], all: bool) -> usize {
    changes.iter().filter(|change| change.verdict == Verdict::Worse && (all || change.deciding)).count()
}

/// A table of `changes`: the deciding figures, and whatever else shows a difference.
pub fn text(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "The two runs have no figure in common.\n".to_owned();
    }
    let head = ["scenario", "settings", "at", "figure", "old", "new", "new/old beside peers", "95 %", ""];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let told =
        |change: &&Change| change.deciding || matches!(change.verdict, Verdict::Better | Verdict::Worse);
    for change in changes.iter().filter(told) {
        let (old, new) = change.medians;
        let scale = Scale::of(change.metric, &[], [old, new].into_iter());
        let verdict = match change.verdict {
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::NoDifferenceShown => "no difference shown",
            Verdict::TooFewRounds => "too few rounds to tell",
        };
        let alone = if change.peers == 0 { " (no peers: the machine's change is in it)" } else { "" };
        rows.push(vec![
            change.scenario.clone(),
            change.variant.name().to_owned(),
            change.at.map(plain).unwrap_or_default(),
            scale.heading(change.metric.title()),
            scale.number(old),
            scale.number(new),
            ratio(change.ratio.ratio),
            format!("{}-{}", ratio(change.ratio.low), ratio(change.ratio.high)),
            format!("{verdict}{alone}"),
        ]);
    }
    let mut text = aligned(&rows);
    let _ = writeln!(text, "\n{} figures compared, {} worse.", changes.len(), regressions(changes, true));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Circumstances;
    use crate::report::tests::{outcome, scenario};

    fn report(weir: &[f64], nginx: &[f64]) -> Report {
        let series = vec![scenario(vec![outcome("weir", weir), outcome("nginx", nginx)])];
        Report::new(Circumstances::default(), series)
    }

    const OLD: [f64; 5] = [8.0, 8.1, 8.2, 7.9, 8.0];
    const PEER: [f64; 5] = [10.0, 10.1, 10.2, 9.9, 10.0];

    #[test]
    fn a_slower_machine_is_no_regression() {
        let slower = |figures: [f64; 5]| figures.map(|figure| figure * 1.5);
        let found = changes(&report(&OLD, &PEER), &report(&slower(OLD), &slower(PEER)), 0.02);
        assert_eq!(found[0].verdict, Verdict::NoDifferenceShown, "{found:?}");
        assert!((found[0].ratio.ratio - 1.0).abs() < 1e-9);
        assert_eq!(regressions(&found, true), 0);
    }

    #[test]
    fn a_regression_on_a_faster_machine_is_found() {
        let found = changes(&report(&OLD, &PEER), &report(&OLD, &PEER.map(|figure| figure / 1.3)), 0.02);
        assert_eq!(found[0].verdict, Verdict::Worse, "{found:?}");
        assert!((found[0].ratio.ratio - 1.3).abs() < 1e-9);
        assert_eq!(regressions(&found, false), 1);
        assert!(text(&found).contains("WORSE"), "{}", text(&found));
    }

    #[test]
    fn a_change_within_the_tolerance_is_none() {
        let flat = [10.0; 5];
        let found = |tolerance| changes(&report(&[8.0; 5], &flat), &report(&[8.1; 5], &flat), tolerance);
        assert_eq!(found(0.02)[0].verdict, Verdict::NoDifferenceShown);
        assert_eq!(found(0.01)[0].verdict, Verdict::Worse);
    }

    #[test]
    fn three_rounds_show_nothing() {
        let found = changes(&report(&OLD[..3], &PEER[..3]), &report(&[80.0; 3], &PEER[..3]), 0.02);
        assert_eq!(found[0].verdict, Verdict::TooFewRounds);
    }
}
