//! Accounts that place no orders for a time, because the authority has said so to one of them: it would say
//! it to all others, and count them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::schedule::Blame;
use crate::lock;

/// Longest time without any try (an authority may ask for days, and what is known of its limits is a sentence
/// for people), and the time where it says none.
const LONGEST: Duration = Duration::from_secs(3600);
const SHORTEST: Duration = Duration::from_secs(60);
/// How long others wait for what comes of the first that tries again.
const FIRST_TRY: Duration = Duration::from_secs(30);

/// Which accounts are held, by their folders in the store. One for a process.
#[derive(Default)]
pub struct Holds(Mutex<HashMap<PathBuf, Held>>);

struct Held {
    until: Instant,
    /// What the authority said.
    reason: Arc<str>,
    /// How often it was said, to tell one time from the next.
    count: u64,
}

/// An account may try; knows which hold was the last.
#[must_use = "whoever has waited since asks whether it is good still"]
pub struct Pass(u64);

impl Holds {
    /// Lets an account try. When a hold ends, one goes first, and the others wait for what comes of it.
    ///
    /// # Errors
    /// It is held; says why and for how long.
    pub fn pass(&self, account: &Path) -> Result<Pass, Failure> {
        let (mut all, now) = (lock(&self.0), Instant::now());
        let Some(held) = all.get_mut(account) else { return Ok(Pass(0)) };
        if held.until > now {
            return Err(held.failure(now));
        }
        held.until = now + FIRST_TRY;
        Ok(Pass(held.count))
    }

    /// Whether a pass is good still, after a wait for others.
    ///
    /// # Errors
    /// The account is held since; says why and for how long.
    pub fn still(&self, account: &Path, pass: &Pass) -> Result<(), Failure> {
        let (all, now) = (lock(&self.0), Instant::now());
        match all.get(account) {
            Some(held) if held.count != pass.0 && held.until > now => Err(held.failure(now)),
            _ => Ok(()),
        }
    }

    /// Holds an account, for as long as it was asked for within bounds. Gives for how long.
    pub fn hold(&self, account: &Path, asked_for: Option<Duration>, reason: Arc<str>) -> Duration {
        let wait = asked_for.unwrap_or(SHORTEST).min(LONGEST);
        let mut all = lock(&self.0);
        let count = all.get(account).map_or(1, |held| held.count + 1);
        all.insert(account.to_owned(), Held { until: Instant::now() + wait, reason, count });
        wait
    }

    /// Lets an account go for which an order was placed.
    pub fn lift(&self, account: &Path) {
        lock(&self.0).remove(account);
    }

    /// Has every account try again: an operator wants to see something done.
    pub fn hasten(&self) {
        let now = Instant::now();
        lock(&self.0).values_mut().for_each(|held| held.until = now);
    }
}

impl Held {
    fn failure(&self, now: Instant) -> Failure {
        let reason = format!("not asked, for the authority has said of another name: {}", self.reason);
        // Not all come back in the same moment.
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
