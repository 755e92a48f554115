//! The program, loaded with small maps, in a namespace of its own; and what became of a packet that it was
//! run on.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, MapData, PerCpuValues};
use aya::util::nr_cpus;
use weir_l4::bpf::{TestPacket, test_run};
use weir_l4::kernel::{key_of_network, put_in};
use weir_l4::layout::{
    Address, Algorithm, BLOCKS_PER_TABLE, Backend, BackendCounter, BackendState, Counter, Endpoint, Flow,
    FlowKey4, FlowKey6, Forward, HashKey, Listener, MAX_SOURCES, Network, Origin, Pool, SLOTS_PER_BLOCK,
    Settings, SlotBlock, Source, USE_FULL_NAT, USE_NAT, Verdict,
};
use weir_l4::plan::{Held, plan};
use weir_l4::program::{Error, Program, Sizes};
use weir_l4::wanted::Wanted;

use crate::namespace::{BACKENDS, Device, Namespace, set_forwarding};
pub use crate::outcome::Outcome;
use crate::outcome::hex;

#[path = "remembered.rs"]
mod remembered;

/// How many there are of each; the fuzz target has more. Counters are read after each packet.
const POOLS: u32 = if cfg!(test) { 4 } else { 32 };
const BACKEND_NUMBERS: u32 = 32;
const LISTENERS: u32 = if cfg!(test) { 4 } else { 64 };
/// Directions of flows, of each family.
pub const FLOWS: u32 = 8192;
const SIZES: Sizes = Sizes {
    flows: FLOWS,
    pools: POOLS,
    backends: BACKEND_NUMBERS,
    endpoints: 256,
    listeners: LISTENERS,
    networks: 256,
};

type Counts = BTreeMap<(u32, u32), (u64, u64)>;

/// A loaded program that one test has for itself.
pub struct Plane(Option<Loaded>);

/// Those that no test has at the moment: loading takes longer than a test.
static IDLE: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// Why it could not be loaded.
static REFUSED: OnceLock<String> = OnceLock::new();

struct Loaded {
    namespace: Namespace,
    program: Program,
    counted: Counts,
    is_summed: bool,
    forwards: bool,
    origin_users: BTreeMap<Endpoint, u32>,
    is_for_one_case: bool,
}

const ADVICE: &str = "the packet program can't be loaded. These tests run as root with BPF (CAP_BPF, \
                      CAP_NET_ADMIN, CAP_PERFMON): run them so, they are not skipped. In a container: \
                      --privileged";

/// Loads the program: as this user, or as nobody with the capabilities that an environment variable names,
/// and no others.
fn load() -> Result<Program, Error> {
    let Ok(names) = std::env::var("WEIR_TEST_CAPABILITIES") else { return Program::load(SIZES) };
    // Uid and capabilities are a thread's own.
    let there = std::thread::spawn(move || {
        become_nobody(&names).expect("root may become nobody");
        Program::load(SIZES)
    });
    there.join().expect("loading does not panic")
}

fn become_nobody(names: &str) -> rustix::io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, Uid};
    let nobody = Uid::from_raw(65_534);
    let capabilities = names.split(',').fold(CapabilitySet::empty(), |all, name| {
        all | CapabilitySet::from_name(&name.to_uppercase())
            .unwrap_or_else(|| panic!("{name} is no capability"))
    });
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_res_uid(nobody, nobody, nobody)?;
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: capabilities, permitted: capabilities, inheritable };
    rustix::thread::set_capabilities(None, sets)
}

impl Loaded {
    fn new() -> Loaded {
        if let Some(why) = REFUSED.get() {
            panic!("{why}");
        }
        let namespace = Namespace::new();
        let program = load().unwrap_or_else(|error| {
            let why = format!("{ADVICE}: {error}");
            // A refusal of the verifier takes half a minute, and hundreds of tests would ask for another.
            panic!("{}", REFUSED.get_or_init(|| why))
        });
        Loaded {
            namespace,
            program,
            counted: Counts::new(),
            is_summed: false,
            forwards: true,
            origin_users: BTreeMap::new(),
            is_for_one_case: false,
        }
    }

