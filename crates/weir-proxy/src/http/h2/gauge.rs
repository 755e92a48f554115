//! How much work without content a client may make on one HTTP/2 connection (threats B1, B2, B4, B6).
//!
//! Frames that carry no content cost credit. Credit comes with time and with what the connection is for: requests that were answered and
//! content that moved. A client that only sends `PING`, `SETTINGS`, `RST_STREAM` or empty frames runs out of it and is closed.

use std::time::Duration;

use weir_io::clock;

use super::frames::{FrameHeader, HEADER_BYTES, Part, flag, kind};

/// What a frame without content costs.
const CONTROL_COST: f64 = 1.0;
/// Bytes of a head that cost as much as a frame does.
const HEAD_BYTES_PER_COST: f64 = 1024.0;
/// What a reset costs: besides the frame there was a request, whose work is thrown away.
const RESET_COST: f64 = 10.0;
/// What an answered request brings: its client may need some windows and a reset.
const ANSWER_CREDIT: f64 = 12.0;
/// What a piece of an answer brings that was not cut to fit a window: libraries of gRPC open windows and measure the path with a `PING` for each
/// message, however small. One that was cut brings nothing: by its window a client would have as many pieces as it likes (CVE-2019-9511).
const PIECE_CREDIT: f64 = 4.0;
/// Bytes received before other tasks get their turn, content not counted: windows bound that. Of heads they can be ten thousand fields to read, which the `h2` crate does without a pause
/// for as long as there is something to receive.
const TURN_BYTES: usize = 16 << 10;
/// Content of a frame that is so small that keeping it costs more than its bytes.
const SMALL_FRAME_BYTES: usize = 256;
/// What such a frame counts for in a turn, besides its header: who takes its content must have a turn before there are too many.
const SMALL_FRAME_TURN_BYTES: usize = 64;
/// The same before a first request was answered, and once one was refused: room for the head of an ordinary request.
const FIRST_TURN_BYTES: usize = 2 << 10;
/// Fields of a head refused that cost as much as a frame does.
const FIELDS_PER_COST: f64 = 4.0;
/// Content bytes, either way, that bring credit for one frame. There are honest clients that return both windows in steps of a kibibyte, which
/// is twice that; and those that say something more besides.
const BYTES_PER_CREDIT: f64 = 256.0;
/// The part of the most credit that comes back per second.
const REFILL: f64 = 0.1;

/// Counts the frames of one connection.
pub struct Gauge {
    /// Bytes of the payload under way still to come.
    payload_bytes: usize,
    /// Whether that is content.
    is_content: bool,
    most: f64,
    credit: f64,
    at: Duration,
    is_exhausted: bool,
    /// Bytes received in this turn of the connection, but for content.
    turn_bytes: usize,
    /// Whether the last request was answered, and not refused for its head.
    is_known: bool,
}

impl Gauge {
    /// For a new connection whose client may send `most` frames without content before any request is answered.
    pub fn new(most: u32, now: Duration) -> Gauge {
        Gauge {
            payload_bytes: 0,
            is_content: false,
            most: f64::from(most),
            credit: f64::from(most),
            at: now,
            is_exhausted: false,
            turn_bytes: 0,
            is_known: false,
        }
    }

    /// Others have their turn now.
    pub fn end_turn(&mut self) {
        self.turn_bytes = 0;
    }

    /// Bytes that may still be received before others have waited long enough.
    pub fn turn_left(&self) -> usize {
        let turn = if self.is_known { TURN_BYTES } else { FIRST_TURN_BYTES };
        let of_content = if self.is_content { self.payload_bytes } else { 0 };
        turn.saturating_sub(self.turn_bytes).max(of_content)
    }

    /// Takes what was received next.
    pub fn see(&mut self, part: Part<'_>) {
        match part {
            Part::Header(header) => {
                self.turn_bytes += HEADER_BYTES;
                self.is_content = header.kind == kind::DATA;
                self.payload_bytes = header.payload_bytes;
                self.charge(header);
            }
            Part::Payload(payload) => {
                self.payload_bytes -= payload.len();
                if !self.is_content {
                    self.turn_bytes += payload.len();
                }
            }
        }
    }

    /// The client has sent more than it may.
    pub fn exhaust(&mut self) {
        self.is_exhausted = true;
    }

    /// Whether the client has sent more than it may.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// A request was answered.
    pub fn answered(&mut self) {
        self.is_known = true;
        self.credit = (self.credit + ANSWER_CREDIT).min(self.most);
    }

    /// A request was refused for its head, of so many fields: reading it may have been most of the work.
    pub fn refused(&mut self, fields: usize) {
        self.is_known = false;
        self.credit -= RESET_COST + fields as f64 / FIELDS_PER_COST;
        self.is_exhausted |= self.credit < 0.0;
    }

    /// A piece of an answer was given to be sent, all that there was of it.
    pub fn gave_piece(&mut self) {
        self.credit = (self.credit + PIECE_CREDIT).min(self.most);
    }

    /// Content was sent.
    pub fn moved(&mut self, bytes: usize) {
        self.credit = (self.credit + bytes as f64 / BYTES_PER_CREDIT).min(self.most);
    }

