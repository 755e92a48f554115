//! Compares what listeners of the kernel plane name and reach with this host's interfaces and those at which
//! packets are taken.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use weir_config::{Bind, Config, Forward, InterfacePattern, Listener, Plane};
use weir_l4::host::{Host, Interface};

/// An interface at which the kernel plane does not receive a listener's clients. `Display` says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The interface's name, or the name or pattern in the listener's `interface`.
    pub name: String,
    /// The reason.
    pub why: Unheard,
}

/// Why the kernel plane does not receive clients that arrive at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// No interface that is up has this name.
    NotThere,
    /// Its frames have no Ethernet headers.
    OtherKind,
    /// It is a VLAN that keeps its tag in frames.
    KeepsTags,
    /// The interface has an address of the listener, but the listener does not name it. It lies on top of an
    /// interface that is named and does not receive this one's frames.
    Above {
        /// The listener's address that the interface has.
        address: IpAddr,
        /// Name of the interface that it lies on top of.
        below: String,
    },
}

impl Unheard {
    /// Whether a listener with `plane = "auto"` should use the proxy plane because of it.
    fn is_obstacle(&self) -> bool {
        matches!(self, Unheard::OtherKind | Unheard::KeepsTags)
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.why {
            Unheard::NotThere => write!(out, "no interface of this host that is up is named {name}"),
            Unheard::OtherKind => write!(
                out,
                "{name} is not an interface of Ethernet, and the kernel plane takes packets at no other"
            ),
            Unheard::KeepsTags => write!(
                out,
                "{name} leaves the tag of its VLAN in frames, which the kernel plane does not read: `ip link set {name} type vlan reorder_hdr on`"
            ),
            Unheard::Above { address, below } => write!(
                out,
                "{address} is on {name}, whose frames are not those of {below}: name {name} in `interface` as well, or clients that come by it are left to this host"
            ),
        }
    }
}

/// What in a config does not fit this host as it is now, by listener: interfaces that `interface` names and
/// that do not exist, and backends whose answers the plane would not see.
///
/// # Errors
/// The kernel does not list its interfaces.
pub fn look_at_interfaces(config: &Config) -> std::io::Result<Vec<(String, String)>> {
    let host = Host::read()?;
    let listeners: Vec<&Listener> = config
        .listeners
        .iter()
        .map(AsRef::as_ref)
        .filter(|listener| is_for_kernel(config, listener, &host))
        .collect();
    let taken = interfaces_for(listeners.iter().copied(), &host);
    let mut found = Vec::new();
    for listener in listeners {
        let mut say = |what: String| found.push((listener.name.clone(), what));
        absent_of(listener, &host).iter().for_each(|absent| say(absent.to_string()));
        let pool = config.pools.iter().find(|pool| Some(&pool.name) == listener.pool.as_ref());
        let backends = pool.into_iter().flat_map(|pool| &pool.backends);
        // Names are resolved, and checked, only when Weir runs.
        let backends = backends.filter_map(|backend| weir_config::backend_at(&backend.address));
        // If the machine has none of the interfaces, the config is for another machine.
        if !taken.is_empty() {
            unanswered(listener, backends, &host, &taken).iter().for_each(|one| say(one.to_string()));
        }
    }
    Ok(found)
}

fn is_for_kernel(config: &Config, listener: &Listener, host: &Host) -> bool {
    match listener.plane {
        Plane::Proxy => false,
        Plane::Auto => {
            config.kernel_obstacle(listener).is_none() && obstacle_of_host(listener, host).is_none()
        }
        Plane::Kernel => true,
    }
}

/// Interfaces at which packets for these listeners are to be taken: those that they name, and for a listener
/// that names none, those that routes lead out through and those that have its addresses.
pub(super) fn interfaces_for<'l>(
    listeners: impl Iterator<Item = &'l Listener>,
    host: &Host,
) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for listener in listeners {
        if listener.interfaces.is_empty() {
            found.extend(host.routed_interfaces());
            found.extend(interfaces_with_addresses(listener, host));
        } else {
            found.extend(host.interfaces_that(|one| is_meant(listener, one, host)));
        }
    }
    found
}

