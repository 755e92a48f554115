//! Escapes bytes from a peer so that they are harmless in a log line (threat D11), with one rule per format.
//! It also limits their length, because a peer could otherwise make its line longer than a target accepts.

/// Most bytes of one value as written in a line. A longer value is cut, and ends with [`CUT`].
pub const VALUE_BYTES: usize = 4 << 10;
/// Appended to a value that was cut.
const CUT: &[u8] = b"...";

const UPPER: &[u8; 16] = b"0123456789ABCDEF";
const LOWER: &[u8; 16] = b"0123456789abcdef";

/// For the inside of a JSON string (RFC 8259 section 7). Bytes that are not UTF-8 become `\u00XX`, as if they
/// were Latin-1: the line stays valid JSON and still shows which bytes came.
pub fn json(out: &mut Vec<u8>, bytes: &[u8]) {
    bounded(out, bytes, |out, bytes| {
        for chunk in bytes.utf8_chunks() {
            json_text(out, chunk.valid().as_bytes());
            chunk.invalid().iter().for_each(|&byte| json_code(out, byte));
        }
    });
}

/// Escapes as much of `bytes` as there is room for.
fn bounded(out: &mut Vec<u8>, bytes: &[u8], escape: impl Fn(&mut Vec<u8>, &[u8])) {
    let start = out.len();
    // Most values are so short that no escaping makes them too long; and escaping never shortens a value.
    let mut first = bytes.len().min(VALUE_BYTES);
    escape(out, &bytes[..first]);
    if first == bytes.len() && out.len() - start <= VALUE_BYTES {
        return;
    }
    // Finds by bisection the longest part that fits, in whole characters and whole escapes; a longer part
    // never gets shorter by escaping.
    let room = VALUE_BYTES - CUT.len();
    let mut least = 0;
    while least < first {
        let middle = first - (first - least) / 2;
        out.truncate(start);
        escape(out, &bytes[..middle]);
        match out.len() - start <= room {
            true => least = middle,
            false => first = middle - 1,
        }
    }
    out.truncate(start);
    escape(out, &bytes[..whole_characters(bytes, least)]);
    out.extend_from_slice(CUT);
}

/// Where a text that is cut at `at` must end so that no UTF-8 character is split.
fn whole_characters(bytes: &[u8], at: usize) -> usize {
    let begins = |at: &usize| bytes.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    // A character has four bytes at most; text that is not UTF-8 is cut anywhere.
    (at.saturating_sub(3)..=at).rev().find(begins).unwrap_or(at)
}

/// The first byte of U+0080 to U+00BF in UTF-8. Up to U+009F these are control characters, which some
/// terminals act on.
const BEFORE_C1: u8 = 0xc2;

fn json_text(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    let is_special = |&byte: &u8| byte < 0x20 || matches!(byte, b'"' | b'\\' | 0x7f | BEFORE_C1);
    while let Some(at) = rest.iter().position(is_special) {
        out.extend_from_slice(&rest[..at]);
        let mut taken = 1;
        match rest[at..] {
            [byte @ (b'"' | b'\\'), ..] => out.extend_from_slice(&[b'\\', byte]),
            [BEFORE_C1, byte @ 0x80..=0x9f, ..] => {
                json_code(out, byte);
                taken = 2;
            }
            [BEFORE_C1, ..] => out.push(BEFORE_C1),
            [byte, ..] => json_code(out, byte),
            [] => {}
        }
        rest = &rest[at + taken..];
    }
    out.extend_from_slice(rest);
}

fn json_code(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(b"\\u00");
    out.extend_from_slice(&hex(byte, LOWER));
}

/// Like nginx's log by default: `\xHH` for quotes, backslashes and everything that is not printable ASCII.
pub fn combined(out: &mut Vec<u8>, bytes: &[u8]) {
    value(out, bytes, |_| false);
}

/// Like HAProxy: `#HH` for quotes, `#` and everything that is not printable ASCII.
pub fn haproxy(out: &mut Vec<u8>, bytes: &[u8]) {
    let special = |byte| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'#');
    bounded(out, bytes, |out, bytes| escape(out, bytes, special, b"#"));
}

/// As [`combined`], and also escapes bytes for which `ends` is true because they would end the value.
pub fn value(out: &mut Vec<u8>, bytes: &[u8], ends: impl Fn(u8) -> bool) {
    let special = |byte| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\') || ends(byte);
    bounded(out, bytes, |out, bytes| escape(out, bytes, special, b"\\x"));
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
        // Some terminals take the first character for the beginning of a command.
        assert_eq!(
            escaped(json, "\u{9b}31m\u{80}\u{9f}\u{a0}\u{bf}".as_bytes()),
            "\\u009b31m\\u0080\\u009f\u{a0}\u{bf}"
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

    #[test]
    fn a_long_value_is_cut_at_a_character_and_says_so() {
        for (bytes, whole) in [
            (b"x".repeat(VALUE_BYTES), true),
            (b"x".repeat(VALUE_BYTES + 1), false),
            ("é".repeat(60_000).into_bytes(), false),
            (("x".to_owned() + &"€".repeat(60_000)).into_bytes(), false),
            (b"\x80".repeat(60_000), false),
            (b"\"".repeat(3_000), false),
        ] {
            let json = escaped(json, &bytes);
            let read: String = serde_json::from_str(&format!("\"{json}\"")).unwrap();
            assert_eq!(!read.ends_with("..."), whole, "{json}");
            assert!(!read.starts_with(['x', 'é', '€']) || !read.contains('\u{e2}'), "cut within a character");
            for text in [json, escaped(combined, &bytes), escaped(haproxy, &bytes)] {
                assert!((VALUE_BYTES - 12..=VALUE_BYTES).contains(&text.len()) || whole, "{}", text.len());
            }
        }
    }
}
