//! One scenario on the page: its description, its charts, the table beside the published figures, and doubts
//! about it.

use std::fmt::Write as _;

use crate::fairness;
use crate::metric::{Direction, Metric};
use crate::report::chart::{self, Axis, Mark, Row, escaped};
use crate::report::number::{Scale, plain, ratio};
use crate::report::summary::{directed, measured_ratio, remarks};
use crate::report::{Comparison, compare};
use crate::rounds::{ScenarioOutcome, VariantOutcome};
use crate::sample::{Outcome, Participation};
use crate::scenario::VariantName;
use crate::statistics::{Verdict, summary};

/// How many figures have charts of their own and columns in the table that shows everything side by side.
const HEADLINES: usize = 3;

/// The section of `scenario`.
pub fn section(scenario: &ScenarioOutcome) -> String {
    let mut text = format!(
        "<section>\n<h3 id=\"{}\"><span class=\"id\">{}</span>{}</h3>\n",
        super::anchor(&scenario.scenario),
        escaped(&scenario.scenario),
        escaped(&scenario.title)
    );
    if !scenario.about.is_empty() {
        let _ = writeln!(text, "<p>{}</p>", escaped(&scenario.about));
    }
    for variant in scenario.variants.iter().filter(|variant| !variant.about.is_empty()) {
        let _ = writeln!(text, "<p><b>{}</b>: {}</p>", label_of(variant.variant), escaped(&variant.about));
    }
    text.push_str(&states(scenario));
    text.push_str(&legend(scenario));
    text.push_str(&charts(scenario));
    text.push_str(&beside(scenario));
    text.push_str(&published_ratios(scenario));
    text.push_str(&doubts(scenario));
    text.push_str(&details(scenario));
    text.push_str("</section>\n");
    text
}

fn label_of(variant: VariantName) -> &'static str {
    match variant {
        VariantName::Published => "Published settings",
        VariantName::Fair => "Fair settings",
    }
}

/// The contenders of all variants with their titles, in the scenario's order; then those that were only
/// published.
fn everyone(scenario: &ScenarioOutcome) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let outcomes = scenario.variants.iter().flat_map(|variant| &variant.outcomes);
    let measured = outcomes.map(|outcome| (outcome.contender.clone(), outcome.title.clone()));
    let published = scenario.published.iter().filter(|published| published.over.is_none());
    let published = published.map(|published| (published.contender.clone(), published.contender.clone()));
    for (name, title) in measured.chain(published) {
        if !all.iter().any(|(known, _)| *known == name) {
            all.push((name, title));
        }
    }
    all
}

/// The colour of a contender: fixed for those that are in most scenarios, in order of appearance for the
/// rest.
fn colour(name: &str, everyone: &[(String, String)]) -> usize {
    const FIXED: [(&str, usize); 4] = [("weir", 0), ("haproxy", 1), ("nginx", 2), ("floor", 7)];
    if let Some((_, colour)) = FIXED.iter().find(|(known, _)| *known == name) {
        return *colour;
    }
    let taken = |name: &String| FIXED.iter().any(|(known, _)| known == name);
    let place = everyone.iter().filter(|(other, _)| !taken(other)).position(|(other, _)| other == name);
    3 + place.unwrap_or(0) % 4
}

fn of<'a>(variant: &'a VariantOutcome, name: &str) -> Option<&'a Outcome> {
    variant.outcomes.iter().find(|outcome| outcome.contender == name)
}

/// Contenders that did not take part, and why.
fn states(scenario: &ScenarioOutcome) -> String {
    let mut text = String::new();
    let mut told: Vec<(&str, &Participation)> = Vec::new();
    for outcome in scenario.variants.iter().flat_map(|variant| &variant.outcomes) {
        if told.contains(&(&outcome.title, &outcome.state)) {
            continue;
        }
        told.push((&outcome.title, &outcome.state));
        let title = escaped(&outcome.title);
        match &outcome.state {
            Participation::Ran => {}
            Participation::NotBuilt(reason) => {
                let _ = writeln!(
                    text,
                    "<p class=\"note absent\"><b>{title}: not built yet.</b> {}.</p>",
                    escaped(reason)
                );
            }
            Participation::Failed(reason) => {
                let part = if outcome.samples.is_empty() { "did not take part" } else { "fell out" };
                let _ = writeln!(
                    text,
                    "<div class=\"note failed\"><b>{title} {part}.</b><pre>{}</pre></div>",
                    escaped(reason.trim_end())
                );
            }
        }
    }
    text
}

