//! The measurement itself: contenders in turn, round after round, so that a slow minute of the machine
//! affects all alike.
//!
//! Every round visits every point of the sweep, and at each point every contender has its turn (a *cell*).
//! The runner decides what a cell does ([`crate::runner`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::metric::Metric;
use crate::runner::{self, Cell, Options, Runner, Turn};
use crate::sample::{Outcome, Participation, Sample};
use crate::scenario::{self, Asked, Length, Published, Scenario, Series, Setup, Sweep, VariantName};
use crate::workplace::Workplace;

/// Expected time of a turn besides its load: starting the contender and reading the counters (seconds).
const START_SECONDS: u32 = 2;

/// What to run.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// The full form rather than the short one.
    pub full: bool,
    /// Only this variant, where a scenario has two.
    pub variant: Option<VariantName>,
    /// Only contenders whose folder, name or folder/template is listed; empty for all.
    pub only: Vec<String>,
    /// Rounds, instead of the scenario's own number.
    pub rounds: Option<u32>,
    /// Seconds of counted load, instead of the scenario's own.
    pub seconds: Option<u32>,
}

impl Wish {
    fn wants(&self, entrant: &scenario::Entrant) -> bool {
        let names = |wished: &String| {
            *wished == folder_of(&entrant.template) || *wished == entrant.name || *wished == entrant.template
        };
        self.only.is_empty() || self.only.iter().any(names)
    }

    /// Err names a requested contender that takes part in nothing, and those that do.
    fn check(&self, all: &[(Series, Vec<Scenario>)]) -> io::Result<()> {
        let mut folders = BTreeSet::new();
        let mut unmet: Vec<&String> = self.only.iter().collect();
        for scenario in all.iter().flat_map(|(_, scenarios)| scenarios) {
            for entrant in scenario.setups(true)?.iter().flat_map(|setup| &setup.entrants) {
                folders.insert(folder_of(&entrant.template).to_owned());
                unmet
                    .retain(|&wished| !Wish { only: vec![wished.clone()], ..Wish::default() }.wants(entrant));
            }
        }
        let Some(stranger) = unmet.first() else { return Ok(()) };
        let known: Vec<String> = folders.into_iter().collect();
        Err(io::Error::other(format!(
            "--only: {stranger} takes part in none of this; there are: {}",
            known.join(", ")
        )))
    }
}

/// The folder of a folder/template.
fn folder_of(template: &str) -> &str {
    template.split('/').next().unwrap_or_default()
}

/// The results of one variant of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantOutcome {
    /// Whose settings.
    pub variant: VariantName,
    /// What they are.
    pub about: String,
    /// Rounds that were asked for.
    pub rounds: u32,
    /// Counted seconds per cell.
    pub seconds: u32,
    /// The values of the sweep, or one `None`.
    pub points: Vec<Option<f64>>,
    /// In the scenario's order.
    pub outcomes: Vec<Outcome>,
}

/// The results of one scenario, with what is needed to report them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenarioOutcome {
    /// Series and name.
    pub scenario: String,
    /// Its title.
    pub title: String,
    /// What a reader must know about it.
    pub about: String,
    /// What is reported; the first decides.
    pub measures: Vec<Metric>,
    /// The parameter that changes.
    pub sweep: Option<Sweep>,
    /// What others measured.
    pub published: Vec<Published>,
    /// The bounds that the first contender should reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Asked>,
    /// By variant.
    pub variants: Vec<VariantOutcome>,
}

/// The results of a series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesOutcome {
    /// Where it comes from.
    pub series: Series,
    /// Its scenarios.
    pub scenarios: Vec<ScenarioOutcome>,
}

/// One variant of one scenario with all its contenders, before it is run.
struct Plan {
    setup: Setup,
    entrants: Vec<Entrant>,
}

struct Entrant {
    contender: Option<Contender>,
    outcome: Outcome,
}

impl Entrant {
    fn plays(&self) -> bool {
        self.outcome.state == Participation::Ran
    }
}

impl Plan {
    fn cells(&self) -> usize {
        let playing = self.entrants.iter().filter(|entrant| entrant.plays()).count();
        playing * self.setup.points.len() * self.setup.length.rounds as usize
    }
}

