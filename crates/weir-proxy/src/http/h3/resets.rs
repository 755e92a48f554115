//! How many requests a client may break off.
//!
//! A request that is begun and broken off at once costs the client a few bytes and us the way to a backend and back ("rapid reset"). QUIC's
//! limit on streams does not bound it: a stream that was reset makes room for the next. So each request broken off is paid for with
//! one that was let end.

/// Requests that may be broken off before any has ended.
const CREDIT: u32 = 100;

/// What a client has left.
pub struct Resets {
    credit: u32,
}

impl Default for Resets {
    fn default() -> Resets {
        Resets { credit: CREDIT }
    }
}

impl Resets {
    /// A request was answered.
    pub fn answered(&mut self) {
        self.credit = (self.credit + 1).min(CREDIT);
    }

    /// A request was broken off by the client, or by us for what the client did: whether that is one too many.
    pub fn broken(&mut self) -> bool {
        self.credit = self.credit.saturating_sub(1);
        self.credit == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lets_requests_end_may_break_off_as_many_without_end() {
        let mut resets = Resets::default();
        for _ in 0..10 * CREDIT {
            assert!(!resets.broken());
            resets.answered();
        }
    }

    #[test]
    fn who_only_breaks_off_is_found_out() {
        let mut resets = Resets::default();
        assert_eq!((1..).find(|_| resets.broken()), Some(CREDIT));
    }
}
