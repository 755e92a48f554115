//! Scenarios: what is measured, of which contenders, under which load, beside which published figures.
//!
//! A folder of `lab/scenarios/` is a *series* (one published comparison, or the lab's own bench);
//! `series.toml` says where its figures come from and what is wrong with them. Every other TOML file in it is
//! one *scenario*. A scenario has one or two *variants*, and each variant has the *points* that its sweep
//! gives.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::load::Load;
use crate::metric::Metric;
use crate::topology::Topology;

/// Where a series of scenarios comes from: `series.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The folder's name.
    #[serde(default)]
    pub name: String,
    /// One line for a person.
    pub title: String,
    /// The publication; empty for the lab's own.
    #[serde(default)]
    pub source: String,
    /// The machine and versions the published figures come from.
    #[serde(default)]
    pub machine: String,
    /// What is known to be wrong with the published setup.
    #[serde(default)]
    pub flaws: Vec<String>,
    /// Where this lab differs from the published setup in both variants.
    #[serde(default)]
    pub differences: Vec<String>,
    /// The published figures side by side, with ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "table")]
    pub tables: Vec<SeriesTable>,
}

/// Whose settings a variant has.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum VariantName {
    /// Those of the publication, flaws included.
    Published,
    /// Equal ones for all.
    Fair,
}

impl VariantName {
    /// As scenarios and reports write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Fair => "fair",
        }
    }
}

/// How long a scenario takes in one form.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// Rounds; every contender has one turn at every point in each. None leaves the scenario out of this
    /// form.
    pub rounds: u32,
    /// Counted load in each turn (seconds), for loads that end by the clock.
    pub seconds: u32,
    /// Uncounted load before it (seconds).
    #[serde(default = "one_second")]
    pub warm_up_seconds: u32,
}

fn one_second() -> u32 {
    1
}

/// The parameter that changes from point to point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Key of the load or the topology: `load.connections`, `topology.delay_ms`.
    pub parameter: String,
    /// What an axis is called.
    pub title: String,
    /// Whether an axis of it is best logarithmic.
    #[serde(default)]
    pub logarithmic: bool,
    /// Values of the short form.
    pub short: Vec<Value>,
    /// Values of the full form; those of the short form if none are given.
    #[serde(default)]
    pub full: Vec<Value>,
}

/// A figure somebody published, to be printed beside ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The contender that it is about: one of the scenario, or one that can't be had.
    pub contender: String,
    /// The contender that it is relative to; the figure is then a ratio, without a unit.
    #[serde(default)]
    pub over: Option<String>,
    /// At which value of the swept parameter; for a ratio without it, the mean over all of them.
    #[serde(default)]
    pub at: Option<f64>,
    /// What it is.
    pub measure: Metric,
    /// The figure, in the metric's unit.
    pub value: f64,
    /// What a reader must know about it.
    #[serde(default)]
    pub note: String,
}

/// A bound that a contender of a scenario should reach, by itself or relative to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// The contender, as the report calls it; the first one if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// The other contender, as the report calls it. Without one, the bound applies to the figure itself, in
    /// its unit, and every sample must keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The figure.
    pub measure: Metric,
    /// Least ratio of the contender's figure to the other's.
    #[serde(default)]
    pub least: Option<f64>,
    /// Greatest ratio of the contender's figure to the other's.
    #[serde(default)]
    pub most: Option<f64>,
    /// Greatest difference of the contender's figure minus the other's, in the figure's unit.
    #[serde(default)]
    pub most_more: Option<f64>,
    /// A third contender whose figure is subtracted from both before they are divided: the ratio is of what
    /// each adds to it.
    #[serde(default)]
    pub beyond: Option<String>,
    /// What a reader must know about it.
    #[serde(default)]
    pub note: String,
}

/// Figures of several scenarios side by side, as a publication shows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesTable {
    /// Its title.
    pub title: String,
    /// One column each, of the variant with equal settings.
    pub columns: Vec<Column>,
}

/// One column of a [`SeriesTable`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Which scenario, with its series.
    pub scenario: String,
    /// Which of its figures.
    pub measure: Metric,
}

