//! Conditional and range requests that the cache answers (RFC 9110 §13, §14; RFC 9111 §4.3.2).

use weir_http::values::entity_tag::{self, EntityTag};
use weir_http::values::http_date;
use weir_http::values::range::{ByteRange, Resolved};
use weir_http::{KnownHeader, Method, RequestHead};

use crate::object::Object;

/// The answer to a conditional request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditional {
    /// 304: the client's copy is still valid. See [`crate::heads::not_modified`].
    NotModified,
    /// The whole response.
    Whole,
}

/// The answer to a range request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole response.
    Whole,
    /// 206: see [`crate::heads::partial`].
    Part {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// 416: see [`crate::heads::unsatisfiable`].
    Unsatisfiable,
}

/// The conditions for asking the origin whether an object is still valid (RFC 9111 §4.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validators<'a> {
    /// Value of `if-none-match`.
    pub if_none_match: Option<&'a [u8]>,
    /// Value of `if-modified-since`.
    pub if_modified_since: Option<&'a [u8]>,
}

impl Validators<'_> {
    /// Whether there is no validator at all.
    pub fn is_empty(&self) -> bool {
        self.if_none_match.is_none() && self.if_modified_since.is_none()
    }
}

/// The validators of an object, without those that cannot be parsed.
pub fn validators(object: &Object) -> Validators<'_> {
    let value = |known| object.head().value(known, object.text());
    Validators {
        if_none_match: value(KnownHeader::Etag).filter(|text| EntityTag::parse(text).is_some()),
        if_modified_since: object
            .freshness()
            .last_modified_seconds
            .and_then(|_| value(KnownHeader::LastModified)),
    }
}

fn tag(object: &Object) -> Option<EntityTag<'_>> {
    object.head().value(KnownHeader::Etag, object.text()).and_then(EntityTag::parse)
}

/// Whether the client already has a valid copy of the object. `wall_seconds` is the time since the epoch.
/// O(length of the conditions), does not allocate.
pub fn conditional(object: &Object, head: &RequestHead, buffer: &[u8], wall_seconds: u64) -> Conditional {
    // RFC 9110 §13.2.1: conditions are ignored where the answer without them would not be a success.
    if !(200..300).contains(&object.status()) {
        return Conditional::Whole;
    }
    let answer = |holds| if holds { Conditional::NotModified } else { Conditional::Whole };
    //= https://www.rfc-editor.org/rfc/rfc9110#section-13.1.3
    //# A recipient MUST ignore If-Modified-Since if the request contains an
    //# If-None-Match header field
    if head.value(KnownHeader::IfNoneMatch, buffer).is_some() {
        return answer(entity_tag::names(head.values(KnownHeader::IfNoneMatch, buffer), tag(object)));
    }
    let mut since = head.values(KnownHeader::IfModifiedSince, buffer);
    let (Some(text), None) = (since.next(), since.next()) else { return Conditional::Whole };
    let Some(since) = http_date::parse(text, wall_seconds) else { return Conditional::Whole };
    //= https://www.rfc-editor.org/rfc/rfc9111#section-4.3.2
    //# If a request contains an If-Modified-Since header field and the Last-
    //# Modified header field is not present in a stored response, a cache
    //# SHOULD use the stored response's Date field value (or, if no Date
    //# field is present, the time that the stored response was received) to
    //# evaluate the conditional.
    let fresh = object.freshness();
    answer(fresh.last_modified_seconds.unwrap_or(fresh.date_seconds) <= since)
}

/// The part of the object that the client asks for. Call it after [`conditional`] has returned `Whole`. O(1),
/// does not allocate.
pub fn range(object: &Object, head: &RequestHead, buffer: &[u8], wall_seconds: u64) -> Part {
    // RFC 9110 §14.2: ranges apply to GET only, and here to 200 responses only.
    if head.method() != Method::Get || object.status() != 200 {
        return Part::Whole;
    }
    let mut lines = head.values(KnownHeader::Range, buffer);
    let (Some(text), None) = (lines.next(), lines.next()) else { return Part::Whole };
    let Some(asked) = ByteRange::parse(text) else { return Part::Whole };
    if !same_as_before(object, head, buffer, wall_seconds) {
        return Part::Whole;
    }
    match asked.of(object.body().len()) {
        Resolved::Part { start, end } => Part::Part { start, end },
        Resolved::Unsatisfiable => Part::Unsatisfiable,
    }
}

