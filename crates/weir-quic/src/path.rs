//! Address of a connection's client: those that it has proved, and those that it has not (RFC 9000 §8.2,
//! §9; row C8).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::connection::{Connection, Inner};

/// A path that is still to be proved gets no more than three times what came from it, but for a few datagrams
/// in this time: the protocol pads its challenge to 1,200 bytes, which one short packet of a client behind a
/// new address translation would not allow.
const FREE_CHALLENGE_INTERVAL: Duration = Duration::from_secs(10);
/// Free datagrams in an interval to other ports of the address that the client has proved, as a translation
/// that forgets it again and again gives them.
const FREE_TO_SAME_HOST: u32 = 8;
/// The same to other addresses: whoever names those of others has no use of it.
const FREE_TO_OTHERS: u32 = 1;

/// Datagrams that were sent for nothing in return.
#[derive(Clone, Copy)]
pub(crate) struct FreeChallenges {
    since: Instant,
    count: u32,
}

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
            let is_same_host = destination.ip() == self.client.get().ip();
            // Another host gets one, and not again however often it is named.
            if !is_same_host && path.sent_bytes > 0 {
                return false;
            }
            let most = if is_same_host { FREE_TO_SAME_HOST } else { FREE_TO_OTHERS };
            let sent = self.free_challenges.get().filter(|sent| now < sent.since + FREE_CHALLENGE_INTERVAL);
            let sent = sent.unwrap_or(FreeChallenges { since: now, count: 0 });
            if sent.count >= most {
                return false;
            }
            self.free_challenges.set(Some(FreeChallenges { count: sent.count + 1, ..sent }));
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
