//! This host's interfaces, addresses and routes, and notification of changes. Read from the kernel with
//! rtnetlink(7).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::layout::Address;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MAC address; zeros if it has no Ethernet address.
    pub mac: [u8; 6],
    /// Whether it is up.
    pub is_up: bool,
    /// Whether its frames have Ethernet headers and no tag of its own VLAN, and it is not the loopback
    /// interface.
    pub is_ethernet: bool,
    /// Whether it is a VLAN that keeps its tag in frames (`reorder_hdr off` of ip-link(8)).
    pub keeps_tags: bool,
    /// Whether it is one end of a veth pair whose other end is in another network namespace.
    pub leads_to_namespace: bool,
    /// Index of the bridge or bond that it is a port of; 0 if none.
    pub port_of: u32,
    /// Whether that is a bond or a team, which itself decides by which of its ports frames may arrive.
    pub is_bonded: bool,
    /// Index of the interface that it lies on top of, as a VLAN or macvlan whose frames that interface does
    /// not receive; 0 if there is none in this namespace.
    pub above: u32,
}

/// A route to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network's address.
    pub network: IpAddr,
    /// Length of its prefix.
    pub prefix: u8,
    /// Among routes to one network, the one with the lowest metric is used (RTA_PRIORITY).
    pub metric: u32,
    /// Index of the interface.
    pub interface: u32,
    /// Whether it leads through a router, and not directly to the link.
    pub is_behind_router: bool,
}

/// As `struct way_out`: the index of an interface, and 1 if the next hop is a router.
pub type WayOut = [u32; 2];

/// Most networks whose routes are stored (`MAX_WAYS`): those with the shortest prefixes.
pub const MOST_WAYS: usize = 4096;

/// The state of this host at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Interfaces.
    pub interfaces: Vec<Interface>,
    /// Its own addresses.
    pub addresses: BTreeSet<Address>,
    /// The same, each with the index of an interface that has it.
    pub holders: BTreeSet<(Address, u32)>,
    /// Unicast routes of the main table.
    pub routes: Vec<Route>,
}

impl Host {
    /// Reads it from the kernel.
    pub fn read() -> io::Result<Host> {
        let mut host = Host::default();
        dump(GET_LINK, ALL, &mut |message| host.interfaces.extend(interface(message)))?;
        dump(GET_ADDRESS, ALL, &mut |message| host.holders.extend(address(message)))?;
        host.addresses = host.holders.iter().map(|(address, _)| *address).collect();
        dump(GET_ROUTE, ALL, &mut |message| host.routes.extend(routes(message)))?;
        Ok(host)
    }

    /// Index of the interface of the longest matching route, with the lowest metric among several; 0 if no
    /// route matches.
    pub fn interface_to(&self, address: IpAddr) -> u32 {
        let address = address.to_canonical();
        let matching = self.routes.iter().filter(|route| route.leads_to(address));
        let preferred = matching.max_by_key(|route| (route.prefix, Reverse(route.metric)));
        preferred.map_or(0, |route| route.interface)
    }

    /// The route to each network, by prefix length (for IPv4 networks plus 96) and address: the first
    /// [`MOST_WAYS`].
    pub fn ways(&self) -> BTreeMap<(u32, Address), WayOut> {
        let mut found: BTreeMap<(u32, Address), (u32, WayOut)> = BTreeMap::new();
        for route in &self.routes {
            let before = if route.network.is_ipv4() { 96 } else { 0 };
            let key = (before + u32::from(route.prefix), Address::from(route.network));
            let way = (route.metric, [route.interface, u32::from(route.is_behind_router)]);
            if found.get(&key).is_none_or(|held| route.metric <= held.0) {
                found.insert(key, way);
            }
        }
        found.into_iter().take(MOST_WAYS).map(|(key, (_, way))| (key, way)).collect()
    }

