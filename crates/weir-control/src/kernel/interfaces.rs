//! Where packets are taken: at the interfaces that listeners ask for, as long as those run this program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use weir_l4::host::Interface;

use super::owner::Owner;
use super::served::{
    Absent, Unanswered, Unheard, absent_of, interfaces_for, interfaces_with_addresses, is_meant, unanswered,
};
use crate::events::What;

/// How it stands with the interfaces.
#[derive(Debug, Default)]
pub(super) struct Attaching {
    /// Interfaces at which packets are to be taken and are not, and why.
    pub(super) failed: BTreeMap<String, String>,
    /// Times that one was found without the program that had been attached to it.
    pub(super) lost: u64,
    /// What of the host the program has no room for: addresses, and interfaces into other namespaces.
    pub(super) left_out: [usize; 2],
    /// What listeners name and this host does not have, by listener.
    pub(super) absent: BTreeMap<String, Vec<Absent>>,
    /// Backends whose answers go past the plane, by listener.
    pub(super) unanswered: BTreeMap<String, Vec<Unanswered>>,
    /// Indexes of interfaces that routes have led out by, or that have had a listener's address, as long as
    /// they are there.
    routed: BTreeSet<u32>,
    /// Why the program could not be told of the host, where that was said already.
    untold: Option<String>,
}

impl Owner {
    /// Tells the program of the host's addresses and of interfaces into other namespaces. What it can't be
    /// told is said once.
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

    /// Has packets taken at the interfaces that the listeners ask for, and at no others.
    ///
    /// # Errors
    /// Of some interfaces it could not be done; of all others it was.
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
        // One that does not run it right afterwards is not served either, though nothing was refused.
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

    /// Says so where a listener names an interface that this host does not have, once for each.
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

    /// Says so where a backend's answers go past the plane, once for each.
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

    /// As [`Owner::attach`], where nobody waits to hear what came of it: that is logged as it changes.
    pub(super) fn attach_again(&mut self) {
        let before = self.attaching.failed.clone();
        if let Err(error) = self.attach()
            && self.attaching.failed != before
        {
            tracing::error!(%error, "the kernel plane does not follow the host's interfaces");
        }
    }

    /// Looks whether each interface still runs the program, and attaches it again where not.
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
            // Whoever took it may have written to the tables, too.
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
    /// none is looked at: they run that one's.
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

    /// Where packets are to be taken. One that was attached to stays so while it exists, down or without a
    /// route: when it is up again, the host's stack would reset connections before the program is back.
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
        // What comes by a port of a bond is the bond's.
        held.retain(|name| host.named(name).is_some_and(|one| !one.is_bonded));
        // Of an earlier process nobody knows which routes led out by it.
        let was_routed = |one: &&Interface| !one.is_up || self.attaching.routed.contains(&one.index);
        let was_routed = host.interfaces.iter().filter(was_routed).map(|one| one.name.clone()).collect();
        let mut found = BTreeSet::new();
        if self.moves.any_leave() {
            // Their flows came by one of these.
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