    fn clear(&mut self) {
        clear(self.table::<Endpoint, Listener>("listeners"));
        clear(self.table::<Endpoint, Origin>("origins"));
        // `names` needs none: the numbers are those of the plan.
        clear(self.table::<Address, u32>("host_addresses"));
        let mut networks = self.program.networks().expect("it is there");
        let held: Vec<_> = networks.keys().map(|key| key.unwrap()).collect();
        held.iter().for_each(|key| networks.remove(key).unwrap());
        let mut ways = self.program.ways().expect("it is there");
        let held: Vec<_> = ways.keys().map(|key| key.unwrap()).collect();
        held.iter().for_each(|key| ways.remove(key).unwrap());
        clear(self.table::<Address, Source>("source_ports"));
        self.forget();
        clear(self.table::<u32, u32>("local_peers"));
        clear(self.table::<[u32; 2], u32>("listener_interfaces"));
        clear(self.table::<[u8; 40], [u8; 44]>("fragments"));
        clear(self.table::<[u8; 20], u32>("failed_clients"));
        for pool in 0..POOLS {
            self.array::<Pool>("pools").set(pool, Pool::default(), 0).unwrap();
            self.array::<u64>("turns").set(pool, 0, 0).unwrap();
        }
        for backend in 0..BACKEND_NUMBERS {
            self.array::<Backend>("backends").set(backend, Backend::default(), 0).unwrap();
            self.array::<u64>("open_flows").set(backend, 0, 0).unwrap();
        }
        self.array::<Settings>("settings").set(0, Settings::default(), 0).unwrap();
        self.answered(0..4, [0; 2]);
        self.origin_users.clear();
        self.is_summed = false;
        self.counted = self.counts();
        if !self.forwards {
            set_forwarding(true);
            self.forwards = true;
        }
    }

    fn forget(&mut self) {
        for (four, six) in [("flows4", "flows6"), ("opening4", "opening6")] {
            clear(self.table::<FlowKey4, Flow>(four));
            clear(self.table::<FlowKey6, Flow>(six));
        }
    }

    fn answered(&mut self, kinds: Range<u32>, tick_and_count: [u32; 2]) {
        let values = || PerCpuValues::try_from(vec![tick_and_count; nr_cpus().unwrap()]).unwrap();
        kinds.for_each(|kind| self.program.counters("answers").unwrap().set(kind, values(), 0).unwrap());
    }

    fn array<V: Pod>(&mut self, name: &str) -> Array<&mut MapData, V> {
        self.program.array(name).unwrap_or_else(|error| panic!("`{name}`: {error}"))
    }

    fn table<K: Pod, V: Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        self.program.table(name).unwrap_or_else(|error| panic!("`{name}`: {error}"))
    }

    fn counts(&mut self) -> Counts {
        let verdicts = self.program.counters::<Counter>("verdicts").expect("it is a map of counters");
        let words = Verdict::ALL.len() as u32;
        let mut counts = Counts::new();
        for index in 0..LISTENERS * words {
            let values = verdicts.get(&index, 0).unwrap();
            let (packets, bytes) = values
                .iter()
                .fold((0, 0), |(packets, bytes), counter| (packets + counter.packets, bytes + counter.bytes));
            counts.insert((index / words, index % words), (packets, bytes));
        }
        counts
    }
}

fn clear<K: Pod, V: Pod>(mut map: HashMap<&mut MapData, K, V>) {
    let keys: Vec<K> = map.keys().map(|key| key.unwrap()).collect();
    keys.iter().for_each(|key| map.remove(key).unwrap());
}

impl Drop for Plane {
    fn drop(&mut self) {
        if let Some(loaded) = self.0.take()
            && !loaded.is_for_one_case
        {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(loaded);
        }
    }
}

impl Plane {
    /// One that knows nothing, for the calling thread.
    pub fn new() -> Plane {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut loaded = idle.unwrap_or_else(Loaded::new);
        loaded.namespace.enter();
        loaded.clear();
        Plane(Some(loaded))
    }

    fn loaded(&mut self) -> &mut Loaded {
        self.0.as_mut().expect("it is there until it is dropped")
    }

    /// Whether the device sums whole packets (CHECKSUM_COMPLETE).
    pub fn set_summed(&mut self, is_summed: bool) {
        self.loaded().is_summed = is_summed;
    }

    /// Whether the host forwards packets itself.
    pub fn set_forwarding(&mut self, forwards: bool) {
        set_forwarding(forwards);
        self.loaded().forwards = forwards;
    }

    /// Says which way this host's route to a network has.
    pub fn way(&mut self, network: IpAddr, prefix: u32, at: Device, is_behind_router: bool) {
        let prefix = if network.is_ipv4() { 96 + prefix } else { prefix };
        let key = Key::new(prefix, Address::from(network).0);
        let way = [at.interface, u32::from(is_behind_router)];
        self.loaded().program.ways().unwrap().insert(&key, way, 0).unwrap();
    }

