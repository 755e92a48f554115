//! **Decides whether the cache may answer a request, and whether it may store a response.**
//!
//! This crate is the policy of a shared HTTP cache (RFC 9111) and the store behind it. The policy takes heads
//! that [`weir_http`] has read, what the operator asked for ([`Rules`]), and the time, and answers with a
//! verdict and its reason; it never does I/O, reads a clock, draws randomness, or parses bytes of its own.
//! The store is shared by all threads without a global lock.
//!
//! Where to start reading: [`admits`] says whether the cache may answer a request at all, [`KeyBuffer`]
//! builds its key, [`Store::get`] looks it up, and [`reuse`] says whether the object found may answer.
//! [`judge_response`] says whether a response may be stored, and leads to the stored [`Object`].
//! [`conditional`], [`range`] and [`heads`] turn a whole response into a 304, a 206 or a 416. [`freshen`]
//! updates an object by a 304 from the origin, [`invalidates`] handles unsafe methods, and [`unkept`] answers
//! that are not stored.
#![forbid(unsafe_code)]

mod conditional;
mod cookies;
mod freshen;
mod freshness;
pub mod heads;
mod invalidation;
mod key;
mod object;
mod query;
mod request;
mod response;
mod reuse;
mod rules;
mod store;
mod tags;
mod unkept;
mod variants;
mod weight;

pub use conditional::{Conditional, Part, Validators, conditional, range, validators};
pub use freshen::{Freshened, Mismatch, freshen};
pub use freshness::{Freshness, Source, Times};
pub use invalidation::{Target, invalidated, invalidates};
pub use key::{KeyBuffer, KeyParts, KeySource};
pub use object::{Body, Object};
pub use request::{Bypass, RequestFacts, admits};
pub use response::{Exchange, NotStored, Storing, judge_response};
pub use reuse::{
    Reuse, Why, is_server_error, may_serve_on_error, outlasts_error, reuse, reuse_coming, ttl_seconds,
};
pub use rules::{Pattern, QueryRule, Rules, SetCookie};
pub use store::{Lookup, Purge, PurgeSequence, Refused, Store};
pub use unkept::{Crowd, Unkept, unkept};
pub use weir_http::values::accept_encoding::Coding;

#[cfg(test)]
mod tests {
    //! Helpers of this crate's tests.

    use std::time::Duration;

    use bytes::Bytes;
    use weir_http::values::cache_control::RequestDirectives;
    use weir_http::{Limits, Method, Progress, RequestHead, ResponseHead, parse_request, parse_response};

    use crate::{Body, Exchange, Object, RequestFacts, Rules, Times, judge_response};

    /// 2026-11-22 00:00:00, when the other clock is at 1000 seconds.
    pub const WALL: u64 = 1_795_305_600;

    pub fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// An exchange that took no time.
    pub fn exchange_at(now: u64) -> Exchange {
        let times = Times { now: seconds(now), wall_seconds: (WALL + now).saturating_sub(1000) };
        Exchange { asked_at: seconds(now), times }
    }

    /// A request of these lines, without the empty one.
    pub fn request(lines: &str) -> (RequestHead, Vec<u8>) {
        let (mut head, buffer) = (RequestHead::new(), format!("{lines}\r\n").into_bytes());
        let parsed = parse_request(&buffer, &Limits::default(), &mut head);
        assert!(matches!(parsed, Ok(Progress::Complete { .. })), "{lines}: {parsed:?}");
        (head, buffer)
    }

    /// A response of these lines, without the empty one.
    pub fn response(lines: &str) -> (ResponseHead, Vec<u8>) {
        let (mut head, buffer) = (ResponseHead::new(), format!("{lines}\r\n").into_bytes());
        let parsed = parse_response(&buffer, &Limits::default(), Method::Get, &mut head);
        assert!(matches!(parsed, Ok(Progress::Complete { .. })), "{lines}: {parsed:?}");
        (head, buffer)
    }

    /// A GET with this `cache-control`.
    pub fn facts(cache_control: &str) -> RequestFacts {
        let directives = RequestDirectives::of(std::iter::once(cache_control.as_bytes()));
        RequestFacts { directives, ..RequestFacts::default() }
    }

    /// "0123456789" as a 200 with these field lines, which came at second 1000.
    pub fn object(lines: &str) -> Object {
        object_by(&Rules::default(), lines)
    }

    pub fn object_by(rules: &Rules, lines: &str) -> Object {
        let (head, buffer) = response(&format!("HTTP/1.1 200 OK\r\n{lines}"));
        let storing = judge_response(&facts(""), &head, &buffer, rules, exchange_at(1000)).unwrap();
        storing.object(&head, &buffer, Body::from(Bytes::from_static(b"0123456789"))).unwrap()
    }
}
