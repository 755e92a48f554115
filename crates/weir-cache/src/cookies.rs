//! Finds every text in a request's cookies that a backend might read as a cookie of a given name.
//!
//! Backends separate and spell cookies in several ways (RFC 6265 §5.4, RFC 2965 §3.3.4, and what frameworks
//! made of both): commas and spaces between pairs, spaces around the `=`, escapes in names, names in any
//! case. Whatever any of them may take for a keyed cookie is part of the key (threat E1).

use weir_http::form::unescape;

/// The texts in a `cookie` line that may be a cookie of that name, each up to the next semicolon. O(length of
/// the line).
pub(crate) fn named<'a>(line: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    line.split(|&byte| byte == b';').flat_map(move |pair| {
        let signs = pair.iter().enumerate().filter(|(_, byte)| **byte == b'=').map(|(at, _)| at);
        signs.filter_map(move |at| Some(pair.get(start_of(pair.get(..at)?, name)?..)?.trim_ascii()))
    })
}

/// The start of the name that ends a text, ignoring spaces after it.
fn start_of(before: &[u8], name: &[u8]) -> Option<usize> {
    let before = before.trim_ascii_end();
    // Each byte of the name takes at most three. A text that contains `=` is no name; stopping there avoids
    // scanning the same bytes again and again.
    let least = before.len().saturating_sub(3 * name.len() + 1);
    let parts = |byte: &u8| matches!(byte, b'=' | b',' | b' ' | b'\t');
    let start = match before.get(least..)?.iter().rposition(parts) {
        Some(at) if before.get(least + at) == Some(&b'=') => return None,
        Some(at) => least + at + 1,
        None if least > 0 => return None,
        None => 0,
    };
    is_spelt(before.get(start..)?, name).then_some(start)
}

/// Whether a text spells a name, in any case and with any of its bytes escaped.
fn is_spelt(mut text: &[u8], name: &[u8]) -> bool {
    let same = name.iter().all(|expected| {
        let Some(((byte, _), behind)) = unescape(text) else { return false };
        text = behind;
        byte.eq_ignore_ascii_case(expected)
    });
    same && text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Vec<String> {
        named(line.as_bytes(), b"lang").map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
    }

    #[test]
    fn a_cookie_is_found_however_some_backend_may_spell_it() {
        for (line, expected) in [
            ("lang=de; a=b", "lang=de"),
            ("a=b;lang=de ", "lang=de"),
            ("lang =de", "lang =de"),
            ("lang\t = de", "lang\t = de"),
            ("LanG=de", "LanG=de"),
            ("l%61n%67=de", "l%61n%67=de"),
            ("a=b, lang=de", "lang=de"),
            ("a=b,lang=de,c", "lang=de,c"),
            ("a=b lang=de", "lang=de"),
            ("a=\"1; lang=de\"", "lang=de\""),
            ("lang=", "lang="),
        ] {
            assert_eq!(found(line), [expected], "{line}");
        }
        assert_eq!(found("lang=1; lang=2"), ["lang=1", "lang=2"]);
    }

    #[test]
    fn what_only_looks_like_it_is_none() {
        for line in [
            "xlang=1",
            "langs=1",
            "a=lang",
            "a=lang=1",
            "lang",
            "note=my lang",
            "j={\"lang\":\"de\"}",
            "",
            "=",
            "=====",
        ] {
            assert_eq!(found(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn a_line_of_signs_is_read_in_linear_time() {
        let line = "=".repeat(1 << 20);
        assert_eq!(found(&line), Vec::<String>::new());
    }
}
