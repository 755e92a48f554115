//! Claims memory for a held body as the body arrives, so that a client that only announces a large body takes
//! no more memory than it has sent.

use std::rc::Rc;

use weir_http::BodyLength;
use weir_io::buffers::{Buffers, Charge};

/// The claim for the first byte. Whenever it is too small the claim is doubled, like the buffer that it
/// stands for.
const FIRST_BYTES: u64 = 1 << 10;

/// How much of a body may be held, and the charge against the memory budget for it.
pub struct HeldClaim<'a> {
    buffers: &'a Rc<Buffers>,
    charge: &'a mut Option<Charge>,
    /// Most content bytes that are held.
    most: u64,
    /// The body's length, if it is known: no more is claimed.
    expected: u64,
    /// How many copies of each byte are held.
    copies: u64,
    is_refused: bool,
}

impl<'a> HeldClaim<'a> {
    /// For a body of which `most` bytes are held, each in `copies` copies. `charge` accounts for the bytes
    /// that are held already, and grows as more come.
    pub fn new(
        buffers: &'a Rc<Buffers>,
        charge: &'a mut Option<Charge>,
        most: u64,
        copies: u64,
    ) -> HeldClaim<'a> {
        HeldClaim { buffers, charge, most, expected: most, copies, is_refused: false }
    }

    /// The same for a body with this framing, which may give its length.
    pub fn expecting(mut self, body: BodyLength) -> HeldClaim<'a> {
        if let BodyLength::Length(length) = body {
            self.expected = length.min(self.most);
        }
        self
    }

    /// Whether there was no memory for bytes that came.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether nothing more is held than the `held` bytes.
    pub fn is_full(&self, held: u64) -> bool {
        self.is_refused || held >= self.most
    }

    /// How many of `count` bytes that have come may be held, in addition to `held` bytes.
    pub fn room(&mut self, held: u64, count: usize) -> usize {
        let wanted = (held + count as u64).min(self.most);
        if wanted > self.claimed() && !self.grow(wanted) {
            self.is_refused = true;
        }
        wanted.min(self.claimed()).saturating_sub(held) as usize
    }

    /// The content bytes that the claim covers.
    fn claimed(&self) -> u64 {
        self.charge.as_ref().map_or(0, |charge| charge.bytes() / self.copies)
    }

    fn grow(&mut self, wanted: u64) -> bool {
        let step = wanted.max(FIRST_BYTES).checked_next_power_of_two().unwrap_or(u64::MAX);
        let bytes = step.min(self.expected.max(wanted)).saturating_mul(self.copies);
        match self.charge {
            Some(charge) => charge.grow(bytes),
            None => {
                *self.charge = self.buffers.charge(bytes);
                self.charge.is_some()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_follows_what_has_come_and_goes_no_further_than_most() {
        let buffers = Buffers::new(1 << 20);
        let mut charge = None;
        let mut claim = HeldClaim::new(&buffers, &mut charge, 100_000, 1);
        assert_eq!(buffers.in_use_bytes(), 0);
        assert_eq!(claim.room(0, 1), 1);
        assert_eq!(buffers.in_use_bytes(), FIRST_BYTES);
        assert_eq!(claim.room(1, 30_000), 30_000);
        assert_eq!(buffers.in_use_bytes(), 32 << 10);
        assert_eq!(claim.room(30_001, 90_000), 69_999);
        assert_eq!(buffers.in_use_bytes(), 100_000);
        assert!(claim.is_full(100_000) && !claim.is_refused());
        drop(charge.take());
        let mut claim =
            HeldClaim::new(&buffers, &mut charge, 100_000, 1).expecting(BodyLength::Length(40_000));
        assert_eq!(claim.room(0, 33_000), 33_000);
        assert_eq!(buffers.in_use_bytes(), 40_000);
        drop(charge);
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    #[test]
    fn a_step_that_is_refused_leaves_what_is_claimed() {
        // Three quarters of the budget are for held bytes.
        let buffers = Buffers::new(64 << 10);
        let mut charge = None;
        let mut claim = HeldClaim::new(&buffers, &mut charge, 1 << 20, 2);
        assert_eq!(claim.room(0, 10_000), 10_000);
        assert_eq!(buffers.in_use_bytes(), 32 << 10);
        assert_eq!(claim.room(10_000, 20_000), (16 << 10) - 10_000);
        assert!(claim.is_refused() && claim.is_full(16 << 10));
        assert_eq!(buffers.in_use_bytes(), 32 << 10);
    }

    #[test]
    fn what_was_held_in_one_copy_is_claimed_anew_for_two() {
        let buffers = Buffers::new(1 << 20);
        let mut charge = buffers.charge(4 << 10);
        let mut claim = HeldClaim::new(&buffers, &mut charge, 64 << 10, 2);
        assert_eq!(claim.room(4 << 10, 1), 1);
        assert_eq!(buffers.in_use_bytes(), 16 << 10);
    }
}
