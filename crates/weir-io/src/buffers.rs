//! Read buffers. A connection borrows one only while bytes are in it: an idle connection holds none.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Size in bytes of a buffer for heads and small bodies.
pub const SMALL: usize = 16 << 10;
/// Size in bytes of a buffer for bulk transfer.
pub const LARGE: usize = 64 << 10;
/// Free buffers kept per size; further ones go back to the allocator.
const KEPT: usize = 128;

/// The buffers of one worker, within its share of the memory budget.
pub struct Buffers {
    small: RefCell<Vec<Box<[u8]>>>,
    large: RefCell<Vec<Box<[u8]>>>,
    in_use_bytes: Cell<u64>,
    budget_bytes: Cell<u64>,
}

impl Buffers {
    /// Hands out at most `budget_bytes` at once.
    pub fn new(budget_bytes: u64) -> Rc<Buffers> {
        Rc::new(Buffers {
            small: RefCell::default(),
            large: RefCell::default(),
            in_use_bytes: Cell::new(0),
            budget_bytes: Cell::new(budget_bytes),
        })
    }

    /// Hands out at most `budget_bytes` at once from now on. Buffers lent out beyond that are not revoked.
    pub fn resize(&self, budget_bytes: u64) {
        self.budget_bytes.set(budget_bytes);
    }

    /// A buffer of at least `size` bytes; `None` when the budget is used up, and then the caller sheds its
    /// work.
    ///
    /// The last eighth of the budget is reserved for heads: however many bodies are stuck, requests can still
    /// be read and refused properly.
    #[inline]
    pub fn borrow(self: &Rc<Self>, size: usize) -> Option<Buffer> {
        let (kept, size) = match size {
            0..=SMALL => (Some(&self.small), SMALL),
            _ if size <= LARGE => (Some(&self.large), LARGE),
            _ => (None, size),
        };
        if !self.has_room(size) {
            return None;
        }
        self.in_use_bytes.set(self.in_use_bytes.get() + size as u64);
        let bytes =
            kept.and_then(|kept| kept.borrow_mut().pop()).unwrap_or_else(|| vec![0; size].into_boxed_slice());
        Some(Buffer { bytes, start: 0, end: 0, owner: self.clone() })
    }

    /// Whether a buffer of `size` bytes could be borrowed now.
    #[inline]
    pub fn has_room(&self, size: usize) -> bool {
        let budget = self.budget_bytes.get();
        let most = if size > SMALL { budget - budget / 8 } else { budget };
        self.in_use_bytes.get() + size as u64 <= most
    }

    /// Counts `bytes` of memory that is not one of our buffers, such as what a pipe holds in the kernel,
    /// until the charge is dropped. `None` when three quarters of the budget are used up: callers charge for
    /// what makes them faster, not for what they need.
    pub fn charge(self: &Rc<Self>, bytes: u64) -> Option<Charge> {
        let in_use = self.in_use_bytes.get() + bytes;
        let budget = self.budget_bytes.get();
        if in_use > budget - budget / 4 {
            return None;
        }
        self.in_use_bytes.set(in_use);
        Some(Charge { bytes, owner: self.clone() })
    }

    /// Bytes of all lent buffers, all charges, and all memory held elsewhere ([`Held`]).
    #[inline]
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes.get()
    }
}

/// A lent buffer: bytes `start..end` are filled. It goes back to its worker when dropped.
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    owner: Rc<Buffers>,
}

impl Buffer {
    /// The bytes that were received and not yet consumed.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// As [`Self::filled`], but mutable.
    #[inline]
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Whether no bytes are filled.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Room to receive into.
    #[inline]
    pub fn free(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Counts `count` bytes of [`Self::free`] as filled.
    #[inline]
    pub fn fill(&mut self, count: usize) {
        self.end += count;
        assert!(self.end <= self.bytes.len(), "filled beyond the buffer");
    }

    /// Drops the first `count` filled bytes.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "consumed beyond what was filled");
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Moves the filled bytes to the front, to make room behind them.
    #[inline]
    pub fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Appends `bytes` to the filled bytes; they must fit.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Replaces the bytes at `range` of the filled bytes by `bytes`, and moves those behind them. `false`,
    /// with nothing changed, if there is no room. O(bytes behind them).
    pub fn replace(&mut self, range: Range<usize>, bytes: &[u8]) -> bool {
        let behind = self.end - self.start - range.end;
        if self.bytes.len() < range.start + bytes.len() + behind {
            return false;
        }
        if self.bytes.len() < self.start + range.start + bytes.len() + behind {
            self.compact();
        }
        let at = self.start + range.start;
        self.bytes.copy_within(self.start + range.end..self.end, at + bytes.len());
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.end = at + bytes.len() + behind;
        true
    }

    /// Size in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no room is left even after [`Self::compact`].
    #[inline]
    pub fn is_full(&self) -> bool {
        self.start == 0 && self.end == self.bytes.len()
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.owner.in_use_bytes.set(self.owner.in_use_bytes.get() - bytes.len() as u64);
        let kept = match bytes.len() {
            SMALL => &self.owner.small,
            LARGE => &self.owner.large,
            _ => return,
        };
        let mut kept = kept.borrow_mut();
        if kept.len() < KEPT {
            kept.push(bytes);
        }
    }
}

/// Memory in use elsewhere that counts against the budget until this is dropped.
pub struct Charge {
    bytes: u64,
    owner: Rc<Buffers>,
}

impl Charge {
    /// Bytes counted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Raises the charge to `bytes` in all; a lower number changes nothing. False, and nothing changes, if
    /// [`Buffers::charge`] would refuse the difference.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else { return true };
        let Some(mut charge) = self.owner.charge(more) else { return false };
        self.bytes += std::mem::take(&mut charge.bytes);
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.owner.in_use_bytes.set(self.owner.in_use_bytes.get() - self.bytes);
    }
}

