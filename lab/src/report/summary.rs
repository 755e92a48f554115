//! Who is ahead of whom: every scenario's deciding figure, and every figure by which the first contender is
//! behind.

use crate::metric::{Direction, Metric};
use crate::rounds::{ScenarioOutcome, SeriesOutcome, VariantOutcome};
use crate::sample::{Outcome, Participation};
use crate::scenario::{Published, VariantName};
use crate::statistics::{Verdict, median};

use super::compare;

/// The first contender beside another one over all points of a variant, in one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Against {
    /// The other one's name, as in the outcomes.
    pub contender: String,
    /// And as a reader sees it.
    pub title: String,
    /// Whether it is a bound rather than a rival.
    pub reference: bool,
    /// Points where the first is better.
    pub better: Vec<Option<f64>>,
    /// Points where it is worse.
    pub worse: Vec<Option<f64>>,
    /// Points where the interval shows no difference.
    pub same: usize,
    /// Points with too few rounds.
    pub few: usize,
    /// Geometric mean of the ratios over the points.
    pub ratio: f64,
}

/// One line of the summary: a variant of a scenario, judged by its deciding figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Series and name.
    pub scenario: String,
    /// Its title.
    pub title: String,
    /// Whose settings; `None` where there is only one variant.
    pub variant: Option<VariantName>,
    /// The deciding figure.
    pub metric: Metric,
    /// How many points there are.
    pub points: usize,
    /// Beside each other contender that ran.
    pub against: Vec<Against>,
    /// Contenders that did not run, with why.
    pub absent: Vec<(String, Participation)>,
}

/// How often the first contender is ahead, level and behind, over all standings and rivals; references do not
/// count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Comparisons (one rival at one point) it wins.
    pub better: usize,
    /// Comparisons it loses.
    pub worse: usize,
    /// Comparisons that show no difference.
    pub same: usize,
    /// Comparisons with too few rounds.
    pub few: usize,
}

/// The standings of all scenarios.
pub fn standings(series: &[SeriesOutcome]) -> Vec<Standing> {
    let mut standings = Vec::new();
    for scenario in series.iter().flat_map(|series| &series.scenarios) {
        for variant in &scenario.variants {
            let Some(metric) = scenario.measures.first().copied() else { continue };
            let (against, absent) = of_variant(variant, metric);
            standings.push(Standing {
                scenario: scenario.scenario.clone(),
                title: scenario.title.clone(),
                variant: (scenario.variants.len() > 1).then_some(variant.variant),
                metric,
                points: variant.points.len(),
                against,
                absent,
            });
        }
    }
    standings
}

/// The first contender of `variant` beside each other one by `metric`, and who did not run.
fn of_variant(variant: &VariantOutcome, metric: Metric) -> (Vec<Against>, Vec<(String, Participation)>) {
    let absent = variant.outcomes.iter().filter(|outcome| outcome.samples.is_empty());
    let absent = absent.map(|outcome| (outcome.title.clone(), outcome.state.clone())).collect();
    let Some((first, others)) = variant.outcomes.split_first() else { return (Vec::new(), absent) };
    (others.iter().filter_map(|other| against(variant, first, other, metric)).collect(), absent)
}

fn against(variant: &VariantOutcome, first: &Outcome, other: &Outcome, metric: Metric) -> Option<Against> {
    let mut found = Against {
        contender: other.contender.clone(),
        title: other.title.clone(),
        reference: other.reference,
        better: Vec::new(),
        worse: Vec::new(),
        same: 0,
        few: 0,
        ratio: 0.0,
    };
    let mut logarithms = Vec::new();
    for at in &variant.points {
        let Some(comparison) = compare(first, other, metric, *at) else { continue };
        logarithms.push(comparison.ratio.ratio.ln());
        match comparison.verdict {
            Verdict::Better => found.better.push(*at),
            Verdict::Worse => found.worse.push(*at),
            Verdict::NoDifferenceShown => found.same += 1,
            Verdict::TooFewRounds => found.few += 1,
        }
    }
    found.ratio = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
    (!logarithms.is_empty()).then_some(found)
}

/// Adds up `standings`.
pub fn tally(standings: &[Standing]) -> Tally {
    let mut tally = Tally::default();
    for against in
        standings.iter().flat_map(|standing| &standing.against).filter(|against| !against.reference)
    {
        tally.better += against.better.len();
        tally.worse += against.worse.len();
        tally.same += against.same;
        tally.few += against.few;
    }
    tally
}

/// A figure by which the first contender is behind a rival.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// Series and name.
    pub scenario: String,
    /// Whose settings; `None` where there is only one variant.
    pub variant: Option<VariantName>,
    /// Which figure.
    pub metric: Metric,
    /// Beside whom, and where.
    pub against: Against,
    /// Whether the figure is the deciding one.
    pub deciding: bool,
}

/// Every figure of every scenario by which the first contender is behind a rival at some point.
pub fn losses(series: &[SeriesOutcome]) -> Vec<Loss> {
    let mut losses = Vec::new();
    for scenario in series.iter().flat_map(|series| &series.scenarios) {
        for variant in &scenario.variants {
            for (index, metric) in directed(scenario).into_iter().enumerate() {
                let behind = of_variant(variant, metric).0.into_iter();
                losses.extend(behind.filter(|against| !against.reference && !against.worse.is_empty()).map(
                    |against| Loss {
                        scenario: scenario.scenario.clone(),
                        variant: (scenario.variants.len() > 1).then_some(variant.variant),
                        metric,
                        against,
                        deciding: index == 0,
                    },
                ));
            }
        }
    }
    losses.sort_by_key(|loss| !loss.deciding);
    losses
}