/// Runs `all` one after the other. Reports progress on standard error, and passes the results to `so_far`
/// after each scenario, so that an interrupted run is not lost.
///
/// A contender that does not start is left out of the rest of its variant; its outcome says why. Err only if
/// the lab itself can't go on.
pub fn run(
    all: &[(Series, Vec<Scenario>)],
    wish: &Wish,
    options: &Options,
    workplace: &Workplace,
    so_far: &mut dyn FnMut(&[SeriesOutcome]) -> io::Result<()>,
) -> io::Result<Vec<SeriesOutcome>> {
    wish.check(all)?;
    let mut versions = BTreeMap::new();
    let mut plans: Vec<Vec<Vec<Plan>>> = Vec::new();
    for (_, scenarios) in all {
        let mut of_series = Vec::new();
        for scenario in scenarios {
            of_series.push(plans_of(scenario, wish, options, workplace, &mut versions)?);
        }
        plans.push(of_series);
    }
    let mut progress = Progress::over(plans.iter().flatten().flatten());
    let mut outcomes: Vec<SeriesOutcome> = Vec::new();
    for ((series, scenarios), plans) in all.iter().zip(plans) {
        outcomes.push(SeriesOutcome { series: series.clone(), scenarios: Vec::new() });
        for (scenario, plans) in scenarios.iter().zip(plans) {
            if plans.iter().all(|plan| plan.setup.length.rounds == 0) {
                eprintln!("{}: only in the full form, or with --rounds", scenario.name);
                continue;
            }
            let mut variants = Vec::new();
            for plan in plans.into_iter().filter(|plan| plan.setup.length.rounds > 0) {
                eprintln!("{} ({}): {}", scenario.name, plan.setup.variant.name(), scenario.title);
                variants.push(run_variant(scenario, plan, options, workplace, &mut progress)?);
            }
            let done = ScenarioOutcome {
                scenario: scenario.name.clone(),
                title: scenario.title.clone(),
                about: scenario.about.trim().to_owned(),
                measures: scenario.measures.clone(),
                sweep: scenario.sweep.clone(),
                published: scenario.published.clone(),
                asked: scenario.asked.clone(),
                variants,
            };
            if let Some(series) = outcomes.last_mut() {
                series.scenarios.push(done);
            }
            so_far(&outcomes)?;
        }
        runner::end_series();
    }
    Ok(outcomes)
}

fn plans_of(
    scenario: &Scenario,
    wish: &Wish,
    options: &Options,
    workplace: &Workplace,
    versions: &mut BTreeMap<String, Result<String, String>>,
) -> io::Result<Vec<Plan>> {
    let setups = scenario.setups(wish.full)?;
    // A scenario with only one variant takes part whichever variant is requested.
    let single = setups.len() == 1;
    Ok(setups
        .into_iter()
        .filter(|setup| single || wish.variant.is_none_or(|variant| variant == setup.variant))
        .map(|mut setup| {
            let length = &mut setup.length;
            length.rounds = wish.rounds.unwrap_or(length.rounds);
            length.seconds = wish.seconds.unwrap_or(length.seconds);
            let entrants = line_up(scenario, &setup, wish, options, workplace, versions);
            // A runner that takes all contenders through one event together must know which ones are left.
            setup.entrants.retain(|entrant| {
                entrants.iter().any(|one| one.plays() && one.outcome.contender == entrant.name)
            });
            Plan { setup, entrants }
        })
        .collect())
}

