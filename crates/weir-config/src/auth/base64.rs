//! Base64 (RFC 4648), decoded.

/// The digits for 62 and 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// `+` and `/` (section 4).
    Usual,
    /// `-` and `_` (section 5).
    Url,
}

/// Decodes a text with or without `=` padding; `None` if it is not base64.
pub fn decode(text: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let (text, filling) = text.split_at(end);
    if text.len() % 4 == 1 || filling.len() > 2 {
        return None;
    }
    let [of_62, of_63] = match alphabet {
        Alphabet::Usual => [b'+', b'/'],
        Alphabet::Url => [b'-', b'_'],
    };
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0_u32, 0);
    for byte in text {
        let value = match *byte {
            byte @ b'A'..=b'Z' => byte - b'A',
            byte @ b'a'..=b'z' => byte - b'a' + 26,
            byte @ b'0'..=b'9' => byte - b'0' + 52,
            byte if byte == of_62 => 62,
            byte if byte == of_63 => 63,
            _ => return None,
        };
        held = (held << 6 | u32::from(value)) & 0xff_ffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    // Reject a second encoding of the same bytes.
    (held & ((1 << bits) - 1) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_and_nothing_else() {
        let usual = |text: &str| decode(text.as_bytes(), Alphabet::Usual);
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zg", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")]
        {
            assert_eq!(usual(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(usual("+/+/").as_deref(), Some(&[0xfb, 0xff, 0xbf][..]));
        assert_eq!(decode(b"-_-_", Alphabet::Url).as_deref(), Some(&[0xfb, 0xff, 0xbf][..]));
        for text in ["Z", "Zm9v=Zm9v", "Zm-_", "Zm 9v", "Zm9v===", "Zg==\n", "Zh=="] {
            assert_eq!(usual(text), None, "{text}");
        }
    }
}
