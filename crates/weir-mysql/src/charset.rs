//! Client character sets, as far as the lexer needs them: which bytes belong to one character.
//!
//! In some character sets, the second byte of a character may be a backslash, a backtick or a letter. A
//! parser that reads such a text byte by byte sees the end of a string where the server does not.

/// How `character_set_client` encodes characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCharset {
    /// `utf8mb4`, `utf8mb3`.
    #[default]
    Utf8,
    /// One byte per character, with ASCII below 0x80: `latin1`, `binary`, `cp1251` …
    SingleByte,
    /// `gbk`.
    Gbk,
    /// `gb18030`.
    Gb18030,
    /// `gb2312`.
    Gb2312,
    /// `big5`.
    Big5,
    /// `sjis`, `cp932`.
    ShiftJis,
    /// `euckr`.
    EucKr,
    /// `ujis`, `eucjpms`.
    EucJp,
    /// Any other, such as `swe7`, where a backtick is a letter. Texts in it are not read.
    Unknown,
}

/// Single-byte character sets that contain all of ASCII.
const SINGLE_BYTE: [&str; 25] = [
    "armscii8", "ascii", "binary", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "dec8",
    "geostd8", "greek", "hebrew", "hp8", "keybcs2", "koi8r", "koi8u", "latin1", "latin2", "latin5", "latin7",
    "macce", "macroman", "tis620",
];

impl ClientCharset {
    /// The character set with this server name, in any case (`SHOW CHARACTER SET`, the tracked
    /// `character_set_client`). An unknown name gives [`ClientCharset::Unknown`].
    pub fn named(name: &str) -> ClientCharset {
        let name = name.trim().to_ascii_lowercase();
        match name.as_str() {
            "utf8mb4" | "utf8mb3" | "utf8" => ClientCharset::Utf8,
            "gbk" => ClientCharset::Gbk,
            "gb18030" => ClientCharset::Gb18030,
            "gb2312" => ClientCharset::Gb2312,
            "big5" => ClientCharset::Big5,
            "sjis" | "cp932" => ClientCharset::ShiftJis,
            "euckr" => ClientCharset::EucKr,
            "ujis" | "eucjpms" => ClientCharset::EucJp,
            other if SINGLE_BYTE.contains(&other) => ClientCharset::SingleByte,
            _ => ClientCharset::Unknown,
        }
    }

    /// The character set of a collation id, as a client sends it in its login
    /// (`information_schema.collations`, column `ID`).
    pub fn of_collation(id: u16) -> ClientCharset {
        match id {
            33 | 45 | 46 | 76 | 83 | 192..=215 | 223..=247 | 255..=323 | 576..=607 | 608..=639 => {
                ClientCharset::Utf8
            }
            28 | 87 => ClientCharset::Gbk,
            248..=250 => ClientCharset::Gb18030,
            24 | 86 => ClientCharset::Gb2312,
            1 | 84 => ClientCharset::Big5,
            13 | 88 | 95 | 96 => ClientCharset::ShiftJis,
            19 | 85 => ClientCharset::EucKr,
            12 | 91 | 97 | 98 => ClientCharset::EucJp,
            // swe7.
            10 | 82 => ClientCharset::Unknown,
            // ucs2, utf16, utf16le and utf32 are not allowed as client character sets.
            35 | 54..=56 | 60..=62 | 90 | 101..=124 | 128..=151 | 159..=183 => ClientCharset::Unknown,
            2..=9 | 11 | 14..=18 | 20..=23 | 25..=27 | 29..=32 | 34 | 36..=44 | 47..=53 | 57..=59 => {
                ClientCharset::SingleByte
            }
            63..=75 | 77..=81 | 89 | 92..=94 | 99 => ClientCharset::SingleByte,
            _ => ClientCharset::Unknown,
        }
    }

