//! The report of a bench: Markdown for people, JSON with every raw sample for everything else.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::bench::{Options, Outcome, Sample, ScenarioOutcome};
use crate::network;
use crate::process::may_set_priority;
use crate::scenario::Measure;
use crate::statistics::{Ratio, median, ratio_of_medians, summary};

/// The bootstrap's seed. Fixed, so that a report can be made again from its samples.
const SEED: u64 = 0x5765_6972;
/// From this share on, the core of load and backend is called full.
const FULL_CORE: f64 = 0.90;
/// From this share of its time spent waiting for its core, a load balancer's figures are called disturbed.
const DISTURBED: f64 = 0.05;

/// The machine and the settings, for the record.
#[derive(Debug, Serialize, Deserialize)]
pub struct Circumstances {
    processor: String,
    cores: usize,
    kernel: String,
    congestion_control: String,
    private_network: bool,
    proxy_core: Option<usize>,
    load_core: Option<usize>,
    nice: i32,
    nice_in_force: bool,
    realtime: bool,
    rounds: u32,
    seconds: u32,
    commit: String,
    unix_time_seconds: u64,
    load_average: String,
}

impl Circumstances {
    /// Takes them down now.
    pub fn now(options: &Options, private_network: bool) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()))
            .unwrap_or_else(|| "unknown".to_owned());
        let commit = Command::new("git")
            .arg("-C")
            .arg(&options.lab)
            .args(["describe", "--always", "--dirty", "--abbrev=12"])
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
            .unwrap_or_default();
        Self {
            processor,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            congestion_control: network::congestion_control(),
            private_network,
            proxy_core: options.proxy.core,
            load_core: options.load.core,
            nice: options.proxy.nice,
            realtime: options.proxy.realtime,
            nice_in_force: may_set_priority(options.proxy.nice),
            rounds: options.rounds,
            seconds: options.seconds,
            commit,
            unix_time_seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            load_average: read("/proc/loadavg").trim().to_owned(),
        }
    }
}

/// Everything a bench found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where and how.
    pub circumstances: Circumstances,
    /// What.
    pub scenarios: Vec<ScenarioOutcome>,
}

impl Report {
    /// Whether every contender took part in every round and nothing went wrong in a counted run.
    pub fn is_clean(&self) -> bool {
        self.scenarios.iter().flat_map(|scenario| &scenario.outcomes).all(|outcome| {
            outcome.failure.is_none() && outcome.samples.iter().all(|sample| sample.load.errors == 0)
        })
    }

    /// Reads what [`Report::json`] wrote. Err tells what is wrong with it.
    pub fn from_json(text: &str) -> io::Result<Self> {
        serde_json::from_str(text).map_err(io::Error::other)
    }

    /// All raw samples as JSON. Err when they cannot be written down, which only a defect can cause.
    pub fn json(&self) -> io::Result<String> {
        serde_json::to_string_pretty(self).map_err(io::Error::other)
    }

    /// The tables.
    pub fn markdown(&self) -> String {
        let it = &self.circumstances;
        let core =
            |core: Option<usize>| core.map_or_else(|| "any core".to_owned(), |core| format!("core {core}"));
        let mut text = format!(
            "{} cores of {}, Linux {}, {} congestion control, {} network. Load balancer on {}, load and backend on {}, \
             nice {}{}. {} interleaved rounds of {} s; medians, in brackets the least and the greatest. Load \
             average at the start {}. Commit {}.\n",
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
            it.rounds,
            it.seconds,
            it.load_average.split(' ').take(3).collect::<Vec<_>>().join(", "),
            it.commit,
        );
        for scenario in &self.scenarios {
            let _ = write!(text, "\n## {}: {}\n\n", scenario.scenario, scenario.title);
            text.push_str(&table(scenario));
            text.push_str(&ratios(scenario));
            text.push_str(&remarks(scenario));
        }
        text
    }
}

