//! The memory that a held body may take: claimed as the body comes, so that a client that only says how much
//! it will send takes no more than it has sent.

use std::rc::Rc;

use weir_http::BodyLength;
use weir_io::buffers::{Buffers, Charge};

/// What is claimed for the first byte. From there on a claim is doubled where it does not suffice, as the
/// memory is that it stands for.
const FIRST_BYTES: u64 = 1 << 10;

/// How much of a body may be held, and what stands for it.
pub struct HeldClaim<'a> {
    buffers: &'a Rc<Buffers>,
    charge: &'a mut Option<Charge>,
    /// Most content bytes that are held.
    most: u64,
    /// How many there are, as far as that is known: no more is claimed.
    expected: u64,
    /// How often each of them is there.
    copies: u64,
    is_refused: bool,
}

impl<'a> HeldClaim<'a> {
    /// For a body of which `most` bytes are held, each `copies` times. `charge` is what stands for those that
    /// are held already, and for more as they come.
    pub fn new(
        buffers: &'a Rc<Buffers>,
        charge: &'a mut Option<Charge>,
        most: u64,
        copies: u64,
    ) -> HeldClaim<'a> {
        HeldClaim { buffers, charge, most, expected: most, copies, is_refused: false }
    }

    /// The same for a body of which it is known how long it is.
    pub fn expecting(mut self, body: BodyLength) -> HeldClaim<'a> {
        if let BodyLength::Length(length) = body {
            self.expected = length.min(self.most);
        }
        self
    }

    /// Whether there was no memory for what came.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether nothing is held beyond the `held` bytes that are.
    pub fn is_full(&self, held: u64) -> bool {
        self.is_refused || held >= self.most
    }

    /// How many of `count` bytes that have come may be held behind the `held` that are.
    pub fn room(&mut self, held: u64, count: usize) -> usize {
        let wanted = (held + count as u64).min(self.most);
        if wanted > self.claimed() && !self.grow(wanted) {
            self.is_refused = true;
        }
        wanted.min(self.claimed()).saturating_sub(held) as usize
    }

    /// Content bytes that what is claimed suffices for.
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
        // Three quarters of it are for what is held.
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
