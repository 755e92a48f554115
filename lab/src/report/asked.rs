//! What the first contender was to reach and what it reached, and the figures of a series side by side.

use super::number::{plain, ratio};
use super::{aligned, compare, subject};
use crate::metric::{Metric, Unit};
use crate::rounds::{ScenarioOutcome, SeriesOutcome, VariantOutcome};
use crate::sample::Outcome;
use crate::scenario::{Asked, SeriesTable, VariantName};
use crate::statistics::median;

/// A bound beside what was found.
struct Finding {
    /// As a reader asks for it.
    asked: String,
    /// As it is shown.
    found: String,
    is_met: bool,
}

/// The bounds of `scenario` as they stand in `variant`, as a table; empty when there are none that both took
/// part in.
pub fn table(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> String {
    let Some(one) = subject(variant) else { return String::new() };
    let head = format!("asked of {}", one.contender);
    let mut rows = vec![[&head, "figure", "asked", "found", ""].map(str::to_owned).to_vec()];
    for asked in &scenario.asked {
        for at in &variant.points {
            let Some(finding) = finding(asked, one, variant, *at) else { continue };
            let mark = if finding.is_met { "met" } else { "MISSED" };
            let note = if asked.note.is_empty() { String::new() } else { format!(" ({})", asked.note) };
            rows.push(vec![
                format!("beside {}", asked.of),
                asked.measure.title().to_owned(),
                finding.asked,
                finding.found,
                format!("{mark}{note}"),
            ]);
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    format!("\n{}", aligned(&rows))
}

fn finding(asked: &Asked, one: &Outcome, variant: &VariantOutcome, at: Option<f64>) -> Option<Finding> {
    let named = |name: &String| variant.outcomes.iter().find(|outcome| outcome.contender == *name);
    let other = named(&asked.of)?;
    let middle = |outcome: &Outcome| median(&outcome.figures(asked.measure, at));
    let (ours, theirs) = (middle(one)?, middle(other)?);
    if let Some(most) = asked.most_more {
        let (factor, unit) = asked.measure.unit().shown_for(most);
        let more = ours - theirs;
        return Some(Finding {
            asked: format!("at most {} {unit} more", plain(most * factor)),
            found: format!("{} {unit}", plain(more * factor)),
            is_met: more <= most,
        });
    }
    let (found, shown) = match &asked.beyond {
        Some(name) => {
            let ground = middle(named(name)?)?;
            let found = (ours - ground) / (theirs - ground);
            (found, format!("{} of what it adds to {name}", ratio(found)))
        }
        None => {
            let it = compare(one, other, asked.measure, at)?.ratio;
            (it.ratio, format!("{} ({}-{})", ratio(it.ratio), ratio(it.low), ratio(it.high)))
        }
    };
    let (asked, is_met) = match (asked.least, asked.most) {
        (Some(least), _) => (format!("at least {}", ratio(least)), found >= least),
        (None, Some(most)) => (format!("at most {}", ratio(most)), found <= most),
        (None, None) => return None,
    };
    Some(Finding { asked, found: shown, is_met })
}

/// One of a series' tables; `None` when nobody has a figure for it.
pub fn side_by_side(series: &SeriesOutcome, table: &SeriesTable) -> Option<String> {
    let fair = |name: &str| -> Option<&VariantOutcome> {
        let scenario = series.scenarios.iter().find(|scenario| scenario.scenario == name)?;
        scenario.variants.iter().find(|variant| variant.variant == VariantName::Fair)
    };
    let variants: Vec<Option<&VariantOutcome>> =
        table.columns.iter().map(|column| fair(&column.scenario)).collect();
    let mut names: Vec<&str> = Vec::new();
    for outcome in variants.iter().flatten().flat_map(|variant| &variant.outcomes) {
        if !outcome.samples.is_empty() && !names.contains(&outcome.contender.as_str()) {
            names.push(&outcome.contender);
        }
    }
    if names.is_empty() {
        return None;
    }
    let cell = |variant: Option<&VariantOutcome>, metric: Metric, name: &str| -> Option<f64> {
        let variant = variant?;
        let outcome = variant.outcomes.iter().find(|outcome| outcome.contender == name)?;
        median(&outcome.figures(metric, *variant.points.first()?))
    };
    let mut head = vec!["contender".to_owned()];
    let mut scales = Vec::new();
    for (column, variant) in table.columns.iter().zip(&variants) {
        let figures = names.iter().filter_map(|name| cell(*variant, column.measure, name));
        let (factor, unit) = column.measure.unit().shown_for(figures.fold(0.0, f64::max));
        head.push(match column.measure.unit() {
            Unit::PerSecond | Unit::Count => column.measure.title().to_owned(),
            _ => format!("{} ({unit})", column.measure.title()),
        });
        scales.push(factor);
    }
    let mut rows = vec![head];
    for name in names {
        let mut row = vec![name.to_owned()];
        for ((column, variant), factor) in table.columns.iter().zip(&variants).zip(&scales) {
            let figure = cell(*variant, column.measure, name);
            row.push(figure.map_or_else(|| "-".to_owned(), |figure| plain(figure * factor)));
        }
        rows.push(row);
    }
    Some(format!("\n## {}\n\n{}", table.title, aligned(&rows)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{outcome, scenario};
    use super::*;

    fn asked(text: &str) -> Asked {
        toml::from_str(&format!("of = 'other'\nmeasure = 'cpu-per-request'\n{text}")).unwrap()
    }

    fn told(bound: &str) -> String {
        let outcomes =
            vec![outcome("weir", &[8.0; 5]), outcome("other", &[10.0; 5]), outcome("ground", &[7.0; 5])];
        let mut series = scenario(outcomes);
        series.scenarios[0].asked = vec![asked(bound)];
        table(&series.scenarios[0], &series.scenarios[0].variants[0])
    }

    #[test]
    fn a_bound_is_met_or_missed() {
        assert!(
            told("most = 0.8").contains("at most 0.80 | 0.80 (0.80-0.80) | met |"),
            "{}",
            told("most = 0.8")
        );
        assert!(told("most = 0.79").contains("MISSED"));
        assert!(told("least = 0.81\nnote = 'floor 0.7'").contains("MISSED (floor 0.7)"));
        assert!(told("most_more = 0.0").contains("met"));
        assert!(told("most_more = -2.5").contains("MISSED"));
    }

    #[test]
    fn what_each_adds_is_divided() {
        let said = told("most = 0.33\nbeyond = 'ground'");
        assert!(said.contains("0.33 of what it adds to ground") && said.contains("MISSED"), "{said}");
        assert!(told("most = 0.34\nbeyond = 'ground'").contains(" met"));
    }

    #[test]
    fn who_did_not_run_has_no_line() {
        let mut series = scenario(vec![outcome("weir", &[8.0; 5])]);
        series.scenarios[0].asked = vec![asked("most = 1")];
        assert_eq!(table(&series.scenarios[0], &series.scenarios[0].variants[0]), "");
    }

    #[test]
    fn figures_of_a_series_stand_side_by_side() {
        let series = scenario(vec![outcome("weir", &[8.0, 9.0, 30.0]), outcome("other", &[10.0; 3])]);
        let layout: SeriesTable = toml::from_str(
            "title = 'T'\ncolumns = [{ scenario = 's/one', measure = 'cpu-per-request' }, { scenario = 's/two', measure = 'rate' }]",
        )
        .unwrap();
        let shown = side_by_side(&series, &layout).unwrap();
        assert!(shown.contains("| weir      |                    9 |                   - |"), "{shown}");
        let missing = SeriesTable { columns: layout.columns[1..].to_vec(), ..layout };
        assert_eq!(side_by_side(&series, &missing), None);
    }
}
