//! The one path normalisation, used for routing, for cache keys, and for what backends get (threat A25).
//!
//! - escapes of unreserved bytes are decoded, others keep upper-case digits (RFC 3986 §6.2.2.1, §6.2.2.2);
//! - dot segments are resolved, also when written `%2e` (RFC 3986 §5.2.4); a path that climbs above its root
//!   is refused rather than cut;
//! - `%2F` stays encoded: it is data, not a separator;
//! - empty segments (`//`) stay: many backends treat them as different resources. Other backends do not, and
//!   for those `//admin` would reach what a route on `/admin` did not match: for them there is
//!   [`normalise_merging_into`];
//! - `;` parameters are part of their segment: `/..;/` does not climb here, and is refused because some
//!   servers drop the parameter and then climb;
//! - backslashes and encoded control bytes are refused, and so are malformed escapes.
//!
//! Bytes of 0x80 and above can only arrive encoded, and stay encoded.

use std::borrow::Cow;

use crate::scan::{self, PATH, UNRESERVED};
use crate::violation::Violation;

/// Normalises a path that begins with `/`. If it is already normal it is borrowed, after one scan; that does
/// not allocate unless the path has escapes or segments that begin with a dot.
///
/// An empty path (asterisk- and authority-form) is returned as it is.
///
/// # Errors
/// `PathEscape`, `PathForbiddenByte`, `PathAboveRoot`: answer 400.
pub fn normalise(raw: &[u8]) -> Result<Cow<'_, [u8]>, Violation> {
    if is_normal(raw) {
        return Ok(Cow::Borrowed(raw));
    }
    let mut out = Vec::new();
    if normalise_into(raw, &mut out)? { Ok(Cow::Owned(out)) } else { Ok(Cow::Borrowed(raw)) }
}

/// As [`normalise`], but writes into `out`, which is cleared first and keeps its allocation. Returns false
/// when `raw` is already normal; `out` is then equal to it.
pub fn normalise_into(raw: &[u8], out: &mut Vec<u8>) -> Result<bool, Violation> {
    out.clear();
    out.reserve(raw.len());
    let mut segments = raw.split(|&byte| byte == b'/');
    // The text before the first slash; empty, since the path begins with one.
    let before = segments.next().unwrap_or_default();
    decode_segment(before, out)?;
    let root = out.len();
    let mut segments = segments.peekable();
    while let Some(segment) = segments.next() {
        let start = out.len();
        out.push(b'/');
        decode_segment(segment, out)?;
        let name = out.get(start + 1..).unwrap_or_default();
        let is_last = segments.peek().is_none();
        match name {
            b"." => out.truncate(if is_last { start + 1 } else { start }),
            b".." => {
                let parent = out.get(root..start).unwrap_or_default();
                let slash = parent.iter().rposition(|&byte| byte == b'/').ok_or(Violation::PathAboveRoot)?;
                out.truncate(root + slash + usize::from(is_last));
            }
            [b'.', b'.', b';', ..] => return Err(Violation::PathAboveRoot),
            _ => {}
        }
    }
    Ok(out != raw)
}

/// As [`normalise_into`], but merges runs of slashes into one, after dot segments are resolved.
///
/// # Errors
/// As [`normalise`].
pub fn normalise_merging_into(raw: &[u8], out: &mut Vec<u8>) -> Result<bool, Violation> {
    normalise_into(raw, out)?;
    out.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    Ok(out != raw)
}

/// Whether a segment is `.` or `..`, or `..` with a parameter that some servers drop; also with a dot written
/// `%2e`. No normal path has one, but a rewrite can produce one: `/files/` in front of `../secret`.
pub fn has_dot_segment(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(is_dots)
}

fn is_dots(segment: &[u8]) -> bool {
    let (mut rest, mut dots) = (segment, 0);
    loop {
        rest = match rest {
            [b'.', behind @ ..] | [b'%', b'2', b'e' | b'E', behind @ ..] => behind,
            _ => break,
        };
        dots += 1;
    }
    matches!((dots, rest), (1 | 2, b"") | (2, [b';', ..]))
}

/// Whether a path has two slashes in a row, so that merging would change it.
pub fn has_empty_segment(path: &[u8]) -> bool {
    path.windows(2).any(|pair| pair == b"//")
}

/// Whether the path is certainly normal: no escape, no segment that begins with a dot, no forbidden byte.
fn is_normal(raw: &[u8]) -> bool {
    let mut before = b'/';
    raw.iter().all(|&byte| {
        let good = scan::is(byte, PATH) && byte != b'%' && !(byte == b'.' && before == b'/');
        before = byte;
        good
    })
}

