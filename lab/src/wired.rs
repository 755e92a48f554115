//! The verbs about network namespaces and the line between them.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Subcommand;

use crate::addresses::Family;
use crate::crowd;
use crate::enclosure::{self, Enclosure};
use crate::guest;
use crate::link;
use crate::link::check::{self, Effort};
use crate::link::impairment::Impairment;
use crate::namespace;
use crate::process::Placement;
use crate::runner::Options;
use crate::wiring::{Impairer, Impairments, Wiring};
use crate::workplace::Workplace;

#[derive(Subcommand)]
pub enum Verb {
    /// Run a command in the client's namespace of a network made for it: client, load balancer, endpoints
    ///
    /// The virtual address 10.77.0.1 belongs to the load balancer's namespace, endpoint N (from 0) is
    /// 10.77.(10+N).2. The paths of the namespaces are in $WEIR_LAB_BALANCER and $WEIR_LAB_ENDPOINTS, for
    /// nsenter(1). All is gone when the command ends.
    Wire {
        /// How many endpoints
        #[arg(long, default_value_t = 3)]
        endpoints: u8,
        #[command(flatten)]
        line: Asked,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
    /// Measure what an impaired line does to packets
    LinkCheck {
        #[command(flatten)]
        line: Asked,
        /// Datagrams in each direction
        #[arg(long, default_value_t = 20_000)]
        datagrams: u64,
        /// Datagrams a second
        #[arg(long, default_value_t = 4_000)]
        rate: u32,
        /// Seconds of the TCP stream
        #[arg(long, default_value_t = 3)]
        stream_seconds: u64,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Run this program in a virtual machine whose kernel has IPVS and netem: `guest -- link-check`
    Guest {
        /// One core whose time goes by instructions, so that figures repeat
        #[arg(long)]
        instructions: bool,
        /// The Weir binary; by default the one built beside this program
        #[arg(long, env = "WEIR")]
        weir: Option<PathBuf>,
        /// Arguments of this program
        #[arg(last = true, required = true)]
        arguments: Vec<String>,
    },
    /// Be the lab inside the guest
    #[command(hide = true)]
    GuestAgent {
        #[arg(long)]
        lab: PathBuf,
        #[arg(long)]
        weir: PathBuf,
    },
    /// Be an emulated line between two network namespaces
    #[command(hide = true)]
    Link {
        /// A path to the namespace of one end; the client's first
        #[arg(long = "end", required = true, num_args = 1)]
        ends: Vec<String>,
        #[arg(long)]
        forth_delay_us: u64,
        #[arg(long)]
        forth_loss: f64,
        #[arg(long)]
        forth_queue_packets: usize,
        #[arg(long)]
        back_delay_us: u64,
        #[arg(long)]
        back_loss: f64,
        #[arg(long)]
        back_queue_packets: usize,
        #[arg(long)]
        seed: u64,
    },
    /// Open flows of datagrams, which stay
    #[command(hide = true)]
    Crowd {
        #[arg(long)]
        target: SocketAddr,
        #[arg(long)]
        flows: u32,
    },
    /// Answer datagrams
    #[command(hide = true)]
    Answer {
        #[arg(long = "address", required = true)]
        addresses: Vec<SocketAddr>,
    },
    /// Be the maker of a network namespace
    #[command(hide = true)]
    Namespace,
    /// Become another program in another network namespace
    #[command(hide = true)]
    Inside {
        #[arg(long)]
        network: String,
        #[arg(last = true)]
        program: Vec<String>,
    },
}

/// An impaired line, as asked for on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct Asked {
    /// Milliseconds that packets towards the client are held; may be given several times
    #[arg(long)]
    delay_ms: Vec<f64>,
    /// Percent of the packets towards the client that are lost; may be given several times
    #[arg(long)]
    loss_percent: Vec<f64>,
    /// What impairs the line; by default netem where the kernel has it, else the lab's emulator
    #[arg(long, value_enum)]
    by: Option<Impairer>,
}

impl Asked {
    /// One line for each delay, then one for each loss.
    fn lines(&self) -> Vec<Impairment> {
        let delays = self
            .delay_ms
            .iter()
            .map(|ms| Impairment { delay: Duration::from_secs_f64(ms / 1e3), ..Impairment::NONE });
        let losses =
            self.loss_percent.iter().map(|percent| Impairment { loss: percent / 100.0, ..Impairment::NONE });
        delays.chain(losses).collect()
    }

