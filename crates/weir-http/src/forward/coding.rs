//! Changes to a response whose content is, or could have been, encoded on the way to the client (RFC 9110
//! §8.4).
//!
//! [`recoding`] decides whether the content may be encoded, and this module makes the changes to the head;
//! the encoding itself is done elsewhere.

use crate::known::{KnownHeader, KnownSet};
use crate::message::{FieldLine, Method, ResponseHead};
use crate::sink::FieldSink;

/// The coding that the client's `accept-encoding` chooses for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The coding of its content, a token such as `gzip`; `None` leaves the content as received, because the
    /// client accepts none of ours.
    pub coding: Option<&'static str>,
    /// Length of the encoded content, in bytes, if it is known in advance.
    pub length: Option<u64>,
    /// The content for this head is encoded, now or in an earlier response: a strong entity tag is made weak.
    pub weaken: bool,
}

/// Why the content of a response is not encoded, whatever the client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// Its status has no content, or only a part of one.
    Status,
    /// It has no content.
    Empty,
    /// Its declared length is too small to be worth it.
    Small,
    /// It already has a `content-encoding`.
    Encoded,
    /// It has the directive `no-transform` (RFC 9111 §5.2.2.6).
    NoTransform,
    /// It has a digest of its bytes, or announces one in its trailers, which encoding would make wrong (RFC
    /// 9530).
    Digest,
    /// It has no media type, or several.
    Untyped,
}

/// Whether the content of a response may be encoded, judging by its head; if so, returns its media type, from
/// which the caller decides. `min_bytes` is the least declared length. Does not allocate.
///
/// For an answer to HEAD the result is that for the same GET, so that both have the same fields (RFC 9110
/// §9.3.2).
///
/// # Errors
/// The first reason against it.
pub fn recoding<'b>(
    head: &ResponseHead,
    buffer: &'b [u8],
    method: Method,
    min_bytes: u64,
) -> Result<&'b [u8], LeftAlone> {
    let fields = &head.fields;
    // 206 and 226 have partial or delta content; the others have none, or are not final responses.
    if !matches!(head.status, 200..=599) || matches!(head.status, 204..=206 | 226 | 304) || head.tunnel {
        return Err(LeftAlone::Status);
    }
    if head.body.is_empty() && method != Method::Head {
        return Err(LeftAlone::Empty);
    }
    // No coding can make an empty body smaller.
    if head.declared.is_some_and(|length| length < min_bytes.max(1)) {
        return Err(LeftAlone::Small);
    }
    if fields.seen.has(KnownHeader::ContentEncoding) {
        return Err(LeftAlone::Encoded);
    }
    if fields.seen.has(KnownHeader::ContentRange) {
        return Err(LeftAlone::Status);
    }
    //= https://www.rfc-editor.org/rfc/rfc9110#section-7.7
    //# A proxy MUST NOT transform the content (Section 6.4) of a response
    //# message that contains a no-transform cache directive
    if fields.values(KnownHeader::CacheControl, buffer).any(forbids_transforming) {
        return Err(LeftAlone::NoTransform);
    }
    if fields.repeated.has(KnownHeader::ContentType) {
        return Err(LeftAlone::Untyped);
    }
    let Some(media_type) = fields.first(KnownHeader::ContentType) else { return Err(LeftAlone::Untyped) };
    let in_head = |line: &FieldLine| line.known == KnownHeader::Other && is_digest(line.name.of(buffer));
    let announces = |value: &[u8]| value.split(|&byte| byte == b',').any(|name| is_digest(name.trim_ascii()));
    if fields.lines.iter().any(in_head) || fields.values(KnownHeader::Trailer, buffer).any(announces) {
        return Err(LeftAlone::Digest);
    }
    Ok(media_type.value.of(buffer))
}

