//! Measures in front of a real InnoDB Cluster: sysbench through one contender after the other, and failover
//! steps that all contenders go through together.
//!
//! Nothing is pinned here. Most machines have at least two cores; three database members and their load on
//! one of them would be the limit for every load balancer alike. If all share both, a load balancer that uses
//! less leaves more to the database.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use super::{Cell, Options, Runner, Turn};
use crate::cluster::clients::{Route, Target};
use crate::cluster::group::Departure;
use crate::cluster::member::connect;
use crate::cluster::receipt::{self, Receipt};
use crate::cluster::steps::{self, Experience, Step, Times, Victim};
use crate::cluster::{self, ACCOUNT, GROUP, PASSWORD, Standing};
use crate::contender::{Contender, Seat, free_port};
use crate::load::{Load, LoadResult, sysbench};
use crate::meter::Meter;
use crate::metric::Metric;
use crate::process::{Output, Placement, Running};
use crate::sample::Sample;
use crate::scenario::{Setup, VariantName};
use crate::workplace::Workplace;

/// How often sysbench is started for one turn if connections break off while they are opened: over TLS,
/// Router does that to some of many that libmariadb opens at once.
const TRIES: u32 = 12;
/// sysbench's error message in that case.
const NOT_CONNECTED: &str = "unable to connect";

/// The runner of [`crate::topology::Topology::Cluster`].
pub struct Cluster {
    options: Options,
    standing: Rc<RefCell<Standing>>,
    entrants: Vec<Contender>,
    workers: usize,
    /// How many failover steps there were.
    steps: u64,
    /// Turns of the last step that have not been handed out yet, by contender.
    turns: BTreeMap<String, Result<Turn, String>>,
}

/// A contender at work.
struct Seated {
    name: String,
    is_direct: bool,
    /// Path on its admin interface that has its receipts.
    receipts: Option<String>,
    running: Running,
    seat: Seat,
    read: SocketAddr,
    command: Vec<String>,
}

impl Cluster {
    /// Uses the cluster of this run, or starts it. Err if a program or memory for it is missing.
    pub fn new(setup: &Setup, options: &Options, workplace: &Workplace) -> io::Result<Self> {
        let unpinned = |placement: Placement| Placement { core: None, ..placement };
        let options =
            Options { proxy: unpinned(options.proxy), load: unpinned(options.load), ..options.clone() };
        let standing = cluster::standing(&options.tools, options.load, workplace)?;
        // A contender that can't be read fails in its own turn.
        let entrants = setup
            .entrants
            .iter()
            .filter_map(|entrant| Contender::read(&options.lab, &entrant.template).ok())
            .collect();
        let workers = match setup.variant {
            VariantName::Published => thread::available_parallelism().map_or(1, usize::from),
            VariantName::Fair => 1,
        };
        Ok(Self { options, standing, entrants, workers, steps: 0, turns: BTreeMap::new() })
    }