fn decode_segment(segment: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
    let mut rest = segment;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte != b'%' {
            if !scan::is(*byte, PATH) {
                return Err(Violation::PathForbiddenByte);
            }
            out.push(*byte);
            continue;
        }
        let [high, low, tail @ ..] = tail else { return Err(Violation::PathEscape) };
        let (Some(high), Some(low)) = (scan::hex_value(*high), scan::hex_value(*low)) else {
            return Err(Violation::PathEscape);
        };
        rest = tail;
        let decoded = high << 4 | low;
        if decoded.is_ascii_control() || decoded == b'\\' {
            return Err(Violation::PathForbiddenByte);
        }
        if scan::is(decoded, UNRESERVED) {
            out.push(decoded);
        } else {
            out.extend_from_slice(&[b'%', upper_digit(high), upper_digit(low)]);
        }
    }
    Ok(())
}

fn upper_digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'A' + value - 10 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(raw: &str) -> Result<String, Violation> {
        normalise(raw.as_bytes()).map(|path| String::from_utf8(path.into_owned()).unwrap())
    }

    #[test]
    fn one_documented_normalisation_is_applied() {
        for (raw, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/index.html", "/index.html"),
            ("/%7euser", "/~user"),
            ("/%41%2d%5F", "/A-_"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%3ab%c3%a9", "/a%3Ab%C3%A9"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e", "/"),
            ("/a/b/..", "/a/"),
            ("/a/b/.", "/a/b/"),
            ("/.", "/"),
            ("/a//b", "/a//b"),
            ("/a//../b", "/a/b"),
            ("//", "//"),
            ("/a;x/b", "/a;x/b"),
            ("/.../.x/x.", "/.../.x/x."),
            ("/a/..x/..%41", "/a/..x/..A"),
            ("", ""),
        ] {
            assert_eq!(normal(raw).as_deref(), Ok(expected), "{raw}");
        }
    }

    #[test]
    fn a_path_that_hides_something_is_refused() {
        for (raw, violation) in [
            ("/%00", Violation::PathForbiddenByte),
            ("/a%0d%0ab", Violation::PathForbiddenByte),
            ("/a%7f", Violation::PathForbiddenByte),
            ("/a\\b", Violation::PathForbiddenByte),
            ("/a%5cb", Violation::PathForbiddenByte),
            ("/a%", Violation::PathEscape),
            ("/a%2", Violation::PathEscape),
            ("/a%2/b", Violation::PathEscape),
            ("/%zz", Violation::PathEscape),
            ("/%u002e", Violation::PathEscape),
            ("/..", Violation::PathAboveRoot),
            ("/a/../..", Violation::PathAboveRoot),
            ("/a/%2e%2e/%2e%2e/b", Violation::PathAboveRoot),
            ("/a/..;/b", Violation::PathAboveRoot),
            ("/a/%2e%2e;x/b", Violation::PathAboveRoot),
        ] {
            assert_eq!(normal(raw), Err(violation), "{raw}");
        }
    }

    #[test]
    fn a_normal_path_is_borrowed() {
        for raw in ["/", "/a/b;c=d/", "/index.html", "/a%2Fb", "*"] {
            assert!(matches!(normalise(raw.as_bytes()), Ok(Cow::Borrowed(_))), "{raw}");
        }
    }

    #[test]
    fn double_encoding_is_decoded_once_only() {
        assert_eq!(normal("/%252e%252e/").as_deref(), Ok("/%252e%252e/"));
        assert_eq!(normal("/%25%32%65").as_deref(), Ok("/%252e"));
    }

    #[test]
    fn dot_segments_are_found_wherever_they_stand_and_nothing_else_is() {
        for path in [
            "/files/../secret",
            "/files/..",
            "/files/.",
            "/./x",
            "/a/..;x/b",
            "/..;",
            "..",
            "/%2e%2E/a",
            "/a/.%2e;b",
            "/%2e",
        ] {
            assert!(has_dot_segment(path.as_bytes()), "{path}");
        }
        for path in
            ["/", "", "/files/..x", "/files/x..", "/.../.x/x.", "/a/.;x", "/a/..%2Fb", "/%2e%2f", "/%252e"]
        {
            assert!(!has_dot_segment(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn merging_leaves_no_empty_segment_and_nothing_else_changes() {
        for (raw, expected) in [
            ("//admin", "/admin"),
            ("///a////b//", "/a/b/"),
            ("/a/..//b", "/b"),
            ("/a//../b", "/a/b"),
            ("/%2f/a", "/%2F/a"),
            ("/a/%2e//b", "/a/b"),
            ("//", "/"),
            ("/", "/"),
            ("", ""),
        ] {
            let mut out = Vec::new();
            let changed = normalise_merging_into(raw.as_bytes(), &mut out).unwrap();
            assert_eq!(String::from_utf8_lossy(&out), expected, "{raw}");
            assert_eq!(changed, raw != expected, "{raw}");
            assert!(!has_empty_segment(&out));
            assert!(!normalise_merging_into(expected.as_bytes(), &mut out).unwrap(), "{raw}: not settled");
        }
        assert!(has_empty_segment(b"/a//") && !has_empty_segment(b"/a/b/"));
        assert!(normalise_merging_into(b"/..//a", &mut Vec::new()).is_err());
    }
}
