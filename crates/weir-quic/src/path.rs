//! Address of a connection's client: those that it has proved, and those that it has not (RFC 9000 §8.2,
//! §9; row C8).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::connection::{Connection, Inner};

/// A path that is still to be proved gets no more than three times what came from it, but for one datagram in
/// this time: the protocol pads its challenge to 1,200 bytes, which one short packet of a client behind a new
/// address translation would not allow. So whoever names others' addresses has no use of it.
const FREE_CHALLENGE_INTERVAL: Duration = Duration::from_secs(10);

/// An address that packets come from and nobody has answered from yet.
pub(crate) struct UnprovedPath {
    address: SocketAddr,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Connection {
    /// A datagram came from `remote`.
    pub(crate) fn note_received(&self, remote: SocketAddr, bytes: usize, now: Instant) {
        self.heard_at.set(now);
        if remote == self.client.get() {
            return;
        }
        let path = &mut *self.unproved_path.borrow_mut();
        match path {
            Some(path) if path.address == remote => path.received_bytes += bytes as u64,
            _ => *path = Some(UnprovedPath { address: remote, received_bytes: bytes as u64, sent_bytes: 0 }),
        }
    }

    /// Whether `bytes` may go to `destination`, which counts them. What may not is as good as lost on the
    /// way.
    pub(crate) fn may_send(&self, destination: SocketAddr, bytes: usize, now: Instant) -> bool {
        if destination == self.client.get() {
            return true;
        }
        let path = &mut *self.unproved_path.borrow_mut();
        let Some(path) = path.as_mut().filter(|path| path.address == destination) else {
            // The one before, which was proved, or else one that has sent nothing that counted.
            return false;
        };
        let wanted = path.sent_bytes + bytes as u64;
        if wanted > 3 * path.received_bytes {
            let is_free =
                self.free_challenge_at.get().is_none_or(|last| now >= last + FREE_CHALLENGE_INTERVAL);
            if !is_free || path.sent_bytes > 0 {
                return false;
            }
            self.free_challenge_at.set(Some(now));
        }
        path.sent_bytes = wanted;
        true
    }

    /// Counts that would have to change for a packet to prove nothing about the path: challenges and probes
    /// sent so far. `None` when the path is the one that is proved already.
    pub(crate) fn unproved(&self, inner: &Inner) -> Option<(u64, u64)> {
        if inner.quic.remote_address() == self.client.get() {
            return None;
        }
        let stats = inner.quic.stats();
        Some((stats.frame_tx.path_challenge, stats.path.sent_plpmtud_probes))
    }

    /// A packet was sent to `destination` while the path was not proved, with `before` from just before it.
    /// Every packet on a path that is still to be proved carries a challenge; one without tells that the
    /// client has answered.
    pub(crate) fn note_path(&self, inner: &Inner, destination: SocketAddr, before: (u64, u64)) {
        let path = inner.quic.remote_address();
        if destination == path && !inner.quic.is_closed() && self.unproved(inner) == Some(before) {
            tracing::debug!(from = %self.client.get(), to = %path, "quic client moved");
            self.client.set(path);
            self.driver.counts().migrated();
        }
    }
}
