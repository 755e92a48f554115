//! Undoes the encodings in which a value may reach the application.

/// Writes `text` into `out` (cleared first) with percent escapes decoded, `%u0027` too; `plus` says whether
/// `+` is a space. An invalid escape stays as it is. True when anything changed. O(n).
pub fn percent_into(text: &[u8], plus: bool, out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut changed = false;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let escaped = if byte == b'%' { escape(text, at + 1) } else { None };
        match escaped {
            Some((code, length)) => {
                push_code(code, out);
                at += 1 + length;
                changed = true;
            }
            None if byte == b'+' && plus => {
                out.push(b' ');
                at += 1;
                changed = true;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    changed
}

/// Like [`percent_into`], but drops every `%` that begins no escape: IIS does so, which turns `s%elect` into
/// a word. True when there was one.
pub fn percent_without_strays_into(text: &[u8], plus: bool, out: &mut Vec<u8>) -> bool {
    let is_stray = |at: usize| text.get(at) == Some(&b'%') && escape(text, at + 1).is_none();
    if !(0..text.len()).any(is_stray) {
        return false;
    }
    let kept: Vec<u8> =
        (0..text.len()).filter(|&at| !is_stray(at)).filter_map(|at| text.get(at).copied()).collect();
    percent_into(&kept, plus, out);
    true
}

/// The escape after a `%`: a byte, or `uXXXX`; and its length in bytes.
fn escape(text: &[u8], at: usize) -> Option<(Code, usize)> {
    if let Some(byte) = hex(text.get(at..at + 2)?) {
        return Some((Code::Byte(byte as u8), 2));
    }
    match text.get(at)? {
        b'u' | b'U' => hex(text.get(at + 1..at + 5)?).map(|code| (Code::Character(code), 5)),
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum Code {
    Byte(u8),
    Character(u32),
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |sum, &digit| Some(sum * 16 + char::from(digit).to_digit(16)?))
}

fn push_code(code: Code, out: &mut Vec<u8>) {
    match code {
        Code::Byte(byte) => out.push(byte),
        Code::Character(code) => {
            let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

/// Writes `text` into `out` (cleared first) with one more layer decoded: percent escapes, HTML character
/// references, escapes of JSON and JavaScript, full-width forms, and overlong UTF-8. True when anything
/// changed. O(n).
pub fn fold_into(text: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut changed = false;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let (code, length) = match layer(text, at, byte) {
            Some(found) => found,
            None => {
                out.push(byte);
                at += 1;
                continue;
            }
        };
        push_code(code, out);
        at += length;
        changed = true;
    }
    changed
}

fn layer(text: &[u8], at: usize, byte: u8) -> Option<(Code, usize)> {
    match byte {
        b'%' => escape(text, at + 1).map(|(code, length)| (code, length + 1)),
        b'&' => reference(text.get(at + 1..)?).map(|(code, length)| (code, length + 1)),
        b'\\' => match text.get(at + 1)? {
            b'u' => hex(text.get(at + 2..at + 6)?).map(|code| (Code::Character(code), 6)),
            b'x' => hex(text.get(at + 2..at + 4)?).map(|code| (Code::Byte(code as u8), 4)),
            // In octal, as in quoted cookies of Python.
            b'0' | b'1' => {
                let octal = |sum: u32, &digit: &u8| Some(sum * 8 + char::from(digit).to_digit(8)?);
                text.get(at + 1..at + 4)?.iter().try_fold(0, octal).map(|code| (Code::Byte(code as u8), 4))
            }
            _ => None,
        },
        // U+FF01 to U+FF5E stand for `!` to `~`.
        0xef => {
            let (second, third) = (*text.get(at + 1)?, *text.get(at + 2)?);
            let code = 0xf000 | (u32::from(second & 0x3f) << 6) | u32::from(third & 0x3f);
            let is_wide = matches!(second, 0xbc | 0xbd) && (0xff01..=0xff5e).contains(&code);
            is_wide.then(|| (Code::Byte((code - 0xff01 + 0x21) as u8), 3))
        }
        // U+02BC and U+02B9: some conversions turn them into apostrophes.
        0xca => matches!(text.get(at + 1)?, 0xbc | 0xb9).then_some((Code::Byte(b'\''), 2)),
        0xc0 | 0xc1 => {
            let second = *text.get(at + 1)?;
            (second & 0xc0 == 0x80).then_some((Code::Byte(((byte & 1) << 6) | (second & 0x3f)), 2))
        }
        // The same in three and four bytes (overlong UTF-8).
        0xe0 => too_long(text.get(at + 1..at + 3)?),
        0xf0 => too_long(text.get(at + 1..at + 4)?),
        _ => None,
    }
}

/// An ASCII character in overlong UTF-8; `behind` is what follows its first byte.
fn too_long(behind: &[u8]) -> Option<(Code, usize)> {
    let code = behind
        .iter()
        .try_fold(0_u32, |code, &byte| (byte & 0xc0 == 0x80).then(|| (code << 6) | u32::from(byte & 0x3f)))?;
    (code < 0x80).then_some((Code::Byte(code as u8), 1 + behind.len()))
}

/// A character reference after its `&`.
fn reference(text: &[u8]) -> Option<(Code, usize)> {
    const NAMED: [(&[u8], u8); 11] = [
        (b"quot;", b'"'),
        (b"apos;", b'\''),
        (b"lt;", b'<'),
        (b"gt;", b'>'),
        (b"amp;", b'&'),
        (b"lpar;", b'('),
        (b"rpar;", b')'),
        (b"equals;", b'='),
        (b"semi;", b';'),
        (b"num;", b'#'),
        (b"comma;", b','),
    ];
    if let Some(digits) = text.strip_prefix(b"#") {
        let (digits, radix, mark) = match digits.first()? {
            b'x' | b'X' => (digits.get(1..)?, 16, 2),
            _ => (digits, 10, 1),
        };
        let count = digits.iter().take(7).take_while(|&&digit| char::from(digit).is_digit(radix)).count();
        if count == 0 {
            return None;
        }
        let code = digits.get(..count)?.iter().try_fold(0_u32, |sum, &digit| {
            sum.checked_mul(radix)?.checked_add(char::from(digit).to_digit(radix)?)
        })?;
        let semicolon = usize::from(digits.get(count) == Some(&b';'));
        return Some((Code::Character(code), mark + count + semicolon));
    }
    NAMED.iter().find(|(name, _)| text.starts_with(name)).map(|(name, byte)| (Code::Byte(*byte), name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(text: &str) -> String {
        let mut out = Vec::new();
        percent_into(text.as_bytes(), true, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn folded(text: &str) -> String {
        let mut out = Vec::new();
        fold_into(text.as_bytes(), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn percent_escapes_and_plus_signs_are_undone_and_broken_escapes_stay() {
        assert_eq!(percent("1%27+or%201%3d1"), "1' or 1=1");
        assert_eq!(percent("%u0027%2"), "'%2");
        assert_eq!(percent("100% of %zz"), "100% of %zz");
        let mut out = Vec::new();
        assert!(percent_without_strays_into(b"1%27+un%ion%", true, &mut out));
        assert_eq!(out, b"1' union");
        assert!(!percent_without_strays_into(b"1%27", true, &mut out));
    }

    #[test]
    fn each_further_layer_is_undone_once() {
        assert_eq!(folded("1%2527"), "1%27");
        assert_eq!(folded("&#39;&#x27;&apos;&#0000039"), "''''");
        assert_eq!(folded("\\u0027\\x27"), "''");
        assert_eq!(folded("\u{ff07}\u{ff4f}\u{ff52}"), "'or");
        let mut out = Vec::new();
        for long in [&b"\xc0\xa7"[..], b"\xe0\x80\xa7", b"\xf0\x80\x80\xa7"] {
            assert!(fold_into(long, &mut out));
            assert_eq!(out, b"'");
        }
        assert_eq!(folded("\\047\\139\\8"), "'\\139\\8");
    }

    #[test]
    fn text_without_layers_is_told_apart() {
        let mut out = Vec::new();
        assert!(!fold_into("R&D at 5 % é \u{ff9f}".as_bytes(), &mut out));
        assert!(!percent_into(b"plain", true, &mut out));
    }
}