    /// The source address of this host's own packets to `address`, which is the one that the route prefers.
    /// `None` if there is no route.
    pub fn source_to(address: IpAddr) -> Option<IpAddr> {
        let any =
            if address.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Nothing is sent, and the port does not matter.
        socket.connect((address, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    }

    /// Names of the interfaces that some route leads out through, which is where clients and backends are.
    pub fn routed_interfaces(&self) -> BTreeSet<String> {
        let used: BTreeSet<u32> = self.routes.iter().map(|route| route.interface).collect();
        let chosen =
            self.interfaces.iter().filter(|one| one.is_ethernet && one.is_up && used.contains(&one.index));
        chosen.map(|one| one.name.clone()).collect()
    }

    /// Names of the interfaces that have an address for which `is_wanted` is true.
    pub fn interfaces_with(&self, is_wanted: impl Fn(IpAddr) -> bool) -> BTreeSet<String> {
        let held = self.holders.iter().filter(|(address, _)| is_wanted((*address).into()));
        let holders: BTreeSet<u32> = held.map(|(_, index)| *index).collect();
        let chosen =
            self.interfaces.iter().filter(|one| one.is_ethernet && one.is_up && holders.contains(&one.index));
        chosen.map(|one| one.name.clone()).collect()
    }

    /// An interface that is up, has a wanted name, and whose frames can't be read ([`Interface::is_ethernet`]
    /// is false).
    pub fn of_other_kind(&self, is_wanted: impl Fn(&str) -> bool) -> Option<&Interface> {
        self.interfaces.iter().find(|one| !one.is_ethernet && one.is_up && is_wanted(&one.name))
    }

    /// Names of the Ethernet interfaces that are up and wanted.
    pub fn interfaces_that(&self, is_wanted: impl Fn(&Interface) -> bool) -> BTreeSet<String> {
        let chosen = self.interfaces.iter().filter(|one| one.is_ethernet && one.is_up && is_wanted(one));
        chosen.map(|one| one.name.clone()).collect()
    }

    /// The interfaces that `one` lies on top of as a VLAN or macvlan, nearest first.
    pub fn below<'h>(&'h self, one: &Interface) -> impl Iterator<Item = &'h Interface> + use<'h> {
        let all = &self.interfaces;
        let at = move |index: u32| all.iter().find(|other| index != 0 && other.index == index);
        // The limit guards against a cycle.
        std::iter::successors(at(one.above), move |other| at(other.above)).take(all.len())
    }

    /// The interface with this name.
    pub fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|one| one.name == name)
    }

    /// Name of an interface by its index; `None` where there is none.
    pub fn name_of(&self, index: u32) -> Option<String> {
        self.interfaces.iter().find(|one| one.index == index).map(|one| one.name.clone())
    }

    /// Index of the interface with this name; `None` if there is none.
    pub fn index_of(&self, name: &str) -> Option<u32> {
        self.interfaces.iter().find(|one| one.name == name).map(|one| one.index)
    }

    /// Indexes of the interfaces that lead into other namespaces.
    pub fn local_peers(&self) -> BTreeSet<u32> {
        self.interfaces.iter().filter(|one| one.leads_to_namespace).map(|one| one.index).collect()
    }
}

impl Route {
    fn leads_to(&self, address: IpAddr) -> bool {
        let (bits, one, other) = match (self.network, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                (32, u128::from(one.to_bits()), u128::from(other.to_bits()))
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => (128, one.to_bits(), other.to_bits()),
            _ => return false,
        };
        let rest = bits - u32::from(self.prefix).min(bits);
        one.checked_shr(rest).unwrap_or(0) == other.checked_shr(rest).unwrap_or(0)
    }
}

/// Notifies of changes.
pub struct Watch(OwnedFd);

