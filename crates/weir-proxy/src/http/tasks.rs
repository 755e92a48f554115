//! The tasks that serve the requests of multiplexed connections.
//!
//! The state that an exchange needs while it waits takes some kilobytes. A new task for each request would
//! have to allocate, move and clear that: more work than a small request is. So a task that has served a
//! request waits for the next one, from any connection.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::http::{h2, h3};
use crate::worker::{PanicCount, Worker};

/// Most waiting tasks that are kept per worker; further ones end.
const KEPT: usize = 256;

/// What a task has to do: a request, with everything that belongs to it.
// Made once per request and moved into the task that serves it: boxing it would cost more.
#[allow(clippy::large_enum_variant)]
pub enum Job {
    H2(h2::ReceivedRequest),
    H3(h3::ReceivedRequest),
}

thread_local! {
    /// The waiting tasks of this worker; a worker is one thread. The last one to come is the first to be
    /// used, because its memory is in the processor's cache.
    static WAITING: RefCell<Vec<Rc<IdleTask>>> = const { RefCell::new(Vec::new()) };
}

/// Where a waiting task gets its next request.
#[derive(Default)]
struct IdleTask {
    job: RefCell<Option<Job>>,
    waker: RefCell<Option<Waker>>,
}

/// Makes a task serve the request in `job`.
pub fn serve(worker: &Rc<Worker>, job: Job) {
    let Some(task) = WAITING.with_borrow_mut(Vec::pop) else {
        let task = Rc::new(IdleTask { job: RefCell::new(Some(job)), waker: RefCell::default() });
        tokio::task::spawn_local(Box::pin(work(worker.clone(), task)));
        return;
    };
    *task.job.borrow_mut() = Some(job);
    if let Some(waker) = &*task.waker.borrow() {
        waker.wake_by_ref();
    }
}

async fn work(worker: Rc<Worker>, task: Rc<IdleTask>) {
    let _count = PanicCount::new(&worker);
    loop {
        match task.next().await {
            Job::H2(request) => h2::serve_request(request).await,
            Job::H3(request) => h3::serve_request(request).await,
        }
        let is_kept = WAITING.with_borrow_mut(|waiting| {
            let has_room = waiting.len() < KEPT;
            if has_room {
                waiting.push(task.clone());
            }
            has_room
        });
        if !is_kept {
            return;
        }
    }
}

impl IdleTask {
    async fn next(&self) -> Job {
        poll_fn(|context| {
            if let Some(job) = self.job.borrow_mut().take() {
                return Poll::Ready(job);
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
