//! The results of a run: raw samples with the circumstances of the measurement, and the comparisons drawn
//! from them.
//!
//! [`Report`] is what is kept as JSON. Everything shown is computed from it, so a report can be made again.

mod asked;
mod chart;
mod html;
mod layout;
pub mod number;
pub mod summary;
mod text;

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use text::aligned;

use crate::enclosure;
use crate::metric::{Direction, Metric};
use crate::process::may_set_priority;
use crate::rounds::{SeriesOutcome, VariantOutcome};
use crate::runner::Options;
use crate::sample::Outcome;
use crate::statistics::{Ratio, Verdict, ratio_of_medians};

/// The bootstrap's seed. Fixed, so that a report can be made again from its samples.
const SEED: u64 = 0x5765_6972;
/// Version of the JSON. Raised if older programs would misread it.
const FORMAT: u32 = 2;

/// The machine and the settings, for the record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Circumstances {
    /// The processor's name.
    pub processor: String,
    /// How many cores the lab may use.
    pub cores: usize,
    /// Memory of the machine (bytes).
    #[serde(default)]
    pub memory_bytes: u64,
    /// The kernel's version.
    pub kernel: String,
    /// The congestion control of new connections.
    pub congestion_control: String,
    /// Whether the lab had a network of its own.
    pub private_network: bool,
    /// Core of the load balancer.
    pub proxy_core: Option<usize>,
    /// Core of load and backends.
    pub load_core: Option<usize>,
    /// Nice value asked for.
    pub nice: i32,
    /// Whether it was granted.
    pub nice_in_force: bool,
    /// Whether everything measured ran as real-time processes.
    pub realtime: bool,
    /// Whether this is the full form.
    #[serde(default)]
    pub full: bool,
    /// The commit measured; empty when unknown.
    pub commit: String,
    /// When the run began.
    pub unix_time_seconds: u64,
    /// How long it took.
    #[serde(default)]
    pub took_seconds: u64,
    /// `/proc/loadavg` at the beginning.
    pub load_average: String,
    /// How the lab was called.
    #[serde(default)]
    pub command: String,
}

impl Circumstances {
    /// Records the present circumstances.
    pub fn now(options: &Options, private_network: bool, full: bool) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| -> Option<String> {
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim().to_owned()))
        };
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
        let commit = Command::new("git")
            .arg("-C")
            .arg(&options.lab)
            .args(["describe", "--always", "--dirty", "--abbrev=12"])
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
            .unwrap_or_default();
        let own_call = std::iter::once("weir-lab".to_owned());
        let own_call: Vec<String> =
            own_call.chain(std::env::args().skip(1).map(|word| without_folders(&word))).collect();
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory_kib.unwrap_or_default() * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            congestion_control: enclosure::congestion_control(),
            private_network,
            proxy_core: options.proxy.core,
            load_core: options.load.core,
            nice: options.proxy.nice,
            realtime: options.proxy.realtime,
            nice_in_force: may_set_priority(options.proxy.nice),
            full,
            commit,
            unix_time_seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            took_seconds: 0,
            load_average: read("/proc/loadavg").trim().to_owned(),
            command: options.tools.shown(&own_call),
        }
    }
}

/// A word of the lab's command line with an absolute path cut to its last component: a report is read on
/// other machines.
fn without_folders(word: &str) -> String {
    let (option, value) = match word.split_once('=') {
        Some((option, value)) if option.starts_with("--") => (format!("{option}="), value),
        _ => (String::new(), word),
    };
    match Path::new(value).file_name() {
        Some(name) if value.starts_with('/') => format!("{option}{}", name.to_string_lossy()),
        _ => word.to_owned(),
    }
}

/// Everything a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    format: u32,
    /// The circumstances of the run.
    pub circumstances: Circumstances,
    /// The results.
    pub series: Vec<SeriesOutcome>,
}

impl Report {
    /// A report of what was found.
    pub fn new(circumstances: Circumstances, series: Vec<SeriesOutcome>) -> Self {
        Self { format: FORMAT, circumstances, series }
    }

    /// Whether every contender that is built took part in every round and nothing went wrong in a counted
    /// load.
    pub fn is_clean(&self) -> bool {
        let mut variants =
            self.series.iter().flat_map(|series| &series.scenarios).flat_map(|scenario| &scenario.variants);
        variants.all(|variant| {
            variant.outcomes.iter().all(|outcome| {
                outcome.failure().is_none() && outcome.samples.iter().all(|sample| sample.errors.is_empty())
            })
        })
    }

    /// Reads what [`Report::json`] wrote. Err tells what is wrong with it.
    pub fn from_json(text: &str) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            format: u32,
        }
        let head: Head = serde_json::from_str(text)?;
        if head.format != FORMAT {
            let problem = format!("its format is {}, {FORMAT} was expected", head.format);
            return Err(io::Error::other(problem));
        }
        serde_json::from_str(text).map_err(io::Error::other)
    }

    /// All raw samples as JSON. Err when they cannot be written down, which only a defect can cause.
    pub fn json(&self) -> io::Result<String> {
        layout::of(self)
    }

    /// The page; `samples` is the name of the file beside it that holds the raw samples.
    pub fn html(&self, samples: &str) -> String {
        html::of(self, samples)
    }

    /// The tables, as aligned text that is Markdown as well.
    pub fn text(&self) -> String {
        text::of(self)
    }
}

