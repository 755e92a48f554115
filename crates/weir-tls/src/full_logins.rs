//! Limits how many full logins may begin: each may cost a decryption of about a millisecond, which any
//! stranger can cause (threat F11).

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest time that a login waits for its turn; one that would have to wait longer is refused.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Most clients, and most accounts, that are remembered; above that, those without a wait are dropped.
const MOST_KNOWN: usize = 65_536;

/// Turns for full logins, for all workers: limited per second in total, per client, and per account.
///
/// A turn is a point in time, `1/rate` after the one before; turns for one second may be taken at once
/// (generic cell rate algorithm, ITU-T I.371). O(1), one short lock.
#[derive(Default)]
pub struct FullLogins(Mutex<Turns>);

/// Most logins per second; each rate is at least 1.
#[derive(Clone, Copy, Debug)]
pub struct LoginRates {
    /// In total.
    pub all: u32,
    /// Per client.
    pub client: u32,
    /// Per account, for all clients together; `None` without a limit.
    pub account: Option<u32>,
}

/// Which limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooManyLogins {
    /// The total limit, or the client's.
    Client,
    /// The account's limit.
    Account,
}

#[derive(Default)]
struct Turns {
    /// The time up to which turns are taken.
    all: Duration,
    by_client: HashMap<IpAddr, Duration>,
    /// By a hash of the name: two names with the same hash share a limit.
    by_account: HashMap<u64, Duration>,
    names: RandomState,
}

impl FullLogins {
    /// Takes a turn for `client` (an IPv4 address, or an IPv6 /64) to log in as `user`; returns how long to
    /// wait for it.
    ///
    /// # Errors
    /// The wait would be longer than [`LONGEST_WAIT`]; then no turn was taken.
    pub fn take(
        &self,
        client: IpAddr,
        user: &[u8],
        rates: LoginRates,
        now: Duration,
    ) -> Result<Duration, TooManyLogins> {
        let turns = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = turns.by_client.get(&client).copied().unwrap_or_default();
        let (all, all_wait) = next(turns.all, rates.all, now);
        let (own, own_wait) = next(own, rates.client, now);
        let mut wait = all_wait.max(own_wait);
        if wait > LONGEST_WAIT || !has_room(&mut turns.by_client, &client, now) {
            return Err(TooManyLogins::Client);
        }
        if let Some(rate) = rates.account {
            let name = turns.names.hash_one(user);
            let of_account = turns.by_account.get(&name).copied().unwrap_or_default();
            let (of_account, account_wait) = next(of_account, rate, now);
            wait = wait.max(account_wait);
            if wait > LONGEST_WAIT || !has_room(&mut turns.by_account, &name, now) {
                return Err(TooManyLogins::Account);
            }
            turns.by_account.insert(name, of_account);
        }
        turns.all = all;
        turns.by_client.insert(client, own);
        Ok(wait)
    }
}

/// Whether one more may be remembered; entries without a wait are dropped to make room.
fn has_room<K: Hash + Eq>(known: &mut HashMap<K, Duration>, one: &K, now: Duration) -> bool {
    if known.len() >= MOST_KNOWN && !known.contains_key(one) {
        known.retain(|_, paid| *paid > now);
    }
    known.len() < MOST_KNOWN || known.contains_key(one)
}

/// The time up to which turns are taken after one more, and the wait for that turn.
fn next(paid: Duration, per_second: u32, now: Duration) -> (Duration, Duration) {
    let each = Duration::from_secs(1) / per_second.max(1);
    let paid = paid.max(now) + each;
    (paid, paid.saturating_sub(now + Duration::from_secs(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);
    const RATES: LoginRates = LoginRates { all: 100, client: 4, account: None };
    const TOO_MANY: Result<Duration, TooManyLogins> = Err(TooManyLogins::Client);
    const AT_ONCE: Result<Duration, TooManyLogins> = Ok(Duration::ZERO);

    #[test]
    fn a_client_has_its_turns_at_once_and_waits_for_those_beyond() {
        let logins = FullLogins::default();
        let client = IpAddr::from([192, 0, 2, 1]);
        let waits: Vec<_> = (0..24).map(|_| logins.take(client, b"app", RATES, NOW)).collect();
        assert!(waits[..4].iter().all(|wait| *wait == AT_ONCE), "{waits:?}");
        assert_eq!(waits[4], Ok(Duration::from_millis(250)));
        assert_eq!(waits[23], Ok(Duration::from_secs(5)));
        assert_eq!(logins.take(client, b"app", RATES, NOW), TOO_MANY, "it would wait for longer than 5 s");
        assert_eq!(logins.take(client, b"app", RATES, NOW + Duration::from_secs(6)), AT_ONCE);
    }

    #[test]
    fn what_one_client_takes_leaves_the_rest_to_others_and_all_together_are_bounded() {
        let logins = FullLogins::default();
        let one = IpAddr::from([192, 0, 2, 1]);
        while logins.take(one, b"app", RATES, NOW).is_ok() {}
        let other = |number: u8| IpAddr::from([198, 51, 100, number]);
        assert_eq!(logins.take(other(1), b"app", RATES, NOW), AT_ONCE);
        let mut at_once = 0;
        for number in 2..200 {
            at_once += u32::from(logins.take(other(number), b"app", RATES, NOW) == AT_ONCE);
        }
        assert_eq!(at_once, 100 - 24 - 1, "24 were the first client's");
    }

    #[test]
    fn an_account_has_its_turns_whoever_asks_and_others_are_not_held_up() {
        let logins = FullLogins::default();
        let rates = LoginRates { all: 1000, client: 1000, account: Some(2) };
        let client = |number: u8| IpAddr::from([198, 51, 100, number]);
        let waits: Vec<_> = (0..12).map(|number| logins.take(client(number), b"app", rates, NOW)).collect();
        assert_eq!((waits[1], waits[2]), (AT_ONCE, Ok(Duration::from_millis(500))));
        assert_eq!(waits[11], Ok(Duration::from_secs(5)));
        assert_eq!(logins.take(client(99), b"app", rates, NOW), Err(TooManyLogins::Account));
        assert_eq!(logins.take(client(99), b"other", rates, NOW), AT_ONCE);
    }

    #[test]
    fn names_that_strangers_make_up_stay_bounded() {
        let logins = FullLogins::default();
        let rates = LoginRates { all: 100_000, client: 100_000, account: Some(1) };
        let client = IpAddr::from([192, 0, 2, 1]);
        for number in 0..2 * MOST_KNOWN as u64 {
            let now = NOW + Duration::from_micros(20 * number);
            let _ = logins.take(client, &number.to_le_bytes(), rates, now);
            assert!(logins.0.lock().unwrap().by_account.len() <= MOST_KNOWN);
        }
    }
}
