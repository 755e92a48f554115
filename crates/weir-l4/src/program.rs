//! The program in the kernel and its maps: loads it or takes it over from an earlier process, and attaches it
//! to interfaces.
//!
//! Maps and attachments are pinned below a directory of the BPF file system, so that packets are forwarded
//! even while no process is running.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::pin::PinError;
use aya::programs::ProgramError;
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfError, EbpfLoader};

use crate::attachments::Attachments;
use crate::flows::FlowTables;
use crate::host::WayOut;
use crate::layout::{BLOCKS_PER_TABLE, LAYOUT_VERSION, MAX_SOURCES, Verdict};

/// The compiled program for explanations.
static EXPLAINING_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nat_explains.bpf.o"));

/// The compiled program.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nat.bpf.o"));

/// A key of the map of networks: `struct network` without its prefix length.
pub type NetworkKey = Key<[u8; 20]>;

/// Capacity of the maps, which can't grow while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Entries of each flow table; every flow has two.
    pub flows: u32,
    /// Pools.
    pub pools: u32,
    /// Backends, over all pools.
    pub backends: u32,
    /// Listeners' endpoints, and backends' for each protocol.
    pub endpoints: u32,
    /// Listeners.
    pub listeners: u32,
    /// Networks that listeners admit or refuse, for all of them together.
    pub networks: u32,
}

impl Sizes {
    fn by_map(&self) -> [(&'static str, u32); 17] {
        // A flow is opening for one round trip to its client. With 65,536 entries, a flood of 1,000,000 a
        // second leaves each of them 65 ms.
        let opening = (self.flows / 4).max(1024);
        [
            ("flows4", self.flows),
            ("flows6", self.flows),
            ("opening4", opening),
            ("opening6", opening),
            ("pools", self.pools),
            ("turns", self.pools),
            ("slots", self.pools * 2 * BLOCKS_PER_TABLE as u32),
            ("backends", self.backends),
            ("open_flows", self.backends),
            ("backend_counters", self.backends),
            ("networks", self.networks),
            ("listeners", self.endpoints),
            ("origins", self.endpoints),
            ("sources", self.listeners * 2 * MAX_SOURCES),
            ("source_ports", self.listeners * 2 * MAX_SOURCES),
            ("names", self.listeners + self.pools + self.backends),
            ("verdicts", self.listeners * Verdict::ALL.len() as u32),
        ]
    }
}

/// Why the program could not be loaded or attached.
#[derive(Debug)]
pub enum Error {
    /// The kernel rejected the program or a map.
    Load(EbpfError),
    /// As above, after it was loaded.
    Program(ProgramError),
    /// A map could not be read or written.
    Map(MapError),
    /// The flow tables could not be read.
    Flows(io::Error),
    /// The program could not be run.
    Run(io::Error),
    /// The interfaces could not be read.
    Interfaces(io::Error),
    /// No BPF file system is mounted at the place where programs should be pinned.
    NotMounted {
        /// The directory.
        directory: PathBuf,
    },
    /// Another process owns what is pinned below a directory.
    Held {
        /// The directory.
        directory: PathBuf,
        /// Its process number, if visible.
        by: Option<u32>,
    },
    /// An error with a file in the BPF file system.
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It could not be attached to an interface.
    Attach {
        /// Its name.
        interface: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Load(error) => {
                write!(out, "the kernel does not load the packet program ({}): {}", Needed, Chain(error))
            }
            Error::Program(error) => {
                write!(out, "the kernel does not take the packet program ({}): {}", Needed, Chain(error))
            }
            Error::Map(error) => write!(out, "a table of the kernel plane: {}", Chain(error)),
            Error::Flows(error) => write!(out, "the tables of flows: {error}"),
            Error::Run(error) => write!(out, "the kernel does not run the packet program: {error}"),
            Error::Interfaces(error) => write!(out, "the host's interfaces can't be read: {error}"),
            Error::NotMounted { directory } => write!(
                out,
                "{} is in no BPF file system: as root, `mount -t bpf bpf /sys/fs/bpf` (systemd does it)",
                directory.display()
            ),
            Error::Held { directory, by } => {
                let who = by.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                write!(
                    out,
                    "another Weir{who} has the kernel plane of {}: end it first, or set another `kernel.directory` here",
                    directory.display()
                )
            }
            Error::File { path, source } => write!(out, "{}: {source}", path.display()),
            Error::Attach { interface, source } => {
                write!(out, "the packet program can't be attached to {interface}: {}", Chain(source.as_ref()))
            }
        }
    }
}