/// The measures of `scenario` that have a better side.
pub fn directed(scenario: &ScenarioOutcome) -> Vec<Metric> {
    scenario.measures.iter().copied().filter(|metric| metric.direction() != Direction::Neither).collect()
}

/// What the cells of `variant` remarked, each once, with whom it concerns unless that is everyone who ran.
pub fn remarks(variant: &VariantOutcome) -> Vec<String> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for outcome in &variant.outcomes {
        for remark in outcome.samples.iter().flat_map(|sample| &sample.remarks) {
            let index = found.iter().position(|(known, _)| *known == remark.as_str()).unwrap_or_else(|| {
                found.push((remark, Vec::new()));
                found.len() - 1
            });
            let titles = &mut found[index].1;
            if !titles.contains(&outcome.title.as_str()) {
                titles.push(&outcome.title);
            }
        }
    }
    let ran = variant.outcomes.iter().filter(|outcome| !outcome.samples.is_empty()).count();
    let told = |(remark, titles): (&str, Vec<&str>)| match titles.len() {
        count if count == ran && ran > 1 => remark.to_owned(),
        _ => format!("{}: {remark}", titles.join(", ")),
    };
    found.into_iter().map(told).collect()
}

/// What this run has beside a ratio that somebody published: the same ratio, as the geometric mean over the
/// points that the figure is about. `None` when one of the two did not run.
pub fn measured_ratio(published: &Published, variant: &VariantOutcome) -> Option<f64> {
    let over = published.over.as_ref()?;
    let named = |name: &str| variant.outcomes.iter().find(|outcome| outcome.contender == name);
    let (one, other) = (named(&published.contender)?, named(over)?);
    let mut logarithms = Vec::new();
    for at in variant.points.iter().filter(|at| published.at.is_none() || **at == published.at) {
        let middle = |outcome: &Outcome| median(&outcome.figures(published.measure, *at));
        let ratio = middle(one)? / middle(other)?;
        // Errors may be none at all on one side; such a point has no ratio.
        logarithms.extend((ratio > 0.0 && ratio.is_finite()).then(|| ratio.ln()));
    }
    let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
    (!logarithms.is_empty()).then(|| mean.exp())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{outcome, scenario};
    use super::*;

    #[test]
    fn each_rival_counts_once_a_point_and_a_reference_never() {
        let weir = outcome("weir", &[8.0; 5]);
        let slower = outcome("nginx", &[10.0; 5]);
        let faster = outcome("haproxy", &[4.0; 5]);
        let mut floor = outcome("floor", &[1.0; 5]);
        floor.reference = true;
        let series = [scenario(vec![weir, slower, faster, floor])];
        let standings = standings(&series);
        assert_eq!(tally(&standings), Tally { better: 1, worse: 1, same: 0, few: 0 });
        assert!((standings[0].against[0].ratio - 0.8).abs() < 1e-12);
        let losses = losses(&series);
        assert_eq!(losses.len(), 1);
        assert_eq!((losses[0].against.contender.as_str(), losses[0].against.ratio), ("haproxy", 2.0));
    }

    #[test]
    fn a_first_contender_that_did_not_run_is_absent_and_compared_with_nobody() {
        let mut weir = outcome("weir", &[]);
        weir.state = Participation::NotBuilt("later".to_owned());
        let standings = standings(&[scenario(vec![weir, outcome("nginx", &[1.0; 5])])]);
        assert_eq!(standings[0].against, []);
        assert_eq!(standings[0].absent, [("weir".to_owned(), Participation::NotBuilt("later".to_owned()))]);
    }

    #[test]
    fn a_remark_is_told_once_with_whom_it_concerns() {
        let remarking = |name: &str, remarks: &[&str]| {
            let mut outcome = outcome(name, &[1.0, 1.0]);
            for sample in &mut outcome.samples {
                sample.remarks = remarks.iter().map(|remark| (*remark).to_owned()).collect();
            }
            outcome
        };
        let mut absent = outcome("absent", &[]);
        absent.state = Participation::NotBuilt("later".to_owned());
        let series = scenario(vec![
            remarking("weir", &["the lab played the users"]),
            remarking("nginx", &["the lab played the users", "two instances"]),
            absent,
        ]);
        let told = remarks(&series.scenarios[0].variants[0]);
        assert_eq!(told, ["the lab played the users", "nginx: two instances"]);
    }

    #[test]
    fn a_published_ratio_stands_beside_the_measured_one() {
        let series = scenario(vec![outcome("haproxy", &[3.0, 3.0]), outcome("nginx", &[2.0, 2.0])]);
        let published = Published {
            contender: "haproxy".to_owned(),
            over: Some("nginx".to_owned()),
            at: None,
            measure: Metric::CPU_PER_REQUEST,
            value: 1.13,
            note: String::new(),
        };
        let found = measured_ratio(&published, &series.scenarios[0].variants[0]).unwrap();
        assert!((found - 1.5).abs() < 1e-12);
    }
}
