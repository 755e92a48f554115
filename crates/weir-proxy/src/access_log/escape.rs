//! Bytes of a peer made harmless in a log line (threat D11), one rule per format.

const UPPER: &[u8; 16] = b"0123456789ABCDEF";
const LOWER: &[u8; 16] = b"0123456789abcdef";

/// Between the quotes of a JSON string (RFC 8259 section 7). Bytes that are not UTF-8 become `\u00XX`, as if
/// they were Latin-1: the line stays valid JSON and still shows which bytes came.
pub fn json(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        json_text(out, chunk.valid().as_bytes());
        chunk.invalid().iter().for_each(|&byte| json_code(out, byte));
    }
}

fn json_text(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte < 0x20 || matches!(byte, b'"' | b'\\' | 0x7f)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            byte @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
            byte => json_code(out, byte),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

fn json_code(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(b"\\u00");
    out.extend_from_slice(&hex(byte, LOWER));
}

/// As nginx does in its log by default: `\xHH` for quotes, backslashes and everything that is not printable
/// ASCII.
pub fn combined(out: &mut Vec<u8>, bytes: &[u8]) {
    escape(out, bytes, |byte| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\'), b"\\x");
}

/// As HAProxy does: `#HH` for quotes, `#` and everything that is not printable ASCII.
pub fn haproxy(out: &mut Vec<u8>, bytes: &[u8]) {
    escape(out, bytes, |byte| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'#'), b"#");
}

/// As [`combined`], and what else `ends` a value where it stands.
pub fn value(out: &mut Vec<u8>, bytes: &[u8], ends: impl Fn(u8) -> bool) {
    let is_special = |byte| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\') || ends(byte);
    escape(out, bytes, is_special, b"\\x");
}

fn escape(out: &mut Vec<u8>, bytes: &[u8], special: impl Fn(u8) -> bool, prefix: &[u8]) {
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|&byte| special(byte)) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(prefix);
        out.extend_from_slice(&hex(rest[at], UPPER));
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

fn hex(byte: u8, digits: &[u8; 16]) -> [u8; 2] {
    [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(with: impl Fn(&mut Vec<u8>, &[u8]), bytes: &[u8]) -> String {
        let mut out = Vec::new();
        with(&mut out, bytes);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_keeps_utf8_and_escapes_what_would_end_the_string_or_the_line() {
        assert_eq!(
            escaped(json, "a\"b\\c\r\n\0é\u{7f}".as_bytes()),
            "a\\\"b\\\\c\\u000d\\u000a\\u0000é\\u007f"
        );
        assert_eq!(escaped(json, b"\xff\xc3("), "\\u00ff\\u00c3(");
    }

    #[test]
    fn combined_escapes_as_nginx_does() {
        assert_eq!(escaped(combined, b"GET /\"\\\x1b[31m\xe9\n"), "GET /\\x22\\x5C\\x1B[31m\\xE9\\x0A");
    }

    #[test]
    fn haproxy_escapes_with_a_number_sign() {
        assert_eq!(escaped(haproxy, b"/a b#\"\n\xff\\"), "/a b#23#22#0A#FF\\");
    }
}
