//! Heads that the cache makes: that of a stored response, and the 304, 206 and 416 derived from it.
//!
//! They are parsed from text as Weir itself would write it (without any field of the connection it came by,
//! RFC 9111 §3.1). So they can be sent like any other response, with [`weir_http::write_response`] or
//! [`weir_http::response_fields`].

use std::ops::Range;

use weir_http::values::http_date;
use weir_http::{Asked, Field, KnownHeader, Limits, Method, ResponseBuilder, ResponseHead, Version};

use crate::object::Object;

/// Fields that are left out of a stored response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// Names in lower case of fields that the response itself keeps from caches (RFC 9111 §5.2.2.4,
    /// §5.2.2.7).
    pub withheld: Box<[Box<[u8]>]>,
}

/// Whether a field is not stored, because it is generated anew for each answer or meant for one client.
fn is_left_out(field: &Field<'_>, kept: &Kept) -> bool {
    matches!(
        field.known,
        KnownHeader::ContentLength
            | KnownHeader::Age
            | KnownHeader::SetCookie
            | KnownHeader::Trailer
            | KnownHeader::XRequestId
            | KnownHeader::AltSvc
    ) || field.name.eq_ignore_ascii_case(b"proxy-authentication-info")
        || field.name.eq_ignore_ascii_case(b"set-cookie2")
        || kept.withheld.iter().any(|name| field.name.eq_ignore_ascii_case(name))
}

/// A head under construction.
struct Draft<'a> {
    builder: ResponseBuilder<'a>,
    /// Scratch space for a name in lower case.
    name: Vec<u8>,
    sound: bool,
}

impl<'a> Draft<'a> {
    fn new(status: u16, head: &'a mut ResponseHead, text: &'a mut Vec<u8>) -> Draft<'a> {
        text.clear();
        // Its parts were within the limits once; the fields added here must not cause a refusal.
        let limits = Limits { header_block_bytes: usize::MAX, field_count: usize::MAX, ..Limits::default() };
        let asked = Asked { method: Method::Get, upgrade: None };
        let builder = ResponseBuilder::new(Version::Http11, &limits, asked, head, text);
        let mut draft = Draft { builder, name: Vec::new(), sound: true };
        draft.field(b":status", digits(u64::from(status), &mut [0; 20]));
        draft
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.name.clear();
        self.name.extend(name.iter().map(u8::to_ascii_lowercase));
        self.sound &= self.builder.field(&self.name, value).is_ok();
    }

    fn number(&mut self, name: &[u8], number: u64) {
        self.field(name, digits(number, &mut [0; 20]));
    }

    /// Completes the head; `false` if it does not parse as one.
    fn finish(self) -> bool {
        let finished = self.builder.finish(false);
        self.sound && finished.is_ok()
    }
}

fn digits(number: u64, room: &mut [u8; 20]) -> &[u8] {
    let (mut at, mut rest) = (room.len(), number);
    loop {
        at -= 1;
        if let Some(place) = room.get_mut(at) {
            *place = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            return room.get(at..).unwrap_or_default();
        }
    }
}

/// Statuses whose responses have neither content nor a `content-length` (RFC 9110 §8.6).
fn has_no_length(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// The head to store for a response with content of `length` bytes. `None` if it contains something that Weir
/// would not send.
pub(crate) fn kept(
    head: &ResponseHead,
    buffer: &[u8],
    kept: &Kept,
    length: u64,
    wall_seconds: u64,
) -> Option<(ResponseHead, Box<[u8]>)> {
    let fields = head.end_to_end_fields(buffer).filter(|field| !is_left_out(field, kept));
    assembled(head.status(), fields, length, wall_seconds)
}

/// A head with these fields, plus `date` and `content-length`.
pub(crate) fn assembled<'a>(
    status: u16,
    fields: impl Iterator<Item = Field<'a>>,
    length: u64,
    wall_seconds: u64,
) -> Option<(ResponseHead, Box<[u8]>)> {
    let (mut head, mut text) = (ResponseHead::new(), Vec::with_capacity(512));
    let mut draft = Draft::new(status, &mut head, &mut text);
    let mut dated = false;
    for field in fields {
        dated |= field.known == KnownHeader::Date;
        draft.field(field.name, field.value);
    }
    //= https://www.rfc-editor.org/rfc/rfc9110#section-6.6.1
    //# A recipient with a clock that receives a response message without a
    //# Date header field MUST record the time it was received and append a
    //# corresponding Date header field to the message's header section if it
    //# is cached or forwarded downstream.
    if !dated {
        draft.field(b"date", &http_date::text(wall_seconds));
    }
    if !has_no_length(status) {
        draft.number(b"content-length", length);
    }
    if !draft.finish() {
        return None;
    }
    head.shrink();
    text.shrink_to_fit();
    Some((head, text.into_boxed_slice()))
}

/// Makes the 304 that confirms the client's copy of this object (RFC 9110 §15.4.5). `head` and `text` are
/// cleared first.
pub fn not_modified(object: &Object, head: &mut ResponseHead, text: &mut Vec<u8>) {
    let mut draft = Draft::new(304, head, text);
    let tagged = object.head().value(KnownHeader::Etag, object.text()).is_some();
    for field in object.head().fields(object.text()) {
        // Fields that describe the content are useless without it; `last-modified` is sent only if there is
        // no tag.
        let describes = matches!(
            field.known,
            KnownHeader::ContentLength
                | KnownHeader::ContentType
                | KnownHeader::ContentEncoding
                | KnownHeader::ContentRange
        ) || field.name.eq_ignore_ascii_case(b"content-language");
        let superfluous = tagged && field.known == KnownHeader::LastModified;
        if !describes && !superfluous {
            draft.field(field.name, field.value);
        }
    }
    draft.finish();
}

/// Makes the 206 for these bytes of the object (RFC 9110 §15.3.7). `head` and `text` are cleared first.
pub fn partial(object: &Object, part: &Range<u64>, head: &mut ResponseHead, text: &mut Vec<u8>) {
    let mut draft = Draft::new(206, head, text);
    for field in object.head().fields(object.text()) {
        if field.known != KnownHeader::ContentLength {
            draft.field(field.name, field.value);
        }
    }
    let range = format!("bytes {}-{}/{}", part.start, part.end.saturating_sub(1), object.body().len());
    draft.field(b"content-range", range.as_bytes());
    draft.number(b"content-length", part.end.saturating_sub(part.start));
    draft.finish();
}

/// Makes the 416 for a range outside the object (RFC 9110 §15.5.17). `head` and `text` are cleared first.
pub fn unsatisfiable(object: &Object, head: &mut ResponseHead, text: &mut Vec<u8>) {
    let mut draft = Draft::new(416, head, text);
    if let Some(date) = object.head().value(KnownHeader::Date, object.text()) {
        draft.field(b"date", date);
    }
    draft.field(b"content-range", format!("bytes */{}", object.body().len()).as_bytes());
    draft.number(b"content-length", 0);
    draft.finish();
}
