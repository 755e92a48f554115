//! Connections to one backend on one worker that the exchanges of many clients share, whatever they speak:
//! who opens one, and who waits for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The connections to one backend.
pub struct SharedConnections<C> {
    pub open: RefCell<Vec<Rc<C>>>,
    /// Whether somebody opens a connection; others wait for it instead of opening one each.
    opening: Cell<bool>,
    /// Who waits for it, or for a stream to end.
    waiting: RefCell<Vec<Waker>>,
}

impl<C> Default for SharedConnections<C> {
    fn default() -> SharedConnections<C> {
        SharedConnections { open: RefCell::default(), opening: Cell::new(false), waiting: RefCell::default() }
    }
}

impl<C> SharedConnections<C> {
    /// Leave to open a connection; `None` when another exchange has it: wait with [`Self::poll_changed`].
    pub fn leave_to_open(self: &Rc<Self>) -> Option<Leave<C>> {
        (!self.opening.replace(true)).then(|| Leave(self.clone()))
    }

    /// Ready once something may have changed since the caller looked. `asked` tells whether this was polled
    /// before.
    pub fn poll_changed(&self, context: &mut Context<'_>, asked: &mut bool) -> Poll<()> {
        if std::mem::replace(asked, true) {
            return Poll::Ready(());
        }
        self.waiting.borrow_mut().push(context.waker().clone());
        Poll::Pending
    }

    /// Has all who wait look again: a stream or a connection has begun, or ended.
    pub fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Leave to open a connection. Others wait until this is dropped.
pub struct Leave<C>(Rc<SharedConnections<C>>);

impl<C> Drop for Leave<C> {
    fn drop(&mut self) {
        self.0.opening.set(false);
        self.0.wake_waiting();
    }
}
