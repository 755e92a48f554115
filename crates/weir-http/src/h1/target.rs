//! The request-target, and the authority in it or in `Host` (RFC 9112 §3.2, RFC 9110 §7.2).

use super::parse::class_end;
use crate::known::KnownHeader;
use crate::message::{Method, RequestHead, Span, TargetForm, Version};
use crate::scan::{self, HEX, HOST, PATH, PATH_ATTENTION, QUERY};
use crate::scheme::Scheme;
use crate::violation::Violation;

/// Parses the target of an HTTP/2 or HTTP/3 request, which is the end of `buffer`: `:path`, or `:authority`
/// of a CONNECT. Accepts what [`super::parse_request`] accepts, except for absolute-form.
pub(crate) fn read(head: &mut RequestHead, buffer: &[u8], start: usize) -> Result<(), Violation> {
    let (mut at, mut classes) = (start, 0);
    let stop = class_end(buffer, &mut at, PATH, &mut classes);
    head.path_is_plain = classes & PATH_ATTENTION == 0;
    head.path = Span::new(start, at);
    head.query = None;
    if stop == Some(b'?') {
        let query_start = at + 1;
        at = query_start;
        if class_end(buffer, &mut at, QUERY, &mut classes).is_some() {
            return Err(Violation::TargetSyntax);
        }
        head.query = Some(Span::new(query_start, at));
    } else if stop.is_some() || at == start {
        return Err(Violation::TargetSyntax);
    }
    head.target = Span::new(start, at);
    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.3.1
    //# This pseudo-header field MUST NOT be empty for "http" or "https"
    //# URIs; "http" or "https" URIs that do not contain a path component
    //# MUST include a value of '/'.  The exceptions to this rule are:
    let asterisk = head.method == Method::Options && buffer.get(start..) == Some(b"*");
    if head.method != Method::Connect && buffer.get(start) != Some(&b'/') && !asterisk {
        return Err(Violation::TargetForm);
    }
    let scheme = head.scheme;
    classify(head, buffer)?;
    head.scheme = scheme;
    Ok(())
}

/// Determines the form of the target. Its bytes were validated, and the query, if any, was split off.
pub(crate) fn classify(head: &mut RequestHead, buffer: &[u8]) -> Result<(), Violation> {
    let text = head.path.of(buffer);
    head.scheme = None;
    head.host = None;
    match (head.method, text) {
        (Method::Connect, authority) => {
            //= https://www.rfc-editor.org/rfc/rfc9112#section-3.2.3
            //# The "authority-form" of request-target is only used for CONNECT requests
            if head.query.is_some() || authority.contains(&b'/') {
                return Err(Violation::TargetForm);
            }
            if authority.contains(&b'@') {
                return Err(Violation::TargetUserinfo);
            }
            if !is_host(authority) || split_port(authority).1.is_none_or(<[u8]>::is_empty) {
                return Err(Violation::TargetForm);
            }
            head.form = TargetForm::Authority;
            head.host = Some(head.path);
            head.path = Span::new(head.path.end(), head.path.end());
            Ok(())
        }
        (_, [b'/', ..]) => {
            head.form = TargetForm::Origin;
            Ok(())
        }
        (Method::Options, b"*") if head.query.is_none() => {
            head.form = TargetForm::Asterisk;
            head.path = Span::new(head.path.end(), head.path.end());
            Ok(())
        }
        _ => absolute(head, buffer),
    }
}

fn absolute(head: &mut RequestHead, buffer: &[u8]) -> Result<(), Violation> {
    let text = head.path.of(buffer);
    let Some(colon) = text.windows(3).position(|window| window == b"://") else {
        return Err(Violation::TargetForm);
    };
    let (scheme, rest) = text.split_at_checked(colon).unwrap_or_default();
    head.scheme = Some(match scheme {
        _ if scheme.eq_ignore_ascii_case(b"http") => Scheme::Http,
        _ if scheme.eq_ignore_ascii_case(b"https") => Scheme::Https,
        _ => return Err(Violation::TargetScheme),
    });
    let rest = rest.get(3..).unwrap_or_default();
    let length = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
    let authority = rest.get(..length).unwrap_or_default();
    if authority.contains(&b'@') {
        return Err(Violation::TargetUserinfo);
    }
    if !is_host(authority) {
        return Err(Violation::HostSyntax);
    }
    let start = head.path.start() + colon + 3;
    head.form = TargetForm::Absolute;
    head.host = Some(Span::new(start, start + length));
    head.path = Span::new(start + length, head.path.end());
    Ok(())
}

