//! The responses that Weir itself gives, for every version. Of what a peer sent they repeat only bytes that
//! were validated.

use std::borrow::Cow;

use crate::added::AddedField;
use crate::edits::FieldEdits;
use crate::forward::put_status;
use crate::h1::encode::{self, reason};
use crate::known::{KnownHeader, KnownSet};
use crate::message::{RequestHead, TargetForm, Version};
use crate::scan;
use crate::sink::{FieldSink, Visitor};

/// The methods that `allow` lists. Unknown methods are forwarded, too.
const ALLOWED: &[u8] = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Properties common to all of Weir's own responses.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnResponse<'a> {
    /// The client's connection stays open after this response. Without meaning in HTTP/2 and HTTP/3.
    pub keep_alive: bool,
    /// The client's version: an HTTP/1.0 client must be told when the connection stays open.
    pub version: Version,
    /// The request was HEAD: the length is written, but not the body.
    pub head_only: bool,
    /// Value for `x-request-id`; empty for none. It must come from the parser or from Weir.
    pub request_id: &'a [u8],
    /// Value for `date` (RFC 9110 §6.6.1); empty for none.
    pub date: &'a [u8],
    /// `alt-svc`, for clients that could use a newer version (RFC 7838 §3).
    pub alternative: Option<&'a AddedField>,
    /// Changes by the operator's rules. They also apply to Weir's own fields, except for those that define an
    /// error or a redirect: if a route lets its pages be cached for a year, its errors are not.
    pub edits: Option<FieldEdits<'a>>,
}

/// One response of Weir's own.
#[derive(Clone, Copy, Debug)]
pub enum OwnAnswer<'a> {
    /// An error. The operator finds the log line by `word`. A 405 lists the methods that Weir forwards, as it
    /// must (RFC 9110 §15.5.6); whether a backend supports them for this resource is up to the backend.
    Error {
        /// 4xx or 5xx.
        status: u16,
        /// Stable word for the reason.
        word: &'a str,
        /// Writes `retry-after` (RFC 9110 §10.2.3).
        retry_after_seconds: Option<u64>,
        /// The form of the error.
        form: ErrorForm<'a>,
        /// Fields of the answer that this one replaces, without which the status would be incomplete; they
        /// replace the fields that Weir would write under the same names.
        fields: &'a [AddedField],
    },
    /// A response with these fields and this body. Statuses without a body get none (RFC 9110 §6.4.1).
    Simple {
        /// Any but 1xx.
        status: u16,
        /// Fields to add.
        fields: &'a [AddedField],
        /// The body.
        body: &'a [u8],
    },
    /// A redirect.
    Redirect {
        /// 3xx.
        status: u16,
        /// From the config, or built from parts that the parser validated. If it has control bytes the answer
        /// is a 500 instead, so that no client can split the response.
        location: &'a [u8],
    },
    /// The answer to a TRACE request whose `Max-Forwards` is used up (RFC 9110 §7.6.2, §9.3.8): the request
    /// as `message/http`, but only its request line and fields that can't carry secrets (threat A26).
    Trace {
        /// The request.
        head: &'a RequestHead,
        /// The text that it was parsed from or built into.
        buffer: &'a [u8],
    },
    /// The answer to an OPTIONS request whose `Max-Forwards` is used up: the methods that Weir forwards, and
    /// no content (§9.3.7).
    Options,
}

/// The form of an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorForm<'a> {
    /// One line of text: status, reason phrase and word.
    #[default]
    Text,
    /// A page of the operator's, unchanged.
    Page {
        /// Value of `content-type`; consists of characters that a media type may have.
        content_type: &'a str,
        /// The content.
        body: &'a [u8],
    },
    /// Problem details (RFC 9457): `type`, `title` and `status`, and also the word as `reason` and the
    /// `request_id`.
    Problem,
    /// Only the trailers of a gRPC call: 200 with the `grpc-status` that corresponds to the status, and the
    /// line of text as `grpc-message`.
    Grpc {
        /// Whether the call is of gRPC-Web.
        is_web: bool,
        /// Whether the time for the whole call ran out (`DEADLINE_EXCEEDED`), whatever the status.
        is_late: bool,
    },
}

impl<'a> OwnAnswer<'a> {
    /// An error as a line of text.
    pub const fn error(status: u16, word: &'a str, retry_after_seconds: Option<u64>) -> OwnAnswer<'a> {
        OwnAnswer::Error { status, word, retry_after_seconds, form: ErrorForm::Text, fields: &[] }
    }
}

impl<'a> OwnAnswer<'a> {
    /// The content, if it has more than `most` bytes and existed before, such as a page of the operator's;
    /// otherwise empty. It is sent from where it is: copying it for each client that does not read would be
    /// expensive (threat B24).
    pub fn lent(&self, own: &OwnResponse<'_>, most: usize) -> &'a [u8] {
        let content: &'a [u8] = match *self {
            OwnAnswer::Error { status, form: ErrorForm::Page { body, .. }, .. } if !without_body(status) => {
                body
            }
            OwnAnswer::Simple { status, body, .. } if !without_body(status) => body,
            _ => b"",
        };
        if own.head_only || content.len() <= most { b"" } else { content }
    }
}

impl OwnAnswer<'_> {
    /// The status that is sent.
    pub fn status(&self) -> u16 {
        match self.settled() {
            OwnAnswer::Error { form: ErrorForm::Grpc { .. }, .. } => 200,
            OwnAnswer::Error { status, .. }
            | OwnAnswer::Simple { status, .. }
            | OwnAnswer::Redirect { status, .. } => status,
            OwnAnswer::Trace { .. } | OwnAnswer::Options => 200,
        }
    }

