//! The basic types in packets: integers, and strings that end by length, by NUL or with the packet.
//!
//! Source: MySQL internals, "Protocol Basics: Data Types".

use crate::wire_error::WireError;

/// The first byte of a NULL in place of a length-encoded string.
pub const NULL: u8 = 0xFB;

/// A position in a packet's payload, from which fields are read in order. Reading beyond the end gives
/// [`WireError::Truncated`] and does not move the position.
#[derive(Clone, Copy, Debug)]
pub struct PayloadCursor<'a> {
    payload: &'a [u8],
    at: usize,
}

impl<'a> PayloadCursor<'a> {
    /// A cursor at the first byte of `payload`.
    pub fn new(payload: &'a [u8]) -> PayloadCursor<'a> {
        PayloadCursor { payload, at: 0 }
    }

    /// The number of bytes before the cursor.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The bytes after the cursor, which does not move.
    pub fn remaining(&self) -> &'a [u8] {
        self.payload.get(self.at..).unwrap_or_default()
    }

    /// Whether no bytes are left.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.payload.len()
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(count).ok_or(WireError::Truncated)?;
        let bytes = self.payload.get(self.at..end).ok_or(WireError::Truncated)?;
        self.at = end;
        Ok(bytes)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.bytes(N)?.try_into().map_err(|_| WireError::Truncated)
    }

    /// An integer of one byte.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// An integer of two bytes; all integers are little-endian.
    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    /// An integer of four bytes.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    /// A length-encoded integer, of 1, 3, 4 or 9 bytes.
    pub fn integer(&mut self) -> Result<u64, WireError> {
        let before = self.at;
        let value = self.u8().and_then(|first| match first {
            0..=0xFA => Ok(u64::from(first)),
            0xFC => self.u16().map(u64::from),
            0xFD => self.array().map(|[a, b, c]: [u8; 3]| u64::from(u32::from_le_bytes([a, b, c, 0]))),
            0xFE => self.array().map(u64::from_le_bytes),
            0xFB | 0xFF => Err(WireError::LengthEncodedInteger),
        });
        if value.is_err() {
            self.at = before;
        }
        value
    }

    /// A length-encoded string.
    pub fn string(&mut self) -> Result<&'a [u8], WireError> {
        let before = self.at;
        let length = self.integer()?;
        let bytes = usize::try_from(length).map_err(|_| WireError::Truncated).and_then(|n| self.bytes(n));
        if bytes.is_err() {
            self.at = before;
        }
        bytes
    }

    /// A string up to its NUL, which is read but not returned.
    pub fn string_to_nul(&mut self) -> Result<&'a [u8], WireError> {
        let length = self.remaining().iter().position(|byte| *byte == 0).ok_or(WireError::Truncated)?;
        let bytes = self.bytes(length)?;
        self.at += 1;
        Ok(bytes)
    }

    /// A string that ends with a NUL or with the packet; some clients omit the NUL of the last string.
    pub fn string_to_nul_or_end(&mut self) -> &'a [u8] {
        self.string_to_nul().unwrap_or_else(|_| self.rest())
    }

    /// All remaining bytes; moves the cursor to the end.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = self.remaining();
        self.at = self.payload.len();
        rest
    }

    /// Err if bytes are left.
    pub fn end(&self) -> Result<(), WireError> {
        if self.is_at_end() { Ok(()) } else { Err(WireError::TrailingBytes) }
    }
}

/// Appends a length-encoded integer.
pub fn write_integer(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_le_bytes();
    let (mark, count) = match value {
        0..=0xFA => (None, 1),
        0xFB..=0xFFFF => (Some(0xFC), 2),
        0x1_0000..=0xFF_FFFF => (Some(0xFD), 3),
        _ => (Some(0xFE), 8),
    };
    out.extend(mark);
    out.extend(bytes.iter().take(count));
}

/// Appends a length-encoded string.
pub fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    write_integer(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a string and its terminating NUL. If `bytes` contains a NUL, only the bytes before it are written.
pub fn write_string_to_nul(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(bytes.iter().take_while(|byte| **byte != 0));
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_length_are_read_as_they_were_written() {
        let cases: [(u64, &[u8]); 8] = [
            (0, b"\x00"),
            (250, b"\xfa"),
            (251, b"\xfc\xfb\x00"),
            (0xFFFF, b"\xfc\xff\xff"),
            (0x1_0000, b"\xfd\x00\x00\x01"),
            (0xFF_FFFF, b"\xfd\xff\xff\xff"),
            (0x100_0000, b"\xfe\x00\x00\x00\x01\x00\x00\x00\x00"),
            (u64::MAX, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff"),
        ];
        for (value, bytes) in cases {
            let mut out = Vec::new();
            write_integer(&mut out, value);
            assert_eq!(out, bytes, "{value}");
            let mut cursor = PayloadCursor::new(&out);
            assert_eq!(cursor.integer(), Ok(value));
            assert!(cursor.is_at_end());
            for cut in 0..bytes.len() {
                let mut cursor = PayloadCursor::new(&bytes[..cut]);
                assert_eq!(cursor.integer(), Err(WireError::Truncated), "{value} cut at {cut}");
                assert_eq!(cursor.position(), 0);
            }
        }
    }

    #[test]
    fn null_and_the_mark_of_an_error_begin_no_integer() {
        for first in [0xFB, 0xFF] {
            let bytes = [first, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(PayloadCursor::new(&bytes).integer(), Err(WireError::LengthEncodedInteger));
        }
    }

    #[test]
    fn a_string_longer_than_its_packet_is_refused_and_moves_nothing() {
        for bytes in [&b"\x05abcd"[..], b"\xfe\xff\xff\xff\xff\xff\xff\xff\xffabc"] {
            let mut cursor = PayloadCursor::new(bytes);
            assert_eq!(cursor.string(), Err(WireError::Truncated));
            assert_eq!(cursor.remaining(), bytes);
        }
    }

    #[test]
    fn a_string_ends_at_its_nul_and_without_one_only_where_that_is_allowed() {
        let mut cursor = PayloadCursor::new(b"root\0db");
        assert_eq!(cursor.string_to_nul(), Ok(&b"root"[..]));
        assert_eq!(cursor.string_to_nul(), Err(WireError::Truncated));
        assert_eq!(cursor.string_to_nul_or_end(), b"db");
        assert!(cursor.is_at_end());
    }

    #[test]
    fn a_nul_within_a_string_can_not_smuggle_a_further_field() {
        let mut out = Vec::new();
        write_string_to_nul(&mut out, b"app\0evil");
        assert_eq!(out, b"app\0");
    }
}
