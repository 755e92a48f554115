//! The responses Weir gives by itself, for every version. Nothing a peer sent is reflected but bytes that
//! were found valid.

use std::borrow::Cow;

use crate::added::{AddedField, replaced_names};
use crate::forward::put_status;
use crate::h1::encode::{self, reason};
use crate::known::{KnownHeader, KnownSet};
use crate::message::{RequestHead, TargetForm, Version};
use crate::scan;
use crate::sink::{FieldSink, Visitor};

/// Properties that all of Weir's own responses have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnResponse<'a> {
    /// The client's connection stays open behind this response. Says nothing in HTTP/2 and HTTP/3.
    pub keep_alive: bool,
    /// The version the client speaks: a client of HTTP/1.0 has to be told when the connection stays open.
    pub version: Version,
    /// The request was HEAD: the length is written, the body is not.
    pub head_only: bool,
    /// `x-request-id` to name; empty for none. Must be one the parser or Weir made.
    pub request_id: &'a [u8],
    /// `date` to name (RFC 9110 §6.6.1); empty for none.
    pub date: &'a [u8],
    /// `alt-svc`, for clients that could speak a newer version (RFC 7838 §3).
    pub alternative: Option<&'a AddedField>,
    /// Fields the route adds. They take the place of Weir's own, but for those that say what an error or a
    /// redirect is: a route that has its pages kept for a year has not its errors kept.
    pub added: &'a [AddedField],
}

/// One response of Weir's own.
#[derive(Clone, Copy, Debug)]
pub enum OwnAnswer<'a> {
    /// An error: a one-line text body of status, reason phrase and `word`, which tells the operator which log
    /// line to look for. A 405 names the methods that are passed on, as it must (RFC 9110 §15.5.6); whether a
    /// backend knows them for this resource is its own affair.
    Error {
        /// 4xx or 5xx.
        status: u16,
        /// Stable word of the reason.
        word: &'a str,
        /// Writes `retry-after` (RFC 9110 §10.2.3).
        retry_after_seconds: Option<u64>,
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
        /// From configuration, or built from parts the parser validated; control bytes make it a 500 instead,
        /// so that no client can split the response.
        location: &'a [u8],
    },
    /// To a TRACE or OPTIONS request whose `Max-Forwards` is used up (RFC 9110 §7.6.2, §9.3.8): the request
    /// as `message/http`, but only its request line and fields that cannot carry secrets (threat A26).
    Trace {
        /// The request.
        head: &'a RequestHead,
        /// The text that it was parsed from or built into.
        buffer: &'a [u8],
    },
}

impl OwnAnswer<'_> {
    /// The status it has.
    pub fn status(&self) -> u16 {
        match self.settled() {
            OwnAnswer::Error { status, .. }
            | OwnAnswer::Simple { status, .. }
            | OwnAnswer::Redirect { status, .. } => status,
            OwnAnswer::Trace { .. } => 200,
        }
    }

    /// Writes it as text of HTTP/1.1.
    pub fn write(&self, own: &OwnResponse<'_>, out: &mut Vec<u8>) {
        let answer = self.settled();
        let body = answer.body();
        out.reserve(512 + body.len());
        encode::write_status_line(out, answer.status());
        answer.put_fields(own, &body, out);
        encode::write_connection(own.keep_alive, own.version, out);
        out.extend_from_slice(b"\r\n");
        if !own.head_only {
            out.extend_from_slice(&body);
        }
    }

    /// Gives its fields to `visit`, `:status` first, for HTTP/2 or HTTP/3, and appends its body to `body`.
    /// Where nothing is appended the stream ends with the head.
    pub fn visit(&self, own: &OwnResponse<'_>, visit: &mut impl FnMut(&[u8], &[u8]), body: &mut Vec<u8>) {
        let answer = self.settled();
        let content = answer.body();
        let sink = &mut Visitor::new(visit);
        put_status(answer.status(), sink);
        answer.put_fields(own, &content, sink);
        if !own.head_only {
            body.extend_from_slice(&content);
        }
    }

    /// The same, or the error that takes its place.
    fn settled(&self) -> OwnAnswer<'_> {
        match self {
            OwnAnswer::Redirect { location, .. } if !scan::is_field_value(location) => {
                OwnAnswer::Error { status: 500, word: "redirect_location", retry_after_seconds: None }
            }
            other => *other,
        }
    }

    /// Fields that say what it is, which a route does not know better.
    fn kept_names(&self) -> KnownSet {
        match self {
            OwnAnswer::Error { .. } => {
                KnownSet::of(&[KnownHeader::ContentType, KnownHeader::CacheControl, KnownHeader::RetryAfter])
            }
            OwnAnswer::Simple { .. } => KnownSet::EMPTY,
            OwnAnswer::Redirect { .. } => KnownSet::of(&[KnownHeader::Location]),
            OwnAnswer::Trace { .. } => KnownSet::of(&[KnownHeader::ContentType, KnownHeader::CacheControl]),
        }
    }

    fn put_fields(&self, own: &OwnResponse<'_>, body: &[u8], sink: &mut impl FieldSink) {
        let replaced = replaced_names(own.added);
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
            OwnAnswer::Error { status, retry_after_seconds, .. } => {
                if status == 405 {
                    sink.field(b"allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
                }
                if let Some(seconds) = retry_after_seconds {
                    sink.number(b"retry-after", seconds);
                }
                sink.field(b"content-type", b"text/plain; charset=utf-8");
                sink.field(b"cache-control", b"no-store");
            }
            OwnAnswer::Redirect { location, .. } => sink.field(b"location", location),
            OwnAnswer::Trace { .. } => {
                sink.field(b"content-type", b"message/http");
                sink.field(b"cache-control", b"no-store");
            }
            OwnAnswer::Simple { fields, .. } => {
                let is_replaced =
                    |field: &AddedField| own.added.iter().any(|added| added.replaces_name(field.name()));
                for field in fields.iter().filter(|field| !is_replaced(field)) {
                    sink.line(&field.line, field.name_bytes);
                }
            }
        }
        let kept = self.kept_names();
        for field in own.added.iter().filter(|field| !kept.has(field.known)) {
            sink.line(&field.line, field.name_bytes);
        }
        if !without_body(self.status()) {
            sink.number(b"content-length", body.len() as u64);
        }
    }

    /// The body; what HEAD would have been given, too.
    fn body(&self) -> Cow<'_, [u8]> {
        match *self {
            OwnAnswer::Error { status, .. } if without_body(status) => Cow::Borrowed(b""),
            OwnAnswer::Error { status, word, .. } => Cow::Owned(error_text(status, word)),
            OwnAnswer::Simple { status, body, .. } if !without_body(status) => Cow::Borrowed(body),
            OwnAnswer::Simple { .. } | OwnAnswer::Redirect { .. } => Cow::Borrowed(b""),
            OwnAnswer::Trace { head, buffer } => Cow::Owned(echo(head, buffer)),
        }
    }
}

/// Gives the fields of `100 Continue` to `visit` (RFC 9110 §15.2.1); [`encode::write_continue`] for HTTP/2
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
