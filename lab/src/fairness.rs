//! The fairness check: finds what in a variant's own samples speaks against comparing its contenders.

use std::collections::BTreeMap;

use crate::metric::{Direction, Metric};
use crate::rounds::{ScenarioOutcome, VariantOutcome};
use crate::sample::Outcome;
use crate::statistics::median;

/// Load and backends count as the limit from this share of their core on (percent).
const FULL_CORE: f64 = 90.0;
/// A contender's figures count as disturbed if it spent at least this share of its time waiting for its core
/// (percent).
const DISTURBED: f64 = 5.0;
/// If connections are reused this many times as often as by another contender, the two work differently.
const REUSE_MISMATCH: f64 = 5.0;
/// A cache that lets more than this share of requests through (percent) is not hot.
const COLD_CACHE: f64 = 0.5;
/// If requests are sent this late (microseconds, 99th percentile), the latency is the load generator's own.
const LATE_US: f64 = 2000.0;
/// A backend with this many times the requests of another shows that the balancing is not round robin.
const UNEVEN: f64 = 1.2;

/// What kind of doubt a flag raises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// More busy threads than the contender has cores.
    Workers,
    /// One contender reuses connections and another does not.
    KeepAlive,
    /// A cache forwarded requests to the backend.
    ColdCache,
    /// Load and backends were the limit.
    LoadSaturated,
    /// Requests went wrong.
    Errors,
    /// Other work on the machine interfered.
    Disturbed,
    /// The backends did not get equal shares.
    Uneven,
}

/// One doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// What kind.
    pub kind: Kind,
    /// Which contenders it concerns, as one sentence.
    pub text: String,
}

