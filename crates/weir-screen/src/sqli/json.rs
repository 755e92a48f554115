//! Finds the strings in JSON, and checks whether a text is JSON, both without a tree and without recursion:
//! the depth of a body must not become the depth of our stack.

/// Calls `each` with every string of `text`, unescaped, and the key it belongs to (empty outside objects);
/// `is_key` says whether the string is a key. A string without its closing quote counts too, since the body
/// may have been cut off. Stops at the first `Some` from `each`, and returns it. O(n); `key` and `value` are
/// reusable buffers.
pub fn strings<T>(
    text: &[u8],
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
    mut each: impl FnMut(&[u8], &[u8], bool) -> Option<T>,
) -> Option<T> {
    key.clear();
    let mut at = 0;
    while let Some(from) = text.get(at..)?.iter().position(|&byte| byte == b'"') {
        at = unescape(text, at + from + 1, value);
        let behind = text.get(at..)?.iter().find(|byte| !byte.is_ascii_whitespace());
        let is_key = behind == Some(&b':');
        if let Some(found) = each(key, value, is_key) {
            return Some(found);
        }
        if is_key {
            std::mem::swap(key, value);
        }
    }
    None
}

/// Writes the string that begins at `at` into `out`, and returns the position after its closing quote.
fn unescape(text: &[u8], mut at: usize, out: &mut Vec<u8>) -> usize {
    out.clear();
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => return at,
            b'\\' => {
                let Some(&escaped) = text.get(at) else { return at };
                at += 1;
                match escaped {
                    b'n' => out.push(b'\n'),
                    b't' => out.push(b'\t'),
                    b'r' => out.push(b'\r'),
                    b'b' | b'f' => out.push(b' '),
                    b'u' => at += character(text, at, out),
                    other => out.push(other),
                }
            }
            byte => out.push(byte),
        }
    }
    at
}

/// Writes the character of the `XXXX` at `at`; returns the bytes consumed.
fn character(text: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    let digits = text.get(at..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
    let Some(code) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else { return 0 };
    // Surrogate pairs are not combined: no SQL needs the characters they stand for.
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    4
}

/// Deepest nesting of arrays and objects; parsers stop between 100 and 1,000.
const DEEPEST: usize = 500;

/// The token that may come next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
}

/// Whether `text` is JSON (RFC 8259), one text or several in a row, or the beginning of it, since a body may
/// have been cut off.
///
/// Lenient parsers accept strings in single quotes or without quotes, in which [`strings`] finds nothing.
/// Control characters in strings are accepted here, since they hide nothing. O(n); `open` is a reusable
/// buffer.
pub fn is_json(text: &[u8], open: &mut Vec<u8>) -> bool {
    open.clear();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let (mut at, mut due) = (0, Due::Value);
    loop {
        // Record separators come between the texts of `application/json-seq` (RFC 7464).
        let is_blank =
            |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n') || (*byte == 0x1e && open.is_empty());
        at += text.get(at..).unwrap_or_default().iter().take_while(|byte| is_blank(byte)).count();
        let Some(&byte) = text.get(at) else { return true };
        let behind = match (due, byte) {
            (Due::ValueOrEnd | Due::CommaOrEnd, b']') | (Due::KeyOrEnd | Due::CommaOrEnd, b'}') => {
                (open.pop() == Some(byte)).then_some(at + 1)
            }
            (Due::Value | Due::ValueOrEnd, b'[' | b'{') if open.len() < DEEPEST => {
                open.push(byte + 2);
                due = if byte == b'[' { Due::ValueOrEnd } else { Due::KeyOrEnd };
                at += 1;
                continue;
            }
            (Due::Value | Due::ValueOrEnd, b'"') => string_end(text, at + 1),
            (Due::Value | Due::ValueOrEnd, _) => scalar_end(text, at),
            (Due::Key | Due::KeyOrEnd, b'"') => {
                let Some(end) = string_end(text, at + 1) else { return false };
                (at, due) = (end, Due::Colon);
                continue;
            }
            (Due::Colon, b':') | (Due::CommaOrEnd, b',') => {
                due = if byte == b',' && open.last() == Some(&b'}') { Due::Key } else { Due::Value };
                at += 1;
                continue;
            }
            _ => None,
        };
        let Some(behind) = behind else { return false };
        at = behind;
        due = if open.is_empty() { Due::Value } else { Due::CommaOrEnd };
    }
}

