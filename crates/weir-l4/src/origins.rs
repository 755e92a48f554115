//! How the program finds the way back without a flow: which listener an answer belongs to.
//!
//! A backend with a port of its own has one origin, for that port. One without answers from every port of the
//! listeners that use it, just as the others in its pool: together these are a group, and the group has an
//! origin for each port. In either case an origin at port 0 says that the address has something to do with
//! us.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use weir_balance::stable_hash;

use crate::layout::{Address, Endpoint, Forward, Origin, USE_ANY_PORT, USE_FULL_NAT, USE_NAT};
use crate::wanted::{self, Wanted};

/// What listeners and origins are derived from: the listeners, and each pool with its backends and their
/// numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed {
    listeners: Vec<wanted::Listener>,
    pools: Vec<(String, Vec<SocketAddr>, Vec<u32>)>,
}

impl Placed {
    /// From what is wanted, and the numbers of each pool's members.
    pub(crate) fn of(wanted: &Wanted, numbers: &[Vec<u32>]) -> Placed {
        let pools = wanted.pools.iter().zip(numbers).map(|(pool, numbers)| {
            let addresses = pool.members.iter().map(|member| member.address);
            (pool.name.clone(), addresses.collect(), numbers.clone())
        });
        Placed { listeners: wanted.listeners.clone(), pools: pools.collect() }
    }
}

/// A listener and its backends, with their numbers.
pub(crate) struct Asking<'w> {
    pub listener: &'w wanted::Listener,
    pub number: u32,
    pub members: Vec<(SocketAddr, u32)>,
}

impl Asking<'_> {
    /// The origin for a backend's ports, without the address that clients asked for.
    fn origin(&self, backend: u32) -> Origin {
        Origin { uses: used_by(self.listener.forward), listener: self.number, backend, ..Origin::default() }
    }
}

type Origins = BTreeMap<Endpoint, Origin>;