/// Reads a variant's contenders and their versions, which also shows early which ones can't run at all.
fn line_up(
    scenario: &Scenario,
    setup: &Setup,
    wish: &Wish,
    options: &Options,
    workplace: &Workplace,
    versions: &mut BTreeMap<String, Result<String, String>>,
) -> Vec<Entrant> {
    let mut entrants = Vec::new();
    for entrant in setup.entrants.iter().filter(|entrant| wish.wants(entrant)) {
        let folder = folder_of(&entrant.template);
        let mut outcome = Outcome {
            contender: entrant.name.clone(),
            template: entrant.template.clone(),
            title: Contender::title_of_folder(&options.lab, folder).unwrap_or_else(|| entrant.name.clone()),
            ..Outcome::default()
        };
        let is_built = || -> io::Result<()> {
            let contender = Contender::read(&options.lab, &entrant.template)?;
            contender.check(&options.tools, &workplace.directory("check")?)
        };
        if let Some(reason) = scenario.not_built.get(&entrant.name)
            && is_built().is_err()
        {
            outcome.state = Participation::NotBuilt(reason.clone());
            entrants.push(Entrant { contender: None, outcome });
            continue;
        }
        let contender = Contender::read(&options.lab, &entrant.template);
        match &contender {
            Err(error) => outcome.state = Participation::Failed(error.to_string()),
            Ok(contender) => {
                outcome.title = title_of(contender, &entrant.name);
                outcome.config = contender.template().to_owned();
                outcome.reference = contender.is_reference();
                outcome.fairness = contender.fairness().to_owned();
                let version = versions
                    .entry(folder.to_owned())
                    .or_insert_with(|| version_of(contender, folder, options));
                match version {
                    Ok(version) => outcome.version = Some(version.clone()),
                    Err(error) => outcome.state = Participation::Failed(error.clone()),
                }
            }
        }
        entrants.push(Entrant { contender: contender.ok(), outcome });
    }
    entrants
}

/// `HAProxy`, or `HAProxy (http-splice)` where it takes part more than once.
fn title_of(contender: &Contender, name: &str) -> String {
    match name.split_once('/') {
        None => contender.title().to_owned(),
        Some((_, template)) => format!("{} ({template})", contender.title()),
    }
}

fn version_of(contender: &Contender, folder: &str, options: &Options) -> Result<String, String> {
    let version = contender.version(&options.tools).map_err(|error| error.to_string());
    match &version {
        Ok(version) => eprintln!("{folder}: version {version}"),
        Err(error) => eprintln!("{folder}: left out: {error}"),
    }
    version
}

fn run_variant(
    scenario: &Scenario,
    mut plan: Plan,
    options: &Options,
    workplace: &Workplace,
    progress: &mut Progress,
) -> io::Result<VariantOutcome> {
    if plan.cells() > 0 {
        match runner::prepare(&plan.setup, options, workplace) {
            Ok(mut runner) => {
                for round in 1..=plan.setup.length.rounds {
                    run_round(scenario, &mut plan, round, runner.as_mut(), options, workplace, progress)?;
                }
            }
            Err(error) => {
                progress.skip(plan.cells(), plan.setup.length);
                eprintln!("  left out: {error}");
                for entrant in plan.entrants.iter_mut().filter(|entrant| entrant.plays()) {
                    entrant.outcome.state =
                        Participation::Failed(format!("its topology did not come up: {error}"));
                }
            }
        }
    }
    Ok(VariantOutcome {
        variant: plan.setup.variant,
        about: plan.setup.about.trim().to_owned(),
        rounds: plan.setup.length.rounds,
        seconds: plan.setup.length.seconds,
        points: plan.setup.points.iter().map(|point| point.at).collect(),
        outcomes: plan.entrants.into_iter().map(|entrant| entrant.outcome).collect(),
    })
}

