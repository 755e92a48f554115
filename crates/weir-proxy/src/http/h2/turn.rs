//! Limits how much of what a client sends is processed before other tasks get their turn.

use super::frames::{HEADER_BYTES, Part, kind};

/// Bytes received in a turn, not counting content, which windows bound. Heads of this size can have ten
/// thousand fields, which the `h2` crate reads without a pause as long as there is something to receive.
const TURN_BYTES: usize = 16 << 10;
/// The same before a first request was answered, and after one was refused: enough for the head of an
/// ordinary request.
const FIRST_TURN_BYTES: usize = 2 << 10;
/// Frames with less content than this, in bytes, cost more to keep than their content.
const SMALL_FRAME_BYTES: usize = 256;
/// What such a frame counts in addition to its header, in bytes: the task that takes its content must get a
/// turn before there are too many.
const SMALL_FRAME_TURN_BYTES: usize = 64;

/// The turn of one connection.
#[derive(Default)]
pub struct Turn {
    /// Bytes received in it, without content.
    bytes: usize,
    /// Bytes still to come of the current frame of content.
    content_left: usize,
    /// Whether the last request was answered, and not refused for its head.
    is_known: bool,
}

impl Turn {
    /// Ends the turn: other tasks run now.
    pub fn end(&mut self) {
        self.bytes = 0;
    }

    /// Bytes that may still be received in this turn.
    pub fn left(&self) -> usize {
        let most = if self.is_known { TURN_BYTES } else { FIRST_TURN_BYTES };
        most.saturating_sub(self.bytes).max(self.content_left)
    }

    /// Counts the next received part.
    pub fn see(&mut self, part: Part<'_>) {
        match part {
            Part::Header(header) => {
                self.bytes += HEADER_BYTES;
                self.content_left = 0;
                if header.kind == kind::DATA {
                    self.content_left = header.payload_bytes;
                    if (1..SMALL_FRAME_BYTES).contains(&header.payload_bytes) {
                        self.bytes += SMALL_FRAME_TURN_BYTES;
                    }
                }
            }
            Part::Payload(payload) if self.content_left > 0 => self.content_left -= payload.len(),
            Part::Payload(payload) => self.bytes += payload.len(),
        }
    }

    /// Notes that a request was answered, or refused for its head.
    pub fn know(&mut self, is_answered: bool) {
        self.is_known = is_answered;
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::FrameHeader;
    use super::*;

    fn header(kind: u8, payload_bytes: usize) -> Part<'static> {
        Part::Header(FrameHeader { payload_bytes, kind, flags: 0, stream: 1 })
    }

    #[test]
    fn content_passes_in_one_turn_and_heads_do_not() {
        const PIECE: usize = 1 << 14;
        let mut turn = Turn::default();
        // A first request with content, like the beginning of an upload.
        turn.see(header(kind::HEADERS, 60));
        turn.see(Part::Payload(&[0; 60]));
        for _ in 0..8 {
            turn.see(header(kind::DATA, PIECE));
            assert_eq!(turn.left(), PIECE);
            turn.see(Part::Payload(&[0; PIECE]));
        }
        assert!(turn.left() > 0);
        turn.see(header(kind::HEADERS, FIRST_TURN_BYTES));
        turn.see(Part::Payload(&[0; FIRST_TURN_BYTES]));
        assert_eq!(turn.left(), 0);
        turn.end();
        assert_eq!(turn.left(), FIRST_TURN_BYTES);
    }

    #[test]
    fn a_turn_is_short_until_a_request_was_answered_and_again_once_one_was_refused() {
        let mut turn = Turn::default();
        assert_eq!(turn.left(), FIRST_TURN_BYTES);
        turn.know(true);
        turn.see(header(kind::DATA, 1000));
        turn.see(Part::Payload(&[0; 1000]));
        assert_eq!(turn.left(), TURN_BYTES - HEADER_BYTES);
        turn.know(false);
        assert_eq!(turn.left(), FIRST_TURN_BYTES - HEADER_BYTES);
    }

    #[test]
    fn small_frames_of_content_count_for_more_than_their_headers() {
        let mut turn = Turn::default();
        for _ in 0..FIRST_TURN_BYTES / (HEADER_BYTES + SMALL_FRAME_TURN_BYTES) {
            turn.see(header(kind::DATA, 1));
            turn.see(Part::Payload(&[0]));
        }
        assert!(turn.left() < HEADER_BYTES + SMALL_FRAME_TURN_BYTES);
    }
}
