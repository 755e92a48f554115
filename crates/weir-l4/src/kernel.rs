//! The kernel plane as its owner sees it: what is wanted is put into the maps, flows are swept, counters are
//! read.

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

/// What is wanted was not put in force.
#[derive(Debug)]
pub enum ApplyError {
    /// More is wanted than there is room for; nothing was changed.
    Full(Full),
    /// The kernel refused a write; what was in force may be so in part.
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

/// The program, its maps, and what they hold.
pub struct Kernel {
    program: Program,
    held: Held,
    sizes: Sizes,
    /// By how much the last sweep found more flows of a backend than the program counts.
    drifts: BTreeMap<u32, i64>,
    /// Numbers of listeners with interfaces by which they take new flows, as the map has them.
    interfaces: BTreeSet<[u32; 2]>,
}

impl Kernel {
    /// With the maps below `directory`, and what they hold from an earlier process.
    pub fn open(directory: &Path, sizes: Sizes) -> Result<Kernel, Error> {
        let mut program = Program::open(directory, sizes)?;
        let held = adopt(&mut program, sizes)?;
        let interfaces = interfaces_held(&mut program)?;
        Ok(Kernel { program, held, sizes, drifts: BTreeMap::new(), interfaces })
    }

    /// The program, to attach it.
    pub fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    /// A handle of the tables of flows.
    pub fn flow_tables(&mut self) -> Result<FlowTables, Error> {
        self.program.flow_tables()
    }

    /// Entries that each table of flows has room for: of one that was taken over, as many as it was made for.
    pub fn flow_entries(&mut self) -> Result<u32, Error> {
        self.program.flow_entries()
    }

    /// Whether an earlier process had left it.
    pub fn was_there(&self) -> bool {
        self.program.was_there()
    }

    /// Takes the plane away, and all its flows.
    pub fn remove(self) {
        self.program.remove();
    }

    /// Goes by what the maps hold now, and pins them where they are not: another process had them.
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
        // Before listeners are confined to them; others stay until none is.
        self.put_interfaces(&meant, false)?;
        for write in &writes {
            put_in(&mut self.program, write)?;
        }
        self.put_interfaces(&meant, true)?;
        // Only now: after a write that failed, the next plan begins from what was there and writes all of it
        // again.
        self.held = next;
        Ok(())
    }

    /// Has listeners take new flows by these interfaces, and where `is_all` by no others.
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

    /// Says which addresses are this host's own; gives the number of those that there is no room for.
    pub fn set_host_addresses(&mut self, addresses: &BTreeSet<Address>) -> Result<usize, Error> {
        put_all(&mut self.program, "host_addresses", addresses)
    }

    /// Says which interfaces lead into other namespaces of this host, by index; gives the number of those
    /// that there is no room for.
    pub fn set_local_peers(&mut self, interfaces: &BTreeSet<u32>) -> Result<usize, Error> {
        put_all(&mut self.program, "local_peers", interfaces)
    }

    /// Says which ways this host's routes have: see [`Host::ways`](crate::host::Host::ways).
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

    /// Has every flow look up its way anew: routes, neighbours or interfaces have changed.
    pub fn forget_ways(&mut self) -> Result<(), Error> {
        change_settings(&mut self.program, |held| Settings { routes: held.routes.wrapping_add(1), ..held })?;
        Ok(())
    }

    /// Corrects what the program counts of flows by what a sweep found.
    pub fn correct(&mut self, swept: &Swept) -> Result<(), Error> {
        let mut open = self.program.array::<u64>("open_flows")?;
        for number in self.held.backends.keys() {
            let counted = open.get(number, 0)? as i64;
            let of = |flows: &BTreeMap<u32, u64>| flows.get(number).copied().unwrap_or(0) as i64;
            let found = of(&swept.by_backend) - of(&swept.ended_by_backend);
            let drift = found - counted;
            let earlier = self.drifts.insert(*number, drift).unwrap_or(0);
            // Flows come and go while the table is read. What two sweeps agree on is an entry that the table
            // let go by itself.
            let lasting = if drift > 0 { drift.min(earlier.max(0)) } else { drift.max(earlier.min(0)) };
            if lasting != 0 {
                self.drifts.insert(*number, drift - lasting);
                open.set(*number, (counted + lasting).max(0) as u64, 0)?;
            }
        }
        Ok(())
    }

