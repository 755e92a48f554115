//! Network namespaces: a client, Weir and its backends as hosts of their own, joined by veth pairs.
//!
//! The test's own thread moves into Weir's host, so that the program it starts and the admin API are there;
//! clients and backends are threads in other hosts. Needs root.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::mount::{MountFlags, mount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::dialogue::{SLOWNESS, until_within};

mod pair;
mod trunk;

pub use trunk::Trunk;

static MADE: AtomicU32 = AtomicU32::new(0);
static MOUNTED: Once = Once::new();

/// Where systemd mounts the BPF file system; a container or a minimal root lacks it.
const BPF: &str = "/sys/fs/bpf";

fn mount_bpf() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let is_bpf = |line: &str| line.split(' ').skip(1).take(2).eq([BPF, "bpf"]);
    if !mounts.lines().any(is_bpf) {
        mount("bpf", BPF, "bpf", MountFlags::empty(), None)
            .unwrap_or_else(|problem| panic!("{BPF}: {problem} (needs root)"));
    }
}

/// Hosts: `client`, `weir`, and `server1` and so on, each server on a link of its own.
///
/// The client has 10.50.1.2 and fd50:1::2, server N 10.50.(10+N).2 and fd50:(10+N)::2, and Weir the addresses
/// that end in 1. Whatever is neither leads to Weir, so that any other address may be a listener's.
#[derive(Debug)]
pub struct Network {
    name: String,
    hosts: Vec<String>,
}

