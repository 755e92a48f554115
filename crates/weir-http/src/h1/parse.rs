//! Parses the bytes of a request into a [`RequestHead`] (RFC 9112 §2 to §6).

use super::fields::{self, BlockLimits};
use super::{framing, target};
use crate::known::KnownHeader;
use crate::limits::Limits;
use crate::message::{Cursor, Method, Phase, RequestHead, Span, Version};
use crate::scan::{self, CLASS, PATH, PATH_ATTENTION, QUERY, TOKEN, UNRESERVED};
use crate::violation::Violation;

/// The result of a parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The head is complete; the body begins at `head_bytes`.
    Complete {
        /// Length of the head, in bytes.
        head_bytes: usize,
    },
    /// All bytes so far are valid; call again with the same bytes and more after them.
    Partial,
}

pub(crate) const LONGEST_METHOD_BYTES: usize = 32;

/// Parses one request head at the beginning of `buffer` into `head`.
///
/// After `Partial`, call again with a longer buffer that begins with the same bytes (it may have moved).
/// Parsing continues where it stopped, so a peer that sends single bytes costs no more than one that sends
/// all at once. Call [`RequestHead::clear`] before the next request. One pass; allocates only until `head`
/// has grown to its largest size.
///
/// # Errors
/// The request must be answered with [`Violation::status`] and the connection closed.
pub fn parse_request(buffer: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<Progress, Violation> {
    if head.cursor.phase == Phase::Complete {
        return Ok(Progress::Complete { head_bytes: head.head_bytes });
    }
    if head.cursor.phase < Phase::FieldStart && !request_line(buffer, limits, head)? {
        return Ok(Progress::Partial);
    }
    let block = BlockLimits::of_head(limits);
    let Some(head_bytes) = fields::parse_fields(buffer, &mut head.cursor, &mut head.fields, &block)? else {
        return Ok(Progress::Partial);
    };
    head.cursor.phase = Phase::FieldStart;
    finish(buffer, limits, head)?;
    head.cursor = Cursor { phase: Phase::Complete, ..Cursor::default() };
    head.head_bytes = head_bytes;
    Ok(Progress::Complete { head_bytes })
}

/// True when the request line is complete.
fn request_line(buffer: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<bool, Violation> {
    if head.cursor.phase == Phase::Start {
        if !skip_empty_lines(buffer, limits.leading_empty_lines, head)? {
            return Ok(false);
        }
        head.cursor.phase = Phase::FirstLine;
    }
    let window_end = head.cursor.line_start + limits.line_bytes() + 2;
    let window = buffer.get(..window_end).unwrap_or(buffer);
    let complete = (head.cursor.phase > Phase::FirstLine || method(window, head)?)
        && (head.cursor.phase > Phase::Query || request_target(window, head)?)
        && version(window, head)?;
    if !complete && buffer.len() >= window_end {
        return Err(Violation::RequestLineTooLong);
    }
    Ok(complete)
}

/// True when something other than an empty line begins at the cursor.
fn skip_empty_lines(buffer: &[u8], most: usize, head: &mut RequestHead) -> Result<bool, Violation> {
    //= https://www.rfc-editor.org/rfc/rfc9112#section-2.2
    //# In the interest of robustness, a server that is expecting to receive
    //# and parse a request-line SHOULD ignore at least one empty line (CRLF)
    //# received prior to the request-line.
    let cursor = &mut head.cursor;
    loop {
        match (buffer.get(cursor.at), buffer.get(cursor.at + 1)) {
            (Some(b'\r'), Some(b'\n')) => {
                cursor.empty_lines += 1;
                if cursor.empty_lines > most {
                    return Err(Violation::LeadingEmptyLines);
                }
                cursor.at += 2;
            }
            (Some(b'\r'), Some(_)) => return Err(Violation::BareCarriageReturn),
            (Some(b'\n'), _) => return Err(Violation::BareLineFeed),
            (Some(b'\r'), None) | (None, _) => return Ok(false),
            _ => {
                cursor.line_start = cursor.at;
                return Ok(true);
            }
        }
    }
}

#[inline(always)]
fn method(window: &[u8], head: &mut RequestHead) -> Result<bool, Violation> {
    let start = head.cursor.line_start;
    let rest = window.get(start..).unwrap_or_default();
    let longest = rest.get(..LONGEST_METHOD_BYTES + 1).unwrap_or(rest);
    let Some(length) = longest.iter().position(|&byte| !scan::is(byte, TOKEN)) else {
        return if longest.len() > LONGEST_METHOD_BYTES { Err(Violation::MethodTooLong) } else { Ok(false) };
    };
    let text = rest.get(..length).unwrap_or_default();
    if length == 0 || rest.get(length) != Some(&b' ') {
        return Err(Violation::MethodSyntax);
    }
    head.method = Method::from_token(text);
    head.method_text = Span::new(start, start + length);
    let cursor = &mut head.cursor;
    cursor.at = start + length + 1;
    cursor.mark = cursor.at;
    cursor.classes = 0;
    cursor.phase = Phase::Target;
    Ok(true)
}

#[inline(always)]
fn request_target(window: &[u8], head: &mut RequestHead) -> Result<bool, Violation> {
    let cursor = &mut head.cursor;
    if cursor.phase == Phase::Target {
        let Some(stop) = class_end(window, &mut cursor.at, PATH, &mut cursor.classes) else {
            return Ok(false);
        };
        head.path_is_plain = cursor.classes & PATH_ATTENTION == 0;
        head.path = Span::new(cursor.mark, cursor.at);
        head.query = None;
        if stop == b'?' {
            head.query = Some(Span::new(cursor.at + 1, cursor.at + 1));
            cursor.at += 1;
            cursor.phase = Phase::Query;
        } else {
            return target_end(stop, window, head);
        }
    }
    let Some(stop) = class_end(window, &mut cursor.at, QUERY, &mut cursor.classes) else { return Ok(false) };
    head.query = head.query.map(|query| Span::new(query.start(), cursor.at));
    target_end(stop, window, head)
}

#[inline(always)]
fn target_end(stop: u8, window: &[u8], head: &mut RequestHead) -> Result<bool, Violation> {
    let cursor = &mut head.cursor;
    if cursor.at == cursor.mark {
        return Err(Violation::TargetSyntax);
    }
    if stop != b' ' {
        // A line that ends after the target is HTTP/0.9, which is obsolete.
        return Err(if stop == b'\r' { Violation::VersionSyntax } else { Violation::TargetSyntax });
    }
    head.target = Span::new(cursor.mark, cursor.at);
    cursor.at += 1;
    cursor.mark = cursor.at;
    cursor.phase = Phase::Version;
    target::classify(head, window)?;
    Ok(true)
}

/// Moves `at` to the first byte that is not of `class` and returns that byte.
#[inline(always)]
pub(crate) fn class_end(window: &[u8], at: &mut usize, class: u8, classes: &mut u8) -> Option<u8> {
    let rest = window.get(*at..)?;
    let mut union = *classes;
    for (offset, &byte) in rest.iter().enumerate() {
        let of_byte = CLASS[byte as usize];
        if of_byte & class == 0 {
            *at += offset;
            *classes = union;
            return Some(byte);
        }
        union |= of_byte;
    }
    *at = window.len();
    *classes = union;
    None
}

#[inline(always)]
fn version(window: &[u8], head: &mut RequestHead) -> Result<bool, Violation> {
    let start = head.cursor.mark;
    let rest = window.get(start..).unwrap_or_default();
    head.version = match rest {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1', b'\r', b'\n', ..] => Version::Http11,
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0', b'\r', b'\n', ..] => Version::Http10,
        _ => return other_version(rest).map(|()| false),
    };
    begin_fields(head, start + 10);
    Ok(true)
}

fn begin_fields(head: &mut RequestHead, at: usize) {
    head.cursor.at = at;
    head.cursor.phase = Phase::FieldStart;
    head.fields.start = at;
    head.fields.all_canonical = true;
}

/// `Ok` as long as the bytes could still become a version and CRLF.
#[cold]
fn other_version(rest: &[u8]) -> Result<(), Violation> {
    for (position, &byte) in rest.iter().take(10).enumerate() {
        let good = match position {
            0..=4 => b"HTTP/".get(position) == Some(&byte),
            5 | 7 => byte.is_ascii_digit(),
            6 => byte == b'.',
            8 if byte == b'\n' => return Err(Violation::BareLineFeed),
            8 => byte == b'\r',
            _ if byte != b'\n' => return Err(Violation::BareCarriageReturn),
            _ => true,
        };
        if !good {
            return Err(Violation::VersionSyntax);
        }
    }
    if rest.len() >= 10 { Err(Violation::VersionUnsupported) } else { Ok(()) }
}

/// Evaluates a complete field block.
fn finish(buffer: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<(), Violation> {
    target::settle_host(head, buffer)?;
    head.body = framing::request_body(head.version, &mut head.fields, buffer)?;
    framing::connection_options(&head.fields, buffer, limits.connection_option_count, &mut head.connection)?;
    if !head.connection.others.is_empty() {
        fields::nominate(&mut head.fields, &head.connection.others, buffer);
    }
    //= https://www.rfc-editor.org/rfc/rfc9110#section-7.8
    //# A server MUST ignore an Upgrade header field that is received in an
    //# HTTP/1.0 request.
    let may_upgrade = head.connection.upgrade && head.version == Version::Http11;
    head.upgrade = if may_upgrade { framing::upgrade_protocol(&head.fields, buffer) } else { None };
    conclude(head, buffer)
}

/// Checks of the fields that apply to every version, once host, body and connection options are known.
#[inline(always)]
pub(crate) fn conclude(head: &mut RequestHead, buffer: &[u8]) -> Result<(), Violation> {
    head.keep_alive = head.connection.persists(head.version);
    head.expect_continue = expectation(head, buffer)?;
    head.te_trailers = framing::takes_trailers(&head.fields, buffer);
    head.max_forwards = max_forwards(head, buffer)?;
    head.request_id = request_id(head, buffer);
    if !head.body.is_empty() {
        match head.method {
            Method::Trace => return Err(Violation::TraceWithBody),
            Method::Connect => return Err(Violation::ConnectWithBody),
            _ => {}
        }
    }
    Ok(())
}

fn expectation(head: &RequestHead, buffer: &[u8]) -> Result<bool, Violation> {
    //= https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1
    //# A server that receives an Expect field value containing a member
    //# other than 100-continue MAY respond with a 417 (Expectation Failed)
    //# status code
    let mut expects = false;
    for value in head.fields.values(KnownHeader::Expect, buffer) {
        if expects || !value.eq_ignore_ascii_case(b"100-continue") {
            return Err(Violation::ExpectationUnknown);
        }
        expects = true;
    }
    Ok(expects && head.version >= Version::Http11 && !head.body.is_empty())
}

fn max_forwards(head: &RequestHead, buffer: &[u8]) -> Result<Option<u64>, Violation> {
    //= https://www.rfc-editor.org/rfc/rfc9110#section-7.6.2
    //# A recipient MAY ignore a Max-Forwards header field received with any
    //# other request methods.
    if !matches!(head.method, Method::Trace | Method::Options) {
        return Ok(None);
    }
    let Some(value) = head.value(KnownHeader::MaxForwards, buffer) else { return Ok(None) };
    if head.fields.repeated.has(KnownHeader::MaxForwards) {
        return Err(Violation::MaxForwardsSyntax);
    }
    scan::decimal(value).map(Some).ok_or(Violation::MaxForwardsSyntax)
}

fn request_id(head: &RequestHead, buffer: &[u8]) -> Option<Span> {
    let line = head.fields.first(KnownHeader::XRequestId)?;
    let text = line.value.of(buffer);
    let plain = |&byte: &u8| scan::is(byte, UNRESERVED) || matches!(byte, b'+' | b'/' | b'=' | b':' | b'@');
    let good = (1..=128).contains(&text.len()) && text.iter().all(plain);
    (good && !head.fields.repeated.has(KnownHeader::XRequestId)).then_some(line.value)
}
