//! The line before a pool whose backends are all at `max_connections`.
//!
//! No call is lost: whoever finds every backend busy first takes a place in line, then tries once more, and
//! only then waits. And the line is kept: a newcomer who finds room while others wait gives it to the first
//! of them.
//!
//! The pool may be given other backends during the wait, so whoever waits chooses from the pool as it is
//! then. What is chosen may therefore belong to a newer snapshot of the pool than was asked for
//! ([`WorkerPool::index_of`]).

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use weir_balance::NoPick;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_state::queue::{Queue, Waiter};

use super::{Got, Reach, Unavailable, pick};
use crate::backends::{Chosen, WorkerPool, elapsed};
use crate::worker::Worker;

/// Waits for a backend of `pool` to have room: everything is busy, or others wait already.
pub async fn wait(
    worker: &Worker,
    pool: &Rc<WorkerPool>,
    reach: &mut Reach,
    deadline: &Deadline,
    mut client_gone: impl FnMut(&mut Context<'_>) -> bool,
) -> Result<Got, Unavailable> {
    let begun = clock::now();
    let queue = pool.shared.config.queue;
    let line = &pool.shared.queue;
    let mut is_first = line.depth() == 0;
    deadline.set(begun + queue.timeout);
    pool.cells().queued.increment();
    let mut position = QueuePosition::take(line, queue.max).await.ok_or(Unavailable::QueueFull)?;
    loop {
        match choose_now(worker, pool, reach)? {
            Some(chosen) if is_first => {
                position.give_up();
                return Ok(Got { chosen, queued: Some(elapsed(begun)) });
            }
            // There is room, but others were here before: releasing it calls the first of them.
            Some(chosen) => drop(chosen),
            None => {}
        }
        poll_fn(|context| {
            if position.waiter.is_called() {
                Poll::Ready(Ok(()))
            } else if client_gone(context) {
                Poll::Ready(Err(Unavailable::ClientGone { queued: elapsed(begun) }))
            } else if deadline.has_passed() {
                Poll::Ready(Err(Unavailable::QueueTimeout { queued: elapsed(begun) }))
            } else {
                Poll::Pending
            }
        })
        .await?;
        is_first = true;
        // An error leaves the place unused, and so passes the call on.
        let chosen = choose_now(worker, pool, reach)?;
        if let Some(chosen) = chosen {
            position.is_used = true;
            line.pass_on(&position.waiter);
            return Ok(Got { chosen, queued: Some(elapsed(begun)) });
        }
        // Somebody was faster; back to the front of the line.
        position.take_again().await;
    }
}

/// Chooses from the pool as it is now; `None` while every backend is busy.
fn choose_now(
    worker: &Worker,
    asked: &Rc<WorkerPool>,
    reach: &mut Reach,
) -> Result<Option<Chosen>, Unavailable> {
    let now = clock::now();
    let pool = worker.pool(&asked.shared.config.name).ok_or(Unavailable::NoneUp)?;
    let chosen = if Rc::ptr_eq(&pool, asked) || reach.tried.is_empty() {
        pick(worker, &pool, reach.wish, &reach.tried, now)
    } else {
        let tried = |index: &usize| {
            let tried = &asked.backends[*index].shared.balance;
            pool.backends.iter().position(|backend| Arc::ptr_eq(&backend.shared.balance, tried))
        };
        let exclude: Vec<usize> = reach.tried.iter().filter_map(tried).collect();
        pick(worker, &pool, reach.wish, &exclude, now)
    };
    match chosen {
        Ok(chosen) => Ok(Some(chosen)),
        Err(NoPick::AllBusy) => Ok(None),
        Err(NoPick::NoneUp) => Err(Unavailable::NoneUp),
        // Those left were tried already: any of them again.
        Err(NoPick::AllExcluded) => {
            reach.tried.clear();
            match pick(worker, &pool, reach.wish, &[], now) {
                Ok(chosen) => Ok(Some(chosen)),
                Err(NoPick::AllBusy) => Ok(None),
                Err(NoPick::NoneUp | NoPick::AllExcluded) => Err(Unavailable::NoneUp),
            }
        }
    }
}

/// A place in line, given up when dropped: the session may be cancelled at any time.
struct QueuePosition<'a> {
    line: &'a Queue,
    waiter: Arc<Waiter>,
    /// The call that took it out of the line has been answered.
    is_used: bool,
}

impl<'a> QueuePosition<'a> {
    async fn take(line: &'a Queue, limit: u32) -> Option<QueuePosition<'a>> {
        let waiter = line.enter(own_waker().await, limit)?;
        Some(QueuePosition { line, waiter, is_used: false })
    }

    /// For one who was called in vain: a place at the front.
    async fn take_again(&mut self) {
        self.waiter = self.line.enter_again(own_waker().await, &self.waiter);
    }

    fn give_up(self) {}
}

async fn own_waker() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.line.leave(&self.waiter);
        }
    }
}