impl Network {
    /// Makes the hosts and moves this thread into Weir's.
    pub fn enter(servers: usize) -> Network {
        let mut network = Network::empty();
        for host in ["client".to_owned(), "weir".to_owned()] {
            network.add(&host);
        }
        network.join("client", 1);
        for server in 1..=servers {
            let host = format!("server{server}");
            network.add(&host);
            network.join(&host, 10 + server);
        }
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            network.sets("weir", key, "1");
        }
        // Any user may run it: see WEIR_TEST_CAPABILITIES.
        network.sets("weir", "net.ipv4.ip_unprivileged_port_start", "0");
        network.move_to("weir");
        network
    }

    fn empty() -> Network {
        MOUNTED.call_once(mount_bpf);
        let name = format!("w{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        Network { name, hosts: Vec::new() }
    }

    fn add(&mut self, host: &str) {
        let full = self.full(host);
        run(&["ip", "netns", "add", &full]);
        self.hosts.push(full);
        // Addresses are usable at once, without duplicate address detection.
        for key in ["net.ipv6.conf.default.accept_dad", "net.ipv6.conf.all.accept_dad"] {
            self.sets(host, key, "0");
        }
        self.run(host, &["ip", "link", "set", "lo", "up"]);
    }

    /// A link between a host and Weir's.
    fn join(&self, host: &str, net: usize) {
        let (here, there) = (format!("to_{host}"), "uplink");
        let (weir, host) = (self.full("weir"), self.full(host));
        link(&weir, &here, &host, there);
        for (ns, device, last) in [(&weir, here.as_str(), 1), (&host, there, 2)] {
            run(&["ip", "-n", ns, "addr", "add", &format!("10.50.{net}.{last}/24"), "dev", device]);
            run(&["ip", "-n", ns, "addr", "add", &format!("fd50:{net}::{last}/64"), "dev", device, "nodad"]);
            run(&["ip", "-n", ns, "link", "set", device, "up"]);
        }
        run(&["ip", "-n", &host, "route", "add", "default", "via", &format!("10.50.{net}.1")]);
        run(&["ip", "-n", &host, "-6", "route", "add", "default", "via", &format!("fd50:{net}::1")]);
    }

    /// Recreates the link between a host and Weir's after one end was deleted: the new interfaces have the
    /// same names and addresses.
    pub fn links_again(&self, host: &str, net: usize) {
        self.join(host, net);
    }

    /// A link between two hosts, with the networks 10.60.`net`.0/24 and fd60:`net`::/64: the first one has 1
    /// there, the other 2. Its ends are named by the hosts that they lead to.
    pub fn links(&self, one: &str, other: &str, net: usize) {
        let (there, here) = (self.full(one), self.full(other));
        let (to_other, to_one) = (format!("to_{other}"), format!("to_{one}"));
        link(&there, &to_other, &here, &to_one);
        for (host, device, last) in [(one, to_other, 1), (other, to_one, 2)] {
            self.run(host, &["ip", "addr", "add", &format!("10.60.{net}.{last}/24"), "dev", &device]);
            self.run(
                host,
                &["ip", "addr", "add", &format!("fd60:{net}::{last}/64"), "dev", &device, "nodad"],
            );
            self.run(host, &["ip", "link", "set", &device, "up"]);
        }
    }

    /// Makes a second host of Weir's, `other`, with links of its own to the client and to all servers, and
    /// moves this thread there. Nobody's route leads through it yet; see [`Network::leads_to_other`].
    pub fn adds_other(&mut self, servers: usize) {
        self.add("other");
        for (host, net) in self.neighbours(servers) {
            let (there, here) = (self.full(&host), format!("to_{host}"));
            let other = self.full("other");
            link(&other, &here, &there, "second");
            for (ns, device, last) in [(&other, here.as_str(), 1), (&there, "second", 2)] {
                let address = format!("10.50.{}.{last}/24", net + 100);
                run(&["ip", "-n", ns, "addr", "add", &address, "dev", device]);
                run(&["ip", "-n", ns, "link", "set", device, "up"]);
            }
            let (known_as, gateway) = (format!("10.50.{net}.2/32"), format!("10.50.{}.2", net + 100));
            run(&["ip", "-n", &other, "route", "add", &known_as, "via", &gateway]);
        }
        self.move_to("other");
    }

    /// Makes the client and all servers send through the second host of Weir's, over IPv4.
    pub fn leads_to_other(&self, servers: usize) {
        for (host, net) in self.neighbours(servers) {
            let gateway = format!("10.50.{}.1", net + 100);
            run(&["ip", "-n", &self.full(&host), "route", "replace", "default", "via", &gateway]);
        }
    }

    /// Hosts on links of Weir's, with the number of each link's network.
    fn neighbours(&self, servers: usize) -> Vec<(String, usize)> {
        let servers = (1..=servers).map(|number| (format!("server{number}"), 10 + number));
        std::iter::once(("client".to_owned(), 1)).chain(servers).collect()
    }

    /// The namespace that a host is, as ip(8) names it.
    pub fn full(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    /// A directory of the BPF file system that is this test's own.
    pub fn bpf_directory(&self) -> String {
        format!("{BPF}/{}", self.name)
    }

    /// Runs a program in a host; panics with its output if it fails.
    pub fn run(&self, host: &str, words: &[&str]) -> String {
        let full = self.full(host);
        let mut all = vec!["ip", "netns", "exec", full.as_str()];
        all.extend(words);
        run(&all)
    }

    /// Sets a variable of sysctl(8) in a host.
    pub fn sets(&self, host: &str, key: &str, value: &str) {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        self.on(host, || {
            std::fs::write(&path, value).unwrap_or_else(|problem| panic!("{path}: {problem} (needs root)"));
        });
    }

    /// Moves this thread into a host.
    pub fn move_to(&self, host: &str) {
        let path = format!("/run/netns/{}", self.full(host));
        let namespace = File::open(&path).unwrap_or_else(|problem| panic!("{path}: {problem}"));
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .unwrap_or_else(|problem| panic!("{path}: {problem} (needs root)"));
    }

    /// Runs `what` in a host, on a thread of its own: sockets that it opens stay there.
    pub fn on<T: Send>(&self, host: &str, what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                self.move_to(host);
                what()
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The address of a server.
    pub fn server(&self, number: usize, port: u16, is_v6: bool) -> SocketAddr {
        let net = 10 + number;
        let address = if is_v6 { format!("fd50:{net}::2") } else { format!("10.50.{net}.2") };
        SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port)
    }

    /// Makes a server greet each connection by its number and echo what it receives, and answer datagrams by
    /// its number and their content.
    pub fn greets(&self, number: usize, port: u16) {
        for is_v6 in [false, true] {
            self.greets_at(number, self.server(number, port, is_v6).ip(), port);
        }
    }

    /// As [`Network::greets`], at one address of the server.
    pub fn greets_at(&self, number: usize, address: IpAddr, port: u16) {
        let address = SocketAddr::new(address, port);
        let (listener, socket) = self.on(&format!("server{number}"), || {
            // The kernel allows the use of an IPv6 address a moment after it was added.
            let what = format!("an address to listen at, {address}");
            let listener = until_within(PATIENCE, &what, || TcpListener::bind(address).ok());
            let socket = UdpSocket::bind(address).unwrap_or_else(|problem| panic!("{address}: {problem}"));
            (listener, socket)
        });
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let _ = stream.write_all(format!("{number}\n").as_bytes());
                    let mut buffer = [0; 16384];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        if stream.write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((count, from)) = socket.recv_from(&mut buffer) {
                let mut answer = format!("{number}\n").into_bytes();
                answer.extend(&buffer[..count]);
                let _ = socket.send_to(&answer, from);
            }
        });
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            let _ = Command::new("ip").args(["netns", "del", host]).status();
        }
        let _ = std::fs::remove_dir_all(self.bpf_directory());
    }
}

/// Joins two namespaces by a veth pair: a device in the one, its peer in the other.
///
/// Runs in the namespace `one`: before Linux 6.15 a name that exists in the caller's own namespace counts as
/// taken, and a test that enters a second network calls from the first.
fn link(one: &str, device: &str, other: &str, peer: &str) {
    run(&["ip", "-n", one, "link", "add", device, "type", "veth", "peer", "name", peer, "netns", other]);
}

fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|problem| panic!("{}: {problem}", words.join(" ")));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "`{}`: {said}{}(needs root)",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// Longest wait of a client in another host.
pub const PATIENCE: Duration = Duration::from_secs(20 * SLOWNESS);
