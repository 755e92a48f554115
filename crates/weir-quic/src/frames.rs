//! Where the frames of a decrypted packet begin and end.

/// Number of PADDING frames at the front of `bytes`, and the bytes behind them.
pub(crate) fn leading_padding(bytes: &[u8]) -> (usize, &[u8]) {
    let words = bytes.chunks_exact(8).take_while(|word| **word == [0; 8]).count();
    let (_, rest) = bytes.split_at(8 * words);
    let count = 8 * words + rest.iter().take_while(|byte| **byte == 0).count();
    (count, &bytes[count..])
}

/// Length of the frame that `bytes` begin with (RFC 9000 §19, RFC 9221 §4, the acknowledgement frequency
/// draft); `None` if it is unknown or incomplete.
pub(crate) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let mut rest = Rest(bytes);
    match rest.number()? {
        // PING, HANDSHAKE_DONE, IMMEDIATE_ACK
        0x01 | 0x1e | 0x1f => {}
        // ACK, with ECN counts or without
        kind @ (0x02 | 0x03) => {
            rest.numbers(2)?;
            let ranges = rest.number()?;
            // Each takes at least two bytes, so a false count soon runs out of bytes.
            rest.numbers(ranges.checked_mul(2)?.checked_add(1)?)?;
            rest.numbers(3 * (kind - 0x02))?;
        }
        // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID
        0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => rest.numbers(1)?,
        // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED
        0x05 | 0x11 | 0x15 => rest.numbers(2)?,
        // RESET_STREAM
        0x04 => rest.numbers(3)?,
        // CRYPTO
        0x06 => {
            rest.numbers(1)?;
            rest.counted()?;
        }
        // NEW_TOKEN, DATAGRAM with a length
        0x07 | 0x31 => rest.counted()?,
        // STREAM
        kind @ 0x08..=0x0f => {
            rest.numbers(if kind & 0x04 == 0 { 1 } else { 2 })?;
            if kind & 0x02 == 0 { rest.skip(rest.0.len())? } else { rest.counted()? }
        }
        // DATAGRAM to the end
        0x30 => rest.skip(rest.0.len())?,
        // NEW_CONNECTION_ID
        0x18 => {
            rest.numbers(2)?;
            let length = usize::from(*rest.0.first()?);
            rest.skip(1 + length + 16)?;
        }
        // PATH_CHALLENGE, PATH_RESPONSE
        0x1a | 0x1b => rest.skip(8)?,
        // CONNECTION_CLOSE
        kind @ (0x1c | 0x1d) => {
            rest.numbers(2 - (kind - 0x1c))?;
            rest.counted()?;
        }
        // ACK_FREQUENCY
        0xaf => rest.numbers(4)?,
        _ => return None,
    }
    Some(bytes.len() - rest.0.len())
}

/// The bytes of a frame that are yet to be parsed.
pub(crate) struct Rest<'a>(pub &'a [u8]);

impl Rest<'_> {
    /// Takes a variable-length integer (RFC 9000 §16).
    pub fn number(&mut self) -> Option<u64> {
        let first = *self.0.first()?;
        let length = 1 << (first >> 6);
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        let start = u64::from(first & 0x3f);
        Some(bytes[1..].iter().fold(start, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn numbers(&mut self, count: u64) -> Option<()> {
        for _ in 0..count {
            let length = 1 << (self.0.first()? >> 6);
            self.skip(length)?;
        }
        Some(())
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.get(count..)?;
        Some(())
    }

    /// Skips a length and that many bytes.
    pub fn counted(&mut self) -> Option<()> {
        let length = self.number()?;
        self.skip(usize::try_from(length).ok()?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One of each frame, as its bytes; those that extend to the end of the packet are not among them.
    pub const FRAMES: [&[u8]; 27] = [
        b"\x01",
        b"\x02\x10\x00\x00\x03",
        b"\x02\x40\x80\x00\x02\x03\x01\x02\x03\x04",
        b"\x03\x10\x00\x01\x03\x01\x02\x05\x06\x07",
        b"\x04\x04\x41\x00\x09",
        b"\x05\x04\x41\x00",
        b"\x06\x00\x04\x00\x00\x00\x00",
        b"\x07\x03\x00\x01\x02",
        b"\x0a\x04\x02\x00\x00",
        b"\x0b\x04\x00",
        b"\x0e\x04\x40\x50\x03\x00\x00\x00",
        b"\x0f\x04\x10\x01\x7f",
        b"\x10\x80\x01\x00\x00",
        b"\x11\x04\x80\x01\x00\x00",
        b"\x12\x40\x64",
        b"\x13\x03",
        b"\x14\x00",
        b"\x15\x04\x00",
        b"\x16\x00",
        b"\x18\x01\x00\x04\x00\x00\x00\x00\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\x19\x00",
        b"\x1a\0\0\0\0\0\0\0\0",
        b"\x1b\x01\x02\x03\x04\x05\x06\x07\x08",
        b"\x1c\x0a\x00\x02\x00\x00",
        b"\x1d\x41\x00\x00",
        b"\x1e",
        b"\x40\xaf\x01\x02\x43\xe8\x02",
    ];

    #[test]
    fn each_frame_is_found_whole() {
        for frame in FRAMES {
            assert_eq!(frame_length(&[frame, &[0x01, 0x02]].concat()), Some(frame.len()), "{frame:x?}");
            for length in 0..frame.len() {
                assert_eq!(frame_length(&frame[..length]), None, "the first {length} bytes of {frame:x?}");
            }
        }
    }

    #[test]
    fn a_count_of_ranges_that_lies_costs_no_more_than_the_packet() {
        assert_eq!(frame_length(b"\x02\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x00"), None);
        assert_eq!(frame_length(b"\x02\x00\x00\xbf\xff\xff\xff\x00\x00"), None);
    }
}
