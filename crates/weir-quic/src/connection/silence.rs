//! Whether the peer at the other end is still there.
//!
//! QUIC acknowledges what asks for it at once, however long an answer takes: a peer that was asked and says
//! nothing at all is gone, or the way to it is. One that nobody asks may be silent for as long as it likes.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Connection;

/// Silence after which a peer is asked whether it is there (`PING`) by [`Connection::seems_gone`].
const ASK_AFTER: Duration = Duration::from_millis(500);
/// What a peer that was asked has at least to say anything, and in round trips: three probe timeouts where
/// the round trip varies by half, so that it is asked three times where that is lost on the way.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_ROUND_TRIPS: u32 = 9;

impl Connection {
    /// Time since something last came from the peer.
    pub fn silence(&self) -> Duration {
        self.heard_at.get().elapsed()
    }

    /// Whether the peer was asked whether it is there, and has said nothing for longer than that takes. Asks
    /// it where it has been silent for some time; false until the answer is overdue.
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

    /// Whether nothing has come although something was sent, `waited` ago, that asks for an acknowledgement,
    /// and that is overdue.
    pub fn is_unheard_for(&self, waited: Duration) -> bool {
        waited >= PATIENCE_ROUND_TRIPS * self.round_trip() && self.silence() >= waited
    }

    fn patience(&self) -> Duration {
        LEAST_PATIENCE.max(PATIENCE_ROUND_TRIPS * self.round_trip())
    }

    /// Has the peer say whether it is there.
    pub fn probe(self: &Rc<Self>) {
        self.inner.borrow_mut().quic.ping();
        self.touch();
    }
}
