//! Recent purges, so that a fetch that began before a purge does not put anything back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::key::{self, KeyParts};
use crate::object::Object;
use crate::tags;

/// What to purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Everything stored for this path, whatever its query and variants.
    Path {
        /// On this host, with any port unless one is given; on all hosts if `None`.
        host: Option<Box<[u8]>>,
        /// The normalised path.
        path: Box<[u8]>,
    },
    /// Everything whose path has this prefix.
    Prefix {
        /// As for `Path`.
        host: Option<Box<[u8]>>,
        /// Prefix of the normalised path; empty for all paths.
        prefix: Box<[u8]>,
    },
    /// Everything with this tag (`surrogate-key`, `cache-tag`).
    Tag(Box<[u8]>),
    /// Everything.
    All,
}

impl Purge {
    /// Whether it covers this object. O(length of the key), does not allocate.
    pub(crate) fn covers(&self, object: &Object) -> bool {
        self.covers_key(object.key(), Some(&object.tags))
    }

    /// Whether it covers an object with this key and these tags; if the tags are unknown, whether it may.
    fn covers_key(&self, key: Option<KeyParts<'_>>, tags: Option<&[u64]>) -> bool {
        match self {
            Purge::All => true,
            Purge::Tag(tag) => tags.is_none_or(|tags| tags.binary_search(&tags::hash(tag)).is_ok()),
            Purge::Path { host, path } => {
                key.is_some_and(|key| is_of(host.as_deref(), key.authority) && key.path == &**path)
            }
            Purge::Prefix { host, prefix } => {
                key.is_some_and(|key| is_of(host.as_deref(), key.authority) && key.path.starts_with(prefix))
            }
        }
    }
}

/// Whether the authority is that host, with any port unless the host has one.
fn is_of(host: Option<&[u8]>, authority: &[u8]) -> bool {
    let Some(host) = host else { return true };
    let Some((found, rest)) = authority.split_at_checked(host.len()) else { return false };
    let port = |rest: &[u8]| matches!(rest, [b':', digits @ ..] if digits.iter().all(u8::is_ascii_digit));
    found.eq_ignore_ascii_case(host) && (rest.is_empty() || port(rest))
}

/// A point in the history of purges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PurgeSequence(u64);

impl PurgeSequence {
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
enum Noted {
    Purge(Purge),
    /// Removal of one resource, by the hash of the prefix of its keys.
    Uri(u64),
}

/// Most purges that are remembered. A fetch that began before all of them counts as covered: its result is
/// not stored.
const REMEMBERED: usize = 4096;

/// The history.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The number of the last purge.
    last: AtomicU64,
    /// The last purges with their numbers, oldest first.
    noted: Mutex<VecDeque<(u64, Noted)>>,
}

impl Log {
    pub fn sequence(&self) -> PurgeSequence {
        PurgeSequence(self.last.load(Ordering::SeqCst))
    }

    /// Records a purge. Its number is greater than that of every fetch that has begun.
    ///
    /// A soft purge is recorded too: the result of a fetch that began before it is stale, and not storing it
    /// is simplest.
    pub fn note(&self, purge: &Purge) -> u64 {
        self.add(Noted::Purge(purge.clone()))
    }

    /// Records the removal of everything whose keys have the prefix with this hash.
    pub fn note_uri(&self, hash: u64) {
        self.add(Noted::Uri(hash));
    }

    fn add(&self, noted: Noted) -> u64 {
        let mut log = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.last.load(Ordering::SeqCst) + 1;
        if log.len() >= REMEMBERED {
            log.pop_front();
        }
        log.push_back((number, noted));
        self.last.store(number, Ordering::SeqCst);
        number
    }

    /// Whether a purge since `began` covers an object with this key and these tags, or may cover it if the
    /// tags are unknown. One load if there was no purge.
    pub fn covers(&self, key: &[u8], tags: Option<&[u64]>, seed: u64, began: PurgeSequence) -> bool {
        if self.last.load(Ordering::SeqCst) <= began.0 {
            return false;
        }
        let log = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        // A purge that has been forgotten may have covered it.
        if log.front().is_none_or(|(oldest, _)| *oldest > began.0 + 1) {
            return true;
        }
        let uri = key::hash(seed, KeyParts::uri_of(key));
        let parts = KeyParts::of(key);
        log.iter().rev().take_while(|(number, _)| *number > began.0).any(|(_, noted)| match noted {
            Noted::Purge(purge) => purge.covers_key(parts, tags),
            Noted::Uri(hash) => *hash == uri,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_meant_with_any_port_unless_it_has_one() {
        assert!(is_of(None, b"a"));
        assert!(is_of(Some(b"A"), b"a") && is_of(Some(b"a"), b"a:8080") && is_of(Some(b"a:8080"), b"a:8080"));
        assert!(!is_of(Some(b"a:80"), b"a:8080") && !is_of(Some(b"a"), b"ab") && !is_of(Some(b"ab"), b"a"));
        assert!(!is_of(Some(b"a:8080"), b"a"));
    }
}
