//! The writes, and their order, that turn the content of the maps into what is wanted. No I/O.
//!
//! The order ensures that the program never reads about a thing that is not there yet, or not any more:
//! backends that went down are written first, tables are filled while they are not in force, and listeners
//! are added last and removed first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::flows::ticks;
use crate::layout::{
    ADMITTED, Address, Backend, BackendState, DENIED, Endpoint, Forward, Listener, MAX_SOURCES,
    MOST_ENDPOINTS, Network, Origin, Pool, Source,
};
use crate::numbers::{Full, Kind, Numbers, name_of, name_of_backend};
use crate::origins::{Asking, Placed, origins};
use crate::tables;
use crate::wanted::{self, PortSpan, Wanted};

/// The content of the maps, as far as this crate writes it.
#[derive(Clone, Debug)]
pub struct Held {
    /// Numbers by name.
    pub numbers: Named,
    /// By number.
    pub backends: BTreeMap<u32, Backend>,
    /// By number, with the slots of the table in force.
    pub pools: BTreeMap<u32, (Pool, Vec<u16>)>,
    /// What the tables were filled for, by number of the pool, since filling one takes half a millisecond.
    /// Not known for tables that an earlier process filled.
    pub filled_for: BTreeMap<u32, (wanted::Pool, MemberNumbers)>,
    /// Clients of listeners: [`ADMITTED`] or [`DENIED`].
    pub networks: BTreeMap<Network, u32>,
    /// By the endpoint that clients send to.
    pub listeners: Arc<BTreeMap<Endpoint, Listener>>,
    /// By the endpoint that backends answer from.
    pub origins: Arc<BTreeMap<Endpoint, Origin>>,
    /// Whether there are origins of groups.
    pub has_groups: bool,
    /// What these were derived from, if by this process: there may be many, and they stay the same when a
    /// backend goes down.
    pub placed_for: Option<Arc<Placed>>,
    /// Source addresses, by their position. Not known for those that an earlier process wrote.
    pub sources: BTreeMap<u32, Address>,
    /// Their ports.
    pub source_ports: BTreeMap<Address, Source>,
}

/// The numbers of all kinds.
#[derive(Clone, Debug)]
pub struct Named {
    /// Listeners.
    pub listeners: Numbers,
    /// Pools.
    pub pools: Numbers,
    /// Backends.
    pub backends: Numbers,
}

/// One change to the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A backend, by number.
    Backend(u32, Backend),
    /// The slots of a table that is not in force, by number of the pool and of its table.
    Slots(u32, u32, Vec<u16>),
    /// A pool, by number: puts a table in force.
    Pool(u32, Pool),
    /// An endpoint that clients send to; `None` removes it.
    Listener(Endpoint, Option<Listener>),
    /// An endpoint that a backend answers from; `None` removes it.
    Origin(Endpoint, Option<Origin>),
    /// Whether there are origins of groups.
    HasGroups(bool),
    /// Whether a listener admits the clients of a network; `None` removes the entry.
    Network(Network, Option<u32>),
    /// A source address, by its position; nothing reads those of removed listeners.
    Source(u32, Address),
    /// The ports of such an address; `None` removes them.
    SourcePorts(Address, Option<Source>),
    /// The name that has this number from now on.
    Name(Kind, u32, u64),
}

impl Held {
    /// An empty state, with room for this many listeners, pools and backends.
    pub fn nothing(listeners: u32, pools: u32, backends: u32) -> Held {
        Held {
            numbers: Named {
                listeners: Numbers::new(Kind::Listener, listeners),
                pools: Numbers::new(Kind::Pool, pools),
                // Slots have numbers of 16 bits.
                backends: Numbers::new(Kind::Backend, backends.min(65_535)),
            },
            backends: BTreeMap::new(),
            pools: BTreeMap::new(),
            filled_for: BTreeMap::new(),
            networks: BTreeMap::new(),
            listeners: Arc::default(),
            origins: Arc::default(),
            has_groups: false,
            placed_for: None,
            sources: BTreeMap::new(),
            source_ports: BTreeMap::new(),
        }
    }
}

