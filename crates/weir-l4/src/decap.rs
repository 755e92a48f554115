//! Removes the outer header from packets of load balancers, on a backend: the counterpart of
//! [`Forward::Ipip`](crate::layout::Forward::Ipip).

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, HashMap, PerCpuArray};
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};

use crate::attachments::Attachments;
use crate::host::{Host, Interface};
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

    /// What the program does not see at these interfaces, a sentence for each other interface that has it.
    /// These may come later than the program.
    pub fn unseen(interfaces: &[String]) -> Result<Vec<String>, Error> {
        Ok(unseen_at(&Host::read().map_err(Error::Interfaces)?, interfaces))
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

/// Frames with a VLAN's tag are not read where they come in: they come again, without it, at the VLAN's own
/// interface (decision 0053). So do those of a macvlan.
fn unseen_at(host: &Host, interfaces: &[String]) -> Vec<String> {
    let is_named = |one: &Interface| {
        let ports = host.interfaces.iter().filter(|port| port.is_bonded && port.port_of == one.index);
        std::iter::once(one).chain(ports).any(|one| interfaces.contains(&one.name))
    };
    let mut found = Vec::new();
    for one in host.interfaces.iter().filter(|one| one.is_up) {
        let name = &one.name;
        if interfaces.contains(name) {
            if one.keeps_tags {
                found.push(format!("{name} leaves the tag of its VLAN in frames, which are not read: `ip link set {name} type vlan reorder_hdr on`"));
            }
        } else if let Some(below) = host.below(one).find(|below| is_named(below)) {
            let below = &below.name;
            found.push(format!("frames of {name}, which lies on {below}, are not read at {below}: if outer packets come by it, name {name} with --interface as well"));
        }
    }
    found
}

fn map<'o>(object: &'o mut Ebpf, name: &str) -> &'o mut aya::maps::Map {
    object.map_mut(name).expect("the object holds it")
}

fn classifier(object: &mut Ebpf) -> &mut SchedClassifier {
    let program = object.program_mut("decapsulate").expect("the object holds it");
    program.try_into().expect("it is a classifier")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(index: u32, name: &str, above: u32) -> Interface {
        Interface {
            index,
            name: name.to_owned(),
            mac: [0; 6],
            is_up: true,
            is_ethernet: true,
            keeps_tags: false,
            leads_to_namespace: false,
            port_of: 0,
            is_bonded: false,
            above,
        }
    }

    #[test]
    fn vlans_on_a_named_interface_are_told_of_unless_they_are_named_too() {
        let mut down = one(6, "bond0.7", 2);
        down.is_up = false;
        let interfaces = vec![
            Interface { port_of: 2, is_bonded: true, ..one(1, "eth0", 0) },
            one(2, "bond0", 0),
            one(3, "bond0.100", 2),
            one(4, "bond0.100.5", 3),
            one(5, "eth1", 0),
            down,
        ];
        let host = Host { interfaces, ..Host::default() };
        let of = |named: &[&str]| {
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            unseen_at(&host, &named)
        };
        let outer = "frames of bond0.100, which lies on bond0, are not read at bond0: if outer packets come by it, name bond0.100 with --interface as well";
        for named in ["bond0", "eth0"] {
            let said = of(&[named]);
            assert_eq!(said.len(), 2, "{named}: {said:?}");
            assert_eq!(said[0], outer);
            assert!(said[1].contains("bond0.100.5, which lies on bond0"), "{said:?}");
        }
        let inner = of(&["bond0", "bond0.100"]);
        assert!(inner.len() == 1 && inner[0].contains("bond0.100.5, which lies on bond0.100"), "{inner:?}");
        assert_eq!(of(&["bond0", "bond0.100", "bond0.100.5"]), [""; 0]);
        assert_eq!(of(&["eth1"]), [""; 0]);
    }

    #[test]
    fn a_named_vlan_that_keeps_its_tags_is_told_of() {
        let vlan = Interface { keeps_tags: true, is_ethernet: false, ..one(2, "eth0.1", 1) };
        let host = Host { interfaces: vec![one(1, "eth0", 0), vlan], ..Host::default() };
        let said = unseen_at(&host, &["eth0.1".to_owned()]);
        assert!(said.len() == 1 && said[0].contains("reorder_hdr on"), "{said:?}");
    }
}
