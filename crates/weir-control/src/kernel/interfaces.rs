//! Attaches the program to the interfaces at which listeners need packets taken, and keeps it attached.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use weir_l4::host::Interface;

use super::owner::Owner;
use super::served::{
    Absent, Unanswered, Unheard, absent_of, interfaces_for, interfaces_with_addresses, is_meant, unanswered,
};
use crate::events::What;

/// The state of the attachments.
#[derive(Debug, Default)]
pub(super) struct Attaching {
    /// Interfaces at which packets should be taken but are not, and why.
    pub(super) failed: BTreeMap<String, String>,
    /// How often an interface was found without the program that had been attached to it.
    pub(super) lost: u64,
    /// Numbers of what did not fit into the program's tables: addresses of the host, and interfaces into
    /// other namespaces.
    pub(super) left_out: [usize; 2],
    /// Interfaces that listeners name and this host does not have, by listener.
    pub(super) absent: BTreeMap<String, Vec<Absent>>,
    /// Backends whose answers bypass the plane, by listener.
    pub(super) unanswered: BTreeMap<String, Vec<Unanswered>>,
    /// Indexes of existing interfaces that routes have led through, or that have had a listener's address.
    routed: BTreeSet<u32>,
    /// The last logged reason why the host's data could not be written to the program's tables.
    untold: Option<String>,
}

