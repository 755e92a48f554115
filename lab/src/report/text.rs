//! The report as text: aligned tables for a terminal, which are Markdown at the same time.

use std::fmt::Write as _;

use super::number::{plain, ratio};
use super::summary::{directed, remarks as said};
use super::{Circumstances, Comparison, Report, asked, compare, subject};
use crate::fairness;
use crate::metric::{Metric, Unit};
use crate::rounds::{ScenarioOutcome, VariantOutcome};
use crate::sample::{Outcome, Participation};
use crate::statistics::{Verdict, summary};

/// All of `report`.
pub fn of(report: &Report) -> String {
    let mut text = circumstances(&report.circumstances);
    for series in &report.series {
        let _ = write!(text, "\n# {}: {}\n", series.series.name, series.series.title);
        for scenario in &series.scenarios {
            let _ = write!(text, "\n## {}: {}\n", scenario.scenario, scenario.title);
            for variant in &scenario.variants {
                if scenario.variants.len() > 1 {
                    let _ = write!(text, "\n### {} settings\n", variant.variant.name());
                }
                let _ = write!(text, "\n{}", table(scenario, variant));
                text.push_str(&comparisons(scenario, variant));
                text.push_str(&asked::table(scenario, variant));
                text.push_str(&remarks(scenario, variant));
            }
        }
        for table in &series.series.tables {
            text.extend(asked::side_by_side(series, table));
        }
    }
    text
}

fn circumstances(it: &Circumstances) -> String {
    let core =
        |core: Option<usize>| core.map_or_else(|| "any core".to_owned(), |core| format!("core {core}"));
    format!(
        "{} cores of {}, Linux {}, {} congestion control, {} network. Load balancer on {}, load and backends on {}, \
         nice {}{}. Interleaved rounds; medians, in brackets the least and the greatest. Load average at the start \
         {}. Commit {}.\n",
        it.cores,
        it.processor,
        it.kernel,
        it.congestion_control,
        if it.private_network { "private" } else { "the machine's" },
        core(it.proxy_core),
        core(it.load_core),
        it.nice,
        match (it.realtime, it.nice_in_force) {
            (true, _) => ", real-time",
            (false, true) => "",
            (false, false) => " (refused: not root)",
        },
        it.load_average.split(' ').take(3).collect::<Vec<_>>().join(", "),
        it.commit,
    )
}

