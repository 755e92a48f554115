//! Memory that is not one of our buffers and counts against the budget.

use std::cell::Cell;
use std::rc::Rc;

use super::Buffers;

/// Memory in use elsewhere that counts against the budget until this is dropped.
pub struct Charge {
    pub(super) bytes: u64,
    pub(super) owner: Rc<Buffers>,
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
        self.owner.give_back(self.bytes);
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
            self.owner.take(bytes);
            self.owner.give_back(before);
        }
    }

    /// Most bytes that whoever holds this may have in use.
    pub fn most_bytes(&self) -> u64 {
        let all = &self.owner.all;
        let budget = all.budget_bytes.get();
        if self.owner.client.is_some() { all.client_bytes.get().min(budget) } else { budget }
    }

    /// Counts it as memory of `owner`, a client of the same worker, from now on.
    pub fn counts_for(&mut self, owner: &Rc<Buffers>) {
        let bytes = self.bytes.get();
        self.set(0);
        self.owner = owner.clone();
        self.set(bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}
