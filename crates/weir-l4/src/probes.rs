//! Health probes that take the path of clients' packets. A socket connects to the backend's own address, and
//! a program at the egress and ingress of interfaces (`bpf/probes.bpf.c`) rewrites its packets so that they
//! go to the listener's address at that backend, and answers so that they come from the backend's own
//! address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::links::FdLink;
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};

use crate::attachments::{Failure, HANDLE, lacks_tcx};
use crate::layout::Address;
use crate::program::{Error, Program};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/probes.bpf.o"));

/// Functions of the object.
const ASKS: &str = "ask_vip";
const HEARS: &str = "hear_vip";

/// As `struct probe_key` in `bpf/probes.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeKey {
    here: Address,
    there: Address,
    here_port: [u8; 2],
    there_port: [u8; 2],
    is_answer: u8,
    zero: [u8; 3],
}

const _: () = assert!(size_of::<ProbeKey>() == 40, "as in bpf/probes.bpf.c");

/// As `struct probe_way` in `bpf/probes.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeWay {
    becomes: Address,
    outer_source: Address,
    until_ns: u64,
    packets: u32,
    is_wrapped: u32,
}

const _: () = assert!(size_of::<ProbeWay>() == 48, "as in bpf/probes.bpf.c");

/// One probe: a connection, and how its packets are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePassage {
    /// The address that its socket is bound to: an address of this host, and a port that no other socket has.
    pub here: SocketAddr,
    /// The address that its socket connects to.
    pub backend: SocketAddr,
    /// The listener's address, of the same family, which is probed at the same port.
    pub vip: IpAddr,
    /// The source of outer packets to the backend; `None` if there are none.
    pub outer_source: Option<IpAddr>,
    /// The time until which its packets are rewritten, by the program's clock ([`crate::flows`]).
    pub until: Duration,
}

type ProbeTable = HashMap<MapData, ProbeKey, ProbeWay>;

/// The probes in progress.
pub struct ProbePassages(Mutex<ProbeTable>);

/// A probe in progress; when this is dropped its packets are no longer rewritten.
pub struct PassingProbe {
    passages: Arc<ProbePassages>,
    keys: [ProbeKey; 2],
}

impl ProbePassages {
    /// Rewrites the packets of a connection from now on; call this before it begins.
    ///
    /// # Errors
    /// There is no room for another one, or the right to write the map is missing.
    pub fn begin(self: &Arc<Self>, passage: &ProbePassage) -> Result<PassingProbe, MapError> {
        let (keys, ways) = entries(passage);
        // Created first, so that if one of the two entries is refused, the other is removed.
        let under_way = PassingProbe { passages: self.clone(), keys };
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, way) in keys.iter().zip(ways) {
            table.insert(key, way, 0)?;
        }
        drop(table);
        Ok(under_way)
    }
}

impl PassingProbe {
    /// Whether an outgoing packet of it has been rewritten.
    pub fn has_left(&self) -> bool {
        let table = self.passages.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.get(&self.keys[0], 0).is_ok_and(|way| way.packets > 0)
    }
}

impl Drop for PassingProbe {
    fn drop(&mut self) {
        let mut table = self.passages.0.lock().unwrap_or_else(PoisonError::into_inner);
        for key in &self.keys {
            let _ = table.remove(key);
        }
    }
}

/// The map entries for the program: for outgoing and for incoming packets.
fn entries(passage: &ProbePassage) -> ([ProbeKey; 2], [ProbeWay; 2]) {
    let address = |ip: IpAddr| Address::from(ip.to_canonical());
    let (backend, vip) = (address(passage.backend.ip()), address(passage.vip));
    let key = |there, is_answer| ProbeKey {
        here: address(passage.here.ip()),
        there,
        here_port: passage.here.port().to_be_bytes(),
        there_port: passage.backend.port().to_be_bytes(),
        is_answer,
        zero: [0; 3],
    };
    let way = |becomes, outer_source: Option<IpAddr>| ProbeWay {
        becomes,
        outer_source: outer_source.map(address).unwrap_or_default(),
        until_ns: u64::try_from(passage.until.as_nanos()).unwrap_or(u64::MAX),
        packets: 0,
        is_wrapped: u32::from(outer_source.is_some()),
    };
    ([key(backend, 0), key(vip, 1)], [way(vip, passage.outer_source), way(backend, None)])
}

/// An interface that runs both functions. A clsact filter is removed when this is dropped.
struct ProbedInterface {
    index: u32,
    links: [SchedClassifierLink; 2],
}

/// The program, and where it is attached. It ends with the process.
pub struct ProbeProgram {
    object: Ebpf,
    passages: Arc<ProbePassages>,
    attached: BTreeMap<String, ProbedInterface>,
}

