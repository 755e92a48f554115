//! The measurement itself: contenders in turn, round after round, so that a slow minute of the machine hits all alike.
//!
//! One turn of one contender is a *cell*: a fresh backend and a fresh load balancer on fresh ports, a second of load
//! that does not count, then the load that does, with the kernel's counters read on both sides of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::backend::BackendKind;
use crate::contender::{Contender, Ports, Tools, free_port};
use crate::load::{Load, LoadResult};
use crate::measure::{self, CoreTime};
use crate::process::{Output, Placement, Running};
use crate::scenario::{Measure, Scenario};

/// How a bench is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Programs to use.
    pub tools: Tools,
    /// The lab's folder.
    pub lab: PathBuf,
    /// Rounds; each contender has one turn in each.
    pub rounds: u32,
    /// Length of the load that counts, in each turn (seconds).
    pub seconds: u32,
    /// Only contenders whose folder is named here; empty for all.
    pub only: Vec<String>,
    /// Where the load balancer runs.
    pub proxy: Placement,
    /// Where load and backend run.
    pub load: Placement,
}

/// What one cell measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    /// Round, from 1.
    pub round: u32,
    /// Processor time of all processes and threads of the load balancer (seconds).
    pub cpu_seconds: f64,
    /// Time its threads waited for a core that another process had (seconds).
    pub cpu_wait_seconds: f64,
    /// Share of `cpu_seconds` in user mode; coarse, `None` when too short to tell.
    pub user_share: Option<f64>,
    /// What the load reported.
    pub load: LoadResult,
    /// Resident memory of the load balancer after the load (bytes).
    pub resident_bytes: u64,
    /// How much it grew during the load (bytes).
    pub resident_growth_bytes: i64,
    /// Processor time of load and backend (seconds). When it nears `load.seconds`, their core was the limit.
    pub load_cpu_seconds: f64,
    /// Share of the time the load balancer's core was busy, with anyone's work.
    pub proxy_core_busy: Option<f64>,
    /// The same for the core of load and backend.
    pub load_core_busy: Option<f64>,
}

impl Sample {
    /// The figure `measure` is about; `None` when nothing was done that it could be divided by.
    pub fn figure(&self, measure: Measure) -> Option<f64> {
        let (used, done) = match measure {
            Measure::Latency => return self.load.p99_us,
            Measure::CpuPerRequest => (self.cpu_seconds * 1e6, self.load.requests as f64),
            Measure::CpuPerGigabyte => (self.cpu_seconds, self.load.bytes as f64 / 1e9),
            Measure::MemoryPerConnection => {
                (self.resident_growth_bytes as f64 / 1024.0, self.load.requests as f64)
            }
        };
        (done > 0.0).then(|| used / done)
    }

    /// Work per second of the clock: requests, or 10^9 bytes.
    pub fn rate(&self, measure: Measure) -> f64 {
        let done = match measure {
            Measure::CpuPerRequest | Measure::Latency | Measure::MemoryPerConnection => {
                self.load.requests as f64
            }
            Measure::CpuPerGigabyte => self.load.bytes as f64 / 1e9,
        };
        done / self.load.seconds
    }
}

/// What became of one contender in one scenario.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Folder/template.
    pub contender: String,
    /// What it says its version is.
    pub version: Option<String>,
    /// One per round it took part in.
    pub samples: Vec<Sample>,
    /// Why it took no part, or no part any more.
    pub failure: Option<String>,
}

/// What came of one scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScenarioOutcome {
    /// The scenario's name.
    pub scenario: String,
    /// Its title.
    pub title: String,
    /// The figure it is about.
    pub measure: Measure,
    /// In the scenario's order.
    pub outcomes: Vec<Outcome>,
}

/// A directory for configs and logs, removed when dropped.
struct Workplace(PathBuf);

impl Workplace {
    const PREFIX: &str = "weir-lab-";

    /// Makes one, and removes those whose lab was killed before it could.
    fn make() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        for entry in fs::read_dir(&parent)?.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(Self::PREFIX)?.parse::<u32>().ok());
            if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = parent.join(format!("{}{}", Self::PREFIX, std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until no other bench runs on this machine: two would measure each other. The turn ends when the file is dropped.
pub fn wait_for_turn() -> io::Result<fs::File> {
    let path = std::env::temp_dir().join("weir-lab.lock");
    // A file that another user made can be opened for reading only, which is enough to wait on it.
    let file = match fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => fs::File::open(&path)?,
        opened => opened?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            eprintln!("waiting for another bench on this machine to end (--together does not wait)");
            file.lock()?;
        }
        Err(fs::TryLockError::Error(error)) => return Err(error),
    }
    Ok(file)
}