fn run_round(
    scenario: &Scenario,
    plan: &mut Plan,
    round: u32,
    runner: &mut dyn Runner,
    options: &Options,
    workplace: &Workplace,
    progress: &mut Progress,
) -> io::Result<()> {
    let points = plan.setup.points.len();
    for (index, point) in plan.setup.points.iter().enumerate() {
        for entrant in &mut plan.entrants {
            let Some(contender) =
                entrant.contender.as_ref().filter(|_| entrant.outcome.state == Participation::Ran)
            else {
                continue;
            };
            let directory = workplace.directory("cell")?;
            let cell = Cell { contender, point, length: plan.setup.length, directory: &directory };
            match runner.cell(&cell) {
                Ok(Turn { mut sample, commands }) => {
                    (sample.round, sample.at) = (round, point.at);
                    progress.tell(scenario, round, plan.setup.length, &entrant.outcome.contender, &sample);
                    if entrant.outcome.commands.is_empty() {
                        entrant.outcome.commands =
                            commands.iter().map(|command| options.tools.shown(command)).collect();
                    }
                    entrant.outcome.samples.push(sample);
                }
                Err(error) => {
                    eprintln!("  {}: left out: {error}", entrant.outcome.contender);
                    let others = (plan.setup.length.rounds - round) as usize * points + points - index - 1;
                    progress.skip(others, plan.setup.length);
                    entrant.outcome.state = match scenario.not_built.get(&entrant.outcome.contender) {
                        // Its check accepted the config, but it does not support it yet.
                        Some(reason) if entrant.outcome.samples.is_empty() => Participation::NotBuilt(
                            format!("{reason} (it tried: {})", first_line(&error.to_string())),
                        ),
                        _ => Participation::Failed(error.to_string()),
                    };
                }
            }
            progress.done += 1;
            progress.seconds_done += seconds_of(1, plan.setup.length);
        }
    }
    Ok(())
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// How far the run has come.
struct Progress {
    begin: Instant,
    cells: usize,
    done: usize,
    /// Expected seconds of all turns, and of those that are over.
    seconds: u64,
    seconds_done: u64,
}

/// Seconds that so many turns of a length are expected to take.
fn seconds_of(cells: usize, length: Length) -> u64 {
    cells as u64 * u64::from(length.seconds + length.warm_up_seconds + START_SECONDS)
}

impl Progress {
    fn over<'a>(plans: impl Iterator<Item = &'a Plan> + Clone) -> Self {
        Self {
            begin: Instant::now(),
            cells: plans.clone().map(Plan::cells).sum(),
            done: 0,
            seconds: plans.map(|plan| seconds_of(plan.cells(), plan.setup.length)).sum(),
            seconds_done: 0,
        }
    }

    fn skip(&mut self, cells: usize, length: Length) {
        self.cells -= cells;
        self.seconds -= seconds_of(cells, length);
    }

    /// How long the rest will take if it deviates from the expected time like the part that took `elapsed`;
    /// the turn that has just ended is one of `length`.
    fn left(&self, elapsed: Duration, length: Length) -> Duration {
        let done = self.seconds_done + seconds_of(1, length);
        elapsed.mul_f64(self.seconds.saturating_sub(done) as f64 / done as f64)
    }

    fn tell(&self, scenario: &Scenario, round: u32, length: Length, name: &str, sample: &Sample) {
        let done = self.done + 1;
        let (left, rounds) = (self.left(self.begin.elapsed(), length), length.rounds);
        let at = sample.at.map(|at| format!(" at {at}")).unwrap_or_default();
        let figures: String = scenario
            .measures
            .iter()
            .filter_map(|metric| Some((metric, sample.figure(*metric)?)))
            .take(3)
            .map(|(metric, value)| {
                let (factor, unit) = metric.unit().shown_for(value);
                format!("  {:.2} {unit} {}", value * factor, metric.name())
            })
            .collect();
        let errors = sample.error_count();
        let errors = if errors > 0 { format!("  {errors} ERRORS") } else { String::new() };
        eprintln!(
            "  [{done}/{}, {} min {:02} s left] round {round}/{rounds}{at} {name:<14}{figures}{errors}",
            self.cells,
            left.as_secs() / 60,
            left.as_secs() % 60,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_knows_long_turns_from_short_ones() {
        let (long, short) = (
            Length { rounds: 1, seconds: 57, warm_up_seconds: 1 },
            Length { rounds: 1, seconds: 1, warm_up_seconds: 1 },
        );
        let seconds = seconds_of(2, long) + seconds_of(60, short);
        let mut progress = Progress { begin: Instant::now(), cells: 62, done: 0, seconds, seconds_done: 0 };
        // A minute each, as expected: one more minute, and 60 times four seconds.
        assert_eq!(progress.left(Duration::from_secs(60), long).as_secs(), 300);
        progress.skip(30, short);
        assert_eq!(
            progress.left(Duration::from_secs(120), long).as_secs(),
            360,
            "half of them, at half the speed"
        );
        progress.seconds_done = progress.seconds - seconds_of(1, short);
        assert_eq!(progress.left(Duration::from_secs(240), short), Duration::ZERO);
    }
}