/// Whether the client's parts belong to this very content: `if-range` (RFC 9110 §13.1.5).
fn same_as_before(object: &Object, head: &RequestHead, buffer: &[u8], wall_seconds: u64) -> bool {
    let mut lines = head.values(KnownHeader::IfRange, buffer);
    let Some(text) = lines.next() else { return true };
    if lines.next().is_some() {
        return false;
    }
    if let Some(asked) = EntityTag::parse(text) {
        return tag(object).is_some_and(|tag| tag.same_strongly(&asked));
    }
    //= https://www.rfc-editor.org/rfc/rfc9110#section-13.1.5
    //# *  If the HTTP-date validator provided is not a strong validator in
    //# the sense defined by Section 8.8.2.2, the condition is false.
    //#
    //# *  If the HTTP-date validator provided exactly matches the Last-
    //# Modified field value for the selected representation, the
    //# condition is true.
    let fresh = object.freshness();
    let Some(modified) = fresh.last_modified_seconds else { return false };
    let strong = modified + 60 <= fresh.date_seconds;
    strong && http_date::parse(text, wall_seconds) == Some(modified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{WALL, object, request};

    const TAGGED: &str =
        "cache-control: max-age=60\r\netag: \"a\"\r\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";

    fn condition(response: &str, lines: &str) -> Conditional {
        let (head, buffer) = request(&format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}"));
        conditional(&object(response), &head, &buffer, WALL)
    }

    /// The range of "0123456789".
    fn part(response: &str, lines: &str) -> Part {
        let (head, buffer) = request(&format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}"));
        range(&object(response), &head, &buffer, WALL)
    }

    #[test]
    fn a_client_with_the_same_tag_gets_a_304() {
        for (lines, expected) in [
            ("if-none-match: \"a\"\r\n", Conditional::NotModified),
            ("if-none-match: W/\"a\"\r\n", Conditional::NotModified),
            ("if-none-match: \"b\", \"a\"\r\n", Conditional::NotModified),
            ("if-none-match: *\r\n", Conditional::NotModified),
            ("if-none-match: \"b\"\r\n", Conditional::Whole),
            ("if-none-match: a\r\n", Conditional::Whole),
            ("if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", Conditional::NotModified),
            ("if-modified-since: Sun, 06 Nov 1994 08:49:36 GMT\r\n", Conditional::Whole),
            ("if-modified-since: yesterday\r\n", Conditional::Whole),
            // The tag alone counts where there is one.
            (
                "if-none-match: \"b\"\r\nif-modified-since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
                Conditional::Whole,
            ),
            (
                "if-none-match: \"a\"\r\nif-modified-since: Sun, 06 Nov 1994 08:49:36 GMT\r\n",
                Conditional::NotModified,
            ),
            ("", Conditional::Whole),
        ] {
            assert_eq!(condition(TAGGED, lines), expected, "{lines}");
        }
    }

    #[test]
    fn without_a_date_of_change_the_date_counts() {
        let dated =
            "cache-control: max-age=60\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\nage: 0\r\nexpires: 0\r\n";
        let stored = format!("{dated}stale-x: 1\r\n").replace("max-age=60", "max-age=2147483648");
        assert_eq!(
            condition(&stored, "if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT\r\n"),
            Conditional::NotModified
        );
        assert_eq!(
            condition(&stored, "if-modified-since: Sun, 06 Nov 1994 08:49:36 GMT\r\n"),
            Conditional::Whole
        );
    }

    #[test]
    fn one_range_is_a_part_and_everything_else_the_whole() {
        for (lines, expected) in [
            ("range: bytes=2-4\r\n", Part::Part { start: 2, end: 5 }),
            ("range: bytes=-3\r\n", Part::Part { start: 7, end: 10 }),
            ("range: bytes=10-\r\n", Part::Unsatisfiable),
            ("range: bytes=0-1,3-4\r\n", Part::Whole),
            ("range: bytes=0-1\r\nrange: bytes=3-4\r\n", Part::Whole),
            ("range: rows=0-1\r\n", Part::Whole),
            ("", Part::Whole),
        ] {
            assert_eq!(part(TAGGED, lines), expected, "{lines}");
        }
        let (head, buffer) = request("HEAD / HTTP/1.1\r\nhost: a\r\nrange: bytes=2-4\r\n");
        assert_eq!(range(&object(TAGGED), &head, &buffer, WALL), Part::Whole);
    }

    #[test]
    fn parts_of_something_else_are_not_given() {
        let of = |response: &str, validator: &str| {
            part(response, &format!("range: bytes=2-4\r\nif-range: {validator}\r\n")) != Part::Whole
        };
        assert!(of(TAGGED, "\"a\""));
        assert!(of(TAGGED, "Sun, 06 Nov 1994 08:49:37 GMT"));
        for other in
            ["\"b\"", "W/\"a\"", "a", "Sun, 06 Nov 1994 08:49:38 GMT", "Sun, 06 Nov 1994 08:49:36 GMT", ""]
        {
            assert!(!of(TAGGED, other), "{other}");
        }
        let weak = TAGGED.replace("\"a\"", "W/\"a\"");
        assert!(!of(&weak, "W/\"a\""));
        assert!(!of("cache-control: max-age=60\r\n", "Sun, 06 Nov 1994 08:49:37 GMT"));
    }

    #[test]
    fn validators_that_cannot_be_read_are_not_asked_with() {
        let stored = object(TAGGED);
        let both = validators(&stored);
        assert_eq!(both.if_none_match, Some(&b"\"a\""[..]));
        assert_eq!(both.if_modified_since, Some(&b"Sun, 06 Nov 1994 08:49:37 GMT"[..]));
        let stored = object("cache-control: max-age=60\r\netag: a\r\nlast-modified: yesterday\r\n");
        assert!(validators(&stored).is_empty());
    }
}
