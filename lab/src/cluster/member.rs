//! One mysqld of the cluster: its directory, its process and its statements.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use mysql::prelude::{FromRow, Queryable};
use mysql::{Conn, OptsBuilder};
use rustix::process::{Pid, Signal};

use super::{ACCOUNT, PASSWORD, io_error};
use crate::contender::{Tools, fill, free_port};
use crate::process::{Output, Placement, Running};

const TEMPLATE: &str = include_str!("../../cluster/my.cnf");

/// How long a member may take to start or to return before the lab gives up on it. A crashed member on a busy
/// machine recovers within 10 s.
const PATIENCE: Duration = Duration::from_secs(90);

/// A member's role in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Takes writes.
    Primary,
    /// Takes reads only.
    Secondary,
    /// Not in the group, joining it, or unreachable.
    Out,
}

/// One member. Dropping it kills its process.
#[derive(Debug)]
pub struct Member {
    /// From 1; also its `server_id`.
    pub number: usize,
    /// Its MySQL port on 127.0.0.1.
    pub port: u16,
    group_port: u16,
    directory: PathBuf,
    process: Option<Running>,
}

impl Member {
    /// Gives member `number` its ports and its (new) directory. Starts nothing.
    pub fn plan(number: usize, directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        Ok(Self { number, port: free_port()?, group_port: free_port()?, directory, process: None })
    }

    /// `host:port` by which the members reach each other.
    pub fn group_address(&self) -> String {
        format!("127.0.0.1:{}", self.group_port)
    }

    fn config(&self) -> PathBuf {
        self.directory.join("my.cnf")
    }