    fn charge(&mut self, header: FrameHeader) {
        let cost = match header.kind {
            kind::DATA if header.payload_bytes > 0 => {
                if header.payload_bytes < SMALL_FRAME_BYTES {
                    self.turn_bytes += SMALL_FRAME_TURN_BYTES;
                }
                return self.moved(header.payload_bytes);
            }
            kind::DATA if header.has(flag::END_STREAM) => return,
            kind::HEADERS | kind::CONTINUATION => {
                CONTROL_COST + header.payload_bytes as f64 / HEAD_BYTES_PER_COST
            }
            kind::RST_STREAM => RESET_COST,
            _ => CONTROL_COST,
        };
        self.credit -= cost;
        if self.credit < 0.0 {
            // The clock is asked only by those who are near the end.
            let now = clock::now();
            let passed = now.saturating_sub(self.at).as_secs_f64();
            self.at = now;
            self.credit = (self.credit + passed * self.most * REFILL).min(self.most);
        }
        self.is_exhausted |= self.credit < 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::h2::frames::{Frames, PREFACE};

    /// A gauge, and what reads frames for it.
    struct Watcher {
        frames: Frames,
        gauge: Gauge,
    }

    impl Watcher {
        /// False once the credit is used up.
        fn see(&mut self, mut received: &[u8]) -> bool {
            while let Some(part) = self.frames.next(&mut received) {
                self.gauge.see(part);
            }
            !self.gauge.is_exhausted()
        }
    }

    impl std::ops::Deref for Watcher {
        type Target = Gauge;

        fn deref(&self) -> &Gauge {
            &self.gauge
        }
    }

    impl std::ops::DerefMut for Watcher {
        fn deref_mut(&mut self) -> &mut Gauge {
            &mut self.gauge
        }
    }

    #[test]
    fn content_passes_in_one_turn_and_heads_do_not() {
        const PIECE: usize = 1 << 14;
        let mut gauge = gauge(100);
        // A first request with content, as an upload begins.
        assert!(gauge.see(&frame(1, 4, &[0; 60])));
        let content = frame(0, 0, &[0; PIECE]);
        for _ in 0..8 {
            assert!(gauge.see(&content[..9]));
            assert_eq!(gauge.turn_left(), PIECE);
            assert!(gauge.see(&content[9..]));
        }
        assert!(gauge.turn_left() > 0);
        assert!(gauge.see(&frame(1, 4, &[0; FIRST_TURN_BYTES])));
        assert_eq!(gauge.turn_left(), 0);
        gauge.end_turn();
        assert_eq!(gauge.turn_left(), FIRST_TURN_BYTES);
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    fn gauge(most: u32) -> Watcher {
        let mut gauge = Watcher { frames: Frames::default(), gauge: Gauge::new(most, clock::now()) };
        assert!(gauge.see(PREFACE));
        gauge
    }

    #[test]
    fn a_flood_of_frames_without_content_is_noticed_however_it_is_cut_into_pieces() {
        for (kind, most) in [(4, 100), (6, 100), (2, 100), (8, 100), (3, 10)] {
            for piece in [1, 7, 9, 1000] {
                let mut gauge = gauge(100);
                let flood: Vec<u8> = (0..most + 2).flat_map(|_| frame(kind, 0, b"12345678")).collect();
                let (good, bad) = flood.split_at(most * 17);
                assert!(good.chunks(piece).all(|bytes| gauge.see(bytes)), "{kind} {piece}");
                assert!(!bad.chunks(piece).all(|bytes| gauge.see(bytes)), "{kind} {piece}");
            }
        }
    }

    #[test]
    fn empty_data_costs_and_content_earns() {
        let mut gauge = gauge(3);
        assert!(gauge.see(&frame(0, 0, b"")) && gauge.see(&frame(0, 0, b"")) && gauge.see(&frame(0, 0, b"")));
        assert!(gauge.see(&frame(0, 0, &[0; 8192])));
        assert!(gauge.see(&frame(8, 0, b"1234")));
        assert!(gauge.see(&frame(0, 1, b"")), "the end of a stream is free");
    }

    #[test]
    fn each_message_pays_for_the_windows_and_pings_that_follow_it() {
        let mut gauge = gauge(100);
        for _ in 0..10_000 {
            gauge.gave_piece();
            assert!(gauge.see(&frame(8, 0, b"1234")) && gauge.see(&frame(6, 0, b"12345678")));
        }
        assert!((0..101).any(|_| !gauge.see(&frame(6, 0, b"12345678"))));
    }

    #[test]
    fn heads_cost_by_their_length_and_answers_pay_for_them() {
        let (mut gauge, large) = (gauge(1000), frame(1, 5, &[0xbe; 16_384]));
        assert_eq!((0..).take_while(|_| gauge.see(&large)).count(), 58);
        let mut gauge = self::gauge(1000);
        for _ in 0..1000 {
            assert!(gauge.see(&frame(1, 5, &[0x82; 4000])));
            gauge.answered();
        }
    }

    #[test]
    fn a_turn_is_short_until_a_request_was_answered_and_again_once_one_was_refused() {
        let mut gauge = gauge(1000);
        gauge.end_turn();
        assert_eq!(gauge.turn_left(), FIRST_TURN_BYTES);
        gauge.answered();
        assert!(gauge.see(&frame(0, 0, &[0; 1000])));
        assert_eq!(gauge.turn_left(), TURN_BYTES - 9);
        gauge.refused(1500);
        assert_eq!(gauge.turn_left(), FIRST_TURN_BYTES - 9);
        let heads = (0..).take_while(|_| {
            gauge.refused(1500);
            !gauge.is_exhausted()
        });
        assert_eq!(heads.count(), 1);
    }

    #[test]
    fn resets_are_paid_for_by_answers() {
        let mut gauge = gauge(100);
        for _ in 0..1000 {
            assert!(gauge.see(&frame(3, 0, b"1234")));
            gauge.answered();
        }
        assert!((0..11).any(|_| !gauge.see(&frame(3, 0, b"1234"))));
    }
}
