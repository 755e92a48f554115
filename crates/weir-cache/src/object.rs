//! Stored responses.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use weir_http::ResponseHead;
use weir_http::values::accept_encoding::Coding;

use crate::freshness::Freshness;
use crate::key::KeyParts;
use crate::weight;

/// Content in memory: the chunks in which it arrived, in order.
#[derive(Clone, Debug)]
pub struct Body {
    chunks: Chunks,
    length: u64,
}

#[derive(Clone, Debug)]
enum Chunks {
    One(Bytes),
    Many(Box<[Bytes]>),
}

impl Body {
    /// Content of these chunks, without empty ones. Memory that a chunk holds beyond its length stays
    /// allocated, so pass chunks cut to size.
    pub fn new(mut chunks: Vec<Bytes>) -> Body {
        chunks.retain(|chunk| !chunk.is_empty());
        let length = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let chunks = match chunks.len() {
            0 | 1 => Chunks::One(chunks.pop().unwrap_or_default()),
            _ => Chunks::Many(chunks.into_boxed_slice()),
        };
        Body { chunks, length }
    }

    /// The chunks. Exactly one, which may be empty, if there was at most one.
    pub fn chunks(&self) -> &[Bytes] {
        match &self.chunks {
            Chunks::One(chunk) => std::slice::from_ref(chunk),
            Chunks::Many(chunks) => chunks,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The slices of the chunks from byte `start` to byte `end`; none is empty. Bytes beyond the end of the
    /// content are ignored.
    pub fn slices(&self, start: u64, end: u64) -> impl Iterator<Item = &[u8]> {
        let mut at = 0_u64;
        self.chunks().iter().filter_map(move |chunk| {
            let begins = at;
            at += chunk.len() as u64;
            let from = start.saturating_sub(begins).min(chunk.len() as u64) as usize;
            let to = end.saturating_sub(begins).min(chunk.len() as u64) as usize;
            chunk.get(from..to).filter(|slice| !slice.is_empty())
        })
    }

    /// Memory that it uses besides itself, in bytes.
    fn weight(&self) -> usize {
        let pieces: usize = self.chunks().iter().map(|chunk| weight::of_bytes(chunk.len())).sum();
        let list = match &self.chunks {
            Chunks::One(_) => 0,
            Chunks::Many(chunks) => weight::of(size_of_val(&**chunks)),
        };
        pieces + list
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body { length: bytes.len() as u64, chunks: Chunks::One(bytes) }
    }
}

/// The same content in other codings, made on first use.
#[derive(Clone, Debug, Default)]
struct Encodings {
    of: [OnceLock<Body>; 3],
}

/// A stored response. Its head is text as Weir would write it, with a `content-length`.
#[derive(Debug)]
pub struct Object {
    head: ResponseHead,
    text: Box<[u8]>,
    body: Body,
    freshness: Freshness,
    pub(crate) tags: Box<[u64]>,
    encodings: OnceLock<Box<Encodings>>,
    /// A bit for each coding that a caller is making.
    claims: AtomicU8,
    /// Set by the store.
    pub(crate) key: Box<[u8]>,
    pub(crate) hash: u64,
    /// The number of the last purge when its fetch began.
    pub(crate) began: u64,
    /// Its memory, in bytes, including codings added later.
    weight: AtomicU64,
    /// When it was purged softly, in nanoseconds plus one; 0 for never.
    soft_purged: AtomicU64,
    /// Uses since eviction last looked at it, up to 3.
    frequency: AtomicU8,
    /// It is no longer in the store.
    removed: AtomicBool,
}

impl Object {
    pub(crate) fn new(
        head: ResponseHead,
        text: Box<[u8]>,
        freshness: Freshness,
        tags: Box<[u64]>,
        body: Body,
    ) -> Object {
        Object {
            head,
            text,
            body,
            freshness,
            tags,
            encodings: OnceLock::new(),
            claims: AtomicU8::new(0),
            key: Box::default(),
            hash: 0,
            began: 0,
            weight: AtomicU64::new(0),
            soft_purged: AtomicU64::new(0),
            frequency: AtomicU8::new(0),
            removed: AtomicBool::new(false),
        }
    }

    /// Its head.
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// The text of the head, for its methods.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Its status.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// Its content.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// How long it is fresh.
    pub fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// The parts of its key; `None` if it is not stored.
    pub fn key(&self) -> Option<KeyParts<'_>> {
        KeyParts::of(&self.key)
    }

    /// The content in another coding, once [`crate::Store::encode`] has stored it. An empty one means that
    /// the coding is not worthwhile.
    pub fn encoded(&self, coding: Coding) -> Option<&Body> {
        self.encodings.get()?.of.get(coding as usize)?.get()
    }

    /// Whether the caller is to make that coding: true for the first caller, until that caller gives it back.
    pub fn claim(&self, coding: Coding) -> bool {
        let bit = 1 << coding as u8;
        self.claims.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Lets another caller make that coding.
    pub fn give_back(&self, coding: Coding) {
        self.claims.fetch_and(!(1 << coding as u8), Ordering::AcqRel);
    }

    /// Takes over the codings of `other`, which has the same content.
    pub(crate) fn adopt_encodings(&mut self, other: &Object) {
        self.encodings = other.encodings.clone();
    }

    pub(crate) fn set_encoded(&self, coding: Coding, body: Body) -> bool {
        let encodings = self.encodings.get_or_init(Box::default);
        encodings.of.get(coding as usize).is_some_and(|place| place.set(body).is_ok())
    }

    /// Records a use: used objects stay longer. A load, and a store at most three times.
    #[inline]
    pub fn touch(&self) {
        // Two concurrent uses may count as one; it is only a prediction either way.
        let before = self.frequency.load(Ordering::Relaxed);
        if before < MOST_FREQUENT {
            self.frequency.store(before + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn frequency(&self) -> u8 {
        self.frequency.load(Ordering::Relaxed)
    }

    pub(crate) fn set_frequency(&self, frequency: u8) {
        self.frequency.store(frequency, Ordering::Relaxed);
    }

    /// Whether it is still in the store: false once it was removed, evicted or replaced.
    #[inline]
    #[cfg(test)]
    pub fn is_current(&self) -> bool {
        !self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn set_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Since when a soft purge has made it stale whatever its age, if it was purged softly.
    pub fn soft_purged_at(&self) -> Option<Duration> {
        self.soft_purged.load(Ordering::Acquire).checked_sub(1).map(Duration::from_nanos)
    }

    pub(crate) fn set_soft_purged(&self, now: Duration) {
        let at = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX - 1).saturating_add(1);
        // The first purge counts: the times for which a stale response may be served run from then.
        let _ = self.soft_purged.compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Its memory, in bytes.
    pub fn weight(&self) -> u64 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(crate) fn weigh(&mut self) {
        let owned = [self.text.len(), self.key.len(), size_of_val(&*self.tags)];
        let owned = owned.into_iter().chain(self.head.allocations()).map(weight::of).sum::<usize>();
        let own = weight::of(size_of::<Object>() + 2 * size_of::<usize>());
        let encodings = self.encodings.get().map_or(0, |encodings| {
            let made = encodings.of.iter().filter_map(OnceLock::get);
            weight::of(size_of::<Encodings>()) + made.map(Body::weight).sum::<usize>()
        });
        *self.weight.get_mut() = (own + owned + self.body.weight() + encodings) as u64;
    }

    /// The memory that storing `body` as another coding adds, in bytes.
    pub(crate) fn encoding_weight(&self, body: &Body) -> u64 {
        let list = if self.encodings.get().is_none() { weight::of(size_of::<Encodings>()) } else { 0 };
        (list + body.weight()) as u64
    }

    pub(crate) fn add_weight(&self, added: u64) {
        self.weight.fetch_add(added, Ordering::Relaxed);
    }
}

/// Uses are counted up to this: two bits, as in the paper (see [`crate::store`]).
pub(crate) const MOST_FREQUENT: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn body(chunks: &[&'static str]) -> Body {
        Body::new(chunks.iter().map(|chunk| Bytes::from_static(chunk.as_bytes())).collect())
    }

    #[test]
    fn the_pieces_of_any_range_are_its_bytes() {
        let whole = "abcdefghij";
        for body in [body(&["abc", "", "defg", "hij"]), body(&["abcdefghij"])] {
            assert_eq!(body.len(), 10);
            for start in 0..12_usize {
                for end in start..12 {
                    let pieces: Vec<&[u8]> = body.slices(start as u64, end as u64).collect();
                    assert!(pieces.iter().all(|piece| !piece.is_empty()));
                    let expected = &whole.as_bytes()[start.min(10)..end.min(10)];
                    assert_eq!(pieces.concat(), expected, "{start}..{end}");
                }
            }
        }
        assert_eq!(body(&[]).chunks().len(), 1);
        assert!(body(&[""]).is_empty());
    }
}