    /// Bytes of the character at the front of `bytes`; `None` if they begin no character. ASCII is 1 in every
    /// set.
    pub fn length(self, bytes: &[u8]) -> Option<usize> {
        let (&first, rest) = bytes.split_first()?;
        if first < 0x80 {
            return Some(1);
        }
        let second = rest.first().copied().unwrap_or(0);
        let pair = |lead: bool, trail: bool| (lead && trail).then_some(2);
        match self {
            ClientCharset::SingleByte => Some(1),
            ClientCharset::Unknown => None,
            ClientCharset::Utf8 => utf8_length(bytes),
            ClientCharset::Gbk => pair((0x81..=0xfe).contains(&first), gbk_trail(second)),
            ClientCharset::Gb18030 => gb18030_length(bytes),
            ClientCharset::Gb2312 => pair((0xa1..=0xf7).contains(&first), (0xa1..=0xfe).contains(&second)),
            ClientCharset::Big5 => {
                let trail = matches!(second, 0x40..=0x7e | 0xa1..=0xfe);
                pair((0xa1..=0xf9).contains(&first), trail)
            }
            // Half-width katakana have one byte.
            ClientCharset::ShiftJis if matches!(first, 0xa1..=0xdf) => Some(1),
            ClientCharset::ShiftJis => {
                let lead = matches!(first, 0x81..=0x9f | 0xe0..=0xfc);
                pair(lead, matches!(second, 0x40..=0x7e | 0x80..=0xfc))
            }
            ClientCharset::EucKr => {
                let trail = matches!(second, 0x41..=0x5a | 0x61..=0x7a | 0x81..=0xfe);
                pair((0x81..=0xfe).contains(&first), trail)
            }
            ClientCharset::EucJp => match first {
                0x8e => pair(true, matches!(second, 0xa0..=0xdf)),
                0x8f => {
                    let third = rest.get(1).copied().unwrap_or(0);
                    let is_whole = matches!((second, third), (0xa1..=0xfe, 0xa1..=0xfe));
                    is_whole.then_some(3)
                }
                0xa1..=0xfe => pair(true, matches!(second, 0xa1..=0xfe)),
                _ => None,
            },
        }
    }

    /// Whether the byte of `'`, `"`, `` ` `` or `\` can be part of a longer character, so that strings must
    /// be read character by character.
    pub(crate) fn hides_ascii(self) -> bool {
        use ClientCharset::{Big5, EucKr, Gb18030, Gbk, ShiftJis};
        matches!(self, Big5 | EucKr | Gb18030 | Gbk | ShiftJis)
    }
}

fn gbk_trail(byte: u8) -> bool {
    matches!(byte, 0x40..=0x7e | 0x80..=0xfe)
}

fn gb18030_length(bytes: &[u8]) -> Option<usize> {
    match *bytes {
        [0x81..=0xfe, trail, ..] if gbk_trail(trail) => Some(2),
        [0x81..=0xfe, 0x30..=0x39, 0x81..=0xfe, 0x30..=0x39, ..] => Some(4),
        _ => None,
    }
}

fn utf8_length(bytes: &[u8]) -> Option<usize> {
    match *bytes {
        [0xc2..=0xdf, 0x80..=0xbf, ..] => Some(2),
        [0xe0, 0xa0..=0xbf, 0x80..=0xbf, ..] => Some(3),
        [0xe1..=0xef, 0x80..=0xbf, 0x80..=0xbf, ..] => Some(3),
        [0xf0, 0x90..=0xbf, 0x80..=0xbf, 0x80..=0xbf, ..] => Some(4),
        [0xf1..=0xf3, 0x80..=0xbf, 0x80..=0xbf, 0x80..=0xbf, ..] => Some(4),
        [0xf4, 0x80..=0x8f, 0x80..=0xbf, 0x80..=0xbf, ..] => Some(4),
        _ => None,
    }
}

