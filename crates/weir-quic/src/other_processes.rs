//! The processes before and after this one, while they still have connections on the sockets that all of them
//! hold.

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

    /// Takes out the sockets to a process that has not come about.
    pub fn remove(&self, process: u8) {
        let mut sockets = self.sockets.write().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|(owner, _)| owner.process != process);
    }

    /// Forwards a datagram to its worker or, where there is no socket to that one, to any worker of its
    /// process: whether it went. `None` when the process has ended.
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

    /// Second descriptors of all sockets, to be handed to the next process.
    pub fn duplicates(&self) -> io::Result<Vec<(Owner, ForwardSocket)>> {
        self.read().iter().map(|(owner, socket)| Ok((*owner, socket.try_clone()?))).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<(Owner, ForwardSocket)>> {
        self.sockets.read().unwrap_or_else(PoisonError::into_inner)
    }
}