/// Whether one line of `cache-control` has the directive `no-transform`. Quoted text is not treated
/// separately: a false match only costs bytes, but missing one would violate the backend's directive.
fn forbids_transforming(value: &[u8]) -> bool {
    const DIRECTIVE: &[u8] = b"no-transform";
    value.split(|&byte| byte == b',').any(|part| {
        let part = part.trim_ascii();
        part.get(..DIRECTIVE.len()).is_some_and(|name| name.eq_ignore_ascii_case(DIRECTIVE))
            && !part.get(DIRECTIVE.len()).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    })
}

/// Whether a field with that name has a digest of the content or of the whole representation, old names
/// included.
fn is_digest(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [b"content-digest", b"repr-digest", b"digest", b"content-md5"];
    NAMES.iter().any(|digest| name.eq_ignore_ascii_case(digest))
}

/// Whether a trailer with that name is about the bytes that the backend sent: a digest, or an entity tag. If
/// it arrives after the content was encoded on the way, it is wrong.
pub fn is_of_bytes(name: &[u8]) -> bool {
    is_digest(name) || name.eq_ignore_ascii_case(b"etag")
}

/// Whether this is `accept-ranges`, which does not apply when the bytes differ from the backend's.
pub(super) fn describes_ranges(line: &FieldLine, buffer: &[u8]) -> bool {
    line.known == KnownHeader::Other && line.name.of(buffer).eq_ignore_ascii_case(b"accept-ranges")
}

/// Known names that are not forwarded as received.
pub(super) fn dropped(negotiated: &Negotiated) -> KnownSet {
    let mut dropped = KnownSet::EMPTY;
    if negotiated.coding.is_some() {
        dropped = dropped.with(KnownHeader::ContentLength);
    }
    if negotiated.weaken {
        dropped = dropped.with(KnownHeader::Etag);
    }
    dropped
}

/// Writes `content-encoding`, `content-length`, `vary` and the entity tag.
pub(super) fn put(
    negotiated: &Negotiated,
    head: &ResponseHead,
    buffer: &[u8],
    replaced: KnownSet,
    sink: &mut impl FieldSink,
) {
    let fields = &head.fields;
    if let Some(coding) = negotiated.coding {
        sink.field(b"content-encoding", coding.as_bytes());
        if let Some(length) = negotiated.length {
            sink.number(b"content-length", length);
        }
    }
    if !fields.values(KnownHeader::Vary, buffer).any(names_accept_encoding) {
        sink.field(b"vary", b"accept-encoding");
    }
    if negotiated.weaken && !replaced.has(KnownHeader::Etag) {
        //= https://www.rfc-editor.org/rfc/rfc9110#section-8.8.3
        //# An entity tag can be either a weak or strong validator
        // Two codings of one representation are equivalent but differ in their bytes, which is what weak
        // means (§8.8.1).
        for tag in fields.values(KnownHeader::Etag, buffer) {
            match tag.starts_with(b"W/") {
                true => sink.field(b"etag", tag),
                false => sink.parts(b"etag", [&b"W/"[..], tag]),
            }
        }
    }
}

