//! Network namespaces without a name.
//!
//! Only an open file of the lab and the processes inside keep one alive, and these end with the lab
//! ([`crate::enclosure`]). So however the lab ends, no namespace or device is left behind.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::thread::LinkNameSpaceType;

use crate::enclosure;
use crate::process::own_program;

/// A network namespace that exists as long as this value, or a process inside it, does.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Makes a namespace with its loopback device up and the lab's settings. Needs root. `name` is only used
    /// in errors.
    pub fn make(name: &str) -> io::Result<Self> {
        let explain = |problem: String| io::Error::other(format!("network namespace `{name}`: {problem}"));
        // A process of its own makes it, because a thread that has changed its namespace can't be used for
        // anything else.
        let mut maker = Command::new("unshare")
            .args(["--net", "--", &own_program(), "namespace"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| explain(format!("unshare did not start: {error}")))?;
        let mut line = String::new();
        if let Some(output) = maker.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let opened = File::open(format!("/proc/{}/ns/net", maker.id()));
        // The end of its input ends the maker; from here on the open file keeps the namespace.
        let output = maker.wait_with_output()?;
        if line.trim() != READY || !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(explain(format!("its maker ended with {}: {}", output.status, said.trim())));
        }
        Ok(Self { name: name.to_owned(), file: opened? })
    }

    /// A path to the namespace, for as long as this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The command that becomes `program` inside the namespace.
    pub fn command(&self, program: &[String]) -> Vec<String> {
        command_inside(&self.path(), program)
    }

    /// Runs `program` inside to its end with `input`, and returns its output. Err, with its error output, if
    /// it does not exit with 0.
    pub fn run(&self, program: &[String], input: &str) -> io::Result<String> {
        let command = self.command(program);
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut pipe) = child.stdin.take() {
            pipe.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let problem = format!(
                "in `{}`: {} ended with {}: {}",
                self.name,
                program.join(" "),
                output.status,
                said.trim()
            );
            return Err(io::Error::other(problem));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Switches IPv6 on for devices that are added later. It is off elsewhere because it sends packets by
    /// itself.
    pub fn enable_ipv6(&self) -> io::Result<()> {
        // Unlike with IPv4, a route to this host is not enough to listen at an address.
        const SETTINGS: [(&str, u8); 6] = [
            ("conf/all/disable_ipv6", 0),
            ("conf/default/disable_ipv6", 0),
            ("conf/default/accept_dad", 0),
            ("conf/default/router_solicitations", 0),
            ("conf/all/forwarding", 1),
            ("ip_nonlocal_bind", 1),
        ];
        let lines = SETTINGS.map(|(name, value)| format!("echo {value} >/proc/sys/net/ipv6/{name}\n"));
        self.run(&["sh", "-e", "-s"].map(str::to_owned), &lines.concat()).map(drop)
    }

    /// Passes `lines`, which lack their leading `ip`, to ip(8).
    pub fn configure(&self, lines: &[String]) -> io::Result<()> {
        self.run(&["ip", "-batch", "-"].map(str::to_owned), &(lines.join("\n") + "\n")).map(drop)
    }
}

/// What the maker of a namespace prints when the namespace is ready.
pub const READY: &str = "ready";

/// Settings of these namespaces besides those of every private network. The middle one forwards, for
/// contenders in the kernel. Ports in `TIME_WAIT` are reused after a second: one short connection per
/// transaction would use up the ports between load balancer and endpoint in seconds.
const SETTINGS: [(&str, &str); 7] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/tcp_tw_reuse", "1"),
    ("ipv4/tcp_max_syn_backlog", "8192"),
    ("core/somaxconn", "8192"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// Runs as the maker of a namespace: sets up the namespace of this process, prints [`READY`], and waits until
/// another process holds it.
pub fn hold() -> io::Result<()> {
    enclosure::settle_network(&SETTINGS)?;
    println!("{READY}");
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}

/// Moves the calling thread, and no other, into the network namespace at `path`.
pub fn enter(path: &str) -> io::Result<()> {
    let explain = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
    let namespace = File::open(path).map_err(explain)?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| explain(error.into()))
}

/// The command that becomes `program` inside the namespace at `path`.
pub fn command_inside(path: &str, program: &[String]) -> Vec<String> {
    let inside = [own_program(), "inside".to_owned(), format!("--network={path}"), "--".to_owned()];
    inside.into_iter().chain(program.iter().cloned()).collect()
}

/// Becomes `program` in the network namespace at `path`. Returns only when that fails.
pub fn become_inside(path: &str, program: &[String]) -> io::Error {
    let Some((name, arguments)) = program.split_first() else {
        return io::Error::other("nothing to run: a program is expected after `--`");
    };
    if let Err(error) = enter(path) {
        return error;
    }
    let error = Command::new(name).args(arguments).exec();
    io::Error::new(error.kind(), format!("{name} did not start: {error}"))
}