/// Runs `scenarios` one after the other; tells of its progress on standard error.
///
/// A contender that does not start is left out of the rest of its scenario and its outcome says why. Err only when the
/// lab itself cannot go on.
pub fn run(scenarios: &[Scenario], options: &Options) -> io::Result<Vec<ScenarioOutcome>> {
    let workplace = Workplace::make()?;
    let mut versions = BTreeMap::new();
    let mut plans = Vec::new();
    for scenario in scenarios {
        plans.push((scenario, line_up(scenario, options, &mut versions)));
    }
    let cells: usize = plans.iter().map(|(_, entrants)| playing(entrants) * options.rounds as usize).sum();
    let mut progress = Progress { begin: Instant::now(), cells, done: 0 };
    let mut outcomes = Vec::new();
    for (scenario, mut entrants) in plans {
        eprintln!("{}: {}", scenario.name, scenario.title);
        for round in 1..=options.rounds {
            for entrant in &mut entrants {
                let Some(contender) =
                    entrant.contender.as_ref().filter(|_| entrant.outcome.failure.is_none())
                else {
                    continue;
                };
                match cell(scenario, contender, round, options, &workplace) {
                    Ok(sample) => {
                        progress.tell(scenario, round, options.rounds, &contender.name, &sample);
                        entrant.outcome.samples.push(sample);
                    }
                    Err(error) => {
                        eprintln!("  {}: left out: {error}", contender.name);
                        progress.cells -= (options.rounds - round) as usize;
                        entrant.outcome.failure = Some(error.to_string());
                    }
                }
                progress.done += 1;
            }
        }
        outcomes.push(ScenarioOutcome {
            scenario: scenario.name.clone(),
            title: scenario.title.clone(),
            measure: scenario.measure,
            outcomes: entrants.into_iter().map(|entrant| entrant.outcome).collect(),
        });
    }
    Ok(outcomes)
}

struct Entrant {
    contender: Option<Contender>,
    outcome: Outcome,
}

fn playing(entrants: &[Entrant]) -> usize {
    entrants.iter().filter(|entrant| entrant.outcome.failure.is_none()).count()
}

/// Reads a scenario's contenders and asks each for its version, which also shows early who cannot run at all.
fn line_up(
    scenario: &Scenario,
    options: &Options,
    versions: &mut BTreeMap<String, Result<String, String>>,
) -> Vec<Entrant> {
    let folder_of = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
    let wanted = |name: &&String| options.only.is_empty() || options.only.contains(&folder_of(name));
    let mut entrants = Vec::new();
    for name in scenario.contenders.iter().filter(wanted) {
        let mut outcome = Outcome { contender: name.clone(), ..Outcome::default() };
        let contender = Contender::read(&options.lab, name);
        match &contender {
            Err(error) => outcome.failure = Some(error.to_string()),
            Ok(contender) => {
                let version = versions.entry(folder_of(name)).or_insert_with(|| {
                    let version = contender.version(&options.tools).map_err(|error| error.to_string());
                    match &version {
                        Ok(version) => eprintln!("{}: version {version}", folder_of(name)),
                        Err(error) => eprintln!("{}: left out: {error}", folder_of(name)),
                    }
                    version
                });
                match version {
                    Ok(version) => outcome.version = Some(version.clone()),
                    Err(error) => outcome.failure = Some(error.clone()),
                }
            }
        }
        entrants.push(Entrant { contender: contender.ok(), outcome });
    }
    entrants
}

