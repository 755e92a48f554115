//! What is to be forwarded, as plain values: the control side makes them from a snapshot, and they are all
//! that this crate is told.

use std::collections::BTreeSet;
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::layout::{Algorithm, Forward, HashKey};

/// Everything that is to be forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Listeners, with unique names.
    pub listeners: Vec<Listener>,
    /// Pools, with unique names.
    pub pools: Vec<Pool>,
    /// What is kept for the flows of removed listeners.
    pub leaving: Leaving,
}

/// Numbers that stay in use although nothing wanted has them, because flows refer to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Of listeners.
    pub listeners: BTreeSet<u32>,
    /// Of backends, which are left unchanged.
    pub backends: BTreeSet<u32>,
}

/// Where clients send packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name in the config, which also identifies its counters.
    pub name: String,
    /// Addresses and ports; no wildcards.
    pub addresses: Vec<PortSpan>,
    /// [`TCP`](crate::layout::TCP) or [`UDP`](crate::layout::UDP).
    pub protocol: u8,
    /// Name of the pool that takes its flows.
    pub pool: String,
    /// Clients that are refused: address and prefix length. The longest matching prefix of both lists
    /// decides; if it is in both, this one does.
    pub deny: Vec<(IpAddr, u8)>,
    /// Clients that are admitted; if there are any, no others are.
    pub allow: Vec<(IpAddr, u8)>,
    /// How its packets are forwarded.
    pub forward: Forward,
    /// Source addresses for full-NAT, of either family; at most [`MAX_SOURCES`](crate::layout::MAX_SOURCES)
    /// of each, further ones are ignored. For IP-in-IP the first of each family is the source of outer
    /// headers.
    pub sources: Vec<IpAddr>,
    /// Whether this host's sockets may have connections to it, whose packets are left to them.
    pub asks_host: bool,
    /// Indexes of the interfaces through which clients may begin flows; `None` for all to which the program
    /// is attached.
    pub interfaces: Option<BTreeSet<u32>>,
    /// Ports of the source addresses that no flow of this host itself uses: the first and the last.
    pub source_ports: (u16, u16),
}

/// An address with one port, or with several consecutive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortSpan {
    /// The address with the first port.
    pub first: SocketAddr,
    /// The last port, not below the first.
    pub last_port: u16,
}

impl PortSpan {
    /// Its ports.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.first.port()..=self.last_port
    }

    /// The address with each of its ports.
    pub fn each(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let ip = self.first.ip();
        self.ports().map(move |port| SocketAddr::new(ip, port))
    }
}

impl From<SocketAddr> for PortSpan {
    fn from(at: SocketAddr) -> PortSpan {
        PortSpan { first: at, last_port: at.port() }
    }
}

/// Parses an address with one port.
impl FromStr for PortSpan {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<PortSpan, AddrParseError> {
        text.parse().map(|at: SocketAddr| at.into())
    }
}

/// Where packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name in the config.
    pub name: String,
    /// How a member is chosen.
    pub algorithm: Algorithm,
    /// What is hashed, if it is chosen by a hash.
    pub hash_key: HashKey,
    /// Its backends.
    pub members: Vec<Member>,
}

/// A backend of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// [`weir_balance::Backend::id`].
    pub id: u64,
    /// Its address; port 0 keeps the port that the client asked for.
    pub address: SocketAddr,
    /// Share of new flows, in hundredths; with 0 it gets none.
    pub weight: u32,
    /// Whether its flows continue. A backend that is down loses them: UDP flows move, TCP connections are
    /// reset.
    pub is_alive: bool,
    /// This host's address for outer headers to it, if the listener has no source.
    pub source: Option<IpAddr>,
    /// The period in which failed connections of one client count as one; zero if failures are not evaluated.
    pub failures_within: Duration,
}