/// The origins of all backends. Those of a group stay the same as long as its listeners have the same names.
pub(crate) fn origins(asking: &[Asking<'_>]) -> Origins {
    let mut origins = Origins::new();
    // The listeners that use the backends without a port, by these backends' endpoint at port 0.
    let mut keeping: BTreeMap<Endpoint, Keeping> = BTreeMap::new();
    for (position, one) in asking.iter().enumerate().filter(|(_, one)| used_by(one.listener.forward) != 0) {
        let Some(first) = one.listener.addresses.first() else { continue };
        let has_several = first.ports().len() > 1 || one.listener.addresses.len() > 1;
        for (address, backend) in &one.members {
            let from = Endpoint::new(*address, one.listener.protocol);
            let at_any = Endpoint { port: [0; 2], ..from };
            let origin = one.origin(*backend);
            share(&mut origins, at_any, Origin { is_ambiguous: 1, ..origin });
            if address.port() == 0 {
                let keeping = keeping.entry(at_any).or_insert_with(|| Keeping::of(*address, *backend));
                keeping.asking.insert(position);
            } else {
                let asked = Endpoint::new(first.first, one.listener.protocol);
                let is_ambiguous = u8::from(has_several && origin.uses & USE_NAT != 0);
                let (address, port) = (asked.address, asked.port);
                share(&mut origins, from, Origin { address, port, is_ambiguous, ..origin });
            }
        }
    }
    let mut groups: BTreeMap<(bool, BTreeSet<usize>), (Address, Origins)> = BTreeMap::new();
    for (at_any, keeping) in &keeping {
        let key = (keeping.is_ipv4, keeping.asking.clone());
        let (group, members) = groups.entry(key).or_insert_with(|| keeping.group(asking, at_any.protocol));
        if let Some(held) = origins.get_mut(at_any) {
            (held.address, held.backend) = (*group, keeping.backend);
            held.uses |= USE_ANY_PORT;
        }
        // Another listener uses it at a port of the group.
        let same = Endpoint { port: [0, 1], ..*at_any }..=Endpoint { port: [255; 2], ..*at_any };
        let asked: Vec<Endpoint> = origins.range(same).map(|(at, _)| *at).collect();
        for at in asked.into_iter().filter(|at| at.protocol == at_any.protocol) {
            let of_group = members.get(&Endpoint { address: *group, is_group: 1, ..at });
            if let Some(of_group) = of_group {
                share(&mut origins, at, Origin { backend: keeping.backend, ..*of_group });
            }
        }
    }
    groups.into_values().for_each(|(_, members)| origins.extend(members));
    origins
}

/// A backend without a port.
struct Keeping {
    is_ipv4: bool,
    /// Its number in the first pool.
    backend: u32,
    /// Positions of the listeners that use it.
    asking: BTreeSet<usize>,
}

impl Keeping {
    fn of(address: SocketAddr, backend: u32) -> Keeping {
        Keeping { is_ipv4: address.ip().to_canonical().is_ipv4(), backend, asking: BTreeSet::new() }
    }

    /// The address that stands for the group of all backends that the same listeners use, and its origins.
    fn group(&self, asking: &[Asking<'_>], protocol: u8) -> (Address, Origins) {
        let mut origins = Origins::new();
        let mut name = vec![protocol, u8::from(self.is_ipv4)];
        let asking: Vec<&Asking<'_>> = self.asking.iter().map(|position| &asking[*position]).collect();
        for one in &asking {
            name.extend(one.listener.name.as_bytes());
            name.push(0);
        }
        let mut address = Address::default();
        address.0[..8].copy_from_slice(&stable_hash(&name).to_be_bytes());
        name.push(0);
        address.0[8..].copy_from_slice(&stable_hash(&name).to_be_bytes());
        let pool = asking.first().map(|one| &one.listener.pool);
        for one in &asking {
            // In another pool the backend has another number, which an origin of the group can't contain.
            let is_ambiguous = u8::from(Some(&one.listener.pool) != pool);
            let places = one.listener.addresses.iter();
            let places = places.filter(|at| at.first.ip().to_canonical().is_ipv4() == self.is_ipv4);
            for asked in places.flat_map(|place| place.each()) {
                let asked = Endpoint::new(asked, protocol);
                let origin = Origin {
                    address: asked.address,
                    port: asked.port,
                    is_ambiguous,
                    ..one.origin(self.backend)
                };
                share(&mut origins, Endpoint { address, is_group: 1, ..asked }, origin);
            }
        }
        (address, origins)
    }
}

fn used_by(forward: Forward) -> u8 {
    match forward {
        Forward::Nat => USE_NAT,
        Forward::FullNat => USE_FULL_NAT,
        // Answers bypass this host.
        Forward::Dsr | Forward::Ipip => 0,
    }
}

/// Adds a use of a backend. Only with NAT are answers distinguished by listener.
fn share(origins: &mut Origins, from: Endpoint, origin: Origin) {
    let Some(held) = origins.get_mut(&from) else {
        origins.insert(from, origin);
        return;
    };
    let uses = held.uses | origin.uses;
    if held.uses & origin.uses & USE_NAT != 0 {
        *held = Origin { is_ambiguous: 1, ..origin };
    } else if origin.uses & USE_NAT != 0 {
        *held = origin;
    }
    held.uses = uses;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{TCP, UDP};
    use crate::wanted::PortSpan;

    fn listener(name: &str, place: &str, last_port: u16, forward: Forward) -> wanted::Listener {
        let first: SocketAddr = place.parse().unwrap();
        wanted::Listener {
            name: name.to_owned(),
            addresses: vec![PortSpan { first, last_port }],
            protocol: TCP,
            pool: "app".to_owned(),
            deny: Vec::new(),
            allow: Vec::new(),
            forward,
            sources: Vec::new(),
            asks_host: false,
            interfaces: None,
            source_ports: (0, 0),
        }
    }

    fn of(listeners: &[wanted::Listener], members: &[&str]) -> Origins {
        let members: Vec<(SocketAddr, u32)> =
            members.iter().zip(5..).map(|(at, number)| (at.parse().unwrap(), number)).collect();
        let asking = listeners.iter().zip(0..);
        let asking: Vec<Asking<'_>> =
            asking.map(|(listener, number)| Asking { listener, number, members: members.clone() }).collect();
        origins(&asking)
    }

    /// As the program looks: at the place, and at its group.
    fn found(origins: &Origins, at: &str, protocol: u8) -> Option<(Origin, u32)> {
        let at = Endpoint::new(at.parse().unwrap(), protocol);
        if let Some(origin) = origins.get(&at) {
            return Some((*origin, origin.backend));
        }
        let any = origins.get(&Endpoint { port: [0; 2], ..at })?;
        if any.uses & USE_ANY_PORT == 0 {
            return None;
        }
        let origin = origins.get(&Endpoint { address: any.address, is_group: 1, ..at })?;
        Some((*origin, any.backend))
    }

    #[test]
    fn a_group_has_an_origin_for_each_port_however_many_backends_it_has() {
        let asked = [listener("rtp", "192.0.2.1:30000", 30_099, Forward::Nat)];
        let origins = of(&asked, &["10.0.0.1:0", "10.0.0.2:0", "10.0.0.3:0"]);
        assert_eq!(origins.len(), 100 + 3);
        let (origin, backend) = found(&origins, "10.0.0.2:30042", TCP).unwrap();
        assert_eq!((origin.listener, origin.is_ambiguous, backend), (0, 0, 6));
        assert_eq!(
            (origin.address, origin.port),
            (Address::from("192.0.2.1".parse::<std::net::IpAddr>().unwrap()), 30_042u16.to_be_bytes())
        );
        for other in ["10.0.0.2:30100", "10.0.0.2:22", "10.0.0.9:30042"] {
            assert_eq!(found(&origins, other, TCP), None, "{other}");
        }
        assert_eq!(found(&origins, "10.0.0.2:30042", UDP), None);
    }

    #[test]
    fn listeners_of_a_pool_are_told_apart_by_port_and_at_one_port_they_are_not() {
        let mut asked = [
            listener("low", "192.0.2.1:1000", 1_009, Forward::Nat),
            listener("high", "192.0.2.2:1005", 1_019, Forward::Nat),
        ];
        let origins = of(&asked, &["10.0.0.1:0"]);
        let told = |origins: &Origins, port: u16| {
            let (origin, _) = found(origins, &format!("10.0.0.1:{port}"), TCP).unwrap();
            (origin.is_ambiguous == 0).then_some(origin.listener)
        };
        assert_eq!([1_004, 1_005, 1_010].map(|port| told(&origins, port)), [Some(0), None, Some(1)]);
        asked[1].pool = "other".to_owned();
        let origins = of(&asked, &["10.0.0.1:0"]);
        assert_eq!([1_004, 1_005, 1_010].map(|port| told(&origins, port)), [Some(0), None, None]);
    }

    #[test]
    fn a_backend_at_a_port_of_its_own_and_at_any_is_told_apart_where_it_can_be() {
        let asked = [listener("web", "192.0.2.1:1000", 1_009, Forward::Nat)];
        let origins = of(&asked, &["10.0.0.1:0", "10.0.0.1:1003", "10.0.0.1:8080"]);
        let told = |port: u16| {
            let (origin, backend) = found(&origins, &format!("10.0.0.1:{port}"), TCP).unwrap();
            (origin.is_ambiguous == 0).then_some(backend)
        };
        assert_eq!([1_002, 1_003].map(told), [Some(5), None]);
        // Which of its ports a client had asked for nobody knows.
        assert_eq!(told(8080), None);
    }

    #[test]
    fn full_nat_has_no_say_in_whom_nat_answers() {
        let asked = [
            listener("full", "192.0.2.2:1000", 1_009, Forward::FullNat),
            listener("nat", "192.0.2.1:1000", 1_009, Forward::Nat),
            listener("dsr", "192.0.2.3:1000", 1_009, Forward::Dsr),
        ];
        let origins = of(&asked, &["10.0.0.1:0"]);
        let (origin, _) = found(&origins, "10.0.0.1:1000", TCP).unwrap();
        assert_eq!((origin.listener, origin.is_ambiguous, origin.uses), (1, 0, USE_NAT | USE_FULL_NAT));
        assert_eq!(of(&asked[2..], &["10.0.0.1:0"]).len(), 0);
    }
}
