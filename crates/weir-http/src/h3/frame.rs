//! Frame headers: a type and a length precede each payload (RFC 9114 §7.1).

use super::varint;

/// Kinds of frame, as far as this layer distinguishes them (RFC 9114 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Content of a message.
    Data,
    /// A field section.
    Headers,
    /// Cancels a push.
    CancelPush,
    /// The sender's settings.
    Settings,
    /// Announces a push.
    PushPromise,
    /// No more requests, or no more pushes, are accepted from this id on.
    GoAway,
    /// How many pushes a client accepts.
    MaxPushId,
    /// PRIORITY, PING, WINDOW_UPDATE or CONTINUATION: types of HTTP/2 that must not be sent (RFC 9114
    /// §7.2.8).
    OfHttp2,
    /// Everything else, including reserved types; must be skipped (RFC 9114 §9).
    Unknown,
}

impl FrameKind {
    /// The kind for a frame type.
    pub const fn of(value: u64) -> FrameKind {
        match value {
            0x0 => FrameKind::Data,
            0x1 => FrameKind::Headers,
            0x3 => FrameKind::CancelPush,
            0x4 => FrameKind::Settings,
            0x5 => FrameKind::PushPromise,
            0x7 => FrameKind::GoAway,
            0xd => FrameKind::MaxPushId,
            0x2 | 0x6 | 0x8 | 0x9 => FrameKind::OfHttp2,
            _ => FrameKind::Unknown,
        }
    }
}

/// The header of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind.
    pub kind: FrameKind,
    /// Length of the payload in bytes, below 2^62.
    pub length: u64,
}

/// Parses one frame header after another, from input split in any way.
#[derive(Clone, Debug, Default)]
pub struct FrameHeaderReader {
    /// The incomplete header: type and length are at most 8 bytes each.
    bytes: [u8; 16],
    length: u8,
}

impl FrameHeaderReader {
    /// Parses from the start of `input`; returns how many bytes it consumed, and the header once it is
    /// complete. Without one, all bytes were consumed.
    #[inline]
    pub fn read(&mut self, input: &[u8]) -> (usize, Option<FrameHeader>) {
        if self.length == 0
            && let Some((header, taken)) = parse(input)
        {
            return (taken, Some(header));
        }
        self.read_in_pieces(input)
    }

    #[cold]
    fn read_in_pieces(&mut self, input: &[u8]) -> (usize, Option<FrameHeader>) {
        for (index, &byte) in input.iter().enumerate() {
            if let Some(room) = self.bytes.get_mut(usize::from(self.length)) {
                *room = byte;
                self.length += 1;
            }
            let begun = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
            if let Some((header, _)) = parse(begun) {
                self.length = 0;
                return (index + 1, Some(header));
            }
        }
        (input.len(), None)
    }

    /// Whether a header has begun but is incomplete.
    pub fn is_partial(&self) -> bool {
        self.length != 0
    }
}

#[inline]
fn parse(input: &[u8]) -> Option<(FrameHeader, usize)> {
    let (kind, kind_bytes) = varint::read(input)?;
    let (length, length_bytes) = varint::read(input.get(kind_bytes..)?)?;
    Some((FrameHeader { kind: FrameKind::of(kind), length }, kind_bytes + length_bytes))
}

/// Appends the header of a DATA frame whose payload of `length` bytes follows. At most 9 bytes.
#[inline]
pub fn write_data_header(out: &mut Vec<u8>, length: u64) {
    out.push(0);
    varint::write(out, length);
}

/// The type of a reserved identifier: frames, streams and settings with these values have no meaning and must
/// be ignored (RFC 9114 §7.2.8). `draw` is any number.
pub(super) const fn reserved(draw: u32) -> u64 {
    0x1f * draw as u64 + 0x21
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_the_same_in_one_piece_and_in_sixteen() {
        let mut bytes = vec![0xc0, 0, 0, 0, 0, 0, 0, 0x04];
        bytes.extend([0xff; 8]);
        let expected = FrameHeader { kind: FrameKind::Settings, length: varint::MAX };
        assert_eq!(FrameHeaderReader::default().read(&bytes), (16, Some(expected)));
        let mut reader = FrameHeaderReader::default();
        for byte in &bytes[..15] {
            assert_eq!(reader.read(&[*byte]), (1, None));
            assert!(reader.is_partial());
        }
        assert_eq!(reader.read(&[0xff, 0x00, 0x00]), (1, Some(expected)));
        assert!(!reader.is_partial());
    }

    #[test]
    fn reserved_types_are_unknown_ones() {
        for draw in [0, 1, 77, u32::MAX] {
            assert_eq!(FrameKind::of(reserved(draw)), FrameKind::Unknown);
        }
    }
}
