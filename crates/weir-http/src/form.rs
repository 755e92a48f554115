//! Names and values of a query or a form (application/x-www-form-urlencoded), as backends decode them:
//! escapes, and `+` for a space. Malformed escapes are taken literally.

use std::borrow::Cow;

/// The first byte of a text, whether it was escaped, and the text after it; `None` at the end.
pub fn unescape(text: &[u8]) -> Option<((u8, bool), &[u8])> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    if let [b'%', high, low, behind @ ..] = text
        && let (Some(high), Some(low)) = (digit(high), digit(low))
    {
        return Some((((high << 4 | low) as u8, true), behind));
    }
    let (byte, behind) = text.split_first()?;
    Some(((*byte, false), behind))
}

/// The decoded bytes, one by one. Does not allocate.
pub fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, behind) = unescape(rest)?;
        rest = behind;
        Some(if byte == (b'+', false) { b' ' } else { byte.0 })
    })
}

/// Whether the decoded bytes equal `wanted`. Does not allocate.
pub fn is(text: &[u8], wanted: &[u8]) -> bool {
    decoded(text).eq(wanted.iter().copied())
}

/// All decoded bytes. Allocates only if there is something to decode.
pub fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    match text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        true => Cow::Owned(decoded(text).collect()),
        false => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_pluses_are_decoded_and_what_is_no_escape_stays() {
        for (text, bytes) in
            [("a+b%2Bc", "a b+c"), ("%64%6", "d%6"), ("%", "%"), ("%zz%41", "%zzA"), ("", "")]
        {
            assert_eq!(&*unescaped(text.as_bytes()), bytes.as_bytes(), "{text}");
            assert!(is(text.as_bytes(), bytes.as_bytes()) && !is(text.as_bytes(), b"?"), "{text}");
        }
        assert_eq!(unescape(b"%2B+"), Some(((b'+', true), &b"+"[..])));
    }
}