/// Everything that speaks against comparing the contenders of `variant`; empty when nothing does.
pub fn check(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> Vec<Flag> {
    let checks: [fn(&ScenarioOutcome, &VariantOutcome) -> Option<Flag>; 8] = [
        errors,
        workers,
        keep_alive_to_clients,
        keep_alive_to_backends,
        cold_cache,
        saturated,
        late,
        disturbed,
    ];
    let mut flags: Vec<Flag> = checks.iter().filter_map(|check| check(scenario, variant)).collect();
    flags.extend(uneven(variant));
    flags
}

/// Medians of `metric` for every contender at every point, in the scenario's order.
fn medians(variant: &VariantOutcome, metric: Metric) -> Vec<(&Outcome, Option<f64>, f64)> {
    let mut found = Vec::new();
    for outcome in &variant.outcomes {
        for at in &variant.points {
            found.extend(median(&outcome.figures(metric, *at)).map(|middle| (outcome, *at, middle)));
        }
    }
    found
}

/// The contenders and points of the cells that `concerns` picks: `haproxy (at 100, 1000), nginx`.
fn named(cells: &[(&Outcome, Option<f64>, f64)], concerns: impl Fn(f64) -> bool) -> Option<String> {
    let mut points: BTreeMap<usize, (&str, Vec<String>)> = BTreeMap::new();
    for (index, (outcome, at, value)) in cells.iter().enumerate() {
        if concerns(*value) {
            let first =
                cells.iter().position(|(other, ..)| other.contender == outcome.contender).unwrap_or(index);
            let entry = points.entry(first).or_insert((&outcome.contender, Vec::new()));
            entry.1.extend(at.map(|at| at.to_string()));
        }
    }
    let names: Vec<String> = points
        .values()
        .map(
            |(name, at)| {
                if at.is_empty() { (*name).to_owned() } else { format!("{name} (at {})", at.join(", ")) }
            },
        )
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn errors(_: &ScenarioOutcome, variant: &VariantOutcome) -> Option<Flag> {
    let wrong = |outcome: &&Outcome| outcome.samples.iter().any(|sample| !sample.errors.is_empty());
    let told: Vec<String> = variant.outcomes.iter().filter(wrong).map(errors_of).collect();
    let text = format!("Requests went wrong: {}.", told.join("; "));
    (!told.is_empty()).then_some(Flag { kind: Kind::Errors, text })
}

fn errors_of(outcome: &Outcome) -> String {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in outcome.samples.iter().flat_map(|sample| &sample.errors) {
        *kinds.entry(kind).or_default() += count;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!("{} ({})", outcome.contender, kinds.join(", "))
}

fn workers(_: &ScenarioOutcome, variant: &VariantOutcome) -> Option<Flag> {
    // Every contender has one core; a second busy thread only gets in the way of the first.
    let names = named(&medians(variant, Metric::WORKERS), |threads| threads > 1.0)?;
    let text = format!("More threads at work than the one core a contender has: {names}.");
    Some(Flag { kind: Kind::Workers, text })
}

fn keep_alive_to_clients(_: &ScenarioOutcome, variant: &VariantOutcome) -> Option<Flag> {
    keep_alive(variant, Metric::CLIENT_REUSE, "client")
}

fn keep_alive_to_backends(_: &ScenarioOutcome, variant: &VariantOutcome) -> Option<Flag> {
    keep_alive(variant, Metric::BACKEND_REUSE, "backend")
}

fn keep_alive(variant: &VariantOutcome, metric: Metric, side: &str) -> Option<Flag> {
    let cells = medians(variant, metric);
    let most = cells.iter().map(|(.., reuse)| *reuse).fold(0.0, f64::max);
    let mismatch = |reuse: f64| most > reuse * REUSE_MISMATCH && reuse < REUSE_MISMATCH;
    let names = named(&cells, mismatch)?;
    let text = format!(
        "Keep-alive mismatch: {names} opened {side} connections anew where others used theirs again."
    );
    Some(Flag { kind: Kind::KeepAlive, text })
}

fn cold_cache(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> Option<Flag> {
    if !scenario.measures.contains(&Metric::BACKEND_SHARE) {
        return None;
    }
    let names = named(&medians(variant, Metric::BACKEND_SHARE), |share| share > COLD_CACHE)?;
    let text = format!("Cold cache: {names} asked the backend during the counted load.");
    Some(Flag { kind: Kind::ColdCache, text })
}

fn saturated(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> Option<Flag> {
    let by_rate = scenario.measures.iter().any(|metric| {
        matches!(metric.direction(), Direction::Higher) || metric.name().starts_with("latency")
    });
    let names =
        named(&medians(variant, Metric::LOAD_CPU_SHARE), |share| share >= FULL_CORE).filter(|_| by_rate)?;
    let text = format!(
        "Load and backends filled their core with {names}: rate and latency there are at least partly theirs, only \
         the CPU figure is the contender's own."
    );
    Some(Flag { kind: Kind::LoadSaturated, text })
}

fn late(_: &ScenarioOutcome, variant: &VariantOutcome) -> Option<Flag> {
    let names = named(&medians(variant, Metric::LOAD_LATENESS), |late| late >= LATE_US)?;
    let text = format!(
        "The load generator was itself late by 2 ms and more, for one request in a hundred, with {names}: latencies \
         there are partly its own."
    );
    Some(Flag { kind: Kind::LoadSaturated, text })
}

fn disturbed(_: &ScenarioOutcome, variant: &VariantOutcome) -> Option<Flag> {
    let names = named(&medians(variant, Metric::WAIT_SHARE), |share| share >= DISTURBED)?;
    let text = format!("Other work took {names} off its core for more than 5 % of the time.");
    Some(Flag { kind: Kind::Disturbed, text })
}

fn uneven(variant: &VariantOutcome) -> Option<Flag> {
    let names = named(&medians(variant, Metric::SERVED_UNEVENLY), |ratio| ratio > UNEVEN)?;
    let text = format!("Not round robin: {names} gave one backend over 1.2 times the requests of another.");
    Some(Flag { kind: Kind::Uneven, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{outcome, scenario};
    use crate::sample::Sample;
    use crate::scenario::VariantName;

    /// The flags of one contender with these figures, in a scenario that reports them.
    fn flags(figures: &[(Metric, f64)]) -> Vec<Flag> {
        let mut sample = Sample::default();
        figures.iter().for_each(|(metric, value)| sample.put(*metric, *value));
        let outcome = Outcome { contender: "nginx".to_owned(), samples: vec![sample], ..Outcome::default() };
        let variant = VariantOutcome {
            variant: VariantName::Fair,
            about: String::new(),
            rounds: 1,
            seconds: 1,
            points: vec![None],
            outcomes: vec![outcome],
        };
        let scenario = ScenarioOutcome {
            scenario: "s1/x".to_owned(),
            title: String::new(),
            about: String::new(),
            measures: figures.iter().map(|(metric, _)| *metric).collect(),
            sweep: None,
            published: Vec::new(),
            asked: Vec::new(),
            variants: Vec::new(),
        };
        check(&scenario, &variant)
    }

    fn kinds(figures: &[(Metric, f64)]) -> Vec<Kind> {
        flags(figures).into_iter().map(|flag| flag.kind).collect()
    }

    #[test]
    fn a_cache_is_cold_when_its_origin_was_asked() {
        assert_eq!(kinds(&[(Metric::BACKEND_SHARE, 0.0)]), []);
        assert_eq!(kinds(&[(Metric::BACKEND_SHARE, 0.4)]), []);
        assert_eq!(kinds(&[(Metric::BACKEND_SHARE, 3.0)]), [Kind::ColdCache]);
    }

    #[test]
    fn a_load_generator_that_fills_its_core_or_sends_late_is_saturated() {
        assert_eq!(kinds(&[(Metric::RATE, 1.0), (Metric::LOAD_CPU_SHARE, 89.0)]), []);
        assert_eq!(kinds(&[(Metric::RATE, 1.0), (Metric::LOAD_CPU_SHARE, 97.0)]), [Kind::LoadSaturated]);
        assert_eq!(kinds(&[(Metric::LOAD_LATENESS, 150.0)]), []);
        let flags = flags(&[(Metric::LOAD_LATENESS, 4000.0)]);
        assert_eq!(flags[0].kind, Kind::LoadSaturated);
        assert!(flags[0].text.contains("with nginx: latencies"), "{flags:?}");
    }

    #[test]
    fn a_second_worker_on_one_core_is_told() {
        assert_eq!(kinds(&[(Metric::WORKERS, 1.0)]), []);
        assert_eq!(kinds(&[(Metric::WORKERS, 100.0)]), [Kind::Workers]);
    }

    /// The kinds of doubt about one contender with this figure beside one with that.
    fn beside(metric: Metric, one: f64, other: f64, measures: &[Metric]) -> Vec<Kind> {
        let with = |name: &str, value: f64| {
            let mut outcome = outcome(name, &[10.0, 10.0, 10.0]);
            for sample in &mut outcome.samples {
                sample.put(metric, value);
            }
            outcome
        };
        let mut series = scenario(vec![with("weir", one), with("nginx", other)]);
        series.scenarios[0].measures.extend(measures);
        let scenario = &series.scenarios[0];
        check(scenario, &scenario.variants[0]).into_iter().map(|flag| flag.kind).collect()
    }

    #[test]
    fn connections_opened_anew_by_one_alone_are_a_mismatch_on_either_side() {
        assert_eq!(beside(Metric::BACKEND_REUSE, 9000.0, 1.0, &[]), [Kind::KeepAlive]);
        assert_eq!(beside(Metric::CLIENT_REUSE, 1.0, 900.0, &[]), [Kind::KeepAlive]);
        // If both use new connections, or both reuse them often, they work in the same way.
        assert_eq!(beside(Metric::BACKEND_REUSE, 1.0, 1.0, &[]), []);
        assert_eq!(beside(Metric::BACKEND_REUSE, 9000.0, 600.0, &[]), []);
    }

    #[test]
    fn a_backend_that_is_asked_is_a_cold_cache_only_where_a_cache_is_measured() {
        assert_eq!(beside(Metric::BACKEND_SHARE, 0.0, 3.0, &[Metric::BACKEND_SHARE]), [Kind::ColdCache]);
        assert_eq!(beside(Metric::BACKEND_SHARE, 0.1, 0.1, &[Metric::BACKEND_SHARE]), []);
        assert_eq!(beside(Metric::BACKEND_SHARE, 100.0, 100.0, &[]), []);
    }

    #[test]
    fn other_work_and_uneven_shares_are_flagged() {
        assert_eq!(beside(Metric::WAIT_SHARE, 7.0, 1.0, &[]), [Kind::Disturbed]);
        assert_eq!(beside(Metric::SERVED_UNEVENLY, 1.0, 3.0, &[]), [Kind::Uneven]);
    }

    #[test]
    fn errors_are_told_by_kind_and_added_up_over_the_rounds() {
        let mut wrong = outcome("nginx", &[10.0, 10.0]);
        for sample in &mut wrong.samples {
            sample.errors.insert("timeout".to_owned(), 2);
        }
        let series = scenario(vec![outcome("weir", &[10.0]), wrong]);
        let flags = check(&series.scenarios[0], &series.scenarios[0].variants[0]);
        assert_eq!(flags.len(), 1);
        assert_eq!(
            (flags[0].kind, flags[0].text.as_str()),
            (Kind::Errors, "Requests went wrong: nginx (timeout 4).")
        );
    }
}
