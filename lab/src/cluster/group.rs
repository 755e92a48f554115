//! The group of three members: starting it, and taking members out and in again.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::member::{Member, Role, socket_fits};
use super::{ACCOUNT, DATABASE, PASSWORD};
use crate::contender::Tools;
use crate::process::Placement;

/// How many members a group has: the fewest that survive the loss of one.
pub const MEMBERS: usize = 3;
/// How long the group may take to agree on anything. After a crash it needs at least 6 to 7 s.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a member may try to join the group.
const JOIN_ATTEMPTS: u32 = 3;

/// The statement by which a member says its state.
const STATE: &str = "SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE MEMBER_ID = @@server_uuid \
     UNION ALL SELECT 'OFFLINE' LIMIT 1";

/// How a member leaves the group, or loses the role of primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Departure {
    /// SIGKILL: without notice, as in a power failure.
    Crash,
    /// SIGTERM: it leaves the group in order first.
    Shutdown,
    /// It stays; the role of primary moves to the next member.
    Switchover,
}

/// A running cluster. Its processes end with it, and with the lab however that ends.
pub struct Group {
    /// In the order of their numbers; member 1 is the primary at first, and member 2 the one elected after
    /// it.
    pub members: Vec<Member>,
    tools: Tools,
    placement: Placement,
}