    /// Writes a backend; port 0 keeps the port that the client asked for.
    pub fn backend(&mut self, number: u32, address: SocketAddr) {
        let backend = Backend {
            address: address.ip().into(),
            port: address.port().to_be_bytes(),
            state: BackendState::Alive as u8,
            family: if address.is_ipv4() { 4 } else { 6 },
            generation: 1,
            weight: 100,
            interface: BACKENDS.interface,
            source: Address::default(),
            failure_ticks: 10,
        };
        self.loaded().array::<Backend>("backends").set(number, backend, 0).unwrap();
    }

    pub fn change_backend(&mut self, number: u32, change: impl FnOnce(&mut Backend)) {
        let mut backend = self.loaded().array::<Backend>("backends").get(&number, 0).unwrap();
        change(&mut backend);
        self.loaded().array::<Backend>("backends").set(number, backend, 0).unwrap();
    }

    /// Writes a pool whose slots hold these backends, one each.
    pub fn pool(&mut self, number: u32, algorithm: Algorithm, backends: &[u16]) {
        self.pool_by(number, algorithm, HashKey::Client, backends);
    }

    /// As [`Plane::pool`], hashing by `key`.
    pub fn pool_by(&mut self, number: u32, algorithm: Algorithm, key: HashKey, backends: &[u16]) {
        for (block, held) in (0u32..).zip(backends.chunks(SLOTS_PER_BLOCK)) {
            let mut slots = SlotBlock::default();
            slots.backends[..held.len()].copy_from_slice(held);
            let index = number * 2 * BLOCKS_PER_TABLE as u32 + block;
            self.loaded().array::<SlotBlock>("slots").set(index, slots, 0).unwrap();
        }
        let pool = Pool {
            algorithm: algorithm as u32,
            hash_key: key as u32,
            table: 0,
            slots: backends.len() as u32,
        };
        self.loaded().array::<Pool>("pools").set(number, pool, 0).unwrap();
    }

    /// Writes a listener, and the way back from the backends of its pool.
    pub fn listener(&mut self, number: u32, at: SocketAddr, protocol: u8, pool: u32, backends: &[u16]) {
        self.put_listener(Listener { number, pool, ..Listener::default() }, at, protocol, backends);
    }

    /// As [`Plane::listener`], by full-NAT from these addresses and ports.
    pub fn full_nat_listener(
        &mut self,
        (number, pool): (u32, u32),
        at: SocketAddr,
        protocol: u8,
        backends: &[u16],
        sources: &[IpAddr],
        ports: (u16, u16),
    ) {
        let first = (number * 2 + u32::from(at.is_ipv6())) * MAX_SOURCES;
        for (place, source) in (first..).zip(sources) {
            let source = Address::from(*source);
            self.loaded().array::<Address>("sources").set(place, source, 0).unwrap();
            let value = Source { first_port: ports.0, last_port: ports.1, listener: number };
            self.loaded().table::<Address, Source>("source_ports").insert(source, value, 0).unwrap();
        }
        let listener = Listener {
            number,
            pool,
            first_port: ports.0,
            ports: ports.1 - ports.0 + 1,
            source_count: sources.len() as u8,
            forward: Forward::FullNat as u8,
            ..Listener::default()
        };
        self.put_listener(listener, at, protocol, backends);
    }

    /// As [`Plane::listener`], by DSR.
    pub fn dsr_listener(&mut self, number: u32, at: SocketAddr, protocol: u8, pool: u32) {
        let listener = Listener { number, pool, forward: Forward::Dsr as u8, ..Listener::default() };
        self.put_listener(listener, at, protocol, &[]);
    }

    /// As [`Plane::listener`], by IP-in-IP from these addresses.
    pub fn ipip_listener(
        &mut self,
        number: u32,
        at: SocketAddr,
        protocol: u8,
        pool: u32,
        sources: &[IpAddr],
    ) {
        let first = (number * 2 + u32::from(at.is_ipv6())) * MAX_SOURCES;
        for (place, source) in (first..).zip(sources) {
            self.loaded().array::<Address>("sources").set(place, Address::from(*source), 0).unwrap();
        }
        let listener = Listener {
            number,
            pool,
            source_count: sources.len() as u8,
            forward: Forward::Ipip as u8,
            ..Listener::default()
        };
        self.put_listener(listener, at, protocol, &[]);
    }