impl ProbeProgram {
    /// Loads it.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub fn load() -> Result<ProbeProgram, Error> {
        let mut object = EbpfLoader::new().load(OBJECT)?;
        for name in [ASKS, HEARS] {
            classifier(&mut object, name).load()?;
        }
        let table = ProbeTable::try_from(object.take_map("probes").expect("the object holds it"))?;
        Ok(ProbeProgram {
            object,
            passages: Arc::new(ProbePassages(Mutex::new(table))),
            attached: BTreeMap::new(),
        })
    }

    /// The map of probes.
    pub fn passages(&self) -> Arc<ProbePassages> {
        self.passages.clone()
    }

    /// Names of the interfaces that run it.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.attached.keys().map(String::as_str)
    }

    /// Whether it was attached to the interface of this name and index.
    pub fn is_at(&self, interface: &str, index: u32) -> bool {
        self.attached.get(interface).is_some_and(|one| one.index == index)
    }

    /// Attaches it to the egress and the ingress of an interface, at the ingress after `plane`, which takes
    /// the packets for listeners.
    ///
    /// # Errors
    /// The kernel refuses; it is then attached to neither.
    pub fn attach(&mut self, interface: &str, index: u32, plane: &mut Program) -> Result<(), Error> {
        self.attached.remove(interface);
        let failed = |source: Failure| Error::Attach { interface: interface.to_owned(), source };
        let behind = LinkOrder::after_program(plane.classifier())?;
        let asks = classifier(&mut self.object, ASKS);
        let egress = attach(asks, interface, PassesBy::Out, LinkOrder::first()).map_err(failed)?;
        let hears = classifier(&mut self.object, HEARS);
        // If the plane is not there, it goes before all other programs: some of them pass nothing on.
        let ingress = attach(hears, interface, PassesBy::In, behind)
            .or_else(|_| attach(hears, interface, PassesBy::In, LinkOrder::first()))
            .map_err(failed)?;
        self.attached.insert(interface.to_owned(), ProbedInterface { index, links: [egress, ingress] });
        Ok(())
    }

    /// Detaches it from an interface.
    pub fn detach(&mut self, interface: &str) {
        self.attached.remove(interface);
    }

    /// Leaves clsact filters in place: by now they belong to the next process, which has put its own program
    /// there.
    pub fn leave(&mut self) {
        for link in std::mem::take(&mut self.attached).into_values().flat_map(|one| one.links) {
            if <&FdLink>::try_from(&link).is_err() {
                std::mem::forget(link);
            }
        }
    }

    /// A function's descriptor: that of the egress function, or of the other.
    pub fn program(&mut self, is_egress: bool) -> BorrowedFd<'_> {
        let name = if is_egress { ASKS } else { HEARS };
        classifier(&mut self.object, name).fd().expect("it is loaded").as_fd()
    }
}

#[derive(Clone, Copy)]
enum PassesBy {
    Out,
    In,
}

fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    direction: PassesBy,
    order: LinkOrder,
) -> Result<SchedClassifierLink, Failure> {
    // At the ingress the plane's filter has priority 1.
    let (at, priority) = match direction {
        PassesBy::Out => (TcAttachType::Egress, 1),
        PassesBy::In => (TcAttachType::Ingress, 2),
    };
    let attached = program.attach_with_options(interface, at, TcAttachOptions::TcxOrder(order));
    let id = match attached {
        Err(problem) if lacks_tcx(&problem) => {
            // It may already exist. If it can't be created, adding a filter below reports why.
            let _ = qdisc_add_clsact(interface);
            let before = SchedClassifierLink::attached(interface, at, priority, HANDLE, None)?;
            match program.attach_to_link(before) {
                Ok(id) => Ok::<_, ProgramError>(id),
                Err(_) => {
                    let options = NlOptions { priority, handle: HANDLE, classid: None };
                    program.attach_with_options(interface, at, TcAttachOptions::Netlink(options))
                }
            }
        }
        done => done,
    }?;
    Ok(program.take_link(id)?)
}

fn classifier<'o>(object: &'o mut Ebpf, name: &str) -> &'o mut SchedClassifier {
    let program = object.program_mut(name).expect("the object holds it");
    program.try_into().expect("it is a classifier")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_out_becomes_the_vips_and_what_comes_in_the_backends() {
        let passage = ProbePassage {
            here: "10.0.0.5:40000".parse().unwrap(),
            backend: "10.0.0.1:80".parse().unwrap(),
            vip: "192.0.2.1".parse().unwrap(),
            outer_source: Some("10.0.0.6".parse().unwrap()),
            until: Duration::from_secs(3),
        };
        let ([out, back], [to, from]) = entries(&passage);
        let ip = |address: Address| IpAddr::from(address).to_string();
        assert_eq!((ip(out.here), ip(out.there), out.is_answer), ("10.0.0.5".into(), "10.0.0.1".into(), 0));
        assert_eq!(
            (ip(back.here), ip(back.there), back.is_answer),
            ("10.0.0.5".into(), "192.0.2.1".into(), 1)
        );
        assert_eq!((out.there_port, back.there_port), ([0, 80], [0, 80]));
        assert_eq!(
            (ip(to.becomes), ip(to.outer_source), to.is_wrapped),
            ("192.0.2.1".into(), "10.0.0.6".into(), 1)
        );
        assert_eq!((ip(from.becomes), from.is_wrapped), ("10.0.0.1".into(), 0));
        assert_eq!(to.until_ns, 3_000_000_000);
    }
}