fn table(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> String {
    let shown: Vec<Metric> = measured(scenario, variant);
    let mut head: Vec<String> = vec!["contender".to_owned()];
    head.extend(scenario.sweep.iter().map(|sweep| sweep.title.clone()));
    let scales: Vec<(f64, &str)> = shown.iter().map(|metric| scale(*metric, variant)).collect();
    head.extend(shown.iter().zip(&scales).map(|(metric, (_, unit))| heading(*metric, unit)));
    head.push("errors".to_owned());
    let mut rows = vec![head];
    for at in &variant.points {
        for outcome in &variant.outcomes {
            if outcome.at(*at).next().is_none() {
                continue;
            }
            let version = outcome.version.as_deref().unwrap_or_default();
            let mut row = vec![format!("{} {version}", outcome.contender)];
            row.extend(at.map(plain));
            for (metric, (factor, _)) in shown.iter().zip(&scales) {
                row.push(spread(&outcome.figures(*metric, *at), *factor));
            }
            row.push(outcome.at(*at).map(|sample| sample.error_count()).sum::<u64>().to_string());
            rows.push(row);
        }
    }
    aligned(&rows)
}

/// The scenario's measures that anybody has figures of.
fn measured(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> Vec<Metric> {
    let has = |metric: &&Metric| {
        let mut samples = variant.outcomes.iter().flat_map(|outcome| &outcome.samples);
        samples.any(|sample| sample.figure(**metric).is_some())
    };
    scenario.measures.iter().filter(has).copied().collect()
}

fn heading(metric: Metric, unit: &str) -> String {
    match metric.unit() {
        Unit::PerSecond | Unit::Count => metric.title().to_owned(),
        _ => format!("{} ({unit})", metric.title()),
    }
}

fn scale(metric: Metric, variant: &VariantOutcome) -> (f64, &'static str) {
    let samples = variant.outcomes.iter().flat_map(|outcome| &outcome.samples);
    let greatest = samples.filter_map(|sample| sample.figure(metric)).fold(0.0, f64::max);
    metric.unit().shown_for(greatest)
}

/// `median (least-greatest)`.
fn spread(figures: &[f64], factor: f64) -> String {
    let Some(found) = summary(figures) else { return "-".to_owned() };
    let [median, low, high] = [found.median, found.min, found.max].map(|value| plain(value * factor));
    if found.count == 1 { median } else { format!("{median} ({low}-{high})") }
}

/// The first contender that ran beside each other one, in the first measures that have a better side.
fn comparisons(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> String {
    const SHOWN: usize = 3;
    let Some(one) = subject(variant) else { return "\nNobody ran.\n".to_owned() };
    let metrics: Vec<Metric> = directed(scenario)
        .into_iter()
        .filter(|metric| one.samples.iter().any(|sample| sample.figure(*metric).is_some()))
        .take(SHOWN)
        .collect();
    let mut head = vec![format!("{} divided by", one.contender)];
    head.extend(scenario.sweep.iter().map(|sweep| sweep.title.clone()));
    head.extend(metrics.iter().map(|metric| metric.title().to_owned()));
    let mut rows = vec![head];
    for at in &variant.points {
        for other in variant.outcomes.iter().filter(|other| other.contender != one.contender) {
            let found: Vec<_> = metrics.iter().map(|metric| compare(one, other, *metric, *at)).collect();
            if found.iter().all(Option::is_none) {
                continue;
            }
            let mut row = vec![other.contender.clone()];
            row.extend(at.map(plain));
            let told = |found| told(found, other.reference);
            row.extend(found.into_iter().map(|found| found.map_or_else(|| "-".to_owned(), told)));
            rows.push(row);
        }
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", aligned(&rows)) }
}

/// A reference gets no verdict: no contender counts as behind one that can't be beaten.
fn told(found: Comparison, reference: bool) -> String {
    let it = found.ratio;
    let verdict = match found.verdict {
        _ if reference => "of a bound",
        Verdict::Better => "better",
        Verdict::Worse => "WORSE",
        Verdict::NoDifferenceShown => "no difference shown",
        Verdict::TooFewRounds => "too few rounds",
    };
    format!("{} ({}-{}) {verdict}", ratio(it.ratio), ratio(it.low), ratio(it.high))
}

/// What a reader must know before trusting the table.
fn remarks(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> String {
    let mut text = String::new();
    for flag in fairness::check(scenario, variant) {
        let _ = writeln!(text, "- {}", flag.text);
    }
    for remark in said(variant) {
        let _ = writeln!(text, "- {remark}");
    }
    for outcome in &variant.outcomes {
        match &outcome.state {
            Participation::Ran => {}
            Participation::NotBuilt(reason) => {
                let _ = writeln!(text, "- {}: not built yet: {reason}", outcome.contender);
            }
            Participation::Failed(failure) => {
                let _ =
                    writeln!(text, "- **{} did not take part**: {}", outcome.contender, failure.trim_end());
            }
        }
        if let Some(problem) = first_problem(outcome) {
            let _ =
                writeln!(text, "- **{} had errors, its figures do not count**: {problem}", outcome.contender);
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn first_problem(outcome: &Outcome) -> Option<String> {
    let wrong = outcome.samples.iter().find(|sample| !sample.errors.is_empty())?;
    let kinds: Vec<String> = wrong.errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    Some(wrong.problem.clone().unwrap_or_else(|| kinds.join(", ")))
}

/// A table whose first row is its head, as aligned text that is Markdown too.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, width) in widths.iter().enumerate() {
            let cell = row.get(column).map_or("", String::as_str);
            let gap = " ".repeat(width - cell.chars().count());
            let _ = if column == 0 { write!(text, "| {cell}{gap} ") } else { write!(text, "| {gap}{cell} ") };
        }
        text.push_str("|\n");
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let end = if column == 0 { "-" } else { ":" };
                let _ = write!(text, "|{}{end}", "-".repeat(width + 1));
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::{outcome, scenario};
    use super::*;

    #[test]
    fn a_bound_gets_a_ratio_and_no_verdict() {
        let mut floor = outcome("floor", &[4.0; 5]);
        floor.reference = true;
        let contenders = vec![outcome("weir", &[8.0; 5]), outcome("nginx", &[4.0; 5]), floor];
        let report = Report::new(Circumstances::default(), vec![scenario(contenders)]);
        let text = of(&report);
        let line = |name: &str| text.lines().rfind(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("| nginx").contains("2.00 (2.00-2.00) WORSE"), "{text}");
        assert!(line("| floor").contains("2.00 (2.00-2.00) of a bound"), "{text}");
    }
}
