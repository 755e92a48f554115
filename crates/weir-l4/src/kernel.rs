//! The kernel plane for its owner: writes what is wanted into the maps, sweeps flows, and reads counters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use aya::maps::MapError;
use aya::maps::lpm_trie::Key;

use crate::flows::{FlowTables, Swept};
use crate::host::WayOut;
use crate::layout::{
    Address, BLOCKS_PER_TABLE, Backend, BackendCounter, BackendState, Counter, Endpoint, Listener, Network,
    Origin, Pool, SLOTS_PER_BLOCK, Settings, SlotBlock, Source, Verdict,
};
use crate::numbers::{Full, key_of_name, name_of, name_of_backend};
use crate::plan::{Held, Write, plan};
use crate::program::{Error, NetworkKey, Program, Sizes};
use crate::wanted::{self, Wanted};

/// Why what is wanted was not put in force.
#[derive(Debug)]
pub enum ApplyError {
    /// More is wanted than there is room for; nothing was changed.
    Full(Full),
    /// The kernel refused a write; the change may be in force in part.
    Kernel(Error),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::Full(full) => write!(out, "{full}"),
            ApplyError::Kernel(error) => write!(out, "{error}"),
        }
    }
}

impl std::error::Error for ApplyError {}

impl From<MapError> for ApplyError {
    fn from(error: MapError) -> ApplyError {
        ApplyError::Kernel(error.into())
    }
}

/// The program, its maps, and their content.
pub struct Kernel {
    program: Program,
    held: Held,
    sizes: Sizes,
    /// How many more flows of a backend the last sweep found than the program counts.
    drifts: BTreeMap<u32, i64>,
    /// Numbers of listeners, each with an interface through which they take new flows, as in the map.
    interfaces: BTreeSet<[u32; 2]>,
}

impl Kernel {
    /// With the maps below `directory`, and what an earlier process has left in them.
    pub fn open(directory: &Path, sizes: Sizes) -> Result<Kernel, Error> {
        let mut program = Program::open(directory, sizes)?;
        let held = adopt(&mut program, sizes)?;
        let interfaces = interfaces_held(&mut program)?;
        Ok(Kernel { program, held, sizes, drifts: BTreeMap::new(), interfaces })
    }

    /// The program, for attaching.
    pub fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    /// A separate handle to the flow tables.
    pub fn flow_tables(&mut self) -> Result<FlowTables, Error> {
        self.program.flow_tables()
    }

    /// Capacity of each flow table, in entries; one that was taken over keeps its original capacity.
    pub fn flow_entries(&mut self) -> Result<u32, Error> {
        self.program.flow_entries()
    }

    /// Whether an earlier process had left it.
    pub fn was_there(&self) -> bool {
        self.program.was_there()
    }

    /// Removes the plane with all its flows.
    pub fn remove(self) {
        self.program.remove();
    }

    /// Reads the maps again, and pins them if need be, after another process has had access to them.
    pub fn take_back(&mut self) -> Result<(), Error> {
        self.program.pin_again()?;
        self.held = adopt(&mut self.program, self.sizes)?;
        self.interfaces = interfaces_held(&mut self.program)?;
        Ok(())
    }

    /// Puts in force what is wanted.
    pub fn apply(&mut self, wanted: &Wanted, interface_to: &dyn Fn(IpAddr) -> u32) -> Result<(), ApplyError> {
        let (writes, next) = plan(&self.held, wanted, interface_to).map_err(ApplyError::Full)?;
        let meant: BTreeSet<[u32; 2]> =
            wanted.listeners.iter().flat_map(|one| meant_by(one, &next)).collect();
        // Comes before listeners are confined to these; other interfaces stay until no listener needs them.
        self.put_interfaces(&meant, false)?;
        for write in &writes {
            put_in(&mut self.program, write)?;
        }
        self.put_interfaces(&meant, true)?;
        // Not earlier: if a write failed, the next plan starts from the old state and writes everything
        // again.
        self.held = next;
        Ok(())
    }

    /// Lets listeners take new flows through these interfaces and, if `is_all`, through no others.
    fn put_interfaces(&mut self, meant: &BTreeSet<[u32; 2]>, is_all: bool) -> Result<(), MapError> {
        let mut table = self.program.table::<[u32; 2], u32>("listener_interfaces")?;
        let new: Vec<[u32; 2]> = meant.difference(&self.interfaces).copied().collect();
        for one in new {
            table.insert(one, 1, 0)?;
            self.interfaces.insert(one);
        }
        let gone = self.interfaces.difference(meant).filter(|_| is_all).copied();
        for one in gone.collect::<Vec<_>>() {
            self.interfaces.remove(&one);
            table.remove(&one)?;
        }
        Ok(())
    }