impl std::error::Error for Error {}

/// What loading requires, and what of that this process lacks.
struct Needed;

impl fmt::Display for Needed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// By their numbers in linux/capability.h.
        const NAMES: [(u32, &str); 3] = [(39, "CAP_BPF"), (12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON")];
        write!(out, "it needs Linux 6.1 or newer, CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let Some(held) = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) else { return Ok(()) };
        let has = |number: u32| held & 1 << number != 0;
        // CAP_SYS_ADMIN includes the two that were once part of it.
        let lacks = |(number, _): &&(u32, &str)| !has(*number) && (*number == 12 || !has(21));
        let missing: Vec<&str> = NAMES.iter().filter(lacks).map(|(_, name)| *name).collect();
        if missing.is_empty() {
            Ok(())
        } else {
            write!(out, "; this process lacks {}", missing.join(" and "))
        }
    }
}

/// An error with the chain of its causes.
struct Chain<'e>(&'e dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(out, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

macro_rules! from {
    ($($error:ty => $variant:ident),*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::$variant(error)
            }
        })*
    };
}
from!(EbpfError => Load, ProgramError => Program, MapError => Map);

/// A loaded program, with its maps and attachments.
pub struct Program {
    object: Ebpf,
    attachments: Attachments,
    /// Whether its maps were those of an earlier process.
    was_there: bool,
}

impl Program {
    /// Loads the program with its own maps, which exist only as long as it.
    pub fn load(sizes: Sizes) -> Result<Program, Error> {
        Program::load_by(EbpfLoader::new(), OBJECT, sizes, None)
    }

    /// Loads the program for explanations, with the maps that [`Program::open`] has pinned below `directory`
    /// with these sizes. It is not attached.
    pub fn open_to_explain(directory: &Path, sizes: Sizes) -> Result<Program, Error> {
        let maps = own_directory(directory).join("maps");
        Program::load_by(with_pinned(&maps), EXPLAINING_OBJECT, sizes, None)
    }

    /// Loads the program with the maps pinned below `directory`; missing ones are created.
    ///
    /// Maps with another layout are left alone; see [`remove_other_layouts`].
    pub fn open(directory: &Path, sizes: Sizes) -> Result<Program, Error> {
        if !is_mounted(directory) {
            return Err(Error::NotMounted { directory: directory.to_owned() });
        }
        let own = own_directory(directory);
        let maps = own.join("maps");
        make_directories(&own)?;
        let was_there = std::fs::read_dir(&maps).is_ok_and(|mut entries| entries.next().is_some());
        let program = Program::load_by(with_pinned(&maps), OBJECT, sizes, Some(own))?;
        Ok(Program { was_there, ..program })
    }

    fn load_by(
        mut loader: EbpfLoader<'_>,
        object: &[u8],
        sizes: Sizes,
        own: Option<PathBuf>,
    ) -> Result<Program, Error> {
        for (map, entries) in sizes.by_map() {
            loader.map_max_entries(map, entries);
        }
        let mut object = loader.load(object)?;
        let classifier: &mut SchedClassifier =
            object.program_mut("balance").expect("the object holds it").try_into()?;
        classifier.load()?;
        Ok(Program { object, attachments: Attachments::at(own), was_there: false })
    }

    /// Whether its maps were those of an earlier process.
    pub fn was_there(&self) -> bool {
        self.was_there
    }

    /// The packet program.
    pub fn classifier(&mut self) -> &mut SchedClassifier {
        let program = self.object.program_mut("balance").expect("the object holds it");
        program.try_into().expect("it is a classifier")
    }

    fn map(&mut self, name: &str) -> &mut Map {
        self.object.map_mut(name).expect("the object holds every map of maps.h")
    }

    /// An array by its name in `bpf/maps.h`.
    pub fn array<V: aya::Pod>(&mut self, name: &str) -> Result<Array<&mut MapData, V>, MapError> {
        Array::try_from(self.map(name))
    }

