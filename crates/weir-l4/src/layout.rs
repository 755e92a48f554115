//! The content of the maps: the same structs as in `bpf/layout.h`, whose comments describe each field.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::AddAssign;

pub use crate::verdict::Verdict;

/// As `LAYOUT_VERSION` in `bpf/layout.h`.
pub const LAYOUT_VERSION: u32 = 8;
/// Slots in a block.
pub const SLOTS_PER_BLOCK: usize = 32;
/// Blocks of one table.
pub const BLOCKS_PER_TABLE: usize = 2049;
/// TCP's protocol number.
pub const TCP: u8 = 6;
/// UDP's protocol number.
pub const UDP: u8 = 17;

/// An IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub [u8; 16]);

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Address {
        match address {
            IpAddr::V4(address) => Address(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Address(address.octets()),
        }
    }
}

impl From<Address> for IpAddr {
    fn from(Address(octets): Address) -> IpAddr {
        Ipv6Addr::from(octets).to_canonical()
    }
}

/// An address and port that clients send to, or that a backend answers from.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Its address.
    pub address: Address,
    /// Big endian.
    pub port: [u8; 2],
    /// [`TCP`] or [`UDP`].
    pub protocol: u8,
    /// 1 if `address` is not an address, but stands for all backends without a port of their own that the
    /// same listeners use.
    pub is_group: u8,
}

impl Endpoint {
    /// From a socket address and a protocol number.
    pub fn new(address: SocketAddr, protocol: u8) -> Endpoint {
        Endpoint { address: address.ip().into(), port: address.port().to_be_bytes(), protocol, is_group: 0 }
    }
}

/// How packets are forwarded: as `enum forward`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Forward {
    /// The destination becomes that of the backend.
    #[default]
    Nat = 0,
    /// The source also becomes one of the listener's sources.
    FullNat = 1,
    /// Only the MAC addresses change.
    Dsr = 2,
    /// As DSR, but inside an outer header.
    Ipip = 3,
}

/// Most endpoints that clients send to, counting each port; and most that backends answer from.
pub const MOST_ENDPOINTS: u32 = 131_072;

/// Most sources of a listener for each address family.
pub const MAX_SOURCES: u32 = 16;

/// As `struct listener`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// Its number, under which its packets are counted.
    pub number: u32,
    /// Number of its pool.
    pub pool: u32,
    /// First port of its sources.
    pub first_port: u16,
    /// Number of ports of each source.
    pub ports: u16,
    /// Number of sources of this address family.
    pub source_count: u8,
    /// A [`Forward`].
    pub forward: u8,
    /// Whether this host's sockets may have connections to it.
    pub asks_host: u8,
    /// Whether it takes new flows only through its own interfaces.
    pub is_confined: u8,
}

/// As `struct source`: ports of an address from which full-NAT sends.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The first.
    pub first_port: u16,
    /// The last.
    pub last_port: u16,
    /// Number of the listener under which answers without a flow are counted.
    pub listener: u32,
}

/// As `struct network`: which clients a listener admits and refuses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// Number of significant bits in what follows; 32 means all clients.
    pub prefix: u32,
    /// Number of the listener.
    pub listener: u32,
    /// The network's address.
    pub address: Address,
}

impl Network {
    /// All clients of a listener.
    pub fn all(listener: u32) -> Network {
        Network { prefix: 32, listener, address: Address::default() }
    }

    /// The clients of a listener whose addresses have the same first `prefix` bits as `address`, in its
    /// family.
    pub fn of(listener: u32, address: IpAddr, prefix: u8) -> Network {
        let whole = if address.is_ipv4() { 96 } else { 0 };
        Network { prefix: 32 + whole + u32::from(prefix), listener, address: address.into() }
    }
}

/// As `enum admission`: the client may begin flows.
pub const ADMITTED: u32 = 1;
/// It may not.
pub const DENIED: u32 = 2;

const _: () = assert!(size_of::<Network>() == 24);

/// How the program chooses a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Algorithm {
    /// By the hash of the key.
    #[default]
    Hash = 0,
    /// In turn, through the slots.
    Turns = 1,
    /// The backend with the fewest flows for its weight.
    LeastFlows = 2,
}

/// What is hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum HashKey {
    /// The client's address.
    #[default]
    Client = 0,
    /// Addresses, ports and protocol.
    Flow = 1,
}

/// As `struct pool`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// An [`Algorithm`].
    pub algorithm: u32,
    /// A [`HashKey`].
    pub hash_key: u32,
    /// The table in force: 0 or 1.
    pub table: u32,
    /// Number of its slots that have a backend.
    pub slots: u32,
}

/// As `struct slot_block`: numbers of backends.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotBlock {
    /// Numbers.
    pub backends: [u16; SLOTS_PER_BLOCK],
}

/// As `enum backend_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum BackendState {
    /// The number is not in use.
    #[default]
    None = 0,
    /// Its flows continue.
    Alive = 1,
    /// Down or removed.
    Dead = 2,
}

