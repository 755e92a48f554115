//! Builds the heads that HTTP/1.1 is parsed into from decoded HTTP/2 and HTTP/3 field sections (RFC 9113 §8,
//! RFC 9114 §4).
//!
//! HPACK and QPACK produce one field after another. The builders check each field as it arrives and append it
//! to a buffer as equivalent HTTP/1.1 text: `GET /path HTTP/1.1`, `host:` from `:authority`, one line per
//! field. The head's spans point into that text, so that routing, forwarding, explaining and logging are
//! independent of the version in which a message arrived. Everything counts against [`Limits`] before it is
//! stored (threat B5).
//!
//! Start reading at [`RequestBuilder`]; [`ResponseBuilder`] and [`TrailerBuilder`] do the same for responses
//! and trailers.

mod request;
mod response;
mod trailers;

pub use request::RequestBuilder;
pub use response::{Asked, ResponseBuilder};
pub use trailers::TrailerBuilder;

use crate::h1::fields::underscore_flags;
use crate::known::KnownHeader;
use crate::limits::{Limits, TrailerLimits};
use crate::message::{CANONICAL, FieldLine, Fields, Span};
use crate::scan::{self, CLASS, TOKEN, UNDERSCORE};
use crate::violation::Violation;

/// The cost of a field besides its name and value, in bytes (RFC 9113 §6.5.2, RFC 9114 §4.2.2): about what it
/// takes to store it. Without it, one-byte references to one-byte fields would fill many times as much memory
/// as was sent (B5).
const FIELD_OVERHEAD_BYTES: usize = 32;

/// The lines of one section that is being written into a buffer, and how much of the limits is left.
#[derive(Debug)]
struct Lines {
    /// Bytes of fields that may still arrive, overhead included.
    bytes_left: usize,
    /// Most lines in all.
    count: usize,
    too_large: Violation,
    too_many: Violation,
    /// Whether the last line written is the `cookie` line.
    behind_cookie: bool,
    /// Cookie crumbs that arrived when other lines already followed the `cookie` line, each preceded by `; `.
    late_crumbs: Vec<u8>,
}

impl Lines {
    fn of_head(limits: &Limits) -> Lines {
        Lines {
            bytes_left: limits.block_bytes(),
            count: limits.field_count,
            too_large: Violation::HeaderBlockTooLarge,
            too_many: Violation::TooManyFields,
            behind_cookie: false,
            late_crumbs: Vec::new(),
        }
    }

    fn of_trailers(limits: TrailerLimits) -> Lines {
        Lines {
            bytes_left: limits.bytes as usize,
            count: limits.count as usize,
            too_large: Violation::TrailersTooLarge,
            too_many: Violation::TrailersTooLarge,
            behind_cookie: false,
            late_crumbs: Vec::new(),
        }
    }

    /// Subtracts the cost of a field from what may still arrive. Also for fields that are dropped or joined
    /// to others.
    fn pay(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        let cost = name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        self.bytes_left = self.bytes_left.checked_sub(cost).ok_or(self.too_large)?;
        Ok(())
    }

    /// Writes a line whose bytes were checked and paid for.
    fn push(
        &mut self,
        (name, known, flags): (&[u8], KnownHeader, u8),
        value: &[u8],
        fields: &mut Fields,
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        if fields.lines.len() >= self.count {
            return Err(self.too_many);
        }
        out.reserve(name.len() + value.len() + 4);
        let name_start = out.len();
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        let value_start = out.len();
        out.extend_from_slice(value);
        let line = FieldLine {
            name: Span::new(name_start, value_start - 2),
            value: Span::new(value_start, out.len()),
            known,
            flags: flags | CANONICAL,
        };
        out.extend_from_slice(b"\r\n");
        fields.push(line);
        self.behind_cookie = known == KnownHeader::Cookie;
        Ok(())
    }

    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.2.3
    //# If there are multiple Cookie header fields after decompression, these
    //# MUST be concatenated into a single octet string using the two-octet
    //# delimiter of 0x3b, 0x20 (the ASCII string "; ") before being passed
    //# into a non-HTTP/2 context, such as an HTTP/1.1 connection, or a
    //# generic HTTP server application.
    /// Appends a crumb to the existing `cookie` line. O(crumb): late crumbs wait for [`Self::finish`], so
    /// that a peer that alternates them with other fields can't make text move again and again.
    fn push_crumb(&mut self, crumb: &[u8], fields: &mut Fields, out: &mut Vec<u8>) {
        if crumb.is_empty() {
            return;
        }
        if !self.behind_cookie {
            self.late_crumbs.extend_from_slice(b"; ");
            self.late_crumbs.extend_from_slice(crumb);
            return;
        }
        let Some(line) = fields.lines.last_mut() else { return };
        out.truncate(line.value.end());
        if line.value.start() != line.value.end() {
            out.extend_from_slice(b"; ");
        }
        out.extend_from_slice(crumb);
        line.value = Span::new(line.value.start(), out.len());
        out.extend_from_slice(b"\r\n");
    }

