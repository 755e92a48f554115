//! A listening socket on one worker: for which listener it accepts, and how it is given up.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use weir_state::sockets::Endpoint;

use crate::worker::ListenerSlot;

/// A listening socket on one worker.
pub struct ListenerSocket {
    pub endpoint: Endpoint,
    /// Index of the interface that it is bound to; `None` where its endpoint names none.
    pub interface: Option<NonZeroU32>,
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
    /// One that stays open, and accepts for `slot` at the socket that `descriptor` is of.
    pub fn new(endpoint: Endpoint, descriptor: &OwnedFd, slot: Rc<ListenerSlot>) -> ListenerSocket {
        let (interface, slot) = (endpoint.interface_of(descriptor), RefCell::new(slot));
        ListenerSocket { endpoint, interface, slot, closing: Cell::new(None), waker: RefCell::default() }
    }

    /// Whether `descriptor`, of a socket for `endpoint`, is of this very one: of one endpoint there are two
    /// where the interface has come anew.
    pub fn is_of(&self, endpoint: &Endpoint, descriptor: &OwnedFd) -> bool {
        self.endpoint == *endpoint && self.interface == endpoint.interface_of(descriptor)
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

    /// Gives it up; whoever serves it is woken.
    pub fn close(&self, closing: Closing) {
        self.closing.set(Some(closing));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}
