//! What is to be forwarded, as plain values: what the control side makes of a snapshot, and all that this
//! crate is told.

use std::collections::BTreeSet;
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::layout::{Algorithm, Forward, HashKey};

/// Everything that is to be forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Listeners, each with a name of its own.
    pub listeners: Vec<Listener>,
    /// Pools, each with a name of its own.
    pub pools: Vec<Pool>,
    /// What is kept of listeners that are gone, for their flows.
    pub leaving: Leaving,
}

/// Numbers that stay taken though nothing that is wanted has them: flows go by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Of listeners.
    pub listeners: BTreeSet<u32>,
    /// Of backends, which stay as they are.
    pub backends: BTreeSet<u32>,
}

/// Where clients send packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name in the config; its counters live on under it.
    pub name: String,
    /// Addresses and ports; no wildcards.
    pub addresses: Vec<PortSpan>,
    /// [`TCP`](crate::layout::TCP) or [`UDP`](crate::layout::UDP).
    pub protocol: u8,
    /// Name of the pool that takes its flows.
    pub pool: String,
    /// Clients that are kept out: address and length of the prefix. The longest of both lists decides, and of
    /// two that are alike this one.
    pub deny: Vec<(IpAddr, u8)>,
    /// Clients that are let in; where there are any, no others are.
    pub allow: Vec<(IpAddr, u8)>,
    /// What is done to its packets.
    pub forward: Forward,
    /// Addresses that its packets leave from by full-NAT, of either family; at most
    /// [`MAX_SOURCES`](crate::layout::MAX_SOURCES) of each, more are left out. Of IP-in-IP the first of each
    /// is used, for outer headers.
    pub sources: Vec<IpAddr>,
    /// Whether this host's sockets may have connections to it, whose packets are left to them.
    pub asks_host: bool,
    /// Indexes of the interfaces by which clients may begin flows; `None` for all that the program is at.
    pub interfaces: Option<BTreeSet<u32>>,
    /// Ports of these addresses that no flow of this host's own has: the first and the last.
    pub source_ports: (u16, u16),
}

/// An address, at one port or several in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortSpan {
    /// With the first port.
    pub first: SocketAddr,
    /// Not below the first.
    pub last_port: u16,
}

impl PortSpan {
    /// Its ports.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.first.port()..=self.last_port
    }

    /// Each of its ports with the address.
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

/// Of an address with one port.
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
    /// How one of its members is chosen.
    pub algorithm: Algorithm,
    /// What is hashed, where it is chosen by a hash.
    pub hash_key: HashKey,
    /// Its backends.
    pub members: Vec<Member>,
}

/// A backend of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// [`weir_balance::Backend::id`].
    pub id: u64,
    /// Where it is; port 0 keeps the one that the client asked for.
    pub address: SocketAddr,
    /// Share of new flows, in hundredths; 0 gets none.
    pub weight: u32,
    /// Whether its flows go on. A backend that is down loses them: UDP moves, TCP is reset.
    pub is_alive: bool,
    /// The address of this host that outer headers to it come from, where its listener says none.
    pub source: Option<IpAddr>,
    /// For as long connections of one client that fail count as one; zero where nobody weighs them.
    pub failures_within: Duration,
}