    /// Sets this host's own addresses; returns how many there is no room for.
    pub fn set_host_addresses(&mut self, addresses: &BTreeSet<Address>) -> Result<usize, Error> {
        put_all(&mut self.program, "host_addresses", addresses)
    }

    /// Sets the interfaces that lead into other namespaces of this host, by index; returns how many there is
    /// no room for.
    pub fn set_local_peers(&mut self, interfaces: &BTreeSet<u32>) -> Result<usize, Error> {
        put_all(&mut self.program, "local_peers", interfaces)
    }

    /// Sets this host's routes: see [`Host::ways`](crate::host::Host::ways).
    pub fn set_ways(&mut self, wanted: &BTreeMap<(u32, Address), WayOut>) -> Result<(), Error> {
        let mut ways = self.program.ways()?;
        let held: Vec<_> = ways.iter().collect::<Result<_, _>>()?;
        let held: BTreeMap<(u32, Address), WayOut> =
            held.into_iter().map(|(key, way)| ((key.prefix_len(), Address(key.data())), way)).collect();
        for (prefix, address) in held.keys().filter(|key| !wanted.contains_key(key)) {
            ways.remove(&Key::new(*prefix, address.0))?;
        }
        for ((prefix, address), way) in wanted.iter().filter(|(key, way)| held.get(key) != Some(*way)) {
            ways.insert(&Key::new(*prefix, address.0), *way, 0)?;
        }
        Ok(())
    }

    /// Makes every flow look up its route again, because routes, neighbours or interfaces have changed.
    pub fn forget_ways(&mut self) -> Result<(), Error> {
        change_settings(&mut self.program, |held| Settings { routes: held.routes.wrapping_add(1), ..held })?;
        Ok(())
    }

    /// Corrects the program's counts of flows by the result of a sweep.
    pub fn correct(&mut self, swept: &Swept) -> Result<(), Error> {
        let mut open = self.program.array::<u64>("open_flows")?;
        for number in self.held.backends.keys() {
            let counted = open.get(number, 0)? as i64;
            let of = |flows: &BTreeMap<u32, u64>| flows.get(number).copied().unwrap_or(0) as i64;
            let found = of(&swept.by_backend) - of(&swept.ended_by_backend);
            let drift = found - counted;
            let earlier = self.drifts.insert(*number, drift).unwrap_or(0);
            // Flows are added and removed while the table is read. A difference that two sweeps find is due
            // to entries that the table has evicted itself.
            let lasting = if drift > 0 { drift.min(earlier.max(0)) } else { drift.max(earlier.min(0)) };
            if lasting != 0 {
                self.drifts.insert(*number, drift - lasting);
                open.set(*number, (counted + lasting).max(0) as u64, 0)?;
            }
        }
        Ok(())
    }

    /// Counts of a listener's packets by verdict; empty for a listener without a number.
    pub fn verdicts(&mut self, listener: &str) -> Result<Vec<(Verdict, Counter)>, Error> {
        let Some(number) = self.held.numbers.listeners.of(name_of(listener)) else { return Ok(Vec::new()) };
        let counters = self.program.counters::<Counter>("verdicts")?;
        let mut found = Vec::with_capacity(Verdict::ALL.len());
        for verdict in Verdict::ALL {
            let index = number * Verdict::ALL.len() as u32 + verdict as u32;
            let mut sum = Counter::default();
            for one in counters.get(&index, 0)?.iter() {
                sum.packets += one.packets;
                sum.bytes += one.bytes;
            }
            found.push((verdict, sum));
        }
        Ok(found)
    }

    /// Counts of a backend in a pool.
    pub fn backend_counts(&mut self, pool: &str, address: SocketAddr) -> Result<BackendCounter, Error> {
        let name = name_of_backend(pool, &Endpoint::new(address, 0));
        let mut sum = BackendCounter::default();
        let Some(number) = self.held.numbers.backends.of(name) else { return Ok(sum) };
        for one in self.program.counters::<BackendCounter>("backend_counters")?.get(&number, 0)?.iter() {
            sum += *one;
        }
        Ok(sum)
    }

    /// The program's number for a backend in a pool.
    pub fn number_of(&self, pool: &str, address: SocketAddr) -> Option<u32> {
        self.held.numbers.backends.of(name_of_backend(pool, &Endpoint::new(address, 0)))
    }

