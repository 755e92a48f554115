//! A request head from decoded fields (RFC 9113 §8.3.1, RFC 9114 §4.3.1, RFC 8441 §4).

use super::{Lines, check_name, check_te, check_value};
use crate::body_length::BodyLength;
use crate::h1::{framing, parse, target};
use crate::known::KnownHeader;
use crate::limits::Limits;
use crate::message::{Cursor, Method, Phase, RequestHead, Span, Version};
use crate::scan;
use crate::scheme::Scheme;
use crate::violation::Violation;

/// Builds one [`RequestHead`] from fields in their order of arrival.
///
/// ```
/// use weir_http::section::RequestBuilder;
/// use weir_http::{Limits, RequestHead, Version};
///
/// let (limits, mut head, mut text) = (Limits::default(), RequestHead::new(), Vec::new());
/// let mut builder = RequestBuilder::new(Version::Http2, &limits, &mut head, &mut text);
/// for (name, value) in [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/x?y")] {
///     builder.field(name.as_bytes(), value.as_bytes())?;
/// }
/// builder.field(b"accept", b"*/*")?;
/// builder.finish(true)?;
/// assert_eq!(text, b"GET /x?y HTTP/1.1\r\nhost: a.test\r\naccept: */*\r\n\r\n");
/// assert_eq!((head.path(&text), head.host(&text)), (&b"/x"[..], Some(&b"a.test"[..])));
/// # Ok::<(), weir_http::Violation>(())
/// ```
///
/// After an error, discard the head and the text that was appended; [`Violation::stream_error`] says whether
/// the stream must be reset or may be answered. Work is proportional to the fields. Allocates nothing once
/// head and buffer have grown, except for `cookie` fields that do not follow each other.
///
/// An extended CONNECT (`:protocol`) becomes its HTTP/1.1 equivalent: a GET that asks to upgrade to that
/// protocol, which [`RequestHead::upgrade`] returns. Its tunnel begins with the response, so it has no body.
#[derive(Debug)]
pub struct RequestBuilder<'a> {
    head: &'a mut RequestHead,
    out: &'a mut Vec<u8>,
    lines: Lines,
    line_bytes: usize,
    /// `:path` alone exceeds the limit. Reported once all pseudo-headers are there, since `:method` may
    /// follow.
    is_line_too_long: bool,
    pseudo: Pseudo,
    /// Whether the request line was written, so that only regular fields may follow.
    in_fields: bool,
    host_compared: bool,
}

/// Pseudo-headers as received. The spans point into `RequestHead::staged`, where the text waits until all are
/// there.
#[derive(Debug, Default)]
struct Pseudo {
    method: Option<Span>,
    scheme: Option<Scheme>,
    authority: Option<Span>,
    path: Option<Span>,
    protocol: Option<Span>,
}

