//! Detects whether the peer is still there.
//!
//! QUIC acknowledges packets that ask for it at once, however long an answer takes: a peer that was probed
//! and does not respond at all is gone, or unreachable. Without a probe a peer may be silent for any length
//! of time.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Connection;

/// Silence after which [`Connection::seems_gone`] sends a `PING`.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// Least time that a probed peer has to respond, and the number of round trips that it has: three probe
/// timeouts if the round-trip time varies by half, so that up to three probes are sent if packets are lost.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_ROUND_TRIPS: u32 = 9;

impl Connection {
    /// Time since something was last received from the peer.
    pub fn silence(&self) -> Duration {
        self.heard_at.get().elapsed()
    }

    /// Whether the peer was probed and has not responded in time. Sends a probe if it has been silent for
    /// some time; returns false until the response is overdue.
    pub fn seems_gone(self: &Rc<Self>) -> bool {
        self.seems_gone_at(Instant::now())
    }

    pub(crate) fn seems_gone_at(self: &Rc<Self>, now: Instant) -> bool {
        let heard_at = self.heard_at.get();
        match self.asked_at.get().filter(|asked_at| *asked_at > heard_at) {
            Some(asked_at) => now.saturating_duration_since(asked_at) >= self.patience(),
            None => {
                if now.saturating_duration_since(heard_at) >= ASK_AFTER {
                    self.asked_at.set(Some(now));
                    self.probe();
                }
                false
            }
        }
    }

    /// Whether nothing was received although something that asks for an acknowledgement was sent `waited`
    /// ago, so that the acknowledgement is overdue.
    pub fn is_unheard_for(&self, waited: Duration) -> bool {
        waited >= PATIENCE_ROUND_TRIPS * self.round_trip() && self.silence() >= waited
    }

    fn patience(&self) -> Duration {
        LEAST_PATIENCE.max(PATIENCE_ROUND_TRIPS * self.round_trip())
    }

    /// Probes the peer with a `PING`.
    pub fn probe(self: &Rc<Self>) {
        self.inner.borrow_mut().quic.ping();
        self.touch();
    }
}