/// What a variant changes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variant {
    /// What its settings are, for a reader.
    about: String,
    /// The contenders, instead of the scenario's own list.
    contenders: Option<Vec<String>>,
    /// Keys that replace those of the scenario's load.
    #[serde(default)]
    load: Table,
    /// Keys that replace those of the scenario's topology.
    #[serde(default)]
    topology: Table,
    /// Keys that replace those of the scenario's short form; no rounds leave the variant out of it.
    #[serde(default)]
    short: Table,
    /// Keys that replace those of the scenario's full form.
    #[serde(default)]
    full: Table,
}

/// A scenario's file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Series and file name: `s4/round-robin`.
    #[serde(skip)]
    pub name: String,
    /// One line for a person.
    pub title: String,
    /// What a reader must know about it.
    #[serde(default)]
    pub about: String,
    /// What is reported. The first decides who is ahead.
    pub measures: Vec<Metric>,
    /// The contenders, as folder/template under `lab/contenders`. The first is compared with the others.
    #[serde(default)]
    contenders: Vec<String>,
    /// Contenders that the short form has no time for.
    #[serde(default)]
    full_only: Vec<String>,
    /// Contenders that do not support this yet, and why; they are shown like that, not as failures.
    #[serde(default)]
    pub not_built: BTreeMap<String, String>,
    topology: Table,
    load: Table,
    /// The parameter that changes; one point when there is none.
    #[serde(default)]
    pub sweep: Option<Sweep>,
    /// How long the short form takes.
    #[serde(default = "short_length")]
    pub short: Length,
    /// How long the full form takes.
    #[serde(default = "full_length")]
    pub full: Length,
    #[serde(default, rename = "variant")]
    variants: BTreeMap<VariantName, Variant>,
    /// What others measured.
    #[serde(default)]
    pub published: Vec<Published>,
    /// The bounds that the first contender should reach.
    #[serde(default)]
    pub asked: Vec<Asked>,
}

// Five rounds are the fewest from which a difference can be told; see `statistics::Verdict`.
fn short_length() -> Length {
    Length { rounds: 5, seconds: 2, warm_up_seconds: 1 }
}

fn full_length() -> Length {
    Length { rounds: 9, seconds: 5, warm_up_seconds: 2 }
}

/// One point of a variant: everything a runner needs to know to put the load on.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The value of the swept parameter; `None` without sweep.
    pub at: Option<f64>,
    /// The load at this point.
    pub load: Load,
    /// The topology at this point.
    pub topology: Topology,
}

/// One variant, ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Which variant it is.
    pub variant: VariantName,
    /// What its settings are.
    pub about: String,
    /// The contenders.
    pub entrants: Vec<Entrant>,
    /// The points, which every round visits in this order.
    pub points: Vec<Point>,
    /// How long it takes.
    pub length: Length,
}

/// A contender of a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrant {
    /// Its name in the report: its folder, or folder/template if the folder takes part more than once.
    pub name: String,
    /// Folder/template under `lab/contenders`.
    pub template: String,
}

impl Scenario {
    /// Its variants, in order; `full` chooses the values of the sweep. Err names the key that is wrong.
    pub fn setups(&self, full: bool) -> io::Result<Vec<Setup>> {
        let only_fair = BTreeMap::from([(VariantName::Fair, Variant::default())]);
        let variants = if self.variants.is_empty() { &only_fair } else { &self.variants };
        let takes_part = |name: &String| {
            variants
                .values()
                .any(|variant| variant.contenders.as_ref().unwrap_or(&self.contenders).contains(name))
        };
        if let Some(stranger) = self.full_only.iter().find(|name| !takes_part(name)) {
            let complaint =
                format!("`full_only` names {stranger}, which takes no part; name one of `contenders`");
            return Err(io::Error::other(format!("scenario {}: {complaint}", self.name)));
        }
        variants.iter().map(|(name, variant)| self.setup(*name, variant, full)).collect()
    }

    fn setup(&self, name: VariantName, variant: &Variant, full: bool) -> io::Result<Setup> {
        let explain = |error: String| io::Error::other(format!("scenario {}: {error}", self.name));
        let contenders = variant.contenders.as_ref().unwrap_or(&self.contenders);
        let values: Vec<Option<&Value>> = match &self.sweep {
            None => vec![None],
            Some(sweep) if full && !sweep.full.is_empty() => sweep.full.iter().map(Some).collect(),
            Some(sweep) => sweep.short.iter().map(Some).collect(),
        };
        let points = values
            .into_iter()
            .map(|value| self.point(variant, value))
            .collect::<Result<Vec<Point>, String>>()
            .map_err(explain)?;
        let (length, changes) = if full { (self.full, &variant.full) } else { (self.short, &variant.short) };
        let length = changed(length, changes).map_err(|error| explain(format!("length: {error}")))?;
        let about = variant.about.clone();
        let mut entrants = entrants(contenders);
        entrants.retain(|entrant| full || !self.full_only.contains(&entrant.template));
        Ok(Setup { variant: name, about, entrants, points, length })
    }

