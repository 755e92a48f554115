//! What a run found: raw samples with the circumstances they were taken in, and the comparisons drawn from them.
//!
//! [`Report`] is what is kept as JSON; everything shown is computed from it anew, so a report can be made again.

mod text;

use std::fs;
use std::io;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::enclosure;
use crate::metric::{Direction, Metric};
use crate::process::may_set_priority;
use crate::rounds::{SeriesOutcome, VariantOutcome};
use crate::runner::Options;
use crate::sample::Outcome;
use crate::statistics::{Ratio, Verdict, ratio_of_medians};

/// The bootstrap's seed. Fixed, so that a report can be made again from its samples.
const SEED: u64 = 0x5765_6972;
/// The form of the JSON. Raised when older programs would misread it.
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
    /// What new connections get.
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
    /// Takes them down now.
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
        let arguments: Vec<String> = std::env::args().skip(1).collect();
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
            command: options.tools.shown(&[&["weir-lab".to_owned()][..], &arguments].concat()),
        }
    }
}

/// Everything a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    format: u32,
    /// Where and how.
    pub circumstances: Circumstances,
    /// What.
    pub series: Vec<SeriesOutcome>,
}

impl Report {
    /// A report of what was found.
    pub fn new(circumstances: Circumstances, series: Vec<SeriesOutcome>) -> Self {
        Self { format: FORMAT, circumstances, series }
    }

    /// Whether every contender that is built took part in every round and nothing went wrong in a counted load.
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
        serde_json::to_string_pretty(self).map_err(io::Error::other)
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

/// Who is compared with the others: the first contender of the list that has samples.
pub fn subject(variant: &VariantOutcome) -> Option<&Outcome> {
    variant.outcomes.iter().find(|outcome| !outcome.samples.is_empty())
}