/// One contender beside another, at one point, in one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The first's median over the other's, with its interval.
    pub ratio: Ratio,
    /// What that shows about the first.
    pub verdict: Verdict,
}

/// Compares two contenders over the rounds in which both took part. `None` when there is nothing to divide.
pub fn compare(one: &Outcome, other: &Outcome, metric: Metric, at: Option<f64>) -> Option<Comparison> {
    let pairs: Vec<(f64, f64)> = one
        .at(at)
        .filter_map(|sample| {
            let partner = other.at(at).find(|partner| partner.round == sample.round)?;
            Some((sample.figure(metric)?, partner.figure(metric)?))
        })
        .collect();
    let ratio = ratio_of_medians(&pairs, SEED)?;
    let verdict = match metric.direction() {
        Direction::Neither => Verdict::NoDifferenceShown,
        direction => ratio.verdict(direction == Direction::Lower, pairs.len()),
    };
    Some(Comparison { ratio, verdict })
}

/// The contender that is compared with the others: the first of the list that has samples.
pub fn subject(variant: &VariantOutcome) -> Option<&Outcome> {
    variant.outcomes.iter().find(|outcome| !outcome.samples.is_empty())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::rounds::ScenarioOutcome;
    use crate::sample::{Participation, Sample};
    use crate::scenario::{Series, VariantName};

    /// A contender whose rounds gave these times per request.
    pub fn outcome(contender: &str, cpu_per_request: &[f64]) -> Outcome {
        let sample = |(round, value): (u32, &f64)| {
            let mut sample = Sample { round, ..Sample::default() };
            sample.put(Metric::CPU_PER_REQUEST, *value);
            sample
        };
        Outcome {
            contender: contender.to_owned(),
            title: contender.to_owned(),
            version: Some("1".to_owned()),
            samples: (1..).zip(cpu_per_request).map(sample).collect(),
            ..Outcome::default()
        }
    }

    /// A series of one scenario of one variant without sweep.
    pub fn scenario(outcomes: Vec<Outcome>) -> SeriesOutcome {
        let variant = VariantOutcome {
            variant: VariantName::Fair,
            about: String::new(),
            rounds: 5,
            seconds: 1,
            points: vec![None],
            outcomes,
        };
        let scenario = ScenarioOutcome {
            scenario: "s/one".to_owned(),
            title: "t".to_owned(),
            about: String::new(),
            measures: vec![Metric::CPU_PER_REQUEST],
            sweep: None,
            published: Vec::new(),
            asked: Vec::new(),
            variants: vec![variant],
        };
        SeriesOutcome { series: Series::default(), scenarios: vec![scenario] }
    }

    #[test]
    fn rounds_in_which_one_is_missing_do_not_enter_the_ratio() {
        let one = outcome("a", &[9.0, 0.5]);
        let mut other = outcome("b", &[4.0, 1.0]);
        other.samples.remove(0);
        let found = compare(&one, &other, Metric::CPU_PER_REQUEST, None).unwrap();
        assert_eq!((found.ratio.ratio, found.verdict), (0.5, Verdict::TooFewRounds));
    }

    #[test]
    fn a_report_made_again_from_its_samples_is_the_same() {
        let series = vec![scenario(vec![outcome("weir", &[7.0, 8.1]), outcome("nginx", &[10.56, 11.11])])];
        let report = Report::new(Circumstances::default(), series);
        let again = Report::from_json(&report.json().unwrap()).unwrap();
        assert_eq!(again, report);
        assert_eq!(again.text(), report.text());
        assert!(again.text().contains("10.84 (10.56-11.11)"), "{}", again.text());
    }

    #[test]
    fn a_file_of_another_form_is_refused() {
        let error = Report::from_json("{\"scenarios\": []}").unwrap_err().to_string();
        assert_eq!(error, "its format is 0, 2 was expected");
    }

    #[test]
    fn what_is_not_built_does_not_spoil_a_run_but_a_failure_and_an_error_do() {
        let clean = |change: &dyn Fn(&mut Outcome)| {
            let mut nginx = outcome("nginx", &[1.0]);
            change(&mut nginx);
            Report::new(Circumstances::default(), vec![scenario(vec![nginx])]).is_clean()
        };
        assert!(clean(&|_| {}));
        assert!(clean(&|outcome| outcome.state = Participation::NotBuilt("later".to_owned())));
        assert!(!clean(&|outcome| outcome.state = Participation::Failed("log".to_owned())));
        assert!(!clean(&|outcome| {
            outcome.samples[0].errors.insert("timeout".to_owned(), 1);
        }));
    }

    #[test]
    fn the_own_call_is_kept_without_folders_of_the_machine() {
        let kept = ["--json=/build/a/run.json", "/build/weir", "a/b.json", "--rounds=3", "http1"]
            .map(without_folders);
        assert_eq!(kept, ["--json=run.json", "weir", "a/b.json", "--rounds=3", "http1"]);
    }
}
