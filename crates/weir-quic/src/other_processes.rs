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

    /// Duplicates of all sockets, to hand to the next process.
    pub fn duplicates(&self) -> io::Result<Vec<(Owner, ForwardSocket)>> {
        self.read().iter().map(|(owner, socket)| Ok((*owner, socket.try_clone()?))).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<(Owner, ForwardSocket)>> {
        self.sockets.read().unwrap_or_else(PoisonError::into_inner)
    }
}
