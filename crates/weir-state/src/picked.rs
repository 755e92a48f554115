//! The HTTP version that a backend chose last, if its pool leaves the choice to it, and whether QUIC reaches
//! it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

const UNKNOWN: u8 = 0;
const H1: u8 = 1;
const H2: u8 = 2;

/// The version that a backend chose last (ALPN, RFC 7301), visible to all workers. It only predicts the next
/// choice: a backend may change its mind with every connection.
#[derive(Debug, Default)]
pub struct Picked {
    version: AtomicU8,
    /// QUIC does not get through, and nobody tries it until then, in milliseconds of the clock; 0 while it is
    /// not known to fail.
    no_quic_until_ms: AtomicU64,
}

/// Which callers may try a QUIC connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicTurn {
    /// Every caller: QUIC is not known to fail.
    Anyone,
    /// The caller, and no other for a while: QUIC did not get through last time.
    CallerAlone,
    /// Not this caller.
    Others,
}

impl Picked {
    /// Records the version chosen.
    pub fn note(&self, is_h2: bool) {
        let now = if is_h2 { H2 } else { H1 };
        // Written only on a change, so that it stays in every worker's cache.
        if self.version.load(Ordering::Relaxed) != now {
            self.version.store(now, Ordering::Relaxed);
        }
    }

    /// Whether it was HTTP/1.1; false while nothing has been chosen.
    #[inline]
    pub fn is_h1(&self) -> bool {
        self.version.load(Ordering::Relaxed) == H1
    }

    /// Records that a QUIC connection failed at `now`; returns whether that is news. No caller tries one for
    /// `pause`.
    pub fn note_no_quic(&self, now: Duration, pause: Duration) -> bool {
        let until = u64::try_from((now + pause).as_millis()).unwrap_or(u64::MAX);
        self.no_quic_until_ms.swap(until, Ordering::Relaxed) == 0
    }

    /// Records that a QUIC connection succeeded.
    pub fn note_quic(&self) {
        self.no_quic_until_ms.store(0, Ordering::Relaxed);
    }

    /// Whether the caller may try a QUIC connection at `now`. After a failure one caller per `pause` may; the
    /// others don't wait for its result.
    #[inline]
    pub fn quic_turn(&self, now: Duration, pause: Duration) -> QuicTurn {
        let until = self.no_quic_until_ms.load(Ordering::Relaxed);
        if until == 0 {
            return QuicTurn::Anyone;
        }
        let next = u64::try_from((now + pause).as_millis()).unwrap_or(u64::MAX);
        let is_due = u128::from(until) <= now.as_millis();
        let (before, after) = (Ordering::Relaxed, Ordering::Relaxed);
        match is_due && self.no_quic_until_ms.compare_exchange(until, next, before, after).is_ok() {
            true => QuicTurn::CallerAlone,
            false => QuicTurn::Others,
        }
    }

    /// Gives back a turn that produced no result: the next caller gets it.
    pub fn give_turn_back(&self, now: Duration) {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
        let earlier = |until: u64| (until > now).then_some(now);
        let _ = self.no_quic_until_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earlier);
    }

    /// Whether the last try with QUIC failed.
    pub fn lacks_quic(&self) -> bool {
        self.no_quic_until_ms.load(Ordering::Relaxed) != 0
    }

    /// The version, for display; `None` while nothing has been chosen.
    pub fn word(&self) -> Option<&'static str> {
        match self.version.load(Ordering::Relaxed) {
            UNKNOWN => None,
            H1 => Some("h1"),
            _ => Some("h2"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_quic_does_not_get_through_one_tries_it_again_and_others_do_not_wait() {
        let (picked, pause) = (Picked::default(), Duration::from_secs(60));
        let at = Duration::from_secs;
        assert_eq!(picked.quic_turn(at(1), pause), QuicTurn::Anyone);
        assert!(picked.note_no_quic(at(1), pause) && !picked.note_no_quic(at(1), pause), "news once");
        assert_eq!(picked.quic_turn(at(60), pause), QuicTurn::Others);
        assert_eq!(picked.quic_turn(at(61), pause), QuicTurn::CallerAlone);
        assert_eq!(picked.quic_turn(at(61), pause), QuicTurn::Others);
        assert!(picked.lacks_quic() && !picked.note_no_quic(at(62), pause));
        assert_eq!(picked.quic_turn(at(122), pause), QuicTurn::CallerAlone);
        picked.give_turn_back(at(123));
        assert_eq!(picked.quic_turn(at(123), pause), QuicTurn::CallerAlone, "the one before has left");
        picked.note_quic();
        picked.give_turn_back(at(123));
        assert_eq!(picked.quic_turn(at(123), pause), QuicTurn::Anyone);
        assert!(!picked.lacks_quic());
    }
}