    /// Writes it as HTTP/1.1 text; returns how many bytes of that are content. Content of more than `most`
    /// bytes that existed before is left out: see [`Self::lent`].
    pub fn write(&self, own: &OwnResponse<'_>, most: usize, out: &mut Vec<u8>) -> usize {
        let answer = self.settled();
        let body = answer.body(own);
        let is_left_out = own.head_only || !self.lent(own, most).is_empty();
        out.reserve(512 + if is_left_out { 0 } else { body.len() });
        encode::write_status_line(out, answer.status());
        answer.put_fields(own, &body, out);
        encode::write_connection(own.keep_alive, own.version, out);
        out.extend_from_slice(b"\r\n");
        if is_left_out {
            return 0;
        }
        out.extend_from_slice(&body);
        body.len()
    }

    /// Passes its fields to `visit`, `:status` first, for HTTP/2 or HTTP/3, and appends its body to `body`,
    /// except for content that existed before: see [`Self::lent`]. If there is neither, the stream ends with
    /// the head.
    pub fn visit(&self, own: &OwnResponse<'_>, visit: &mut impl FnMut(&[u8], &[u8]), body: &mut Vec<u8>) {
        let answer = self.settled();
        let content = answer.body(own);
        let sink = &mut Visitor::new(visit);
        put_status(answer.status(), sink);
        answer.put_fields(own, &content, sink);
        if !own.head_only && self.lent(own, 0).is_empty() {
            body.extend_from_slice(&content);
        }
    }

    /// The answer itself, or the error that replaces it.
    fn settled(&self) -> OwnAnswer<'_> {
        match self {
            OwnAnswer::Redirect { location, .. } if !scan::is_field_value(location) => {
                OwnAnswer::error(500, "redirect_location", None)
            }
            other => *other,
        }
    }

    /// Fields that define the answer, which a route's rules must not change.
    fn kept_names(&self) -> KnownSet {
        match self {
            OwnAnswer::Error { .. } => {
                KnownSet::of(&[KnownHeader::ContentType, KnownHeader::CacheControl, KnownHeader::RetryAfter])
            }
            OwnAnswer::Simple { .. } => KnownSet::EMPTY,
            OwnAnswer::Redirect { .. } => KnownSet::of(&[KnownHeader::Location]),
            OwnAnswer::Trace { .. } => KnownSet::of(&[KnownHeader::ContentType, KnownHeader::CacheControl]),
            OwnAnswer::Options => KnownSet::of(&[KnownHeader::CacheControl]),
        }
    }

    fn put_fields(&self, own: &OwnResponse<'_>, body: &[u8], sink: &mut impl FieldSink) {
        let replaced = FieldEdits::known(&own.edits);
        if !own.date.is_empty() && !replaced.has(KnownHeader::Date) {
            sink.field(b"date", own.date);
        }
        if !own.request_id.is_empty() && !replaced.has(KnownHeader::XRequestId) {
            sink.field(b"x-request-id", own.request_id);
        }
        if let Some(field) = own.alternative.filter(|_| !replaced.has(KnownHeader::AltSvc)) {
            sink.line(&field.line, field.name_bytes);
        }
        match *self {
            OwnAnswer::Error { status, word, retry_after_seconds, form, fields } => {
                let says = |name: &[u8]| fields.iter().any(|field| field.name().eq_ignore_ascii_case(name));
                if status == 405 && !says(b"allow") {
                    sink.field(b"allow", ALLOWED);
                }
                if let Some(seconds) = retry_after_seconds.filter(|_| !says(b"retry-after")) {
                    sink.number(b"retry-after", seconds);
                }
                fields.iter().for_each(|field| sink.line(&field.line, field.name_bytes));
                sink.field(b"content-type", form.content_type().as_bytes());
                sink.field(b"cache-control", b"no-store");
                if let ErrorForm::Grpc { is_late, .. } = form {
                    sink.number(
                        b"grpc-status",
                        if is_late { DEADLINE_EXCEEDED } else { grpc_status(status) },
                    );
                    // It has no bytes that need percent-encoding.
                    sink.field(b"grpc-message", error_text(status, word).trim_ascii_end());
                }
            }
            OwnAnswer::Redirect { location, .. } => sink.field(b"location", location),
            OwnAnswer::Trace { .. } => {
                sink.field(b"content-type", b"message/http");
                sink.field(b"cache-control", b"no-store");
            }
            OwnAnswer::Options => {
                sink.field(b"allow", ALLOWED);
                sink.field(b"cache-control", b"no-store");
            }
            OwnAnswer::Simple { fields, .. } => {
                let names = FieldEdits::by_name(&own.edits);
                let is_dropped = |field: &AddedField| names.is_some_and(|it| it.has(field.name(), false));
                for field in fields.iter().filter(|field| !is_dropped(field)) {
                    sink.line(&field.line, field.name_bytes);
                }
            }
        }
        let kept = self.kept_names();
        for (line, name_bytes) in own.edits.iter().flat_map(FieldEdits::each) {
            let name = line.get(..name_bytes).unwrap_or_default();
            if !kept.has(KnownHeader::classify(name)) {
                sink.line(line, name_bytes);
            }
        }
        if !without_body(self.status()) {
            sink.number(b"content-length", body.len() as u64);
        }
    }

    /// The body; also for HEAD, where it gives the length.
    fn body(&self, own: &OwnResponse<'_>) -> Cow<'_, [u8]> {
        match *self {
            OwnAnswer::Error { status, .. } if without_body(status) => Cow::Borrowed(b""),
            OwnAnswer::Error { status, word, form, .. } => match form {
                ErrorForm::Text => Cow::Owned(error_text(status, word)),
                ErrorForm::Page { body, .. } => Cow::Borrowed(body),
                ErrorForm::Problem => Cow::Owned(problem(status, word, own.request_id)),
                ErrorForm::Grpc { .. } => Cow::Borrowed(b""),
            },
            OwnAnswer::Simple { status, body, .. } if !without_body(status) => Cow::Borrowed(body),
            OwnAnswer::Simple { .. } | OwnAnswer::Redirect { .. } | OwnAnswer::Options => Cow::Borrowed(b""),
            OwnAnswer::Trace { head, buffer } => Cow::Owned(echo(head, buffer)),
        }
    }
}