    fn point(&self, variant: &Variant, value: Option<&Value>) -> Result<Point, String> {
        let mut load = merged(&self.load, &variant.load);
        let mut topology = merged(&self.topology, &variant.topology);
        let mut at = None;
        if let (Some(sweep), Some(value)) = (&self.sweep, value) {
            at = Some(number(value).ok_or_else(|| format!("sweep: `{value}` where a number was expected"))?);
            match sweep.parameter.split_once('.') {
                Some(("load", key)) => load.insert(key.to_owned(), value.clone()),
                Some(("topology", key)) => topology.insert(key.to_owned(), value.clone()),
                _ => {
                    let name = &sweep.parameter;
                    return Err(format!("sweep: `{name}` where `load.KEY` or `topology.KEY` was expected"));
                }
            };
        }
        let load: Load =
            load.try_into().map_err(|error: toml::de::Error| format!("load: {}", error.message()))?;
        let topology: Topology =
            topology.try_into().map_err(|error: toml::de::Error| format!("topology: {}", error.message()))?;
        Ok(Point { at, load, topology })
    }
}

fn merged(base: &Table, changes: &Table) -> Table {
    let mut table = base.clone();
    table.extend(changes.clone());
    table
}

fn changed(length: Length, changes: &Table) -> Result<Length, String> {
    let table = Table::try_from(length).map_err(|error| error.to_string())?;
    merged(&table, changes).try_into().map_err(|error: toml::de::Error| error.message().to_owned())
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
}

fn entrants(templates: &[String]) -> Vec<Entrant> {
    let folder = |template: &str| template.split('/').next().unwrap_or_default().to_owned();
    let times = |name: &str| templates.iter().filter(|template| folder(template) == name).count();
    templates
        .iter()
        .map(|template| {
            let name = folder(template);
            let name = if times(&name) > 1 { template.clone() } else { name };
            Entrant { name, template: template.clone() }
        })
        .collect()
}

