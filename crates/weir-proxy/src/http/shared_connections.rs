//! Connections to one backend on one worker that the exchanges of many clients share, in any protocol:
//! decides which exchange opens one, and which wait for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The connections to one backend.
pub struct SharedConnections<C> {
    pub open: RefCell<Vec<Rc<C>>>,
    /// Whether an exchange is opening a connection; others wait for it instead of opening one each.
    opening: Cell<bool>,
    /// The exchanges that wait for it, or for a stream to end.
    waiting: RefCell<Vec<Waker>>,
}

impl<C> Default for SharedConnections<C> {
    fn default() -> SharedConnections<C> {
        SharedConnections { open: RefCell::default(), opening: Cell::new(false), waiting: RefCell::default() }
    }
}

impl<C> SharedConnections<C> {
    /// Permission to open a connection; `None` if another exchange has it: then wait with
    /// [`Self::poll_changed`].
    pub fn leave_to_open(self: &Rc<Self>) -> Option<Leave<C>> {
        (!self.opening.replace(true)).then(|| Leave(self.clone()))
    }

    /// Ready once something may have changed since the caller last looked. `asked` says whether this was
    /// polled before.
    pub fn poll_changed(&self, context: &mut Context<'_>, asked: &mut bool) -> Poll<()> {
        if std::mem::replace(asked, true) {
            return Poll::Ready(());
        }
        self.waiting.borrow_mut().push(context.waker().clone());
        Poll::Pending
    }

    /// Makes all waiting exchanges check again: a stream or a connection has begun, or ended.
    pub fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Permission to open a connection. Others wait until this is dropped.
pub struct Leave<C>(Rc<SharedConnections<C>>);

impl<C> Drop for Leave<C> {
    fn drop(&mut self) {
        self.0.opening.set(false);
        self.0.wake_waiting();
    }
}