/// The end of the string whose opening quote is just before `at`; the end of the text if the string does not
/// end before.
fn string_end(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match text.get(at) {
            None => return Some(text.len()),
            Some(b'"') => return Some(at + 1),
            Some(b'\\') => {
                let is_escape = match text.get(at + 1) {
                    None | Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => true,
                    Some(b'u') => text
                        .get(at + 2..)
                        .is_some_and(|digits| digits.iter().take(4).all(u8::is_ascii_hexdigit)),
                    Some(_) => false,
                };
                at = (at + 2).min(text.len());
                if !is_escape {
                    return None;
                }
            }
            Some(0) => return None,
            Some(_) => at += 1,
        }
    }
}

/// The end of the number or word at `at`.
fn scalar_end(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b']' | b'}' | 0x1e);
    let end = rest.iter().position(is_end).unwrap_or(rest.len());
    let (scalar, is_cut) = (rest.get(..end)?, end == rest.len());
    let words: [&[u8]; 3] = [b"true", b"false", b"null"];
    let is_word = words.into_iter().any(|word| scalar == word || (is_cut && word.starts_with(scalar)));
    (is_word || is_number(scalar, is_cut)).then_some(at + end)
}

fn is_number(text: &[u8], is_cut: bool) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut rest = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest.starts_with(b"0")) {
        return is_cut && rest.is_empty();
    }
    rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        rest = &fraction[count..];
        if count == 0 {
            return is_cut && rest.is_empty();
        }
    }
    if let Some(power) = rest.strip_prefix(b"e").or_else(|| rest.strip_prefix(b"E")) {
        let power = power.strip_prefix(b"-").or_else(|| power.strip_prefix(b"+")).unwrap_or(power);
        let count = digits(power);
        rest = &power[count..];
        return rest.is_empty() && (count > 0 || is_cut);
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, String, bool)> {
        let mut all = Vec::new();
        strings(text.as_bytes(), &mut Vec::new(), &mut Vec::new(), |key, value, is_key| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            all.push((text(key), text(value), is_key));
            None::<()>
        });
        all
    }

    #[test]
    fn strings_come_with_their_key_and_without_escapes() {
        let got = found(r#"{"a": "1\u0027 or\n\"x\"", "b":[1,"c"]}"#);
        let values: Vec<(&str, &str)> = got
            .iter()
            .filter(|(_, _, is_key)| !is_key)
            .map(|(key, value, _)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(values, [("a", "1' or\n\"x\""), ("b", "c")]);
        assert_eq!(got.iter().filter(|(_, _, is_key)| *is_key).count(), 2);
    }

    #[test]
    fn what_was_cut_within_a_string_is_still_looked_at() {
        assert_eq!(found(r#"["x' or 1=1"#), [(String::new(), "x' or 1=1".to_owned(), false)]);
        assert_eq!(found(r#"{"a":"\"#).len(), 2);
        assert_eq!(found(r#"{"a":"\u12"#).len(), 2);
    }

    fn is_good(text: &str) -> bool {
        is_json(text.as_bytes(), &mut Vec::new())
    }

    #[test]
    fn json_is_told_from_what_only_looks_like_it() {
        for text in [
            "",
            " {\"a\" : [1, -0.5e+3, \"b\\u0027\\n\", true, null, {}, []], \"\": {\"c\": 1E9}} ",
            "{\"a\": 1}\n{\"a\": 2}\n",
            "\u{1e}{\"a\": 1}\n\u{1e}[]\n",
            "\u{feff}[]",
            "\"a\nb\"",
            "17",
        ] {
            assert!(is_good(text), "{text}");
        }
        for text in [
            "{'a': '1 or 1=1'}",
            "{a: \"1\"}",
            "{\"a\": 1 or 1=1}",
            "{\"a\": x'}",
            "{\"a\"= \"1\"}",
            "{\"a\": 1; \"b\": 2}",
            "{\"a\": \"\\x27\"}",
            "{\"a\": \"\\u00zz\"}",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "[}",
            "]",
            "// a comment\n[]",
            "[01]",
            "[1.]",
            "[1e]",
            "[-]",
            "[NaN]",
            "nulll",
            "[\"\0\"]",
            "id=1",
        ] {
            assert!(!is_good(text), "{text}");
        }
        assert!(is_good(&"[".repeat(DEEPEST)) && !is_good(&"[".repeat(DEEPEST + 1)));
        let wide: Vec<u8> = "{\"a\": 1}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(!is_json(&wide, &mut Vec::new()));
    }

    #[test]
    fn json_is_json_wherever_it_is_cut() {
        let text = "{\"a\": [1, -0.5e+3, \"b\\u0027\\n\", true, null, {}], \"c\": {\"d\": 1E9}}";
        for end in 0..text.len() {
            assert!(is_good(&text[..end]), "{}", &text[..end]);
        }
    }
}
