//! Attaches the program to interfaces: by tcx, or by clsact on kernels without it (before Linux 6.6). Both
//! outlive the process, and the next process takes them over without missing a packet.
//!
//! A tcx attachment is a link, pinned below `links`. With clsact it is a filter on the interface, which stays
//! until it is removed; as nothing can be pinned, a directory below `filters` records it.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact};
use aya::programs::{Link, LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::sys::SyscallError;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::bpf::tcx_attached;
use crate::host::filters;

/// Filters with lower priority numbers run first.
const PRIORITY: u16 = 1;
/// Identifies our filter among those with its priority: "weir".
pub(crate) const HANDLE: TcHandle = TcHandle::new(0x7765, 0x6972);

pub(crate) type Failure = Box<dyn StdError + Send + Sync>;

enum Attachment {
    Tcx(FdLink),
    Clsact,
}

/// One attachment, and the index of its interface, which stays the same when the interface is renamed.
struct Attached {
    index: u32,
    by: Attachment,
}

/// All attachments of a program, by name of the interface.
pub(crate) struct Attachments {
    /// Where they are recorded; `None` if they end with the process.
    directory: Option<PathBuf>,
    attached: BTreeMap<String, Attached>,
}

impl Attachments {
    /// Without attachments, to be recorded below `directory`.
    pub(crate) fn at(directory: Option<PathBuf>) -> Attachments {
        Attachments { directory, attached: BTreeMap::new() }
    }

    /// The directories that are needed below `directory`.
    pub(crate) fn directories(directory: &Path) -> [PathBuf; 2] {
        [directory.join("links"), directory.join("filters")]
    }

    /// Removes the record of a filter that was taken over from a process with another layout: an interface
    /// has only one filter of ours.
    pub(crate) fn disown(other: &Path, own: &Path) {
        for entry in own.join("filters").read_dir().into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(other.join("filters").join(entry.file_name()));
        }
    }

    pub(crate) fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.attached.keys().map(String::as_str)
    }

    /// Where they are recorded.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    fn kept_as(&self, kind: &str, interface: &str) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(kind).join(file_name(interface)))
    }

    /// Attaches `classifier` to the ingress of an interface, before all other programs.
    pub(crate) fn attach(
        &mut self,
        classifier: &mut SchedClassifier,
        interface: &str,
    ) -> Result<(), Failure> {
        let index = index_of(interface)?;
        let by = match self.attach_tcx(classifier, interface, index) {
            Err(problem) if lacks_tcx(problem.as_ref()) => self.attach_clsact(classifier, interface)?,
            done => Attachment::Tcx(done?),
        };
        self.attached.insert(interface.to_owned(), Attached { index, by });
        Ok(())
    }

    fn attach_tcx(
        &self,
        classifier: &mut SchedClassifier,
        interface: &str,
        index: u32,
    ) -> Result<FdLink, Failure> {
        let pin = self.kept_as("links", interface);
        let kept = pin.as_ref().and_then(|pin| PinnedLink::from_pin(pin).ok()).map(FdLink::from);
        // While no process was running, the interface may have been renamed, and this one may have got its
        // name.
        let kept = kept.filter(|kept| is_at(kept, index));
        if let Some(kept) = kept.and_then(|kept| SchedClassifierLink::try_from(kept).ok()) {
            // The attachment to an interface that was removed, or created again under its name, can't be
            // taken over.
            if let Ok(id) = classifier.attach_to_link(kept) {
                return Ok(FdLink::try_from(classifier.take_link(id)?)?);
            }
        }
        if let Some(pin) = &pin {
            let _ = std::fs::remove_file(pin);
        }
        let order = TcAttachOptions::TcxOrder(LinkOrder::first());
        let id = classifier.attach_with_options(interface, TcAttachType::Ingress, order)?;
        let link = FdLink::try_from(classifier.take_link(id)?)?;
        Ok(match pin {
            Some(pin) => FdLink::from(link.pin(&pin)?),
            None => link,
        })
    }

    fn attach_clsact(
        &self,
        classifier: &mut SchedClassifier,
        interface: &str,
    ) -> Result<Attachment, Failure> {
        // It may already exist. If it can't be created, adding a filter below reports why.
        let _ = qdisc_add_clsact(interface);
        let kept = self.kept_as("filters", interface);
        if let Some(kept) = &kept {
            std::fs::create_dir_all(kept)?;
        }
        // The filter of an earlier process gets this program atomically.
        let id = match classifier.attach_to_link(filter_of(interface)?) {
            Ok(id) => id,
            Err(_) => {
                let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
                let options = TcAttachOptions::Netlink(options);
                classifier.attach_with_options(interface, TcAttachType::Ingress, options)?
            }
        };
        // Dropping the link would remove the filter, which the next process should find.
        let _ = ManuallyDrop::new(classifier.take_link(id)?);
        Ok(Attachment::Clsact)
    }

    /// Renames attachments whose interfaces were renamed, which `name_of` tells by index. Returns the old and
    /// the new name of each.
    pub(crate) fn rename(&mut self, name_of: &dyn Fn(u32) -> Option<String>) -> Vec<[String; 2]> {
        let now = |name: &String, one: &Attached| name_of(one.index).filter(|now| now != name);
        let renamed = self.attached.iter().filter_map(|(name, one)| Some([name.clone(), now(name, one)?]));
        let renamed: Vec<[String; 2]> = renamed.collect();
        // All old names are released before any new one is taken, as two interfaces may have swapped names.
        let aside = |index: u32| format!("::{index}");
        let leave = |[before, _]: &[String; 2]| {
            let one = self.attached.remove(before).expect("it was among them");
            self.move_kept(before, &aside(one.index));
            one
        };
        let moved: Vec<Attached> = renamed.iter().map(leave).collect();
        for ([_, now], one) in renamed.iter().zip(moved) {
            self.move_kept(&aside(one.index), now);
            self.attached.insert(now.clone(), one);
        }
        renamed
    }

    /// Moves the record for an interface to another name. If the file system refuses, the next process will
    /// not find it, and attaches again.
    fn move_kept(&self, before: &str, now: &str) {
        for kind in ["links", "filters"] {
            if let (Some(before), Some(now)) = (self.kept_as(kind, before), self.kept_as(kind, now)) {
                let _ = std::fs::rename(before, now);
            }
        }
    }

    /// The interfaces it is attached to that do not run `program`: another process has replaced or detached
    /// it, or the interface was created again under its name. `index_of` returns the current index for a
    /// name; interfaces that were removed are not reported.
    pub(crate) fn lost(&self, program: u32, index_of: &dyn Fn(&str) -> Option<u32>) -> Vec<String> {
        let is_lost = |(name, one): &(&String, &Attached)| {
            let Some(index) = index_of(name) else { return false };
            let running = match one.by {
                Attachment::Tcx(_) => tcx_attached(index).map(|(programs, _)| programs),
                Attachment::Clsact => filters(index),
            };
            // An interface that has been removed by now is noticed at the next look.
            running.is_ok_and(|running| !running.contains(&program))
        };
        self.attached.iter().filter(is_lost).map(|(name, _)| name.clone()).collect()
    }

    /// Detaches the program from an interface.
    pub(crate) fn detach(&mut self, interface: &str) {
        if let Some(pin) = self.kept_as("links", interface) {
            let _ = std::fs::remove_file(pin);
        }
        let attachment = self.attached.remove(interface).map(|one| one.by);
        let kept = self.kept_as("filters", interface);
        let was_kept = kept.is_some_and(|kept| std::fs::remove_dir(kept).is_ok());
        if was_kept || matches!(attachment, Some(Attachment::Clsact)) {
            // The interface may have been removed, together with its filters.
            let _ = filter_of(interface).map(|filter| filter.detach());
        }
        if let Some(Attachment::Tcx(link)) = attachment {
            drop(link);
        }
    }

    /// Names of interfaces with an attachment of an earlier process that was not taken over.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let Some(directory) = &self.directory else { return Vec::new() };
        let kept = Attachments::directories(directory).into_iter().filter_map(|path| path.read_dir().ok());
        let names = kept.flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.map(|name| interface_of(&name)).filter(|name| !self.attached.contains_key(name)).collect()
    }

    /// Ends all attachments, including those of earlier processes; returns the directory where they were
    /// recorded.
    pub(crate) fn remove(&mut self) -> Option<PathBuf> {
        for interface in self.attached.keys().cloned().collect::<Vec<_>>() {
            self.detach(&interface);
        }
        for interface in self.left_behind() {
            self.detach(&interface);
        }
        for path in self.directory.iter().flat_map(|directory| Attachments::directories(directory)) {
            let _ = std::fs::remove_dir(path);
        }
        self.directory.take()
    }
}

