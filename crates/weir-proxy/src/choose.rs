//! Getting a backend: choose, or wait in the pool's line until one has room. Shared by all protocols.
//!
//! No call is lost: whoever finds every backend busy first takes a place in line, then tries once more, and only then waits. And
//! the line is kept: a newcomer who finds room while others wait gives it to the first of them.
//!
//! The pool may be given other backends during the wait, so whoever waits chooses from the pool as it is then. What is chosen may
//! therefore belong to a newer snapshot of the pool than was asked for ([`WorkerPool::index_of`]).

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_balance::{NoPick, PickInput};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_stats::table::End;

use crate::backends::{Chosen, WorkerPool, elapsed};
use crate::queue::{Turn, WaitingRoom};
use crate::worker::Worker;

/// A backend, and how long it took to get it.
pub struct Got {
    pub chosen: Chosen,
    /// Time in line; `None` when a backend had room at once.
    pub queued: Option<Duration>,
}

/// Why there is no backend. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// None is up.
    NoneUp,
    /// Every one that is up was tried already.
    AllTried,
    /// Every one is at `max_connections`, and so is the line.
    QueueFull,
    /// Waited for `queue.timeout`.
    QueueTimeout,
    /// The client went away while it waited.
    ClientGone,
}

impl Unavailable {
    /// The word for log and metrics.
    pub fn end(self) -> End {
        match self {
            Unavailable::NoneUp | Unavailable::AllTried => End::NoBackend,
            Unavailable::QueueFull => End::QueueFull,
            Unavailable::QueueTimeout => End::QueueTimeout,
            Unavailable::ClientGone => End::ClientClosed,
        }
    }
}

/// What a choice depends on, apart from what is drawn anew for each try.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish<'a> {
    /// Hash of what source, hash and maglev choose by.
    pub key: Option<u64>,
    /// Backend id from the client's cookie.
    pub sticky: Option<u64>,
    /// Indexes of backends already tried.
    pub exclude: &'a [usize],
}

impl Wish<'_> {
    /// Chooses without waiting.
    #[inline]
    pub fn choose(&self, worker: &Worker, pool: &Rc<WorkerPool>, now: Duration) -> Result<Chosen, NoPick> {
        let draw = worker.draw();
        pool.choose(&PickInput {
            now,
            draw: [draw as u32, (draw >> 32) as u32],
            key: self.key,
            sticky: self.sticky,
            exclude: self.exclude,
        })
    }
}

/// Chooses a backend of `pool`, in line for at most `queue.timeout` when every one is at `max_connections`.
///
/// `deadline` must belong to the calling task; it is replaced only when there is a wait. `client_gone` is asked whenever
/// the task is woken during the wait, with its context, so that it can ask to be woken when the client leaves.
pub async fn choose_or_wait(
    worker: &Worker,
    pool: &Rc<WorkerPool>,
    wish: &Wish<'_>,
    deadline: &Deadline,
    client_gone: impl FnMut(&mut Context<'_>) -> bool,
) -> Result<Got, Unavailable> {
    let now = clock::now();
    if pool.shared.waiting_room.depth() == 0 {
        match wish.choose(worker, pool, now) {
            Ok(chosen) => return Ok(Got { chosen, queued: None }),
            Err(NoPick::NoneUp) => return Err(Unavailable::NoneUp),
            Err(NoPick::AllExcluded) => return Err(Unavailable::AllTried),
            Err(NoPick::AllBusy) => {}
        }
    }
    wait_in_line(worker, pool, wish, deadline, client_gone, now).await
}

/// The slow path: everything is busy, or others wait already.
async fn wait_in_line(
    worker: &Worker,
    pool: &Rc<WorkerPool>,
    wish: &Wish<'_>,
    deadline: &Deadline,
    mut client_gone: impl FnMut(&mut Context<'_>) -> bool,
    begun: Duration,
) -> Result<Got, Unavailable> {
    let queue = pool.shared.config.queue;
    let room = &pool.shared.waiting_room;
    let mut is_first = room.depth() == 0;
    deadline.set(begun + queue.timeout);
    pool.cells().queued.increment();
    let mut place = Place::take(room, queue.max).await.ok_or(Unavailable::QueueFull)?;
    loop {
        match choose_now(worker, pool, wish)? {
            Some(chosen) if is_first => {
                place.give_up();
                return Ok(Got { chosen, queued: Some(elapsed(begun)) });
            }
            // There is room, but others were here before: releasing it calls the first of them.
            Some(chosen) => drop(chosen),
            None => {}
        }
        poll_fn(|context| {
            if place.turn.is_called() {
                Poll::Ready(Ok(()))
            } else if client_gone(context) {
                Poll::Ready(Err(Unavailable::ClientGone))
            } else if deadline.has_passed() {
                Poll::Ready(Err(Unavailable::QueueTimeout))
            } else {
                Poll::Pending
            }
        })
        .await?;
        is_first = true;
        // An error leaves the place unused, and so passes the call on.
        let chosen = choose_now(worker, pool, wish)?;
        if let Some(chosen) = chosen {
            place.is_used = true;
            room.pass_on(&place.turn);
            return Ok(Got { chosen, queued: Some(elapsed(begun)) });
        }
        // Somebody was faster; back to the front of the line.
        place.take_again().await;
    }
}

/// Chooses from the pool as it is now; `None` while every backend is busy.
fn choose_now(
    worker: &Worker,
    asked: &Rc<WorkerPool>,
    wish: &Wish<'_>,
) -> Result<Option<Chosen>, Unavailable> {
    let now = clock::now();
    let pool = worker.pool(&asked.shared.config.name).ok_or(Unavailable::NoneUp)?;
    let chosen = if Rc::ptr_eq(&pool, asked) || wish.exclude.is_empty() {
        wish.choose(worker, &pool, now)
    } else {
        let tried = |index: &usize| {
            let tried = &asked.backends[*index].shared.balance;
            pool.backends.iter().position(|backend| Arc::ptr_eq(&backend.shared.balance, tried))
        };
        let exclude: Vec<usize> = wish.exclude.iter().filter_map(tried).collect();
        Wish { exclude: &exclude, ..*wish }.choose(worker, &pool, now)
    };
    match chosen {
        Ok(chosen) => Ok(Some(chosen)),
        Err(NoPick::AllBusy) => Ok(None),
        Err(NoPick::NoneUp) => Err(Unavailable::NoneUp),
        Err(NoPick::AllExcluded) => Err(Unavailable::AllTried),
    }
}

/// A place in line, given up when dropped: the session may be cancelled at any time.
struct Place<'a> {
    room: &'a WaitingRoom,
    turn: Arc<Turn>,
    /// The call that took it out of the line has been answered.
    is_used: bool,
}

impl<'a> Place<'a> {
    async fn take(room: &'a WaitingRoom, limit: u32) -> Option<Place<'a>> {
        let turn = room.enter(own_waker().await, limit)?;
        Some(Place { room, turn, is_used: false })
    }

    /// For one who was called in vain: a place at the front.
    async fn take_again(&mut self) {
        self.turn = self.room.enter_again(own_waker().await, &self.turn);
    }

    fn give_up(self) {}
}

async fn own_waker() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.room.leave(&self.turn);
        }
    }
}