/// Memory that a connection's protocol holds outside our buffers, as far as it is known. It counts against
/// the budget, so that further buffers are refused in time. It is never refused itself, because flow-control
/// windows that were granted cannot be taken back.
pub struct Held {
    bytes: Cell<u64>,
    owner: Rc<Buffers>,
}

impl Held {
    /// Holds nothing yet.
    pub fn new(owner: &Rc<Buffers>) -> Held {
        Held { bytes: Cell::new(0), owner: owner.clone() }
    }

    /// Sets the number of bytes held now.
    #[inline]
    pub fn set(&self, bytes: u64) {
        let before = self.bytes.replace(bytes);
        if before != bytes {
            self.owner.in_use_bytes.set(self.owner.in_use_bytes.get() + bytes - before);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_bounds_what_is_lent_and_comes_back_with_the_buffers() {
        // A large buffer must leave the eighth that is kept for heads.
        let buffers = Buffers::new(8 * SMALL as u64 + LARGE as u64);
        let large = buffers.borrow(LARGE).unwrap();
        let small: Vec<Buffer> = (0..8).map(|_| buffers.borrow(1).unwrap()).collect();
        assert!(buffers.borrow(1).is_none());
        drop((small, large));
        assert_eq!(buffers.in_use_bytes(), 0);
        assert!(buffers.borrow(LARGE).is_some());
    }

    #[test]
    fn a_smaller_budget_counts_what_is_lent_already() {
        let buffers = Buffers::new(4 * LARGE as u64);
        let lent = buffers.borrow(LARGE).unwrap();
        buffers.resize(LARGE as u64);
        assert!(buffers.borrow(1).is_none());
        drop(lent);
        assert!(buffers.borrow(1).is_some());
    }

    #[test]
    fn consumed_bytes_make_room_after_compaction() {
        let buffers = Buffers::new(1 << 20);
        let mut buffer = buffers.borrow(SMALL).unwrap();
        buffer.append(b"abcdef");
        buffer.consume(4);
        buffer.compact();
        assert_eq!(buffer.filled(), b"ef");
        assert_eq!(buffer.free().len(), SMALL - 2);
        buffer.consume(2);
        assert!(buffer.is_empty());
        assert_eq!(buffer.free().len(), SMALL);
    }

    #[test]
    fn bytes_in_the_middle_are_replaced_by_more_or_fewer_where_there_is_room() {
        let buffers = Buffers::new(1 << 20);
        let mut buffer = buffers.borrow(SMALL).unwrap();
        buffer.append(b"..abcdef");
        buffer.consume(2);
        assert!(buffer.replace(2..4, b"CCCDDD"));
        assert_eq!(buffer.filled(), b"abCCCDDDef");
        assert!(buffer.replace(2..8, b"") && buffer.replace(4..4, b"g"));
        assert_eq!(buffer.filled(), b"abefg");
        let room = buffer.free().len();
        buffer.fill(room);
        assert!(buffer.replace(1..2, b"BBB"), "what was consumed makes room");
        assert_eq!(buffer.filled()[..5], *b"aBBBe");
        assert!(buffer.is_full() && !buffer.replace(0..0, b"x") && buffer.replace(0..1, b"x"));
        assert_eq!(buffer.filled()[..5], *b"xBBBe");
    }

    #[test]
    fn what_is_held_elsewhere_is_counted_even_beyond_the_budget() {
        let buffers = Buffers::new(4 * SMALL as u64);
        let held = Held::new(&buffers);
        held.set(5 * SMALL as u64);
        assert!(buffers.borrow(SMALL).is_none() && buffers.charge(1).is_none());
        held.set(SMALL as u64);
        assert!(buffers.borrow(SMALL).is_some());
        drop(held);
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    #[test]
    fn a_charge_grows_as_far_as_the_budget_goes_and_is_given_back_whole() {
        let buffers = Buffers::new(8 * LARGE as u64);
        let mut charge = buffers.charge(LARGE as u64).unwrap();
        assert!(charge.grow(6 * LARGE as u64));
        assert!(!charge.grow(6 * LARGE as u64 + 1), "three quarters");
        assert!(charge.grow(1), "no more than before");
        assert_eq!((charge.bytes(), buffers.in_use_bytes()), (6 * LARGE as u64, 6 * LARGE as u64));
        drop(charge);
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    #[test]
    fn bodies_and_charges_leave_room_for_heads() {
        let buffers = Buffers::new(8 * LARGE as u64);
        let charge = buffers.charge(6 * LARGE as u64).unwrap();
        assert!(buffers.charge(1).is_none(), "three quarters");
        let body = buffers.borrow(LARGE).unwrap();
        assert!(buffers.borrow(LARGE).is_none(), "seven eighths");
        let heads: Vec<Buffer> = (0..LARGE / SMALL).map(|_| buffers.borrow(SMALL).unwrap()).collect();
        assert!(buffers.borrow(SMALL).is_none(), "all of it");
        drop((charge, body, heads));
        assert_eq!(buffers.in_use_bytes(), 0);
    }
}