    /// What became of the packets of a listener, by its name; nothing for one that has no number.
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

    /// What is counted of a backend of a pool.
    pub fn backend_counts(&mut self, pool: &str, address: SocketAddr) -> Result<BackendCounter, Error> {
        let name = name_of_backend(pool, &Endpoint::new(address, 0));
        let mut sum = BackendCounter::default();
        let Some(number) = self.held.numbers.backends.of(name) else { return Ok(sum) };
        for one in self.program.counters::<BackendCounter>("backend_counters")?.get(&number, 0)?.iter() {
            sum += *one;
        }
        Ok(sum)
    }

    /// What the program knows a backend of a pool by.
    pub fn number_of(&self, pool: &str, address: SocketAddr) -> Option<u32> {
        self.held.numbers.backends.of(name_of_backend(pool, &Endpoint::new(address, 0)))
    }

    /// Flows of a backend of a pool that have not ended.
    pub fn open_flows(&mut self, pool: &str, address: SocketAddr) -> Result<u64, Error> {
        let name = name_of_backend(pool, &Endpoint::new(address, 0));
        let Some(number) = self.held.numbers.backends.of(name) else { return Ok(0) };
        let open = self.program.array::<u64>("open_flows")?.get(&number, 0)?;
        // A flow that came about and ended around a sweep is counted down alone, until the next one.
        Ok(if open > i64::MAX as u64 { 0 } else { open })
    }

    /// Backends whose flows go on, by number: the names that they are known by, and their addresses.
    pub fn live_backends(&self) -> impl Iterator<Item = (u32, u64, Endpoint)> + '_ {
        self.held.numbers.backends.iter().filter_map(|(name, number)| {
            let backend = self.held.backends.get(&number)?;
            let at = Endpoint { address: backend.address, port: backend.port, protocol: 0, is_group: 0 };
            (backend.state == BackendState::Alive as u8).then_some((number, name, at))
        })
    }

    /// The number of each listener's pool, by the listener's own.
    pub fn pools_of_listeners(&self) -> BTreeMap<u32, u32> {
        self.held.listeners.values().map(|listener| (listener.number, listener.pool)).collect()
    }

    /// Numbers of the backends that a pool leads to, by its own.
    pub fn backends_of(&self, pool: u32) -> BTreeSet<u32> {
        let slots = self.held.pools.get(&pool).map(|(_, slots)| slots);
        slots.into_iter().flatten().map(|number| u32::from(*number)).collect()
    }

    /// The number of a listener, and of a backend: what [`Swept`] counts by.
    pub fn numbers(&self) -> &crate::plan::Named {
        &self.held.numbers
    }
}

fn interfaces_held(program: &mut Program) -> Result<BTreeSet<[u32; 2]>, MapError> {
    program.table::<[u32; 2], u32>("listener_interfaces")?.keys().collect()
}

/// A listener's number with each interface by which it takes new flows, if it does so by some alone.
fn meant_by(listener: &wanted::Listener, held: &Held) -> Vec<[u32; 2]> {
    let number = held.numbers.listeners.of(name_of(&listener.name));
    let interfaces = listener.interfaces.iter().flatten();
    number.into_iter().flat_map(|number| interfaces.clone().map(move |index| [number, *index])).collect()
}

/// Has a table hold these keys and no others; gives the number of those that there is no room for.
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

/// Does one write of a plan.
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
            // Gone already.
            Err(MapError::KeyNotFound) => Ok(()),
            other => other,
        },
    }
}

/// As the map wants it: the prefix, and the bytes that it is of.
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

/// What the maps hold from an earlier process.
fn adopt(program: &mut Program, sizes: Sizes) -> Result<Held, Error> {
    let pools = program.array::<Pool>("pools")?.len();
    let backends = program.array::<Backend>("backends")?.len();
    // The maps may be of a size that an earlier process wanted.
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
