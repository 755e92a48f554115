//! The tasks that serve the requests of multiplexed connections.
//!
//! What an exchange needs to wait at any of its steps is some kilobytes, which a task of its own would have to allocate, move into place and
//! clear for every request: more work than a small request is. So a task that has served one waits for the next, of whichever connection.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::http::{h2, h3};
use crate::worker::{PanicCount, Worker};

/// Tasks that wait for a request, kept per worker; those above end.
const KEPT: usize = 256;

/// A request and all that goes with it.
// Made once per request and moved into the task that serves it: a box would cost more.
#[allow(clippy::large_enum_variant)]
pub enum Order {
    H2(h2::Order),
    H3(h3::Order),
}

thread_local! {
    /// The tasks of this worker that wait; a worker is one thread. The last to come is the first to go: what it needs is in the processor's
    /// cache.
    static WAITING: RefCell<Vec<Rc<Member>>> = const { RefCell::new(Vec::new()) };
}

/// Where a task that waits is told of its next request.
#[derive(Default)]
struct Member {
    order: RefCell<Option<Order>>,
    waker: RefCell<Option<Waker>>,
}

/// Has a task serve the request in `order`.
pub fn serve(worker: &Rc<Worker>, order: Order) {
    let Some(member) = WAITING.with_borrow_mut(Vec::pop) else {
        let member = Rc::new(Member { order: RefCell::new(Some(order)), waker: RefCell::default() });
        tokio::task::spawn_local(Box::pin(work(worker.clone(), member)));
        return;
    };
    *member.order.borrow_mut() = Some(order);
    if let Some(waker) = &*member.waker.borrow() {
        waker.wake_by_ref();
    }
}

async fn work(worker: Rc<Worker>, member: Rc<Member>) {
    let _count = PanicCount::new(&worker);
    loop {
        match member.next().await {
            Order::H2(order) => h2::serve_request(order).await,
            Order::H3(order) => h3::serve_request(order).await,
        }
        let is_kept = WAITING.with_borrow_mut(|waiting| {
            let has_room = waiting.len() < KEPT;
            if has_room {
                waiting.push(member.clone());
            }
            has_room
        });
        if !is_kept {
            return;
        }
    }
}

impl Member {
    async fn next(&self) -> Order {
        poll_fn(|context| {
            if let Some(order) = self.order.borrow_mut().take() {
                return Poll::Ready(order);
            }
            let waker = &mut *self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