    /// A hash table by its name in `bpf/maps.h`.
    pub fn table<K: aya::Pod, V: aya::Pod>(
        &mut self,
        name: &str,
    ) -> Result<HashMap<&mut MapData, K, V>, MapError> {
        HashMap::try_from(self.map(name))
    }

    /// The clients that listeners admit and refuse.
    pub fn networks(&mut self) -> Result<LpmTrie<&mut MapData, [u8; 20], u32>, MapError> {
        LpmTrie::try_from(self.map("networks"))
    }

    /// This host's routes.
    pub fn ways(&mut self) -> Result<LpmTrie<&mut MapData, [u8; 16], WayOut>, MapError> {
        LpmTrie::try_from(self.map("ways"))
    }

    /// Counters by their name in `bpf/maps.h`, with a copy for each CPU.
    pub fn counters<V: aya::Pod>(&mut self, name: &str) -> Result<PerCpuArray<&mut MapData, V>, MapError> {
        PerCpuArray::try_from(self.map(name))
    }

    /// The flow tables, with separate descriptors.
    pub fn flow_tables(&mut self) -> Result<FlowTables, Error> {
        let mut descriptor = |name: &str| match self.map(name) {
            Map::LruHashMap(map) => map.fd().as_fd().try_clone_to_owned().map_err(Error::Flows),
            _ => unreachable!("it is one in maps.h"),
        };
        let four = [descriptor("flows4")?, descriptor("opening4")?];
        let six = [descriptor("flows6")?, descriptor("opening6")?];
        Ok(FlowTables::new(four, six)?)
    }

    /// Capacity of each flow table, in entries.
    pub fn flow_entries(&mut self) -> Result<u32, Error> {
        match self.map("flows4") {
            Map::LruHashMap(map) => Ok(map.info()?.max_entries()),
            _ => unreachable!("it is one in maps.h"),
        }
    }

    /// Names of the interfaces that it is attached to.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.attachments.interfaces()
    }

    /// Attaches the program to the ingress of an interface, before the programs that are there; takes over
    /// the attachment of an earlier process without missing a packet.
    pub fn attach(&mut self, interface: &str) -> Result<(), Error> {
        let program = self.object.program_mut("balance").expect("the object holds it");
        let classifier: &mut SchedClassifier = program.try_into().expect("it is a classifier");
        self.attachments
            .attach(classifier, interface)
            .map_err(|source| Error::Attach { interface: interface.to_owned(), source })
    }

    /// Renames attachments whose interfaces were renamed; see [`Host::name_of`]. Returns the old and the new
    /// name of each.
    ///
    /// [`Host::name_of`]: crate::host::Host::name_of
    pub fn rename(&mut self, name_of: &dyn Fn(u32) -> Option<String>) -> Vec<[String; 2]> {
        self.attachments.rename(name_of)
    }

    /// Names of the interfaces that it was attached to and that no longer run it; see [`Host::index_of`].
    ///
    /// [`Host::index_of`]: crate::host::Host::index_of
    pub fn lost(&mut self, index_of: &dyn Fn(&str) -> Option<u32>) -> Result<Vec<String>, Error> {
        let program = self.classifier().info()?.id();
        Ok(self.attachments.lost(program, index_of))
    }

    /// Pins what another process has unpinned, so that the next process finds it.
    pub fn pin_again(&self) -> Result<(), Error> {
        let Some(own) = self.attachments.directory() else { return Ok(()) };
        let maps = own.join("maps");
        make_directories(own)?;
        for name in MAPS {
            let path = maps.join(name);
            if !path.exists() {
                let map = self.object.map(name).expect("the object holds every map of maps.h");
                let failed =
                    |problem: PinError| Error::File { path: path.clone(), source: io::Error::other(problem) };
                map.pin(&path).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Detaches the program from an interface.
    pub fn detach(&mut self, interface: &str) {
        self.attachments.detach(interface);
    }

    /// Names of interfaces with an attachment of an earlier process that was not taken over.
    pub fn left_behind(&self) -> Vec<String> {
        self.attachments.left_behind()
    }

    /// Removes everything: attachments and maps. Packets for its listeners go to the host's own stack from
    /// now on.
    pub fn remove(mut self) {
        if let Some(own) = self.attachments.remove() {
            remove_pins(&own);
        }
    }
}

fn make_directories(own: &Path) -> Result<(), Error> {
    for path in Attachments::directories(own).iter().chain([&own.join("maps")]) {
        std::fs::create_dir_all(path).map_err(|source| Error::File { path: path.clone(), source })?;
    }
    Ok(())
}

/// A loader that takes over the maps below `maps`, and pins missing ones there.
fn with_pinned(maps: &Path) -> EbpfLoader<'static> {
    let mut loader = EbpfLoader::new();
    for map in MAPS {
        loader.map_pin_path(map, maps.join(map));
    }
    loader
}

/// Removes what an earlier process has left below `directory`, so that nothing is forwarded by a config that
/// no longer asks for it. Returns whether there was anything.
pub fn remove_left_behind(directory: &Path) -> bool {
    let own = own_directory(directory);
    let was_there = own.is_dir();
    remove_pins(&own);
    remove_other_layouts(directory) > 0 || was_there
}

/// Whether an earlier process has left maps with this layout below `directory`.
pub fn is_left_behind(directory: &Path) -> bool {
    own_directory(directory).is_dir()
}

/// Removes what a process of another version, with another map layout, has left below `directory`, since both
/// programs would take packets. Returns the number of such planes.
pub fn remove_other_layouts(directory: &Path) -> usize {
    let own = own_directory(directory);
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_layout = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        *path != own && name.is_some_and(|name| name.starts_with("layout-"))
    };
    let others: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_layout).collect();
    for other in &others {
        Attachments::disown(other, &own);
        remove_pins(other);
    }
    others.len()
}

