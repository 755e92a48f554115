//! The verb `load`: runs this program as the load of a measurement.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Subcommand;

use crate::load;

/// What it does.
#[derive(Subcommand)]
pub enum LoadVerb {
    /// Run many netperfs at once, their data connections through a load balancer
    Netperf {
        #[arg(long)]
        target: SocketAddr,
        #[arg(long, value_enum)]
        test: load::netperf::Test,
        #[arg(long)]
        connections: u32,
        #[arg(long)]
        seconds: u64,
        /// The script that knows where netperf is
        #[arg(long)]
        peers: String,
    },
    /// Run one iperf3 for each endpoint, each on a port of its own from the target's on
    Iperf3 {
        #[arg(long)]
        target: SocketAddr,
        #[arg(long)]
        endpoints: u16,
        /// Streams of all iperf3s together
        #[arg(long)]
        connections: u32,
        #[arg(long)]
        seconds: u64,
        /// The script that knows where iperf3 is
        #[arg(long)]
        peers: String,
    },
    /// Send HTTP/1.1 requests at a fixed rate, whatever the answers do
    Paced {
        /// Where to, as ADDRESS:PORT
        #[arg(long)]
        target: SocketAddr,
        #[arg(long)]
        connections: u32,
        #[arg(long)]
        seconds: u64,
        /// Requests a second
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        rate: u32,
    },
    /// Fetch HTTP/1.1 bodies as fast as they come
    Fetch {
        /// Where to, as ADDRESS:PORT
        #[arg(long)]
        target: SocketAddr,
        #[arg(long)]
        connections: u32,
        #[arg(long)]
        seconds: u64,
        #[arg(long)]
        body_bytes: u64,
    },
    /// Ask a canned MySQL server, or a load balancer before one, as fast as answers come back
    Mysql(load::mysql::MysqlLoad),
    /// Read TCP streams as fast as they come
    Bulk {
        /// Where to, as ADDRESS:PORT
        #[arg(long)]
        target: SocketAddr,
        #[arg(long)]
        connections: u32,
        #[arg(long)]
        seconds: u64,
    },
    /// Let virtual users ask, rest and ask again, each on a connection of its own
    Users(UsersArguments),
    /// Do one request on each of many connections and hold them open until standard input ends
    Idle {
        /// Where to, as ADDRESS:PORT
        #[arg(long)]
        target: SocketAddr,
        #[arg(long)]
        connections: u32,
    },
}

/// Whom users come to, and how.
#[derive(clap::Args)]
pub struct UsersArguments {
    /// Where to, as ADDRESS:PORT; users take several in turn
    #[arg(long, required = true, value_delimiter = ',')]
    target: Vec<SocketAddr>,
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    users: u32,
    /// Time in which the users come
    #[arg(long, default_value_t = 5000)]
    ramp_ms: u64,
    /// Time all of them stay
    #[arg(long, default_value_t = 30_000)]
    hold_ms: u64,
    /// Rest of each user after an answer
    #[arg(long, default_value_t = 1000)]
    pause_ms: u64,
    /// Play only this part of them, once standard input says `go`
    #[arg(long, hide = true, requires = "parts")]
    part: Option<u32>,
    /// Of how many
    #[arg(long, hide = true, default_value_t = 1)]
    parts: u32,
}

impl UsersArguments {
    fn plan(&self) -> load::users::plan::Plan {
        load::users::plan::Plan {
            users: self.users,
            ramp: Duration::from_millis(self.ramp_ms),
            hold: Duration::from_millis(self.hold_ms),
            pause: Duration::from_millis(self.pause_ms),
        }
    }
}

/// Runs the load and prints its result as JSON.
pub fn put(load: &LoadVerb) -> io::Result<()> {
    let say = |result: &load::LoadResult| -> io::Result<()> {
        println!("{}", serde_json::to_string(result)?);
        io::stdout().flush()
    };
    match *load {
        LoadVerb::Netperf { target, test, connections, seconds, ref peers } => {
            say(&load::netperf::run(peers, target, test, connections, seconds)?)
        }
        LoadVerb::Iperf3 { target, endpoints, connections, seconds, ref peers } => {
            say(&load::iperf3::run(peers, target, endpoints, connections, seconds)?)
        }
        LoadVerb::Paced { target, connections, seconds, rate } => {
            say(&load::paced::run(target, connections, rate, Duration::from_secs(seconds))?)
        }
        LoadVerb::Fetch { target, connections, seconds, body_bytes } => {
            say(&load::fetch::run(target, connections, body_bytes, Duration::from_secs(seconds))?)
        }
        LoadVerb::Bulk { target, connections, seconds } => {
            say(&load::bulk::run(target, connections, Duration::from_secs(seconds))?)
        }
        LoadVerb::Mysql(ref load) => {
            let (result, mut held) = load::mysql::run(load)?;
            say(&result)?;
            if load.stays() {
                io::stdin().read_to_end(&mut Vec::new())?;
                return none_closed(held.count_closed(), load.connections);
            }
            Ok(())
        }
        LoadVerb::Users(ref arguments) => match arguments.part {
            Some(part) => load::users::run_part(&arguments.target, &arguments.plan(), part, arguments.parts),
            None => say(&load::users::run(&arguments.target, &arguments.plan())?),
        },
        LoadVerb::Idle { target, connections } => {
            let (result, open) = load::idle::open(target, connections)?;
            say(&result)?;
            io::stdin().read_to_end(&mut Vec::new())?;
            none_closed(load::idle::count_closed(&open), connections)
        }
    }
}

fn none_closed(closed: u64, connections: u32) -> io::Result<()> {
    match closed {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("{closed} of {connections} idle connections were closed"))),
    }
}
