//! Small writers, and the responses Weir gives by itself. Nothing a peer sent is reflected but bytes that the parser
//! found valid.

use super::chunked;
use crate::added::AddedField;
use crate::known::KnownHeader;
use crate::message::{RequestHead, TargetForm, Version};
use crate::scan;

/// Writes a number in decimal.
pub fn write_decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    for slot in digits.iter_mut().rev() {
        *slot = b'0' + (value % 10) as u8;
        value /= 10;
        start -= 1;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Writes a number in lower-case hexadecimal.
pub fn write_hexadecimal(out: &mut Vec<u8>, value: u64) {
    let digit_count = (16 - value.leading_zeros() / 4).max(1);
    for index in (0..digit_count).rev() {
        let digit = (value >> (4 * index)) as u8 & 15;
        out.push(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
    }
}

/// Writes one field line of validated bytes.
pub(crate) fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The reason phrase that RFC 9110 §15 and the IANA registry give a status; empty for others.
pub const fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        425 => "Too Early",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

/// Writes `HTTP/1.1 200 OK` CRLF. `status` is cut to three digits.
pub fn write_status_line(out: &mut Vec<u8>, status: u16) {
    out.extend_from_slice(b"HTTP/1.1 ");
    write_decimal(out, u64::from(status.clamp(100, 999)));
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes `HTTP/1.1 100 Continue` and its empty line (RFC 9110 §15.2.1).
pub fn write_continue(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
}

/// What all of Weir's own responses have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnResponse<'a> {
    /// The client's connection stays open behind this response.
    pub keep_alive: bool,
    /// The version the client speaks: a client of HTTP/1.0 has to be told when the connection stays open.
    pub version: Version,
    /// The request was HEAD: the length is written, the body is not.
    pub head_only: bool,
    /// `x-request-id` to name; empty for none. Must be one the parser or Weir made.
    pub request_id: &'a [u8],
    /// `date` to name (RFC 9110 §6.6.1); empty for none.
    pub date: &'a [u8],
}

/// Writes an error of Weir's own: a one-line text body of status, reason phrase and `word`, which tells the operator
/// which log line to look for.
///
/// `retry_after_seconds` writes `retry-after` (RFC 9110 §10.2.3). A 405 names the methods that are passed on, as it must
/// (RFC 9110 §15.5.6); whether a backend knows them for this resource is its own affair.
pub fn error_response(
    status: u16,
    word: &str,
    retry_after_seconds: Option<u64>,
    own: &OwnResponse<'_>,
    out: &mut Vec<u8>,
) {
    let mut body = Vec::with_capacity(64);
    write_decimal(&mut body, u64::from(status));
    for part in [reason(status), word] {
        if !part.is_empty() && scan::is_field_value(part.as_bytes()) {
            body.push(b' ');
            body.extend_from_slice(part.as_bytes());
        }
    }
    body.push(b'\n');
    begin_own(status, own, out);
    if status == 405 {
        out.extend_from_slice(b"allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n");
    }
    if let Some(seconds) = retry_after_seconds {
        out.extend_from_slice(b"retry-after: ");
        write_decimal(out, seconds);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"content-type: text/plain; charset=utf-8\r\ncache-control: no-store\r\n");
    end_own(status, &body, own, out);
}

/// Writes a response with these fields and this body: `respond` and `redirect` routes. Statuses without a body get
/// none (RFC 9110 §6.4.1).
pub fn simple_response(
    status: u16,
    fields: &[AddedField],
    body: &[u8],
    own: &OwnResponse<'_>,
    out: &mut Vec<u8>,
) {
    begin_own(status, own, out);
    for field in fields {
        out.extend_from_slice(&field.line);
    }
    end_own(status, body, own, out);
}

fn begin_own(status: u16, own: &OwnResponse<'_>, out: &mut Vec<u8>) {
    out.reserve(512);
    write_status_line(out, status);
    if !own.date.is_empty() {
        write_field(out, b"date", own.date);
    }
    if !own.request_id.is_empty() {
        write_field(out, b"x-request-id", own.request_id);
    }
}

fn end_own(status: u16, body: &[u8], own: &OwnResponse<'_>, out: &mut Vec<u8>) {
    let without_body = matches!(status, 100..=199 | 204 | 304);
    if !without_body {
        out.extend_from_slice(b"content-length: ");
        write_decimal(out, body.len() as u64);
        out.extend_from_slice(b"\r\n");
    }
    write_connection(own.keep_alive, own.version, out);
    out.extend_from_slice(b"\r\n");
    if !without_body && !own.head_only {
        out.extend_from_slice(body);
    }
}

/// Writes the `connection` line that this version needs to understand what happens next (RFC 9112 §9.3), if any.
pub(crate) fn write_connection(keep_alive: bool, version: Version, out: &mut Vec<u8>) {
    match (keep_alive, version) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, _) => {}
    }
}

/// Writes a redirect to `location`, with `fields` beside it. `location` must come from configuration, or be built from
/// parts the parser validated; control bytes make it a 500 instead, so that no client can split the response.
pub fn redirect(
    status: u16,
    location: &[u8],
    fields: &[AddedField],
    own: &OwnResponse<'_>,
    out: &mut Vec<u8>,
) {
    if !scan::is_field_value(location) {
        return error_response(500, "redirect_location", None, own, out);
    }
    begin_own(status, own, out);
    write_field(out, b"location", location);
    for field in fields {
        out.extend_from_slice(&field.line);
    }
    end_own(status, b"", own, out);
}

/// Answers a TRACE or OPTIONS request whose `Max-Forwards` is used up (RFC 9110 §7.6.2, §9.3.8).
///
/// TRACE is answered with the request as `message/http`, but only its request line and fields that cannot carry
/// secrets (threat A26).
pub fn trace_response(head: &RequestHead, buffer: &[u8], own: &OwnResponse<'_>, out: &mut Vec<u8>) {
    let mut echo = Vec::with_capacity(256);
    let target =
        if head.target_form() == TargetForm::Absolute { head.path(buffer) } else { head.target(buffer) };
    for part in [head.method_text(buffer), b" ", target, b" HTTP/1.1\r\n"] {
        echo.extend_from_slice(part);
    }
    let shown = [KnownHeader::Host, KnownHeader::Via, KnownHeader::MaxForwards, KnownHeader::UserAgent];
    for field in head.fields(buffer).filter(|field| shown.contains(&field.known)) {
        write_field(&mut echo, field.name, field.value);
    }
    echo.extend_from_slice(b"\r\n");
    begin_own(200, own, out);
    out.extend_from_slice(b"content-type: message/http\r\ncache-control: no-store\r\n");
    end_own(200, &echo, own, out);
}

/// Writes one chunk: head, content, end. For content that is at hand; large content is better written by reference
/// between [`chunked::write_chunk_head`] and [`chunked::write_chunk_end`]. Writes nothing for empty content, which
/// would end the body.
pub fn write_chunk(out: &mut Vec<u8>, content: &[u8]) {
    if content.is_empty() {
        return;
    }
    out.reserve(content.len() + 20);
    chunked::write_chunk_head(out, content.len() as u64);
    out.extend_from_slice(content);
    chunked::write_chunk_end(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_leading_zeros() {
        for value in [0, 1, 9, 10, 15, 16, 255, 256, 4096, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            write_decimal(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
            out.clear();
            write_hexadecimal(&mut out, value);
            assert_eq!(out, format!("{value:x}").as_bytes());
        }
    }
}
