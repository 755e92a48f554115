//! Decides which HTTP/2 frames are charged to a connection's flood budget (threats B1, B2, B4, B6).
//!
//! A client that only sends `PING`, `SETTINGS`, `RST_STREAM` or empty frames uses the budget up and is
//! closed.

use std::time::Duration;

use weir_io::clock;
use weir_io::flood::{Budget, RESET_COST};

use super::frames::{FrameHeader, flag, kind};

/// The cost of a frame without content.
const FRAME_COST: f64 = 1.0;
/// Bytes of a head that cost as much as one frame.
const HEAD_BYTES_PER_COST: f64 = 1024.0;
/// Fields of a refused head that cost as much as one frame.
const FIELDS_PER_COST: f64 = 4.0;

/// What a client may still send on one connection.
pub struct FloodBudget {
    budget: Budget,
    is_exhausted: bool,
}

impl FloodBudget {
    /// For a new connection whose client may send `most` frames without content before any request is
    /// answered.
    pub fn new(most: u32, now: Duration) -> FloodBudget {
        FloodBudget { budget: Budget::new(most, now), is_exhausted: false }
    }

    /// Charges a frame whose header was received.
    pub fn see(&mut self, header: FrameHeader) {
        let cost = match header.kind {
            kind::DATA if header.payload_bytes > 0 => return self.moved(header.payload_bytes),
            kind::DATA if header.has(flag::END_STREAM) => return,
            kind::HEADERS | kind::CONTINUATION => {
                FRAME_COST + header.payload_bytes as f64 / HEAD_BYTES_PER_COST
            }
            kind::RST_STREAM => RESET_COST,
            _ => FRAME_COST,
        };
        self.charge(cost);
    }

    /// Marks the budget as used up.
    pub fn exhaust(&mut self) {
        self.is_exhausted = true;
    }

    /// Whether the client has sent more than it may.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// Credits a request that was answered.
    pub fn answered(&mut self) {
        self.budget.request_answered();
    }

    /// Charges a request that was refused for its head with so many fields: reading it may have been most of
    /// the work.
    pub fn refused(&mut self, fields: usize) {
        self.charge(RESET_COST + fields as f64 / FIELDS_PER_COST);
    }

    /// Credits a piece of an answer that was sent completely.
    pub fn sent_piece(&mut self) {
        self.budget.sent_piece();
    }

    /// Credits content that was sent or received.
    pub fn moved(&mut self, bytes: usize) {
        self.budget.moved(bytes as u64);
    }

    fn charge(&mut self, frames: f64) {
        self.is_exhausted |= !self.budget.charge(frames, clock::now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives a frame; false once the budget is used up.
    fn receives(budget: &mut FloodBudget, kind: u8, flags: u8, payload_bytes: usize) -> bool {
        budget.see(FrameHeader { payload_bytes, kind, flags, stream: 1 });
        !budget.is_exhausted()
    }

    fn budget(most: u32) -> FloodBudget {
        FloodBudget::new(most, clock::now())
    }

    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;

    #[test]
    fn a_flood_of_frames_without_content_is_noticed() {
        for (kind, most) in
            [(SETTINGS, 100), (PING, 100), (2, 100), (WINDOW_UPDATE, 100), (kind::RST_STREAM, 10)]
        {
            let mut budget = budget(100);
            assert!((0..most).all(|_| receives(&mut budget, kind, 0, 8)), "{kind}");
            assert!(!(0..2).all(|_| receives(&mut budget, kind, 0, 8)), "{kind}");
        }
    }

    #[test]
    fn empty_data_costs_and_content_earns() {
        let mut budget = budget(3);
        assert!((0..3).all(|_| receives(&mut budget, kind::DATA, 0, 0)));
        assert!(receives(&mut budget, kind::DATA, 0, 8192));
        assert!(receives(&mut budget, WINDOW_UPDATE, 0, 4));
        assert!(receives(&mut budget, kind::DATA, flag::END_STREAM, 0), "the end of a stream is free");
    }

    #[test]
    fn each_message_pays_for_the_windows_and_pings_that_follow_it() {
        let mut budget = budget(100);
        for _ in 0..10_000 {
            budget.sent_piece();
            assert!(receives(&mut budget, WINDOW_UPDATE, 0, 4) && receives(&mut budget, PING, 0, 8));
        }
        assert!((0..101).any(|_| !receives(&mut budget, PING, 0, 8)));
    }

    #[test]
    fn heads_cost_by_their_length_and_answers_pay_for_them() {
        let mut large = budget(1000);
        assert_eq!((0..).take_while(|_| receives(&mut large, kind::HEADERS, 5, 16_384)).count(), 58);
        let mut answered = budget(1000);
        for _ in 0..1000 {
            assert!(receives(&mut answered, kind::HEADERS, 5, 4000));
            answered.answered();
        }
    }

    #[test]
    fn heads_of_many_fields_that_are_refused_use_it_up() {
        let mut budget = budget(1000);
        let heads = (0..).take_while(|_| {
            budget.refused(1500);
            !budget.is_exhausted()
        });
        assert_eq!(heads.count(), 2);
    }
}