/// As `struct backend`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    /// Its address.
    pub address: Address,
    /// Big endian; 0 keeps the port that the client asked for.
    pub port: [u8; 2],
    /// A [`BackendState`].
    pub state: u8,
    /// 4 or 6.
    pub family: u8,
    /// Incremented when the number is given to another backend.
    pub generation: u32,
    /// In hundredths, above 0.
    pub weight: u32,
    /// Index of the interface that leads to it; 0 if not known.
    pub interface: u32,
    /// The source of outer headers to it, if its listener has none; zero if not known.
    pub source: Address,
    /// The period, in ticks, in which failed connections of one client count as one; 0 if failures are not
    /// evaluated.
    pub failure_ticks: u32,
}

/// Bit of [`Origin::uses`]: a listener uses the backend by NAT.
pub const USE_NAT: u8 = 1;
/// A listener uses the backend by full-NAT.
pub const USE_FULL_NAT: u8 = 2;
/// It is used at whatever port the client asked for.
pub const USE_ANY_PORT: u8 = 4;

/// As `struct origin`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The listener's address; at port 0 with [`USE_ANY_PORT`] that of the group, which has an origin for
    /// each port.
    pub address: Address,
    /// The listener's port, big endian.
    pub port: [u8; 2],
    /// 1 when several listeners use the backend by NAT.
    pub is_ambiguous: u8,
    /// [`USE_NAT`], [`USE_FULL_NAT`], [`USE_ANY_PORT`].
    pub uses: u8,
    /// Number of the listener.
    pub listener: u32,
    /// Number of the backend.
    pub backend: u32,
}

/// As `struct flow_key4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey4 {
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// Big endian.
    pub source_port: [u8; 2],
    /// Big endian.
    pub destination_port: [u8; 2],
    /// [`TCP`] or [`UDP`].
    pub protocol: u8,
    /// Padding.
    pub zero: [u8; 3],
}

/// As `struct flow_key6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey6 {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Big endian.
    pub source_port: [u8; 2],
    /// Big endian.
    pub destination_port: [u8; 2],
    /// [`TCP`] or [`UDP`].
    pub protocol: u8,
    /// Padding.
    pub zero: [u8; 3],
}

impl From<FlowKey6> for FlowKey4 {
    fn from(wide: FlowKey6) -> FlowKey4 {
        let last_four = |address: Address| [address.0[12], address.0[13], address.0[14], address.0[15]];
        FlowKey4 {
            source: last_four(wide.source),
            destination: last_four(wide.destination),
            source_port: wide.source_port,
            destination_port: wide.destination_port,
            protocol: wide.protocol,
            zero: [0; 3],
        }
    }
}

impl From<FlowKey4> for FlowKey6 {
    fn from(narrow: FlowKey4) -> FlowKey6 {
        let wide = |octets: [u8; 4]| Address::from(IpAddr::V4(Ipv4Addr::from(octets)));
        FlowKey6 {
            source: wide(narrow.source),
            destination: wide(narrow.destination),
            source_port: narrow.source_port,
            destination_port: narrow.destination_port,
            protocol: narrow.protocol,
            zero: [0; 3],
        }
    }
}

impl FlowKey6 {
    /// The key of the other direction of a flow.
    pub fn other_way(&self, flow: &Flow) -> FlowKey6 {
        FlowKey6 {
            source: flow.destination,
            destination: flow.source,
            source_port: flow.destination_port,
            destination_port: flow.source_port,
            ..*self
        }
    }
}

/// As `enum direction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From a client to a backend.
    ToBackend = 0,
    /// From a backend to a client.
    ToClient = 1,
    /// Answers to a client that uses a backend by its own address.
    Direct = 2,
}

/// Bits of `enum seen`: what TCP segments were seen in one direction of a flow.
pub const SEEN_SYN: u8 = 1;
/// As [`SEEN_SYN`].
pub const SEEN_FIN: u8 = 2;
/// As [`SEEN_SYN`]; recorded in both directions.
pub const SEEN_RST: u8 = 4;
/// As [`SEEN_SYN`]: a segment without SYN.
pub const SEEN_DATA: u8 = 8;

/// As `struct next_hop`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextHop {
    /// Index of the interface.
    pub interface: u32,
    /// MAC address of the neighbour.
    pub destination_mac: [u8; 6],
    /// MAC address of the interface.
    pub source_mac: [u8; 6],
    /// The MTU for IP packets in bytes; 0 if not known.
    pub mtu: u16,
    /// Whether the other end is in another network namespace of this host.
    pub is_peer: u8,
    /// Padding.
    pub zero: u8,
    /// When it was looked up, in ticks; 0 means never.
    pub resolved_tick: u32,
    /// [`Settings::routes`] at that time.
    pub routes: u32,
}