/// Checks `Host` and determines the authority of the request.
pub(crate) fn settle_host(head: &mut RequestHead, buffer: &[u8]) -> Result<(), Violation> {
    //= https://www.rfc-editor.org/rfc/rfc9112#section-3.2
    //# A server MUST respond with a 400 (Bad Request) status code to any
    //# HTTP/1.1 request message that lacks a Host header field and to any
    //# request message that contains more than one Host header field line or
    //# a Host header field with an invalid field value.
    if head.fields.repeated.has(KnownHeader::Host) {
        return Err(Violation::HostRepeated);
    }
    let Some(line) = head.fields.first(KnownHeader::Host) else {
        return if head.version == Version::Http10 { Ok(()) } else { Err(Violation::HostMissing) };
    };
    let value = line.value;
    let text = value.of(buffer);
    if !is_host(text) {
        return Err(Violation::HostSyntax);
    }
    match head.host {
        None => head.host = Some(value),
        Some(authority) => {
            // RFC 9112 §3.2.2 lets a proxy ignore Host here. Other hops may not have ignored it, so we refuse
            // if they differ.
            if !same_authority(authority.of(buffer), text, head.scheme) {
                return Err(Violation::HostMismatch);
            }
        }
    }
    Ok(())
}

/// Whether two valid authorities name the same host and port; a missing port is the default of `scheme`.
pub(crate) fn same_authority(one: &[u8], other: &[u8], scheme: Option<Scheme>) -> bool {
    let port = |text: Option<&[u8]>| match text {
        None | Some([]) => scheme.map(|scheme| u64::from(scheme.default_port())),
        Some(digits) => scan::decimal(digits),
    };
    let (one, one_port) = split_port(one);
    let (other, other_port) = split_port(other);
    one.eq_ignore_ascii_case(other) && port(one_port) == port(other_port)
}

/// Splits a valid authority into host and port; `Some(b"")` if nothing follows the colon.
pub(crate) fn split_port(authority: &[u8]) -> (&[u8], Option<&[u8]>) {
    let host_end = match authority {
        [b'[', ..] => authority.iter().position(|&byte| byte == b']').map_or(authority.len(), |end| end + 1),
        _ => authority.iter().position(|&byte| byte == b':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at_checked(host_end).unwrap_or((authority, &[]));
    (host, rest.strip_prefix(b":"))
}

/// Whether `text` is `uri-host [ ":" port ]` (RFC 9110 §7.2) with a non-empty host and a port up to 65535.
pub fn is_host(text: &[u8]) -> bool {
    let Some(&first) = text.first() else { return false };
    let mut host_end = 0;
    if first == b'[' {
        let Some(end) = text.iter().position(|&byte| byte == b']') else { return false };
        if !is_ip_literal(text.get(1..end).unwrap_or_default()) {
            return false;
        }
        host_end = end + 1;
    } else {
        while let Some(&byte) = text.get(host_end) {
            if scan::is(byte, HOST) {
                host_end += 1;
            } else if byte == b'%' && is_escape(text.get(host_end..).unwrap_or_default()) {
                host_end += 3;
            } else {
                break;
            }
        }
        if host_end == 0 {
            return false;
        }
    }
    match text.get(host_end..).unwrap_or_default() {
        [] => true,
        [b':'] => true,
        [b':', digits @ ..] => digits.len() <= 5 && scan::decimal(digits).is_some_and(|port| port <= 65535),
        _ => false,
    }
}

/// Whether `text` begins with a percent sign and two hexadecimal digits that do not encode a control byte.
fn is_escape(text: &[u8]) -> bool {
    matches!(text, [b'%', high, low, ..] if scan::is(*high, HEX) && scan::is(*low, HEX) && !matches!(high, b'0' | b'1'))
}

/// Whether `text` is an IPv6 address as in RFC 3986 §3.2.2, without a zone.
fn is_ip_literal(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}