    fn put_listener(&mut self, listener: Listener, at: SocketAddr, protocol: u8, backends: &[u16]) {
        let number = listener.number;
        let is_nat = listener.forward == Forward::Nat as u8;
        let loaded = self.loaded();
        let endpoint = Endpoint::new(at, protocol);
        loaded.table::<Endpoint, Listener>("listeners").insert(endpoint, listener, 0).unwrap();
        loaded
            .table::<Endpoint, Listener>("listeners")
            .insert(Endpoint { port: [0; 2], ..endpoint }, listener, 0)
            .unwrap();
        for number_of_backend in backends {
            let backend = loaded.array::<Backend>("backends").get(&u32::from(*number_of_backend), 0).unwrap();
            let port = if backend.port == [0, 0] { at.port().to_be_bytes() } else { backend.port };
            let from = Endpoint { address: backend.address, port, protocol, is_group: 0 };
            let users = loaded.origin_users.entry(from).or_insert(0);
            *users += 1;
            let origin = Origin {
                address: at.ip().into(),
                port: at.port().to_be_bytes(),
                is_ambiguous: u8::from(*users > 1),
                uses: if is_nat { USE_NAT } else { USE_FULL_NAT },
                listener: number,
                backend: u32::from(*number_of_backend),
            };
            loaded.table::<Endpoint, Origin>("origins").insert(from, origin, 0).unwrap();
            // Later fragments tell no port.
            loaded
                .table::<Endpoint, Origin>("origins")
                .insert(Endpoint { port: [0; 2], ..from }, origin, 0)
                .unwrap();
        }
    }

    /// Changes what is held of a listener's endpoint, and of the port that stands for all of its address.
    pub fn change_listener(&mut self, at: SocketAddr, protocol: u8, change: impl Fn(&mut Listener)) {
        let endpoint = Endpoint::new(at, protocol);
        let mut listeners = self.loaded().table::<Endpoint, Listener>("listeners");
        for key in [endpoint, Endpoint { port: [0; 2], ..endpoint }] {
            let mut listener = listeners.get(&key, 0).unwrap();
            change(&mut listener);
            listeners.insert(key, listener, 0).unwrap();
        }
    }

    /// Has listener 0 take new flows by one interface alone.
    pub fn confine(&mut self, at: SocketAddr, protocol: u8, to: Device) {
        self.change_listener(at, protocol, |listener| listener.is_confined = 1);
        let key = [0, to.interface];
        self.loaded().table::<[u32; 2], u32>("listener_interfaces").insert(key, 1, 0).unwrap();
    }

    /// Has the maps hold what a plan asks for, and gives what they hold.
    pub fn wants(&mut self, wanted: &Wanted) -> Held {
        self.wants_instead(&Held::nothing(LISTENERS, POOLS, BACKEND_NUMBERS), wanted)
    }

    /// As above, where they hold something.
    pub fn wants_instead(&mut self, held: &Held, wanted: &Wanted) -> Held {
        let (writes, held) = plan(held, wanted, &|_| BACKENDS.interface).expect("there is room");
        for write in &writes {
            put_in(&mut self.loaded().program, write).unwrap_or_else(|error| panic!("{write:?}: {error}"));
        }
        held
    }

    /// How many places of listeners there are, and of backends.
    pub fn endpoints(&mut self) -> (usize, usize) {
        let listeners = self.loaded().table::<Endpoint, Listener>("listeners").keys().count();
        (listeners, self.loaded().table::<Endpoint, Origin>("origins").keys().count())
    }

    /// Says that a backend is used by NAT of a listener, and by full-NAT of another.
    pub fn share_backend(&mut self, number: u32, protocol: u8, listener: SocketAddr, listener_number: u32) {
        let backend = self.loaded().array::<Backend>("backends").get(&number, 0).unwrap();
        let origin = Origin {
            address: listener.ip().into(),
            port: listener.port().to_be_bytes(),
            is_ambiguous: 0,
            uses: USE_NAT | USE_FULL_NAT,
            listener: listener_number,
            backend: number,
        };
        let from = Endpoint { address: backend.address, port: backend.port, protocol, is_group: 0 };
        self.loaded().table::<Endpoint, Origin>("origins").insert(from, origin, 0).unwrap();
    }

