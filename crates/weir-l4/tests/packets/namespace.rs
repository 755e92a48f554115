//! A network namespace with three interfaces, routes and neighbours: what the kernel's look-up of a way out
//! goes by.

use std::fs::File;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use rustix::thread::LinkNameSpaceType;

use crate::frames::Mac;

/// Where a packet comes in, or goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub interface: u32,
    pub mac: Mac,
    /// The neighbour that packets go to by it.
    pub neighbour: Mac,
}

/// Clients are behind a router of this one's network.
pub const CLIENTS: Device = Device { interface: 10, mac: [2, 0, 0, 0, 1, 1], neighbour: [2, 0, 0, 0, 1, 9] };
/// Backends are on this one's network; `neighbour` is the first of them.
pub const BACKENDS: Device =
    Device { interface: 20, mac: [2, 0, 0, 0, 2, 1], neighbour: [2, 0, 0, 0, 2, 11] };
/// Packets of more than [`NARROW_MTU`] bytes do not fit; its network is 10.3.0.0/24 and fd03::/64.
pub const NARROW: Device = Device { interface: 30, mac: [2, 0, 0, 0, 3, 1], neighbour: [2, 0, 0, 0, 3, 11] };

pub const NARROW_MTU: u16 = 1400;
/// Of the route to 10.4.0.0/24 and fd04::/64, by [`BACKENDS`].
pub const ROUTE_MTU: u16 = 1300;

/// Backends of a network that have a neighbour entry.
pub const HOSTS: u8 = 16;

const SYSCTLS: &str = "
    ipv4/ip_forward=1
    ipv6/conf/all/forwarding=1
    ipv6/conf/default/accept_dad=0
    ipv6/conf/all/accept_dad=0
";

fn script() -> String {
    let mut lines = vec!["link set lo up".to_owned()];
    for (name, device, network) in [("clients", CLIENTS, 1), ("backends", BACKENDS, 2), ("narrow", NARROW, 3)]
    {
        let (mac, index) = (shown(device.mac), device.interface);
        let other = index + 1;
        lines.push(format!(
            "link add {name} index {index} address {mac} type veth peer name {name}-end index {other}"
        ));
        lines.push(format!("link set {name}-end up"));
        lines.push(format!("link set {name} up"));
        lines.push(format!("addr add 10.{network}.0.1/24 dev {name}"));
        lines.push(format!("addr add fd0{network}::1/64 dev {name} nodad"));
        for host in (9..=9).chain(11..11 + HOSTS) {
            let mac = shown([2, 0, 0, 0, network, host]);
            lines.push(format!("neigh add 10.{network}.0.{host} lladdr {mac} dev {name} nud permanent"));
            lines.push(format!("neigh add fd0{network}::{host:x} lladdr {mac} dev {name} nud permanent"));
        }
    }
    lines.push(format!("link set narrow mtu {NARROW_MTU}"));
    for (to, family) in [("198.51.100.0/24", 4), ("198.18.0.0/15", 4), ("2001:db8:c::/48", 6)] {
        lines.push(format!("route add {to} via {}", if family == 4 { "10.1.0.9" } else { "fd01::9" }));
    }
    lines.push(format!("route add 10.4.0.0/24 via 10.2.0.9 mtu lock {ROUTE_MTU}"));
    lines.push(format!("route add fd04::/64 via fd02::9 mtu lock {ROUTE_MTU}"));
    for kind in ["blackhole", "unreachable", "prohibit"] {
        let last = kind.len();
        lines.push(format!("route add {kind} 10.5.{last}.0/24"));
        lines.push(format!("route add {kind} fd05:{last:x}::/64"));
    }
    lines.join("\n") + "\n"
}

fn shown(mac: Mac) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// A network namespace. It lasts as long as this, or a thread inside.
pub struct Namespace {
    file: File,
}

impl Namespace {
    pub fn new() -> Namespace {
        let settings = SYSCTLS.split_whitespace().map(|line| {
            let (name, value) = line.split_once('=').expect("each has a value");
            format!("echo {value} > /proc/sys/net/{name}\n")
        });
        let commands = settings.collect::<String>() + "ip -batch - && echo ready && exec sleep 60";
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-ec", &commands])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`unshare` of util-linux is needed (xtask/setup.sh)");
        // Where it ends early, what it said says more than this does.
        let _ = child.stdin.take().expect("it is piped").write_all(script().as_bytes());
        let mut said = [0; 6];
        let heard = child.stdout.take().expect("it is piped").read_exact(&mut said);
        let file = File::open(format!("/proc/{}/ns/net", child.id()));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert!(
            heard.is_ok() && said == *b"ready\n",
            "no network namespace with three veth pairs could be made: root (CAP_SYS_ADMIN, CAP_NET_ADMIN) and \
             `ip` of iproute2 are needed (xtask/setup.sh)"
        );
        Namespace { file: file.expect("a process has a network namespace") }
    }

    /// Moves the calling thread inside.
    pub fn enter(&self) {
        rustix::thread::move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root may enter a network namespace");
    }
}

/// Whether the host of the namespace that the thread is in forwards packets.
pub fn set_forwarding(is_on: bool) {
    for name in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/net/{name}"), if is_on { "1" } else { "0" })
            .unwrap_or_else(|error| panic!("/proc/sys/net/{name} can't be written: {error}"));
    }
}

/// Changes the entry of a neighbour on the backends' network, in the namespace that the thread is in.
pub fn set_neighbour(address: IpAddr, mac: Mac) {
    let (address, mac) = (address.to_string(), shown(mac));
    let done = Command::new("ip")
        .args(["neigh", "replace", &address, "lladdr", &mac, "dev", "backends", "nud", "permanent"])
        .status();
    assert!(done.is_ok_and(|status| status.success()), "`ip neigh replace {address}`");
}
