//! The waiting line of a pool whose backends are all at `max_connections`, or of which none has the requested
//! role.
//!
//! No wake-up is lost: a call that finds every backend busy first takes a place in line, then tries once
//! more, and only then waits. The order is kept: a newcomer that finds room while others wait gives it to the
//! first of them.
//!
//! A reload may replace the pool's backends during the wait, so a waiting call chooses from the pool as it is
//! then. The chosen backend may therefore belong to a newer snapshot of the pool than the one that the call
//! began with ([`WorkerPool::index_of`]).

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_balance::{NoPick, WantedRole};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::LOOK_AGAIN;
use weir_state::queue::{Queue, Waiter};

use super::{Got, Park, Reach, Unavailable};
use crate::backends::{Chosen, WorkerPool, elapsed};
use crate::worker::Worker;

/// Waits until a backend of `pool` has room, or the role. Called if all are busy, none has the role, or
/// others already wait.
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
    let mut is_first = line.depth_of(reach.wish.role) == 0;
    let mut awaited = match reach.wish.park {
        // It is not known yet whether the others wait for room or for a role, which decides how many may
        // wait.
        Some(_) => choose_now(worker, pool, reach)?.err().unwrap_or(Awaited::Room),
        None => Awaited::Room,
    };
    let (most, full) = match (awaited, reach.wish.park) {
        (Awaited::Role, Some(park)) => (park.most, Unavailable::ParkFull),
        _ => (queue.max, Unavailable::QueueFull),
    };
    let mut wait = Wait { begun, until: begun + queue.timeout, is_parked: false };
    pool.cells().queued.increment();
    let Some(mut position) = QueuePosition::take(line, reach.wish.role, most).await else {
        if full == Unavailable::ParkFull {
            pool.cells().park_full.increment();
        }
        return Err(full);
    };
    loop {
        match choose_now(worker, pool, reach)? {
            Ok(chosen) if is_first => {
                position.give_up();
                return Ok(Got { chosen, queued: Some(elapsed(begun)) });
            }
            // There is room, but others were here before: releasing it calls the first of them.
            Ok(chosen) => drop(chosen),
            Err(found) => awaited = found,
        }
        wait.is_for(awaited, pool, reach.wish.park);
        let until = wait.until.min(reach.until);
        deadline.set(until.min(clock::now() + LOOK_AGAIN));
        poll_fn(|context| {
            if deadline.has_passed() && clock::now() < until {
                deadline.set(until.min(clock::now() + LOOK_AGAIN));
            }
            if position.waiter.is_called() {
                Poll::Ready(Ok(()))
            } else if client_gone(context) {
                Poll::Ready(Err(Unavailable::ClientGone { queued: elapsed(begun) }))
            } else if deadline.has_passed() {
                Poll::Ready(Err(wait.timed_out(pool)))
            } else {
                Poll::Pending
            }
        })
        .await?;
        is_first = true;
        // An error leaves the place unused, so the next in line is called.
        match choose_now(worker, pool, reach)? {
            Ok(chosen) => {
                position.is_used = true;
                line.pass_on(&position.waiter);
                return Ok(Got { chosen, queued: Some(elapsed(begun)) });
            }
            Err(found) => awaited = found,
        }
        // Another call was faster; back to the front of the line.
        position.take_again().await;
    }
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// Room: all backends are busy.
    Room,
    /// A role: no backend has it, and the call is one that waits for that.
    Role,
}

/// How long one call waits; this depends on what for.
struct Wait {
    begun: Duration,
    until: Duration,
    is_parked: bool,
}

impl Wait {
    /// The wait for room counts from the moment on at which nothing else had to be waited for, and lasts at
    /// least as long as the call was prepared to wait for a role, which counts from the beginning. Both
    /// together are no longer than `park` plus `queue.timeout`.
    fn is_for(&mut self, awaited: Awaited, pool: &WorkerPool, park: Option<Park>) {
        match (awaited, park) {
            (Awaited::Role, Some(park)) if !self.is_parked => {
                pool.cells().parked.increment();
                (self.is_parked, self.until) = (true, self.begun + park.longest);
            }
            (Awaited::Room, _) if self.is_parked => {
                let until = clock::now() + pool.shared.config.queue.timeout;
                (self.is_parked, self.until) = (false, self.until.max(until));
            }
            _ => {}
        }
    }

    fn timed_out(&self, pool: &WorkerPool) -> Unavailable {
        let queued = elapsed(self.begun);
        if !self.is_parked {
            return Unavailable::QueueTimeout { queued };
        }
        pool.cells().park_timeouts.increment();
        Unavailable::ParkTimeout { queued }
    }
}

/// Chooses from the pool as it is now; the inner error says what has to be waited for.
fn choose_now(
    worker: &Worker,
    asked: &Rc<WorkerPool>,
    reach: &mut Reach,
) -> Result<Result<Chosen, Awaited>, Unavailable> {
    let now = clock::now();
    let pool = worker.pool(&asked.shared.config.name).ok_or(Unavailable::NoneUp)?;
    let newer = Some(&pool).filter(|pool| !Rc::ptr_eq(pool, asked));
    match reach.pick(worker, asked, newer, now) {
        Ok(chosen) => Ok(Ok(chosen)),
        Err(NoPick::AllBusy) => Ok(Err(Awaited::Room)),
        Err(NoPick::NoneInRole) if reach.wish.park.is_some() => Ok(Err(Awaited::Role)),
        Err(NoPick::NoneInRole) => Err(Unavailable::NoneInRole),
        Err(NoPick::NoneUp | NoPick::AllExcluded) => Err(Unavailable::NoneUp),
    }
}

