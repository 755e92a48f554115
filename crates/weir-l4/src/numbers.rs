//! Numbers of listeners, pools and backends: what the program knows them by. They stay while what they name
//! is wanted, and over a restart.

use std::collections::{BTreeMap, BTreeSet};

use weir_balance::stable_hash;

use crate::layout::Endpoint;

/// What has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Kind {
    /// A listener.
    Listener = 0,
    /// A pool.
    Pool = 1,
    /// A backend of a pool.
    Backend = 2,
    /// Where clients send to, or backends answer from. These have no numbers, and can only be too many.
    Endpoint = 3,
}

/// No number is left: more is wanted than the maps were made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Of what.
    pub kind: Kind,
    /// How many there are.
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

/// Where the map of names holds the name of a number.
pub fn key_of_name(kind: Kind, number: u32) -> u64 {
    (kind as u64) << 32 | u64::from(number)
}

/// Who has which number, for one kind.
#[derive(Clone, Debug)]
pub struct Numbers {
    kind: Kind,
    limit: u32,
    by_name: BTreeMap<u64, u32>,
    taken: BTreeSet<u32>,
}

impl Numbers {
    /// None taken yet, `limit` to be had.
    pub fn new(kind: Kind, limit: u32) -> Numbers {
        Numbers { kind, limit, by_name: BTreeMap::new(), taken: BTreeSet::new() }
    }

    /// Takes over what an earlier process gave.
    pub fn adopt(&mut self, name: u64, number: u32) {
        if number < self.limit && self.taken.insert(number) {
            self.by_name.insert(name, number);
        }
    }

    /// The number of a name; the lowest that is free when it has none yet.
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

    /// Gives back the numbers of all names that `keeps` does not want; those that were given back.
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

/// What a listener or a pool is known by over restarts.
pub fn name_of(name: &str) -> u64 {
    stable_hash(name.as_bytes())
}

/// What a backend is known by: it is another one in another pool.
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
