//! Removes the outer header from packets of load balancers, on a backend: the counterpart of
//! [`Forward::Ipip`](crate::layout::Forward::Ipip).

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, HashMap, PerCpuArray};
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};

use crate::attachments::Attachments;
use crate::host::Host;
use crate::layout::Address;
use crate::program::Error;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/decap.bpf.o"));

/// What happened to encapsulated packets, in the order of `enum taken` in `bpf/decap.bpf.c`.
pub const TAKEN: [&str; 8] = [
    "taken_off",
    "left_stranger",
    "left_fragment",
    "left_damaged",
    "drop_damaged",
    "drop_elsewhere",
    "drop_congested",
    "drop_refused",
];

/// The program that removes outer headers. It ends with the process.
pub struct Decapsulator {
    object: Ebpf,
    attachments: Attachments,
}

impl Decapsulator {
    /// Loads the program for packets from the load balancers `from` to the addresses `to`; to all addresses
    /// of this host if `to` is empty.
    pub fn load(from: &[IpAddr], to: &[IpAddr]) -> Result<Decapsulator, Error> {
        let mut object = EbpfLoader::new().load(OBJECT)?;
        for (name, list) in [("balancers", from), ("destinations", to)] {
            let mut map: HashMap<_, Address, u32> = HashMap::try_from(map(&mut object, name))?;
            for address in list {
                map.insert(Address::from(*address), 1, 0)?;
            }
        }
        Array::<_, u32>::try_from(map(&mut object, "is_limited"))?.set(0, u32::from(!to.is_empty()), 0)?;
        classifier(&mut object).load()?;
        Ok(Decapsulator { object, attachments: Attachments::at(None) })
    }

    /// Attaches it to the ingress of an interface, before the programs that are there.
    pub fn attach(&mut self, interface: &str) -> Result<(), Error> {
        self.attachments
            .attach(classifier(&mut self.object), interface)
            .map_err(|source| Error::Attach { interface: interface.to_owned(), source })
    }

    /// Attaches it again to those of these interfaces that do not run it: they were created anew under their
    /// names, or another process has detached it. Returns their names, and the errors for others; an
    /// interface that does not exist is tried again later.
    pub fn attach_again(&mut self, interfaces: &[String]) -> Result<(Vec<String>, Vec<Error>), Error> {
        let host = Host::read().map_err(Error::Interfaces)?;
        let program = classifier(&mut self.object).info()?.id();
        let lost = self.attachments.lost(program, &|name| host.index_of(name));
        let (mut attached, mut failed) = (Vec::new(), Vec::new());
        for interface in lost.into_iter().filter(|name| interfaces.contains(name)) {
            match self.attach(&interface) {
                Ok(()) => attached.push(interface),
                Err(error) => failed.push(error),
            }
        }
        Ok((attached, failed))
    }

    /// Packets so far, counting a train by its segments, in the order of [`TAKEN`].
    pub fn counts(&mut self) -> Result<[u64; TAKEN.len()], Error> {
        let map: PerCpuArray<_, u64> = PerCpuArray::try_from(map(&mut self.object, "taken"))?;
        let mut counts = [0; TAKEN.len()];
        for (index, count) in (0..).zip(&mut counts) {
            *count = map.get(&index, 0)?.iter().sum();
        }
        Ok(counts)
    }

    /// The program's descriptor.
    pub fn program(&mut self) -> BorrowedFd<'_> {
        classifier(&mut self.object).fd().expect("it is loaded").as_fd()
    }
}

fn map<'o>(object: &'o mut Ebpf, name: &str) -> &'o mut aya::maps::Map {
    object.map_mut(name).expect("the object holds it")
}

fn classifier(object: &mut Ebpf) -> &mut SchedClassifier {
    let program = object.program_mut("decapsulate").expect("the object holds it");
    program.try_into().expect("it is a classifier")
}