fn legend(scenario: &ScenarioOutcome) -> String {
    let all = everyone(scenario);
    let mut text = "<div class=\"legend\">".to_owned();
    for (name, title) in &all {
        let outcome = scenario.variants.iter().find_map(|variant| of(variant, name));
        if outcome.is_some_and(|outcome| outcome.samples.is_empty()) {
            continue;
        }
        let version = outcome.and_then(|outcome| outcome.version.clone()).unwrap_or_default();
        let _ = write!(
            text,
            "<span><i class=\"key c{}\"></i>{} <span class=\"soft\">{}</span></span>",
            colour(name, &all),
            escaped(title),
            escaped(&version)
        );
    }
    if scenario.published.iter().any(|published| published.over.is_none()) {
        text.push_str("<span><i class=\"key hollow\"></i>published</span>");
    }
    text.push_str("</div>\n");
    text
}

/// The measures that have charts: the first with a better side that anyone has figures of.
fn headlines(scenario: &ScenarioOutcome) -> Vec<Metric> {
    let has = |metric: &Metric| {
        let mut samples = scenario
            .variants
            .iter()
            .flat_map(|variant| &variant.outcomes)
            .flat_map(|outcome| &outcome.samples);
        samples.any(|sample| sample.figure(*metric).is_some())
            || scenario
                .published
                .iter()
                .any(|published| published.measure == *metric && published.over.is_none())
    };
    directed(scenario).into_iter().filter(has).take(HEADLINES).collect()
}

fn scale(scenario: &ScenarioOutcome, metric: Metric) -> Scale {
    let variants: Vec<&VariantOutcome> = scenario.variants.iter().collect();
    let published = scenario.published.iter().filter(|published| published.over.is_none());
    let published =
        published.filter(|published| published.measure == metric).map(|published| published.value);
    Scale::of(metric, &variants, published)
}

fn charts(scenario: &ScenarioOutcome) -> String {
    let two = scenario.variants.len() > 1;
    let mut text = format!("<div class=\"charts{}\">\n", if two { " two" } else { "" });
    let width = if two { 580.0 } else { 376.0 };
    for metric in headlines(scenario) {
        for variant in &scenario.variants {
            text.push_str(&figure(scenario, variant, metric, width));
        }
    }
    for name in curve_names(scenario) {
        for variant in &scenario.variants {
            text.push_str(&curve(scenario, variant, &name, width));
        }
    }
    text.push_str("</div>\n");
    text
}

fn figure(scenario: &ScenarioOutcome, variant: &VariantOutcome, metric: Metric, width: f64) -> String {
    let scale = scale(scenario, metric);
    let swept = variant.points.len() > 1;
    let rows = rows(scenario, variant, metric, scale, swept);
    if rows.iter().all(|row| row.marks.is_empty()) {
        return String::new();
    }
    let better = match metric.direction() {
        Direction::Lower => "lower is better",
        Direction::Higher => "higher is better",
        Direction::Neither => "",
    };
    let drawn = match &scenario.sweep {
        Some(sweep) if swept => {
            let axis = Axis { title: &sweep.title, logarithmic: sweep.logarithmic };
            chart::lines(&rows, axis, scale.unit, width)
        }
        _ => chart::bars(&rows, scale.unit, width),
    };
    let settings = if scenario.variants.len() > 1 {
        format!("{}, ", label_of(variant.variant).to_lowercase())
    } else {
        String::new()
    };
    format!(
        "<figure><figcaption>{} <span>{settings}{better}</span></figcaption>{drawn}</figure>\n",
        capital(metric.title())
    )
}

/// Chart rows of one metric, with the published figures that belong to these points.
fn rows(
    scenario: &ScenarioOutcome,
    variant: &VariantOutcome,
    metric: Metric,
    scale: Scale,
    swept: bool,
) -> Vec<Row> {
    let all = everyone(scenario);
    all.iter()
        .map(|(name, title)| {
            let mark = |at: &Option<f64>| -> Option<Mark> {
                let found = summary(&of(variant, name)?.figures(metric, *at))?;
                let [y, low, high] = [found.median, found.min, found.max].map(|value| scale.value(value));
                Some(Mark { x: at.unwrap_or_default(), y, low, high })
            };
            let published = scenario.published.iter().filter(|published| {
                // Published figures belong to the settings that they come from; the table shows them beside
                // both.
                (variant.variant == VariantName::Published || scenario.variants.len() == 1)
                    && published.contender == *name
                    && published.measure == metric
                    && published.over.is_none()
                    && (published.at.is_none() || variant.points.contains(&published.at))
                    && (!swept || published.at.is_some())
            });
            Row {
                label: title.clone(),
                colour: colour(name, &all),
                marks: variant.points.iter().filter_map(mark).collect(),
                published: published.map(|it| (it.at.unwrap_or_default(), scale.value(it.value))).collect(),
            }
        })
        .collect()
}

