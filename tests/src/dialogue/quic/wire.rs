//! Encodes and decodes variable-length integers.

/// Appends a variable-length integer (RFC 9000 §16).
pub fn put(bytes: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x3f => bytes.push(value as u8),
        0x40..=0x3fff => bytes.extend((value as u16 | 0x4000).to_be_bytes()),
        0x4000..=0x3fff_ffff => bytes.extend((value as u32 | 0x8000_0000).to_be_bytes()),
        _ => bytes.extend((value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Numbers and bytes from the front; `None` when there are too few.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next number.
    pub fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let more = self.bytes((1 << (first >> 6)) - 1)?;
        Some(more.iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Skips the rest of an `ACK` of this type.
    pub fn skip_ack(&mut self, kind: u64) -> Option<()> {
        self.skip(2)?;
        let ranges = self.number()?;
        self.skip(1 + 2 * ranges)?;
        self.skip(if kind == 3 { 3 } else { 0 })
    }

    /// Skips this many numbers.
    pub fn skip(&mut self, count: u64) -> Option<()> {
        (0..count).try_for_each(|_| self.number().map(drop))
    }
}