    /// Lets no other test have it: its namespace is changed.
    pub fn is_for_one_case(&mut self) {
        self.loaded().is_for_one_case = true;
    }

    /// Says that an address is one of this host.
    pub fn host_address(&mut self, address: IpAddr) {
        self.loaded().table::<Address, u32>("host_addresses").insert(Address::from(address), 1, 0).unwrap();
    }

    /// Says whether a network is let in.
    pub fn admits(&mut self, network: Network, admission: u32) {
        self.loaded().program.networks().unwrap().insert(&key_of_network(&network), admission, 0).unwrap();
    }

    pub fn settings(&mut self, settings: Settings) {
        self.loaded().array::<Settings>("settings").set(0, settings, 0).unwrap();
    }

    /// Flows that a backend has open.
    pub fn open_flows(&mut self, backend: u32) -> u64 {
        self.loaded().array::<u64>("open_flows").get(&backend, 0).unwrap()
    }

    pub fn set_open_flows(&mut self, backend: u32, flows: u64) {
        self.loaded().array::<u64>("open_flows").set(backend, flows, 0).unwrap();
    }

    /// Counts from here on: packets have been run past this.
    pub fn recount(&mut self) {
        let loaded = self.loaded();
        loaded.counted = loaded.counts();
    }

    /// What a backend is counted for.
    pub fn backend_counts(&mut self, backend: u32) -> BackendCounter {
        let counters =
            self.loaded().program.counters::<BackendCounter>("backend_counters").expect("it is there");
        let values = counters.get(&backend, 0).unwrap();
        let mut sum = BackendCounter::default();
        values.iter().for_each(|one| sum += *one);
        sum
    }

    /// Says that the other end of an interface is in another namespace of this host.
    pub fn local_peer(&mut self, interface: u32) {
        self.loaded().table::<u32, u32>("local_peers").insert(interface, 1, 0).unwrap();
    }

    /// The program's descriptor.
    pub fn program(&mut self) -> BorrowedFd<'_> {
        self.loaded().program.classifier().fd().expect("it is loaded").as_fd()
    }

    /// Packets under each verdict, of all listeners together.
    #[allow(dead_code, reason = "the fuzz target runs packets by itself")]
    pub fn counted_in_all(&mut self) -> BTreeMap<Verdict, u64> {
        let mut all = BTreeMap::new();
        for ((_, verdict), (packets, _)) in self.loaded().counts() {
            *all.entry(Verdict::ALL[verdict as usize]).or_default() += packets;
        }
        all
    }

    /// Says of these kinds of answers that so many were given in a tick, by each processor.
    pub fn answered(&mut self, kinds: Range<u32>, tick_and_count: [u32; 2]) {
        self.loaded().answered(kinds, tick_and_count);
    }

    /// Forgets all flows.
    pub fn forget(&mut self) {
        self.loaded().forget();
    }

    /// Runs the program on a frame.
    #[track_caller]
    pub fn run(&mut self, at: Device, frame: &[u8]) -> Outcome {
        self.run_train(at, frame, 0, 0)
    }

    /// Runs the program on a frame that the device made of several.
    #[track_caller]
    pub fn run_train(&mut self, at: Device, frame: &[u8], segments: u32, segment_bytes: u32) -> Outcome {
        let loaded = self.loaded();
        let is_summed = loaded.is_summed;
        let packet =
            TestPacket { frame, interface: at.interface, segments, segment_bytes, is_summed, repeat: 1 };
        let program = loaded.program.classifier().fd().expect("it is loaded").as_fd();
        let result = test_run(program, &packet).unwrap_or_else(|error| match error.raw_os_error() {
            Some(EBADMSG) => panic!("the sum over the whole packet is wrong afterwards; sent {}", hex(frame)),
            _ => panic!("the kernel does not run it: {error}; sent {}", hex(frame)),
        });
        let counts = loaded.counts();
        let changed = counts.iter().filter_map(|((listener, verdict), (packets, bytes))| {
            let (earlier, earlier_bytes) = loaded.counted[&(*listener, *verdict)];
            let verdict = Verdict::ALL[*verdict as usize];
            let more = (*listener, verdict, packets - earlier, bytes - earlier_bytes);
            (*packets != earlier || *bytes != earlier_bytes).then_some(more)
        });
        let counted = changed.collect();
        loaded.counted = counts;
        Outcome { sent: frame.to_vec(), action: result.action, frame: result.frame, counted }
    }
}

const EBADMSG: i32 = 74;
