//! Marks by which purges select objects: a few bytes next to the shard's own data, so that a purge need not
//! look at objects that it does not cover.

use super::purges::Purge;
use crate::key;
use crate::object::Object;
use crate::tags;

/// Hashes of parts of an object's key, and a filter of its tags.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// Hash of its path.
    pub path: u32,
    /// Two bits for each tag.
    tags: u32,
    /// Hash of its host, without the port.
    host: u16,
}

impl Marks {
    /// The marks of an object that has its key. `seed` is secret: whoever knew it could make up paths that
    /// all collide.
    pub fn of(object: &Object, seed: u64) -> Marks {
        let tags = object.tags.iter().fold(0, |bits, tag| bits | bits_of(*tag));
        match object.key() {
            Some(key) => {
                Marks { path: path_mark(key.path, seed), tags, host: host_mark(key.authority, seed) }
            }
            None => Marks { tags, ..Marks::default() },
        }
    }
}

/// The objects that a purge may cover.
pub(super) enum Meant {
    /// Objects of the paths with this hash.
    OfPath(u32),
    /// Objects of hosts with this hash.
    OfHost(u16),
    /// Objects that may have a tag with these filter bits.
    Tagged(u32),
    /// Any.
    Any,
}

impl Meant {
    /// The objects that `purge` may select.
    pub fn by(purge: &Purge, seed: u64) -> Meant {
        match purge {
            Purge::Path { path, .. } => Meant::OfPath(path_mark(path, seed)),
            Purge::Prefix { host: Some(host), .. } => {
                Meant::OfHost(host_mark(&host.to_ascii_lowercase(), seed))
            }
            Purge::Tag(tag) => Meant::Tagged(bits_of(tags::hash(tag))),
            Purge::Prefix { host: None, .. } | Purge::All => Meant::Any,
        }
    }

    /// Whether an object with these marks may be among them.
    pub fn includes(&self, marks: &Marks) -> bool {
        match self {
            Meant::OfPath(path) => marks.path == *path,
            Meant::OfHost(host) => marks.host == *host,
            Meant::Tagged(bits) => marks.tags & bits == *bits,
            Meant::Any => true,
        }
    }
}

/// The hash of a path with a secret seed.
pub(super) fn path_mark(path: &[u8], seed: u64) -> u32 {
    key::hash(seed, path) as u32
}

/// `authority` must be in lower case.
fn host_mark(authority: &[u8], seed: u64) -> u16 {
    let colon = authority.iter().rposition(|&byte| byte == b':');
    let (host, port) = authority.split_at(colon.unwrap_or(authority.len()));
    let is_port = port.iter().skip(1).all(u8::is_ascii_digit);
    key::hash(seed, if is_port { host } else { authority }) as u16
}

fn bits_of(tag: u64) -> u32 {
    1 << (tag & 31) | 1 << (tag >> 5 & 31)
}