/// Interfaces that have an address of a listener. Routes in the main table need not lead through them, as
/// with the interfaces that keepalived makes for the MAC addresses of VRRP.
pub(super) fn interfaces_with_addresses(listener: &Listener, host: &Host) -> BTreeSet<String> {
    let addresses = addresses_of(listener);
    host.interfaces_with(|address| addresses.contains(&address))
}

/// Whether a listener's `interface` selects this interface: by its own name or, for a bond, also by the name
/// of one of its ports. A port is never selected itself: the bond decides which of its ports may receive a
/// frame and drops what arrives at the others.
pub(super) fn is_meant(listener: &Listener, one: &Interface, host: &Host) -> bool {
    let is_named = |one: &Interface| listener.interfaces.iter().any(|pattern| pattern.matches(&one.name));
    let is_port = |port: &&Interface| port.is_bonded && port.port_of == one.index;
    !one.is_bonded && (is_named(one) || host.interfaces.iter().filter(is_port).any(is_named))
}

/// Indexes of the interfaces that a listener names; `None` if it names none.
pub(super) fn meant_by(listener: &Listener, host: &Host) -> Option<BTreeSet<u32>> {
    if listener.interfaces.is_empty() {
        return None;
    }
    let meant = host.interfaces.iter().filter(|one| is_meant(listener, one, host));
    Some(meant.map(|one| one.index).collect())
}

/// Interfaces at which the kernel plane does not receive a listener's clients. These are names at which no
/// packets can be taken, patterns of a listener none of whose patterns matches anything, and interfaces that
/// have an address of the listener and that it should name. For a listener that names no interface, these are
/// VLANs that would be taken if they did not keep their tags in frames.
pub(super) fn absent_of(listener: &Listener, host: &Host) -> Vec<Absent> {
    if listener.interfaces.is_empty() {
        let addresses = addresses_of(listener);
        let leads = |index| host.routes.iter().any(|route| route.interface == index);
        let holds =
            |index| host.holders.iter().any(|(at, one)| *one == index && addresses.contains(&(*at).into()));
        let unread = host.interfaces.iter().filter(|one| one.keeps_tags && one.is_up);
        let unread = unread.filter(|one| leads(one.index) || holds(one.index));
        return unread.map(|one| Absent { name: one.name.clone(), why: Unheard::KeepsTags }).collect();
    }
    let is_there =
        |is_meant: &dyn Fn(&str) -> bool| !host.interfaces_that(|one| is_meant(&one.name)).is_empty();
    let patterns = &listener.interfaces;
    let has_any = is_there(&|name| patterns.iter().any(|pattern| pattern.matches(name)));
    let is_absent = |pattern: &&InterfacePattern| {
        (pattern.is_name() || !has_any) && !is_there(&|name| pattern.matches(name))
    };
    let of = |pattern: &InterfacePattern| Absent {
        name: pattern.to_string(),
        why: match host.of_other_kind(|name| pattern.matches(name)) {
            Some(other) if other.keeps_tags => Unheard::KeepsTags,
            Some(_) => Unheard::OtherKind,
            None => Unheard::NotThere,
        },
    };
    patterns.iter().filter(is_absent).map(of).chain(above_named(listener, host)).collect()
}

/// Interfaces that have an address of the listener, that it does not name, and that lie on top of one it
/// names: a VLAN, or the interface that keepalived creates for a VRRP MAC address.
fn above_named(listener: &Listener, host: &Host) -> Vec<Absent> {
    let is_meant = |one: &&Interface| is_meant(listener, one, host);
    let mut found = Vec::new();
    for address in addresses_of(listener) {
        let holders = host.holders.iter().filter(|(held, _)| IpAddr::from(*held) == address);
        let holders = holders.filter_map(|(_, index)| host.interfaces.iter().find(|one| one.index == *index));
        for one in holders.filter(|one| one.is_up && one.is_ethernet && !is_meant(one)) {
            if let Some(below) = host.below(one).find(is_meant) {
                let why = Unheard::Above { address, below: below.name.clone() };
                found.push(Absent { name: one.name.clone(), why });
            }
        }
    }
    found
}