/// Whether a line of `vary` already covers `accept-encoding`.
fn names_accept_encoding(value: &[u8]) -> bool {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|name| name == b"*" || name.eq_ignore_ascii_case(b"accept-encoding"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::{ResponseContext, SentFraming, response_fields, write_response};
    use crate::{BodyLength, Limits, Progress, Version, parse_response};

    fn parsed(text: &str, method: Method) -> ResponseHead {
        let mut head = ResponseHead::new();
        match parse_response(text.as_bytes(), &Limits::default(), method, &mut head) {
            Ok(Progress::Complete { .. }) => head,
            other => panic!("{other:?}: {text}"),
        }
    }

    fn judged(fields: &str) -> Result<Vec<u8>, LeftAlone> {
        judged_as("200 OK", fields, Method::Get)
    }

    fn judged_as(status: &str, fields: &str, method: Method) -> Result<Vec<u8>, LeftAlone> {
        let text = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
        let head = parsed(&text, method);
        recoding(&head, text.as_bytes(), method, 100).map(<[u8]>::to_vec)
    }

    const TYPED: &str = "content-type: text/html\r\n";

    #[test]
    fn a_typed_response_that_is_large_enough_may_be_encoded() {
        assert_eq!(judged(&format!("{TYPED}content-length: 100\r\n")), Ok(b"text/html".to_vec()));
        assert_eq!(judged(&format!("{TYPED}content-length: 99\r\n")), Err(LeftAlone::Small));
        assert_eq!(judged(&format!("{TYPED}transfer-encoding: chunked\r\n")), Ok(b"text/html".to_vec()));
        assert_eq!(judged(TYPED), Ok(b"text/html".to_vec()), "until the connection closes");
        assert_eq!(judged("content-length: 100\r\n"), Err(LeftAlone::Untyped));
        let twice = format!("{TYPED}{TYPED}content-length: 100\r\n");
        assert_eq!(judged(&twice), Err(LeftAlone::Untyped));
    }

    #[test]
    fn what_is_encoded_or_must_not_be_changed_or_is_a_part_is_left_alone() {
        for (fields, reason) in [
            ("content-encoding: gzip\r\n", LeftAlone::Encoded),
            ("content-encoding: identity\r\n", LeftAlone::Encoded),
            ("cache-control: no-transform\r\n", LeftAlone::NoTransform),
            (
                "cache-control: max-age=5\r\ncache-control: public, No-Transform ,x\r\n",
                LeftAlone::NoTransform,
            ),
            ("content-digest: sha-256=:x:\r\n", LeftAlone::Digest),
            ("Repr-Digest: sha-256=:x:\r\n", LeftAlone::Digest),
            ("content-md5: x\r\n", LeftAlone::Digest),
            ("content-range: bytes 0-99/200\r\n", LeftAlone::Status),
        ] {
            assert_eq!(judged(&format!("{TYPED}content-length: 100\r\n{fields}")), Err(reason), "{fields}");
        }
        let fine =
            format!("{TYPED}content-length: 100\r\ncache-control: no-transformers, x=no-transform\r\n");
        assert!(judged(&fine).is_ok());
        for status in ["206 Partial Content", "205 Reset Content", "226 IM Used"] {
            let fields = format!("{TYPED}content-length: 100\r\n");
            assert_eq!(judged_as(status, &fields, Method::Get), Err(LeftAlone::Status), "{status}");
        }
        assert_eq!(judged_as("204 No Content", TYPED, Method::Get), Err(LeftAlone::Status));
        assert_eq!(judged_as("304 Not Modified", TYPED, Method::Get), Err(LeftAlone::Status));
        assert_eq!(
            judged_as("404 Not Found", &format!("{TYPED}content-length: 100\r\n"), Method::Get),
            Ok(b"text/html".to_vec())
        );
    }

    #[test]
    fn the_answer_to_head_is_judged_as_that_to_get() {
        let fields = format!("{TYPED}content-length: 100\r\n");
        assert!(judged_as("200 OK", &fields, Method::Head).is_ok());
        let small = format!("{TYPED}content-length: 9\r\n");
        assert_eq!(judged_as("200 OK", &small, Method::Head), Err(LeftAlone::Small));
        let empty = format!("{TYPED}content-length: 0\r\n");
        assert_eq!(judged_as("200 OK", &empty, Method::Get), Err(LeftAlone::Empty));
    }

    const GZIP: Negotiated = Negotiated { coding: Some("gzip"), length: None, weaken: true };
    const AS_IT_CAME: Negotiated = Negotiated { coding: None, length: None, weaken: false };

    fn written(
        fields: &str,
        negotiated: Negotiated,
        method: Method,
        version: Version,
    ) -> (String, SentFraming) {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let head = parsed(&text, method);
        let mut out = Vec::new();
        let context =
            ResponseContext { negotiated: Some(negotiated), ..ResponseContext::new(version, method, true) };
        let sent = write_response(&head, text.as_bytes(), &context, &mut out);
        (String::from_utf8(out).unwrap(), sent)
    }

    #[test]
    fn encoded_content_has_no_length_no_ranges_and_a_weak_tag() {
        let fields = "content-type: text/html\r\ncontent-length: 100\r\nAccept-Ranges: bytes\r\netag: \"a\"\r\nx: y\r\n";
        let (text, sent) = written(fields, GZIP, Method::Get, Version::Http11);
        assert_eq!(
            text,
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nx: y\r\nvia: 1.1 weir\r\ncontent-encoding: gzip\r\n\
             vary: accept-encoding\r\netag: W/\"a\"\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        assert_eq!(sent, SentFraming { body: BodyLength::Chunked, keep_alive: true });
    }

    #[test]
    fn encoded_content_whose_length_is_known_is_sent_with_it() {
        let negotiated = Negotiated { length: Some(40), ..GZIP };
        let fields = "content-type: text/html\r\ncontent-length: 100\r\n";
        for (method, body) in [(Method::Get, BodyLength::Length(40)), (Method::Head, BodyLength::None)] {
            let (text, sent) = written(fields, negotiated, method, Version::Http11);
            assert!(text.contains("content-encoding: gzip\r\ncontent-length: 40\r\n"), "{text}");
            assert!(!text.contains("100") && !text.contains("transfer-encoding"), "{text}");
            assert_eq!(sent, SentFraming { body, keep_alive: true });
        }
    }

    #[test]
    fn a_client_that_takes_no_coding_gets_the_bytes_and_is_told_that_others_get_others() {
        let fields = "content-length: 100\r\naccept-ranges: bytes\r\netag: \"a\"\r\n";
        let (text, sent) = written(fields, AS_IT_CAME, Method::Get, Version::Http11);
        assert_eq!(
            text,
            "HTTP/1.1 200 OK\r\ncontent-length: 100\r\naccept-ranges: bytes\r\netag: \"a\"\r\nvia: 1.1 weir\r\n\
             vary: accept-encoding\r\n\r\n"
        );
        assert_eq!(sent.body, BodyLength::Length(100));
    }

    #[test]
    fn vary_is_named_once_and_a_weak_tag_stays_as_it_is() {
        for vary in ["vary: Accept-Encoding", "vary: origin, accept-encoding", "vary: *"] {
            let fields = format!("content-length: 100\r\n{vary}\r\netag: W/\"a\"\r\n");
            let (text, _) = written(&fields, GZIP, Method::Get, Version::Http11);
            assert_eq!(text.matches("vary").count(), 1, "{text}");
            assert!(text.contains("etag: W/\"a\"\r\n"), "{text}");
        }
        let (text, _) =
            written("content-length: 100\r\nvary: origin\r\n", GZIP, Method::Get, Version::Http11);
        assert!(text.contains("vary: origin\r\n") && text.contains("vary: accept-encoding\r\n"), "{text}");
    }

    #[test]
    fn head_is_told_the_fields_of_get_without_a_body() {
        let fields = "content-type: text/html\r\ncontent-length: 100\r\netag: \"a\"\r\n";
        let (text, sent) = written(fields, GZIP, Method::Head, Version::Http11);
        assert!(!text.contains("content-length") && !text.contains("transfer-encoding"), "{text}");
        assert!(text.contains("content-encoding: gzip\r\n") && text.contains("etag: W/\"a\""), "{text}");
        assert!(sent.body.is_empty());
    }

    #[test]
    fn a_stream_gets_the_same_fields_and_no_length() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\netag: \"a\"\r\n\r\n";
        let head = parsed(text, Method::Get);
        let context = ResponseContext {
            negotiated: Some(Negotiated { coding: Some("zstd"), length: None, weaken: true }),
            ..ResponseContext::new(Version::Http2, Method::Get, true)
        };
        let mut names = Vec::new();
        let sent = response_fields(&head, text.as_bytes(), &context, &mut |name, value| {
            names.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        });
        assert_eq!(
            names,
            [":status=200", "via=1.1 weir", "content-encoding=zstd", "vary=accept-encoding", "etag=W/\"a\""]
        );
        assert_eq!(sent.body, BodyLength::UntilClose);
    }
}
