//! Parses the bytes of a response into a [`ResponseHead`] (RFC 9112 §4).

use super::fields::{self, BlockLimits};
use super::framing;
use super::parse::Progress;
use crate::body_length::BodyLength;
use crate::limits::Limits;
use crate::message::{Cursor, Method, Phase, ResponseHead, Span, Version};
use crate::scan;
use crate::violation::Violation;

/// Parses one response head at the beginning of `buffer` into `head`. `request_method` is the method of the
/// request it answers, which affects where the body ends.
///
/// After `Partial` it continues as [`super::parse_request`] does. Interim responses are heads like others;
/// see [`ResponseHead::is_interim`]. Empty lines before the status line are refused: they would be left over
/// from the response before.
///
/// # Errors
/// The backend's connection must be closed; the client gets 502 (RFC 9110 §15.6.3), whatever the violation.
pub fn parse_response(
    buffer: &[u8],
    limits: &Limits,
    request_method: Method,
    head: &mut ResponseHead,
) -> Result<Progress, Violation> {
    if head.cursor.phase == Phase::Complete {
        return Ok(Progress::Complete { head_bytes: head.head_bytes });
    }
    if head.cursor.phase < Phase::FieldStart && !status_line(buffer, limits, head)? {
        return Ok(Progress::Partial);
    }
    let block = BlockLimits::of_head(limits);
    let Some(head_bytes) = fields::parse_fields(buffer, &mut head.cursor, &mut head.fields, &block)? else {
        return Ok(Progress::Partial);
    };
    head.cursor.phase = Phase::FieldStart;
    finish(buffer, limits, request_method, head)?;
    head.cursor = Cursor { phase: Phase::Complete, ..Cursor::default() };
    head.head_bytes = head_bytes;
    Ok(Progress::Complete { head_bytes })
}

/// True when the status line is complete.
fn status_line(buffer: &[u8], limits: &Limits, head: &mut ResponseHead) -> Result<bool, Violation> {
    let window_end = limits.line_bytes() + 2;
    let window = buffer.get(..window_end).unwrap_or(buffer);
    if head.cursor.phase == Phase::Start {
        if window.is_empty() {
            return Ok(false);
        }
        head.cursor.phase = Phase::FirstLine;
    }
    let complete =
        (head.cursor.phase > Phase::FirstLine || version_and_status(window, head)?) && reason(window, head)?;
    if !complete && buffer.len() >= window_end {
        return Err(Violation::StatusLineTooLong);
    }
    Ok(complete)
}

/// Parses `HTTP/1.1 200`, without the space after it, because some servers end the line there.
fn version_and_status(window: &[u8], head: &mut ResponseHead) -> Result<bool, Violation> {
    let &[b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor, b' ', hundreds, tens, units, ..] = window else {
        return other_status_line(window).map(|()| false);
    };
    head.version = match minor {
        b'1' => Version::Http11,
        b'0' => Version::Http10,
        _ => return other_status_line(window).map(|()| false),
    };
    let digits = [hundreds, tens, units].map(|byte| u16::from(byte.wrapping_sub(b'0')));
    if digits.iter().any(|&digit| digit > 9) || digits[0] == 0 {
        return Err(Violation::StatusLineSyntax);
    }
    head.status = digits[0] * 100 + digits[1] * 10 + digits[2];
    head.cursor.at = 12;
    head.cursor.mark = 12;
    head.cursor.phase = Phase::Target;
    Ok(true)
}

/// `Ok` as long as the bytes could still become a status line.
#[cold]
fn other_status_line(window: &[u8]) -> Result<(), Violation> {
    for (position, &byte) in window.iter().take(12).enumerate() {
        let good = match position {
            0..=4 => b"HTTP/".get(position) == Some(&byte),
            5 | 7 | 10 | 11 => byte.is_ascii_digit(),
            6 => byte == b'.',
            8 => byte == b' ',
            _ => (b'1'..=b'9').contains(&byte),
        };
        if !good {
            return Err(Violation::StatusLineSyntax);
        }
        if position == 8 && window.get(..8).is_some_and(|text| text != b"HTTP/1.1" && text != b"HTTP/1.0") {
            return Err(Violation::VersionUnsupported);
        }
    }
    Ok(())
}

fn reason(window: &[u8], head: &mut ResponseHead) -> Result<bool, Violation> {
    let cursor = &mut head.cursor;
    // After the digits there is a space, or CR if a server omits both space and reason.
    match window.get(12) {
        None => return Ok(false),
        Some(b' ' | b'\r') => {}
        Some(_) => return Err(Violation::StatusLineSyntax),
    }
    let Some(end) = scan::control_from(window, cursor.at) else {
        cursor.at = window.len();
        return Ok(false);
    };
    cursor.at = end;
    match (window.get(end), window.get(end + 1)) {
        (Some(b'\r'), None) => return Ok(false),
        (Some(b'\r'), Some(b'\n')) => {}
        (Some(b'\r'), _) => return Err(Violation::BareCarriageReturn),
        (Some(b'\n'), _) => return Err(Violation::BareLineFeed),
        _ => return Err(Violation::StatusLineSyntax),
    }
    head.reason = Span::new(13.min(end), end);
    cursor.at = end + 2;
    cursor.phase = Phase::FieldStart;
    head.fields.start = end + 2;
    head.fields.all_canonical = true;
    Ok(true)
}

fn finish(
    buffer: &[u8],
    limits: &Limits,
    request_method: Method,
    head: &mut ResponseHead,
) -> Result<(), Violation> {
    (head.body, head.declared) =
        framing::response_body(head.version, head.status, request_method, &mut head.fields, buffer)?;
    framing::connection_options(&head.fields, buffer, limits.connection_option_count, &mut head.connection)?;
    if !head.connection.others.is_empty() {
        fields::nominate(&mut head.fields, &head.connection.others, buffer);
    }
    head.upgrade = None;
    if head.status == 101 {
        //= https://www.rfc-editor.org/rfc/rfc9110#section-15.2.2
        //# The server MUST generate an Upgrade header field in the response
        //# that indicates which protocol(s) will be in effect after this
        //# response.
        head.upgrade = framing::upgrade_protocol(&head.fields, buffer).filter(|_| head.connection.upgrade);
        if head.upgrade.is_none() {
            return Err(Violation::UpgradeNotNamed);
        }
    }
    let connected = request_method == Method::Connect && (200..300).contains(&head.status);
    head.tunnel = head.status == 101 || connected;
    let delimited = head.body != BodyLength::UntilClose;
    head.keep_alive = delimited && !head.tunnel && head.connection.persists(head.version);
    Ok(())
}