    /// Flows of a backend in a pool that have not ended.
    pub fn open_flows(&mut self, pool: &str, address: SocketAddr) -> Result<u64, Error> {
        let name = name_of_backend(pool, &Endpoint::new(address, 0));
        let Some(number) = self.held.numbers.backends.of(name) else { return Ok(0) };
        let open = self.program.array::<u64>("open_flows")?.get(&number, 0)?;
        // For a flow that began and ended around a sweep only the end is counted, until the next sweep.
        Ok(if open > i64::MAX as u64 { 0 } else { open })
    }

    /// Backends whose flows continue, by number: the hashes of their names, and their addresses.
    pub fn live_backends(&self) -> impl Iterator<Item = (u32, u64, Endpoint)> + '_ {
        self.held.numbers.backends.iter().filter_map(|(name, number)| {
            let backend = self.held.backends.get(&number)?;
            let at = Endpoint { address: backend.address, port: backend.port, protocol: 0, is_group: 0 };
            (backend.state == BackendState::Alive as u8).then_some((number, name, at))
        })
    }

    /// The number of each listener's pool, by number of the listener.
    pub fn pools_of_listeners(&self) -> BTreeMap<u32, u32> {
        self.held.listeners.values().map(|listener| (listener.number, listener.pool)).collect()
    }

    /// Numbers of a pool's backends.
    pub fn backends_of(&self, pool: u32) -> BTreeSet<u32> {
        let slots = self.held.pools.get(&pool).map(|(_, slots)| slots);
        slots.into_iter().flatten().map(|number| u32::from(*number)).collect()
    }

    /// The numbers of listeners and backends, by which [`Swept`] counts.
    pub fn numbers(&self) -> &crate::plan::Named {
        &self.held.numbers
    }
}

fn interfaces_held(program: &mut Program) -> Result<BTreeSet<[u32; 2]>, MapError> {
    program.table::<[u32; 2], u32>("listener_interfaces")?.keys().collect()
}

/// A listener's number with each interface through which it takes new flows; empty if it is not confined to
/// some.
fn meant_by(listener: &wanted::Listener, held: &Held) -> Vec<[u32; 2]> {
    let number = held.numbers.listeners.of(name_of(&listener.name));
    let interfaces = listener.interfaces.iter().flatten();
    number.into_iter().flat_map(|number| interfaces.clone().map(move |index| [number, *index])).collect()
}

/// Makes a table contain exactly these keys; returns how many there is no room for.
fn put_all<K: aya::Pod + Ord>(
    program: &mut Program,
    map: &str,
    wanted: &BTreeSet<K>,
) -> Result<usize, Error> {
    let mut table = program.table::<K, u32>(map)?;
    let held: BTreeSet<K> = table.keys().collect::<Result<_, _>>()?;
    for gone in held.difference(wanted) {
        table.remove(gone)?;
    }
    let mut left_out = 0;
    for new in wanted.difference(&held) {
        match table.insert(new, 1, 0) {
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::E2BIG) => {
                left_out += 1;
            }
            done => done?,
        }
    }
    Ok(left_out)
}

/// Executes one write of a plan.
pub fn put_in(program: &mut Program, write: &Write) -> Result<(), MapError> {
    match write {
        Write::Backend(number, value) => {
            program.array::<Backend>("backends")?.set(*number, value, 0)?;
        }
        Write::Slots(pool, table, slots) => {
            let mut blocks = program.array::<SlotBlock>("slots")?;
            let first = (pool * 2 + table) * BLOCKS_PER_TABLE as u32;
            for (at, slots) in slots.chunks(SLOTS_PER_BLOCK).enumerate() {
                let mut block = SlotBlock::default();
                block.backends[..slots.len()].copy_from_slice(slots);
                blocks.set(first + at as u32, block, 0)?;
            }
        }
        Write::Pool(number, value) => program.array::<Pool>("pools")?.set(*number, value, 0)?,
        Write::Listener(at, value) => put(program, "listeners", at, value.as_ref())?,
        Write::Origin(at, value) => put(program, "origins", at, value.as_ref())?,
        Write::HasGroups(has_groups) => {
            change_settings(program, |held| Settings { has_groups: u32::from(*has_groups), ..held })?;
        }
        Write::Network(at, admission) => {
            let mut networks = program.networks()?;
            match admission {
                Some(admission) => networks.insert(&key_of_network(at), admission, 0)?,
                None => networks.remove(&key_of_network(at))?,
            }
        }
        Write::Source(at, address) => program.array::<Address>("sources")?.set(*at, address, 0)?,
        Write::SourcePorts(at, value) => put(program, "source_ports", at, value.as_ref())?,
        Write::Name(kind, number, name) => {
            let mut names = program.table::<u64, u64>("names")?;
            names.insert(key_of_name(*kind, *number), name, 0)?;
        }
    }
    Ok(())
}

