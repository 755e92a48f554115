//! Decides whether a response may be stored (RFC 9111 §3).

use std::time::Duration;

use weir_http::values::cache_control::Scope;
use weir_http::values::vary::Vary;
use weir_http::{KnownHeader, ResponseHead};

use crate::freshness::{Freshness, Said, Times, is_heuristic, is_negative};
use crate::heads::{self, Kept};
use crate::object::{Body, Object};
use crate::request::RequestFacts;
use crate::rules::{Rules, SetCookie};
use crate::tags;
use crate::variants;

/// When a response was requested, and when its head arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// When the request was sent, by the monotonic clock.
    pub asked_at: Duration,
    /// When the head of the response arrived.
    pub times: Times,
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotStored {
    /// The request was not a GET.
    Method,
    /// The request said `no-store`.
    RequestNoStore,
    /// The response said `no-store`, or something malformed in `cache-control`.
    NoStore,
    /// `private`
    Private,
    /// Its request had `authorization`, and the response does not allow sharing (RFC 9111 §3.5).
    Authorization,
    /// It sets a cookie.
    SetCookie,
    /// It varies by something that clients' request fields don't show, or by too many fields.
    Vary,
    /// It is partial (206).
    Partial,
    /// Its status describes the request rather than the resource, or is unknown.
    Status,
    /// Nothing says how long it is fresh.
    NoLifetime,
    /// It is never fresh, and has no validator.
    Stale,
    /// Its content is larger than the operator allows.
    TooLarge,
    /// Its head cannot be stored.
    Head,
}

/// A response that may be stored once its content has arrived.
#[derive(Clone, Debug)]
pub struct Storing {
    freshness: Freshness,
    vary: Vary,
    tags: Box<[u64]>,
    kept: Kept,
    answered: Times,
    is_late: bool,
}

impl Storing {
    /// For a response that was stored but is only forwarded now, not stored again.
    pub(crate) fn of_stale(freshness: Freshness, exchange: Exchange) -> Storing {
        let freshness = freshness.begun_at(exchange.times.now);
        let (vary, tags, kept) = (Vary::Nothing, Box::default(), Kept::default());
        Storing { freshness, vary, tags, kept, answered: exchange.times, is_late: false }
    }

    /// The request fields that selected it.
    pub fn vary(&self) -> &Vary {
        &self.vary
    }