/// A place in line, given up when dropped: the session may be cancelled at any time.
struct QueuePosition<'a> {
    line: &'a Queue,
    waiter: Arc<Waiter>,
    /// Whether the call that took it out of the line was answered.
    is_used: bool,
}

impl<'a> QueuePosition<'a> {
    async fn take(line: &'a Queue, role: Option<WantedRole>, limit: u32) -> Option<QueuePosition<'a>> {
        let waiter = line.enter(role, own_waker().await, limit)?;
        Some(QueuePosition { line, waiter, is_used: false })
    }

    /// A place at the front, for a call that was woken in vain.
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

#[cfg(test)]
mod tests {
    use weir_balance::Role;
    use weir_state::Snapshot;

    use super::*;
    use crate::worker::tests::serving;

    const PARK: Park = Park { longest: Duration::from_secs(20), most: 2 };

    /// Two servers whose roles are not known yet, each with room for one; `more` is added to the pool's
    /// config.
    fn cluster(more: &str) -> (Rc<Worker>, Arc<Snapshot>, Rc<WorkerPool>) {
        let (worker, snapshot) = serving(&format!(
            "[listener.db]\nprotocol = 'mysql'\nbind = '127.0.0.1:3306'\npool = 'db'\n[pool.db]\n{more}\n\
             backends = [{{ address = '10.0.0.1:3306', max_connections = 1 }}, {{ address = '10.0.0.2:3306', max_connections = 1 }}]\n\
             [pool.db.mysql]\nuser = 'weir'\n"
        ));
        let pool = worker.pool("db").expect("the pool of the config");
        (worker, snapshot, pool)
    }

    fn roles(snapshot: &Snapshot, first: Option<Role>) {
        snapshot.pools[0].set_roles([(0, first), (1, Some(Role::Secondary))], clock::now());
    }

    /// One call that asks for a role, in a task of its own.
    async fn ask(
        worker: Rc<Worker>,
        pool: Rc<WorkerPool>,
        role: WantedRole,
        park: Option<Park>,
    ) -> Result<Got, Unavailable> {
        let deadline = worker.deadlines.register(own_waker().await);
        let wish = super::super::Wish { role: Some(role), park, ..Default::default() };
        let mut reach = Reach::begin(&pool, wish, clock::now());
        reach.choose(&worker, &pool, &deadline, clock::now(), |_| false).await
    }

    /// Lets the other tasks run until they wait.
    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "local")]
    async fn a_parked_write_waits_for_a_primary_and_holds_up_no_read() {
        let (worker, snapshot, pool) = cluster("");
        roles(&snapshot, None);
        let write = ask(worker.clone(), pool.clone(), WantedRole::Primary, Some(PARK));
        let write = tokio::task::spawn_local(write);
        settle().await;
        assert_eq!(snapshot.pools[0].queue.depth_of(Some(WantedRole::Primary)), 1);
        for _ in 0..3 {
            let read = ask(worker.clone(), pool.clone(), WantedRole::Read, None).await.ok().unwrap();
            assert_eq!((read.chosen.index, read.queued), (1, None), "a read goes on, and at once");
        }
        assert!(!write.is_finished(), "room on a secondary is nothing to a write");
        roles(&snapshot, Some(Role::Primary));
        let got = write.await.unwrap().ok().unwrap();
        assert_eq!(got.chosen.index, 0);
        assert!(got.queued.is_some());
        assert_eq!(
            (snapshot.pools[0].cells.total(|cells| &cells.parked), snapshot.pools[0].queue.depth()),
            (1, 0)
        );
    }

    #[tokio::test(flavor = "local")]
    async fn all_parked_writes_go_once_there_is_a_primary_as_far_as_it_has_room() {
        // The wait for room is no shorter than that for a role would have been.
        let (worker, snapshot, pool) = cluster("queue = { timeout = '1ms' }");
        roles(&snapshot, None);
        let ask_again = || {
            let write = ask(worker.clone(), pool.clone(), WantedRole::Primary, Some(PARK));
            tokio::task::spawn_local(write)
        };
        let (first, second) = (ask_again(), ask_again());
        settle().await;
        let third = ask(worker.clone(), pool.clone(), WantedRole::Primary, Some(PARK)).await;
        assert_eq!(third.err(), Some(Unavailable::ParkFull), "two may wait");
        roles(&snapshot, Some(Role::Primary));
        let first = first.await.unwrap().ok().unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!second.is_finished(), "the primary has room for one");
        drop(first);
        assert_eq!(second.await.unwrap().ok().unwrap().chosen.index, 0);
    }

    #[tokio::test(flavor = "local")]
    async fn a_write_without_a_primary_ends_at_once_or_when_its_time_is_over() {
        let (worker, snapshot, pool) = cluster("");
        roles(&snapshot, None);
        let at_once = ask(worker.clone(), pool.clone(), WantedRole::Primary, None).await;
        assert_eq!(at_once.err(), Some(Unavailable::NoneInRole));
        let park = Park { longest: Duration::from_millis(20), ..PARK };
        let parked = ask(worker, pool, WantedRole::Primary, Some(park)).await;
        assert!(
            matches!(parked, Err(Unavailable::ParkTimeout { queued }) if queued >= park.longest),
            "{:?}",
            parked.err()
        );
        assert_eq!(snapshot.pools[0].queue.depth(), 0);
    }
}
