//! A real three-member InnoDB Cluster (MySQL Group Replication, single primary) on loopback, created for one
//! run. The lab crashes its members and counts what became of every write.
//!
//! Start reading at [`group`]. [`steps`] takes the cluster through events, and [`ledger`] decides whether a
//! write was lost. `runner/cluster.rs` measures load balancers in front of it.

pub mod agent;
pub mod clients;
pub mod clock;
#[cfg(test)]
mod fake;
pub mod group;
pub mod ledger;
pub mod member;
mod metadata;
pub mod receipt;
pub mod steps;

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::contender::Tools;
use crate::load::sysbench;
use crate::process::{Output, Placement, Running};
use crate::workplace::Workplace;
use agent::Agent;
use group::Group;

/// The group's name, as Group Replication wants it: a UUID.
pub const GROUP: &str = "57656972-6c61-4273-8273-000000000002";
/// The cluster's name in MySQL Router's metadata.
pub const METADATA_CLUSTER: &str = "weir_lab";
/// The account of everything that uses the cluster except the administrator.
pub const ACCOUNT: &str = "lab";
/// Its password. The cluster listens on loopback only, lives minutes, and holds nothing but made-up rows.
pub const PASSWORD: &str = "weir-lab";
/// The database of sysbench's tables, the ledgers, and what readers read.
pub const DATABASE: &str = "sbtest";
/// Number of Routers that may run at the same time: one for each variant.
const ROUTERS: u32 = 2;

/// A cluster with everything that scenarios need: rows for sysbench, metadata for Router, and agents for load
/// balancers that can't query a member themselves.
pub struct Standing {
    /// The members.
    pub group: Group,
    /// One beside each member.
    pub agents: Vec<Agent>,
}

thread_local! {
    /// The cluster of this run. Bringing it up takes longer than measuring one contender, so scenarios share
    /// it. It belongs to the main thread: a member dies with the thread that started it.
    static STANDING: RefCell<Option<Rc<RefCell<Standing>>>> = const { RefCell::new(None) };
}

/// The cluster of this run. The first call starts it in `workplace`.
pub fn standing(
    tools: &Tools,
    placement: Placement,
    workplace: &Workplace,
) -> io::Result<Rc<RefCell<Standing>>> {
    if let Some(standing) = STANDING.with_borrow(Clone::clone) {
        return Ok(standing);
    }
    let standing = Rc::new(RefCell::new(Standing::bring_up(tools, placement, workplace)?));
    STANDING.set(Some(Rc::clone(&standing)));
    Ok(standing)
}

/// Ends the cluster, if there is one, once its last holder has dropped it.
pub fn let_go() {
    STANDING.take();
}

impl Standing {
    fn bring_up(tools: &Tools, placement: Placement, workplace: &Workplace) -> io::Result<Self> {
        let begin = Instant::now();
        let tell = |stage: &str| eprintln!("  cluster: {stage} ({:.1} s)", begin.elapsed().as_secs_f64());
        let directory = workplace.directory("cluster")?;
        let group = Group::bring_up(tools, placement, &directory, &mut |stage| tell(stage))?;
        tell("filling tables");
        metadata::make(&group.members[0], ROUTERS)?;
        let primary = SocketAddr::from((Ipv4Addr::LOCALHOST, group.members[0].port));
        let log = directory.join("sysbench.log");
        let command = sysbench::prepare_command(tools, primary);
        Running::start("sysbench", placement, &command, &log, Output::Log)?
            .finish(Duration::from_secs(60))?;
        group.wait_until_equal()?;
        let agents =
            group.members.iter().map(|member| Agent::start(member.port)).collect::<Result<_, _>>()?;
        tell("up");
        Ok(Self { group, agents })
    }
}

/// Starts the cluster, prints its members' addresses, and keeps it until standard input ends.
pub fn hold(tools: &Tools, workplace: &Workplace) -> io::Result<()> {
    let placement = Placement { core: None, nice: 0, realtime: false };
    let standing = Standing::bring_up(tools, placement, workplace)?;
    for (member, agent) in standing.group.members.iter().zip(&standing.agents) {
        println!(
            "member {}: 127.0.0.1:{}, agent on http://{}, data in {}",
            member.number,
            member.port,
            agent.address,
            member.data().display()
        );
    }
    println!("account {ACCOUNT}, password {PASSWORD}, database {DATABASE}");
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Converts an error of the MySQL client to an `io::Error`.
fn io_error(error: mysql::Error) -> io::Error {
    io::Error::other(error.to_string())
}
