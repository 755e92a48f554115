//! How many logins in full may begin: each may cost a decryption of about a millisecond, which strangers can
//! ask for (threat F11).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest time for which a login waits for its turn; who would wait longer is turned away.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Most clients that are remembered; beyond them the ones that need no waiting any more go.
const MOST_CLIENTS: usize = 65_536;

/// Turns for logins in full, over all workers: so many a second in all, and so many for one client.
///
/// A turn is a time: each is `1/rate` after the one before, and a second's worth may be taken at once
/// (generic cell rate algorithm, ITU-T I.371). O(1), one short lock.
#[derive(Default)]
pub struct FullLogins(Mutex<Turns>);

#[derive(Default)]
struct Turns {
    /// When all turns taken so far are paid for.
    all: Duration,
    by_client: HashMap<IpAddr, Duration>,
}

impl FullLogins {
    /// Takes a turn for `client` (an IPv4 address, or an IPv6 /64): how long it has to wait for it.
    /// `per_second` and `per_client` are logins a second, at least 1.
    ///
    /// `None` when it would be more than [`LONGEST_WAIT`]; then nothing was taken.
    pub fn take(&self, client: IpAddr, per_second: u32, per_client: u32, now: Duration) -> Option<Duration> {
        let turns = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = turns.by_client.get(&client).copied().unwrap_or_default();
        let (all, all_wait) = next(turns.all, per_second, now);
        let (own, own_wait) = next(own, per_client, now);
        let wait = all_wait.max(own_wait);
        if wait > LONGEST_WAIT {
            return None;
        }
        if turns.by_client.len() >= MOST_CLIENTS && !turns.by_client.contains_key(&client) {
            turns.by_client.retain(|_, paid| *paid > now);
            if turns.by_client.len() >= MOST_CLIENTS {
                return None;
            }
        }
        turns.all = all;
        turns.by_client.insert(client, own);
        Some(wait)
    }
}

/// When the turns are paid for with one more, and the wait for it.
fn next(paid: Duration, per_second: u32, now: Duration) -> (Duration, Duration) {
    let each = Duration::from_secs(1) / per_second.max(1);
    let paid = paid.max(now) + each;
    (paid, paid.saturating_sub(now + Duration::from_secs(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    #[test]
    fn a_client_has_its_turns_at_once_and_waits_for_those_beyond() {
        let logins = FullLogins::default();
        let client = IpAddr::from([192, 0, 2, 1]);
        let waits: Vec<_> = (0..24).map(|_| logins.take(client, 100, 4, NOW)).collect();
        assert!(waits[..4].iter().all(|wait| *wait == Some(Duration::ZERO)), "{waits:?}");
        assert_eq!(waits[4], Some(Duration::from_millis(250)));
        assert_eq!(waits[23], Some(Duration::from_secs(5)));
        assert_eq!(logins.take(client, 100, 4, NOW), None, "it would wait for longer than 5 s");
        assert_eq!(logins.take(client, 100, 4, NOW + Duration::from_secs(6)), Some(Duration::ZERO));
    }

    #[test]
    fn what_one_client_takes_leaves_the_rest_to_others_and_all_together_are_bounded() {
        let logins = FullLogins::default();
        let one = IpAddr::from([192, 0, 2, 1]);
        while logins.take(one, 100, 4, NOW).is_some() {}
        let other = |number: u8| IpAddr::from([198, 51, 100, number]);
        assert_eq!(logins.take(other(1), 100, 4, NOW), Some(Duration::ZERO));
        let mut at_once = 0;
        for number in 2..200 {
            at_once += u32::from(logins.take(other(number), 100, 4, NOW) == Some(Duration::ZERO));
        }
        assert_eq!(at_once, 100 - 24 - 1, "24 were the first client's");
    }
}
