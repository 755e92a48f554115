//! The form of an error that suits a client (RFC 9110 §12.5.1): text for people, problem details for programs
//! (RFC 9457), or the status of a gRPC call.

use super::accept_encoding::thousandths;
use super::list;
use crate::known::KnownHeader;
use crate::message::RequestHead;
use crate::scan;

/// The form in which a client gets an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wants {
    /// Text, or a page.
    #[default]
    Text,
    /// JSON.
    Json,
    /// The trailers of a gRPC call.
    Grpc,
    /// The same for gRPC-Web.
    GrpcWeb,
}

impl Wants {
    /// The form for `request`: its `content-type` tells whether it is a gRPC call; otherwise `accept` tells
    /// whether it prefers JSON to HTML. O(1) for clients that name neither, otherwise O(length of `accept`);
    /// does not allocate.
    #[inline]
    pub fn of(request: &RequestHead, buffer: &[u8]) -> Wants {
        if let Some(of_call) = request.value(KnownHeader::ContentType, buffer).and_then(grpc) {
            return of_call;
        }
        let Some(first) = request.value(KnownHeader::Accept, buffer) else { return Wants::Text };
        // What browsers and curl send: `text/html` first, which nothing later can outrank, or no specific
        // type.
        if first == b"*/*" || first.starts_with(b"text/html,") {
            return Wants::Text;
        }
        match prefers_json(request.values(KnownHeader::Accept, buffer)) {
            true => Wants::Json,
            false => Wants::Text,
        }
    }
}

/// `application/grpc`, `application/grpc-web` or `application/grpc-web-text`, each with or without `+FORMAT`
/// and parameters; `None` for any other type.
fn grpc(content_type: &[u8]) -> Option<Wants> {
    const TYPE: &[u8] = b"application/grpc";
    let (first, rest) = content_type.split_at_checked(TYPE.len())?;
    if !first.eq_ignore_ascii_case(TYPE) {
        return None;
    }
    let end = rest.iter().position(|byte| b"+; \t".contains(byte)).unwrap_or(rest.len());
    let kind = rest.get(..end)?;
    match kind {
        b"" => Some(Wants::Grpc),
        kind if kind.eq_ignore_ascii_case(b"-web") || kind.eq_ignore_ascii_case(b"-web-text") => {
            Some(Wants::GrpcWeb)
        }
        _ => None,
    }
}

/// Whether these lines of `accept` name a JSON type with a weight above zero, and HTML has a lower weight, or
/// the same but comes later. `*/*` counts as neither.
fn prefers_json<'a>(values: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut json, mut html, mut json_is_first) = (0, 0, false);
    for element in list::elements(values) {
        let mut parts = element.split(|byte| *byte == b';').map(scan::trim);
        let kind = parts.next().unwrap_or_default();
        let is_json = is_json(kind);
        if !is_json && !is_html(kind) {
            continue;
        }
        let weight = parts.find_map(|part| match part {
            [b'q' | b'Q', b'=', value @ ..] => Some(thousandths(value).unwrap_or(0)),
            _ => None,
        });
        let weight = weight.unwrap_or(1000);
        if is_json {
            json_is_first |= html == 0;
            json = weight.max(json);
        } else {
            html = weight.max(html);
        }
    }
    json > html || (json > 0 && json == html && json_is_first)
}

/// Whether a media type (without parameters) is JSON: `application/json`, or one with the suffix `+json`.
pub fn is_json(kind: &[u8]) -> bool {
    let is_application = kind.get(..12).is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/"));
    let rest = kind.get(12..).unwrap_or_default();
    let ends = |tail: &[u8]| {
        rest.len().checked_sub(tail.len()).is_some_and(|at| rest[at..].eq_ignore_ascii_case(tail))
    };
    is_application && (rest.eq_ignore_ascii_case(b"json") || ends(b"+json"))
}

fn is_html(kind: &[u8]) -> bool {
    kind.eq_ignore_ascii_case(b"text/html") || kind.eq_ignore_ascii_case(b"application/xhtml+xml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Progress, parse_request};

    fn wants(fields: &str) -> Wants {
        let text = format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        let mut head = RequestHead::new();
        let parsed = parse_request(text.as_bytes(), &Limits::default(), &mut head);
        assert!(matches!(parsed, Ok(Progress::Complete { .. })), "{fields:?}");
        Wants::of(&head, text.as_bytes())
    }

    #[test]
    fn programs_that_name_json_get_it_and_browsers_do_not() {
        let browser = "accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n";
        for text in ["", "accept: */*\r\n", browser, "accept: image/avif,image/webp,*/*;q=0.8\r\n"] {
            assert_eq!(wants(text), Wants::Text, "{text}");
        }
        for json in [
            "accept: application/json\r\n",
            "accept: application/json, text/plain, */*\r\n",
            "accept: application/problem+json\r\n",
            "accept: Application/Vnd.Api+JSON; charset=utf-8\r\n",
            "accept: text/html;q=0.5, application/json\r\n",
            "accept: application/json, text/html\r\n",
            "accept: text/plain\r\naccept: application/json;q=0.1\r\n",
        ] {
            assert_eq!(wants(json), Wants::Json, "{json}");
        }
        for html in [
            "accept: text/html, application/json\r\n",
            "accept: application/json;q=0.8, text/html;q=0.9\r\n",
            "accept: application/json;q=0\r\n",
            "accept: application/json;q=nonsense\r\n",
            "accept: application/jsonp, text/json5\r\n",
            "accept: application/\r\n",
        ] {
            assert_eq!(wants(html), Wants::Text, "{html}");
        }
    }

    #[test]
    fn a_call_of_grpc_is_known_by_the_type_of_its_content() {
        for grpc in ["application/grpc", "application/grpc+proto", "Application/GRPC; x=y"] {
            assert_eq!(wants(&format!("content-type: {grpc}\r\n")), Wants::Grpc, "{grpc}");
        }
        for web in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text;a=b"] {
            assert_eq!(wants(&format!("content-type: {web}\r\n")), Wants::GrpcWeb, "{web}");
        }
        for other in ["application/grpcx", "application/grp", "text/plain", "application/json"] {
            assert_eq!(wants(&format!("content-type: {other}\r\n")), Wants::Text, "{other}");
        }
        let both = "accept: application/json\r\ncontent-type: application/grpc\r\n";
        assert_eq!(wants(both), Wants::Grpc);
    }
}
