//! Weir's lab: measures load balancers side by side on one machine, and contains the servers and loads for
//! that.
//!
//! It knows contenders only by their command lines and configs, never by their code: Weir is measured like
//! any other. Start reading at [`rounds`], the measurement. It runs [`scenario`]s with [`contender`]s; a
//! [`runner`] knows each topology; [`meter`] and [`statistics`] give the results, and [`report`] shows them.
#![deny(unsafe_code)]

mod addresses;
mod backend;
mod certificate;
mod channel;
mod cluster;
mod compare;
mod contender;
mod crosscheck;
mod crowd;
mod enclosure;
mod fairness;
mod guest;
mod link;
mod load;
mod load_verb;
mod measure;
mod meter;
mod metric;
mod namespace;
mod packets;
mod process;
mod relay;
mod report;
mod rounds;
mod runner;
mod sample;
mod scenario;
mod statistics;
mod timer;
mod topology;
mod wired;
mod wiring;
mod workplace;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::{Parser, Subcommand};
use rustix::process::Signal;

use backend::BackendKind;
use contender::Tools;
use enclosure::Enclosure;
use process::Placement;
use report::{Circumstances, Report};
use rounds::Wish;
use scenario::{Scenario, Series, VariantName};

#[derive(Parser)]
#[command(name = "weir-lab", about = "Measures load balancers side by side on one machine", version)]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run series (`s4`) or scenarios (`s4/round-robin`); tables go to standard output, progress to standard
    /// error
    Run(RunArguments),
    /// Run the lab's own bench: the same as `run bench`, or `run bench/NAME`
    Bench(RunArguments),
    /// Show that the lab's own virtual users and k6 agree, by letting both play the same ones
    CrossCheck(CrossCheckArguments),
    /// Install the programs to measure with (`lab/peers`); without arguments all that the comparisons need
    Peers {
        /// What `lab/peers` takes: `install NAME…`, `list`, `run NAME -- ARGUMENTS…`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Print the tables of a run again from its raw samples
    Report {
        /// The raw samples that a run wrote
        file: PathBuf,
        /// Write the page to this file as well
        #[arg(long)]
        html: Option<PathBuf>,
    },
    /// Say what became better or worse from one run to another; the exit code is 1 when something became
    /// worse
    Compare {
        /// The raw samples of the earlier run
        old: PathBuf,
        /// The raw samples of the later run
        new: PathBuf,
        /// Percent by which a figure may change before that counts
        #[arg(long, default_value_t = 2.0)]
        tolerance: f64,
        /// Let every figure decide the exit code, not only the one that decides in its scenario
        #[arg(long)]
        all: bool,
    },
    /// Serve as the backend of a measurement
    Backend {
        #[arg(long, value_enum, default_value = "http")]
        kind: BackendKind,
        /// Address of this machine
        #[arg(long, default_value = "127.0.0.1")]
        ip: IpAddr,
        /// Port there; 0 for any free one
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// Bring up the three-member InnoDB Cluster that s2 is measured on, and hold it until standard input ends
    Cluster {
        /// Let it be reached from this machine, rather than from a network of its own
        #[arg(long)]
        shared_network: bool,
    },
    /// Be the floor: relay TCP and do nothing else
    Relay {
        /// Port on 127.0.0.1 to listen on
        #[arg(long)]
        port: u16,
        /// Port on 127.0.0.1 to relay to
        #[arg(long)]
        backend_port: u16,
    },
    /// Be the load of a measurement; prints its result as JSON
    Load {
        #[command(subcommand)]
        load: load_verb::LoadVerb,
    },
    #[command(flatten)]
    Wired(wired::Verb),
    /// Become another program, pinned and prioritised; ends with the lab that asked for it
    #[command(hide = true)]
    Launch {
        #[arg(long)]
        core: Option<usize>,
        #[arg(long, allow_hyphen_values = true)]
        nice: i32,
        #[arg(long)]
        realtime: bool,
        /// Be killed rather than asked to end when the lab ends
        #[arg(long)]
        kill: bool,
        /// Process id of the lab
        #[arg(long)]
        parent: u32,
        #[arg(last = true)]
        program: Vec<String>,
    },
}

#[derive(clap::Args)]
struct CrossCheckArguments {
    /// Numbers of users
    #[arg(long, value_delimiter = ',', default_value = "100,500,1000")]
    users: Vec<u32>,
    /// Rounds; k6 and the lab's own take turns in each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each turn; a seventh of it is the ramp, as in the published 5 s and 30 s
    #[arg(long, default_value_t = 35, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Core of the servers
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the users
    #[arg(long, default_value_t = 1)]
    load_core: usize,
    /// Nice value of all processes; below 0 needs root
    #[arg(long, default_value_t = -10, allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-20..20))]
    nice: i32,
    /// Do not wait until another measurement on this machine has ended
    #[arg(long)]
    together: bool,
}

#[derive(clap::Args)]
struct RunArguments {
    /// Series or scenarios, by name; all when none is named
    names: Vec<String>,
    /// Only this variant of scenarios that have two
    #[arg(long)]
    variant: Option<VariantName>,
    /// The full form: every value of every sweep, more and longer rounds
    #[arg(long)]
    full: bool,
    /// Only these contenders (folders under contenders, or folder/template)
    #[arg(long, visible_alias = "contenders", value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds instead of the scenario's own number; every contender has one turn at every point in each
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds of counted load in each turn, instead of the scenario's own
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Folder with `scenarios` and `contenders`; the lab's own by default
    #[arg(long, default_value = env!("CARGO_MANIFEST_DIR"), hide_default_value = true)]
    lab: PathBuf,
    /// The Weir binary; by default the one built beside this program, in release mode
    #[arg(long, env = "WEIR")]
    weir: Option<PathBuf>,
    /// Write report.html and samples.json to this directory, anew after each scenario [default of `run`:
    /// lab-report]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write all raw samples to this file; a bare name goes into the lab's `results`
    #[arg(long)]
    json: Option<PathBuf>,
    /// Nice value of all measured processes; below 0 needs root and keeps other work on the machine from
    /// disturbing
    #[arg(long, default_value_t = -10, allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-20..20))]
    nice: i32,
    /// Run all measured processes before any other work (real-time round robin); for a machine that is not
    /// quiet
    #[arg(long)]
    realtime: bool,
    /// Core of the load balancer
    #[arg(long, default_value_t = 0)]
    proxy_core: usize,
    /// Core of load and backend
    #[arg(long, default_value_t = 1)]
    load_core: usize,
    /// Stay on the open machine instead of in namespaces of the lab's own
    #[arg(long)]
    shared_network: bool,
    /// Gives the moments of what is done at no fixed time, such as the departures of members
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do not wait until another measurement on this machine has ended
    #[arg(long)]
    together: bool,
    /// Name the scenarios and stop
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("weir-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> io::Result<ExitCode> {
    match verb {
        Verb::Run(mut arguments) => {
            arguments.out.get_or_insert_with(|| PathBuf::from("lab-report"));
            return measure(&arguments);
        }
        Verb::Bench(mut arguments) => {
            arguments.names = match arguments.names.as_slice() {
                [] => vec!["bench".to_owned()],
                names => names.iter().map(|name| format!("bench/{name}")).collect(),
            };
            return measure(&arguments);
        }
        Verb::CrossCheck(arguments) => return cross_check(&arguments),
        Verb::Peers { arguments } => {
            let install = ["install".to_owned()];
            let arguments = if arguments.is_empty() { &install[..] } else { &arguments };
            return Err(Command::new(tools(None)?.peers).args(arguments).exec());
        }
        Verb::Report { file, html } => {
            let report = read(&file)?;
            print!("{}", report.text());
            if let Some(html) = html {
                fs::write(&html, report.html(&file.display().to_string()))?;
            }
        }
        Verb::Compare { old, new, tolerance, all } => {
            let changes = compare::changes(&read(&old)?, &read(&new)?, tolerance / 100.0);
            print!("{}", compare::text(&changes));
            if compare::regressions(&changes, all) > 0 {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Backend { kind, ip, port } => backend::serve(kind, SocketAddr::new(ip, port))?,
        Verb::Cluster { shared_network } => {
            let workplace = match enclosure::enter(shared_network)? {
                Enclosure::Ended(code) => return Ok(code),
                Enclosure::Enclosed(workplace) | Enclosure::Open(workplace) => workplace,
            };
            cluster::hold(&tools(None)?, &workplace)?;
        }
        Verb::Relay { port, backend_port } => relay::serve(port, backend_port)?,
        Verb::Load { load } => load_verb::put(&load)?,
        Verb::Wired(verb) => return wired::run(verb),
        Verb::Launch { core, nice, realtime, kill, parent, program } => {
            let end = if kill { Signal::KILL } else { Signal::TERM };
            return Err(process::become_program(Placement { core, nice, realtime }, parent, end, &program));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> io::Result<Report> {
    let explain = |error: io::Error| io::Error::other(format!("{}: {error}", file.display()));
    Report::from_json(&fs::read_to_string(file).map_err(explain)?).map_err(explain)
}

fn cross_check(arguments: &CrossCheckArguments) -> io::Result<ExitCode> {
    let workplace = match enclosure::enter(false)? {
        Enclosure::Ended(code) => return Ok(code),
        Enclosure::Enclosed(workplace) | Enclosure::Open(workplace) => workplace,
    };
    let _turn = if arguments.together { None } else { Some(workplace::wait_for_turn()?) };
    let place = |core: usize| Placement { core: Some(core), nice: arguments.nice, realtime: false };
    let plan = crosscheck::Plan {
        users: arguments.users.clone(),
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        server: place(arguments.server_core),
        load: place(arguments.load_core),
    };
    let (table, agree) = crosscheck::run(&plan, &tools(None)?, &workplace.directory("cross-check")?)?;
    print!("{table}");
    Ok(if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(arguments: &RunArguments) -> io::Result<ExitCode> {
    let begin = Instant::now();
    let lab = arguments.lab.as_path();
    let all = scenario::read_all(&lab.join("scenarios"))?;
    if arguments.list {
        for (series, scenarios) in &all {
            println!("{:<20} {}", series.name, series.title);
            for scenario in scenarios {
                println!("  {:<18} {}", scenario.name, scenario.title);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = choose(all, &arguments.names)?;
    let (workplace, enclosed) = match enclosure::enter(arguments.shared_network)? {
        Enclosure::Ended(code) => return Ok(code),
        Enclosure::Enclosed(workplace) => (workplace, true),
        Enclosure::Open(workplace) => (workplace, false),
    };
    let place =
        |core: usize| Placement { core: Some(core), nice: arguments.nice, realtime: arguments.realtime };
    let options = runner::Options {
        tools: tools(arguments.weir.as_deref())?,
        lab: lab.to_owned(),
        proxy: place(arguments.proxy_core),
        load: place(arguments.load_core),
        seed: arguments.seed,
    };
    let wish = Wish {
        full: arguments.full,
        variant: arguments.variant,
        only: arguments.only.clone(),
        rounds: arguments.rounds,
        seconds: arguments.seconds,
    };
    let _turn = if arguments.together { None } else { Some(workplace::wait_for_turn()?) };
    let mut circumstances = Circumstances::now(&options, enclosed, wish.full);
    let mut so_far = |series: &[rounds::SeriesOutcome]| {
        circumstances.took_seconds = begin.elapsed().as_secs();
        match &arguments.out {
            Some(directory) => put_down(&Report::new(circumstances.clone(), series.to_vec()), directory),
            None => Ok(()),
        }
    };
    let series = rounds::run(&chosen, &wish, &options, &workplace, &mut so_far)?;
    let report = Report::new(circumstances, series);
    print!("{}", report.text());
    if let Some(directory) = &arguments.out {
        eprintln!("report: {}", directory.join(PAGE).display());
    }
    if let Some(path) = &arguments.json {
        let path = if path.components().count() == 1 { lab.join("results").join(path) } else { path.clone() };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, report.json()?)?;
        eprintln!("raw samples: {}", path.display());
    }
    if !report.is_clean() {
        eprintln!("weir-lab: not every contender ran without errors; see the remarks in the report");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

const PAGE: &str = "report.html";
const SAMPLES: &str = "samples.json";

/// Writes the page and the raw samples to `directory`.
fn put_down(report: &Report, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join(SAMPLES), report.json()?)?;
    fs::write(directory.join(PAGE), report.html(SAMPLES))
}

/// The series and scenarios that are named, or all if none is. Err names one that does not exist.
fn choose(
    mut all: Vec<(Series, Vec<Scenario>)>,
    names: &[String],
) -> io::Result<Vec<(Series, Vec<Scenario>)>> {
    let known: Vec<&str> = all
        .iter()
        .flat_map(|(series, scenarios)| {
            scenarios.iter().map(|scenario| scenario.name.as_str()).chain([series.name.as_str()])
        })
        .collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let known = known.join(", ");
        return Err(io::Error::other(format!("no scenario is named `{unknown}`; there are: {known}")));
    }
    if !names.is_empty() {
        for (series, scenarios) in &mut all {
            scenarios.retain(|scenario| names.contains(&scenario.name) || names.contains(&series.name));
        }
        all.retain(|(_, scenarios)| !scenarios.is_empty());
    }
    Ok(all)
}

fn tools(weir: Option<&Path>) -> io::Result<Tools> {
    let beside = std::env::current_exe()?.with_file_name("weir");
    let store = std::env::var_os("WEIR_PEERS").map_or_else(
        || {
            let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
            cache.unwrap_or_else(home).join("weir-peers")
        },
        PathBuf::from,
    );
    let text = |path: &Path| path.display().to_string();
    Ok(Tools {
        lab: process::own_program(),
        peers: text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")),
        peers_root: text(&store.join("sid")),
        weir: text(weir.unwrap_or(&beside)),
    })
}