/// The writes that lead from `held` to `wanted`, and the state afterwards. `interface_to` returns the index
/// of the interface that leads to an address, 0 if it is not known. On `Err` nothing should be written.
pub fn plan(
    held: &Held,
    wanted: &Wanted,
    interface_to: &dyn Fn(std::net::IpAddr) -> u32,
) -> Result<(Vec<Write>, Held), Full> {
    let mut plan = Plan { next: held.clone(), writes: Vec::new() };
    let pools = plan.backends(wanted, interface_to)?;
    for (pool, numbers) in wanted.pools.iter().zip(&pools) {
        plan.pool(held, pool, numbers)?;
    }
    plan.places(held, wanted, &pools)?;
    plan.removals(held, wanted);
    Ok((plan.writes, plan.next))
}

struct Plan {
    next: Held,
    writes: Vec<Write>,
}

/// Numbers of a pool's members, in order.
pub type MemberNumbers = Vec<u32>;

impl Plan {
    /// Writes backends that are new or have changed, beginning with those that went down.
    fn backends(
        &mut self,
        wanted: &Wanted,
        interface_to: &dyn Fn(std::net::IpAddr) -> u32,
    ) -> Result<Vec<MemberNumbers>, Full> {
        let mut pools = Vec::with_capacity(wanted.pools.len());
        let mut writes = Vec::new();
        for pool in &wanted.pools {
            let mut numbers = Vec::with_capacity(pool.members.len());
            for member in &pool.members {
                let at = Endpoint::new(member.address, 0);
                let name = name_of_backend(&pool.name, &at);
                let number = self.number(Kind::Backend, name)?;
                let before = self.next.backends.get(&number).copied();
                let value = backend(member, before, interface_to(member.address.ip()));
                if before != Some(value) {
                    self.next.backends.insert(number, value);
                    writes.push(Write::Backend(number, value));
                }
                numbers.push(number);
            }
            pools.push(numbers);
        }
        let is_dead = |write: &Write| matches!(write, Write::Backend(_, backend) if backend.state == BackendState::Dead as u8);
        writes.sort_by_key(|write| !is_dead(write));
        self.writes.extend(writes);
        Ok(pools)
    }

    /// Fills the other table of a pool whose slots change, and puts it in force.
    fn pool(&mut self, held: &Held, pool: &wanted::Pool, members: &[u32]) -> Result<(), Full> {
        let number = self.number(Kind::Pool, name_of(&pool.name))?;
        if held.filled_for.get(&number).is_some_and(|(of, numbers)| of == pool && numbers == members) {
            return Ok(());
        }
        self.next.filled_for.insert(number, (pool.clone(), members.to_vec()));
        let before = held.pools.get(&number);
        let slots = tables::slots(pool, |position| members[position] as u16);
        let is_same = before.is_some_and(|(_, before)| *before == slots);
        let table = before.map_or(0, |(before, _)| if is_same { before.table } else { 1 - before.table });
        let value = Pool {
            algorithm: pool.algorithm as u32,
            hash_key: pool.hash_key as u32,
            table,
            slots: slots.len() as u32,
        };
        if before.is_none_or(|(before, _)| *before != value) || !is_same {
            if !is_same {
                self.writes.push(Write::Slots(number, table, slots.clone()));
            }
            self.writes.push(Write::Pool(number, value));
            self.next.pools.insert(number, (value, slots));
        }
        Ok(())
    }

