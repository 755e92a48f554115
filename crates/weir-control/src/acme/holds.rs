//! Accounts on hold: they place no orders for some time because the authority has refused one for a rate
//! limit. It would refuse all others, and count them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::schedule::Blame;
use crate::lock;

/// Longest time without any attempt (an authority may ask for days, and its limits are only described in
/// text), and the time if it names none.
const LONGEST: Duration = Duration::from_secs(3600);
const SHORTEST: Duration = Duration::from_secs(60);
/// How long other orders wait for the result of the first one after a hold.
const FIRST_TRY: Duration = Duration::from_secs(30);

/// Accounts on hold, by their folders in the store. One for the process.
#[derive(Default)]
pub struct Holds(Mutex<HashMap<PathBuf, Held>>);

struct Held {
    until: Instant,
    /// What the authority said.
    reason: Arc<str>,
    /// Number of the hold, to tell one from the next.
    count: u64,
}

/// Permission for an account to try; contains the number of the last hold.
#[must_use = "whoever has waited since asks whether it is good still"]
pub struct Pass(u64);

impl Holds {
    /// Permits an attempt for an account. When a hold ends, one order goes first, and the others wait for its
    /// result.
    ///
    /// # Errors
    /// The account is on hold; says why and for how long.
    pub fn pass(&self, account: &Path) -> Result<Pass, Failure> {
        let (mut all, now) = (lock(&self.0), Instant::now());
        let Some(held) = all.get_mut(account) else { return Ok(Pass(0)) };
        if held.until > now {
            return Err(held.failure(now));
        }
        held.until = now + FIRST_TRY;
        Ok(Pass(held.count))
    }

    /// Whether a pass is still valid, after waiting for others.
    ///
    /// # Errors
    /// The account has been put on hold since; says why and for how long.
    pub fn still(&self, account: &Path, pass: &Pass) -> Result<(), Failure> {
        let (all, now) = (lock(&self.0), Instant::now());
        match all.get(account) {
            Some(held) if held.count != pass.0 && held.until > now => Err(held.failure(now)),
            _ => Ok(()),
        }
    }

    /// Puts an account on hold, for the time that was asked for, within limits. Returns the time.
    pub fn hold(&self, account: &Path, asked_for: Option<Duration>, reason: Arc<str>) -> Duration {
        let wait = asked_for.unwrap_or(SHORTEST).min(LONGEST);
        let mut all = lock(&self.0);
        let count = all.get(account).map_or(1, |held| held.count + 1);
        all.insert(account.to_owned(), Held { until: Instant::now() + wait, reason, count });
        wait
    }

    /// Ends the hold of an account for which an order was placed.
    pub fn lift(&self, account: &Path) {
        lock(&self.0).remove(account);
    }

    /// Lets every account try again at once, on an operator's request.
    pub fn hasten(&self) {
        let now = Instant::now();
        lock(&self.0).values_mut().for_each(|held| held.until = now);
    }
}

impl Held {
    fn failure(&self, now: Instant) -> Failure {
        let reason = format!("not asked, for the authority has said of another name: {}", self.reason);
        // Spreads the retries a little.
        let wait = self.until.saturating_duration_since(now).mul_f64(1.0 + super::draw() / 10.0);
        Failure { asked_for: Some(wait), ..Failure::new(Blame::Held, reason) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_an_account_is_held_no_other_is_and_then_one_goes_first() {
        let (holds, account, other) = (Holds::default(), Path::new("/store/a"), Path::new("/store/b"));
        let before = holds.pass(account).unwrap();
        assert_eq!(holds.hold(account, Some(Duration::from_secs(1 << 20)), "too many".into()), LONGEST);
        let held = holds.pass(account).err().unwrap();
        assert!(held.blame == Blame::Held && held.reason.ends_with("another name: too many"), "{held}");
        assert!(held.asked_for.is_some_and(|wait| wait > SHORTEST && wait < 2 * LONGEST));
        assert!(holds.still(account, &before).is_err() && holds.pass(other).is_ok());
        holds.hasten();
        let first = holds.pass(account).unwrap();
        assert!(holds.still(account, &first).is_ok());
        assert!(holds.pass(account).err().unwrap().asked_for.is_some_and(|wait| wait < 2 * FIRST_TRY));
        holds.lift(account);
        assert!(holds.pass(account).is_ok() && holds.pass(account).is_ok());
        assert_eq!(holds.hold(account, None, "too many".into()), SHORTEST);
    }
}
