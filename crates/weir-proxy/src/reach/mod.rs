//! Gets from a pool to one of its backends, for one call: a TCP connection, an HTTP request, a UDP flow.
//!
//! Every protocol chooses backends, waits in line and retries through [`Reach`], so that a retry, a
//! redispatch and the retry budget mean the same in each. What an attempt consists of (a connection, a
//! response, a socket) is up to the protocol.

mod hedge;
mod line;
mod retry;

use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use weir_balance::{AdminState, BreakerState, NoPick, PickInput, WantedRole};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_stats::table::{End, HedgeResult, ListenerCells, Rejected};

pub use self::hedge::{HedgeAsked, HedgeRules};
pub use self::retry::{Attempt, RetryRules, RetryVerdict};

use crate::backends::{Chosen, WorkerPool};
use crate::worker::Worker;

/// A chosen backend, and how long it took to get it.
pub struct Got {
    pub chosen: Chosen,
    /// Time in line; `None` if a backend had room at once.
    pub queued: Option<Duration>,
}

/// Why there is no backend. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// No backend is up.
    NoneUp,
    /// No backend that is up has the requested role.
    NoneInRole,
    /// No backend had the role, and as many calls wait for it as may.
    ParkFull,
    /// No backend got the role within `park`.
    ParkTimeout { queued: Duration },
    /// All backends are at `max_connections`, and the line is full.
    QueueFull,
    /// The call waited for `queue.timeout`.
    QueueTimeout { queued: Duration },
    /// The client left while the call waited.
    ClientGone { queued: Duration },
}

impl Unavailable {
    /// The word for log and metrics.
    pub fn end(self) -> End {
        match self {
            Unavailable::NoneUp | Unavailable::NoneInRole => End::NoBackend,
            Unavailable::ParkFull => End::ParkFull,
            Unavailable::ParkTimeout { .. } => End::ParkTimeout,
            Unavailable::QueueFull => End::QueueFull,
            Unavailable::QueueTimeout { .. } => End::QueueTimeout,
            Unavailable::ClientGone { .. } => End::ClientClosed,
        }
    }

    /// Time in line before the call gave up; `None` without a wait.
    pub fn queued(self) -> Option<Duration> {
        match self {
            Unavailable::QueueTimeout { queued }
            | Unavailable::ParkTimeout { queued }
            | Unavailable::ClientGone { queued } => Some(queued),
            Unavailable::NoneUp
            | Unavailable::NoneInRole
            | Unavailable::QueueFull
            | Unavailable::ParkFull => None,
        }
    }
}

/// What a choice depends on, apart from the random draws of each attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// Hash for the algorithms source, hash and maglev.
    pub key: Option<u64>,
    /// Backend id from the client's stickiness cookie.
    pub sticky: Option<u64>,
    /// The role that the backend must have, where backends have roles.
    pub role: Option<WantedRole>,
    /// How long to wait while no backend has that role; `None` to not wait.
    pub park: Option<Park>,
}

/// A wait until a backend has a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Park {
    /// Longest wait, counted from its beginning.
    pub longest: Duration,
    /// Most calls that wait for the same role at once, over all workers, including those in line for room.
    pub most: u32,
}

/// The attempts of one call, from the first choice to the last.
pub struct Reach {
    wish: Wish,
    /// Indexes in the pool of backends that have failed in this call.
    tried: Vec<usize>,
    /// Backends that failed and that were added to the pool after the call began.
    tried_newcomers: Vec<Arc<weir_balance::Backend>>,
    /// Whether a backend was chosen already.
    is_begun: bool,
    /// Attempts made, those not counted that only met a connection that had aged.
    made: u32,
    retries: u32,
    /// The backend of the last attempt, once it has failed, or the one that was left before the first
    /// attempt.
    failed: Option<Arc<weir_balance::Backend>>,
    /// No wait goes on beyond this time.
    until: Duration,
    /// The wait before the next attempt.
    pause: Option<Duration>,
}