    /// Listeners, and the origins of their backends.
    fn places(&mut self, held: &Held, wanted: &Wanted, pools: &[MemberNumbers]) -> Result<(), Full> {
        let placed = Placed::of(wanted, pools);
        if held.placed_for.as_deref() == Some(&placed) {
            return Ok(());
        }
        self.next.placed_for = Some(Arc::new(placed));
        let (mut listeners, mut asking) = (BTreeMap::new(), Vec::new());
        let mut networks = BTreeMap::new();
        let (mut sources, mut source_ports) = (BTreeMap::new(), BTreeMap::new());
        for listener in &wanted.listeners {
            let number = self.number(Kind::Listener, name_of(&listener.name))?;
            networks.extend(networks_of(listener, number));
            let Some(at) = wanted.pools.iter().position(|pool| pool.name == listener.pool) else { continue };
            let pool = self.number(Kind::Pool, name_of(&listener.pool))?;
            let values = [4, 6].map(|family| Listener { pool, ..of_family(listener, number, family) });
            for source in listener.sources.iter().filter(|_| listener.forward == Forward::FullNat) {
                let ports = || Source {
                    first_port: listener.source_ports.0,
                    last_port: listener.source_ports.1,
                    listener: number,
                };
                let held: &mut Source = source_ports.entry(Address::from(*source)).or_insert_with(ports);
                held.first_port = held.first_port.min(listener.source_ports.0);
                held.last_port = held.last_port.max(listener.source_ports.1);
            }
            sources.extend(places_of_sources(listener, number));
            for address in listener.addresses.iter().flat_map(PortSpan::each) {
                let here = Endpoint::new(address, listener.protocol);
                let value = values[usize::from(address.ip().to_canonical().is_ipv6())];
                listeners.insert(here, value);
                // For later fragments, which have no port.
                listeners.entry(Endpoint { port: [0; 2], ..here }).or_insert(value);
            }
            let members = wanted.pools[at].members.iter().map(|member| member.address);
            let members = members.zip(pools[at].iter().copied()).collect();
            asking.push(Asking { listener, number, members });
        }
        let origins = origins(&asking);
        let has_groups = origins.keys().any(|at| at.is_group == 1);
        for count in [listeners.len(), origins.len()] {
            if count > MOST_ENDPOINTS as usize {
                return Err(Full { kind: Kind::Endpoint, limit: MOST_ENDPOINTS });
            }
        }
        let new = sources.iter().filter(|(at, source)| held.sources.get(at) != Some(source));
        self.writes.extend(new.map(|(at, source)| Write::Source(*at, *source)));
        let new = source_ports.iter().filter(|(at, ports)| held.source_ports.get(at) != Some(ports));
        self.writes.extend(new.map(|(at, ports)| Write::SourcePorts(*at, Some(*ports))));
        let gone = held.listeners.keys().filter(|at| !listeners.contains_key(*at));
        self.writes.extend(gone.map(|at| Write::Listener(*at, None)));
        // The clients that a new listener refuses are written before it accepts any; and those that a new
        // list admits, before all others are refused.
        let new = networks.iter().rev().filter(|(at, admission)| held.networks.get(at) != Some(admission));
        self.writes.extend(new.map(|(at, admission)| Write::Network(*at, Some(*admission))));
        let other = |held: Option<&Origin>, origin: &Origin| held != Some(origin);
        if has_groups && !held.has_groups {
            self.writes.push(Write::HasGroups(true));
        }
        // Groups come before their members.
        for is_group in [1, 0] {
            let new = origins.iter().filter(|(at, _)| at.is_group == is_group);
            let new = new.filter(|(at, origin)| other(held.origins.get(at), origin));
            self.writes.extend(new.map(|(at, origin)| Write::Origin(*at, Some(*origin))));
        }
        let new = listeners.iter().filter(|(at, listener)| held.listeners.get(at) != Some(listener));
        self.writes.extend(new.map(|(at, listener)| Write::Listener(*at, Some(*listener))));
        for is_group in [0, 1] {
            let gone = held.origins.keys().filter(|at| at.is_group == is_group && !origins.contains_key(*at));
            self.writes.extend(gone.map(|at| Write::Origin(*at, None)));
        }
        if !has_groups && held.has_groups {
            self.writes.push(Write::HasGroups(false));
        }
        let gone = held.networks.keys().filter(|at| !networks.contains_key(*at));
        self.writes.extend(gone.map(|at| Write::Network(*at, None)));
        self.next.networks = networks;
        let gone = held.source_ports.keys().filter(|at| !source_ports.contains_key(at));
        self.writes.extend(gone.map(|at| Write::SourcePorts(*at, None)));
        (self.next.listeners, self.next.origins) = (Arc::new(listeners), Arc::new(origins));
        self.next.has_groups = has_groups;
        self.next.sources.extend(sources);
        self.next.source_ports = source_ports;
        Ok(())
    }

