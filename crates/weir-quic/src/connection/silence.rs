//! Detects whether the peer is still there.
//!
//! QUIC acknowledges packets that ask for it at once, however long an answer takes: a peer that was probed
//! and does not respond at all is gone, or unreachable. Without a probe a peer may be silent for any length
//! of time.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Connection;
use crate::wakers::wake;

/// Silence after which [`Connection::seems_gone`] sends a `PING`.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// Least time that a probed peer has to respond, and the number of round trips that it has: three probe
/// timeouts if the round-trip time varies by half, so that up to three probes are sent if packets are lost.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_ROUND_TRIPS: u32 = 9;
/// Number of checks of a probed, silent peer after which requests that already wait for it give it up. Checks
/// are half the time to respond (see above) apart, and each sends another probe. Checks are counted instead
/// of measuring time, because after this process was stalled all the time has passed while data from the peer
/// is still unread.
const LOOKS: u32 = 4;

impl Connection {
    /// Time since something was last received from the peer.
    pub fn silence(&self) -> Duration {
        self.heard_at.get().elapsed()
    }

    /// Whether the peer was probed and its response is overdue, so that new requests should go elsewhere.
    /// Probes the peer if it has been silent for some time; the result is false until the response is
    /// overdue.
    pub fn seems_gone(self: &Rc<Self>) -> bool {
        self.seems_gone_at(Instant::now())
    }

    pub(crate) fn seems_gone_at(self: &Rc<Self>, now: Instant) -> bool {
        match self.unanswered_since() {
            Some(asked_at) => now.saturating_duration_since(asked_at) >= self.patience(),
            None => {
                if now.saturating_duration_since(self.heard_at.get()) >= ASK_AFTER {
                    self.ask(now);
                }
                false
            }
        }
    }

    /// When the peer was probed, if its response is overdue; otherwise `None`.
    pub fn overdue_since(&self) -> Option<Instant> {
        self.unanswered_since().filter(|asked_at| asked_at.elapsed() >= self.patience())
    }

    /// Whether anything was received from the peer since `then`.
    pub fn was_heard_since(&self, then: Instant) -> bool {
        self.heard_at.get() > then
    }

    /// Whether a server has been silent for so long that requests that already wait for it should go
    /// elsewhere too: twice as long as for [`Self::seems_gone`]. Tasks that wait for [`Self::poll_lost`] are
    /// woken when this becomes true.
    pub fn is_silent(&self) -> bool {
        self.unanswered_since().is_some() && self.looks.get() >= LOOKS
    }

    /// Notes that something was sent to a server that it must acknowledge at once. [`Self::enter_request`]
    /// must have been called for it before.
    pub fn note_asked(self: &Rc<Self>) {
        let now = Instant::now();
        if self.unanswered_since().is_none() {
            self.begin_to_wait(now);
        }
        let due = now + self.patience() / 2;
        if self.own_due.get().is_none_or(|before| before > due) {
            self.own_due.set(Some(due));
        }
        self.touch();
    }

    /// Checks whether a server for which requests wait still responds. Probes it if it has not been heard
    /// from for long.
    pub(crate) fn look(self: &Rc<Self>, now: Instant) {
        let ask_by = self.heard_at.get() + self.idle_timeout / 3;
        if self.unanswered_since().is_some() {
            let looks = self.looks.get().saturating_add(1);
            self.looks.set(looks);
            self.probe();
            if looks == LOOKS {
                wake(&mut self.inner.borrow_mut().closed);
            }
            self.own_due.set(Some(now + self.patience() / 2));
        } else if ask_by <= now {
            self.ask(now);
            self.own_due.set(Some(now + self.patience() / 2));
        } else {
            self.own_due.set(Some(ask_by));
        }
        self.touch();
    }

    /// Whether nothing was received since something was sent, `waited` ago, that the peer must acknowledge,
    /// and the acknowledgement is overdue.
    pub fn is_unheard_for(&self, waited: Duration) -> bool {
        waited >= PATIENCE_ROUND_TRIPS * self.round_trip() && self.silence() >= waited
    }

    /// When the peer was probed, if it has not been heard from since; otherwise `None`.
    fn unanswered_since(&self) -> Option<Instant> {
        self.asked_at.get().filter(|asked_at| *asked_at > self.heard_at.get())
    }

    fn patience(&self) -> Duration {
        LEAST_PATIENCE.max(PATIENCE_ROUND_TRIPS * self.round_trip())
    }

    fn begin_to_wait(&self, now: Instant) {
        self.asked_at.set(Some(now));
        self.looks.set(0);
    }

    fn ask(self: &Rc<Self>, now: Instant) {
        self.begin_to_wait(now);
        self.probe();
    }

    /// Sends a `PING`, which the peer must acknowledge.
    pub fn probe(self: &Rc<Self>) {
        self.inner.borrow_mut().quic.ping();
        self.touch();
    }
}
