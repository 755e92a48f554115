//! Small writers for HTTP/1.1 text.

use crate::message::Version;
pub use crate::own::OwnResponse;

/// Writes a number in decimal.
pub fn write_decimal(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(Digits::default().of(value));
}

/// Room for the decimal digits of one number.
#[derive(Default)]
pub(crate) struct Digits([u8; 20]);

impl Digits {
    /// The digits of `value`, without leading zeros.
    #[inline]
    pub(crate) fn of(&mut self, mut value: u64) -> &[u8] {
        let mut start = self.0.len();
        for slot in self.0.iter_mut().rev() {
            *slot = b'0' + (value % 10) as u8;
            value /= 10;
            start -= 1;
            if value == 0 {
                break;
            }
        }
        self.0.get(start..).unwrap_or_default()
    }
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

/// The reason phrase of a status in RFC 9110 §15 and the IANA registry; empty for others.
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
        508 => "Loop Detected",
        _ => "",
    }
}

/// Writes `HTTP/1.1 200 OK` CRLF. `status` is limited to three digits.
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

/// Writes the `connection` line that this version needs to know whether the connection stays open (RFC 9112
/// §9.3), if any.
pub(crate) fn write_connection(keep_alive: bool, version: Version, out: &mut Vec<u8>) {
    match (keep_alive, version) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, _) => {}
    }
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
