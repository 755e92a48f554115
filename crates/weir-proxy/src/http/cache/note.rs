//! What is said of the cache with each response: `cache-status` (RFC 9211), `age`, the word in the log.

use weir_cache::RequestFacts;
use weir_http::{CacheFields, encode_decimal};
use weir_stats::table::CacheResult;

use crate::seldom::Reused;

/// What became of one request at the cache.
#[derive(Default)]
pub struct Note {
    /// The word for the log and the counters; `None` on routes without a cache.
    pub result: Option<CacheResult>,
    /// The object's age, where one was sent.
    pub age_seconds: Option<u64>,
    /// Value of `cache-status`.
    status: Vec<u8>,
    /// The text of a request whose success makes what is kept of its URI out of date; empty for others.
    pub unsafe_request: Vec<u8>,
    /// A request that goes past although memory may answer such: its answer shows whether others have to.
    pub passing: Option<RequestFacts>,
    /// Whether something is kept that its client gets in the place of an error.
    pub is_covered: bool,
}

/// Why a request went on to a backend: `fwd` of RFC 9211 §2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// The cache is not used for such requests.
    Bypass,
    /// Nor for such methods.
    Method,
    /// Nothing of this URI is kept.
    UriMiss,
    /// Something is, for other values of what it varies by.
    VaryMiss,
    /// The client wants it confirmed.
    Request,
    /// What is kept is too old.
    Stale,
}

impl Forward {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Forward::Bypass => "bypass",
            Forward::Method => "method",
            Forward::UriMiss => "uri-miss",
            Forward::VaryMiss => "vary-miss",
            Forward::Request => "request",
            Forward::Stale => "stale",
        }
    }
}

impl Reused for Note {
    const UNUSED: &'static Note = &Note {
        result: None,
        age_seconds: None,
        status: Vec::new(),
        unsafe_request: Vec::new(),
        passing: None,
        is_covered: false,
    };

    fn clear(&mut self) {
        self.result = None;
        self.age_seconds = None;
        self.unsafe_request.clear();
        self.passing = None;
        self.is_covered = false;
        self.status.clear();
    }
}

impl Note {
    /// Answered from memory; `ttl_seconds` is how long it is still fresh, below zero where it is not.
    pub fn hit(&mut self, result: CacheResult, age_seconds: u64, ttl_seconds: i64) {
        self.result = Some(result);
        self.age_seconds = Some(age_seconds);
        self.status.clear();
        self.status.extend_from_slice(b"weir; hit; ttl=");
        if ttl_seconds < 0 {
            self.status.push(b'-');
        }
        encode_decimal(&mut self.status, ttl_seconds.unsigned_abs());
    }

    /// Went on to a backend.
    pub fn forwarded(&mut self, result: CacheResult, why: Forward) {
        self.result = Some(result);
        self.age_seconds = None;
        self.status.clear();
        self.status.extend_from_slice(b"weir; fwd=");
        self.status.extend_from_slice(why.word().as_bytes());
    }

    /// What the backend answered.
    pub fn answered(&mut self, status: u16) {
        self.status.extend_from_slice(b"; fwd-status=");
        encode_decimal(&mut self.status, u64::from(status));
    }

    /// A parameter without a value, `stored` or `collapsed`.
    pub fn flag(&mut self, name: &str) {
        self.status.extend_from_slice(b"; ");
        self.status.extend_from_slice(name.as_bytes());
    }

    /// The reason, in a word of the policy.
    pub fn detail(&mut self, word: &str) {
        self.status.extend_from_slice(b"; detail=");
        self.status.extend_from_slice(word.as_bytes());
    }

    /// What the response says of it; `None` on routes without a cache.
    #[inline]
    pub fn fields(&self) -> Option<CacheFields<'_>> {
        self.result.map(|_| CacheFields { age_seconds: self.age_seconds, status: &self.status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(note: &Note) -> &str {
        std::str::from_utf8(note.fields().unwrap().status).unwrap()
    }

    #[test]
    fn the_field_reads_as_rfc_9211_has_it() {
        let mut note = Note::default();
        assert_eq!(note.fields(), None);
        note.forwarded(CacheResult::Miss, Forward::UriMiss);
        note.answered(200);
        note.flag("stored");
        assert_eq!(status(&note), "weir; fwd=uri-miss; fwd-status=200; stored");
        note.hit(CacheResult::Stale, 70, -10);
        assert_eq!(status(&note), "weir; hit; ttl=-10");
        assert_eq!(note.fields().unwrap().age_seconds, Some(70));
        note.clear();
        assert_eq!(note.fields(), None);
    }
}
