//! The bounds that contenders should reach and what they reached, and the figures of a series side by side.

use super::number::{plain, ratio};
use super::{aligned, compare};
use crate::metric::{Metric, Unit};
use crate::rounds::{ScenarioOutcome, SeriesOutcome, VariantOutcome};
use crate::sample::Outcome;
use crate::scenario::{Asked, SeriesTable, VariantName};
use crate::statistics::median;

/// A bound and the result.
struct Finding {
    /// The bound as shown to a reader.
    asked: String,
    /// The result as shown.
    found: String,
    is_met: bool,
}

/// The bounds of `scenario` in `variant`, as a table. Empty if there is no bound all of whose contenders took
/// part.
pub fn table(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> String {
    let named = |name: &String| variant.outcomes.iter().find(|outcome| outcome.contender == *name);
    let head = ["asked of", "figure", "asked", "found", ""];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for asked in &scenario.asked {
        let one = asked.who.as_ref().map_or_else(|| variant.outcomes.first(), named);
        let Some(one) = one else { continue };
        for at in &variant.points {
            let found = match &asked.of {
                None => alone(asked, one, *at),
                Some(other) => named(other).and_then(|other| beside(asked, [one, other], variant, *at)),
            };
            let Some(finding) = found else { continue };
            let mark = if finding.is_met { "met" } else { "MISSED" };
            let note = if asked.note.is_empty() { String::new() } else { format!(" ({})", asked.note) };
            let (who, title) = (&one.contender, asked.measure.title());
            rows.push(vec![
                asked.of.as_ref().map_or_else(|| who.clone(), |other| format!("{who} beside {other}")),
                at.map_or_else(|| title.to_owned(), |at| format!("{title}, at {}", plain(at))),
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

/// A bound that every sample must keep.
fn alone(asked: &Asked, one: &Outcome, at: Option<f64>) -> Option<Finding> {
    let figures = one.figures(asked.measure, at);
    let middle = median(&figures)?;
    let (bound, word) = match (asked.least, asked.most) {
        (Some(least), _) => (least, "least"),
        (None, Some(most)) => (most, "most"),
        (None, None) => return None,
    };
    let [least, greatest] =
        [figures.iter().copied().fold(f64::INFINITY, f64::min), figures.iter().copied().fold(0.0, f64::max)];
    let (factor, unit) = asked.measure.unit().shown_for(greatest.max(bound));
    let shown = |figure: f64| plain(figure * factor);
    Some(Finding {
        asked: format!("at {word} {} {unit}", shown(bound)).trim_end().to_owned(),
        found: format!("{} ({}-{}) {unit}", shown(middle), shown(least), shown(greatest))
            .trim_end()
            .to_owned(),
        is_met: if asked.least.is_some() { least >= bound } else { greatest <= bound },
    })
}

/// A bound on one contender's figure divided by the other's.
fn beside(
    asked: &Asked,
    [one, other]: [&Outcome; 2],
    variant: &VariantOutcome,
    at: Option<f64>,
) -> Option<Finding> {
    let named = |name: &String| variant.outcomes.iter().find(|outcome| outcome.contender == *name);
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
    fn a_bound_of_the_figure_itself_is_kept_by_every_sample() {
        let mut series = scenario(vec![outcome("weir", &[8.0, 9.0, 30.0]), outcome("other", &[10.0; 3])]);
        let bounds = ["most = 30", "most = 29", "who = 'other'\nleast = 10"];
        series.scenarios[0].asked = bounds
            .map(|bound| toml::from_str(&format!("measure = 'cpu-per-request'\n{bound}")).unwrap())
            .to_vec();
        let said = table(&series.scenarios[0], &series.scenarios[0].variants[0]);
        assert!(said.contains(" at most 30 µs |   9 (8-30) µs |    met |"), "{said}");
        assert!(said.contains(" at most 29 µs |   9 (8-30) µs | MISSED |"), "{said}");
        assert!(said.contains("| other    | CPU per request | at least 10 µs | 10 (10-10) µs |"), "{said}");
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