fn change_settings(program: &mut Program, change: impl FnOnce(Settings) -> Settings) -> Result<(), MapError> {
    let mut settings = program.array::<Settings>("settings")?;
    let held = settings.get(&0, 0)?;
    settings.set(0, change(held), 0)
}

fn put<K: aya::Pod, V: aya::Pod>(
    program: &mut Program,
    map: &str,
    at: &K,
    value: Option<&V>,
) -> Result<(), MapError> {
    let mut table = program.table::<K, V>(map)?;
    match value {
        Some(value) => table.insert(at, value, 0),
        None => match table.remove(at) {
            // It has already been removed.
            Err(MapError::KeyNotFound) => Ok(()),
            other => other,
        },
    }
}

/// The key in the map's format: the prefix length, and the bytes that it applies to.
pub fn key_of_network(network: &Network) -> NetworkKey {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&network.listener.to_ne_bytes());
    bytes[4..].copy_from_slice(&network.address.0);
    NetworkKey::new(network.prefix, bytes)
}

fn network_of_key(key: &NetworkKey) -> Network {
    let [a, b, c, d, address @ ..] = key.data();
    Network {
        prefix: key.prefix_len(),
        listener: u32::from_ne_bytes([a, b, c, d]),
        address: Address(address),
    }
}

/// The content of the maps from an earlier process.
fn adopt(program: &mut Program, sizes: Sizes) -> Result<Held, Error> {
    let pools = program.array::<Pool>("pools")?.len();
    let backends = program.array::<Backend>("backends")?.len();
    // The maps may have the sizes that an earlier process requested.
    let counters = program.counters::<Counter>("verdicts")?.len();
    let listeners = sizes.listeners.min(counters / Verdict::ALL.len() as u32);
    let mut held = Held::nothing(listeners, pools, backends);
    let names: Vec<(u64, u64)> = program.table::<u64, u64>("names")?.iter().filter_map(Result::ok).collect();
    for (key, name) in names {
        let number = key as u32;
        match key >> 32 {
            0 => held.numbers.listeners.adopt(name, number),
            1 => held.numbers.pools.adopt(name, number),
            _ => held.numbers.backends.adopt(name, number),
        }
    }
    for number in 0..backends {
        let value = program.array::<Backend>("backends")?.get(&number, 0)?;
        if value != Backend::default() {
            held.backends.insert(number, value);
        }
    }
    for number in 0..pools {
        let value = program.array::<Pool>("pools")?.get(&number, 0)?;
        if value != Pool::default() {
            held.pools.insert(number, (value, slots_of(program, number, &value)?));
        }
    }
    let listeners: BTreeMap<Endpoint, Listener> =
        program.table("listeners")?.iter().filter_map(Result::ok).collect();
    let origins: BTreeMap<Endpoint, Origin> =
        program.table("origins")?.iter().filter_map(Result::ok).collect();
    let networks = program.networks()?;
    let networks = networks.iter().filter_map(Result::ok);
    let networks = networks.map(|(key, admission)| (network_of_key(&key), admission)).collect();
    let source_ports: BTreeMap<Address, Source> =
        program.table("source_ports")?.iter().filter_map(Result::ok).collect();
    let has_groups = program.array::<Settings>("settings")?.get(&0, 0)?.has_groups != 0;
    let (listeners, origins) = (Arc::new(listeners), Arc::new(origins));
    Ok(Held { listeners, origins, has_groups, networks, source_ports, ..held })
}

fn slots_of(program: &mut Program, number: u32, pool: &Pool) -> Result<Vec<u16>, Error> {
    let blocks = program.array::<SlotBlock>("slots")?;
    let first = (number * 2 + pool.table) * BLOCKS_PER_TABLE as u32;
    let mut slots = Vec::with_capacity(pool.slots as usize);
    for at in 0..(pool.slots as usize).div_ceil(SLOTS_PER_BLOCK) {
        slots.extend(blocks.get(&(first + at as u32), 0)?.backends);
    }
    slots.truncate(pool.slots as usize);
    Ok(slots)
}
