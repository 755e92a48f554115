//! Tokens by which returning clients prove their address (RFC 9000 §8.1.3), each valid once (§8.1.4).
//!
//! Without a proof a client is served nothing before its handshake is complete: otherwise it could name
//! another host's address and have requests made in that host's name. The memory of used tokens is limited.
//! The oldest are forgotten first, and then all tokens as old are rejected, since they may have been used.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quinn_proto::{TokenLog, TokenReuseError};

/// Lifetime of a token: the same as that of a session.
pub const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Tokens given to a client: as many as it gets session tickets.
pub const TOKENS: u32 = 2;
/// Most used tokens to remember: 2 MiB.
const MOST: usize = 1 << 16;

/// The tokens that were used in this process.
#[derive(Debug)]
pub struct Proofs(Mutex<Used>);

#[derive(Debug)]
struct Used {
    /// For each, the time it was issued, in seconds since 1970, and its number.
    tokens: BTreeSet<(u64, u128)>,
    /// Tokens issued up to then are rejected.
    until: u64,
}

impl Proofs {
    /// No token is used yet. Tokens issued by an earlier process, up to the second before `now`, are
    /// rejected, as only that process knew which were used.
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
