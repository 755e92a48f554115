//! A listening socket on one worker: for which listener it accepts, and how it is given up.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use weir_state::sockets::Endpoint;

use crate::worker::ListenerSlot;

/// A listening socket on one worker.
pub struct ListenerSocket {
    pub endpoint: Endpoint,
    slot: RefCell<Rc<ListenerSlot>>,
    /// For how long it is served on; `None` while it stays open.
    closing: Cell<Option<Closing>>,
    waker: RefCell<Option<Waker>>,
}

/// How a listening socket is given up.
#[derive(Clone, Copy, Debug)]
pub enum Closing {
    /// The control side withdraws it at the same time; what had begun until then is served.
    After(Duration),
    /// Only if it was withdrawn is there anything to wait for: another process may have it from now on.
    IfWithdrawnAfter(Duration),
}

impl ListenerSocket {
    /// One that stays open, and accepts for `slot`.
    pub fn new(endpoint: Endpoint, slot: Rc<ListenerSlot>) -> ListenerSocket {
        let slot = RefCell::new(slot);
        ListenerSocket { endpoint, slot, closing: Cell::new(None), waker: RefCell::default() }
    }

    /// Accepts for another listener from now on.
    pub fn belongs_to(&self, slot: Rc<ListenerSlot>) {
        *self.slot.borrow_mut() = slot;
    }

    /// The listener that this socket accepts for.
    pub fn slot(&self) -> Rc<ListenerSlot> {
        self.slot.borrow().clone()
    }

    /// How it is given up, if it is. `waker` is woken when that changes.
    pub fn closing(&self, waker: &Waker) -> Option<Closing> {
        let mut stored = self.waker.borrow_mut();
        if !stored.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *stored = Some(waker.clone());
        }
        self.closing.get()
    }

    /// Whether it is given up, for those who linger nowhere. `waker` is woken when that changes.
    pub fn is_closing(&self, waker: &Waker) -> bool {
        self.closing(waker).is_some()
    }

    /// Gives it up; whoever serves it is woken.
    pub fn close(&self, closing: Closing) {
        self.closing.set(Some(closing));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}
