//! The HTTP version that a backend picked last, where its pool lets it pick, and whether QUIC gets through
//! to it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

const UNKNOWN: u8 = 0;
const H1: u8 = 1;
const H2: u8 = 2;

/// What a backend picked last (ALPN, RFC 7301), told to all workers. It is a guess at what it picks next: a
/// backend may change its mind with every connection.
#[derive(Debug, Default)]
pub struct Picked {
    version: AtomicU8,
    /// QUIC does not get through, and until then nobody tries it, in milliseconds of the clock; 0 while
    /// nothing is known against it.
    no_quic_until_ms: AtomicU64,
}

/// Who may try a QUIC connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicTurn {
    /// Everybody: nothing is known against it.
    Anyone,
    /// The caller, and nobody else for a while: it did not get through.
    CallerAlone,
    /// Not the caller.
    Others,
}

impl Picked {
    /// Notes what it picked.
    pub fn note(&self, is_h2: bool) {
        let now = if is_h2 { H2 } else { H1 };
        // Written where it changes only, so that it stays in every worker's cache.
        if self.version.load(Ordering::Relaxed) != now {
            self.version.store(now, Ordering::Relaxed);
        }
    }

    /// Whether it was HTTP/1.1; false, too, while it has picked nothing.
    #[inline]
    pub fn is_h1(&self) -> bool {
        self.version.load(Ordering::Relaxed) == H1
    }

    /// No QUIC connection came about at `now`; gives whether that is news. Nobody tries one for `pause`.
    pub fn note_no_quic(&self, now: Duration, pause: Duration) -> bool {
        let until = u64::try_from((now + pause).as_millis()).unwrap_or(u64::MAX);
        self.no_quic_until_ms.swap(until, Ordering::Relaxed) == 0
    }

    /// A QUIC connection came about.
    pub fn note_quic(&self) {
        self.no_quic_until_ms.store(0, Ordering::Relaxed);
    }

    /// Who may try a QUIC connection at `now`. Where none came about one may, each `pause`: others need not
    /// wait for what comes of that.
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

    /// The caller whose turn it was has found out nothing, and will not: it is whoever's comes next.
    pub fn give_turn_back(&self, now: Duration) {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
        let earlier = |until: u64| (until > now).then_some(now);
        let _ = self.no_quic_until_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earlier);
    }

    /// Whether QUIC did not get through when it was tried last.
    pub fn lacks_quic(&self) -> bool {
        self.no_quic_until_ms.load(Ordering::Relaxed) != 0
    }

    /// The version for people; `None` while it has picked nothing.
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
