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
/// Looks at a silent peer that was asked, half of that time apart, after which it is taken for gone by those
/// who wait for it already. Each asks it once more. Looks are counted and not the time, because after a
/// standstill of this process all the time has passed, and what the peer has said is still to be read.
const LOOKS: u32 = 4;

impl Connection {
    /// Time since something was last received from the peer.
    pub fn silence(&self) -> Duration {
        self.heard_at.get().elapsed()
    }

    /// Whether the peer was asked whether it is there, and has said nothing for longer than that takes: who
    /// comes now had better go elsewhere. Asks it where it has been silent for some time; false until the
    /// answer is overdue.
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

    /// When a peer was asked whose answer is overdue; `None` of one that is not known to be gone.
    pub fn overdue_since(&self) -> Option<Instant> {
        self.unanswered_since().filter(|asked_at| asked_at.elapsed() >= self.patience())
    }

    /// Whether anything has come from the peer since then.
    pub fn was_heard_since(&self, then: Instant) -> bool {
        self.heard_at.get() > then
    }

    /// Whether a server is silent for so long that those who wait for it already had better go elsewhere,
    /// too: twice what [`Self::seems_gone`] takes. Who waits for [`Self::poll_lost`] is woken when it begins.
    pub fn is_silent(&self) -> bool {
        self.unanswered_since().is_some() && self.looks.get() >= LOOKS
    }

    /// Something was sent to a server, on whose behalf [`Self::enter_request`] was called, that it must
    /// acknowledge at once.
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

    /// Looks whether a server is there on which requests wait, and asks it where it has not been heard for
    /// long.
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

    /// Whether nothing has come although something was sent, `waited` ago, that asks for an acknowledgement,
    /// and that is overdue.
    pub fn is_unheard_for(&self, waited: Duration) -> bool {
        waited >= PATIENCE_ROUND_TRIPS * self.round_trip() && self.silence() >= waited
    }

    /// Since when the peer owes something; `None` where it was heard since it was asked.
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

    /// Has the peer say whether it is there.
    pub fn probe(self: &Rc<Self>) {
        self.inner.borrow_mut().quic.ping();
        self.touch();
    }
}