fn curve_names(scenario: &ScenarioOutcome) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let samples =
        scenario.variants.iter().flat_map(|variant| &variant.outcomes).flat_map(|outcome| &outcome.samples);
    for name in samples.flat_map(|sample| sample.curves.keys()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// A curve at the last point: for each contender that of its middle round by the deciding figure.
fn curve(scenario: &ScenarioOutcome, variant: &VariantOutcome, name: &str, width: f64) -> String {
    let all = everyone(scenario);
    let at = variant.points.last().copied().flatten();
    let Some(deciding) = scenario.measures.first() else { return String::new() };
    let rows: Vec<Row> = variant
        .outcomes
        .iter()
        .filter_map(|outcome| {
            let mut samples: Vec<_> =
                outcome.at(at).filter(|sample| sample.curves.contains_key(name)).collect();
            let figure = |sample: &crate::sample::Sample| sample.figure(*deciding).unwrap_or(f64::INFINITY);
            samples.sort_by(|one, other| figure(one).total_cmp(&figure(other)));
            let middle = samples.get(samples.len() / 2)?;
            let mark = |&(x, y): &(f64, f64)| Mark { x, y, low: y, high: y };
            Some(Row {
                label: outcome.title.clone(),
                colour: colour(&outcome.contender, &all),
                marks: middle.curves.get(name)?.iter().map(mark).collect(),
                published: Vec::new(),
            })
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    // `response time (ms) by share of requests (%)` says what stands on both axes.
    let (y, x) = name.split_once(" by ").unwrap_or((name, ""));
    let unit = y.split_once('(').map_or("", |(_, unit)| unit.trim_end_matches(')'));
    let title = y.split(" (").next().unwrap_or(y);
    let place = match (&scenario.sweep, at) {
        (Some(sweep), Some(at)) => format!(", {} {}", plain(at), sweep.title),
        _ => String::new(),
    };
    let settings =
        if scenario.variants.len() > 1 { label_of(variant.variant).to_lowercase() } else { String::new() };
    let drawn = chart::curves(&rows, Axis { title: x, logarithmic: false }, unit, width);
    format!(
        "<figure><figcaption>{} <span>{settings}{place}, middle round</span></figcaption>{drawn}</figure>\n",
        escaped(&capital(title))
    )
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The table of published | published settings | fair settings | Weir's ratio, for the headline figures.
fn beside(scenario: &ScenarioOutcome) -> String {
    let metrics = headlines(scenario);
    let all = everyone(scenario);
    let points = points(scenario);
    let swept = scenario.sweep.is_some();
    let has_published = |metric: Metric| {
        scenario.published.iter().any(|published| published.measure == metric && published.over.is_none())
    };
    let mut head = "<tr><th></th>".to_owned();
    let mut second = "<tr><th>contender</th>".to_owned();
    if let Some(sweep) = &scenario.sweep {
        head.push_str("<th></th>");
        let _ = write!(second, "<th>{}</th>", escaped(&sweep.title));
    }
    for metric in &metrics {
        let scale = scale(scenario, *metric);
        let columns = usize::from(has_published(*metric)) + 2 * scenario.variants.len();
        let _ =
            write!(head, "<th class=\"group\" colspan=\"{columns}\">{}</th>", scale.heading(metric.title()));
        let mut names = Vec::new();
        if has_published(*metric) {
            names.push("published");
        }
        for variant in &scenario.variants {
            names.push(if scenario.variants.len() == 1 { "measured" } else { short_label(variant.variant) });
            names.push("Weir ÷ it");
        }
        for (index, name) in names.iter().enumerate() {
            let class = if index == 0 { " class=\"start\"" } else { "" };
            let _ = write!(second, "<th{class}>{name}</th>");
        }
    }
    let mut text = format!("<div class=\"wide\"><table class=\"beside\">{head}</tr>{second}</tr>\n");
    for at in &points {
        for (index, (name, title)) in all.iter().enumerate() {
            let class = if index == 0 && points.len() > 1 { " class=\"first\"" } else { "" };
            let cells: String = metrics
                .iter()
                .map(|metric| cells(scenario, *metric, name, *at, has_published(*metric)))
                .collect();
            // A row without a single number says nothing.
            if !cells.contains(|letter: char| letter.is_ascii_digit()) {
                continue;
            }
            let place =
                if swept { format!("<td>{}</td>", at.map(plain).unwrap_or_default()) } else { String::new() };
            let key = format!("<i class=\"key c{}\"></i>", colour(name, &all));
            let _ = writeln!(text, "<tr{class}><td>{key}{}</td>{place}{cells}</tr>", escaped(title));
        }
    }
    text.push_str("</table></div>\n");
    text
}

fn short_label(variant: VariantName) -> &'static str {
    match variant {
        VariantName::Published => "published settings",
        VariantName::Fair => "fair settings",
    }
}

/// All points of all variants and of the published figures, in order.
fn points(scenario: &ScenarioOutcome) -> Vec<Option<f64>> {
    let mut points: Vec<Option<f64>> =
        scenario.variants.iter().flat_map(|variant| variant.points.clone()).collect();
    points.sort_by(|one, other| one.unwrap_or_default().total_cmp(&other.unwrap_or_default()));
    points.dedup();
    points
}

/// The cells of one contender, point and figure.
fn cells(scenario: &ScenarioOutcome, metric: Metric, name: &str, at: Option<f64>, published: bool) -> String {
    let scale = scale(scenario, metric);
    let mut text = String::new();
    let mut class = " class=\"start\"";
    if published {
        let found = scenario.published.iter().find(|it| {
            it.contender == name
                && it.measure == metric
                && it.over.is_none()
                && (it.at == at || it.at.is_none())
        });
        let said = found.map_or(String::new(), |found| {
            let note = if found.note.is_empty() {
                String::new()
            } else {
                format!(" title=\"{}\"", escaped(&found.note))
            };
            let mark = if note.is_empty() { "" } else { "*" };
            format!("<span{note}>{}{mark}</span>", scale.number(found.value))
        });
        let _ = write!(text, "<td{class}>{said}</td>");
        class = "";
    }
    for variant in &scenario.variants {
        let outcome = of(variant, name);
        let found = outcome.and_then(|outcome| summary(&outcome.figures(metric, at)));
        let said = found.map_or(String::new(), |found| {
            let [low, high] = [found.min, found.max].map(|value| scale.number(value));
            let spread = if found.count > 1 {
                format!("<span class=\"spread\">{low}–{high}</span>")
            } else {
                String::new()
            };
            format!("{}{spread}", scale.number(found.median))
        });
        let first = variant.outcomes.first();
        let compared = match (first, outcome) {
            (Some(first), Some(outcome)) if first.contender != name => compare(first, outcome, metric, at),
            _ => None,
        };
        let reference = outcome.is_some_and(|outcome| outcome.reference);
        let compared = compared.map(|found| told(found, reference)).unwrap_or_default();
        let _ = write!(text, "<td{class}>{said}</td><td>{compared}</td>");
        class = "";
    }
    text
}

/// A reference gets no verdict: no contender counts as behind one that can't be beaten.
fn told(found: Comparison, reference: bool) -> String {
    let (class, sign) = match found.verdict {
        _ if reference => ("few", ""),
        Verdict::Better => ("better", " ▲"),
        Verdict::Worse => ("worse", " ▼"),
        Verdict::NoDifferenceShown => ("same", " ="),
        Verdict::TooFewRounds => ("few", ""),
    };
    let [middle, low, high] = [found.ratio.ratio, found.ratio.low, found.ratio.high].map(ratio);
    // A single round has no interval.
    let interval = if found.ratio.low < found.ratio.high {
        format!("<span class=\"spread\">{low}–{high}</span>")
    } else {
        String::new()
    };
    format!("<span class=\"verdict-{class}\">{middle}{sign}</span>{interval}")
}

/// Ratios that somebody published, beside the same ratios of this run.
fn published_ratios(scenario: &ScenarioOutcome) -> String {
    let mut rows = String::new();
    for published in &scenario.published {
        let Some(over) = &published.over else { continue };
        let at = published.at.map(|at| format!(" at {}", plain(at))).unwrap_or_default();
        let _ = write!(
            rows,
            "<tr><td class=\"wrap\">{} ÷ {}: {}{at} <span class=\"soft\">{}</span></td><td>{}</td>",
            escaped(&published.contender),
            escaped(over),
            published.measure.title(),
            escaped(&published.note),
            ratio(published.value)
        );
        for variant in &scenario.variants {
            let measured = measured_ratio(published, variant).map(ratio).unwrap_or_default();
            let _ = write!(rows, "<td>{measured}</td>");
        }
        rows.push_str("</tr>\n");
    }
    if rows.is_empty() {
        return rows;
    }
    let single = scenario.variants.len() == 1;
    let heads: String = scenario
        .variants
        .iter()
        .map(|variant| format!("<th>{}</th>", if single { "measured" } else { short_label(variant.variant) }))
        .collect();
    format!("<table><tr><th>published ratio</th><th>published</th>{heads}</tr>\n{rows}</table>\n")
}

/// What the fairness check found.
fn doubts(scenario: &ScenarioOutcome) -> String {
    let mut text = String::new();
    for variant in &scenario.variants {
        for flag in fairness::check(scenario, variant) {
            let settings = if scenario.variants.len() > 1 {
                format!("{}: ", label_of(variant.variant))
            } else {
                String::new()
            };
            let _ = writeln!(text, "<p class=\"note\">{settings}{}</p>", escaped(&flag.text));
        }
        let remarks = remarks(variant);
        if !remarks.is_empty() {
            let items: String =
                remarks.iter().map(|remark| format!("<li>{}</li>", escaped(remark))).collect();
            let settings = label_of(variant.variant).to_lowercase();
            let _ =
                writeln!(text, "<details><summary>Remarks, {settings}</summary><ul>{items}</ul></details>");
        }
    }
    text
}

/// Every figure of every contender, with commands and configs, folded away.
fn details(scenario: &ScenarioOutcome) -> String {
    let mut text = String::new();
    for variant in &scenario.variants {
        let settings = if scenario.variants.len() > 1 {
            format!(", {}", label_of(variant.variant).to_lowercase())
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "<details><summary>All figures{settings}</summary><p class=\"soft\">{} rounds of {} s.</p>{}</details>",
            variant.rounds,
            variant.seconds,
            all_figures(scenario, variant)
        );
    }
    text.push_str("<details><summary>Commands and configurations</summary>\n");
    for variant in &scenario.variants {
        for outcome in variant.outcomes.iter().filter(|outcome| !outcome.commands.is_empty()) {
            let _ = writeln!(text, "<h4>{}, {}</h4>", escaped(&outcome.title), variant.variant.name());
            if !outcome.fairness.is_empty() {
                let _ = write!(text, "<p>{}</p>", escaped(&outcome.fairness));
            }
            let _ = write!(text, "<pre>{}</pre>", escaped(&outcome.commands.join("\n")));
            let _ = writeln!(text, "<pre>{}</pre>", escaped(outcome.config.trim_end()));
        }
    }
    text.push_str("</details>\n");
    text
}

fn all_figures(scenario: &ScenarioOutcome, variant: &VariantOutcome) -> String {
    let samples = || variant.outcomes.iter().flat_map(|outcome| &outcome.samples);
    let mut metrics: Vec<Metric> = scenario.measures.clone();
    for metric in samples().flat_map(|sample| sample.figures.keys()) {
        if !metrics.contains(metric) {
            metrics.push(*metric);
        }
    }
    metrics.retain(|metric| samples().any(|sample| sample.figure(*metric).is_some()));
    let mut text = "<div class=\"wide\"><table><tr><th>figure</th>".to_owned();
    let columns: Vec<(&Outcome, Option<f64>)> = variant
        .outcomes
        .iter()
        .flat_map(|outcome| variant.points.iter().map(move |at| (outcome, *at)))
        .filter(|(outcome, at)| outcome.at(*at).next().is_some())
        .collect();
    for (outcome, at) in &columns {
        let at = at.map(|at| format!("<br>{}", plain(at))).unwrap_or_default();
        let _ = write!(text, "<th>{}{at}</th>", escaped(&outcome.title));
    }
    text.push_str("</tr>\n");
    for metric in metrics {
        let scale = Scale::of(metric, &[variant], std::iter::empty());
        let _ = write!(text, "<tr><td>{}</td>", scale.heading(metric.title()));
        for (outcome, at) in &columns {
            let said = summary(&outcome.figures(metric, *at)).map(|found| scale.number(found.median));
            let _ = write!(text, "<td>{}</td>", said.unwrap_or_default());
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table></div>");
    text
}
