//! Tokens by which clients that come back prove their address (RFC 9000 §8.1.3), each good for once (§8.1.4).
//!
//! Without a proof a client gets nothing served before its handshake is over: whoever names somebody else's
//! address could have requests done in that one's name. What is remembered is bounded. The oldest is
//! forgotten first, and with it every token as old: one that may have been used proves nothing.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quinn_proto::{TokenLog, TokenReuseError};

/// Lifetime of a token: as long as a session is remembered.
pub const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Tokens given to a client: as many as it gets tickets.
pub const TOKENS: u32 = 2;
/// Most tokens remembered: 2 MiB.
const MOST: usize = 1 << 16;

/// The tokens that were used in this process.
#[derive(Debug)]
pub struct Proofs(Mutex<Used>);

#[derive(Debug)]
struct Used {
    /// Seconds since 1970 at which each was given out, and its number.
    tokens: BTreeSet<(u64, u128)>,
    /// Tokens given out until then prove nothing.
    until: u64,
}

impl Proofs {
    /// None is used. Those of a process before, up to the second before `now`, are not believed: it alone
    /// knows which were used.
    pub fn new(now: SystemTime) -> Proofs {
        Proofs(Mutex::new(Used { tokens: BTreeSet::new(), until: seconds(now).saturating_sub(1) }))
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl TokenLog for Proofs {
    fn check_and_insert(&self, number: u128, issued: SystemTime, _: Duration) -> Result<(), TokenReuseError> {
        let used = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let issued = seconds(issued);
        if issued <= used.until || !used.tokens.insert((issued, number)) {
            return Err(TokenReuseError);
        }
        if used.tokens.len() > MOST
            && let Some((oldest, _)) = used.tokens.pop_first()
        {
            used.until = oldest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000);

    fn believes(proofs: &Proofs, number: u128, seconds: u64) -> bool {
        let issued = UNIX_EPOCH + START + Duration::from_secs(seconds);
        proofs.check_and_insert(number, issued, LIFETIME).is_ok()
    }

    #[test]
    fn c7_a_token_proves_an_address_once_and_not_in_the_next_process() {
        let proofs = Proofs::new(UNIX_EPOCH + START);
        assert!(believes(&proofs, 1, 1) && believes(&proofs, 2, 1));
        assert!(!believes(&proofs, 1, 1));
        let before = UNIX_EPOCH + START - Duration::from_secs(1);
        assert!(proofs.check_and_insert(3, before, LIFETIME).is_err(), "given out before the process began");
    }

    #[test]
    fn what_may_have_been_forgotten_is_not_believed() {
        let proofs = Proofs::new(UNIX_EPOCH + START);
        for number in 0..=MOST as u64 {
            assert!(believes(&proofs, number.into(), 1 + number));
        }
        assert!(!believes(&proofs, 0, 1), "forgotten");
        assert!(!believes(&proofs, 1, 2), "remembered");
        assert!(believes(&proofs, u128::MAX, 2), "not used");
        assert!(proofs.0.lock().unwrap().tokens.len() <= MOST);
    }
}
