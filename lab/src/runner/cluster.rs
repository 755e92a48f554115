//! Before a real InnoDB Cluster: sysbench through one contender after the other, and failover steps that all
//! of them go through together.
//!
//! Nothing is pinned here. On the two cores that most machines have at least, three database members and
//! their load on one core would be the limit for every load balancer alike; sharing both, who uses less
//! leaves more to the database.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use super::{Cell, Options, Runner, Turn};
use crate::cluster::clients::{Route, Target};
use crate::cluster::group::Departure;
use crate::cluster::member::connect;
use crate::cluster::steps::{self, Experience, Times, Victim};
use crate::cluster::{self, ACCOUNT, GROUP, PASSWORD, Standing};
use crate::contender::{Contender, Seat, Tools, free_port};
use crate::load::{Load, LoadResult};
use crate::meter::Meter;
use crate::metric::Metric;
use crate::process::{Output, Placement, Running};
use crate::sample::Sample;
use crate::scenario::{Setup, VariantName};
use crate::workplace::Workplace;

/// The runner of [`crate::topology::Topology::Cluster`].
pub struct Cluster {
    options: Options,
    standing: Rc<RefCell<Standing>>,
    entrants: Vec<Contender>,
    workers: usize,
    /// Turns of the last step that were not asked for yet, by contender.
    turns: BTreeMap<String, Result<Turn, String>>,
}

/// A contender at work.
struct Seated {
    running: Running,
    seat: Seat,
    read: SocketAddr,
    command: Vec<String>,
}

impl Cluster {
    /// Takes the cluster of this run, or brings it up. Err when a program or memory for it is missing.
    pub fn new(setup: &Setup, options: &Options, workplace: &Workplace) -> io::Result<Self> {
        let unpinned = |placement: Placement| Placement { core: None, ..placement };
        let options =
            Options { proxy: unpinned(options.proxy), load: unpinned(options.load), ..options.clone() };
        let standing = cluster::standing(&options.tools, options.load, workplace)?;
        // One that cannot be read fails in its own turn.
        let entrants = setup
            .entrants
            .iter()
            .filter_map(|entrant| Contender::read(&options.lab, &entrant.template).ok())
            .collect();
        let workers = match setup.variant {
            VariantName::Published => thread::available_parallelism().map_or(1, usize::from),
            VariantName::Fair => 1,
        };
        Ok(Self { options, standing, entrants, workers, turns: BTreeMap::new() })
    }

    fn seat(&self, contender: &Contender, directory: &Path) -> io::Result<Seated> {
        let standing = self.standing.borrow();
        let members: Vec<SocketAddr> =
            standing.group.members.iter().map(|member| on_loopback(member.port)).collect();
        let mut seat = Seat::on_loopback(members)?;
        let read = on_loopback(free_port()?);
        let password_file = directory.join("password");
        fs::write(&password_file, PASSWORD)?;
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
        Ok(Seated { running, seat, read, command })
    }

    /// One contender under sysbench.
    fn load(&self, cell: &Cell<'_>) -> io::Result<Turn> {
        self.standing.borrow().group.restore()?;
        let home = cell.directory.join("contender");
        fs::create_dir(&home)?;
        let seated = self.seat(cell.contender, &home)?;
        let direct = cell.contender.is_direct();
        let target = if direct { seated.seat.backends[0] } else { seated.seat.listen };
        let put = |seconds: u32| {
            put_load(
                &cell.point.load,
                &self.options.tools,
                target,
                seconds,
                self.options.load,
                cell.directory,
            )
        };
        if cell.length.warm_up_seconds > 0 {
            put(cell.length.warm_up_seconds)?;
        }
        let members: Vec<u32> =
            self.standing.borrow().group.members.iter().filter_map(|member| member.process_id()).collect();
        let meter = Meter::begin(&[seated.running.id()], &members)?;
        let mut result = put(cell.length.seconds)?;
        let mut sample = Sample::default();
        meter.end(&mut sample, &result, self.options.load, None)?;
        // All share the cores here, so waiting for one is part of the figures and no disturbance.
        sample.figures.remove(&Metric::WAIT_SHARE);
        if direct {
            sample.forget_the_contender();
        }
        sample.figures.append(&mut result.figures);
        sample.errors = result.errors;
        sample.problem = result.problem;
        let load = cell.point.load.command(&self.options.tools, target, cell.length.seconds);
        Ok(Turn { sample, commands: vec![seated.command, load] })
    }

