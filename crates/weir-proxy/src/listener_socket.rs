//! A listening socket on one worker: which listener it accepts for, and how it is given up.

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
    /// Index of the interface that it is bound to; `None` if its endpoint names none.
    pub interface: Option<NonZeroU32>,
    slot: RefCell<Rc<ListenerSlot>>,
    /// How it is being given up; `None` while it stays open.
    closing: Cell<Option<Closing>>,
    waker: RefCell<Option<Waker>>,
}

/// How long a listening socket is still served when it is given up.
#[derive(Clone, Copy, Debug)]
pub enum Closing {
    /// The control side withdraws the socket at the same time; connections that began until then are served.
    After(Duration),
    /// The socket is served only if it was withdrawn: otherwise another process may have it from now on.
    IfWithdrawnAfter(Duration),
}

impl ListenerSocket {
    /// A socket that stays open, with this descriptor, and accepts for `slot`.
    pub fn new(endpoint: Endpoint, descriptor: &OwnedFd, slot: Rc<ListenerSlot>) -> ListenerSocket {
        let (interface, slot) = (endpoint.interface_of(descriptor), RefCell::new(slot));
        ListenerSocket { endpoint, interface, slot, closing: Cell::new(None), waker: RefCell::default() }
    }

    /// Whether `descriptor`, of a socket for `endpoint`, belongs to this very socket: one endpoint can have
    /// two if its interface was created anew.
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

    /// How it is being given up, if it is. `waker` is woken when that changes.
    pub fn closing(&self, waker: &Waker) -> Option<Closing> {
        let mut stored = self.waker.borrow_mut();
        if !stored.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *stored = Some(waker.clone());
        }
        self.closing.get()
    }

    /// Gives it up, and wakes the task that serves it.
    pub fn close(&self, closing: Closing) {
        self.closing.set(Some(closing));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}