impl Group {
    /// Starts a cluster in `directory`, which must be empty, and tells `progress` each stage. Takes 12 to 20
    /// s.
    pub fn bring_up(
        tools: &Tools,
        placement: Placement,
        directory: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<Self> {
        if !socket_fits(&directory.join("1")) {
            let problem =
                format!("{}: a shorter path is expected for the members' sockets", directory.display());
            return Err(io::Error::other(problem));
        }
        let members: Vec<Member> = (1..=MEMBERS)
            .map(|number| Member::plan(number, directory.join(number.to_string())))
            .collect::<Result<_, _>>()?;
        let seeds: Vec<String> = members.iter().map(Member::group_address).collect();
        for member in &members {
            member.write_config(tools, MEMBERS, &seeds.join(","))?;
        }
        progress("initialising one data directory");
        members[0].initialise(tools, placement)?;
        for member in &members[1..] {
            member.copy_data_of(&members[0])?;
        }
        let mut group = Self { members, tools: tools.clone(), placement };
        progress("starting three members");
        for member in &mut group.members {
            member.start(tools, placement)?;
        }
        for member in &mut group.members {
            member.wait_until_it_answers()?;
        }
        progress("forming the group");
        group.form()?;
        group.wait_until(Self::is_whole, "all members are online")?;
        Ok(group)
    }

    fn form(&self) -> io::Result<()> {
        let account = [
            "SET SQL_LOG_BIN = 0".to_owned(),
            "CREATE USER replication@'127.0.0.1' IDENTIFIED BY 'replication'".to_owned(),
            "GRANT REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM ON *.* \
             TO replication@'127.0.0.1'"
                .to_owned(),
            "SET SQL_LOG_BIN = 1".to_owned(),
            "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'replication', SOURCE_PASSWORD = 'replication' \
             FOR CHANNEL 'group_replication_recovery'"
                .to_owned(),
            // Nothing in the log yet that the others do not have: they all are copies.
            "RESET BINARY LOGS AND GTIDS".to_owned(),
        ];
        for member in &self.members {
            member.execute(&account.each_ref().map(String::as_str))?;
        }
        self.members[0].execute(&[
            "SET GLOBAL group_replication_bootstrap_group = ON",
            "START GROUP_REPLICATION",
            "SET GLOBAL group_replication_bootstrap_group = OFF",
            &format!("CREATE DATABASE {DATABASE}"),
            &format!("CREATE USER {ACCOUNT}@'%' IDENTIFIED BY '{PASSWORD}'"),
            &format!("GRANT ALL ON *.* TO {ACCOUNT}@'%'"),
        ])?;
        self.members[1..].iter().try_for_each(join)
    }

    /// Whether every member says that it is online.
    fn is_whole(&self) -> io::Result<bool> {
        for member in &self.members {
            if member.role()? == Role::Out {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Index of the member that is primary now; `None` while there is none.
    pub fn primary(&self) -> Option<usize> {
        self.members.iter().position(|member| member.role().is_ok_and(|role| role == Role::Primary))
    }

    /// Makes member `index` leave in the given way. Returns at once, except that [`Departure::Switchover`]
    /// waits for its statement.
    pub fn depart(&self, index: usize, departure: Departure) -> io::Result<()> {
        match departure {
            Departure::Crash => self.members[index].signal(Signal::KILL),
            Departure::Shutdown => self.members[index].signal(Signal::TERM),
            Departure::Switchover => self.make_primary((index + 1) % MEMBERS),
        }
    }

    /// Hands the role of primary to member `index`.
    pub fn make_primary(&self, index: usize) -> io::Result<()> {
        let member = &self.members[index];
        let server: String = member.value("SELECT @@server_uuid")?;
        let statement = format!("SELECT group_replication_set_as_primary('{server}')");
        member.value::<String>(&statement).map(drop)
    }

    /// Starts member `index` again after it crashed or was shut down, and lets it join the group.
    pub fn start_again(&mut self, index: usize) -> io::Result<()> {
        // A member that was told to shut down may take most of a minute; a machine that switches off would
        // not wait longer than this.
        self.members[index].end(Duration::from_secs(10))?;
        let member = &mut self.members[index];
        member.start(&self.tools, self.placement)?;
        member.wait_until_it_answers()?;
        join(member)?;
        self.wait_until(|group| Ok(group.members[index].role()? != Role::Out), "the member is back online")
    }

    /// Waits until every member has applied everything any member has. Err when that takes too long.
    pub fn wait_until_equal(&self) -> io::Result<()> {
        let mut sets = Vec::new();
        for member in &self.members {
            sets.push(member.value::<String>("SELECT @@gtid_executed")?);
        }
        for member in &self.members {
            for set in &sets {
                let statement = format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{set}', {})", PATIENCE.as_secs());
                if member.value::<u32>(&statement)? != 0 {
                    let problem = format!("member {} did not catch up within {PATIENCE:?}", member.number);
                    return Err(io::Error::other(problem));
                }
            }
        }
        Ok(())
    }

    /// Makes the first member primary again and the group complete, as every step expects. Readmits a member
    /// that the others expelled, which happens if it got no processor time for some seconds.
    pub fn restore(&self) -> io::Result<()> {
        for member in &self.members {
            let state: String = member.value(STATE)?;
            if state == "ERROR" || state == "OFFLINE" {
                eprintln!("  cluster: member {} is {state} and joins again", member.number);
                member.execute(&["STOP GROUP_REPLICATION", "START GROUP_REPLICATION"])?;
            }
        }
        self.wait_until(Self::is_whole, "all members are in the group")?;
        if self.primary() != Some(0) {
            self.make_primary(0)?;
        }
        self.wait_until(|group| Ok(group.is_whole()? && group.primary() == Some(0)), "member 1 is primary")
    }

    fn wait_until(&self, holds: impl Fn(&Self) -> io::Result<bool>, what: &str) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            let answer = holds(self);
            if answer.as_ref().is_ok_and(|holds| *holds) {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                let why = answer.err().map_or_else(String::new, |error| format!(" ({error})"));
                return Err(io::Error::other(format!("waited {PATIENCE:?} in vain until {what}{why}")));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Lets a member join the group. On a machine that has no processor time for it, a server may give up
/// (error 3092); then it tries again.
fn join(member: &Member) -> io::Result<()> {
    for _ in 1..JOIN_ATTEMPTS {
        match member.execute(&["START GROUP_REPLICATION"]) {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("  cluster: {error}; it joins again"),
        }
        member.execute(&["STOP GROUP_REPLICATION"])?;
    }
    member.execute(&["START GROUP_REPLICATION"])
}