/// The addresses at which clients reach a listener.
fn addresses_of(listener: &Listener) -> BTreeSet<IpAddr> {
    listener.bind.iter().filter_map(Bind::inet).map(|bind| bind.first.ip().to_canonical()).collect()
}

/// Why a listener with `plane = "auto"` should use the proxy plane on this host: it names an interface that
/// exists but whose frames the kernel plane can't read.
pub(super) fn obstacle_of_host(listener: &Listener, host: &Host) -> Option<String> {
    let absent = if listener.interfaces.is_empty() { Vec::new() } else { absent_of(listener, host) };
    absent.iter().find(|absent| absent.why.is_obstacle()).map(ToString::to_string)
}

/// A backend to which a route leads through an interface where no packets are taken: its answers bypass the
/// plane and go to the host's own stack. `Display` says so.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unanswered {
    /// The backend.
    pub backend: SocketAddr,
    /// Name of that interface.
    pub interface: String,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (backend, interface) = (weir_config::show_backend(self.backend), &self.interface);
        write!(
            out,
            "the route to backend {backend} leads by {interface}, where the kernel plane takes no packets: its answers reach no client"
        )
    }
}

/// Backends of a listener whose answers would arrive at an interface that is not in `taken`, if they have to
/// pass through this plane. A bridge or bond counts as taken if one of its ports is.
pub(super) fn unanswered(
    listener: &Listener,
    backends: impl Iterator<Item = SocketAddr>,
    host: &Host,
    taken: &BTreeSet<String>,
) -> Vec<Unanswered> {
    if !matches!(listener.forward, Forward::Nat | Forward::FullNat) {
        return Vec::new();
    }
    let is_taken = |index: u32| {
        let mut of_it = host.interfaces.iter().filter(|one| one.index == index || one.port_of == index);
        of_it.any(|one| taken.contains(&one.name))
    };
    let mut found: Vec<Unanswered> = backends
        .filter(|backend| !host.addresses.contains(&backend.ip().into()))
        .filter_map(|backend| {
            let index = host.interface_to(backend.ip());
            let interface = host.name_of(index).filter(|_| !is_taken(index))?;
            Some(Unanswered { backend, interface })
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use weir_l4::host::Route;

    use super::*;

    fn host() -> Host {
        let interface = |(index, name, is_ethernet, port_of): (u32, &str, bool, u32)| Interface {
            index,
            name: name.to_owned(),
            mac: [0; 6],
            is_up: true,
            is_ethernet,
            keeps_tags: false,
            leads_to_namespace: false,
            port_of,
            is_bonded: false,
            above: 0,
        };
        let all = [
            (1, "wan", true, 0),
            (2, "lan", true, 0),
            (3, "br0", true, 0),
            (4, "port", true, 3),
            (5, "t0", false, 0),
        ];
        let route = |(network, interface): (&str, u32)| Route {
            network: network.parse().unwrap(),
            prefix: 24,
            metric: 0,
            interface,
            is_behind_router: false,
        };
        Host {
            interfaces: all.map(interface).to_vec(),
            routes: [("10.0.2.0", 2), ("10.0.3.0", 3), ("10.0.5.0", 5)].map(route).to_vec(),
            ..Host::default()
        }
    }

    fn listener(lines: &str) -> Listener {
        let text = format!(
            "[listener.vip]\nprotocol = 'tcp'\nplane = 'kernel'\nbind = '192.0.2.1:80'\npool = 'app'\n{lines}\n[pool.app]\nbackends = ['10.0.2.1:80']\nhealth = 'off'\n"
        );
        let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        Listener::clone(&config.listeners[0])
    }

    #[test]
    fn a_backend_whose_answers_go_past_the_plane_is_found() {
        let host = host();
        let backends = ["10.0.2.1:80", "10.0.3.1:80", "10.0.9.1:80"].map(|text| text.parse().unwrap());
        let found = |lines: &str| -> Vec<String> {
            let listener = listener(lines);
            let taken = interfaces_for([&listener].into_iter(), &host);
            let found = unanswered(&listener, backends.into_iter(), &host, &taken);
            found.into_iter().map(|one| format!("{} {}", one.backend, one.interface)).collect()
        };
        assert_eq!(found("interface = ['wan']"), ["10.0.2.1:80 lan", "10.0.3.1:80 br0"]);
        assert_eq!(found("interface = ['wan', 'port']"), ["10.0.2.1:80 lan"], "a port of the bridge");
        assert_eq!(found("interface = ['wan']\nforward = 'dsr'"), [""; 0], "answers go past it");
        assert_eq!(found(""), [""; 0], "those that routes lead out by");
    }

    #[test]
    fn an_interface_of_another_kind_is_not_called_absent() {
        let host = host();
        let said = |lines: &str| -> Vec<String> {
            absent_of(&listener(lines), &host).iter().map(ToString::to_string).collect()
        };
        let other = "t0 is not an interface of Ethernet, and the kernel plane takes packets at no other";
        assert_eq!(said("interface = ['wan', 't0']"), [other]);
        assert_eq!(said("interface = ['t1']"), ["no interface of this host that is up is named t1"]);
        assert_eq!(obstacle_of_host(&listener("interface = ['t0']"), &host).as_deref(), Some(other));
        assert_eq!(obstacle_of_host(&listener("interface = ['t1']"), &host), None, "it may come");
    }

    /// A host with a bond of two ports, and a VLAN on it that has the listener's address.
    fn host_with_bond() -> Host {
        let mut host = host();
        let first = host.interfaces[0].clone();
        let of = |index: u32, name: &str| Interface { index, name: name.to_owned(), ..first.clone() };
        host.interfaces.extend([
            of(11, "bond0"),
            Interface { port_of: 11, is_bonded: true, ..of(12, "eth0") },
            Interface { port_of: 11, is_bonded: true, ..of(13, "eth1") },
            Interface { above: 11, ..of(14, "bond0.100") },
        ]);
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        host.holders.insert((address.into(), 14));
        host
    }

    #[test]
    fn ports_of_a_bond_stand_for_the_bond() {
        let host = host_with_bond();
        for (named, meant) in [("eth0", "bond0"), ("eth*", "bond0"), ("bond0", "bond0"), ("port", "port")] {
            let listener = listener(&format!("interface = ['{named}']"));
            let found = interfaces_for([&listener].into_iter(), &host);
            assert_eq!(found, BTreeSet::from([meant.to_owned()]), "{named}");
            let index = host.index_of(meant).unwrap();
            assert_eq!(meant_by(&listener, &host), Some(BTreeSet::from([index])), "{named}");
        }
        let said = absent_of(&listener("interface = ['eth0', 'bond0.100']"), &host);
        assert!(said.is_empty(), "{said:?}");
    }

    #[test]
    fn an_address_on_a_vlan_of_a_named_interface_is_told_of() {
        let mut host = host_with_bond();
        let said = |host: &Host, lines: &str| -> Vec<String> {
            absent_of(&listener(lines), host).iter().map(ToString::to_string).collect()
        };
        let why = "192.0.2.1 is on bond0.100, whose frames are not those of bond0: name bond0.100 in `interface` as well, or clients that come by it are left to this host";
        assert_eq!(said(&host, "interface = ['bond0']"), [why]);
        assert_eq!(said(&host, "interface = ['eth0']"), [why]);
        // Clients may arrive at another interface.
        for lines in ["interface = ['bond*']", "interface = ['wan']", ""] {
            assert_eq!(said(&host, lines), [""; 0], "{lines}");
        }
        let vlan = host.interfaces.last_mut().unwrap();
        (vlan.keeps_tags, vlan.is_ethernet) = (true, false);
        let tags = "bond0.100 leaves the tag of its VLAN in frames, which the kernel plane does not read: `ip link set bond0.100 type vlan reorder_hdr on`";
        assert_eq!(said(&host, "interface = ['bond0.100']"), [tags]);
        assert_eq!(said(&host, ""), [tags], "it has the address");
        assert_eq!(obstacle_of_host(&listener(""), &host), None);
        assert_eq!(obstacle_of_host(&listener("interface = ['bond0.100']"), &host).as_deref(), Some(tags));
    }
}