/// A text as bytes of a character set in which ASCII takes more than one byte: `ucs2`, `utf16`, `utf16le`,
/// `utf32`. Clients can have results and errors in it (`character_set_results`), but send no statements.
/// `None` for any other set. In `ucs2` a character beyond U+FFFF becomes a question mark, as on a server.
pub fn in_wide_charset(name: &[u8], text: &str) -> Option<Vec<u8>> {
    let sixteens = || text.encode_utf16();
    Some(match name {
        b"utf16" => sixteens().flat_map(u16::to_be_bytes).collect(),
        b"utf16le" => sixteens().flat_map(u16::to_le_bytes).collect(),
        b"utf32" => text.chars().flat_map(|character| u32::from(character).to_be_bytes()).collect(),
        b"ucs2" => {
            let short = text.chars().map(|character| u16::try_from(u32::from(character)));
            short.flat_map(|code| code.unwrap_or(u16::from(b'?')).to_be_bytes()).collect()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_a_wide_set_has_its_byte_order() {
        let text = "a\u{fc}\u{1f600}";
        for (name, bytes) in [
            ("utf16", &b"\0a\0\xfc\xd8\x3d\xde\x00"[..]),
            ("utf16le", b"a\0\xfc\0\x3d\xd8\x00\xde"),
            ("utf32", b"\0\0\0a\0\0\0\xfc\0\x01\xf6\x00"),
            ("ucs2", b"\0a\0\xfc\0?"),
        ] {
            assert_eq!(in_wide_charset(name.as_bytes(), text).as_deref(), Some(bytes), "{name}");
        }
        assert_eq!(in_wide_charset(b"utf8mb4", text), None);
    }

    #[test]
    fn a_backslash_may_be_the_second_byte_of_a_character() {
        for (charset, bytes) in [
            (ClientCharset::Gbk, &b"\xbf\x5c"[..]),
            (ClientCharset::Big5, b"\xa5\x5c"),
            (ClientCharset::ShiftJis, b"\x95\x5c"),
            (ClientCharset::Gb18030, b"\x81\x5c"),
        ] {
            assert_eq!(charset.length(bytes), Some(2), "{charset:?}");
            assert!(charset.hides_ascii(), "{charset:?}");
        }
        for charset in
            [ClientCharset::EucKr, ClientCharset::Gb2312, ClientCharset::EucJp, ClientCharset::Utf8]
        {
            assert_eq!(charset.length(b"\xbf\x5c"), None, "{charset:?}");
        }
        assert_eq!(ClientCharset::SingleByte.length(b"\xbf\x5c"), Some(1));
    }

    #[test]
    fn a_quote_is_never_part_of_a_character() {
        for charset in
            [ClientCharset::Gbk, ClientCharset::Big5, ClientCharset::ShiftJis, ClientCharset::Gb18030]
        {
            for lead in 0x80..=0xff {
                assert_ne!(charset.length(&[lead, b'\'']), Some(2), "{charset:?} {lead:x}");
                assert_ne!(charset.length(&[lead, b'"']), Some(2), "{charset:?} {lead:x}");
            }
        }
    }

    #[test]
    fn characters_of_utf8_are_what_the_standard_library_takes_for_one() {
        let mut bytes = [0_u8; 4];
        for character in ('\u{80}'..=char::MAX).step_by(7) {
            let text = character.encode_utf8(&mut bytes);
            assert_eq!(ClientCharset::Utf8.length(text.as_bytes()), Some(text.len()), "{character:?}");
        }
        for broken in
            [&b"\x80"[..], b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0", b"\xf5\x80\x80\x80", b"\xe2\x82"]
        {
            assert_eq!(ClientCharset::Utf8.length(broken), None, "{broken:x?}");
        }
    }

    #[test]
    fn names_and_collations_agree() {
        for (name, id) in [
            ("utf8mb4", 255),
            ("utf8mb4", 45),
            ("utf8mb3", 33),
            ("latin1", 8),
            ("latin1", 5),
            ("binary", 63),
            ("gbk", 28),
            ("gb18030", 248),
            ("gb2312", 24),
            ("big5", 1),
            ("sjis", 13),
            ("cp932", 95),
            ("euckr", 19),
            ("ujis", 12),
            ("eucjpms", 97),
            ("swe7", 10),
            ("koi8r", 7),
            ("cp1251", 51),
            ("ucs2", 35),
        ] {
            assert_eq!(ClientCharset::named(name), ClientCharset::of_collation(id), "{name} {id}");
        }
        assert_eq!(ClientCharset::named("UTF8MB4"), ClientCharset::Utf8);
        assert_eq!(ClientCharset::named("klingon"), ClientCharset::Unknown);
        assert_eq!(ClientCharset::of_collation(60000), ClientCharset::Unknown);
    }
}
