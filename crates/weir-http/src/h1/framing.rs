//! Where a body ends (RFC 9112 §6.3): the only code that decides it for HTTP/1.x, for requests and responses.

use crate::body_length::BodyLength;
use crate::known::{KnownHeader, same};
use crate::message::{CANONICAL, ConnectionOptions, FieldLine, Fields, Method, Span, TABBED, Version};
use crate::scan;
use crate::violation::Violation;

/// Delimits a request body.
pub(crate) fn request_body(
    version: Version,
    fields: &mut Fields,
    buffer: &[u8],
) -> Result<BodyLength, Violation> {
    if fields.seen.has(KnownHeader::TransferEncoding) {
        return chunked(version, fields, buffer);
    }
    Ok(content_length(fields, buffer)?.map_or(BodyLength::None, BodyLength::Length))
}

/// Delimits a response body; also returns `Content-Length` as declared.
pub(crate) fn response_body(
    version: Version,
    status: u16,
    request_method: Method,
    fields: &mut Fields,
    buffer: &[u8],
) -> Result<(BodyLength, Option<u64>), Violation> {
    let has_transfer_encoding = fields.seen.has(KnownHeader::TransferEncoding);
    let framed = if has_transfer_encoding { chunked(version, fields, buffer)? } else { BodyLength::None };
    let declared = content_length(fields, buffer)?;
    match status {
        100..=199 | 204 => {
            //= https://www.rfc-editor.org/rfc/rfc9112#section-6.1
            //# A server MUST NOT send a Transfer-Encoding header field in any
            //# response with a status code of 1xx (Informational) or 204 (No
            //# Content).
            // A zero Content-Length is just as wrong (RFC 9110 §8.6), but common and harmless; we drop it.
            if has_transfer_encoding || declared.is_some_and(|length| length > 0) {
                return Err(Violation::BodyNotAllowed);
            }
            Ok((BodyLength::None, None))
        }
        //= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
        //# Any 2xx (Successful) response to a CONNECT request implies that the
        //# connection will become a tunnel immediately after the empty line
        //# that concludes the header fields.
        200..=299 if request_method == Method::Connect => Ok((BodyLength::None, None)),
        304 => Ok((BodyLength::None, declared)),
        _ if request_method == Method::Head => Ok((BodyLength::None, declared)),
        _ if has_transfer_encoding => Ok((framed, None)),
        _ => Ok((declared.map_or(BodyLength::UntilClose, BodyLength::Length), declared)),
    }
}

fn chunked(version: Version, fields: &Fields, buffer: &[u8]) -> Result<BodyLength, Violation> {
    //= https://www.rfc-editor.org/rfc/rfc9112#section-6.1
    //# A server or client that receives an HTTP/1.0 message containing a
    //# Transfer-Encoding header field MUST treat the message as if the
    //# framing is faulty, even if a Content-Length is present, and close the
    //# connection after processing the message.
    if version == Version::Http10 {
        return Err(Violation::TransferEncodingVersion);
    }
    //= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
    //# If a message is received with both a Transfer-Encoding and a
    //# Content-Length header field, the Transfer-Encoding overrides the
    //# Content-Length.
    // We refuse: the same section says it ought to be an error, and request smuggling exploits the
    // difference.
    if fields.seen.has(KnownHeader::ContentLength) {
        return Err(Violation::TwoBodyLengths);
    }
    if fields.repeated.has(KnownHeader::TransferEncoding) {
        return Err(Violation::TransferEncodingRepeated);
    }
    let Some(line) = fields.first(KnownHeader::TransferEncoding) else { return Ok(BodyLength::None) };
    let value = line.value.of(buffer);
    // Spaces around the word are stripped (RFC 9110 §5.5); tabs are used to hide it for smuggling.
    if line.flags & TABBED != 0 {
        return Err(Violation::TransferEncodingSyntax);
    }
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(BodyLength::Chunked);
    }
    Err(other_coding(value))
}

/// `gzip, chunked` is well delimited but not a coding that we decode: 501. Anything else is 400.
#[cold]
fn other_coding(value: &[u8]) -> Violation {
    let mut codings: Vec<&[u8]> = value.split(|&byte| byte == b',').map(scan::trim).collect();
    let last = codings.pop().unwrap_or_default();
    let known = |coding: &&[u8]| {
        [&b"gzip"[..], b"x-gzip", b"deflate", b"compress", b"x-compress"]
            .iter()
            .any(|name| coding.eq_ignore_ascii_case(name))
    };
    if last.eq_ignore_ascii_case(b"chunked") && !codings.is_empty() && codings.iter().all(known) {
        Violation::TransferEncodingUnsupported
    } else {
        Violation::TransferEncodingSyntax
    }
}