/// One contender's turn.
fn cell(
    scenario: &Scenario,
    contender: &Contender,
    round: u32,
    options: &Options,
    workplace: &Workplace,
) -> io::Result<Sample> {
    let directory = workplace.directory("cell")?;
    let (backend_port, backend) = start_backend(scenario.backend, options, &directory)?;
    let ports = Ports { listen: free_port()?, backend: backend_port, admin: free_port()? };
    let home = workplace.directory("cell/contender")?;
    let proxy = contender.start(&options.tools, ports, scenario.backend, options.proxy, &home)?;
    let put = |load: &Load, seconds: u32| put_load(load, seconds, ports.listen, options, &directory);

    // The warm-up opens pools, faults pages in and lets caches fill; idle connections are counted from the first.
    let warm_up = put(&scenario.load.with_at_most(64), 1)?;
    drop(warm_up);
    let processes = measure::process_tree(proxy.id())?;
    let resident_before = measure::resident_bytes(&processes);
    let cores_before = cores(options);
    let ended_before = measure::ended_children_time()?;
    let backend_before = measure::cpu_time(&[backend.id()]);
    let cpu_before = measure::cpu_time(&processes);
    let (load, still_open) = put(&scenario.load, options.seconds)?;
    let cpu = measure::cpu_time(&processes).since(&cpu_before);
    let backend_cpu = measure::cpu_time(&[backend.id()]).since(&backend_before);
    let load_cpu = match &still_open {
        Some(running) => measure::cpu_time(&[running.id()]).running,
        None => measure::ended_children_time()?.saturating_sub(ended_before),
    };
    let cores_after = cores(options);
    if still_open.is_some() {
        // What is freed only after the last request, such as idle buffers, is given the time to go.
        thread::sleep(Duration::from_secs(1));
    }
    let resident_bytes = measure::resident_bytes(&processes);
    if let Some(idle) = still_open {
        idle.finish(Duration::from_secs(10))?;
    }
    drop(proxy);
    drop(backend);
    let busy = |core: usize| cores_after[core].as_ref()?.busy_share_since(cores_before[core].as_ref()?);
    Ok(Sample {
        round,
        cpu_seconds: cpu.running.as_secs_f64(),
        cpu_wait_seconds: cpu.waiting.as_secs_f64(),
        user_share: cpu.user_share(),
        load,
        resident_bytes,
        resident_growth_bytes: resident_bytes as i64 - resident_before as i64,
        load_cpu_seconds: (backend_cpu.running + load_cpu).as_secs_f64(),
        proxy_core_busy: busy(0),
        load_core_busy: busy(1),
    })
}

/// The times of the proxy's and the load's core; `None` for one that is not pinned.
fn cores(options: &Options) -> [Option<CoreTime>; 2] {
    [options.proxy, options.load].map(|placement| measure::core_time(placement.core?).ok())
}

fn start_backend(kind: BackendKind, options: &Options, directory: &Path) -> io::Result<(u16, Running)> {
    let name = match kind {
        BackendKind::Http => "http",
        BackendKind::Bulk => "bulk",
    };
    let command = [options.tools.lab.as_str(), "backend", "--kind", name, "--port", "0"].map(str::to_owned);
    let log = directory.join("backend.log");
    let mut backend = Running::start("backend", options.load, &command, &log, Output::Piped)?;
    let line = first_line(&mut backend)?;
    let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
    match port {
        Some(port) => Ok((port, backend)),
        None => Err(io::Error::other(format!("the backend said `{line}` where its port was expected"))),
    }
}

fn first_line(running: &mut Running) -> io::Result<String> {
    let mut line = String::new();
    if let Some(output) = running.take_output() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.is_empty() {
        return Err(io::Error::other(format!("it said nothing; its log ends:\n{}", running.log_tail())));
    }
    Ok(line)
}

/// Puts `load` on the load balancer and waits for its result. A load of idle connections is handed back still running.
fn put_load(
    load: &Load,
    seconds: u32,
    port: u16,
    options: &Options,
    directory: &Path,
) -> io::Result<(LoadResult, Option<Running>)> {
    let command = load.command(&options.tools, port, seconds);
    let log = directory.join("load.log");
    let mut running = Running::start("load", options.load, &command, &log, Output::Piped)?;
    if matches!(load, Load::Idle { .. }) {
        let result = load.result(&first_line(&mut running)?)?;
        return Ok((result, Some(running)));
    }
    let printed = running.finish(Duration::from_secs(u64::from(seconds) + 20))?;
    Ok((load.result(&printed)?, None))
}

/// How far the bench has come.
struct Progress {
    begin: Instant,
    cells: usize,
    done: usize,
}

impl Progress {
    fn tell(&self, scenario: &Scenario, round: u32, rounds: u32, name: &str, sample: &Sample) {
        let done = self.done + 1;
        let left = self.begin.elapsed().mul_f64((self.cells - done.min(self.cells)) as f64 / done as f64);
        let figure = sample.figure(scenario.measure).unwrap_or(f64::NAN);
        let (unit, rate_unit) = match scenario.measure {
            Measure::CpuPerRequest => ("us/request", "/s"),
            Measure::CpuPerGigabyte => ("CPU s/GB", " GB/s"),
            Measure::Latency => ("us at p99", "/s"),
            Measure::MemoryPerConnection => ("KiB/connection", "/s"),
        };
        let errors =
            if sample.load.errors > 0 { format!("  {} ERRORS", sample.load.errors) } else { String::new() };
        eprintln!(
            "  [{done}/{}, {} min {:02} s left] round {round}/{rounds} {name:<18} {figure:8.3} {unit} {:10.2}{rate_unit}{errors}",
            self.cells,
            left.as_secs() / 60,
            left.as_secs() % 60,
            sample.rate(scenario.measure),
        );
    }
}