    fn seat(&self, contender: &Contender, directory: &Path) -> io::Result<Seated> {
        let standing = self.standing.borrow();
        let members: Vec<SocketAddr> =
            standing.group.members.iter().map(|member| on_loopback(member.port)).collect();
        let mut seat = Seat::on_loopback(members)?;
        let read = on_loopback(free_port()?);
        let password_file = directory.join("password");
        // The file is refused unless only its owner may read it.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&password_file)?;
        (&file).write_all(PASSWORD.as_bytes())?;
        let certificates = standing.group.members[0].data();
        seat.more = [
            ("read_port", read.port().to_string()),
            ("account", ACCOUNT.to_owned()),
            ("password", PASSWORD.to_owned()),
            ("password_file", password_file.display().to_string()),
            ("group_name", GROUP.to_owned()),
            ("workers", self.workers.to_string()),
            ("certificate", certificates.join("server-cert.pem").display().to_string()),
            ("certificate_key", certificates.join("server-key.pem").display().to_string()),
            ("certificate_authority", certificates.join("ca.pem").display().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        for (index, agent) in standing.agents.iter().enumerate() {
            seat.more.push((format!("agent_port_{}", index + 1), agent.address.port().to_string()));
        }
        let serves = || -> io::Result<()> {
            if !contender.is_direct() {
                for port in [seat.listen.port(), read.port()] {
                    connect(port, Duration::from_secs(1))
                        .map_err(|error| io::Error::other(error.to_string()))?;
                }
            }
            Ok(())
        };
        let running = contender.start(&self.options.tools, &seat, self.options.proxy, directory, &serves)?;
        let command = contender.command_line(&self.options.tools, &seat, directory)?;
        Ok(Seated {
            name: contender.name.clone(),
            is_direct: contender.is_direct(),
            receipts: contender.receipts().map(str::to_owned),
            running,
            seat,
            read,
            command,
        })
    }

    /// One contender under sysbench.
    fn load(&self, cell: &Cell<'_>, work: &sysbench::Work) -> io::Result<Turn> {
        self.standing.borrow().group.restore()?;
        self.standing.borrow().group.wait_until_equal()?;
        let home = cell.directory.join("contender");
        fs::create_dir(&home)?;
        let seated = self.seat(cell.contender, &home)?;
        let target = if seated.is_direct { seated.seat.backends[0] } else { seated.seat.listen };
        let command = |seconds: u32| -> io::Result<Vec<String>> {
            let command = sysbench::command(&self.options.tools, target, seconds, work);
            Ok(if work.tls { [self.beside_certificates(cell.directory)?, command].concat() } else { command })
        };
        let put = |seconds: u32| {
            put_load(&cell.point.load, &command(seconds)?, seconds, self.options.load, cell.directory)
        };
        let (mut tries, mut complaint) = (0, None);
        let mut may_try_again = |error: &io::Error| {
            tries += 1;
            complaint = Some(error.to_string());
            tries < TRIES && error.to_string().contains(NOT_CONNECTED)
        };
        while cell.length.warm_up_seconds > 0
            && let Err(error) = put(cell.length.warm_up_seconds)
        {
            if !may_try_again(&error) {
                return Err(error);
            }
        }
        let members: Vec<u32> =
            self.standing.borrow().group.members.iter().filter_map(|member| member.process_id()).collect();
        let (meter, statements, mut result) = loop {
            let statements = self.statements()?;
            let meter = Meter::begin(&[seated.running.id()], &members)?;
            match put(cell.length.seconds) {
                Ok(result) => break (meter, statements, result),
                Err(error) if may_try_again(&error) => {}
                Err(error) => return Err(error),
            }
        };
        let mut sample = Sample::default();
        meter.end(&mut sample, &result, self.options.load, None)?;
        let statements = self.statements()?.saturating_sub(statements);
        sample.put(Metric::SERVER_STATEMENTS, statements as f64 / result.requests as f64);
        // Ports differ from turn to turn.
        sample.remarks.extend(complaint.map(|complaint| {
            let said = complaint.rsplit("FATAL: ").next().unwrap_or_default().to_owned();
            format!("Not all connections came about, and sysbench was started again: {said}.")
        }));
        // All share the cores here, so waiting for a core is part of the figures and not interference.
        sample.figures.remove(&Metric::WAIT_SHARE);
        if seated.is_direct {
            sample.forget_the_contender();
        }
        sample.figures.append(&mut result.figures);
        sample.errors = result.errors;
        sample.problem = result.problem;
        Ok(Turn { sample, commands: vec![seated.command, command(cell.length.seconds)?] })
    }

    /// The beginning of a command that runs in a directory with the certificates that sysbench needs; creates
    /// it in `directory`.
    fn beside_certificates(&self, directory: &Path) -> io::Result<Vec<String>> {
        let place = directory.join("certificates");
        if !place.exists() {
            fs::create_dir(&place)?;
            let data = self.standing.borrow().group.members[0].data();
            for (name, original) in sysbench::TLS_FILES {
                std::os::unix::fs::symlink(data.join(original), place.join(name))?;
            }
        }
        Ok(vec!["env".to_owned(), format!("--chdir={}", place.display())])
    }

    /// Number of statements that clients have sent to the members since they started. Preparing a statement
    /// counts; closing one and pings do not, nor does what a member applies of another's transactions.
    fn statements(&self) -> io::Result<u64> {
        const ASKED: &str = "SELECT CAST(SUM(VARIABLE_VALUE) AS UNSIGNED) \
            FROM performance_schema.global_status WHERE VARIABLE_NAME IN ('Questions', 'Com_stmt_prepare')";
        let standing = self.standing.borrow();
        standing.group.members.iter().map(|member| member.value::<u64>(ASKED)).sum()
    }

    /// Takes all contenders through one failover step; their turns are handed out when they are asked for.
    fn step(&mut self, victim: Victim, departure: Departure, directory: &Path) -> io::Result<()> {
        // All contenders see member 1 as the primary when they start.
        self.standing.borrow().group.restore()?;
        self.turns.clear();
        self.steps += 1;
        let step = Step { victim, departure, delay: delay(self.options.seed, self.steps) };
        let mut seated = Vec::new();
        for contender in &self.entrants {
            let home = directory.join(contender.name.replace('/', "-"));
            fs::create_dir(&home)?;
            match self.seat(contender, &home) {
                Ok(one) => seated.push(one),
                Err(error) => {
                    self.turns.insert(contender.name.clone(), Err(error.to_string()));
                }
            }
        }
        self.entrants.retain(|contender| !self.turns.contains_key(&contender.name));
        let targets: Vec<Target> = seated.iter().map(|one| target(one, victim)).collect();
        let done = steps::run(&mut self.standing.borrow_mut().group, &step, &targets);
        match done {
            Ok((times, experiences)) => {
                for (one, experience) in seated.into_iter().zip(experiences) {
                    let mut sample = sample_of(&experience, &times, victim);
                    if victim == Victim::Primary {
                        match one.receipt(victim) {
                            Ok(receipt) => put_receipt(&mut sample, receipt.as_ref(), &times),
                            Err(error) => sample.remarks.push(format!("Its receipts: {error}.")),
                        }
                    }
                    self.turns.insert(one.name, Ok(Turn { sample, commands: vec![one.command] }));
                }
            }
            Err(error) => {
                // The cluster can't be used any more; the next variant gets a new one.
                cluster::let_go();
                for one in seated {
                    self.turns.insert(one.name, Err(format!("the cluster did not recover: {error}")));
                }
            }
        }
        Ok(())
    }
}

impl Seated {
    /// What the contender itself reports about the step; `None` if it reports no failovers, or none from this
    /// member.
    fn receipt(&self, victim: Victim) -> io::Result<Option<Receipt>> {
        let Some(path) = &self.receipts else { return Ok(None) };
        receipt::first_from(self.seat.admin, path, self.seat.backends[victim.index()])
    }
}

/// An additional delay before a step: below a second, from the seed of the run and the step's number (Steele,
/// Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
fn delay(seed: u64, step: u64) -> Duration {
    let mixed = seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Duration::from_millis((mixed ^ (mixed >> 31)) % 1000)
}

impl Runner for Cluster {
    fn cell(&mut self, cell: &Cell<'_>) -> io::Result<Turn> {
        let (victim, departure) = match &cell.point.load {
            Load::Ledger { victim, departure } => (*victim, *departure),
            Load::Sysbench(work) => return self.load(cell, work),
            _ => return Err(io::Error::other("a cluster takes the loads `sysbench` and `ledger`")),
        };
        let name = &cell.contender.name;
        if !self.turns.contains_key(name) {
            self.step(victim, departure, cell.directory)?;
        }
        match self.turns.remove(name) {
            Some(turn) => turn.map_err(io::Error::other),
            None => Err(io::Error::other("it was left out of the failover step")),
        }
    }
}

fn on_loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn put_load(
    load: &Load,
    command: &[String],
    seconds: u32,
    placement: Placement,
    directory: &Path,
) -> io::Result<LoadResult> {
    let log = directory.join("load.log");
    let running = Running::start("sysbench", placement, command, &log, Output::Piped)?;
    let printed = running.finish(load.patience(seconds)).map_err(|error| first_complaint(&error))?;
    load.result(&printed)
}

/// sysbench's first error message: each of its threads prints the same.
fn first_complaint(error: &io::Error) -> io::Error {
    let said = error.to_string();
    let complaints: Vec<&str> = said.lines().filter(|line| line.starts_with("FATAL: ")).take(2).collect();
    if complaints.is_empty() { io::Error::other(said) } else { io::Error::other(complaints.join("; ")) }
}

fn target(seated: &Seated, victim: Victim) -> Target {
    let members = &seated.seat.backends;
    let (write, read) = if seated.is_direct {
        let ports = members.iter().map(SocketAddr::port).collect();
        // On unaffected members: what a reader behind a load balancer could have had.
        let mut others = members.clone();
        others.remove(victim.index());
        let readers = std::array::from_fn(|reader| Route::Port(others[reader % others.len()].port()));
        (Route::Primary(ports), readers)
    } else {
        let readers = std::array::from_fn(|_| Route::Port(seated.read.port()));
        (Route::Port(seated.seat.listen.port()), readers)
    };
    let table = format!("ledger_{}", seated.name.replace(['/', '-'], "_"));
    Target { table, write, read }
}

/// A step as a sample.
fn sample_of(experience: &Experience, times: &Times, victim: Victim) -> Sample {
    let mut sample = Sample::default();
    let outage = &experience.outage;
    let verdict = &experience.verdict;
    sample.put(Metric::OUTAGE, outage.pause.as_secs_f64());
    if victim == Victim::Primary {
        match experience.writes_back {
            Some(back) => sample.put(Metric::WRITES_BACK, back.as_secs_f64()),
            None => sample.remarks.push(format!(
                "Writes did not come back within {:.0} s of the event.",
                (times.end - times.event).as_secs_f64()
            )),
        }
    }
    let delay = experience.delay.map(|delay| (Metric::FAILOVER_DELAY, delay.as_secs_f64()));
    sample.figures.extend(delay);
    let failed = outage.refused + outage.unknown;
    sample.put(Metric::FAILED_WRITES, failed as f64);
    sample.put(Metric::FAILED_READS, experience.failed_reads as f64);
    sample.put(Metric::FAILED_PRIMARY_READS, experience.failed_primary_reads as f64);
    if times.returned > times.restarted {
        sample.put(Metric::FAILED_AFTER_RETURN, experience.failed_after_restart as f64);
    }
    sample.put(Metric::WRITES, verdict.acknowledged as f64);
    sample.put(Metric::UNKNOWN_WRITES, verdict.unknown as f64);
    sample.put(Metric::LOST_WRITES, verdict.lost as f64);
    sample.put(Metric::DOUBLED_WRITES, verdict.doubled as f64);
    sample.put(Metric::MISPLACED_WRITES, verdict.misplaced as f64);
    sample
        .figures
        .extend(experience.unrelated_stall.map(|stall| (Metric::READER_STALL, stall.as_secs_f64())));
    sample
        .curves
        .insert("good writes per second, by seconds from the event".to_owned(), experience.curve.clone());
    let wrong = [
        ("acknowledged write lost", verdict.lost),
        ("write doubled", verdict.doubled),
        ("refused write carried out", verdict.refused_but_written),
        ("members disagree", verdict.inconsistent),
        ("write carried out by another than the primary", verdict.misplaced),
    ];
    sample.errors = wrong
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| (kind.to_owned(), count))
        .collect();
    if !verdict.is_clean() {
        sample.problem = Some(format!("the ledger does not agree with the members: {verdict:?}"));
    }
    sample.remarks.extend(remarks(experience));
    sample
}

/// Records a load balancer's own receipt beside the independent clock. Receipts have millisecond precision,
/// and can be ahead of the clock, whose error is the time of one write.
fn put_receipt(sample: &mut Sample, receipt: Option<&Receipt>, times: &Times) {
    let Some(receipt) = receipt else { return };
    sample.put(Metric::RECEIPT_NOTICED, receipt.detected.as_secs_f64() - times.event_unix.as_secs_f64());
    if let Some(writable) = times.writable {
        let delay = receipt.writable.as_secs_f64() - writable.unix.as_secs_f64();
        sample.put(Metric::RECEIPT_DELAY, delay.max(0.0));
    }
    sample.put(Metric::PARKED, receipt.parked as f64);
}

fn remarks(experience: &Experience) -> Vec<String> {
    let seconds = |time: Duration| time.as_secs_f64();
    let mut remarks = Vec::new();
    if experience.failed_before > 0 {
        remarks.push(format!("{} writes failed before anything had happened.", experience.failed_before));
    }
    if let Some(stall) = experience.related_stall {
        remarks.push(format!("A reader of the member that went waited {:.2} s.", seconds(stall)));
    }
    let mut problems: Vec<(&String, &u64)> = experience.problems.iter().collect();
    problems.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let told: Vec<String> =
        problems.into_iter().take(4).map(|(problem, count)| format!("{count} x {problem}")).collect();
    if !told.is_empty() {
        remarks.push(format!("What clients were told: {}.", told.join("; ")));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_moments_again_and_they_are_spread_over_a_second() {
        let moments: Vec<u128> = (1..=100).map(|step| delay(7, step).as_millis()).collect();
        assert_eq!(moments, (1..=100).map(|step| delay(7, step).as_millis()).collect::<Vec<_>>());
        assert!(moments.iter().all(|moment| *moment < 1000), "{moments:?}");
        let late = moments.iter().filter(|moment| **moment >= 500).count();
        assert!((30..=70).contains(&late), "{moments:?}");
        assert_ne!(delay(7, 1), delay(8, 1));
    }
}
