//! A real group of three servers, which `weir-lab cluster` brings up and holds, and what happens to it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mysql::prelude::Queryable as _;
use mysql::{Conn, OptsBuilder};
use rustix::process::{Pid, Signal, kill_process};
use weir_tests::dialogue::weir_binary;

/// Account of everybody who speaks to the cluster, as the lab makes it.
pub const ACCOUNT: &str = "lab";
/// Its password.
pub const PASSWORD: &str = "weir-lab";

/// The longest that one who asks waits for a server, or for Weir to have one.
const ANSWER: Duration = Duration::from_secs(20);
/// Between two writes through Weir.
const BEAT: Duration = Duration::from_millis(20);
/// How long each of them waits for an answer.
const MOMENT: Duration = Duration::from_millis(500);
/// The longest that a cluster is without a primary.
const LONGEST: Duration = Duration::from_secs(60);

/// The group, ended with this.
pub struct Cluster {
    lab: Child,
    /// Its members.
    pub members: Vec<Member>,
}

/// One server of it.
#[derive(Clone)]
pub struct Member {
    /// Where it takes connections.
    pub address: SocketAddr,
    /// Its data directory, with the certificates that it has made.
    pub data: PathBuf,
}

impl Cluster {
    /// Brings it up. Takes 10 s to a minute, and says what to install when it can't.
    pub fn bring_up() -> Cluster {
        let lab = weir_binary().with_file_name("weir-lab");
        let child = Command::new(&lab)
            .args(["cluster", "--shared-network"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.unwrap_or_else(|problem| {
            panic!("{} does not start: {problem}: run `cargo build -p weir-lab`", lab.display())
        });
        let (said, progress) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let progress = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = BufReader::new(progress).read_to_string(&mut text);
            text
        });
        let lines = BufReader::new(said).lines().map_while(Result::ok);
        let members: Vec<Member> =
            lines.take_while(|line| !line.starts_with("account ")).filter_map(|line| member(&line)).collect();
        if members.len() != 3 {
            let _ = child.kill();
            panic!("the cluster did not come up:\n{}", progress.join().unwrap_or_default());
        }
        Cluster { lab: child, members }
    }

    /// The member at this address.
    pub fn at(&self, address: &str) -> &Member {
        let found = self.members.iter().find(|member| member.address.to_string() == address);
        found.unwrap_or_else(|| panic!("{address} is no member"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The end of its input is its own, with the servers and all that they have written.
        drop(self.lab.stdin.take());
        let begun = Instant::now();
        while begun.elapsed() < ANSWER && matches!(self.lab.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.lab.kill();
        let _ = self.lab.wait();
    }
}

/// `member 1: 127.0.0.1:3306, agent on …, data in DIRECTORY`
fn member(line: &str) -> Option<Member> {
    let mut words = line.strip_prefix("member ")?.split(' ').skip(1);
    let address = words.next()?.trim_end_matches(',').parse().ok()?;
    let data = PathBuf::from(words.last()?);
    Some(Member { address, data })
}

impl Member {
    /// Sends its process a signal.
    pub fn gets(&self, signal: Signal) {
        let text = std::fs::read_to_string(self.data.with_file_name("pid"));
        let text = text.expect("the server runs and says its number");
        let pid = text.trim().parse().ok().and_then(Pid::from_raw).expect("a number");
        kill_process(pid, signal).expect("a process of ours");
    }

    /// Its `server_uuid`.
    pub fn uuid(&self) -> String {
        connect(self.address).and_then(|mut it| it.query_first("SELECT @@server_uuid")).unwrap().unwrap()
    }
}

/// Logs in at an address.
pub fn connect(address: SocketAddr) -> mysql::Result<Conn> {
    connect_within(address, ANSWER)
}

fn connect_within(address: SocketAddr, patience: Duration) -> mysql::Result<Conn> {
    let options = OptsBuilder::new()
        .ip_or_hostname(Some(address.ip().to_string()))
        .tcp_port(address.port())
        .user(Some(ACCOUNT))
        .pass(Some(PASSWORD))
        .prefer_socket(false)
        .tcp_connect_timeout(Some(patience))
        .read_timeout(Some(patience));
    Conn::new(options)
}

/// A write that a server has taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    /// When.
    pub at: Instant,
    /// The same by the clock on the wall, in milliseconds since 1970.
    pub unix_ms: u128,
    /// Which server.
    pub uuid: String,
}

/// Writes a row, again and again on one connection as long as it lasts, until this server takes it, or
/// somebody else does, so that it is `over`.
pub fn write_until_taken(address: SocketAddr, over: &AtomicBool) -> Option<Taken> {
    let end = Instant::now() + LONGEST;
    let mut kept: Option<Conn> = None;
    while Instant::now() < end && !over.load(Ordering::Relaxed) {
        if let Ok(mut connection) = kept.take().map_or_else(|| connect(address), Ok) {
            match write(&mut connection, "") {
                Ok(Some(taken)) => {
                    over.store(true, Ordering::Relaxed);
                    return Some(taken);
                }
                // A server that refuses is there, and may take the next one.
                Ok(None) | Err(mysql::Error::MySqlError(_)) => kept = Some(connection),
                Err(_) => {}
            }
        }
        pause();
    }
    None
}

/// Writes rows, each on a connection of its own and one every [`BEAT`] whatever became of those before, until
/// a server other than `old` takes one. What gets no answer is given up after a [`MOMENT`]: those that a
/// server lets in while it shuts down hang there.
pub fn write_anew_until_taken(address: SocketAddr, old: &str) -> Option<Taken> {
    let (end, over) = (Instant::now() + LONGEST, AtomicBool::new(false));
    let first = Mutex::new(None);
    std::thread::scope(|scope| {
        while Instant::now() < end && !over.load(Ordering::Relaxed) {
            scope.spawn(|| {
                let written = connect_within(address, MOMENT).and_then(|mut it| write(&mut it, old));
                if let Ok(Some(taken)) = written {
                    over.store(true, Ordering::Relaxed);
                    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                    if first.as_ref().is_none_or(|first: &Taken| taken < *first) {
                        *first = Some(taken);
                    }
                }
            });
            std::thread::sleep(BEAT);
        }
    });
    first.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a row, unless it is `old` that would take it.
fn write(connection: &mut Conn, old: &str) -> mysql::Result<Option<Taken>> {
    let uuid: Option<String> = connection.query_first("SELECT @@server_uuid")?;
    let Some(uuid) = uuid.filter(|uuid| uuid != old) else { return Ok(None) };
    connection.query_drop("INSERT INTO weir.writes () VALUES ()")?;
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    Ok(Some(Taken { at: Instant::now(), unix_ms, uuid }))
}

/// Between two tries: no server is to be kept busy by those who wait for it.
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}
