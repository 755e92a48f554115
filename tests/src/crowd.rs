//! Many concurrent connections through namespaces: they are held, used, and counted if they are lost.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::dialogue::weir_binary;
use crate::network::Network;

/// Longest wait for one answer: longer than a segment that was lost takes to be sent again.
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections that are established at the same time: fewer than a listening socket's backlog.
const AT_ONCE: usize = 64;

/// A backend in a process of its own, whose descriptors are not the test's; ends with this value.
#[derive(Debug)]
pub struct CrowdServer(Child);

impl CrowdServer {
    /// Starts `program` (the built `crowd_server`) in a server's host, at `port` of both its addresses. If it
    /// was built on another machine, it lies beside Weir.
    pub fn start(network: &Network, program: &Path, number: usize, port: u16) -> CrowdServer {
        CrowdServer::start_many(network, program, number, &[(number, port)])
    }

    /// As [`CrowdServer::start`], for several backends: the number and the port of each.
    pub fn start_many(
        network: &Network,
        program: &Path,
        host: usize,
        backends: &[(usize, u16)],
    ) -> CrowdServer {
        let both = |(number, port): &(usize, u16)| {
            [false, true].map(|is_v6| (*number, network.server(host, *port, is_v6)))
        };
        CrowdServer::start_at(network, program, host, &backends.iter().flat_map(both).collect::<Vec<_>>())
    }

    /// As [`CrowdServer::start`], with the number and the address of each backend.
    pub fn start_at(
        network: &Network,
        program: &Path,
        host: usize,
        backends: &[(usize, SocketAddr)],
    ) -> CrowdServer {
        let beside = weir_binary().with_file_name(program.file_name().expect("a file"));
        let program = if program.exists() { program } else { &beside };
        let mut child = network.on(&format!("server{host}"), || {
            let mut command = Command::new(program);
            command.args(backends.iter().map(|(number, address)| format!("{number}={address}")));
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap_or_else(|problem| panic!("{}: {problem}", program.display()))
        });
        let mut line = String::new();
        let said = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
        assert!(said.is_ok() && line == "ready\n", "{}: {line:?}", program.display());
        CrowdServer(child)
    }
}

impl Drop for CrowdServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connections of the client, all of which have been greeted.
#[derive(Debug)]
pub struct Crowd {
    runtime: Runtime,
    members: Vec<Member>,
}

/// A connection and the server that answered it; no stream once it is lost.
#[derive(Debug)]
struct Member {
    stream: Option<TcpStream>,
    server: u8,
    why: String,
}

impl Crowd {
    /// Opens `count` connections to each of `to`; panics if one can't be opened.
    pub fn gather(network: &Network, to: &[SocketAddr], count: usize) -> Crowd {
        let crowd = Crowd::try_gather(network, to, count);
        assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
        crowd
    }

    /// As [`Crowd::gather`], but connections that can't be opened count as lost.
    pub fn try_gather(network: &Network, to: &[SocketAddr], count: usize) -> Crowd {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let all: Vec<SocketAddr> = to.iter().flat_map(|to| std::iter::repeat_n(*to, count)).collect();
        let members = network.on("client", || {
            runtime.block_on(async {
                let mut members = Vec::with_capacity(all.len());
                for some in all.chunks(AT_ONCE) {
                    let made: Vec<_> = some.iter().map(|to| tokio::spawn(begin(*to))).collect();
                    for one in made {
                        members.push(one.await.expect("it does not panic"));
                    }
                }
                members
            })
        });
        Crowd { runtime, members }
    }

    /// Sends something on each connection and waits for the answer. A lost connection stays lost.
    pub fn talks(&mut self) {
        self.runtime.block_on(async {
            for member in &mut self.members {
                if let Some(stream) = &mut member.stream
                    && let Err(problem) = stream.write_all(b"still there?").await
                {
                    member.loses(&problem.to_string());
                }
            }
            for member in &mut self.members {
                let Some(stream) = &mut member.stream else { continue };
                let mut answer = [0; 12];
                match timeout(PATIENCE, stream.read_exact(&mut answer)).await {
                    Ok(Ok(_)) if answer == *b"still there?" => {}
                    Ok(Ok(_)) => member.loses("another answer"),
                    Ok(Err(problem)) => member.loses(&problem.to_string()),
                    Err(_) => member.loses("no answer"),
                }
            }
        });
    }

    /// Talks until `is_done`, at least once; returns how often.
    pub fn talks_until(&mut self, is_done: &AtomicBool) -> usize {
        for round in 1.. {
            let was_done = is_done.load(Ordering::Acquire);
            self.talks();
            if was_done {
                return round;
            }
        }
        unreachable!("rounds do not end by themselves")
    }

    /// How many there were.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Connections that were lost.
    pub fn lost(&self) -> usize {
        self.members.iter().filter(|member| member.stream.is_none()).count()
    }

    /// How connections were lost.
    pub fn why(&self) -> BTreeSet<&str> {
        self.members.iter().filter(|one| one.stream.is_none()).map(|one| one.why.as_str()).collect()
    }

    /// Connections that a server has, lost ones among them.
    pub fn of(&self, server: usize) -> usize {
        self.members.iter().filter(|member| usize::from(member.server) == server).count()
    }

    /// Connections of a server that are lost.
    pub fn lost_of(&self, server: usize) -> usize {
        let of = |member: &&Member| usize::from(member.server) == server && member.stream.is_none();
        self.members.iter().filter(of).count()
    }
}

impl Member {
    fn loses(&mut self, why: &str) {
        self.stream = None;
        why.clone_into(&mut self.why);
    }
}

async fn begin(to: SocketAddr) -> Member {
    let mut member = Member { stream: None, server: 0, why: String::new() };
    let greeted = async {
        let mut stream = TcpStream::connect(to).await?;
        let mut digits = Vec::new();
        loop {
            match stream.read_u8().await? {
                b'\n' => break,
                digit => digits.push(digit),
            }
        }
        std::io::Result::Ok((stream, digits))
    };
    match timeout(PATIENCE, greeted).await {
        Ok(Ok((stream, digits))) => {
            member.server = String::from_utf8_lossy(&digits).parse().expect("a number");
            member.stream = Some(stream);
        }
        Ok(Err(problem)) => member.why = problem.to_string(),
        Err(_) => member.why = "no greeting".to_owned(),
    }
    member
}

/// Segments that a host has retransmitted since it was created.
pub fn sent_again(network: &Network, host: &str) -> u64 {
    let text =
        network.on(host, || std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters of TCP"));
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let place =
        names.split(' ').position(|name| name == "RetransSegs").expect("a counter of segments sent again");
    values.split(' ').nth(place).and_then(|value| value.parse().ok()).expect("a number")
}