    /// Where it keeps its data.
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Writes its config. `members` is how many there are, `seeds` their group addresses.
    pub fn write_config(&self, tools: &Tools, members: usize, seeds: &str) -> io::Result<()> {
        // mysqld refuses to run as root unless that is given by name.
        let is_root = rustix::process::geteuid().is_root();
        let values: [(&str, String); 9] = [
            ("peers_root", tools.peers_root.clone()),
            ("directory", self.directory.display().to_string()),
            ("user", if is_root { "root".to_owned() } else { whoami()? }),
            ("number", self.number.to_string()),
            ("port", self.port.to_string()),
            ("group_port", self.group_port.to_string()),
            ("group_name", super::GROUP.to_owned()),
            ("group_seeds", seeds.to_owned()),
            ("election_weight", (100 * (members - self.number + 1) / members).to_string()),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value));
        fs::write(self.config(), fill(TEMPLATE, &values)?)
    }

    fn command(&self, tools: &Tools, more: &[&str]) -> Vec<String> {
        // A member is killed when the lab ends: after SIGTERM, mysqld may take most of a minute.
        let die = ["setpriv", "--pdeathsig", "KILL", "--"];
        let run = [tools.peers.as_str(), "run", "mysqld", "--"];
        let config = format!("--defaults-file={}", self.config().display());
        let mut command: Vec<String> = die.iter().chain(&run).map(|word| (*word).to_owned()).collect();
        command.push(config);
        command.extend(more.iter().map(|word| (*word).to_owned()));
        command
    }

    /// Initialises its data directory. Takes 3 to 7 s.
    pub fn initialise(&self, tools: &Tools, placement: Placement) -> io::Result<()> {
        let log = self.directory.join("initialise.log");
        let command = self.command(tools, &["--initialize-insecure"]);
        Running::start("mysqld", placement, &command, &log, Output::Log)?.finish(PATIENCE).map(drop)
    }

    /// Copies its data directory from `other`, which must not be running, and gives it an identity of its
    /// own.
    pub fn copy_data_of(&self, other: &Self) -> io::Result<()> {
        let status =
            Command::new("cp").args(["-a", "--reflink=auto"]).arg(other.data()).arg(self.data()).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("copying a data directory: cp ended with {status}")));
        }
        // The server's own id is made anew when this file is missing.
        fs::remove_file(self.data().join("auto.cnf"))
    }

    /// Starts mysqld; does not wait for it.
    pub fn start(&mut self, tools: &Tools, placement: Placement) -> io::Result<()> {
        let log = self.directory.join(format!("mysqld-{}.log", std::process::id()));
        let command = self.command(tools, &[]);
        self.process = Some(Running::start("mysqld", placement, &command, &log, Output::Log)?);
        Ok(())
    }

    /// Waits until it accepts connections on its socket. Err with the end of its log if it ends instead.
    pub fn wait_until_it_answers(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            let problem = match self.administrator() {
                Ok(_) => return Ok(()),
                Err(problem) => problem,
            };
            let Some(process) = &mut self.process else {
                return Err(io::Error::other(format!("member {} was not started", self.number)));
            };
            let ended = process.ended()?.map(|status| format!("ended with {status}"));
            let late = (begin.elapsed() > PATIENCE).then(|| format!("did not answer: {problem}"));
            if let Some(problem) = ended.or(late) {
                let tail = process.log_tail();
                return Err(io::Error::other(format!(
                    "member {} {problem}; its log ends:\n{tail}",
                    self.number
                )));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Its process id, if it was started.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Running::id)
    }

    /// Sends its process `signal`. Does nothing if there is none.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = self.process_id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        match pid {
            Some(pid) => Ok(rustix::process::kill_process(pid, signal)?),
            None => Ok(()),
        }
    }

    /// Ends its process: waits for `patience` if it was told to end, then kills it.
    pub fn end(&mut self, patience: Duration) -> io::Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let begin = Instant::now();
        while process.ended()?.is_none() && begin.elapsed() < patience {
            thread::sleep(Duration::from_millis(20));
        }
        self.process = Some(process);
        self.kill();
        Ok(())
    }

    fn kill(&mut self) {
        // The process may be gone already.
        let _ = self.signal(Signal::KILL);
        drop(self.process.take());
    }

    /// A connection as administrator, through its socket.
    pub fn administrator(&self) -> io::Result<Conn> {
        let options = OptsBuilder::new()
            .socket(Some(self.directory.join("socket").display().to_string()))
            .user(Some("root"))
            .read_timeout(Some(PATIENCE));
        Conn::new(options).map_err(io_error)
    }

    /// Runs statements as administrator, one after the other.
    pub fn execute(&self, statements: &[&str]) -> io::Result<()> {
        let mut connection = self.administrator()?;
        for statement in statements {
            connection.query_drop(statement).map_err(|error| {
                io::Error::other(format!("member {}: `{statement}`: {error}", self.number))
            })?;
        }
        Ok(())
    }

    /// The rows of `statement`, asked as administrator.
    pub fn rows<Row: FromRow>(&self, statement: &str) -> io::Result<Vec<Row>> {
        self.administrator()?
            .query(statement)
            .map_err(|error| io::Error::other(format!("member {}: `{statement}`: {error}", self.number)))
    }

    /// The one value `statement` gives.
    pub fn value<Value: mysql::prelude::FromValue>(&self, statement: &str) -> io::Result<Value> {
        let value = self.administrator()?.query_first(statement).map_err(io_error)?;
        value.ok_or_else(|| io::Error::other(format!("member {}: `{statement}` gave no row", self.number)))
    }

    /// Its role in the group, according to itself.
    pub fn role(&self) -> io::Result<Role> {
        role_over(&mut self.administrator()?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The statement that gives a member's state, its role, and how many of how many members it can reach.
const ROLE: &str = "SELECT m.MEMBER_STATE, m.MEMBER_ROLE, \
    (SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE IN ('ONLINE', 'RECOVERING')), \
    (SELECT COUNT(*) FROM performance_schema.replication_group_members) \
    FROM performance_schema.replication_group_members m WHERE m.MEMBER_ID = @@server_uuid";

/// Asks the member at the other end of `connection` for its role. A member that can't reach a majority is
/// out: its own view no longer holds for the others.
pub fn role_over(connection: &mut Conn) -> io::Result<Role> {
    let row: Option<(String, String, u32, u32)> = connection.query_first(ROLE).map_err(io_error)?;
    Ok(match row {
        Some((state, role, reachable, members)) if state == "ONLINE" && 2 * reachable > members => {
            if role == "PRIMARY" { Role::Primary } else { Role::Secondary }
        }
        _ => Role::Out,
    })
}

/// Opens a client's connection to 127.0.0.1:`port`, be that a member or a load balancer. `patience` bounds
/// the connect and each later wait for an answer.
pub fn connect(port: u16, patience: Duration) -> mysql::Result<Conn> {
    let options = OptsBuilder::new()
        .ip_or_hostname(Some(Ipv4Addr::LOCALHOST.to_string()))
        .tcp_port(port)
        .user(Some(ACCOUNT))
        .pass(Some(PASSWORD))
        .db_name(Some(super::DATABASE))
        .prefer_socket(false)
        // Otherwise the client would ask for it on every new connection.
        .max_allowed_packet(Some(1 << 20))
        .tcp_connect_timeout(Some(patience))
        .read_timeout(Some(patience))
        .write_timeout(Some(patience));
    Conn::new(options)
}

fn whoami() -> io::Result<String> {
    let output = Command::new("id").arg("-un").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether `path` may hold a member's socket: the kernel takes 107 bytes.
pub fn socket_fits(path: &Path) -> bool {
    path.join("socket").as_os_str().len() <= 107
}