impl Drop for Attachments {
    /// Links that are not pinned end by themselves.
    fn drop(&mut self) {
        if self.directory.is_none() {
            for interface in self.attached.keys().cloned().collect::<Vec<_>>() {
                self.detach(&interface);
            }
        }
    }
}

fn index_of(interface: &str) -> io::Result<u32> {
    let family = AddressFamily::INET;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(socket, interface)?)
}

/// Whether a link belongs to the interface with this index.
fn is_at(link: &FdLink, index: u32) -> bool {
    let id = link.info().map(|info| info.id());
    id.is_ok_and(|id| tcx_attached(index).is_ok_and(|(_, links)| links.contains(&id)))
}

/// Our filter on an interface.
fn filter_of(interface: &str) -> io::Result<SchedClassifierLink> {
    SchedClassifierLink::attached(interface, TcAttachType::Ingress, PRIORITY, HANDLE, None)
}

/// Whether a kernel refuses to attach by tcx because it does not support it.
pub(crate) fn lacks_tcx(problem: &(dyn StdError + 'static)) -> bool {
    let Some(ProgramError::SyscallError(SyscallError { io_error, .. })) = problem.downcast_ref() else {
        return false;
    };
    io_error.raw_os_error() == Some(libc::EINVAL)
}

/// The BPF file system allows no dots in names, and interface names contain no colons.
fn file_name(interface: &str) -> String {
    interface.replace('.', ":")
}

fn interface_of(file: &str) -> String {
    file.replace(':', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_known_by_its_file() {
        for name in ["eth0", "eth0.5", "br-1.2.3"] {
            assert!(!file_name(name).contains('.'));
            assert_eq!(interface_of(&file_name(name)), name);
        }
    }

    #[test]
    fn only_what_the_kernel_does_not_know_is_tried_otherwise() {
        let refused = |code| -> Failure {
            let io_error = io::Error::from_raw_os_error(code);
            ProgramError::SyscallError(SyscallError { call: "bpf_mprog_attach", io_error }).into()
        };
        assert!(lacks_tcx(refused(libc::EINVAL).as_ref()));
        assert!(!lacks_tcx(refused(libc::EPERM).as_ref()));
        let other: Failure = io::Error::from_raw_os_error(libc::EINVAL).into();
        assert!(!lacks_tcx(other.as_ref()));
    }
}
