//! Compares what listeners of the kernel plane name and reach with this host's interfaces and those at which
//! packets are taken.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use weir_config::{Bind, Config, Forward, InterfacePattern, Listener, Plane};
use weir_l4::host::Host;

/// A name or pattern in a listener's `interface` for which packets can't be taken. `Display` says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// As configured for the listener.
    pub name: String,
    /// The interface exists, but its frames have no Ethernet headers.
    pub is_of_other_kind: bool,
}

impl fmt::Display for Absent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        if self.is_of_other_kind {
            write!(
                out,
                "{name} is not an interface of Ethernet, and the kernel plane takes packets at no other"
            )
        } else {
            write!(out, "no interface of this host that is up is named {name}")
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
            found.extend(host.interfaces_that(|name| is_meant(listener, name)));
        }
    }
    found
}

/// Interfaces that have an address of a listener. Routes in the main table need not lead through them, as
/// with the interfaces that keepalived makes for the MAC addresses of VRRP.
pub(super) fn interfaces_with_addresses(listener: &Listener, host: &Host) -> BTreeSet<String> {
    let addresses: Vec<IpAddr> =
        listener.bind.iter().filter_map(Bind::inet).map(|bind| bind.first.ip().to_canonical()).collect();
    host.interfaces_with(|address| addresses.contains(&address))
}

/// Whether a listener's `interface` matches this name.
pub(super) fn is_meant(listener: &Listener, name: &str) -> bool {
    listener.interfaces.iter().any(|pattern| pattern.matches(name))
}

/// Indexes of the interfaces that a listener names; `None` if it names none.
pub(super) fn meant_by(listener: &Listener, host: &Host) -> Option<BTreeSet<u32>> {
    if listener.interfaces.is_empty() {
        return None;
    }
    let meant = host.interfaces.iter().filter(|one| is_meant(listener, &one.name));
    Some(meant.map(|one| one.index).collect())
}

/// What a listener names for which there is no interface where packets can be taken: names, and also its
/// patterns if it has no usable interface at all.
pub(super) fn absent_of(listener: &Listener, host: &Host) -> Vec<Absent> {
    let is_there = |is_meant: &dyn Fn(&str) -> bool| !host.interfaces_that(is_meant).is_empty();
    let patterns = &listener.interfaces;
    let has_any = is_there(&|name| is_meant(listener, name));
    let is_absent = |pattern: &&InterfacePattern| {
        (pattern.is_name() || !has_any) && !is_there(&|name| pattern.matches(name))
    };
    let of = |pattern: &InterfacePattern| Absent {
        name: pattern.to_string(),
        is_of_other_kind: host.has_of_other_kind(|name| pattern.matches(name)),
    };
    patterns.iter().filter(is_absent).map(of).collect()
}

/// Why the proxy plane serves a listener that allows either plane better here: it names an interface that
/// exists but is not Ethernet.
pub(super) fn obstacle_of_host(listener: &Listener, host: &Host) -> Option<String> {
    let absent = absent_of(listener, host);
    absent.iter().find(|absent| absent.is_of_other_kind).map(ToString::to_string)
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
    use weir_l4::host::{Interface, Route};

    use super::*;

    fn host() -> Host {
        let interface = |(index, name, is_ethernet, port_of): (u32, &str, bool, u32)| Interface {
            index,
            name: name.to_owned(),
            mac: [0; 6],
            is_up: true,
            is_ethernet,
            leads_to_namespace: false,
            port_of,
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
}
