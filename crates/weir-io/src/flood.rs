//! How much work that says nothing a peer may make on one connection: a budget of frames. Pure.
//!
//! Protocols that carry many streams on a connection let a peer send frames without content for ever: pings,
//! settings, windows, resets. Each is answered or looked at, and a proxy pays for that. So each is charged to
//! the budget of its connection, and what a connection is for earns frames: requests that are answered,
//! content that moves, and time. Which frames are charged is the protocol's to say.

use std::time::Duration;

/// Frames that a reset costs: besides the frame there was a request, whose work is thrown away.
pub const RESET_COST: f64 = 10.0;
/// Frames that an answered request earns: its client may need some windows and a reset.
const FRAMES_PER_REQUEST: f64 = 12.0;
/// Frames that a piece of an answer earns which was not cut to fit a window: libraries of gRPC open windows
/// and measure the path with a `PING` for each message, however small. One that was cut earns nothing: by its
/// window a client would have as many pieces as it likes (CVE-2019-9511).
const FRAMES_PER_PIECE: f64 = 4.0;
/// Bytes of content, either way, that earn one frame. There are honest clients that return both windows in
/// steps of a kibibyte, which is half of that; and those that say something more besides.
const BYTES_PER_FRAME: f64 = 256.0;
/// The part of the whole budget that comes back per second.
const REFILL: f64 = 0.1;

/// Frames without content that one connection may still receive.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    most: f64,
    left: f64,
    refilled_at: Duration,
}

impl Budget {
    /// For a new connection whose peer may send `most` frames without content ahead of what earns more. `now`
    /// is of any clock, always the same.
    pub fn new(most: u32, now: Duration) -> Budget {
        let most = f64::from(most);
        Budget { most, left: most, refilled_at: now }
    }

    /// Charges what so many frames cost. False once the budget is used up; `now` is asked for only near that.
    #[inline]
    pub fn charge(&mut self, frames: f64, now: impl FnOnce() -> Duration) -> bool {
        self.left -= frames;
        self.left >= 0.0 || self.refill(now())
    }

    /// A request was answered.
    #[inline]
    pub fn request_answered(&mut self) {
        self.earn(FRAMES_PER_REQUEST);
    }

    /// A piece of an answer was given to be sent, all that there was of it.
    #[inline]
    pub fn sent_piece(&mut self) {
        self.earn(FRAMES_PER_PIECE);
    }

    /// Content was received or sent.
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
