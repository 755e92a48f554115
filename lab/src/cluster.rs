//! A real three-member InnoDB Cluster (MySQL Group Replication, single primary) on loopback, made for one run and gone
//! with it, and what the lab does to it: load, crashes, and the count of what came of every write.
//!
//! Start reading at [`group`]; [`ledger`] is the arithmetic that decides whether a write was lost.

pub mod clients;
pub mod group;
pub mod ledger;
pub mod member;
pub mod sysbench;

use std::io::{self, Read, Write};

use crate::bench::Workplace;
use crate::contender::Tools;
use crate::process::Placement;
use group::Group;

/// The group's name, as Group Replication wants it: a UUID.
pub const GROUP: &str = "57656972-6c61-4273-8273-000000000002";
/// The account of everything that speaks to the cluster but the administrator.
pub const ACCOUNT: &str = "lab";
/// Its password. The cluster listens on loopback only, lives minutes, and holds nothing but made-up rows.
pub const PASSWORD: &str = "weir-lab";
/// The database of sysbench's tables, the ledgers, and what readers read.
pub const DATABASE: &str = "sbtest";

/// An error of the MySQL client as one of the lab's.
fn io_error(error: mysql::Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// Brings the cluster up, says where its members are, and holds it until standard input ends.
pub fn hold(tools: &Tools) -> io::Result<()> {
    let workplace = Workplace::make()?;
    let placement = Placement { core: None, nice: 0, realtime: false };
    let directory = workplace.directory("cluster")?;
    let group = Group::bring_up(tools, placement, &directory, &mut |stage| eprintln!("cluster: {stage}"))?;
    for member in &group.members {
        println!("member {} on 127.0.0.1:{}, data in {}", member.number, member.port, member.data().display());
    }
    println!("mysql --host=127.0.0.1 --port={} --user={ACCOUNT} --password={PASSWORD}", group.members[0].port);
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