    /// How long it is fresh.
    pub fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// Whether it is stale already (the fetch took longer than its lifetime, or it was old before) and has no
    /// validator. It is not to be stored, but requests that wait for it may have it: they asked before it was
    /// generated (RFC 9111 §4).
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Whether the response keeps some of its fields from caches (`no-cache="set-cookie"`, RFC 9111
    /// §5.2.2.4): only the client that caused the fetch gets those.
    pub fn withholds(&self) -> bool {
        !self.kept.withheld.is_empty()
    }

    /// The stored response. `head` and `buffer` are those that were judged, `body` is the whole content.
    ///
    /// # Errors
    /// `Head`: it contains something that Weir would not send.
    pub fn object(self, head: &ResponseHead, buffer: &[u8], body: Body) -> Result<Object, NotStored> {
        let (head, text) = heads::kept(head, buffer, &self.kept, body.len(), self.answered.wall_seconds)
            .ok_or(NotStored::Head)?;
        Ok(Object::new(head, text, self.freshness, self.tags, body))
    }
}

/// Whether a response may be stored, judged by its head. O(fields); allocates for the names in `vary`, tags
/// and withheld fields.
///
/// # Errors
/// The response must only be forwarded.
pub fn judge_response(
    request: &RequestFacts,
    head: &ResponseHead,
    buffer: &[u8],
    rules: &Rules,
    exchange: Exchange,
) -> Result<Storing, NotStored> {
    if request.directives.no_store {
        return Err(NotStored::RequestNoStore);
    }
    if !request.may_store() {
        return Err(NotStored::Method);
    }
    let said = Said::by(head, buffer);
    may_be_shared(request, head, buffer, rules, &said)?;
    let storing = assess(head, buffer, rules, &said, exchange)?;
    if head.declared_length().is_some_and(|length| length > rules.object_max_bytes) {
        return Err(NotStored::TooLarge);
    }
    Ok(storing)
}

/// Whether the response allows other clients to have it.
pub(crate) fn may_be_shared(
    request: &RequestFacts,
    head: &ResponseHead,
    buffer: &[u8],
    rules: &Rules,
    said: &Said,
) -> Result<(), NotStored> {
    let (status, directives) = (head.status(), &said.directives);
    if status == 206 || head.value(KnownHeader::ContentRange, buffer).is_some() {
        return Err(NotStored::Partial);
    }
    if !is_kept(status) {
        return Err(NotStored::Status);
    }
    //= https://www.rfc-editor.org/rfc/rfc9111#section-5.2.2.3
    //# The must-understand response directive limits caching of the response
    //# to a cache that understands and conforms to the requirements for that
    //# response's status code.
    // All statuses that get here are understood.
    if directives.no_store && !directives.must_understand {
        return Err(NotStored::NoStore);
    }
    if directives.private == Scope::Whole {
        return Err(NotStored::Private);
    }
    //= https://www.rfc-editor.org/rfc/rfc9111#section-3.5
    //# A shared cache MUST NOT use a cached response to a request with an
    //# Authorization header field (Section 11.6.2 of [HTTP]) to satisfy any
    //# subsequent request unless the response contains a Cache-Control field
    //# with a response directive (Section 5.2.2) that allows it to be stored
    //# by a shared cache, and the cache conforms to the requirements of that
    //# directive for that response.
    let for_all = directives.public || directives.s_maxage.is_some() || directives.must_revalidate;
    if request.authorization && !for_all {
        return Err(NotStored::Authorization);
    }
    if rules.set_cookie == SetCookie::Refuse && sets_cookie(head, buffer, &directives.withheld) {
        return Err(NotStored::SetCookie);
    }
    Ok(())
}

/// Whether it has a `set-cookie` that it does not itself keep from caches (`no-cache="set-cookie"`).
fn sets_cookie(head: &ResponseHead, buffer: &[u8], withheld: &[Box<[u8]>]) -> bool {
    head.value(KnownHeader::SetCookie, buffer).is_some()
        && !withheld.iter().any(|name| **name == *b"set-cookie")
}

/// Statuses that describe the resource. Any other 4xx describes the request, and anybody can send a request
/// that is refused (threat E1).
fn is_kept(status: u16) -> bool {
    is_heuristic(status) || matches!(status, 302 | 303 | 307 | 403 | 451 | 500 | 502 | 503 | 504)
}

/// What to store, and for how long. Also for an object updated by a 304.
pub(crate) fn assess(
    head: &ResponseHead,
    buffer: &[u8],
    rules: &Rules,
    said: &Said,
    exchange: Exchange,
) -> Result<Storing, NotStored> {
    let vary = match Vary::of(head.values(KnownHeader::Vary, buffer)) {
        Vary::Anything => return Err(NotStored::Vary),
        Vary::Names(names) if !variants::can_tell(&names) => return Err(NotStored::Vary),
        vary => vary,
    };
    let freshness = Freshness::of(head, buffer, said, rules, exchange.asked_at, exchange.times);
    let directives = &said.directives;
    let status = head.status();
    let has_lifetime = said.has_lifetime(head, buffer);
    let asks_to_validate = directives.no_cache == Scope::Whole;
    // `public` alone, without any lifetime, is no reason to store what could never be used.
    let guessed = freshness.lifetime() > Duration::ZERO;
    if !has_lifetime && !guessed && (!asks_to_validate || is_negative(status)) {
        return Err(NotStored::NoLifetime);
    }
    let is_stale = freshness.age(exchange.times.now) >= freshness.lifetime() || freshness.always_validate;
    let windows = freshness.stale_while_revalidate().max(freshness.stale_if_error());
    let has_validator =
        head.value(KnownHeader::Etag, buffer).is_some() || freshness.last_modified_seconds.is_some();
    let is_useless = is_stale && !has_validator && windows.is_zero();
    // A response that is never fresh, by its own directives, is not meant to be shared.
    if is_useless && (freshness.always_validate || !guessed) {
        return Err(NotStored::Stale);
    }
    let kept = Kept { withheld: directives.withheld.clone().into_boxed_slice() };
    let tags = tags::of(head, buffer);
    Ok(Storing { freshness, vary, tags, kept, answered: exchange.times, is_late: is_useless })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freshness::Source;
    use crate::tests::{exchange_at, facts, response, seconds};

    fn judged(lines: &str, rules: &Rules) -> Result<Storing, NotStored> {
        let (head, buffer) = response(&format!("HTTP/1.1 {lines}"));
        judge_response(&facts(""), &head, &buffer, rules, exchange_at(1000))
    }

    fn of(lines: &str) -> Result<(Duration, Source), NotStored> {
        judged(lines, &Rules::default())
            .map(|storing| (storing.freshness.lifetime(), storing.freshness.source))
    }

    #[test]
    fn a_lifetime_comes_from_the_most_particular_source() {
        let ok = |lines: &str| of(&format!("200 OK\r\n{lines}"));
        let date = "date: Sun, 22 Nov 2026 00:00:00 GMT\r\n";
        let expires = format!("{date}expires: Sun, 22 Nov 2026 00:05:00 GMT\r\n");
        assert_eq!(ok("cache-control: max-age=60, s-maxage=10\r\n"), Ok((seconds(10), Source::SharedMaxAge)));
        assert_eq!(ok(&format!("{expires}cache-control: max-age=60\r\n")), Ok((seconds(60), Source::MaxAge)));
        assert_eq!(ok(&expires), Ok((seconds(300), Source::Expires)));
        assert_eq!(
            ok(&format!("{date}last-modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n")),
            Ok((seconds(8640), Source::Heuristic))
        );
        assert_eq!(
            ok(&format!("{date}last-modified: Sat, 21 Nov 2009 00:00:00 GMT\r\n")),
            Ok((seconds(86_400), Source::Heuristic))
        );
        assert_eq!(ok(date), Err(NotStored::NoLifetime));
        assert_eq!(ok("cache-control: public\r\n"), Err(NotStored::NoLifetime));
        assert_eq!(
            ok("cache-control: no-store\r\ncdn-cache-control: max-age=7\r\nexpires: 0\r\n"),
            Ok((seconds(7), Source::Targeted))
        );
        // RFC 9213 section 2.2: one that cannot be parsed is not there.
        assert_eq!(
            ok("cache-control: max-age=60\r\ncdn-cache-control: max-age=\r\n"),
            Ok((seconds(60), Source::MaxAge))
        );
        assert_eq!(
            ok("cache-control: max-age=60\r\ncdn-cache-control: no-store\r\n"),
            Err(NotStored::NoStore)
        );
    }

    /// Threat E8.
    #[test]
    fn freshness_that_cannot_be_read_is_none() {
        for lines in [
            "expires: 0\r\n",
            "expires: -1\r\n",
            "expires: tomorrow\r\n",
            "expires: Sun, 22 Nov 2026 00:05:00 GMT\r\nexpires: 0\r\n",
            "cache-control: max-age=x\r\n",
            "cache-control: max-age=60, max-age=0\r\n",
        ] {
            assert_eq!(of(&format!("200 OK\r\n{lines}")), Err(NotStored::Stale), "{lines}");
        }
        assert_eq!(of("200 OK\r\ncache-control: max-age=60; private\r\n"), Err(NotStored::NoStore));
        // RFC 9111 section 5.1: an age that cannot be read is ignored.
        assert!(of("200 OK\r\ncache-control: max-age=60\r\nage: x\r\n").is_ok());
    }

    #[test]
    fn what_is_out_of_date_when_it_comes_is_for_those_who_wait_for_it() {
        let is_late = |lines: &str, took: u64| {
            let (head, buffer) = response(&format!("HTTP/1.1 200 OK\r\n{lines}"));
            let exchange = Exchange { asked_at: seconds(1000 - took), ..exchange_at(1000) };
            judge_response(&facts(""), &head, &buffer, &Rules::default(), exchange)
                .map(|storing| storing.is_late())
        };
        let of = |lines: &str| is_late(lines, 0);
        assert_eq!(of("cache-control: max-age=60\r\nage: 59\r\n"), Ok(false));
        assert_eq!(of("cache-control: max-age=60\r\nage: 60\r\n"), Ok(true));
        let dated = "cache-control: max-age=60\r\ndate: Sat, 21 Nov 2026 23:00:00 GMT\r\n";
        assert_eq!(of(dated), Ok(true));
        assert_eq!(is_late("cache-control: s-maxage=2\r\n", 1), Ok(false));
        assert_eq!(is_late("cache-control: s-maxage=2\r\n", 2), Ok(true));
        // It may still answer, or be validated.
        assert_eq!(is_late("cache-control: max-age=2, stale-if-error=9\r\n", 2), Ok(false));
        assert_eq!(is_late("cache-control: max-age=2\r\netag: \"a\"\r\n", 2), Ok(false));
        for never in ["max-age=0", "no-cache", "no-cache, max-age=2"] {
            let lines = format!("cache-control: {never}\r\n");
            assert_eq!(is_late(&lines, 2), Err(NotStored::Stale), "{never}");
        }
    }

    #[test]
    fn the_operators_lifetimes_count_from_when_the_answer_came() {
        let rules = Rules {
            ttl: Some(seconds(1)),
            ttl_max: Some(seconds(3)),
            negative_ttl: Some(seconds(2)),
            ..Rules::default()
        };
        // The remaining lifetime and the `age` value after this many seconds, for an answer that took five.
        let of = |lines: &str, after: u64| {
            let (head, buffer) = response(&format!("HTTP/1.1 {lines}"));
            let exchange = Exchange { asked_at: seconds(995), ..exchange_at(1000) };
            let fresh = judge_response(&facts(""), &head, &buffer, &rules, exchange).unwrap().freshness;
            let age = fresh.age(seconds(1000 + after));
            (fresh.lifetime().saturating_sub(age).as_secs(), age.as_secs())
        };
        assert_eq!(of("200 OK\r\n", 0), (1, 5));
        assert_eq!(of("200 OK\r\n", 1), (0, 6));
        assert_eq!(of("404 Not Found\r\n", 0), (2, 5));
        assert_eq!(of("200 OK\r\ncache-control: max-age=60\r\n", 0), (3, 5));
        // The origin's own lifetimes count from when the request was sent.
        assert_eq!(of("200 OK\r\ncache-control: max-age=7\r\n", 0), (2, 5));
        // A date does not matter here; it is in whole seconds of another clock.
        assert_eq!(of("200 OK\r\ndate: Sat, 21 Nov 2026 23:00:00 GMT\r\n", 0), (1, 3600));
    }

    /// Threats E3 and E4.
    #[test]
    fn what_is_not_for_all_is_not_kept() {
        let fresh = "cache-control: max-age=60\r\n";
        for (lines, reason) in [
            ("cache-control: no-store\r\n", NotStored::NoStore),
            ("cache-control: private\r\n", NotStored::Private),
            ("set-cookie: a=b\r\n", NotStored::SetCookie),
            ("vary: *\r\n", NotStored::Vary),
            ("vary: accept\r\nvary: *\r\n", NotStored::Vary),
            ("vary: a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q\r\n", NotStored::Vary),
            ("vary: accept, X-Forwarded-For\r\n", NotStored::Vary),
            ("vary: client-cert\r\n", NotStored::Vary),
            ("content-length: 16777217\r\n", NotStored::TooLarge),
            ("content-range: bytes 0-1/2\r\n", NotStored::Partial),
        ] {
            assert_eq!(of(&format!("200 OK\r\n{fresh}{lines}")), Err(reason), "{lines}");
        }
        let strip = Rules { set_cookie: SetCookie::Strip, ..Rules::default() };
        assert!(judged(&format!("200 OK\r\n{fresh}set-cookie: a=b\r\n"), &strip).is_ok());
        assert!(
            of("200 OK\r\ncache-control: max-age=60, no-cache=\"set-cookie\"\r\nset-cookie: a=b\r\n").is_ok()
        );
        assert!(of("200 OK\r\ncache-control: max-age=60, no-store, must-understand\r\n").is_ok());
    }

    #[test]
    fn statuses_are_kept_that_say_something_of_what_was_asked_for() {
        let kept = |status: u16, lines: &str| of(&format!("{status} x\r\n{lines}"));
        let fresh = "cache-control: max-age=60\r\n";
        for status in [
            200, 203, 204, 300, 301, 302, 303, 307, 308, 403, 404, 405, 410, 414, 451, 500, 501, 502, 503,
            504,
        ] {
            assert!(kept(status, fresh).is_ok(), "{status}");
        }
        assert_eq!(kept(206, fresh), Err(NotStored::Partial));
        // Threat E1: the response to a malicious request must not answer others.
        for status in [
            201, 202, 299, 304, 400, 401, 402, 406, 407, 408, 411, 412, 413, 415, 416, 417, 421, 422, 425,
            426, 428, 429, 431, 505, 599,
        ] {
            assert_eq!(kept(status, fresh), Err(NotStored::Status), "{status}");
        }
    }

    #[test]
    fn what_says_nothing_is_kept_as_the_operator_says() {
        let rules = Rules {
            ttl: Some(seconds(60)),
            negative_ttl: Some(seconds(5)),
            ttl_max: Some(seconds(100)),
            ..Rules::default()
        };
        let of = |lines: &str| {
            judged(lines, &rules).map(|storing| (storing.freshness.lifetime(), storing.freshness.source))
        };
        for status in [200, 203, 204, 300, 301, 308] {
            assert_eq!(of(&format!("{status} x\r\n")), Ok((seconds(60), Source::Ttl)), "{status}");
        }
        for status in [404, 405, 410, 414, 501] {
            assert_eq!(of(&format!("{status} x\r\n")), Ok((seconds(5), Source::NegativeTtl)), "{status}");
        }
        for status in [302, 303, 307, 403, 500, 502, 503, 504] {
            assert_eq!(of(&format!("{status} x\r\n")), Err(NotStored::NoLifetime), "{status}");
        }
        assert_eq!(of("404 x\r\ncache-control: max-age=7\r\n"), Ok((seconds(7), Source::MaxAge)));
        assert_eq!(of("200 OK\r\ncache-control: max-age=1000\r\n"), Ok((seconds(100), Source::MaxAge)));
        assert_eq!(judged("404 x\r\n", &Rules::default()).err(), Some(NotStored::NoLifetime));
    }

    #[test]
    fn what_cannot_be_used_without_the_origin_is_kept_only_with_something_to_ask_by() {
        assert_eq!(of("200 OK\r\ncache-control: no-cache\r\n"), Err(NotStored::Stale));
        assert!(of("200 OK\r\ncache-control: no-cache\r\netag: \"a\"\r\n").is_ok());
        assert!(
            of("200 OK\r\ncache-control: max-age=0\r\nlast-modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n")
                .is_ok()
        );
        assert!(of("200 OK\r\ncache-control: max-age=0, stale-while-revalidate=5\r\n").is_ok());
    }

    #[test]
    fn a_response_to_an_authorized_request_says_that_all_may_have_it() {
        let judge = |said: &str| {
            let (head, buffer) = response(&format!("HTTP/1.1 200 OK\r\ncache-control: max-age=60{said}\r\n"));
            let request = RequestFacts { authorization: true, ..facts("") };
            judge_response(&request, &head, &buffer, &Rules::default(), exchange_at(1000)).err()
        };
        assert_eq!(judge(""), Some(NotStored::Authorization));
        for said in [", public", ", s-maxage=60", ", must-revalidate"] {
            assert_eq!(judge(said), None, "{said}");
        }
    }

    #[test]
    fn a_request_can_forbid_keeping_the_response() {
        let (head, buffer) = response("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n");
        let judge =
            |request| judge_response(&request, &head, &buffer, &Rules::default(), exchange_at(0)).err();
        assert_eq!(judge(facts("no-store")), Some(NotStored::RequestNoStore));
        let head_request = RequestFacts { method: weir_http::Method::Head, ..facts("") };
        assert_eq!(judge(head_request), Some(NotStored::Method));
    }

    #[test]
    fn the_age_is_what_the_rfc_reckons() {
        let age = |lines: &str, asked_at, came_at| {
            let (head, buffer) =
                response(&format!("HTTP/1.1 200 OK\r\ncache-control: max-age=1000\r\n{lines}"));
            let exchange = Exchange { asked_at: seconds(asked_at), ..exchange_at(came_at) };
            let storing = judge_response(&facts(""), &head, &buffer, &Rules::default(), exchange).unwrap();
            storing.freshness.age(seconds(came_at + 5)).as_secs()
        };
        assert_eq!(age("", 1000, 1000), 5);
        // The time that the response took counts.
        assert_eq!(age("", 990, 1000), 15);
        assert_eq!(age("age: 20\r\n", 990, 1000), 35);
        // The wall clock is at 2026-11-22 00:00:00 when the monotonic one is at 1000.
        assert_eq!(age("date: Sat, 21 Nov 2026 23:59:00 GMT\r\nage: 20\r\n", 990, 1000), 65);
        // A date in the future gives no age.
        assert_eq!(age("date: Sun, 22 Nov 2026 00:01:00 GMT\r\n", 1000, 1000), 5);
    }
}
