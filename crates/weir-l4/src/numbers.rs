//! Numbers of listeners, pools and backends, by which the program identifies them. A number stays the same as
//! long as its owner is wanted, also across restarts.

use std::collections::{BTreeMap, BTreeSet};

use weir_balance::stable_hash;

use crate::layout::Endpoint;

/// Kinds of things with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Kind {
    /// A listener.
    Listener = 0,
    /// A pool.
    Pool = 1,
    /// A backend of a pool.
    Backend = 2,
    /// Addresses that clients send to, or that backends answer from. These have no numbers, but a limit.
    Endpoint = 3,
}

/// No number is left: more is wanted than the maps have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Of which kind.
    pub kind: Kind,
    /// The limit.
    pub limit: u32,
}

impl std::fmt::Display for Full {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.kind {
            Kind::Listener => "listeners",
            Kind::Pool => "pools",
            Kind::Backend => "backends",
            Kind::Endpoint => {
                return write!(
                    out,
                    "the kernel plane has room for {} addresses with their ports, those of listeners and those of their backends each; \
                     shorter ranges take less",
                    self.limit
                );
            }
        };
        write!(
            out,
            "the kernel plane was started with room for {} {what}; a restart makes room for what the file has now",
            self.limit
        )
    }
}

impl std::error::Error for Full {}

/// The key in the map of names under which the name of a number is stored.
pub fn key_of_name(kind: Kind, number: u32) -> u64 {
    (kind as u64) << 32 | u64::from(number)
}

/// The numbers of one kind, by name.
#[derive(Clone, Debug)]
pub struct Numbers {
    kind: Kind,
    limit: u32,
    by_name: BTreeMap<u64, u32>,
    taken: BTreeSet<u32>,
}

impl Numbers {
    /// With no number taken, and `limit` available.
    pub fn new(kind: Kind, limit: u32) -> Numbers {
        Numbers { kind, limit, by_name: BTreeMap::new(), taken: BTreeSet::new() }
    }

    /// Takes over a number that an earlier process has assigned.
    pub fn adopt(&mut self, name: u64, number: u32) {
        if number < self.limit && self.taken.insert(number) {
            self.by_name.insert(name, number);
        }
    }

    /// The number of a name; if it has none yet, it gets the lowest free one.
    pub fn take(&mut self, name: u64) -> Result<u32, Full> {
        if let Some(number) = self.by_name.get(&name) {
            return Ok(*number);
        }
        let free = (0..self.limit).find(|number| !self.taken.contains(number));
        let number = free.ok_or(Full { kind: self.kind, limit: self.limit })?;
        self.taken.insert(number);
        self.by_name.insert(name, number);
        Ok(number)
    }

    /// The number of a name, if it has one.
    pub fn of(&self, name: u64) -> Option<u32> {
        self.by_name.get(&name).copied()
    }

    /// Each name with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.by_name.iter().map(|(name, number)| (*name, *number))
    }

    /// Releases the numbers of all names for which `keeps` is false; returns these numbers.
    pub fn retain(&mut self, mut keeps: impl FnMut(u64, u32) -> bool) -> Vec<u32> {
        let mut freed = Vec::new();
        self.by_name.retain(|name, number| {
            let stays = keeps(*name, *number);
            if !stays {
                freed.push(*number);
            }
            stays
        });
        self.taken.retain(|number| !freed.contains(number));
        freed
    }
}

/// Identifies a listener or a pool across restarts.
pub fn name_of(name: &str) -> u64 {
    stable_hash(name.as_bytes())
}

/// Identifies a backend; in another pool it is a different one.
pub fn name_of_backend(pool: &str, at: &Endpoint) -> u64 {
    let mut text = pool.as_bytes().to_vec();
    text.push(0);
    text.extend(at.address.0);
    text.extend(at.port);
    stable_hash(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_a_number_given_back_is_given_again() {
        let mut numbers = Numbers::new(Kind::Pool, 2);
        assert_eq!(numbers.take(70), Ok(0));
        assert_eq!(numbers.take(80), Ok(1));
        assert_eq!(numbers.take(70), Ok(0));
        assert_eq!(numbers.take(90), Err(Full { kind: Kind::Pool, limit: 2 }));
        assert_eq!(numbers.retain(|name, _| name == 80), [0]);
        assert_eq!(numbers.take(90), Ok(0));
        assert_eq!(numbers.of(70), None);
    }

    #[test]
    fn what_an_earlier_process_gave_is_not_given_to_another() {
        let mut numbers = Numbers::new(Kind::Backend, 4);
        numbers.adopt(5, 0);
        numbers.adopt(6, 9);
        assert_eq!(numbers.take(7), Ok(1));
        assert_eq!(numbers.take(5), Ok(0));
        assert_eq!(numbers.of(6), None);
    }

    #[test]
    fn a_backend_is_another_one_in_another_pool() {
        let at = Endpoint::new("10.0.0.1:80".parse().unwrap(), 0);
        assert_ne!(name_of_backend("a", &at), name_of_backend("b", &at));
    }
}
