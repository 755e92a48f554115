//! Byte classes and word-at-a-time searches: the only loops that touch every byte of a head.

/// Allowed in a token: method, field name, connection option (RFC 9110 §5.6.2).
pub(crate) const TOKEN: u8 = 1;
/// Allowed in the path part of a request-target.
pub(crate) const PATH: u8 = 2;
/// Allowed in the query part of a request-target.
pub(crate) const QUERY: u8 = 4;
/// Means that a path may need normalising: `%` and `.`.
pub(crate) const PATH_ATTENTION: u8 = 8;
/// Underscore, which many backends read as a dash.
pub(crate) const UNDERSCORE: u8 = 16;
/// Hexadecimal digit.
pub(crate) const HEX: u8 = 32;
/// Allowed literally in a registered name: unreserved and sub-delims (RFC 3986 §3.2.2), except for the comma,
/// which in a field looks like a list of two hosts (threat A14).
pub(crate) const HOST: u8 = 64;
/// Unreserved (RFC 3986 §2.3): equivalent whether encoded or not.
pub(crate) const UNRESERVED: u8 = 128;

/// Classes of every byte.
///
/// Paths and queries may contain what RFC 3986 allows, and the bytes that browsers following the URL Standard
/// do not encode (`[ ] ^ { | }` and backtick; `\` only in queries). They always encode `"`, `#`, `<` and `>`.
pub(crate) static CLASS: [u8; 256] = classes();

const fn contains(set: &[u8], byte: u8) -> bool {
    let mut index = 0;
    while index < set.len() {
        if set[index] == byte {
            return true;
        }
        index += 1;
    }
    false
}

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let byte = index as u8;
        let mut class = 0;
        if byte.is_ascii_alphanumeric() || contains(b"!#$%&'*+-.^_`|~", byte) {
            class |= TOKEN;
        }
        if byte.is_ascii_graphic() && !contains(b"\"#<>", byte) {
            class |= QUERY;
            if !contains(b"\\?", byte) {
                class |= PATH;
            }
        }
        if contains(b"%.", byte) {
            class |= PATH_ATTENTION;
        }
        if byte == b'_' {
            class |= UNDERSCORE;
        }
        if byte.is_ascii_hexdigit() {
            class |= HEX;
        }
        let unreserved = byte.is_ascii_alphanumeric() || contains(b"-._~", byte);
        if unreserved {
            class |= UNRESERVED;
        }
        if unreserved || contains(b"!$&'()*+;=", byte) {
            class |= HOST;
        }
        table[index] = class;
        index += 1;
    }
    table
}

/// Whether `byte` is of `class`.
#[inline(always)]
pub(crate) fn is(byte: u8, class: u8) -> bool {
    CLASS[byte as usize] & class != 0
}

/// Whether `text` is one token.
pub(crate) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is(byte, TOKEN))
}

/// Whether `text` is valid as a field value: no control bytes except tab (RFC 9110 §5.5).
pub(crate) fn is_field_value(text: &[u8]) -> bool {
    control_from(text, 0).is_none()
}

/// `text` without spaces and tabs at both ends (RFC 9110 §5.6.3).
pub(crate) fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Sets the high bit of bytes below 0x20 and of 0x7f. The lowest mark is always right; borrows can only cause
/// wrong ones above a right one.
#[inline(always)]
fn control_marks(word: u64) -> u64 {
    let below_space = word.wrapping_sub(ONES * 0x20) & !word;
    let delete = word ^ (ONES * 0x7f);
    let is_delete = delete.wrapping_sub(ONES) & !delete;
    (below_space | is_delete) & HIGH
}

/// Longest name, in words, that [`name_length`] searches.
const NAME_WORDS: usize = 3;

/// Number of bytes before the first colon of `text`; `None` if there is none in the whole words at its
/// beginning. The bytes are not validated.
#[inline(always)]
pub(crate) fn name_length(text: &[u8]) -> Option<usize> {
    for (number, word) in text.as_chunks::<8>().0.iter().take(NAME_WORDS).enumerate() {
        let differs = u64::from_le_bytes(*word) ^ (ONES * b':' as u64);
        // The lowest mark is always right, as in `control_marks`.
        let marks = differs.wrapping_sub(ONES) & !differs & HIGH;
        if marks != 0 {
            return Some(number * 8 + (marks.trailing_zeros() / 8) as usize);
        }
    }
    None
}

/// Position of the first control byte other than tab at or after `at`; `None` when there is none.
#[inline(always)]
pub(crate) fn control_from(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at = any_control_from(text, at)?;
        if text.get(at) != Some(&b'\t') {
            return Some(at);
        }
        at += 1;
    }
}

#[inline(always)]
fn any_control_from(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let (words, tail) = rest.as_chunks::<8>();
    let mut offset = at;
    for word in words {
        let marks = control_marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return Some(offset + (marks.trailing_zeros() / 8) as usize);
        }
        offset += 8;
    }
    tail.iter().position(|&byte| byte < 0x20 || byte == 0x7f).map(|position| offset + position)
}

/// Parses a decimal number of 1 to 19 digits that is below 2^63; `None` for anything else, including signs
/// and spaces.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    (value <= i64::MAX as u64).then_some(value)
}

/// Value of a hexadecimal digit.
pub(crate) fn hex_value(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_control_byte_is_found_at_every_offset_and_length() {
        for length in 0..40 {
            for position in 0..length {
                for byte in (0..=255_u8).filter(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
                    let mut text = vec![0x80 | (position as u8); length];
                    text[length / 2] = b'\t';
                    text[position] = byte;
                    assert_eq!(control_from(&text, 0), Some(position), "{text:02x?}");
                    assert_eq!(control_from(&text, position + 1), None);
                }
            }
        }
    }

    #[test]
    fn the_first_colon_is_found_in_whole_words_and_no_other_byte_is_taken_for_it() {
        for byte in (0..=255_u8).filter(|byte| *byte != b':') {
            for position in 0..30 {
                let mut text = [byte; 36];
                text[position..].fill(b':');
                assert_eq!(name_length(&text), (position < 24).then_some(position), "{byte:#x}");
                assert_eq!(name_length(&text[..position]), None);
            }
        }
        assert_eq!(name_length(b"te: abc"), None, "no whole word");
    }

    #[test]
    fn visible_bytes_and_obs_text_are_no_controls() {
        let text: Vec<u8> = (0x20..0x7f).chain(0x80..=0xff).chain(*b"\t\t").collect();
        assert_eq!(control_from(&text, 0), None);
    }

    #[test]
    fn a_decimal_number_is_digits_only() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"9223372036854775807"), Some(i64::MAX as u64));
        for bad in
            ["", "9223372036854775808", "99999999999999999999", "+5", "-1", "0x5", "5_0", " 5", "5 ", "5,5"]
        {
            assert_eq!(decimal(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
