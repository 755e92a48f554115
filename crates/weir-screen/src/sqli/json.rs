//! Finds the strings in JSON, without a tree and without recursion: a screen must not be more particular than the application's parser,
//! and not deeper than its own stack.

/// Calls `each` with every string of `text`, its escapes undone, and the key it belongs to (empty outside of objects); `is_key` says
/// whether it is one. A string without its second quote counts: the body may have been cut. Stops when `each` gives something, and gives
/// that. O(n); `key` and `value` are room that is used again.
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

/// Writes the string that begins at `at` into `out` and gives where it ends, behind its quote.
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

/// Writes the character of `XXXX` at `at`; gives the bytes it took.
fn character(text: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    let digits = text.get(at..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
    let Some(code) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else { return 0 };
    // Halves of a pair are not put together: no SQL is written with what they stand for.
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    4
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
}
