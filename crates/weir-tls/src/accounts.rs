//! Passwords that clients have shown and a server has confirmed, remembered for a while.
//!
//! A store belongs to one pool and is shared by all workers. It is limited in size, forgets accounts that
//! nobody has used for an hour, is not handed over at an upgrade, and wipes what it drops. It does not
//! authenticate anyone: it makes a login shorter, and a server still decides on that.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::password::Password;

/// Accounts that were not used for this long are forgotten.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// Longest name that is kept, in bytes: 32 characters of four (MySQL 8.4 Reference Manual section 8.2.3).
pub const LONGEST_NAME_BYTES: usize = 128;

/// Names and passwords of the accounts that have logged in. Each login takes one short lock.
#[derive(Default)]
pub struct Accounts(Mutex<Store>);

#[derive(Default)]
struct Store {
    by_name: HashMap<Box<[u8]>, KnownAccount>,
    /// Names by the time of their last use; the counter makes equal times distinct.
    uses: BTreeMap<(Duration, u64), Box<[u8]>>,
    counter: u64,
}

struct KnownAccount {
    password: Password,
    used: (Duration, u64),
}

impl Accounts {
    /// The password with which `user` has logged in; `None` if it is not known. Counts as a use.
    pub fn find(&self, user: &[u8], now: Duration) -> Option<Password> {
        let store = &mut *self.lock();
        store.forget(now);
        let password = store.by_name.get(user)?.password.clone();
        store.touch(user, now);
        Some(password)
    }

    /// Stores what a server has just confirmed, replacing the earlier password of `user`. At most `most`
    /// accounts are kept; the least recently used ones go first.
    pub fn keep(&self, user: &[u8], password: &Password, most: usize, now: Duration) {
        if user.len() > LONGEST_NAME_BYTES {
            return;
        }
        let store = &mut *self.lock();
        store.forget(now);
        match store.by_name.get_mut(user) {
            Some(entry) => entry.password = password.clone(),
            None => {
                let entry = KnownAccount { password: password.clone(), used: (Duration::MAX, 0) };
                store.by_name.insert(user.into(), entry);
            }
        }
        store.touch(user, now);
        while store.by_name.len() > most
            && let Some((_, oldest)) = store.uses.pop_first()
        {
            store.by_name.remove(&oldest);
        }
    }

    /// Forgets `user` if `password` is the one that is stored: a server has refused it.
    pub fn refuse(&self, user: &[u8], password: &Password) {
        let store = &mut *self.lock();
        // Another login may have stored a newer one meanwhile.
        if store.by_name.get(user).is_some_and(|entry| entry.password.is_same(password))
            && let Some(entry) = store.by_name.remove(user)
        {
            store.uses.remove(&entry.used);
        }
    }

    /// Number of accounts stored now.
    pub fn count(&self) -> usize {
        self.lock().by_name.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    fn touch(&mut self, user: &[u8], now: Duration) {
        self.counter += 1;
        let Some(entry) = self.by_name.get_mut(user) else { return };
        self.uses.remove(&entry.used);
        entry.used = (now, self.counter);
        self.uses.insert(entry.used, user.into());
    }

    fn forget(&mut self, now: Duration) {
        while let Some(oldest) = self.uses.first_entry() {
            if now.saturating_sub(oldest.key().0) < FORGOTTEN_AFTER {
                return;
            }
            let name = oldest.remove();
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn password(text: &[u8]) -> Password {
        Password::new(text).unwrap()
    }

    fn knows(accounts: &Accounts, user: &[u8], now: Duration) -> Option<Vec<u8>> {
        accounts.find(user, now).map(|password| password.bytes().to_vec())
    }

    #[test]
    fn accounts_longest_without_use_go_first() {
        let accounts = Accounts::default();
        for (user, now) in [(b"a", SECOND), (b"b", 2 * SECOND)] {
            accounts.keep(user, &password(user), 2, now);
        }
        assert!(knows(&accounts, b"a", 3 * SECOND).is_some());
        accounts.keep(b"c", &password(b"c"), 2, 4 * SECOND);
        assert_eq!(accounts.count(), 2);
        assert_eq!(knows(&accounts, b"b", 4 * SECOND), None);
        assert_eq!(knows(&accounts, b"a", 4 * SECOND).as_deref(), Some(&b"a"[..]));
    }

    #[test]
    fn an_account_is_forgotten_after_an_hour_without_use() {
        let accounts = Accounts::default();
        accounts.keep(b"a", &password(b"a"), 9, Duration::ZERO);
        assert!(knows(&accounts, b"a", FORGOTTEN_AFTER - SECOND).is_some());
        assert!(knows(&accounts, b"a", 2 * FORGOTTEN_AFTER - 2 * SECOND).is_some());
        assert_eq!(knows(&accounts, b"a", 3 * FORGOTTEN_AFTER), None);
        assert_eq!(accounts.count(), 0);
    }

    #[test]
    fn a_refusal_drops_the_password_it_is_about_and_no_newer_one() {
        let accounts = Accounts::default();
        accounts.keep(b"a", &password(b"old"), 9, SECOND);
        accounts.keep(b"a", &password(b"new"), 9, SECOND);
        accounts.refuse(b"a", &password(b"old"));
        assert_eq!(knows(&accounts, b"a", SECOND).as_deref(), Some(&b"new"[..]));
        accounts.refuse(b"a", &password(b"new"));
        assert_eq!(knows(&accounts, b"a", SECOND), None);
        accounts.keep(b"b", &password(b"b"), 1, SECOND);
        assert_eq!(accounts.count(), 1);
    }

    #[test]
    fn a_name_longer_than_any_accounts_is_not_kept() {
        let accounts = Accounts::default();
        accounts.keep(&[b'a'; LONGEST_NAME_BYTES + 1], &password(b"a"), 9, SECOND);
        assert_eq!(accounts.count(), 0);
    }
}
