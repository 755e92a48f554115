//! How many frames without content a peer may send on one connection: a budget of frames. No I/O.
//!
//! Protocols with many streams per connection let a peer send frames without content for ever: pings,
//! settings, windows, resets. A proxy has to answer or inspect each of them. So each is charged to its
//! connection's budget, and useful work earns frames back: answered requests, content that moves, and time.
//! The protocol decides which frames are charged.

use std::time::Duration;

/// Frames that a reset costs: besides the frame itself, the work for its request is thrown away.
pub const RESET_COST: f64 = 10.0;
/// Frames that an answered request earns: its client may need some window updates and a reset.
const FRAMES_PER_REQUEST: f64 = 12.0;
/// Frames that a piece of an answer earns if it was not cut to fit a window: gRPC libraries update windows
/// and measure the path with a `PING` for each message, however small. A piece that was cut earns nothing: a
/// client could get as many pieces as it likes by keeping its window small (CVE-2019-9511).
const FRAMES_PER_PIECE: f64 = 4.0;
/// Bytes of content, in either direction, that earn one frame. Some honest clients update both windows in
/// steps of a kibibyte, which takes half of that; and some send other frames as well.
const BYTES_PER_FRAME: f64 = 256.0;
/// The share of the whole budget that is refilled per second.
const REFILL: f64 = 0.1;

/// The frames without content that one connection may still receive.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    most: f64,
    left: f64,
    refilled_at: Duration,
}

impl Budget {
    /// For a new connection whose peer may send `most` frames without content before it has earned any. `now`
    /// may be of any clock, but always the same one.
    pub fn new(most: u32, now: Duration) -> Budget {
        let most = f64::from(most);
        Budget { most, left: most, refilled_at: now }
    }

    /// Charges `frames`. False once the budget is used up. `now` is called only when it nearly is.
    #[inline]
    pub fn charge(&mut self, frames: f64, now: impl FnOnce() -> Duration) -> bool {
        self.left -= frames;
        self.left >= 0.0 || self.refill(now())
    }

    /// An answered request earns frames.
    #[inline]
    pub fn request_answered(&mut self) {
        self.earn(FRAMES_PER_REQUEST);
    }

    /// Call this when a piece of an answer was sent whole, not cut to fit a window.
    #[inline]
    pub fn sent_piece(&mut self) {
        self.earn(FRAMES_PER_PIECE);
    }

    /// Received or sent content earns frames.
    #[inline]
    pub fn moved(&mut self, bytes: u64) {
        self.earn(bytes as f64 / BYTES_PER_FRAME);
    }

    #[inline]
    fn earn(&mut self, frames: f64) {
        self.left = (self.left + frames).min(self.most);
    }

    #[cold]
    fn refill(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.refilled_at).as_secs_f64();
        self.refilled_at = now;
        self.earn(passed * self.most * REFILL);
        self.left >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    /// How many frames can be charged at one moment.
    fn charged_at(budget: &mut Budget, now: Duration) -> u32 {
        (0..).take_while(|_| budget.charge(1.0, || now)).count() as u32
    }

    #[test]
    fn as_many_frames_as_agreed_can_be_charged_at_once_and_a_tenth_of_them_each_second() {
        let mut budget = Budget::new(100, START);
        assert_eq!(charged_at(&mut budget, START), 100);
        // The one that was too many is charged too.
        assert_eq!(charged_at(&mut budget, START + Duration::from_secs(1)), 9);
        // The frame that finds the budget used up is charged before it is filled.
        assert_eq!(charged_at(&mut budget, START + Duration::from_secs(1000)), 101, "no more than agreed");
    }

    #[test]
    fn resets_are_paid_for_by_answers() {
        let mut budget = Budget::new(100, START);
        for _ in 0..1000 {
            assert!(budget.charge(RESET_COST, || START));
            budget.request_answered();
        }
        let resets = (0..).take_while(|_| budget.charge(RESET_COST, || START)).count();
        assert_eq!(resets, 10);
    }

    #[test]
    fn content_pays_for_both_windows_in_steps_of_a_kibibyte_and_pieces_for_windows_and_pings() {
        let mut budget = Budget::new(10, START);
        for _ in 0..10_000 {
            budget.moved(1024);
            assert!(budget.charge(2.0, || START));
            budget.sent_piece();
            assert!(budget.charge(4.0, || START));
        }
    }
}