impl<'a> RequestBuilder<'a> {
    /// Begins a head; clears `head` first. Appends text to `out`; pass that buffer to the head's methods
    /// afterwards, together with anything it contained before.
    pub fn new(
        version: Version,
        limits: &Limits,
        head: &'a mut RequestHead,
        out: &'a mut Vec<u8>,
    ) -> RequestBuilder<'a> {
        head.clear();
        head.version = version;
        head.cursor.phase = Phase::FirstLine;
        RequestBuilder {
            head,
            out,
            lines: Lines::of_head(limits),
            line_bytes: limits.line_bytes(),
            is_line_too_long: false,
            pseudo: Pseudo::default(),
            in_fields: false,
            host_compared: false,
        }
    }

    /// Takes the next field.
    ///
    /// # Errors
    /// The request is malformed (RFC 9113 §8.1.1, RFC 9114 §4.1.2) or over a limit.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        check_value(value)?;
        if let [b':', ..] = name {
            return self.pseudo_field(name, value);
        }
        let (known, flags) = check_name(name)?;
        self.write_request_line()?;
        self.lines.pay(name, value)?;
        let fields = &mut self.head.fields;
        match known {
            KnownHeader::Te => check_te(value)?,
            KnownHeader::Host if self.pseudo.authority.is_some() => return self.compare_host(value),
            KnownHeader::Cookie if fields.seen.has(known) => {
                self.lines.push_crumb(value, fields, self.out);
                return Ok(());
            }
            _ => {}
        }
        self.lines.push((name, known, flags), value, fields, self.out)
    }

    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.3
    //# All pseudo-header fields MUST appear in a field block before all
    //# regular field lines.
    //#
    //# The same pseudo-header field name MUST NOT appear more than once in a
    //# field block.
    fn pseudo_field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        if self.in_fields {
            return Err(Violation::PseudoFieldLate);
        }
        let text = match name {
            b":scheme" => {
                let scheme = scheme(value)?;
                let before = self.pseudo.scheme.replace(scheme);
                return if before.is_none() { Ok(()) } else { Err(Violation::PseudoFieldRepeated) };
            }
            b":method" => {
                check_method(value)?;
                // Set as early as this, so that an answer that refuses HEAD has no content.
                self.head.method = Method::from_token(value);
                &mut self.pseudo.method
            }
            b":path" if value.len() > self.line_bytes => {
                self.is_line_too_long = true;
                return Ok(());
            }
            b":path" => &mut self.pseudo.path,
            b":authority" => {
                self.lines.pay(b"host", value)?;
                &mut self.pseudo.authority
            }
            b":protocol" => {
                self.lines.pay(b"upgrade", value)?;
                &mut self.pseudo.protocol
            }
            //= https://www.rfc-editor.org/rfc/rfc9113#section-8.3
            //# Endpoints MUST treat a request or response that contains
            //# undefined or invalid pseudo-header fields as malformed
            _ => return Err(Violation::PseudoFieldUnknown),
        };
        let at = self.head.staged.len();
        if text.replace(Span::new(at, at + value.len())).is_some() {
            return Err(Violation::PseudoFieldRepeated);
        }
        self.head.staged.extend_from_slice(value);
        Ok(())
    }

    /// Call this once the pseudo-headers are complete: writes the request line, `host` and `upgrade`.
    fn write_request_line(&mut self) -> Result<(), Violation> {
        if std::mem::replace(&mut self.in_fields, true) {
            return Ok(());
        }
        if self.is_line_too_long {
            return Err(Violation::RequestLineTooLong);
        }
        // Taken out and put back, since the head is filled from it.
        let mut staged = std::mem::take(&mut self.head.staged);
        let written = self.write_staged(&staged);
        staged.clear();
        self.head.staged = staged;
        written
    }

    fn write_staged(&mut self, staged: &[u8]) -> Result<(), Violation> {
        let Pseudo { method, scheme, authority, path, protocol } = &self.pseudo;
        let text = |span: &Option<Span>| span.map(|span| span.of(staged));
        let (authority, protocol) = (text(authority), text(protocol));
        let mut method = text(method).ok_or(Violation::PseudoFieldMissing)?;
        //= https://www.rfc-editor.org/rfc/rfc9113#section-8.3.1
        //# All HTTP/2 requests MUST include exactly one valid value for the
        //# ":method", ":scheme", and ":path" pseudo-header fields, unless they
        //# are CONNECT requests (Section 8.5).
        let target = match (method == b"CONNECT", protocol, scheme, text(path)) {
            (true, None, None, None) => authority.ok_or(Violation::PseudoFieldMissing)?,
            //= https://www.rfc-editor.org/rfc/rfc9113#section-8.5
            //# The ":scheme" and ":path" pseudo-header fields MUST be omitted.
            (true, None, ..) => return Err(Violation::PseudoFieldUnknown),
            //= https://www.rfc-editor.org/rfc/rfc8441#section-4
            //# On requests that contain the :protocol pseudo-header field, the
            //# :scheme and :path pseudo-header fields of the target URI (see
            //# Section 5) MUST also be included.
            (true, Some(_), Some(_), Some(path)) => {
                self.head.extended_connect = true;
                method = b"GET";
                path
            }
            (false, None, Some(_), Some(path)) => path,
            (false, Some(_), ..) => return Err(Violation::PseudoFieldUnknown),
            _ => return Err(Violation::PseudoFieldMissing),
        };
        self.head.scheme = *scheme;
        self.write_line(method, target)?;
        let fields = &mut self.head.fields;
        if let Some(authority) = authority {
            if authority.contains(&b'@') {
                return Err(Violation::TargetUserinfo);
            }
            self.lines.push((b"host", KnownHeader::Host, 0), authority, fields, self.out)?;
        }
        if let Some(protocol) = protocol {
            self.lines.push((b"upgrade", KnownHeader::Upgrade, 0), protocol, fields, self.out)?;
        }
        Ok(())
    }

    fn write_line(&mut self, method: &[u8], target: &[u8]) -> Result<(), Violation> {
        let (head, out) = (&mut *self.head, &mut *self.out);
        let start = out.len();
        out.reserve(method.len() + target.len() + 512);
        out.extend_from_slice(method);
        head.method = Method::from_token(method);
        head.method_text = Span::new(start, out.len());
        out.push(b' ');
        let target_start = out.len();
        out.extend_from_slice(target);
        target::read(head, out, target_start)?;
        out.extend_from_slice(b" HTTP/1.1");
        if out.len() - start > self.line_bytes {
            return Err(Violation::RequestLineTooLong);
        }
        out.extend_from_slice(b"\r\n");
        head.fields.start = out.len();
        Ok(())
    }

    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.3.1
    //# A server SHOULD treat a request as malformed if it contains a Host
    //# header field that identifies an entity that differs from the entity
    //# in the ":authority" pseudo-header field.
    /// `host` was already written from `:authority`; the field may only say the same.
    fn compare_host(&mut self, value: &[u8]) -> Result<(), Violation> {
        if std::mem::replace(&mut self.host_compared, true) {
            return Err(Violation::HostRepeated);
        }
        let authority =
            self.head.fields.first(KnownHeader::Host).map_or(&[][..], |line| line.value.of(self.out));
        if !target::is_host(value) {
            return Err(Violation::HostSyntax);
        }
        let same = target::same_authority(authority, value, self.head.scheme);
        if same { Ok(()) } else { Err(Violation::HostMismatch) }
    }

    /// Ends the head. `end_stream` means that the stream ended with it, so that there is no body.
    ///
    /// The body is then as [`RequestHead::body`] says: `Length` if it was declared, `UntilClose` if only the
    /// end of the stream tells; read it with [`crate::BodyReader::of_stream`].
    ///
    /// # Errors
    /// As [`Self::field`]; `BodyTooShort` if a body was declared and none follows (threat C3).
    pub fn finish(mut self, end_stream: bool) -> Result<(), Violation> {
        self.write_request_line()?;
        let RequestBuilder { head, out, lines, .. } = &mut self;
        lines.finish(&mut head.fields, out);
        target::settle_host(head, out)?;
        let declared = framing::content_length(&mut head.fields, out)?;
        head.body = match declared {
            //= https://www.rfc-editor.org/rfc/rfc9113#section-8.1.1
            //# A request or response that is defined as having content when it
            //# contains a Content-Length header field is malformed if the value of
            //# the Content-Length header field does not equal the sum of the DATA
            //# frame payload lengths that form the content
            Some(length) if end_stream && length > 0 => return Err(Violation::BodyTooShort),
            Some(length) => BodyLength::Length(length),
            None if end_stream => BodyLength::None,
            // The bytes of a tunnel are not content (RFC 9110 §9.3.6, RFC 8441 §5).
            None if head.extended_connect || head.method == Method::Connect => BodyLength::None,
            None => BodyLength::UntilClose,
        };
        if head.extended_connect && !head.body.is_empty() {
            return Err(Violation::ConnectWithBody);
        }
        head.upgrade = framing::upgrade_protocol(&head.fields, out);
        if head.extended_connect && head.upgrade.is_none() {
            return Err(Violation::ProtocolUnsupported);
        }
        parse::conclude(head, out)?;
        head.cursor = Cursor { phase: Phase::Complete, ..Cursor::default() };
        head.head_bytes = out.len();
        Ok(())
    }
}

fn scheme(value: &[u8]) -> Result<Scheme, Violation> {
    match value {
        _ if value.eq_ignore_ascii_case(b"https") => Ok(Scheme::Https),
        _ if value.eq_ignore_ascii_case(b"http") => Ok(Scheme::Http),
        _ => Err(Violation::TargetScheme),
    }
}

fn check_method(value: &[u8]) -> Result<(), Violation> {
    match value.len() {
        _ if !scan::is_token(value) => Err(Violation::MethodSyntax),
        0..=parse::LONGEST_METHOD_BYTES => Ok(()),
        _ => Err(Violation::MethodTooLong),
    }
}