    /// Removed backends lose their flows, and numbers without a name are released.
    fn removals(&mut self, held: &Held, wanted: &Wanted) {
        let mut kept = BTreeSet::new();
        for pool in &wanted.pools {
            let names = pool
                .members
                .iter()
                .map(|member| name_of_backend(&pool.name, &Endpoint::new(member.address, 0)));
            kept.extend(names);
        }
        let leaving = &wanted.leaving;
        let keeps = |name, number| kept.contains(&name) || leaving.backends.contains(&number);
        for number in self.next.numbers.backends.retain(keeps) {
            let Some(before) = held.backends.get(&number) else { continue };
            let dead = Backend { state: BackendState::Dead as u8, ..*before };
            self.next.backends.insert(number, dead);
            self.writes.push(Write::Backend(number, dead));
        }
        let pools: BTreeSet<u64> = wanted.pools.iter().map(|pool| name_of(&pool.name)).collect();
        for number in self.next.numbers.pools.retain(|name, _| pools.contains(&name)) {
            self.next.pools.remove(&number);
            self.next.filled_for.remove(&number);
            self.writes.push(Write::Pool(number, Pool::default()));
        }
        let listeners: BTreeSet<u64> =
            wanted.listeners.iter().map(|listener| name_of(&listener.name)).collect();
        let keeps = |name, number| listeners.contains(&name) || leaving.listeners.contains(&number);
        self.next.numbers.listeners.retain(keeps);
    }

    fn number(&mut self, kind: Kind, name: u64) -> Result<u32, Full> {
        let numbers = match kind {
            Kind::Listener => &mut self.next.numbers.listeners,
            Kind::Pool => &mut self.next.numbers.pools,
            Kind::Backend => &mut self.next.numbers.backends,
            Kind::Endpoint => return Err(Full { kind, limit: MOST_ENDPOINTS }),
        };
        let is_new = numbers.of(name).is_none();
        let number = numbers.take(name)?;
        if is_new {
            self.writes.push(Write::Name(kind, number, name));
        }
        Ok(number)
    }
}

/// The clients of a listener. For a network in both lists the later entry, denied, wins.
fn networks_of(listener: &wanted::Listener, number: u32) -> Vec<(Network, u32)> {
    let of = |list: &[(IpAddr, u8)], admission| -> Vec<(Network, u32)> {
        list.iter().map(|(address, prefix)| (Network::of(number, *address, *prefix), admission)).collect()
    };
    let mut found = of(&listener.allow, ADMITTED);
    if !found.is_empty() {
        found.push((Network::all(number), DENIED));
    }
    found.extend(of(&listener.deny, DENIED));
    found
}

/// The map entry for a listener's addresses of one family, without its pool.
fn of_family(listener: &wanted::Listener, number: u32, family: u8) -> Listener {
    let sources = listener.sources.iter().filter(|source| source.is_ipv4() == (family == 4)).count();
    let (first_port, last_port) = listener.source_ports;
    let has_ports = sources > 0 && last_port > 0;
    Listener {
        number,
        first_port,
        ports: if has_ports { last_port.saturating_sub(first_port).saturating_add(1) } else { 0 },
        source_count: sources.min(MAX_SOURCES as usize) as u8,
        forward: listener.forward as u8,
        asks_host: listener.asks_host.into(),
        is_confined: listener.interfaces.is_some().into(),
        ..Listener::default()
    }
}

/// The positions of a listener's sources.
fn places_of_sources(listener: &wanted::Listener, number: u32) -> Vec<(u32, Address)> {
    let mut places = Vec::new();
    for (is_ipv4, family) in [(true, 0), (false, 1)] {
        let of_family = listener.sources.iter().filter(|source| source.is_ipv4() == is_ipv4);
        let first = (number * 2 + family) * MAX_SOURCES;
        places.extend((first..first + MAX_SOURCES).zip(of_family.map(|source| Address::from(*source))));
    }
    places
}

