//! Namespaces for the measurement: a network, processes and mounts that nothing else sees and that end with
//! the lab.
//!
//! As root, the lab starts itself again inside new namespaces and waits for that process. The network has
//! only a loopback device: all ports are free, no other traffic or `TIME_WAIT` sockets interfere, and
//! settings don't affect the machine. The inner lab is process 1 of its PID namespace: however the outer one
//! ends, by Ctrl-C, SIGTERM or SIGKILL, the kernel kills the inner one and every process in there; the mounts
//! and networks go with the last of them.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::process;
use crate::workplace::Workplace;

/// Environment variable that is set inside.
const INSIDE: &str = "WEIR_LAB_ENCLOSED";
/// The workplace inside, on a file system that ends with the enclosure.
pub const WORKPLACE: &str = "/run/weir-lab";

/// Network settings: the simplest congestion control, because pacing ones (bbr) make loopback figures noisy,
/// and as many client ports as possible, because tens of thousands of connections wait in `TIME_WAIT`.
const SETTINGS: [(&str, &str); 2] =
    [("ipv4/tcp_congestion_control", "reno"), ("ipv4/ip_local_port_range", "10240 65535")];

/// Where the lab runs.
pub enum Enclosure {
    /// The inner lab has ended with this code; nothing is left to do.
    Ended(ExitCode),
    /// Inside an enclosure of its own.
    Enclosed(Workplace),
    /// On the machine itself: not root, `unshare` or `ip` is missing, or the user asked for it.
    Open(Workplace),
}

/// Encloses this program unless `open`, by starting it again and waiting for it.
///
/// Err if the machine has the means but it fails.
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

/// Prepares this process's network namespace: brings loopback up and applies the lab's settings and `more`.
/// Each setting is a path under `/proc/sys/net` and its value.
pub fn settle_network(more: &[(&str, &str)]) -> io::Result<()> {
    run(&["ip", "link", "set", "lo", "up"])?;
    for (name, value) in SETTINGS.iter().chain(more) {
        let path = format!("/proc/sys/net/{name}");
        match fs::write(&path, value) {
            // A feature that this kernel lacks, such as IPv6, needs no setting.
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

/// The congestion control of new connections here.
pub fn congestion_control() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default().trim().to_owned()
}