impl Watch {
    /// Starts to watch.
    pub fn open() -> io::Result<Watch> {
        const LINK: u32 = 0x1;
        const NEIGHBOUR: u32 = 0x4;
        const ADDRESS: u32 = 0x10 | 0x100;
        const ROUTE: u32 = 0x40 | 0x400;
        let socket = open(SocketAddrNetlink::new(0, LINK | NEIGHBOUR | ADDRESS | ROUTE))?;
        Ok(Watch(socket))
    }

    /// Waits for a change; returns whether anything other than neighbours may have changed.
    pub fn wait(&self) -> io::Result<bool> {
        let mut buffer = vec![0; BUFFER];
        let bytes = match rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
            Ok((bytes, _)) => bytes,
            // The socket's buffer overflowed: anything may have changed.
            Err(rustix::io::Errno::NOBUFS) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let is_neighbour = |message: &Message<'_>| (28..=30).contains(&message.kind);
        Ok(messages(&buffer[..bytes]).any(|message| !is_neighbour(&message)))
    }
}

/// Buffer size for one answer of the kernel, which fills at most 32 KiB at a time.
pub(crate) const BUFFER: usize = 64 << 10;
const GET_LINK: u16 = 18;
const GET_ADDRESS: u16 = 22;
const GET_ROUTE: u16 = 26;
const GET_FILTER: u16 = 46;

fn open(at: SocketAddrNetlink) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    // NETLINK_ROUTE, the protocol of rtnetlink, is 0, which is also the default.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &at)?;
    Ok(socket)
}

/// Numbers of the programs in BPF filters at the ingress of an interface (clsact).
pub(crate) fn filters(interface: u32) -> io::Result<Vec<u32>> {
    /// TC_H_CLSACT with TC_H_MIN_INGRESS.
    const INGRESS: u32 = 0xffff_fff2;
    // `struct tcmsg`: the family, the interface, a handle, the parent, and more.
    let mut about = ALL;
    about[4..8].copy_from_slice(&interface.to_ne_bytes());
    about[12..16].copy_from_slice(&INGRESS.to_ne_bytes());
    let mut found = Vec::new();
    dump(GET_FILTER, about, &mut |message| found.extend(program_of_filter(message)))?;
    Ok(found)
}

/// `struct tcmsg` and its attributes; TCA_BPF_ID is among the options of a BPF filter.
fn program_of_filter(message: &Message<'_>) -> Option<u32> {
    let of = |wanted: u16| attributes(message.body, 20).find(|(kind, _)| *kind == wanted);
    of(1).filter(|(_, kind)| kind.starts_with(b"bpf"))?;
    let (_, options) = of(2)?;
    attributes(options, 0).find(|(kind, _)| *kind == 11).and_then(|(_, value)| u32_at(value, 0))
}

/// The part after the header in a request for all objects of a kind.
const ALL: [u8; 20] = [0; 20];