/// Each layout has a directory of its own.
fn own_directory(directory: &Path) -> PathBuf {
    directory.join(format!("layout-{LAYOUT_VERSION}"))
}

/// Ends attachments and unpins maps.
fn remove_pins(own: &Path) {
    Attachments::at(Some(own.to_owned())).remove();
    let maps = own.join("maps");
    for entry in std::fs::read_dir(&maps).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(entry.path());
    }
    let _ = std::fs::remove_dir(maps);
    let _ = std::fs::remove_dir(own);
}

/// Whether the nearest part of a path that exists is in a BPF file system.
pub(crate) fn is_mounted(path: &Path) -> bool {
    /// BPF_FS_MAGIC of `linux/magic.h`.
    const MAGIC: u64 = 0xcafe_4a11;
    let found = path.ancestors().find_map(|part| rustix::fs::statfs(part).ok());
    found.is_some_and(|found| found.f_type as u64 == MAGIC)
}

/// Every map of `bpf/maps.h`.
const MAPS: [&str; 25] = [
    "networks",
    "listeners",
    "origins",
    "sources",
    "source_ports",
    "host_addresses",
    "pools",
    "slots",
    "turns",
    "backends",
    "open_flows",
    "flows4",
    "flows6",
    "opening4",
    "opening6",
    "fragments",
    "settings",
    "names",
    "local_peers",
    "listener_interfaces",
    "ways",
    "answers",
    "failed_clients",
    "verdicts",
    "backend_counters",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_elsewhere_is_in_no_bpf_file_system() {
        let here = std::env::temp_dir().join("weir");
        assert!(!is_mounted(&here));
        let sizes = Sizes { flows: 1, pools: 1, backends: 1, endpoints: 1, listeners: 1, networks: 1 };
        let Err(error) = Program::open(&here, sizes) else { panic!("it was opened") };
        assert!(error.to_string().contains("mount -t bpf"), "{error}");
    }
    /// `make dist` refuses a binary that names a path of the machine that built it.
    #[test]
    fn the_compiled_programs_name_no_path_of_this_machine() {
        let here = env!("CARGO_MANIFEST_DIR").as_bytes();
        for name in ["nat.bpf.o", "nat_explains.bpf.o", "decap.bpf.o", "probes.bpf.o"] {
            let object = std::fs::read(Path::new(env!("OUT_DIR")).join(name)).expect("it is compiled");
            assert!(!object.windows(here.len()).any(|bytes| bytes == here), "{name}");
        }
    }
}