/// The map entry for a backend. A number that another backend had gets a new generation, so that flows of
/// that one can be recognized.
fn backend(member: &wanted::Member, before: Option<Backend>, interface: u32) -> Backend {
    let at = Endpoint::new(member.address, 0);
    let generation = match before {
        Some(before) if (before.address, before.port) == (at.address, at.port) => before.generation,
        Some(before) => before.generation + 1,
        None => 1,
    };
    Backend {
        address: at.address,
        port: at.port,
        state: if member.is_alive { BackendState::Alive } else { BackendState::Dead } as u8,
        family: if member.address.is_ipv4() { 4 } else { 6 },
        generation,
        weight: member.weight.max(1),
        interface,
        source: member.source.map(Address::from).unwrap_or_default(),
        failure_ticks: ticks(member.failures_within),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Algorithm, HashKey, TCP, USE_FULL_NAT, USE_NAT};
    use crate::wanted::Member;

    fn member(address: &str) -> Member {
        let address: std::net::SocketAddr = address.parse().unwrap();
        Member {
            id: weir_balance::stable_hash(address.to_string().as_bytes()),
            address,
            weight: 100,
            is_alive: true,
            source: None,
            failures_within: std::time::Duration::ZERO,
        }
    }

    fn wanted(members: &[&str]) -> Wanted {
        let pool = wanted::Pool {
            name: "app".to_owned(),
            algorithm: Algorithm::LeastFlows,
            hash_key: HashKey::Client,
            members: members.iter().map(|address| member(address)).collect(),
        };
        let listener = wanted::Listener {
            name: "web".to_owned(),
            addresses: vec!["192.0.2.1:80".parse().unwrap()],
            protocol: TCP,
            pool: "app".to_owned(),
            deny: Vec::new(),
            allow: Vec::new(),
            forward: Forward::Nat,
            sources: Vec::new(),
            asks_host: false,
            interfaces: None,
            source_ports: (0, 0),
        };
        Wanted { listeners: vec![listener], pools: vec![pool], ..Wanted::default() }
    }

    #[test]
    fn whom_a_new_list_lets_in_is_said_before_all_others_are_kept_out() {
        let before = wanted(&["10.0.0.1:80"]);
        let (_, held) = planned(&Held::nothing(8, 8, 8), &before);
        let mut after = before;
        after.listeners[0].allow = vec![("10.0.0.0".parse().unwrap(), 8)];
        let (writes, held) = planned(&held, &after);
        let all =
            place(&writes, |write| matches!(write, Write::Network(at, Some(DENIED)) if at.prefix == 32));
        let allowed = place(&writes, |write| matches!(write, Write::Network(_, Some(ADMITTED))));
        assert!(allowed < all, "{writes:?}");
        after.listeners[0].allow.clear();
        let (writes, _) = planned(&held, &after);
        assert_eq!(writes.iter().filter(|write| matches!(write, Write::Network(_, None))).count(), 2);
    }

    fn planned(held: &Held, wanted: &Wanted) -> (Vec<Write>, Held) {
        plan(held, wanted, &|_| 3).unwrap()
    }

    fn place(writes: &[Write], is: impl Fn(&Write) -> bool) -> usize {
        writes.iter().position(is).expect("such a write")
    }

    #[test]
    fn a_first_plan_fills_before_it_shows() {
        let (writes, held) = planned(&Held::nothing(4, 4, 4), &wanted(&["10.0.0.1:8080", "10.0.0.2:8080"]));
        let backend = place(&writes, |write| matches!(write, Write::Backend(1, _)));
        let slots = place(&writes, |write| *write == Write::Slots(0, 0, vec![0, 1]));
        let pool = place(&writes, |write| matches!(write, Write::Pool(0, _)));
        let origin = place(&writes, |write| matches!(write, Write::Origin(_, Some(_))));
        let listener = place(&writes, |write| matches!(write, Write::Listener(_, Some(_))));
        assert!(backend < slots && slots < pool && pool < origin && origin < listener, "{writes:?}");
        assert_eq!(held.listeners.len(), 2);
        assert_eq!(planned(&held, &wanted(&["10.0.0.1:8080", "10.0.0.2:8080"])).0, []);
    }

    #[test]
    fn a_backend_that_goes_down_is_said_so_before_anything_is_filled() {
        let mut wish = wanted(&["10.0.0.1:8080", "10.0.0.2:8080"]);
        let (_, held) = planned(&Held::nothing(4, 4, 4), &wish);
        wish.pools[0].members[1].is_alive = false;
        wish.pools[0].members[1].weight = 0;
        let (writes, held) = planned(&held, &wish);
        assert!(matches!(writes[0], Write::Backend(1, backend) if backend.state == BackendState::Dead as u8));
        assert_eq!(writes[1], Write::Slots(0, 1, vec![0]));
        assert!(matches!(writes[2], Write::Pool(0, pool) if pool.table == 1 && pool.slots == 1));
        assert_eq!(writes.len(), 3);
        wish.pools[0].members[1].is_alive = true;
        wish.pools[0].members[1].weight = 100;
        let (writes, _) = planned(&held, &wish);
        assert!(writes.contains(&Write::Slots(0, 0, vec![0, 1])), "{writes:?}");
    }

    #[test]
    fn a_listener_that_leaves_keeps_its_number_and_its_backends_until_it_has_left() {
        let (_, held) = planned(&Held::nothing(4, 4, 4), &wanted(&["10.0.0.1:8080"]));
        let leaving = wanted::Leaving { listeners: [0].into(), backends: [0].into() };
        let (writes, held) = planned(&held, &Wanted { leaving, ..Wanted::default() });
        assert!(!writes.iter().any(|write| matches!(write, Write::Backend(..))), "{writes:?}");
        assert!(held.listeners.is_empty(), "nothing is taken for it any more");
        assert_eq!(held.numbers.listeners.of(name_of("web")), Some(0));
        let (writes, held) = planned(&held, &Wanted::default());
        let is_dead = |backend: &Backend| backend.state == BackendState::Dead as u8;
        assert!(writes.iter().any(|write| matches!(write, Write::Backend(0, backend) if is_dead(backend))));
        assert_eq!(held.numbers.listeners.of(name_of("web")), None);
    }

    #[test]
    fn a_drained_backend_keeps_its_flows_and_gets_no_slot() {
        let mut wish = wanted(&["10.0.0.1:8080", "10.0.0.2:8080"]);
        let (_, held) = planned(&Held::nothing(4, 4, 4), &wish);
        wish.pools[0].members[0].weight = 0;
        let (writes, _) = planned(&held, &wish);
        let dead = |write: &Write| matches!(write, Write::Backend(_, backend) if backend.state != BackendState::Alive as u8);
        assert!(!writes.iter().any(dead));
        assert!(writes.contains(&Write::Slots(0, 1, vec![1])), "{writes:?}");
    }

    #[test]
    fn a_number_that_goes_to_another_backend_gets_another_generation() {
        let (_, held) = planned(&Held::nothing(4, 4, 1), &wanted(&["10.0.0.1:8080"]));
        let (writes, held) = planned(&held, &wanted(&[]));
        assert!(
            matches!(writes.last(), Some(Write::Backend(0, backend)) if backend.state == BackendState::Dead as u8)
        );
        let (writes, _) = planned(&held, &wanted(&["10.0.0.9:8080"]));
        assert!(
            writes.iter().any(|write| matches!(write, Write::Backend(0, backend) if backend.generation == 2))
        );
    }

    #[test]
    fn an_answer_of_a_backend_that_two_listeners_use_is_nobodys() {
        let mut wish = wanted(&["10.0.0.1:8080"]);
        wish.listeners.push(wanted::Listener {
            name: "other".to_owned(),
            addresses: vec!["192.0.2.2:80".parse().unwrap()],
            ..wish.listeners[0].clone()
        });
        let (_, held) = planned(&Held::nothing(4, 4, 4), &wish);
        let at = Endpoint::new("10.0.0.1:8080".parse().unwrap(), TCP);
        assert_eq!(held.origins[&at].is_ambiguous, 1);
        let (writes, held) = planned(&held, &wanted(&["10.0.0.1:8080"]));
        assert_eq!(held.origins[&at].is_ambiguous, 0);
        let gone = place(&writes, |write| matches!(write, Write::Listener(_, None)));
        let origin = place(&writes, |write| matches!(write, Write::Origin(_, Some(_))));
        assert!(gone < origin, "{writes:?}");
    }

    #[test]
    fn sources_are_there_before_their_listener_and_go_after_it() {
        let mut wish = wanted(&["10.0.0.1:8080"]);
        wish.listeners[0].forward = Forward::FullNat;
        wish.listeners[0].sources =
            ["10.0.0.9", "fd00::9", "10.0.0.8"].map(|at| at.parse().unwrap()).to_vec();
        wish.listeners[0].source_ports = (61_000, 65_535);
        let (writes, held) = planned(&Held::nothing(4, 4, 4), &wish);
        let last =
            writes.iter().rposition(|write| matches!(write, Write::Source(..) | Write::SourcePorts(..)));
        let listener = place(&writes, |write| matches!(write, Write::Listener(_, Some(_))));
        assert!(last.unwrap() < listener, "{writes:?}");
        assert_eq!(held.sources.keys().copied().collect::<Vec<_>>(), [0, 1, MAX_SOURCES]);
        let value = held.listeners.values().next().unwrap();
        assert_eq!((value.source_count, value.first_port, value.ports), (2, 61_000, 4_536));
        assert!(held.origins.values().all(|origin| origin.uses == USE_FULL_NAT));
        assert_eq!(planned(&held, &wish).0, []);

        let (writes, held) = planned(&held, &Wanted::default());
        let source = place(&writes, |write| matches!(write, Write::SourcePorts(_, None)));
        assert!(place(&writes, |write| matches!(write, Write::Listener(_, None))) < source, "{writes:?}");
        assert!(held.source_ports.is_empty());
    }

    #[test]
    fn answers_to_dsr_are_nobodys_business_here() {
        let mut wish = wanted(&["10.0.0.1:80"]);
        wish.listeners[0].forward = Forward::Dsr;
        let (_, held) = planned(&Held::nothing(4, 4, 4), &wish);
        assert!(held.origins.is_empty());
        assert!(held.listeners.values().all(|listener| listener.forward == Forward::Dsr as u8));
    }

    #[test]
    fn answers_to_nat_are_told_apart_though_full_nat_uses_the_backend_as_well() {
        let at = Endpoint::new("10.0.0.1:8080".parse().unwrap(), TCP);
        for nat_is_first in [true, false] {
            let mut wish = wanted(&["10.0.0.1:8080"]);
            wish.listeners.push(wanted::Listener {
                name: "other".to_owned(),
                addresses: vec!["192.0.2.2:80".parse().unwrap()],
                forward: Forward::FullNat,
                ..wish.listeners[0].clone()
            });
            if !nat_is_first {
                wish.listeners.reverse();
            }
            let (_, held) = planned(&Held::nothing(4, 4, 4), &wish);
            let origin = held.origins[&at];
            assert_eq!((origin.is_ambiguous, origin.uses), (0, USE_NAT | USE_FULL_NAT));
            assert_eq!(origin.address, Address::from("192.0.2.1".parse::<std::net::IpAddr>().unwrap()));
        }
    }

    #[test]
    fn more_than_there_is_room_for_changes_nothing() {
        let held = Held::nothing(4, 4, 1);
        let refused = plan(&held, &wanted(&["10.0.0.1:80", "10.0.0.2:80"]), &|_| 0);
        assert_eq!(refused.unwrap_err(), Full { kind: Kind::Backend, limit: 1 });
    }
}
