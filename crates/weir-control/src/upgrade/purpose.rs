//! The purpose of each socket that a process hands to the next, as a line of text.

use std::net::SocketAddr;

use weir_config::AdminBind;
use weir_io::at::At;
use weir_quic::cid::Owner;
use weir_state::sockets::{Endpoint, Transport};

/// Appended to the name of a transport: an interface precedes the address.
const OF_INTERFACE: &str = "-of";

/// The line for the lock; an older version takes it for an unknown kind of socket.
const KERNEL_PLANE: &str = "kernel-plane lock";

/// What a passed descriptor is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For a listener.
    Listener(Endpoint),
    /// For the admin API.
    Admin(AdminBind),
    /// A connection to one worker of a process that still has QUIC connections.
    QuicForward(Owner),
    /// For other Weirs that count together with this one.
    Peers(SocketAddr),
    /// Not a socket, but the lock of the kernel plane's directory.
    KernelPlane,
}

impl Purpose {
    pub(super) fn endpoint(self) -> Option<Endpoint> {
        match self {
            Purpose::Listener(endpoint) => Some(endpoint),
            Purpose::Admin(_) | Purpose::QuicForward(_) | Purpose::Peers(_) | Purpose::KernelPlane => None,
        }
    }

    pub(super) fn line(&self) -> String {
        match self {
            Purpose::Listener(Endpoint { transport, at, interface: None }) => {
                format!("{} {at}\n", kind_of(*transport))
            }
            Purpose::Listener(Endpoint { transport, at, interface: Some(interface) }) => {
                format!("{}{OF_INTERFACE} {interface} {at}\n", kind_of(*transport))
            }
            Purpose::Admin(bind) => format!("admin {bind}\n"),
            Purpose::Peers(bind) => format!("peers {bind}\n"),
            Purpose::QuicForward(Owner { process, worker }) => format!("quic-line {process}.{worker}\n"),
            Purpose::KernelPlane => format!("{KERNEL_PLANE}\n"),
        }
    }

    pub(super) fn of_line(line: &str) -> Option<Purpose> {
        if line == KERNEL_PLANE {
            return Some(Purpose::KernelPlane);
        }
        let (kind, address) = line.split_once(' ')?;
        if kind == "quic-line" {
            let (process, worker) = address.split_once('.')?;
            let owner = Owner { process: process.parse().ok()?, worker: worker.parse().ok()? };
            return Some(Purpose::QuicForward(owner));
        }
        if kind == "peers" {
            return address.parse().ok().map(Purpose::Peers);
        }
        if kind == "admin" {
            return address.parse().ok().map(Purpose::Admin);
        }
        let (kind, interface, at) = match kind.strip_suffix(OF_INTERFACE) {
            None => (kind, None, address),
            Some(kind) => {
                let (interface, at) = address.split_once(' ')?;
                (kind, Some(interface.into()), at)
            }
        };
        let at: At = at.parse().ok()?;
        let kinds = [Transport::Tcp, Transport::Udp, Transport::Quic];
        let transport = kinds.into_iter().find(|transport| kind_of(*transport) == kind)?;
        Some(Purpose::Listener(Endpoint { transport, at, interface }))
    }
}

/// The name of a transport in these lines.
fn kind_of(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
        Transport::Quic => "quic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_which_socket_is_meant() {
        let listener = |transport, at: &str, interface: Option<&str>| {
            let interface = interface.map(Into::into);
            Purpose::Listener(Endpoint { transport, at: at.parse().unwrap(), interface })
        };
        for (line, purpose) in [
            ("tcp 127.0.0.1:80", listener(Transport::Tcp, "127.0.0.1:80", None)),
            ("quic [::]:443", listener(Transport::Quic, "[::]:443", None)),
            ("tcp unix:/run/a b.sock", listener(Transport::Tcp, "unix:/run/a b.sock", None)),
            ("tcp-of eth0 127.0.0.1:80", listener(Transport::Tcp, "127.0.0.1:80", Some("eth0"))),
            ("udp-of vrf-a 0.0.0.0:53", listener(Transport::Udp, "0.0.0.0:53", Some("vrf-a"))),
            ("kernel-plane lock", Purpose::KernelPlane),
            ("peers [::1]:4460", Purpose::Peers("[::1]:4460".parse().unwrap())),
            ("quic-of eth0 [fe80::1]:443", listener(Transport::Quic, "[fe80::1]:443", Some("eth0"))),
        ] {
            assert_eq!(Purpose::of_line(line).as_ref(), Some(&purpose));
            assert_eq!(purpose.line(), format!("{line}\n"));
        }
        for line in ["tcp-of eth0", "tcp-of 127.0.0.1:80", "sctp 127.0.0.1:80", "tcp eth0 127.0.0.1:80", ""] {
            assert_eq!(Purpose::of_line(line), None, "{line}");
        }
    }
}
