//! A network of the measurement's own.
//!
//! As root the lab moves itself into a new network namespace that has nothing but a loopback device: ports are all
//! free, nobody else's traffic or `TIME_WAIT` sockets are in the way, and settings can be made without touching the
//! machine's.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the environment once the lab is inside.
const INSIDE: &str = "WEIR_LAB_PRIVATE_NETWORK";

/// What a namespace is set to: the plainest congestion control, because pacing ones (bbr) make loopback figures
/// restless, and as many client ports as there are, because connections by the ten thousand wait in `TIME_WAIT`.
const SETTINGS: [(&str, &str); 2] =
    [("ipv4/tcp_congestion_control", "reno"), ("ipv4/ip_local_port_range", "10240 65535")];

/// Moves this program into a private network, by starting itself anew there; returns when it is inside, or when that
/// is impossible (not root, or no `unshare` or `ip`). Tells which.
pub fn enter() -> io::Result<bool> {
    if std::env::var_os(INSIDE).is_some() {
        let status = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("`ip link set lo up` ended with {status}")));
        }
        for (name, value) in SETTINGS {
            fs::write(format!("/proc/sys/net/{name}"), value)?;
        }
        return Ok(true);
    }
    let has_ip = Command::new("ip").arg("-V").output().is_ok_and(|output| output.status.success());
    if !rustix::process::geteuid().is_root() || !has_ip {
        return Ok(false);
    }
    // Only returns when `unshare` cannot be started.
    let _ = Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Ok(false)
}

/// The congestion control new connections get here.
pub fn congestion_control() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default().trim().to_owned()
}