    /// Moves late crumbs to their place and ends the section with its empty line.
    fn finish(&mut self, fields: &mut Fields, out: &mut Vec<u8>) {
        let cookie = fields.lines.iter().position(|line| line.known == KnownHeader::Cookie);
        if let Some(cookie) = cookie.filter(|_| !self.late_crumbs.is_empty()) {
            self.insert_late_crumbs(cookie, fields, out);
        }
        fields.end = out.len();
        out.extend_from_slice(b"\r\n");
    }

    #[cold]
    fn insert_late_crumbs(&mut self, cookie: usize, fields: &mut Fields, out: &mut Vec<u8>) {
        let Some(line) = fields.lines.get_mut(cookie) else { return };
        let (start, at) = (line.value.start(), line.value.end());
        let skipped = if start == at { 2 } else { 0 };
        let grown = self.late_crumbs.len() - skipped;
        line.value = Span::new(start, at + grown);
        out.splice(at..at, self.late_crumbs.drain(..).skip(skipped));
        for line in fields.lines.iter_mut().skip(cookie + 1) {
            line.name = Span::new(line.name.start() + grown, line.name.end() + grown);
            line.value = Span::new(line.value.start() + grown, line.value.end() + grown);
        }
    }
}

/// Checks the name of a field that is not a pseudo-header; returns what it is, and its flags.
//= https://www.rfc-editor.org/rfc/rfc9113#section-8.2.1
//# A field name MUST NOT contain characters in the ranges 0x00-0x20,
//# 0x41-0x5a, or 0x7f-0xff (all ranges inclusive).  This specifically
//# excludes all non-visible ASCII characters, ASCII SP (0x20), and
//# uppercase characters ('A' to 'Z', ASCII 0x41 to 0x5a).
// The name must also be a token (RFC 9110 §5.1): what HTTP/1.1 could not carry never gets past here.
#[inline]
fn check_name(name: &[u8]) -> Result<(KnownHeader, u8), Violation> {
    let known = KnownHeader::classify(name);
    if known == KnownHeader::Other {
        return Ok((known, check_other_name(name)?));
    }
    if name != known.name().as_bytes() {
        return Err(Violation::FieldNameUppercase);
    }
    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.2.2
    //# An endpoint MUST NOT generate an HTTP/2 message containing
    //# connection-specific header fields.  This includes the Connection
    //# header field and those listed as having connection-specific semantics
    //# in Section 7.6.1 of [HTTP] (that is, Proxy-Connection, Keep-Alive,
    //# Transfer-Encoding, and Upgrade).  Any message containing
    //# connection-specific header fields MUST be treated as malformed
    if matches!(
        known,
        KnownHeader::Connection
            | KnownHeader::ProxyConnection
            | KnownHeader::KeepAlive
            | KnownHeader::TransferEncoding
            | KnownHeader::Upgrade
    ) {
        return Err(Violation::ConnectionField);
    }
    Ok((known, 0))
}

/// Checks a name byte by byte; returns its flags.
fn check_other_name(name: &[u8]) -> Result<u8, Violation> {
    let (mut union, mut is_token, mut is_upper) = (0, TOKEN, false);
    for &byte in name {
        let class = CLASS[byte as usize];
        union |= class;
        is_token &= class;
        is_upper |= byte.is_ascii_uppercase();
    }
    match (name.is_empty(), is_token == 0, is_upper) {
        (true, ..) => Err(Violation::FieldNameEmpty),
        (_, true, _) => Err(Violation::FieldNameSyntax),
        (.., true) => Err(Violation::FieldNameUppercase),
        _ if union & UNDERSCORE != 0 => Ok(underscore_flags(name)),
        _ => Ok(0),
    }
}

/// Checks the value of a field or pseudo-header.
//= https://www.rfc-editor.org/rfc/rfc9113#section-8.2.1
//# A field value MUST NOT contain the zero value (ASCII NUL, 0x00),
//# line feed (ASCII LF, 0x0a), or carriage return (ASCII CR, 0x0d) at
//# any position.
//#
//# *  A field value MUST NOT start or end with an ASCII whitespace
//# character (ASCII SP or HTAB, 0x20 or 0x09).
// Control bytes other than tab are refused as well, as in HTTP/1.1 (RFC 9110 §5.5).
#[inline]
fn check_value(value: &[u8]) -> Result<(), Violation> {
    if !scan::is_field_value(value) {
        return Err(Violation::FieldValueSyntax);
    }
    match value {
        [b' ' | b'\t', ..] | [.., b' ' | b'\t'] => Err(Violation::FieldValuePadded),
        _ => Ok(()),
    }
}

//= https://www.rfc-editor.org/rfc/rfc9113#section-8.2.2
//# The only exception to this is the TE header field, which MAY be
//# present in an HTTP/2 request; when it is, it MUST NOT contain any
//# value other than "trailers".
fn check_te(value: &[u8]) -> Result<(), Violation> {
    if value.eq_ignore_ascii_case(b"trailers") { Ok(()) } else { Err(Violation::ConnectionField) }
}
