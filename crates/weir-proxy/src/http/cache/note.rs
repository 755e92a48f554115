//! What each response says about the cache: `cache-status` (RFC 9211), `age`, and the result in the access
//! log.

use weir_cache::RequestFacts;
use weir_http::{CacheFields, encode_decimal};
use weir_stats::table::CacheResult;

use crate::seldom::Reused;

/// How the cache handled one request.
#[derive(Default)]
pub struct Note {
    /// The result for the access log and the counters; `None` on routes without a cache.
    pub result: Option<CacheResult>,
    /// The object's age, if one was sent.
    pub age_seconds: Option<u64>,
    /// Value of `cache-status`.
    status: Vec<u8>,
    /// The head of an unsafe request, whose success invalidates stored responses of its URI; empty for
    /// others.
    pub unsafe_request: Vec<u8>,
    /// Set for a request that bypasses the cache although such requests may be answered from it: the answer
    /// shows whether others have to bypass it.
    pub passing: Option<RequestFacts>,
    /// Whether a stored response exists that the client would get in place of an error.
    pub is_covered: bool,
}

/// Why a request was forwarded to a backend: `fwd` of RFC 9211 §2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// The cache does not handle such requests.
    Bypass,
    /// The cache does not handle this method.
    Method,
    /// No response for this URI is stored.
    UriMiss,
    /// Responses are stored, but for other values of the fields that they vary by.
    VaryMiss,
    /// The client wants it revalidated.
    Request,
    /// The stored response is stale.
    Stale,
}

impl Forward {
    /// The token for `fwd`.
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
    /// Notes an answer from memory; `ttl_seconds` is how long it is still fresh, negative if it is stale.
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

    /// Notes that the request was forwarded to a backend.
    pub fn forwarded(&mut self, result: CacheResult, why: Forward) {
        self.result = Some(result);
        self.age_seconds = None;
        self.status.clear();
        self.status.extend_from_slice(b"weir; fwd=");
        self.status.extend_from_slice(why.word().as_bytes());
    }

    /// Notes the status of the backend's answer.
    pub fn answered(&mut self, status: u16) {
        self.status.extend_from_slice(b"; fwd-status=");
        encode_decimal(&mut self.status, u64::from(status));
    }

    /// Adds a parameter without a value, `stored` or `collapsed`.
    pub fn flag(&mut self, name: &str) {
        self.status.extend_from_slice(b"; ");
        self.status.extend_from_slice(name.as_bytes());
    }

    /// Adds the reason, in a word of `weir-cache`.
    pub fn detail(&mut self, word: &str) {
        self.status.extend_from_slice(b"; detail=");
        self.status.extend_from_slice(word.as_bytes());
    }

    /// The cache fields of the response; `None` on routes without a cache.
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