/// Requests all objects of a kind, filtered by `about`, and passes each answer to `take`.
fn dump(kind: u16, about: [u8; 20], take: &mut dyn FnMut(&Message<'_>)) -> io::Result<()> {
    /// NLM_F_REQUEST and NLM_F_DUMP.
    const REQUEST: u16 = 0x301;
    const LENGTH: usize = 16 + 20;
    let socket = open(SocketAddrNetlink::new(0, 0))?;
    let mut request = [0; LENGTH];
    request[..4].copy_from_slice(&(LENGTH as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    request[16..].copy_from_slice(&about);
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let (bytes, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        for message in messages(&buffer[..bytes]) {
            match message.kind {
                DONE => return Ok(()),
                ERROR => return Err(message.error()),
                _ => take(&message),
            }
        }
    }
}

pub(crate) const ERROR: u16 = 2;
pub(crate) const DONE: u16 = 3;

/// One message: its kind, and the bytes after its header.
pub(crate) struct Message<'b> {
    pub(crate) kind: u16,
    pub(crate) body: &'b [u8],
}

impl Message<'_> {
    pub(crate) fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(-(u32_at(self.body, 0).unwrap_or(0) as i32))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// The messages in a buffer, each aligned to four bytes.
pub(crate) fn messages(mut buffer: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(buffer, 0)? as usize;
        let message = Message { kind: u16_at(buffer, 4)?, body: buffer.get(16..length)? };
        buffer = buffer.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes after a message's own header of `head` bytes.
fn attributes(body: &[u8], head: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(head..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        // The upper bits say whether attributes are nested, and their byte order.
        let attribute = (u16_at(rest, 2)? & 0x3fff, rest.get(4..length)?);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

/// `struct ifinfomsg` and its attributes.
fn interface(message: &Message<'_>) -> Option<Interface> {
    const ETHERNET: u16 = 1;
    const UP: u32 = 1;
    const LOOPBACK: u32 = 8;
    let (mut name, mut mac, mut below, mut has_far_end, mut port_of) = (None, [0; 6], 0, false, 0);
    let mut kind = LinkKind::default();
    for (number, value) in attributes(message.body, 16) {
        match number {
            1 => mac = <[u8; 6]>::try_from(value).unwrap_or_default(),
            3 => name = Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()),
            5 => below = u32_at(value, 0).unwrap_or(0),
            10 => port_of = u32_at(value, 0).unwrap_or(0),
            18 => kind = LinkKind::of(value),
            37 => has_far_end = true,
            _ => {}
        }
    }
    let flags = u32_at(message.body, 8)?;
    let is_on_top = matches!(kind.own, b"vlan" | b"macvlan") && !has_far_end;
    Some(Interface {
        index: u32_at(message.body, 4)?,
        name: name?,
        mac,
        is_up: flags & UP != 0,
        is_ethernet: u16_at(message.body, 2)? == ETHERNET && flags & LOOPBACK == 0 && !kind.keeps_tags(),
        keeps_tags: kind.keeps_tags(),
        leads_to_namespace: kind.own == b"veth" && has_far_end,
        port_of,
        is_bonded: matches!(kind.of_port, b"bond" | b"team"),
        above: if is_on_top { below } else { 0 },
    })
}

/// The kind of an interface (IFLA_LINKINFO).
#[derive(Default)]
struct LinkKind<'m> {
    /// Its own kind.
    own: &'m [u8],
    /// The kind of the interface that it is a port of.
    of_port: &'m [u8],
    /// Flags of a VLAN.
    vlan_flags: Option<u32>,
}

impl<'m> LinkKind<'m> {
    fn of(value: &'m [u8]) -> LinkKind<'m> {
        let find = |of: &'m [u8], wanted: u16| {
            attributes(of, 0).find(|(number, _)| *number == wanted).map(|(_, value)| value)
        };
        let word = |wanted: u16| find(value, wanted).and_then(|text| text.split(|byte| *byte == 0).next());
        let (own, of_port) = (word(1).unwrap_or_default(), word(4).unwrap_or_default());
        // `struct ifla_vlan_flags`: the flags and their mask. The kernel omits it if no flag is set.
        let data = find(value, 2).filter(|_| own == b"vlan");
        let flags = |data| find(data, 2).and_then(|flags| u32_at(flags, 0)).unwrap_or(0);
        LinkKind { own, of_port, vlan_flags: data.map(flags) }
    }

    fn keeps_tags(&self) -> bool {
        const REORDERS: u32 = 1;
        self.vlan_flags.is_some_and(|flags| flags & REORDERS == 0)
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into())
}

/// `struct ifaddrmsg` and its attributes: an address, and the index of its interface.
fn address(message: &Message<'_>) -> Option<(Address, u32)> {
    let of = |wanted: u16| {
        attributes(message.body, 8).find(|(kind, _)| *kind == wanted).and_then(|(_, value)| ip(value))
    };
    // On a point-to-point link one address is the far end's, the other our own.
    let found = of(2).or_else(|| of(1)).map(Address::from)?;
    Some((found, u32_at(message.body, 4)?))
}

/// `struct rtmsg` and its attributes: one route for each next hop.
fn routes(message: &Message<'_>) -> Vec<Route> {
    const UNICAST: u8 = 1;
    const MAIN: u8 = 254;
    let [family, prefix, _, _, table, _, _, kind, ..] = *message.body else { return Vec::new() };
    if kind != UNICAST || table != MAIN {
        return Vec::new();
    }
    let any = if family == 2 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let (mut network, mut metric, mut is_behind, mut ways) = (any, 0, false, Vec::new());
    for (kind, value) in attributes(message.body, 12) {
        match kind {
            1 => network = ip(value).unwrap_or(any),
            4 => ways.extend(u32_at(value, 0).map(|interface| (interface, false))),
            5 | 18 => is_behind = true,
            6 => metric = u32_at(value, 0).unwrap_or(0),
            9 => ways.extend(several_ways(value)),
            _ => {}
        }
    }
    let route = |(interface, by_router): (u32, bool)| {
        let is_behind_router = is_behind || by_router;
        Route { network, prefix, metric, interface, is_behind_router }
    };
    ways.into_iter().map(route).collect()
}

/// Interfaces in a list of `struct rtnexthop`, and whether the next hop is a router (RTA_GATEWAY, RTA_VIA).
fn several_ways(mut list: &[u8]) -> Vec<(u32, bool)> {
    let mut found = Vec::new();
    while let (Some(length), Some(interface)) = (u16_at(list, 0), u32_at(list, 4)) {
        let one = list.get(..usize::from(length)).unwrap_or_default();
        found.push((interface, attributes(one, 8).any(|(kind, _)| matches!(kind, 5 | 18))));
        list = list.get(usize::from(length).next_multiple_of(4).max(8)..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_this_host_has() {
        let host = Host::read().expect("rtnetlink answers");
        let loopback = host.interfaces.iter().find(|one| one.name == "lo").expect("a loopback");
        assert!(!loopback.is_ethernet);
        assert!(!host.routed_interfaces().contains("lo"));
    }

    /// An attribute as the kernel encodes it: length, number and value, padded to 32 bits.
    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [((value.len() + 4) as u16).to_ne_bytes(), number.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Reads an Ethernet interface that is up and has index 7.
    fn read_interface(attributes: &[Vec<u8>]) -> Interface {
        let mut body = vec![0; 16];
        body[2..4].copy_from_slice(&1_u16.to_ne_bytes());
        body[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        body[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        body.extend(attributes.concat());
        interface(&Message { kind: 16, body: &body }).expect("it has a name")
    }

    #[test]
    fn vlans_and_ports_of_bonds_are_known_by_their_kind() {
        let link = attribute(5, &3_u32.to_ne_bytes());
        let vlan = |flags: u32| {
            let set = attribute(2, &[flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat());
            // Like the kernel, omits the attribute if no flag is set.
            let data = [attribute(1, &100_u16.to_ne_bytes()), if flags == 0 { Vec::new() } else { set }];
            attribute(18, &[attribute(1, b"vlan\0"), attribute(2, &data.concat())].concat())
        };
        let name = attribute(3, b"eth0.100\0");
        let found = read_interface(&[name.clone(), link.clone(), vlan(1)]);
        assert!(found.is_up && found.is_ethernet && !found.keeps_tags && !found.is_bonded);
        assert_eq!((found.name.as_str(), found.index, found.above), ("eth0.100", 7, 3));
        // Frames keep their tags.
        let found = read_interface(&[name.clone(), link.clone(), vlan(0)]);
        assert!(found.keeps_tags && !found.is_ethernet);
        // The interface below it is in another namespace.
        let elsewhere = attribute(37, &[0; 4]);
        assert_eq!(read_interface(&[name.clone(), link.clone(), vlan(1), elsewhere]).above, 0);
        // The other end of a veth pair is not an interface below it.
        let veth = attribute(18, &attribute(1, b"veth\0"));
        assert_eq!(read_interface(&[name.clone(), link, veth]).above, 0);
        let port = |kind: &[u8]| {
            let found = read_interface(&[
                name.clone(),
                attribute(10, &5_u32.to_ne_bytes()),
                attribute(18, &attribute(4, kind)),
            ]);
            (found.port_of, found.is_bonded)
        };
        assert_eq!([port(b"bond\0"), port(b"team\0"), port(b"bridge\0")], [(5, true), (5, true), (5, false)]);
    }

    fn route(network: &str, prefix: u8, interface: u32) -> Route {
        let network = network.parse().unwrap();
        Route { network, prefix, metric: 0, interface, is_behind_router: false }
    }

    /// The last of them led: where the host does not forward, packets went by the standby.
    #[test]
    fn of_two_routes_to_a_network_the_one_of_the_least_metric_leads() {
        for (network, inside) in [("10.77.0.0", "10.77.0.1"), ("fd77::", "fd77::1")] {
            let prefix = if inside.contains(':') { 64 } else { 24 };
            let by = |metric, interface| Route { metric, ..route(network, prefix, interface) };
            let wider = Route { metric: 1, ..route(network, prefix - 8, 9) };
            for routes in [[by(100, 2), by(200, 3), wider], [by(200, 3), wider, by(100, 2)]] {
                let host = Host { routes: routes.to_vec(), ..Host::default() };
                assert_eq!(host.interface_to(inside.parse().unwrap()), 2);
                assert_eq!(host.ways().values().copied().collect::<Vec<_>>(), [[9, 0], [2, 0]]);
            }
        }
    }

    /// As the kernel says 10.77.0.0/24 with metric 100 (`struct rtmsg`, RTA_DST, RTA_PRIORITY, RTA_OIF).
    #[test]
    fn a_routes_metric_is_read() {
        let head = [2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        let attribute = |kind: u16, value: [u8; 4]| {
            [8_u16.to_ne_bytes(), kind.to_ne_bytes(), [value[0], value[1]], [value[2], value[3]]].concat()
        };
        let body = [
            head.to_vec(),
            attribute(1, [10, 77, 0, 0]),
            attribute(6, 100_u32.to_ne_bytes()),
            attribute(4, 2_u32.to_ne_bytes()),
        ]
        .concat();
        let found = routes(&Message { kind: 24, body: &body });
        assert_eq!(found, [Route { metric: 100, ..route("10.77.0.0", 24, 2) }]);
    }

    #[test]
    fn the_longest_prefix_leads() {
        let routes = vec![
            route("0.0.0.0", 0, 1),
            route("10.1.0.0", 16, 2),
            route("10.1.2.0", 24, 3),
            route("::", 0, 4),
            route("2001:db8::", 32, 5),
        ];
        let host = Host { routes, ..Host::default() };
        for (address, interface) in [
            ("10.1.2.3", 3),
            ("10.1.3.3", 2),
            ("192.0.2.1", 1),
            ("::ffff:10.1.2.3", 3),
            ("2001:db8::1", 5),
            ("2001:db9::1", 4),
        ] {
            assert_eq!(host.interface_to(address.parse().unwrap()), interface, "{address}");
        }
        assert_eq!(Host::default().interface_to("10.0.0.1".parse().unwrap()), 0);
    }

    #[test]
    fn what_goes_to_this_host_comes_from_it() {
        for address in ["127.0.0.1", "::1"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(Host::source_to(address), Some(address));
        }
    }

    #[test]
    fn what_is_cut_short_ends_the_list() {
        assert_eq!(messages(&[9, 0, 0, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[8, 0, 1, 0, 1], 0).count(), 0);
        assert!(several_ways(&[8, 0, 0, 0, 7, 0, 0]).is_empty());
    }
}