impl Reach {
    /// Begins a call on `pool`, whose rules govern its retries.
    #[inline]
    pub fn begin(pool: &WorkerPool, wish: Wish, now: Duration) -> Reach {
        Reach::begin_paying(pool, wish, now, pool.shared.config.retry.attempts > 0)
    }

    /// Begins a call on `pool`. If `pays`, it deposits into the retry budget, because such calls may be
    /// retried.
    #[inline]
    pub fn begin_paying(pool: &WorkerPool, wish: Wish, now: Duration, pays: bool) -> Reach {
        if pays {
            pool.shared.balance.retry_budget().deposit(now);
        }
        Reach {
            wish,
            tried: Vec::new(),
            tried_newcomers: Vec::new(),
            is_begun: false,
            made: 0,
            retries: 0,
            failed: None,
            until: Duration::MAX,
            pause: None,
        }
    }

    /// Goes on with a call whose first choice was `chosen`, or nothing, by [`choose_first`].
    pub fn behind_first(pool: &WorkerPool, wish: Wish, chosen: Option<&Chosen>) -> Reach {
        let mut reach = Reach::begin_paying(pool, wish, Duration::ZERO, false);
        if let Some(chosen) = chosen {
            reach.note(pool, chosen);
        }
        reach
    }

    /// Avoids the backend at `index`, which the flow comes from, as long as there are others.
    pub fn elsewhere(mut self, index: Option<usize>) -> Reach {
        self.tried.extend(index);
        self
    }

    /// Avoids the backend `left`, at `index` if it is in the pool, as long as there are others. Choosing
    /// another one counts as it does after an attempt that failed.
    pub fn leaving(mut self, left: &Chosen, index: Option<usize>) -> Reach {
        self.failed = Some(left.backend().shared.balance.clone());
        self.elsewhere(index)
    }

    /// Ends all waits at this time.
    #[inline]
    pub fn until(mut self, until: Duration) -> Reach {
        self.until = until;
        self
    }

    /// Attempts made, without those that only hit a reused connection that had been closed.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// How long to wait before the next attempt; `None` if it may be made at once.
    pub fn pause(&self) -> Option<Duration> {
        self.pause
    }