    fn impairer(&self) -> io::Result<Impairer> {
        self.by.map_or_else(Impairer::available, Ok)
    }
}

/// Does what `verb` says.
pub fn run(verb: Verb) -> io::Result<ExitCode> {
    match verb {
        Verb::Wire { endpoints, line, program } => wire(endpoints, &line, &program),
        Verb::LinkCheck { line, datagrams, rate, stream_seconds, json } => {
            let effort = Effort { datagrams, rate, stream: Duration::from_secs(stream_seconds) };
            link_check(&line, effort, json)
        }
        Verb::Link {
            ends,
            forth_delay_us,
            forth_loss,
            forth_queue_packets,
            back_delay_us,
            back_loss,
            back_queue_packets,
            seed,
        } => {
            let [first, second] = ends.as_slice() else {
                return Err(io::Error::other("a line has two ends; `--end` was expected twice"));
            };
            let way = |delay_us, loss, queue_packets| Impairment {
                delay: Duration::from_micros(delay_us),
                loss,
                queue_packets,
            };
            let forth = way(forth_delay_us, forth_loss, forth_queue_packets);
            let back = way(back_delay_us, back_loss, back_queue_packets);
            link::serve([first, second], forth, back, seed)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Guest { instructions, weir, arguments } => {
            let workplace = match enclosed()? {
                Ok(workplace) => workplace,
                Err(code) => return Ok(code),
            };
            let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
            let tools = crate::tools(weir.as_deref())?;
            let well =
                guest::run_in_guest(&tools, lab, instructions, &workplace.directory("guest")?, &arguments)?;
            Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Verb::GuestAgent { lab, weir } => obey_in_guest(lab, &weir),
        Verb::Crowd { target, flows } => crowd::open(target, flows).map(|()| ExitCode::SUCCESS),
        Verb::Answer { addresses } => crowd::answer(&addresses).map(|()| ExitCode::SUCCESS),
        Verb::Namespace => namespace::hold().map(|()| ExitCode::SUCCESS),
        Verb::Inside { network, program } => Err(namespace::become_inside(&network, &program)),
    }
}

fn obey_in_guest(lab: PathBuf, weir: &Path) -> io::Result<ExitCode> {
    let mut tools = crate::tools(Some(weir))?;
    tools.peers = lab.join("peers").display().to_string();
    // With a single core nothing is pinned.
    let many = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let place = |core| Placement { core: many.then_some(core), nice: -10, realtime: false };
    let options = Options { tools, lab, proxy: place(0), load: place(1), seed: 1 };
    let workplace = Workplace::make()?;
    guest::obey(&options, &workplace.directory("guest")?)?;
    Ok(ExitCode::SUCCESS)
}

fn wire(endpoints: u8, line: &Asked, program: &[String]) -> io::Result<ExitCode> {
    let mut both = Impairment::NONE;
    for asked in line.lines() {
        both = Impairment { delay: both.delay.max(asked.delay), loss: both.loss.max(asked.loss), ..both };
    }
    let workplace = match enclosed()? {
        Ok(workplace) => workplace,
        Err(code) => return Ok(code),
    };
    let placement = Placement { core: None, nice: 0, realtime: false };
    let impairments = Impairments { to_client: both, to_balancer: Impairment::NONE, seed: 1 };
    let impaired = (both != Impairment::NONE).then(|| Ok::<_, io::Error>((line.impairer()?, impairments)));
    let wiring = Wiring::build(
        Family::Ipv4,
        endpoints,
        impaired.transpose()?,
        placement,
        &workplace.directory("wire")?,
    )?;
    let paths: Vec<String> = wiring.endpoints.iter().map(namespace::Namespace::path).collect();
    let command = wiring.client.command(program);
    let status = Command::new(&command[0])
        .args(&command[1..])
        .env("WEIR_LAB_BALANCER", wiring.balancer.path())
        .env("WEIR_LAB_ENDPOINTS", paths.join(" "))
        .status()?;
    if let Some(counters) = wiring.finish()? {
        eprintln!("weir-lab: the line: {}", serde_json::to_string(&counters)?);
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn link_check(line: &Asked, effort: Effort, json: bool) -> io::Result<ExitCode> {
    let impairer = line.impairer()?;
    let mut lines = line.lines();
    if lines.is_empty() {
        // Those of the published comparison, after a line without impairment.
        let published = Asked { delay_ms: vec![0.0, 25.0, 50.0], loss_percent: vec![2.0, 4.0], by: None };
        lines = published.lines();
    }
    let workplace = match enclosed()? {
        Ok(workplace) => workplace,
        Err(code) => return Ok(code),
    };
    let mut findings = Vec::new();
    for asked in lines {
        findings.push(check::run(impairer, asked, effort, &workplace.directory("wire")?)?);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print!("{}", check::table(&findings));
    }
    Ok(ExitCode::SUCCESS)
}

/// The workplace inside an enclosure. The inner Err is the exit code of the enclosed lab, which has done all
/// the work.
fn enclosed() -> io::Result<Result<Workplace, ExitCode>> {
    Ok(match enclosure::enter(false)? {
        Enclosure::Ended(code) => Err(code),
        Enclosure::Enclosed(workplace) | Enclosure::Open(workplace) => Ok(workplace),
    })
}
