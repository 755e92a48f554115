//! A machine of the measurement's own: network, processes and mounts that nobody else sees and that end with
//! the lab.
//!
//! As root the lab starts itself once more inside new namespaces and waits for that. The network has nothing
//! but a loopback device: ports are all free, nobody else's traffic or `TIME_WAIT` sockets are in the way,
//! and settings can be made without touching the machine's. The inner lab is process 1 of its process
//! namespace: however the outer one ends, by Ctrl-C, SIGTERM or SIGKILL, the kernel kills the inner one and
//! with it every process in there, and the last of them takes the mounts and the networks away.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::process;
use crate::workplace::Workplace;

/// Set in the environment once the lab is inside.
const INSIDE: &str = "WEIR_LAB_ENCLOSED";
/// The workplace in there, on a file system that ends with the enclosure.
pub const WORKPLACE: &str = "/run/weir-lab";

/// What the network is set to: the plainest congestion control, because pacing ones (bbr) make loopback
/// figures restless, and as many client ports as there are, because connections by the ten thousand wait in
/// `TIME_WAIT`.
const SETTINGS: [(&str, &str); 2] =
    [("ipv4/tcp_congestion_control", "reno"), ("ipv4/ip_local_port_range", "10240 65535")];

/// Where the lab finds itself.
pub enum Enclosure {
    /// The inner lab has run and ended so; nothing is left to do.
    Ended(ExitCode),
    /// Inside an enclosure of its own.
    Enclosed(Workplace),
    /// On the open machine: not root, or `unshare` or `ip` is missing, or it was not wished for.
    Open(Workplace),
}

/// Encloses this program unless `open`, by starting it anew and waiting for it.
///
/// Err when the machine has what it takes and yet it does not work.
pub fn enter(open: bool) -> io::Result<Enclosure> {
    if std::env::var_os(INSIDE).is_some() {
        settle()?;
        return Ok(Enclosure::Enclosed(Workplace::at(PathBuf::from(WORKPLACE))?));
    }
    let has =
        |program: &str| Command::new(program).arg("-V").output().is_ok_and(|output| output.status.success());
    if open || !rustix::process::geteuid().is_root() || !has("ip") || !has("unshare") {
        return Ok(Enclosure::Open(Workplace::make()?));
    }
    let own = std::env::current_exe()?;
    let unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];
    let inner = unshare.iter().map(OsStr::new).chain([own.as_os_str()]).map(OsStr::to_owned);
    let status = process::bound_to_this_one()
        .args(inner.chain(std::env::args_os().skip(1)))
        .env(INSIDE, "1")
        .status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Enclosure::Ended(code.map_or(ExitCode::FAILURE, ExitCode::from)))
}

fn settle() -> io::Result<()> {
    // `ip netns` keeps its names as files under /run, which would outlive their mounts on the machine's own.
    run(&["mount", "-t", "tmpfs", "-o", "mode=755", "weir-lab", "/run"])?;
    settle_network(&[])
}

/// Makes the network namespace this process is in ready for use: loopback up, the lab's settings and `more`
/// in force. Each setting is a path under `/proc/sys/net` and its value.
pub fn settle_network(more: &[(&str, &str)]) -> io::Result<()> {
    run(&["ip", "link", "set", "lo", "up"])?;
    for (name, value) in SETTINGS.iter().chain(more) {
        let path = format!("/proc/sys/net/{name}");
        match fs::write(&path, value) {
            // What this kernel was built without, IPv6 say, needs no setting.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?,
        }
    }
    Ok(())
}

fn run(command: &[&str]) -> io::Result<()> {
    let status = Command::new(command[0]).args(&command[1..]).status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("`{}` ended with {status}", command.join(" "))))
}

/// The congestion control new connections get here.
pub fn congestion_control() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default().trim().to_owned()
}