impl Owner {
    /// Writes the host's addresses and its interfaces into other namespaces to the program's tables. What
    /// can't be written is logged once.
    pub(super) fn tell_host(&mut self) {
        let told = self.kernel.set_host_addresses(&self.host.addresses).and_then(|addresses| {
            let peers = self.kernel.set_local_peers(&self.host.local_peers())?;
            self.kernel.set_ways(&self.host.ways())?;
            self.kernel.forget_ways()?;
            Ok([addresses, peers])
        });
        let error = match told {
            Ok(left_out) => {
                let [addresses, peers] = left_out;
                if left_out != [0; 2] && self.attaching.left_out == [0; 2] {
                    tracing::error!(
                        addresses,
                        peers,
                        "this host has more addresses, or interfaces into other namespaces, than the kernel plane has room for"
                    );
                }
                self.attaching.left_out = left_out;
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = error.as_ref().filter(|_| error != self.attaching.untold) {
            tracing::error!(%error, "the kernel plane was not told of the host's addresses");
        }
        self.attaching.untold = error;
    }

    /// Attaches the program to the interfaces that the listeners need, and to no others.
    ///
    /// # Errors
    /// It failed for some interfaces; all others were attached.
    pub(super) fn attach(&mut self) -> Result<(), String> {
        self.note_absent();
        let host = &self.host;
        for [before, interface] in self.kernel.program().rename(&|index| host.name_of(index)) {
            tracing::info!(before, interface, "the kernel plane goes on at an interface that was renamed");
        }
        let wanted = self.interfaces();
        let lost: BTreeSet<String> = self.lost().into_iter().collect();
        let program = self.kernel.program();
        let attached: BTreeSet<String> = program.interfaces().map(str::to_owned).collect();
        let left = program.left_behind().into_iter().filter(|name| !wanted.contains(name));
        let gone: Vec<String> = attached.difference(&wanted).cloned().chain(left).collect();
        let (mut new, mut failed) = (Vec::new(), BTreeMap::new());
        for interface in wanted.iter().filter(|name| !attached.contains(*name) || lost.contains(*name)) {
            match program.attach(interface) {
                Ok(()) => new.push(interface.clone()),
                Err(error) => drop(failed.insert(interface.clone(), error.to_string())),
            }
        }
        for interface in &gone {
            program.detach(interface);
        }
        // An interface that does not run the program right afterwards is not served either, although no call
        // failed.
        for interface in if new.is_empty() { Vec::new() } else { self.lost() } {
            if let Some(at) = new.iter().position(|name| *name == interface) {
                new.remove(at);
                let why = "it does not run the packet program right after it was attached";
                failed.insert(interface, why.to_owned());
            }
        }
        for (interfaces, change) in [(new, "attached"), (gone, "detached")] {
            for interface in interfaces {
                tracing::info!(interface, "the kernel plane is {change}");
                self.bus.tell(What::Kernel { change, interface });
            }
        }
        self.attaching.failed = failed;
        let probes = self.attach_probes();
        self.attaching.failed.values().next().map_or(probes, |error| Err(error.clone()))
    }

    /// Logs once for each interface that a listener names and this host does not have.
    fn note_absent(&mut self) {
        let Some((snapshot, placements)) = &self.serving else { return };
        let in_kernel = snapshot.listeners.iter().filter(|one| placements.is_in_kernel(&one.config.name));
        let absent = in_kernel.map(|one| (one.config.name.clone(), absent_of(&one.config, &self.host)));
        let absent: BTreeMap<_, _> = absent.filter(|(_, names)| !names.is_empty()).collect();
        for (listener, names) in &absent {
            let before = self.attaching.absent.get(listener);
            for absent in names.iter().filter(|name| !before.is_some_and(|before| before.contains(name))) {
                let interface = &absent.name;
                match &absent.why {
                    Unheard::OtherKind => {
                        tracing::warn!(listener, interface, "is not an interface of Ethernet")
                    }
                    Unheard::NotThere => {
                        tracing::warn!(
                            listener,
                            interface,
                            "no interface of this host that is up is named so"
                        )
                    }
                    Unheard::KeepsTags | Unheard::Above { .. } => {
                        tracing::warn!(listener, interface, "{absent}")
                    }
                }
            }
        }
        self.attaching.absent = absent;
    }

    /// Logs once for each backend whose answers bypass the plane.
    pub(super) fn note_unanswered(&mut self) {
        let Some((snapshot, placements)) = &self.serving else { return };
        let taken: BTreeSet<String> = self.kernel.program().interfaces().map(str::to_owned).collect();
        let mut found = BTreeMap::new();
        for one in snapshot.listeners.iter().filter(|one| placements.is_in_kernel(&one.config.name)) {
            let pool = self.in_force.pools.iter().find(|pool| Some(&pool.name) == one.config.pool.as_ref());
            let backends = pool.into_iter().flat_map(|pool| &pool.members).map(|member| member.address);
            let of_it = unanswered(&one.config, backends, &self.host, &taken);
            if !of_it.is_empty() {
                found.insert(one.config.name.clone(), of_it);
            }
        }
        for (listener, of_it) in &found {
            let before = self.attaching.unanswered.get(listener);
            for one in of_it.iter().filter(|one| !before.is_some_and(|before| before.contains(one))) {
                tracing::warn!(listener, "{one}");
            }
        }
        self.attaching.unanswered = found;
    }

    /// As [`Owner::attach`], if nothing waits for the result: changes of it are logged.
    pub(super) fn attach_again(&mut self) {
        let before = self.attaching.failed.clone();
        if let Err(error) = self.attach()
            && self.attaching.failed != before
        {
            tracing::error!(%error, "the kernel plane does not follow the host's interfaces");
        }
    }

    /// Checks that each interface still runs the program, and attaches it again if not.
    pub(super) fn look_at_attachments(&mut self) {
        if self.serving.is_none() {
            return;
        }
        let mut lost = self.lost();
        lost.retain(|name| !self.attaching.failed.contains_key(name));
        for interface in &lost {
            tracing::warn!(
                interface,
                "does not run the packet program of this Weir any more: another has taken its place, or the interface came anew"
            );
            self.bus.tell(What::Kernel { change: "lost", interface: interface.clone() });
        }
        self.attaching.lost += lost.len() as u64;
        if !lost.is_empty() {
            // Whatever removed it may also have written to the tables.
            if let Err(error) = self.kernel.take_back() {
                tracing::error!(%error, "the tables of the kernel plane could not be read again");
            }
            self.in_force = Default::default();
            self.follow();
        }
        if !lost.is_empty() || !self.attaching.failed.is_empty() {
            self.attach_again();
        }
        self.look_at_probes();
    }

    /// Interfaces that the program was attached to and that do not run it. While another process takes over
    /// none is checked, as they then run that one's program.
    fn lost(&mut self) -> Vec<String> {
        if self.handle.is_handing_over.load(Ordering::Acquire) {
            return Vec::new();
        }
        let host = &self.host;
        let lost = self.kernel.program().lost(&|name| host.index_of(name));
        lost.unwrap_or_else(|error| {
            tracing::debug!(%error, "the kernel does not say which programs its interfaces run");
            Vec::new()
        })
    }

    /// The interfaces at which to take packets. An interface stays in use as long as it exists, even if it is
    /// down or has no route: when it comes up again, the host's stack would reset connections before the
    /// program were attached.
    fn interfaces(&mut self) -> BTreeSet<String> {
        let Some((snapshot, placements)) = &self.serving else { return BTreeSet::new() };
        let host = &self.host;
        let mut routed = host.routed_interfaces();
        let without = snapshot.listeners.iter().filter(|one| one.config.interfaces.is_empty());
        let without = without.filter(|one| placements.is_in_kernel(&one.config.name));
        routed.extend(without.flat_map(|one| interfaces_with_addresses(&one.config, host)));
        self.attaching.routed.extend(routed.iter().filter_map(|name| host.index_of(name)));
        self.attaching.routed.retain(|index| host.name_of(*index).is_some());
        let mut held: BTreeSet<String> = self.kernel.program().interfaces().map(str::to_owned).collect();
        held.extend(self.kernel.program().left_behind());
        // Packets that arrive at a port of a bond are taken at the bond.
        held.retain(|name| host.named(name).is_some_and(|one| !one.is_bonded));
        // Of an earlier process nobody knows which routes led out by it.
        let was_routed = |one: &&Interface| !one.is_up || self.attaching.routed.contains(&one.index);
        let was_routed = host.interfaces.iter().filter(was_routed).map(|one| one.name.clone()).collect();
        let mut found = BTreeSet::new();
        if self.moves.any_leave() {
            // Their flows came through one of these.
            found.extend(held.iter().cloned());
        }
        let in_kernel = snapshot.listeners.iter().filter(|one| placements.is_in_kernel(&one.config.name));
        for listener in in_kernel.map(|one| &*one.config) {
            if listener.interfaces.is_empty() {
                found.extend(held.intersection(&was_routed).cloned());
            } else {
                let is_meant =
                    |name: &&String| host.named(name).is_some_and(|one| is_meant(listener, one, host));
                found.extend(held.iter().filter(is_meant).cloned());
            }
        }
        let in_kernel = snapshot.listeners.iter().filter(|one| placements.is_in_kernel(&one.config.name));
        found.extend(interfaces_for(in_kernel.map(|one| &*one.config), host));
        found
    }
}
