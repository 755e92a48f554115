//! Parses the frames that a peer sends (RFC 9113 §4.1), in pieces of any size.

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 9;
/// Bytes of the client's connection preface (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types (RFC 9113 §6).
pub mod kind {
    /// Content (§6.1).
    pub const DATA: u8 = 0;
    /// The fields of a message, or their beginning (§6.2).
    pub const HEADERS: u8 = 1;
    /// The premature end of a stream (§6.4).
    pub const RST_STREAM: u8 = 3;
    /// More room for content, on a stream or on the connection (§6.9).
    pub const WINDOW_UPDATE: u8 = 8;
    /// More of the fields that a frame of [`HEADERS`] began (§6.10).
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames (RFC 9113 §6.1, §6.2).
pub mod flag {
    /// The sender sends nothing more on this stream (§6.1, §6.2).
    pub const END_STREAM: u8 = 1;
    /// No [`CONTINUATION`](super::kind::CONTINUATION) follows (§6.2, §6.10).
    pub const END_HEADERS: u8 = 4;
    /// The payload begins with the length of its padding (§6.1, §6.2).
    pub const PADDED: u8 = 8;
    /// Five bytes of priority, which is obsolete, come before the fields (§6.2, §5.3.2).
    pub const PRIORITY: u8 = 32;
}

/// The contents of a frame's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the payload.
    pub payload_bytes: usize,
    /// One of [`kind`], or another kind.
    pub kind: u8,
    /// Several of [`flag`].
    pub flags: u8,
    /// The stream; 0 is the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Parses a header.
    pub fn of(bytes: &[u8; HEADER_BYTES]) -> FrameHeader {
        let [high, middle, low, kind, flags, stream @ ..] = *bytes;
        FrameHeader {
            payload_bytes: usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low),
            kind,
            flags,
            // The highest bit is reserved.
            stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        }
    }

    /// Whether it has one of these flags.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'b> {
    /// A complete frame header.
    Header(FrameHeader),
    /// A part of a frame's payload.
    Payload(&'b [u8]),
}

/// The position in the frames that one side of a connection sends.
#[derive(Debug)]
pub struct Frames {
    /// The received part of a header.
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    preface_left: usize,
    payload_left: usize,
}

impl Default for Frames {
    /// For a client, which begins with its preface.
    fn default() -> Frames {
        Frames { header: [0; HEADER_BYTES], header_bytes: 0, preface_left: PREFACE.len(), payload_left: 0 }
    }
}

impl Frames {
    /// For a server, which sends no preface.
    pub fn of_server() -> Frames {
        Frames { preface_left: 0, ..Frames::default() }
    }

    /// Takes the next part off the front of `received`; `None` when nothing is left.
    pub fn next<'b>(&mut self, received: &mut &'b [u8]) -> Option<Part<'b>> {
        let preface = self.preface_left.min(received.len());
        self.preface_left -= preface;
        *received = &received[preface..];
        if self.payload_left > 0 {
            let (payload, rest) = received.split_at(self.payload_left.min(received.len()));
            *received = rest;
            self.payload_left -= payload.len();
            return (!payload.is_empty()).then_some(Part::Payload(payload));
        }
        let count = (HEADER_BYTES - self.header_bytes).min(received.len());
        self.header[self.header_bytes..self.header_bytes + count].copy_from_slice(&received[..count]);
        self.header_bytes += count;
        *received = &received[count..];
        if self.header_bytes < HEADER_BYTES {
            return None;
        }
        self.header_bytes = 0;
        let header = FrameHeader::of(&self.header);
        self.payload_left = header.payload_bytes;
        Some(Part::Header(header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let frames = [(kind::HEADERS, 5, 1, &b"block"[..]), (4, 1, 0, b""), (kind::DATA, 0, 3, &[7; 300])];
        let mut sent = PREFACE.to_vec();
        for (kind, flags, stream, payload) in frames {
            sent.extend(&(payload.len() as u32).to_be_bytes()[1..]);
            sent.extend([kind, flags, 0x80, 0, 0, stream]);
            sent.extend(payload);
        }
        for most in (1..40).chain([1000]) {
            let (mut reader, mut found) = (Frames::default(), Vec::new());
            for mut piece in sent.chunks(most) {
                while let Some(part) = reader.next(&mut piece) {
                    match part {
                        Part::Header(header) => found.push((header, Vec::new())),
                        Part::Payload(bytes) => found.last_mut().unwrap().1.extend(bytes),
                    }
                }
                assert!(piece.is_empty());
            }
            let expected = frames.map(|(kind, flags, stream, payload)| {
                let payload_bytes = payload.len();
                (FrameHeader { payload_bytes, kind, flags, stream: stream.into() }, payload.to_vec())
            });
            assert_eq!(found, expected, "in pieces of {most}");
        }
    }
}
