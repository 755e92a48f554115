//! A response head from decoded fields (RFC 9113 §8.3.2, RFC 9114 §4.3.2).

use super::{Lines, check_name, check_value};
use crate::body_length::BodyLength;
use crate::h1::{encode, framing};
use crate::known::KnownHeader;
use crate::limits::Limits;
use crate::message::{Cursor, Method, Phase, ResponseHead, Span, Version};
use crate::violation::Violation;

/// The request that was sent to the backend; it determines how a response is interpreted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The method as the client sent it: a response to HEAD has no body.
    pub method: Method,
    /// The protocol of the extended CONNECT, if it was one.
    pub upgrade: Option<&'a [u8]>,
}

/// Builds one [`ResponseHead`] from fields in their order of arrival, as [`super::RequestBuilder`] does for
/// requests.
///
/// A 2xx to an extended CONNECT becomes its HTTP/1.1 equivalent: a 101 that names the protocol
/// ([`ResponseHead::accepts_upgrade`]). A response that ends the stream with its head and could have had a
/// body gets `content-length: 0`, without which an HTTP/1.1 client would wait for one.
#[derive(Debug)]
pub struct ResponseBuilder<'a> {
    head: &'a mut ResponseHead,
    out: &'a mut Vec<u8>,
    lines: Lines,
    asked: Asked<'a>,
    has_status: bool,
    in_fields: bool,
}

impl<'a> ResponseBuilder<'a> {
    /// Begins a head; clears `head` first. Appends text to `out`, which is the buffer to pass to the head's
    /// methods afterwards. Use one builder for each interim response and one for the final one.
    pub fn new(
        version: Version,
        limits: &Limits,
        asked: Asked<'a>,
        head: &'a mut ResponseHead,
        out: &'a mut Vec<u8>,
    ) -> ResponseBuilder<'a> {
        head.clear();
        head.version = version;
        head.cursor.phase = Phase::FirstLine;
        let lines = Lines::of_head(limits);
        ResponseBuilder { head, out, lines, asked, has_status: false, in_fields: false }
    }

    /// Takes the next field.
    ///
    /// # Errors
    /// The response is malformed (RFC 9113 §8.1.1, RFC 9114 §4.1.2) or over a limit; the client gets 502.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        check_value(value)?;
        match name {
            [b':', ..] if self.in_fields => return Err(Violation::PseudoFieldLate),
            b":status" if self.has_status => return Err(Violation::PseudoFieldRepeated),
            b":status" => return self.write_status_line(value),
            [b':', ..] => return Err(Violation::PseudoFieldUnknown),
            _ => {}
        }
        let (known, flags) = check_name(name)?;
        if !self.has_status {
            return Err(Violation::PseudoFieldMissing);
        }
        self.in_fields = true;
        self.lines.pay(name, value)?;
        // RFC 9113 §8.2.2 allows it only in requests.
        if known == KnownHeader::Te {
            return Err(Violation::ConnectionField);
        }
        self.lines.push((name, known, flags), value, &mut self.head.fields, self.out)
    }

    fn write_status_line(&mut self, value: &[u8]) -> Result<(), Violation> {
        let &[hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', units @ b'0'..=b'9'] = value else {
            return Err(Violation::StatusSyntax);
        };
        self.has_status = true;
        let [hundreds, tens, units] = [hundreds, tens, units].map(|digit| u16::from(digit - b'0'));
        let mut status = hundreds * 100 + tens * 10 + units;
        //= https://www.rfc-editor.org/rfc/rfc9113#section-8.6
        //# HTTP/2 removes support for the 101 (Switching Protocols) informational status code
        if status == 101 {
            return Err(Violation::StatusNotAllowed);
        }
        // In RFC 8441 §5 a 2xx takes the place of HTTP/1.1's 101.
        let accepted = self.asked.upgrade.filter(|_| (200..300).contains(&status));
        if accepted.is_some() {
            status = 101;
        }
        let start = self.out.len();
        self.out.reserve(512);
        encode::write_status_line(self.out, status);
        self.head.status = status;
        self.head.reason = Span::new(start + 13, self.out.len() - 2);
        self.head.fields.start = self.out.len();
        if let Some(protocol) = accepted {
            let upgrade = (&b"upgrade"[..], KnownHeader::Upgrade, 0);
            self.lines.push(upgrade, protocol, &mut self.head.fields, self.out)?;
        }
        Ok(())
    }

    /// Ends the head. `end_stream` means that the stream ended with it, so that there is no body.
    ///
    /// # Errors
    /// As [`Self::field`]; `BodyTooShort` if a body was declared and none follows (threat C3).
    pub fn finish(mut self, end_stream: bool) -> Result<(), Violation> {
        if !self.has_status {
            return Err(Violation::PseudoFieldMissing);
        }
        let ResponseBuilder { head, out, lines, asked, .. } = &mut self;
        //= https://www.rfc-editor.org/rfc/rfc9113#section-8.1
        //# A HEADERS frame with the END_STREAM flag set that carries an
        //# informational status code is malformed (Section 8.1.1).
        if head.is_interim() && end_stream {
            return Err(Violation::StatusNotAllowed);
        }
        head.upgrade = framing::upgrade_protocol(&head.fields, out);
        if head.status == 101 {
            // The tunnel's bytes follow; they are no content, so there can be no length.
            if framing::content_length(&mut head.fields, out)?.is_some_and(|length| length > 0) {
                return Err(Violation::BodyNotAllowed);
            }
            (head.body, head.declared) = (BodyLength::None, None);
        } else {
            (head.body, head.declared) =
                framing::response_body(head.version, head.status, asked.method, &mut head.fields, out)?;
            match head.body {
                BodyLength::Length(length) if end_stream && length > 0 => {
                    return Err(Violation::BodyTooShort);
                }
                BodyLength::UntilClose if end_stream => {
                    let length = (&b"content-length"[..], KnownHeader::ContentLength, 0);
                    lines.count = usize::MAX;
                    lines.push(length, b"0", &mut head.fields, out)?;
                    (head.body, head.declared) = (BodyLength::Length(0), Some(0));
                }
                _ => {}
            }
        }
        lines.finish(&mut head.fields, out);
        head.tunnel =
            head.status == 101 || (asked.method == Method::Connect && (200..300).contains(&head.status));
        // The end of the stream does not end the connection, which always stays open.
        head.keep_alive = true;
        head.cursor = Cursor { phase: Phase::Complete, ..Cursor::default() };
        head.head_bytes = out.len();
        Ok(())
    }
}
