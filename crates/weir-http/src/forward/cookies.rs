//! Writes `cookie` for a backend, without a cookie that belongs to Weir.

use super::RequestContext;
use crate::edits::{FieldEdits, ReplacedValue, ValueEdits};
use crate::known::{KnownHeader, KnownSet};
use crate::message::Fields;
use crate::sink::FieldSink;
use crate::values::cookies;

/// Writes the `cookie` fields if they are not forwarded as received: without cookies that have the hidden
/// name. A field with no cookies left is dropped.
#[inline]
pub(super) fn put(
    fields: &Fields,
    buffer: &[u8],
    context: &RequestContext<'_>,
    replaced: KnownSet,
    sink: &mut impl FieldSink,
) {
    let Some(hidden) = context.hidden_cookie else { return };
    if fields.seen.has(KnownHeader::Cookie) && !replaced.has(KnownHeader::Cookie) {
        put_rest(fields, buffer, hidden, FieldEdits::of_values(&context.edits), sink);
    }
}

fn put_rest(
    fields: &Fields,
    buffer: &[u8],
    hidden: &[u8],
    values: Option<ValueEdits<'_>>,
    sink: &mut impl FieldSink,
) {
    for line in fields.lines.iter().filter(|line| line.known == KnownHeader::Cookie) {
        let is_hidden = |pair: &[u8]| cookies::parts(pair).is_some_and(|(name, _)| name == hidden);
        let mut kept = line.value.of(buffer).split(|byte| *byte == b';').filter(|pair| !is_hidden(pair));
        if let Some(first) = kept.next().map(<[u8]>::trim_ascii_start) {
            let rest = kept.flat_map(|pair| [&b";"[..], pair]);
            let parts = std::iter::once(first).chain(rest);
            match values {
                None => sink.parts(b"cookie", parts),
                Some(values) => put_edited(&parts.collect::<Vec<_>>().concat(), values, sink),
            }
        }
    }
}

fn put_edited(value: &[u8], values: ValueEdits<'_>, sink: &mut impl FieldSink) {
    let mut new = Vec::new();
    match values.of(b"cookie", value, &mut new) {
        ReplacedValue::Same => sink.field(b"cookie", value),
        ReplacedValue::New => sink.field(b"cookie", &new),
        ReplacedValue::LeftOut => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::forward::{RequestContext, request_fields, write_request};
    use crate::identity::ClientIdentity;
    use crate::{Limits, Progress, RequestHead, Scheme, h1};

    /// The `cookie` fields that a backend of HTTP/1.1 gets, which are those that one of HTTP/2 gets.
    fn kept(fields: &str) -> Vec<String> {
        let text = format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        let parsed = h1::parse_request(text.as_bytes(), &Limits::default(), &mut head);
        assert!(matches!(parsed, Ok(Progress::Complete { .. })), "{parsed:?}");
        let identity = ClientIdentity::new("192.0.2.7".parse().unwrap(), Scheme::Http, false);
        let context = RequestContext { hidden_cookie: Some(b"weir"), ..RequestContext::new(&identity, b"1") };
        let mut out = Vec::new();
        write_request(&head, text.as_bytes(), &context, &mut out);
        let out = String::from_utf8(out).unwrap();
        let of_h1: Vec<_> =
            out.lines().filter_map(|line| line.strip_prefix("cookie: ").map(str::to_owned)).collect();
        let mut of_h2 = Vec::new();
        request_fields(&head, text.as_bytes(), &context, &mut |name, value| {
            if name == b"cookie" {
                of_h2.push(String::from_utf8(value.to_vec()).unwrap());
            }
        });
        assert_eq!(of_h2, of_h1);
        of_h2
    }

    #[test]
    fn the_hidden_cookie_goes_wherever_it_stands_and_the_others_stay_as_they_came() {
        assert_eq!(kept("cookie: weir=1\r\n"), Vec::<String>::new());
        assert_eq!(kept("cookie: weir=1; a=2;b=3\r\n"), ["a=2;b=3"]);
        assert_eq!(kept("Cookie: a=2;  weir=1 ; b=3\r\n"), ["a=2; b=3"]);
        assert_eq!(kept("cookie: a=2; weir=1\r\ncookie: weir=7; weir=8\r\ncookie: c\r\n"), ["a=2", "c"]);
        // No option of `connection` takes a cookie from a backend (threat A23).
        assert_eq!(kept("connection: cookie\r\ncookie: a=2; weir=1\r\n"), ["a=2"]);
        assert_eq!(kept("cookie: weird=1; Weir=2; x=weir=3; weir\r\n"), ["weird=1; Weir=2; x=weir=3; weir"]);
    }
}
