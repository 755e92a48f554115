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
    /// Attempts made, without those that only hit a reused connection that had been closed.
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
            made: 0,
            retries: 0,
            failed: None,
            until: Duration::MAX,
            pause: None,
        }
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

    /// Chooses a backend that has not failed in this call, or any backend if all have failed. If all are at
    /// `max_connections` it waits in line for at most `queue.timeout`; if none has the role, as the wish
    /// says.
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
        let chosen = match pick(worker, pool, self.wish, &self.tried, now) {
            Err(NoPick::AllExcluded) => {
                self.tried.clear();
                pick(worker, pool, self.wish, &[], now)
            }
            chosen => chosen,
        }?;
        self.note(pool, &chosen);
        Ok(chosen)
    }

    /// Chooses another backend to ask in parallel to `chosen` (a hedge), paid from the pool's retry budget.
    /// It never chooses one that was tried already, nor does it overtake calls that wait in line.
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

    /// Notes a backend that has failed as one of two asked in parallel: the next attempt goes elsewhere.
    pub fn note_failed(&mut self, pool: &WorkerPool, chosen: &Chosen) {
        self.tried.extend(pool.index_of(chosen));
    }

    /// Counts an attempt that is about to be made on `chosen`, for callers that have not chosen through this.
    #[inline]
    pub fn note(&mut self, pool: &WorkerPool, chosen: &Chosen) {
        self.made += 1;
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
                self.tried.extend(pool.index_of(chosen));
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

/// One choice by the pool's algorithm.
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