/// As `struct flow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Source address of its packets when they leave.
    pub source: Address,
    /// Their destination address.
    pub destination: Address,
    /// Big endian.
    pub source_port: [u8; 2],
    /// Big endian.
    pub destination_port: [u8; 2],
    /// Number of its backend.
    pub backend: u32,
    /// [`Backend::generation`] at that time.
    pub generation: u32,
    /// Number of its listener.
    pub listener: u32,
    /// Time of the last packet, in ticks.
    pub last_tick: u32,
    /// A [`Direction`].
    pub direction: u8,
    /// `enum seen`.
    pub seen: u8,
    /// When it was opened, from 1 to 255, while it is in the table of opening flows; otherwise 0.
    pub opened: u8,
    /// A [`Forward`].
    pub forward: u8,
    /// Where it leaves.
    pub next_hop: NextHop,
    /// Sequence number of the backend's latest segment, or of the client's first one while the flow is
    /// opening. With DSR and IP-in-IP, for a connection that its client has ended: when it did, in ticks of
    /// the clock.
    pub sequence: u32,
}

/// As `struct settings`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Incremented when routes, neighbours or devices change.
    pub routes: u32,
    /// 1 when some backend has no port of its own.
    pub has_groups: u32,
}

/// As `struct counter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Packets; a train counts by its segments.
    pub packets: u64,
    /// Bytes of frames.
    pub bytes: u64,
}

/// As `struct backend_counter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCounter {
    /// Flows for which it was chosen.
    pub flows: u64,
    /// Bytes of frames to it.
    pub bytes_to_backend: u64,
    /// Bytes of frames from it.
    pub bytes_to_client: u64,
    /// Connections that it reset before it answered.
    pub refused: u64,
    /// Connections that it had not answered when the client asked again.
    pub unanswered: u64,
    /// Failed connections of either kind, of clients for which one was already counted.
    pub failed_again: u64,
    /// Connections whose client has got an answer from it.
    pub served: u64,
}

impl AddAssign for BackendCounter {
    fn add_assign(&mut self, other: BackendCounter) {
        self.flows += other.flows;
        self.bytes_to_backend += other.bytes_to_backend;
        self.bytes_to_client += other.bytes_to_client;
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.failed_again += other.failed_again;
        self.served += other.served;
    }
}

/// As `enum trace_step`: what the program for explanations records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "bpf/layout.h says what each is, and what its value means")]
pub enum TraceStep {
    Flow = 1,
    Answers,
    Direct,
    BackendGone,
    BeginsAnew,
    Listener,
    Origin,
    Pool,
    SlotByHash,
    SlotByTurn,
    FewestFlows,
    PassedOver,
    Backend,
    NotRemembered,
    Port,
    Interface,
    Way,
    Mtu,
    Verdict,
    HostSocket,
}

impl TraceStep {
    /// All, in the order of their numbers, which start at 1.
    pub const ALL: [TraceStep; 20] = [
        TraceStep::Flow,
        TraceStep::Answers,
        TraceStep::Direct,
        TraceStep::BackendGone,
        TraceStep::BeginsAnew,
        TraceStep::Listener,
        TraceStep::Origin,
        TraceStep::Pool,
        TraceStep::SlotByHash,
        TraceStep::SlotByTurn,
        TraceStep::FewestFlows,
        TraceStep::PassedOver,
        TraceStep::Backend,
        TraceStep::NotRemembered,
        TraceStep::Port,
        TraceStep::Interface,
        TraceStep::Way,
        TraceStep::Mtu,
        TraceStep::Verdict,
        TraceStep::HostSocket,
    ];
}

/// Most steps in a trace.
pub const TRACE_STEPS: usize = 32;

/// As `struct trace_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceEntry {
    /// A [`TraceStep`].
    pub step: u32,
    /// The number beside it.
    pub value: u32,
}

/// As `struct trace`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Number of recorded steps.
    pub count: u32,
    /// Padding.
    pub zero: u32,
    /// The steps.
    pub steps: [TraceEntry; TRACE_STEPS],
}

const _: () = assert!(size_of::<TraceEntry>() == 8);
const _: () = assert!(size_of::<Trace>() == 264);
const _: () = assert!(size_of::<Endpoint>() == 20);
const _: () = assert!(size_of::<Listener>() == 16);
const _: () = assert!(size_of::<Source>() == 8);
const _: () = assert!(size_of::<Pool>() == 16);
const _: () = assert!(size_of::<SlotBlock>() == 64);
const _: () = assert!(size_of::<Backend>() == 52);
const _: () = assert!(size_of::<Origin>() == 28);
const _: () = assert!(size_of::<FlowKey4>() == 16);
const _: () = assert!(size_of::<FlowKey6>() == 40);
const _: () = assert!(size_of::<NextHop>() == 28);
const _: () = assert!(size_of::<Flow>() == 88);
const _: () = assert!(size_of::<Settings>() == 8);
const _: () = assert!(size_of::<Counter>() == 16);
const _: () = assert!(size_of::<BackendCounter>() == 56);