fn table(scenario: &ScenarioOutcome) -> String {
    let heads: &[&str] = match scenario.measure {
        Measure::CpuPerRequest => &[
            "contender",
            "CPU us/request",
            "requests/s",
            "p50 us",
            "p99 us",
            "errors",
            "RSS MiB",
            "own core",
            "load core",
        ],
        Measure::CpuPerGigabyte => &[
            "contender",
            "CPU s/GB",
            "GB/s",
            "GB per CPU s",
            "p50 us",
            "p99 us",
            "errors",
            "RSS MiB",
            "own core",
            "load core",
        ],
        Measure::Latency => &[
            "contender",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "CPU us/request",
            "requests/s",
            "errors",
            "RSS MiB",
            "own core",
            "load core",
        ],
        Measure::MemoryPerConnection => {
            &["contender", "KiB/connection", "errors", "RSS MiB", "CPU us/connection", "connections/s"]
        }
    };
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for outcome in scenario.outcomes.iter().filter(|outcome| !outcome.samples.is_empty()) {
        let _ = writeln!(text, "| {} |", row(outcome, scenario.measure).join(" | "));
    }
    text
}

fn row(outcome: &Outcome, measure: Measure) -> Vec<String> {
    let samples = &outcome.samples;
    let of =
        |pick: &dyn Fn(&Sample) -> Option<f64>| -> Vec<f64> { samples.iter().filter_map(pick).collect() };
    let middle = |pick: &dyn Fn(&Sample) -> Option<f64>, decimals: usize| -> String {
        median(&of(pick)).map_or_else(|| "-".to_owned(), |value| grouped(value, decimals))
    };
    let spread = |pick: &dyn Fn(&Sample) -> Option<f64>, decimals: usize| -> String {
        summary(&of(pick)).map_or_else(
            || "-".to_owned(),
            |found| {
                let [low, high] = [found.min, found.max].map(|value| grouped(value, decimals));
                format!("{} ({low}-{high})", grouped(found.median, decimals))
            },
        )
    };
    let name = format!("{} {}", outcome.contender, outcome.version.as_deref().unwrap_or_default());
    let errors: u64 = samples.iter().map(|sample| sample.load.errors).sum();
    let resident = middle(&|sample| Some(sample.resident_bytes as f64 / 1_048_576.0), 1);
    let percent = |share: Option<f64>| share.map(|share| share * 100.0);
    let own_core =
        format!("{} %", middle(&|sample| percent(Some(sample.cpu_seconds / sample.load.seconds)), 0));
    let load_core =
        format!("{} %", middle(&|sample| percent(Some(sample.load_cpu_seconds / sample.load.seconds)), 0));
    let p50 = middle(&|sample| sample.load.p50_us, 0);
    let p99 = middle(&|sample| sample.load.p99_us, 0);
    let rate = |decimals| spread(&|sample| Some(sample.rate(measure)), decimals);
    match measure {
        Measure::CpuPerRequest => {
            let figure = spread(&|sample| sample.figure(measure), 2);
            vec![name, figure, rate(0), p50, p99, errors.to_string(), resident, own_core, load_core]
        }
        Measure::CpuPerGigabyte => {
            let figure = spread(&|sample| sample.figure(measure), 3);
            let inverse = middle(&|sample| sample.figure(measure).map(f64::recip), 2);
            vec![name, figure, rate(2), inverse, p50, p99, errors.to_string(), resident, own_core, load_core]
        }
        Measure::Latency => {
            let [p50, p99, p999] = [
                spread(&|sample| sample.load.p50_us, 0),
                spread(&|sample| sample.load.p99_us, 0),
                spread(&|sample| sample.load.p999_us, 0),
            ];
            let processor = middle(&|sample| sample.figure(Measure::CpuPerRequest), 2);
            let done = middle(&|sample| Some(sample.rate(measure)), 0);
            vec![name, p50, p99, p999, processor, done, errors.to_string(), resident, own_core, load_core]
        }
        Measure::MemoryPerConnection => {
            let figure = spread(&|sample| sample.figure(measure), 2);
            let processor = middle(&|sample| sample.figure(Measure::CpuPerRequest), 1);
            vec![name, figure, errors.to_string(), resident, processor, rate(0)]
        }
    }
}