/// `Content-Length` as declared. Spaces around it are not part of it (RFC 9110 §5.5); tabs are refused.
pub(crate) fn content_length(fields: &mut Fields, buffer: &[u8]) -> Result<Option<u64>, Violation> {
    if !fields.seen.has(KnownHeader::ContentLength) {
        return Ok(None);
    }
    // RFC 9112 §6.3 lets a recipient merge equal values. Another hop may not have done so: refuse.
    if fields.repeated.has(KnownHeader::ContentLength) {
        return Err(Violation::ContentLengthRepeated);
    }
    let Some(line) = fields.lines.iter_mut().find(|line| line.known == KnownHeader::ContentLength) else {
        return Ok(None);
    };
    let digits = line.value.of(buffer);
    let value =
        scan::decimal(digits).filter(|_| line.flags & TABBED == 0).ok_or(Violation::ContentLengthSyntax)?;
    if digits.len() > 1 && digits.first() == Some(&b'0') {
        // Weir writes the number without leading zeros, which some parsers would read as octal.
        line.flags &= !CANONICAL;
        fields.all_canonical = false;
    }
    Ok(Some(value))
}

/// Parses all `Connection` lines (RFC 9110 §7.6.1).
pub(crate) fn connection_options(
    fields: &Fields,
    buffer: &[u8],
    most: usize,
    options: &mut ConnectionOptions,
) -> Result<(), Violation> {
    options.clear();
    if !fields.seen.has(KnownHeader::Connection) {
        return Ok(());
    }
    let mut count = 0;
    for line in fields.lines.iter().filter(|line| line.known == KnownHeader::Connection) {
        // Nearly every line is one of these words, which need no splitting.
        if count < most && note_option(options, line.value.of(buffer)) {
            count += 1;
            continue;
        }
        for option in elements(line, buffer) {
            let text = option.of(buffer);
            if text.is_empty() {
                continue;
            }
            if !scan::is_token(text) {
                return Err(Violation::ConnectionSyntax);
            }
            count += 1;
            if count > most {
                return Err(Violation::TooManyConnectionOptions);
            }
            if !note_option(options, text) {
                options.others.push(option);
            }
        }
    }
    Ok(())
}

/// Records an option that Weir acts on; `false` for any other.
fn note_option(options: &mut ConnectionOptions, text: &[u8]) -> bool {
    match text.len() {
        5 if same(b"close", text) => options.close = true,
        10 if same(b"keep-alive", text) => options.keep_alive = true,
        7 if same(b"upgrade", text) => options.upgrade = true,
        _ => return false,
    }
    true
}

/// Comma-separated elements of one line, trimmed, empty ones included.
fn elements<'a>(line: &FieldLine, buffer: &'a [u8]) -> impl Iterator<Item = Span> + 'a {
    let mut start = line.value.start();
    line.value.of(buffer).split(|&byte| byte == b',').map(move |element| {
        let leading = element.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let from = start + leading;
        start += element.len() + 1;
        Span::new(from, from + scan::trim(element).len())
    })
}

/// The one protocol that `Upgrade` names; `None` when there are several, none, or `h2c`.
pub(crate) fn upgrade_protocol(fields: &Fields, buffer: &[u8]) -> Option<Span> {
    if fields.repeated.has(KnownHeader::Upgrade) {
        return None;
    }
    let span = fields.first(KnownHeader::Upgrade)?.value;
    let text = span.of(buffer);
    let (name, version) = match text.iter().position(|&byte| byte == b'/') {
        Some(slash) => (text.get(..slash)?, Some(text.get(slash + 1..)?)),
        None => (text, None),
    };
    let well_formed = scan::is_token(name) && version.is_none_or(scan::is_token);
    //= https://www.rfc-editor.org/rfc/rfc9113#section-3.1
    //# The "h2c" string was previously used as a token for use in the HTTP Upgrade mechanism's Upgrade header
    //# field
    (well_formed && !name.eq_ignore_ascii_case(b"h2c") && !name.eq_ignore_ascii_case(b"h2")).then_some(span)
}

/// Whether `TE` lists `trailers` (RFC 9110 §10.1.4).
pub(crate) fn takes_trailers(fields: &Fields, buffer: &[u8]) -> bool {
    fields.values(KnownHeader::Te, buffer).any(|value| {
        value.split(|&byte| byte == b',').any(|one| scan::trim(one).eq_ignore_ascii_case(b"trailers"))
    })
}
