//! Earlier and later processes, as long as they have connections on the sockets that all of them share.

use std::io;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::cid::Owner;
use crate::forward::{ForwardSocket, Forwarded};

/// Sockets to the workers of other processes.
#[derive(Debug, Default)]
pub struct OtherProcesses {
    sockets: RwLock<Vec<(Owner, ForwardSocket)>>,
}

impl OtherProcesses {
    /// Adds the socket to one worker of another process.
    pub fn add(&self, owner: Owner, socket: ForwardSocket) {
        self.sockets.write().unwrap_or_else(PoisonError::into_inner).push((owner, socket));
    }

    /// Whether there is a socket to the process.
    pub fn knows(&self, process: u8) -> bool {
        self.read().iter().any(|(owner, _)| owner.process == process)
    }

    /// Removes the sockets to a process that failed to start.
    pub fn remove(&self, process: u8) {
        let mut sockets = self.sockets.write().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|(owner, _)| owner.process != process);
    }

    /// Removes the sockets to processes that have ended. Otherwise they would be handed on from process to
    /// process, one more for each worker with each upgrade: most are never sent on again, which is how an end
    /// is noticed too.
    pub fn remove_ended(&self) {
        let mut sockets = self.sockets.write().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|(_, socket)| !socket.has_ended());
    }

    /// Forwards a datagram to its worker, or to any worker of its process if there is no socket to that one;
    /// returns whether it was sent. `None` when the process has ended.
    pub fn send(&self, to: Owner, datagram: impl FnOnce() -> Forwarded) -> Option<bool> {
        let sockets = self.read();
        let exact = sockets.iter().find(|(owner, _)| *owner == to);
        let (used, socket) =
            exact.or_else(|| sockets.iter().find(|(owner, _)| owner.process == to.process))?;
        match socket.send(&datagram()) {
            Ok(()) => Some(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(false),
            Err(_) => {
                let used = *used;
                drop(sockets);
                self.sockets
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .retain(|(owner, _)| *owner != used);
                None
            }
        }
    }

    /// Duplicates of the sockets to processes that have not ended, to hand to the next process.
    pub fn duplicates(&self) -> io::Result<Vec<(Owner, ForwardSocket)>> {
        self.remove_ended();
        self.read().iter().map(|(owner, socket)| Ok((*owner, socket.try_clone()?))).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<(Owner, ForwardSocket)>> {
        self.sockets.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_to_processes_that_have_ended_are_not_handed_on() {
        let others = OtherProcesses::default();
        let owner = |process| Owner { process, worker: 0 };
        let (living, other_end_of_living) = ForwardSocket::pair().unwrap();
        let (ended, other_end_of_ended) = ForwardSocket::pair().unwrap();
        others.add(owner(1), living);
        others.add(owner(2), ended);
        assert_eq!(others.duplicates().unwrap().len(), 2);
        drop(other_end_of_ended);
        let handed_on: Vec<Owner> =
            others.duplicates().unwrap().into_iter().map(|(owner, _)| owner).collect();
        assert_eq!(handed_on, [owner(1)]);
        assert!(others.knows(1) && !others.knows(2));
        drop(other_end_of_living);
        assert!(others.duplicates().unwrap().is_empty());
    }
}