/// The first contender that ran, against each other one.
fn ratios(scenario: &ScenarioOutcome) -> String {
    let ran: Vec<&Outcome> = scenario.outcomes.iter().filter(|outcome| !outcome.samples.is_empty()).collect();
    let Some((subject, others)) = ran.split_first() else { return "\nNobody ran.\n".to_owned() };
    let mut text = String::new();
    for other in others {
        let figure = paired(subject, other, &|sample| sample.figure(scenario.measure));
        let rate = paired(subject, other, &|sample| Some(sample.rate(scenario.measure)));
        let shown = |ratio: Option<Ratio>| {
            ratio.map_or_else(
                || "unknown".to_owned(),
                |found| format!("{:.3} (95 %: {:.3} to {:.3})", found.ratio, found.low, found.high),
            )
        };
        let what = match scenario.measure {
            Measure::CpuPerRequest => "CPU per request",
            Measure::CpuPerGigabyte => "CPU per GB",
            Measure::Latency => "p99",
            Measure::MemoryPerConnection => "memory per connection",
        };
        let _ = write!(text, "- {} / {}: {what} {}", subject.contender, other.contender, shown(figure));
        if matches!(scenario.measure, Measure::CpuPerRequest | Measure::CpuPerGigabyte) {
            let _ = write!(text, ", rate {}", shown(rate));
        }
        text.push('\n');
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// The ratio over the rounds in which both took part.
fn paired(one: &Outcome, other: &Outcome, pick: &dyn Fn(&Sample) -> Option<f64>) -> Option<Ratio> {
    let pairs: Vec<(f64, f64)> = one
        .samples
        .iter()
        .filter_map(|sample| {
            let partner = other.samples.iter().find(|partner| partner.round == sample.round)?;
            Some((pick(sample)?, pick(partner)?))
        })
        .collect();
    ratio_of_medians(&pairs, SEED)
}

/// What a reader must know before trusting the table.
fn remarks(scenario: &ScenarioOutcome) -> String {
    let mut text = String::new();
    let middle = |outcome: &Outcome, pick: &dyn Fn(&Sample) -> Option<f64>| {
        median(&outcome.samples.iter().filter_map(pick).collect::<Vec<f64>>())
    };
    let named = |picked: Vec<&Outcome>| -> Option<String> {
        let names: Vec<&str> = picked.iter().map(|outcome| outcome.contender.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let full = |outcome: &&Outcome| {
        middle(outcome, &|sample| Some(sample.load_cpu_seconds / sample.load.seconds))
            .is_some_and(|busy| busy >= FULL_CORE)
    };
    let outcomes = || scenario.outcomes.iter();
    if scenario.measure != Measure::MemoryPerConnection
        && let Some(names) = named(outcomes().filter(full).collect())
    {
        let _ = writeln!(
            text,
            "- Load and backend filled their core with {names}: its rate and latency are at least partly theirs, \
             only its CPU figure is its own."
        );
    }
    let disturbed = |outcome: &&Outcome| {
        middle(outcome, &|sample| Some(sample.cpu_wait_seconds / sample.load.seconds))
            .is_some_and(|share| share >= DISTURBED)
    };
    if let Some(names) = named(outcomes().filter(disturbed).collect()) {
        let _ = writeln!(
            text,
            "- Other work on the machine took {names} off its core for more than 5 % of the time."
        );
    }
    for outcome in outcomes() {
        if let Some(failure) = &outcome.failure {
            let _ = writeln!(text, "- **{} did not take part**: {}", outcome.contender, failure.trim_end());
        }
        let errors = outcome.samples.iter().filter(|sample| sample.load.errors > 0);
        if let Some(problem) = errors.filter_map(|sample| sample.load.problem.as_deref()).next() {
            let _ =
                writeln!(text, "- **{} had errors, its figures do not count**: {problem}", outcome.contender);
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// `12345.678` with two decimals as `12 345.68`.
fn grouped(value: f64, decimals: usize) -> String {
    let plain = format!("{value:.decimals$}");
    let (whole, fraction) =
        plain.split_once('.').map_or((plain.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut text = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digits.len() > 4 {
            text.push(' ');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::LoadResult;

    fn sample(round: u32, cpu_seconds: f64, requests: u64) -> Sample {
        Sample {
            round,
            cpu_seconds,
            cpu_wait_seconds: 0.0,
            user_share: None,
            load: LoadResult { requests, bytes: 2_000_000_000, seconds: 2.0, ..LoadResult::default() },
            resident_bytes: 8 << 20,
            resident_growth_bytes: 1024 * 2 * requests as i64,
            load_cpu_seconds: 1.0,
            proxy_core_busy: Some(1.0),
            load_core_busy: Some(0.5),
        }
    }

    fn outcome(contender: &str, samples: Vec<Sample>) -> Outcome {
        Outcome { contender: contender.to_owned(), version: Some("1".to_owned()), samples, failure: None }
    }

    fn scenario(outcomes: Vec<Outcome>) -> ScenarioOutcome {
        let measure = Measure::CpuPerRequest;
        ScenarioOutcome { scenario: "s".to_owned(), title: "t".to_owned(), measure, outcomes }
    }

    #[test]
    fn figures_are_the_processor_time_over_the_work() {
        let sample = sample(1, 1.0, 100_000);
        assert_eq!(sample.figure(Measure::CpuPerRequest), Some(10.0));
        assert_eq!(sample.figure(Measure::CpuPerGigabyte), Some(0.5));
        assert_eq!(sample.figure(Measure::MemoryPerConnection), Some(2.0));
        assert_eq!(sample.rate(Measure::CpuPerRequest), 50_000.0);
        assert_eq!(sample.rate(Measure::CpuPerGigabyte), 1.0);
    }

    #[test]
    fn the_first_that_ran_is_compared_with_the_others() {
        let one = outcome("weir/http", vec![sample(1, 0.8, 100_000), sample(2, 0.8, 100_000)]);
        let other = outcome("nginx/http", vec![sample(1, 1.0, 100_000), sample(2, 1.0, 100_000)]);
        let text = ratios(&scenario(vec![outcome("absent/http", vec![]), one, other]));
        assert_eq!(
            text,
            "\n- weir/http / nginx/http: CPU per request 0.800 (95 %: 0.800 to 0.800), \
             rate 1.000 (95 %: 1.000 to 1.000)\n"
        );
    }

    #[test]
    fn rounds_in_which_one_is_missing_do_not_enter_the_ratio() {
        let one = outcome("a/b", vec![sample(1, 9.0, 100_000), sample(2, 0.5, 100_000)]);
        let other = outcome("c/d", vec![sample(2, 1.0, 100_000)]);
        let ratio = paired(&one, &other, &|sample| sample.figure(Measure::CpuPerRequest)).unwrap();
        assert_eq!(ratio.ratio, 0.5);
    }

    #[test]
    fn a_full_load_core_a_failure_and_errors_are_told() {
        let mut filled = sample(1, 1.0, 100_000);
        filled.load_cpu_seconds = 1.9;
        let mut wrong = sample(1, 1.0, 100_000);
        wrong.load.errors = 2;
        wrong.load.problem = Some("read 2".to_owned());
        let mut absent = outcome("weir/http", vec![]);
        absent.failure = Some("no such program".to_owned());
        let text = remarks(&scenario(vec![
            absent,
            outcome("nginx/http", vec![filled]),
            outcome("x/y", vec![wrong]),
        ]));
        assert!(text.contains("filled their core with nginx/http:"), "{text}");
        assert!(text.contains("**weir/http did not take part**: no such program"), "{text}");
        assert!(text.contains("**x/y had errors, its figures do not count**: read 2"), "{text}");
    }

    #[test]
    fn a_report_made_again_from_its_samples_is_the_same() {
        let options = Options {
            tools: crate::contender::Tools {
                lab: String::new(),
                peers: String::new(),
                peers_root: String::new(),
                weir: String::new(),
            },
            lab: std::path::PathBuf::from("/"),
            rounds: 2,
            seconds: 2,
            only: Vec::new(),
            proxy: crate::process::Placement { core: Some(0), nice: 0, realtime: false },
            load: crate::process::Placement { core: Some(1), nice: 0, realtime: false },
        };
        let one = outcome("weir/http", vec![sample(1, 0.7, 100_003), sample(2, 0.81, 100_000)]);
        let other = outcome("nginx/http", vec![sample(1, 1.1, 99_000), sample(2, 1.0, 100_000)]);
        let circumstances = Circumstances::now(&options, false);
        let report = Report { circumstances, scenarios: vec![scenario(vec![one, other])] };
        let again = Report::from_json(&report.json().unwrap()).unwrap();
        assert_eq!(again.markdown(), report.markdown());
        assert!(again.markdown().contains("| nginx/http 1 | 10.56 (10.00-11.11) | "), "{}", again.markdown());
    }

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!(grouped(52_981.39, 0), "52 981");
        assert_eq!(grouped(1234.5, 1), "1234.5");
        assert_eq!(grouped(-1_234_567.0, 2), "-1 234 567.00");
        assert_eq!(grouped(0.126, 2), "0.13");
    }
}