    /// All contenders through one failover step; their turns are handed out as they are asked for.
    fn step(&mut self, victim: Victim, departure: Departure, directory: &Path) -> io::Result<()> {
        // They all know member 1 as the primary when they start.
        self.standing.borrow().group.restore()?;
        self.turns.clear();
        let mut seated = Vec::new();
        for contender in &self.entrants {
            let home = directory.join(contender.name.replace('/', "-"));
            fs::create_dir(&home)?;
            match self.seat(contender, &home) {
                Ok(one) => seated.push((contender.name.clone(), contender.is_direct(), one)),
                Err(error) => {
                    self.turns.insert(contender.name.clone(), Err(error.to_string()));
                }
            }
        }
        self.entrants.retain(|contender| !self.turns.contains_key(&contender.name));
        let targets: Vec<Target> =
            seated.iter().map(|(name, direct, one)| target(name, *direct, one, victim)).collect();
        let done = steps::run(&mut self.standing.borrow_mut().group, victim, departure, &targets);
        match done {
            Ok((times, experiences)) => {
                let floor = seated
                    .iter()
                    .zip(&experiences)
                    .find(|((_, direct, _), _)| *direct)
                    .and_then(|(_, experience)| experience.writes_back);
                for ((name, _, one), experience) in seated.into_iter().zip(experiences) {
                    let sample = sample_of(&experience, &times, victim, floor);
                    self.turns.insert(name, Ok(Turn { sample, commands: vec![one.command] }));
                }
            }
            Err(error) => {
                // The cluster is in no state to go on with; the next variant gets a new one.
                cluster::let_go();
                for (name, ..) in seated {
                    self.turns.insert(name, Err(format!("the cluster did not recover: {error}")));
                }
            }
        }
        Ok(())
    }
}

impl Runner for Cluster {
    fn cell(&mut self, cell: &Cell<'_>) -> io::Result<Turn> {
        let Load::Ledger { victim, departure } = cell.point.load else { return self.load(cell) };
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
    tools: &Tools,
    target: SocketAddr,
    seconds: u32,
    placement: Placement,
    directory: &Path,
) -> io::Result<LoadResult> {
    let command = load.command(tools, target, seconds);
    let log = directory.join("load.log");
    let running = Running::start("sysbench", placement, &command, &log, Output::Piped)?;
    load.result(&running.finish(load.patience(seconds))?)
}

fn target(name: &str, direct: bool, seated: &Seated, victim: Victim) -> Target {
    let members = &seated.seat.backends;
    let (write, read) = if direct {
        let ports = members.iter().map(SocketAddr::port).collect();
        // On members that nothing happens to: what a reader behind a load balancer could have had.
        let mut others = members.clone();
        others.remove(victim.index());
        let readers = std::array::from_fn(|reader| Route::Port(others[reader % others.len()].port()));
        (Route::Primary(ports), readers)
    } else {
        let readers = std::array::from_fn(|_| Route::Port(seated.read.port()));
        (Route::Port(seated.seat.listen.port()), readers)
    };
    let table = format!("ledger_{}", name.replace(['/', '-'], "_"));
    Target { table, write, read }
}

/// A step as a sample. `floor` is when clients without load balancer had writes back.
fn sample_of(experience: &Experience, times: &Times, victim: Victim, floor: Option<Duration>) -> Sample {
    let mut sample = Sample::default();
    let outage = &experience.outage;
    let verdict = &experience.verdict;
    sample.put(Metric::OUTAGE, outage.pause.as_secs_f64());
    if victim == Victim::Primary {
        match experience.writes_back {
            Some(back) => {
                sample.put(Metric::WRITES_BACK, back.as_secs_f64());
                // Below nothing is clocks and luck: a writer's turn comes every 10 ms.
                let delay = floor.map(|floor| back.saturating_sub(floor));
                sample.figures.extend(delay.map(|delay| (Metric::FAILOVER_DELAY, delay.as_secs_f64())));
            }
            None => sample.remarks.push(format!(
                "Writes did not come back within {:.0} s of the event.",
                (times.end - times.event).as_secs_f64()
            )),
        }
    }
    let failed = outage.refused + outage.unknown;
    sample.put(Metric::FAILED_WRITES, failed as f64);
    sample.put(Metric::FAILED_READS, experience.failed_reads as f64);
    if times.returned > times.restarted {
        sample.put(Metric::FAILED_AFTER_RETURN, experience.failed_after_restart as f64);
    }
    sample.put(Metric::WRITES, verdict.acknowledged as f64);
    sample.put(Metric::UNKNOWN_WRITES, verdict.unknown as f64);
    sample.put(Metric::LOST_WRITES, verdict.lost as f64);
    sample.put(Metric::DOUBLED_WRITES, verdict.doubled as f64);
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