    /// Attempts after the first.
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Chooses a backend that has not failed in this call, or any backend if all have. The first attempt
    /// chooses from `pool`; later attempts choose from the pool of that name as it is then, because a reload
    /// may have changed it. Waits in line for at most `queue.timeout` if every backend is at
    /// `max_connections`, and as the wish says if none has the role.
    ///
    /// `deadline` must belong to the calling task; it is replaced only if there is a wait. `client_gone` is
    /// called whenever the task is woken during the wait, with its context, so that it can ask to be woken
    /// when the client leaves.
    pub async fn choose(
        &mut self,
        worker: &Worker,
        pool: &Rc<WorkerPool>,
        deadline: &Deadline,
        now: Duration,
        client_gone: impl FnMut(&mut Context<'_>) -> bool,
    ) -> Result<Got, Unavailable> {
        if pool.shared.queue.depth_of(self.wish.role) == 0 {
            match self.choose_now(worker, pool, now) {
                Ok(chosen) => return Ok(Got { chosen, queued: None }),
                Err(NoPick::NoneUp | NoPick::AllExcluded) => return Err(Unavailable::NoneUp),
                Err(NoPick::NoneInRole) if self.wish.park.is_none() => return Err(Unavailable::NoneInRole),
                Err(NoPick::AllBusy | NoPick::NoneInRole) => {}
            }
        }
        let got = Box::pin(line::wait(worker, pool, self, deadline, client_gone)).await?;
        self.note(pool, &got.chosen);
        Ok(got)
    }

    /// Chooses as [`Self::choose`] does, without waiting.
    #[inline]
    pub fn choose_now(
        &mut self,
        worker: &Worker,
        pool: &Rc<WorkerPool>,
        now: Duration,
    ) -> Result<Chosen, NoPick> {
        let newer = if self.is_begun { pool_now(worker, pool) } else { None };
        let chosen = self.pick(worker, pool, newer.as_ref(), now)?;
        self.note(pool, &chosen);
        Ok(chosen)
    }

    /// Picks from `newer` if there is one, otherwise from `asked`. If all backends have been tried, any may
    /// be picked again.
    #[inline]
    fn pick(
        &mut self,
        worker: &Worker,
        asked: &Rc<WorkerPool>,
        newer: Option<&Rc<WorkerPool>>,
        now: Duration,
    ) -> Result<Chosen, NoPick> {
        let picked = match newer {
            None => pick(worker, asked, self.wish, &self.tried, now),
            Some(newer) => pick(worker, newer, self.wish, &self.tried_in(asked, newer), now),
        };
        match picked {
            Err(NoPick::AllExcluded) => {
                self.tried.clear();
                self.tried_newcomers.clear();
                pick(worker, newer.unwrap_or(asked), self.wish, &[], now)
            }
            picked => picked,
        }
    }

    /// The indexes in `newer` of the backends that have failed.
    #[cold]
    fn tried_in(&self, asked: &WorkerPool, newer: &WorkerPool) -> Vec<usize> {
        let of_asked = self.tried.iter().filter_map(|index| asked.backends.get(*index));
        let place = |tried: &Arc<weir_balance::Backend>| {
            newer.backends.iter().position(|backend| Arc::ptr_eq(&backend.shared.balance, tried))
        };
        of_asked
            .map(|backend| &backend.shared.balance)
            .chain(&self.tried_newcomers)
            .filter_map(place)
            .collect()
    }

    /// Another backend to ask beside `chosen`, for a retry of the pool's budget. It is never one that was
    /// tried already, and nobody who waits in line is passed over for it.
    ///
    /// # Errors
    /// There is no such backend, the pool's breaker is not closed, or the budget is empty: says which.
    pub fn beside(
        &self,
        worker: &Worker,
        pool: &Rc<WorkerPool>,
        chosen: &Chosen,
        now: Duration,
    ) -> Result<Chosen, HedgeResult> {
        if pool.shared.queue.depth_of(self.wish.role) > 0 {
            return Err(HedgeResult::Busy);
        }
        let breaker = pool.shared.balance.breaker();
        if breaker.is_some_and(|(breaker, _)| breaker.state(now) != BreakerState::Closed) {
            return Err(HedgeResult::Breaker);
        }
        if !self.has_elsewhere(pool, chosen) {
            return Err(HedgeResult::NoBackend);
        }
        let budget = pool.shared.balance.retry_budget();
        // A choice that comes to nothing would disturb the order of the others, and in a brown-out most do.
        if budget.available(now) == 0 {
            return Err(HedgeResult::NoBudget);
        }
        let mut exclude = self.tried.clone();
        exclude.extend(pool.index_of(chosen));
        let second = pick(worker, pool, self.wish, &exclude, now).map_err(|no_pick| match no_pick {
            NoPick::AllBusy => HedgeResult::Busy,
            _ => HedgeResult::NoBackend,
        })?;
        // Backups are for when the other backends are down, not for when they are slow.
        if !second.backend().shared.balance.is_up() || is_backup(&second) != is_backup(chosen) {
            return Err(HedgeResult::NoBackend);
        }
        match budget.withdraw(now) {
            true => Ok(second),
            false => Err(HedgeResult::NoBudget),
        }
    }

    /// Notes that a backend has failed, so that later attempts go elsewhere.
    pub fn note_failed(&mut self, pool: &WorkerPool, chosen: &Chosen) {
        match pool.index_of(chosen) {
            Some(index) => self.tried.push(index),
            None => self.tried_newcomers.push(chosen.backend().shared.balance.clone()),
        }
    }

    /// Counts an attempt that is about to be made on `chosen`, for callers that have not chosen through this.
    #[inline]
    pub fn note(&mut self, pool: &WorkerPool, chosen: &Chosen) {
        self.made += 1;
        self.is_begun = true;
        if let Some(failed) = self.failed.take()
            && !Arc::ptr_eq(&failed, &chosen.backend().shared.balance)
        {
            pool.cells().redispatches.increment();
        }
    }

    /// What to do after an attempt on `chosen` that failed, or whose response may be retried. Counts the
    /// retry.
    pub fn after(
        &mut self,
        pool: &WorkerPool,
        chosen: &Chosen,
        attempt: &Attempt<'_>,
        listener: &ListenerCells,
    ) -> RetryVerdict {
        let rules = RetryRules::of(&pool.shared.config.retry, attempt.route);
        let verdict = retry::decide(&rules, self.made, attempt);
        self.pause = None;
        match verdict {
            RetryVerdict::Leave => {}
            RetryVerdict::Reconnect => self.made -= 1,
            RetryVerdict::Again => {
                let pause = attempt.retry_after.filter(|pause| !pause.is_zero());
                let pause = pause.and_then(|_| retry::pause(attempt, self.has_elsewhere(pool, chosen)));
                let room = self.until.saturating_sub(clock::now());
                if pause.is_some_and(|pause| pause > rules.retry_after.min(room)) {
                    return RetryVerdict::Leave;
                }
                if !pool.shared.balance.retry_budget().withdraw(clock::now()) {
                    listener.count_rejected(Rejected::RetryBudget);
                    return RetryVerdict::Leave;
                }
                self.note_failed(pool, chosen);
                self.failed = Some(chosen.backend().shared.balance.clone());
                self.retries += 1;
                self.pause = pause;
                let cells = pool.cells();
                cells.retries.increment();
                if let Some(kind) = attempt.kind {
                    cells.retry_reasons[retry::counted_as(kind) as usize].increment();
                }
            }
        }
        verdict
    }

    /// Whether a backend accepts work and has not been tried, apart from the one just tried.
    fn has_elsewhere(&self, pool: &WorkerPool, chosen: &Chosen) -> bool {
        let tried = pool.index_of(chosen);
        let mut numbered = pool.backends.iter().enumerate();
        numbered.any(|(index, backend)| {
            let balance = &backend.shared.balance;
            let takes_work =
                balance.is_up() && balance.weight() > 0 && balance.admin_state() == AdminState::Ready;
            takes_work && Some(index) != tried && !self.tried.contains(&index)
        })
    }
}

fn is_backup(chosen: &Chosen) -> bool {
    chosen.backend().shared.balance.is_backup()
}

/// The pool that a reload has put in place of `asked`; `None` if there is none or if its protocol differs,
/// because a request that was encoded for one protocol can't be sent in another.
fn pool_now(worker: &Worker, asked: &Rc<WorkerPool>) -> Option<Rc<WorkerPool>> {
    let config = &asked.shared.config;
    let newer = worker.pool(&config.name)?;
    (!Rc::ptr_eq(&newer, asked) && newer.shared.config.protocol == config.protocol).then_some(newer)
}

/// Begins a call and makes its first choice without waiting, for callers that rarely need another one: then
/// [`Reach::behind_first`] goes on.
#[inline]
pub fn choose_first(
    worker: &Worker,
    pool: &Rc<WorkerPool>,
    wish: Wish,
    now: Duration,
) -> Result<Chosen, NoPick> {
    if pool.shared.config.retry.attempts > 0 {
        pool.shared.balance.retry_budget().deposit(now);
    }
    pick(worker, pool, wish, &[], now)
}

/// One draw of the pool's algorithm.
#[inline]
fn pick(
    worker: &Worker,
    pool: &Rc<WorkerPool>,
    wish: Wish,
    exclude: &[usize],
    now: Duration,
) -> Result<Chosen, NoPick> {
    let draw = worker.draw();
    let Wish { key, sticky, role, park: _ } = wish;
    pool.choose(&PickInput { now, draw: [draw as u32, (draw >> 32) as u32], key, sticky, exclude, role })
}