/// Reads all series under `directory` with their scenarios, sorted by name. Err names the file that can't be
/// parsed.
pub fn read_all(directory: &Path) -> io::Result<Vec<(Series, Vec<Scenario>)>> {
    let mut all = Vec::new();
    for folder in sorted(directory)? {
        if !folder.is_dir() {
            continue;
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut series: Series = parse(&folder.join("series.toml"))?;
        series.name.clone_from(&name);
        let mut scenarios = Vec::new();
        for path in sorted(&folder)? {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.extension().is_none_or(|extension| extension != "toml") || stem == "series" {
                continue;
            }
            let mut scenario: Scenario = parse(&path)?;
            scenario.name = format!("{name}/{stem}");
            // Both forms are checked now, so that a mistake in the longer one shows before it is run.
            for full in [false, true] {
                scenario.setups(full)?;
            }
            scenarios.push(scenario);
        }
        all.push((series, scenarios));
    }
    Ok(all)
}

fn sorted(directory: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let explain =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(explain)? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<T> {
    let explain = |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| explain(&error))?;
    toml::from_str(&text).map_err(|error| explain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Vec<(Series, Vec<Scenario>)> {
        read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")).unwrap()
    }

    #[test]
    fn every_contender_a_scenario_names_has_its_template_and_weir_comes_first() {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
        let all: Vec<Scenario> = shipped().into_iter().flat_map(|(_, scenarios)| scenarios).collect();
        assert!(all.iter().any(|scenario| scenario.name == "bench/http1"));
        for scenario in &all {
            for setup in scenario.setups(true).unwrap() {
                assert!(setup.entrants.len() > 1, "{}", scenario.name);
                assert!(setup.entrants[0].template.starts_with("weir"), "{}", scenario.name);
                for entrant in setup.entrants {
                    if !scenario.not_built.contains_key(&entrant.name) {
                        crate::contender::Contender::read(lab, &entrant.template).unwrap();
                    }
                }
            }
        }
    }

    const SWEPT: &str = "title = 't'\nmeasures = ['rate']\ncontenders = ['weir/a', 'nginx/a', 'nginx/b']\n\
        topology = { kind = 'loopback', backend = 'http' }\nload = { kind = 'wrk', connections = 1 }\n\
        [sweep]\nparameter = 'load.connections'\ntitle = 'connections'\nshort = [1, 10]\nfull = [1, 2, 3]\n\
        [variant.published]\nabout = 'a'\ncontenders = ['weir/p', 'nginx/p']\nload = { path = '/x' }\n\
        [variant.fair]\nabout = 'b'\n";

    #[test]
    fn a_sweep_gives_each_variant_its_points() {
        let scenario: Scenario = toml::from_str(SWEPT).unwrap();
        let setups = scenario.setups(true).unwrap();
        let connections: Vec<u32> = setups[0].points.iter().map(|point| point.load.connections()).collect();
        assert_eq!(connections, [1, 2, 3]);
        assert_eq!(setups[0].variant, VariantName::Published);
        assert!(matches!(&setups[0].points[0].load, Load::Wrk { path, .. } if path == "/x"));
        assert!(matches!(&setups[1].points[0].load, Load::Wrk { path, .. } if path == "/"));
        assert_eq!(scenario.setups(false).unwrap()[1].points[1].at, Some(10.0));
    }

    #[test]
    fn a_variant_may_be_shorter_than_the_other_in_one_form() {
        let text = format!("{SWEPT}[variant.published.short]\nrounds = 1\n");
        let scenario: Scenario = toml::from_str(&text).unwrap();
        let lengths =
            |full| scenario.setups(full).unwrap().iter().map(|setup| setup.length).collect::<Vec<_>>();
        assert_eq!(lengths(false), [Length { rounds: 1, ..short_length() }, short_length()]);
        assert_eq!(lengths(true), [full_length(), full_length()]);
        let slip: Scenario = toml::from_str(&text.replace("rounds = 1", "round = 1")).unwrap();
        let error = slip.setups(false).unwrap_err().to_string();
        assert!(error.contains("length: unknown field `round`"), "{error}");
    }

    #[test]
    fn a_contender_may_be_left_to_the_full_form() {
        let text = SWEPT.replace("topology =", "full_only = ['nginx/b']\ntopology =");
        let scenario: Scenario = toml::from_str(&text).unwrap();
        let templates = |full: bool| -> Vec<String> {
            let setup = scenario.setups(full).unwrap().remove(1);
            setup.entrants.into_iter().map(|entrant| entrant.template).collect()
        };
        assert_eq!(templates(false), ["weir/a", "nginx/a"]);
        assert_eq!(templates(true), ["weir/a", "nginx/a", "nginx/b"]);

        let misspelt = SWEPT.replace("topology =", "full_only = ['nginx/c']\ntopology =");
        let error = toml::from_str::<Scenario>(&misspelt).unwrap().setups(true).unwrap_err().to_string();
        assert!(
            error.ends_with("`full_only` names nginx/c, which takes no part; name one of `contenders`"),
            "{error}"
        );
    }

    #[test]
    fn a_contender_is_called_by_its_folder_unless_that_takes_part_twice() {
        let scenario: Scenario = toml::from_str(SWEPT).unwrap();
        let names = |setup: &Setup| -> Vec<String> {
            setup.entrants.iter().map(|entrant| entrant.name.clone()).collect()
        };
        let setups = scenario.setups(false).unwrap();
        assert_eq!(names(&setups[0]), ["weir", "nginx"]);
        assert_eq!(names(&setups[1]), ["weir", "nginx/a", "nginx/b"]);
    }

    #[test]
    fn a_misspelt_key_is_refused_wherever_it_stands() {
        let explain = |text: &str| -> String {
            match toml::from_str::<Scenario>(text) {
                Err(error) => error.to_string(),
                Ok(scenario) => scenario.setups(false).unwrap_err().to_string(),
            }
        };
        assert!(explain(&SWEPT.replace("title = 't'", "titel = 't'")).contains("titel"));
        assert!(explain(&SWEPT.replace("path =", "paht =")).contains("unknown field `paht`"));
        assert!(explain(&SWEPT.replace("load.connections", "load.conections")).contains("conections"));
        assert!(explain(&SWEPT.replace("'load.connections'", "'connections'")).contains("`load.KEY`"));
        assert!(explain(&SWEPT.replace("'rate'", "'rates'")).contains("no figure is named `rates`"));
    }
}