impl ErrorForm<'_> {
    fn content_type(&self) -> &str {
        match self {
            ErrorForm::Text => "text/plain; charset=utf-8",
            ErrorForm::Page { content_type, .. } => content_type,
            ErrorForm::Problem => "application/problem+json",
            ErrorForm::Grpc { is_web: false, .. } => "application/grpc",
            ErrorForm::Grpc { is_web: true, .. } => "application/grpc-web+proto",
        }
    }
}

/// The gRPC status for a call whose deadline passed before it completed.
const DEADLINE_EXCEEDED: u64 = 4;

/// The status that gRPC clients derive from an HTTP status without a `grpc-status` (gRPC's
/// `http-grpc-status-mapping.md`), so that they get the same as from any other proxy.
const fn grpc_status(status: u16) -> u64 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

/// Passes the fields of `100 Continue` to `visit` (RFC 9110 §15.2.1): [`encode::write_continue`] for HTTP/2
/// and HTTP/3.
pub fn continue_fields(visit: &mut impl FnMut(&[u8], &[u8])) {
    put_status(100, &mut Visitor::new(visit));
}

const fn without_body(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

fn error_text(status: u16, word: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    encode::write_decimal(&mut body, u64::from(status));
    for part in [reason(status), word] {
        if !part.is_empty() && scan::is_field_value(part.as_bytes()) {
            body.push(b' ');
            body.extend_from_slice(part.as_bytes());
        }
    }
    body.push(b'\n');
    body
}

/// Problem details (RFC 9457 section 3). Values that would need an escape are left out.
fn problem(status: u16, word: &str, request_id: &[u8]) -> Vec<u8> {
    let is_plain = |text: &[u8]| text.iter().all(|&byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte));
    let mut body = Vec::with_capacity(160);
    body.extend_from_slice(b"{\"type\":\"about:blank\"");
    let mut member = |name: &str, value: &[u8]| {
        for part in [b",\"", name.as_bytes(), b"\":\"", value, b"\""] {
            body.extend_from_slice(part);
        }
    };
    if !reason(status).is_empty() {
        member("title", reason(status).as_bytes());
    }
    if is_plain(word.as_bytes()) {
        member("reason", word.as_bytes());
    }
    if !request_id.is_empty() && is_plain(request_id) {
        member("request_id", request_id);
    }
    body.extend_from_slice(b",\"status\":");
    encode::write_decimal(&mut body, u64::from(status));
    body.extend_from_slice(b"}\n");
    body
}

fn echo(head: &RequestHead, buffer: &[u8]) -> Vec<u8> {
    let mut echo = Vec::with_capacity(256);
    let target =
        if head.target_form() == TargetForm::Absolute { head.path(buffer) } else { head.target(buffer) };
    for part in [head.method_text(buffer), b" ", target, b" HTTP/1.1\r\n"] {
        echo.extend_from_slice(part);
    }
    let shown = [KnownHeader::Host, KnownHeader::Via, KnownHeader::MaxForwards, KnownHeader::UserAgent];
    for field in head.fields(buffer).filter(|field| shown.contains(&field.known)) {
        encode::write_field(&mut echo, field.name, field.value);
    }
    echo.extend_from_slice(b"\r\n");
    echo
}
