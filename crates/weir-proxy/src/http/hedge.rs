//! Asks a second backend in parallel to a slow one; the first response that counts wins.
//!
//! Both attempts run in the exchange's task, so both end if the client leaves. The one that lost is dropped:
//! its connection is closed, or its stream reset, its slots are free at once, and it counts neither as a
//! success nor as a failure. A response that `retry.on` lists, or a failure, loses against an attempt that is
//! still running; if both fail, the last one decides what comes next.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weir_balance::ResponseTimes;
use weir_config::RetryOn;
use weir_io::clock;
use weir_io::stream::Sight;
use weir_stats::table::HedgeResult;

use crate::backends::{Chosen, WorkerPool};
use crate::http::ask::{self, Call};
use crate::http::attempt::{Begun, Failed};
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::race::Race;
use crate::http::requester::{Nobody, Recipient, Requester};
use crate::http::retried;
use crate::http::upload::Upload;
use crate::reach::{HedgeAsked, HedgeRules, Reach, RetryRules};

/// The result of an attempt.
type Tried = Result<Begun, Failed>;

/// The state of two attempts that run in parallel.
enum Raced {
    /// The first one decides.
    First(Tried),
    /// The first one failed, and the second one is still running.
    FirstFailed(Tried),
    /// The second one decides.
    Second(Box<Second>),
}

/// The first attempt: which backend it asks, and how long it is waited for.
struct First<'a> {
    chosen: Chosen,
    only_new: bool,
    began: Duration,
    /// When a second backend is asked.
    due: Duration,
    /// Where its duration is counted, if it is measured.
    times: Option<&'a ResponseTimes>,
}

/// A second attempt that is over.
struct Second {
    side: Side,
    chosen: Chosen,
    tried: Tried,
}

/// The second attempt's own state.
struct Side {
    requester: Requester,
    exchange: Box<Exchange>,
    upload: Upload,
}

/// A second attempt that was sent. Dropping it counts the result.
struct Sent {
    pool: Rc<WorkerPool>,
    result: HedgeResult,
}

impl Sent {
    fn new(pool: &Rc<WorkerPool>) -> Sent {
        pool.cells().hedges.increment();
        // The result until it is known, and also if the whole exchange is dropped.
        Sent { pool: pool.clone(), result: HedgeResult::Left }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        count(&self.pool, self.result);
    }
}

#[cold]
fn count(pool: &WorkerPool, result: HedgeResult) {
    pool.cells().hedge_results[result as usize].increment();
}

impl<R: Recipient> Call<'_, R> {
    /// When a second backend is asked; `None` if none is for this request.
    #[inline]
    pub fn hedge_rules(&self) -> Option<HedgeRules> {
        let pool = &self.forwarding.pool.shared;
        let rules = HedgeRules::of(&pool.config.retry, self.forwarding.route_retry())?;
        let asked = HedgeAsked {
            method: self.facts.method,
            is_whole: self.upload.is_whole(),
            is_tunnel: self.facts.upgrade || self.facts.extended_connect,
            is_early: self.exchange.early,
            is_sticky: self.facts.wish.sticky.is_some(),
        };
        (R::WAITS && rules.hindrance(&asked).is_none()).then_some(rules)
    }

    /// Makes an attempt on `chosen` and, if it takes too long, another one in parallel. Gives the one that
    /// decides what comes next, with its response in `self.exchange`; the other one has been dealt with.
    ///
    /// # Errors
    /// The client has left.
    pub async fn hedged(
        &mut self,
        reach: &mut Reach,
        chosen: Chosen,
        only_new: bool,
        rules: HedgeRules,
    ) -> Result<(Chosen, Tried), Failure> {
        let shared = self.forwarding.pool.shared.clone();
        let began = self.exchange.ledger.nearly_now();
        let times = rules.is_measured().then(|| shared.balance.response_times());
        let delay = rules.delay(shared.balance.response_times(), began);
        let Some(delay) = delay else {
            let tried = self.attempt(&chosen, only_new).await;
            note(times, began, &tried);
            return Ok((chosen, tried));
        };
        let race = Race::of(self.exchange);
        let first = First { chosen, only_new, began, due: began + delay, times };
        let raced = self.race(reach, &race, first).await;
        race.give_back(self.exchange);
        raced
    }

    /// Runs the first attempt, and from `due` on the second one too.
    async fn race(
        &mut self,
        reach: &mut Reach,
        race: &Race,
        First { chosen, only_new, began, due, times }: First<'_>,
    ) -> Result<(Chosen, Tried), Failure> {
        let (requester, forwarding, facts, try_until) =
            (self.requester, self.forwarding, self.facts, self.try_until);
        let leaves_silent = self.leaves_silent;
        let pool = &forwarding.pool;
        let beside = requester.beside(self.exchange.ledger.client(requester)).await;
        beside.share_total(requester);
        beside.deadline.set(due);
        let twin = self.upload.twin();
        let mut call = Call {
            requester,
            recipient: &mut *self.recipient,
            exchange: &mut *self.exchange,
            forwarding,
            facts,
            upload: &mut *self.upload,
            try_until,
            leaves_silent,
            race: Some(race),
        };
        let mut first = Box::pin(call.attempt(&chosen, only_new));
        let in_time = until_due(first.as_mut(), &beside).await;
        let second = match in_time.is_none() && race.begin() {
            true => elsewhere(reach, requester, pool, &chosen),
            false => None,
        };
        let Some(second) = second else {
            race.end();
            let tried = match in_time {
                Some(tried) => tried,
                None => first.as_mut().await,
            };
            drop(first);
            note(times, began, &tried);
            return Ok((chosen, tried));
        };
        let mut sent = Sent::new(pool);
        let now = clock::now();
        let mut side = Side { requester: beside, exchange: Exchange::take(), upload: twin };
        side.exchange.begin(now);
        let try_until = now.saturating_add(try_until.saturating_sub(began));
        let mut other = Box::pin(side.ask(second, race, (forwarding, facts), try_until));
        let rules = RetryRules::of(&pool.shared.config.retry, forwarding.route_retry());
        let lost = |second: Box<Second>| {
            let Second { mut side, chosen, tried } = *second;
            settle(reach, &side.call(&mut Nobody::default(), race, (forwarding, facts)), chosen, tried);
            side.exchange.give_back();
            race.end();
        };
        let second = match both(first, other.as_mut(), &rules, lost).await {
            Raced::First(tried) => {
                note(times, began, &tried);
                sent.result = result_of(&rules, &tried, false);
                self.exchange.ledger.hedge = Some(sent.result);
                return Ok((chosen, tried));
            }
            Raced::FirstFailed(tried) => {
                note(times, began, &tried);
                settle(reach, self, chosen, tried);
                self.watching(other.as_mut()).await.inspect_err(|_| {
                    self.exchange.ledger.hedge = Some(HedgeResult::Left);
                })?
            }
            Raced::Second(second) => {
                // The first attempt would have taken at least this long.
                note_time(times, began);
                drop(chosen);
                second
            }
        };
        let Second { side, chosen, tried } = *second;
        sent.result = result_of(&rules, &tried, true);
        self.exchange.ledger.hedge = Some(sent.result);
        self.take_over(&chosen, side);
        Ok((chosen, tried))
    }

    /// Goes on with the second attempt alone, unless the client leaves.
    async fn watching<T>(&mut self, mut other: Pin<&mut impl Future<Output = T>>) -> Result<T, Failure> {
        let Call { requester, recipient, .. } = self;
        let mut watched = requester.buffer.is_none();
        poll_fn(|context| {
            let polled = other.as_mut().poll(context);
            if polled.is_ready() {
                return polled.map(Ok);
            }
            recipient.gather_body(context);
            if watched {
                watched = requester.look_at(*recipient, context)? == Sight::Quiet;
            }
            Poll::Pending
        })
        .await
    }

    /// Makes the second attempt's exchange the exchange from here on.
    fn take_over(&mut self, chosen: &Chosen, mut side: Side) {
        std::mem::swap(&mut self.exchange.response, &mut side.exchange.response);
        let (ledger, other) = (&mut self.exchange.ledger, &side.exchange.ledger);
        ledger.note_wait();
        ledger.note_backend(chosen);
        (ledger.connect, ledger.backend_header) = (other.connect, other.backend_header);
        ledger.backend_protocol = other.backend_protocol;
        self.exchange.take_framed(&mut side.exchange.heads);
        self.upload.stand_in(side.upload);
        side.exchange.give_back();
    }
}

impl Side {
    /// Makes the second attempt.
    async fn ask(
        mut self,
        chosen: Chosen,
        race: &Race,
        (forwarding, facts): (&Forwarding<'_>, &Facts),
        try_until: Duration,
    ) -> Box<Second> {
        let mut nobody = Nobody::default();
        let mut call = self.call(&mut nobody, race, (forwarding, facts));
        call.try_until = try_until;
        let tried = call.attempt(&chosen, false).await;
        Box::new(Second { side: self, chosen, tried })
    }

    fn call<'a>(
        &'a mut self,
        nobody: &'a mut Nobody,
        race: &'a Race,
        (forwarding, facts): (&'a Forwarding<'a>, &'a Facts),
    ) -> Call<'a, Nobody> {
        Call {
            requester: &self.requester,
            recipient: nobody,
            exchange: &mut self.exchange,
            forwarding,
            facts,
            upload: &mut self.upload,
            try_until: Duration::MAX,
            leaves_silent: false,
            race: Some(race),
        }
    }
}

/// Runs the first attempt until it is over, or until it is time for a second one: then `None`.
async fn until_due(mut first: Pin<&mut impl Future<Output = Tried>>, beside: &Requester) -> Option<Tried> {
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(tried) => Poll::Ready(Some(tried)),
        Poll::Pending if beside.deadline.has_passed() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Chooses another backend; if there is none, counts why.
fn elsewhere(reach: &Reach, requester: &Requester, pool: &Rc<WorkerPool>, chosen: &Chosen) -> Option<Chosen> {
    let second = reach.beside(&requester.worker, pool, chosen, clock::now());
    second.map_err(|refused| count(pool, refused)).ok()
}

/// Runs both until one decides, or the first one has failed. If the second one fails it is passed to `lost`,
/// and the first one goes on alone.
async fn both(
    mut first: Pin<Box<impl Future<Output = Tried>>>,
    mut second: Pin<&mut impl Future<Output = Box<Second>>>,
    rules: &RetryRules<'_>,
    lost: impl FnOnce(Box<Second>),
) -> Raced {
    let mut lost = Some(lost);
    poll_fn(|context| {
        if let Poll::Ready(tried) = first.as_mut().poll(context) {
            let goes_on = lost.is_some() && is_outdone(rules, &tried);
            return Poll::Ready(if goes_on { Raced::FirstFailed(tried) } else { Raced::First(tried) });
        }
        if lost.is_none() {
            return Poll::Pending;
        }
        match second.as_mut().poll(context) {
            Poll::Ready(second) if second.tried.is_err() || is_outdone(rules, &second.tried) => {
                if let Some(lost) = lost.take() {
                    lost(second);
                }
                Poll::Pending
            }
            Poll::Ready(second) => Poll::Ready(Raced::Second(second)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Whether an attempt's result loses against another attempt that is still running: it failed, or its
/// response would be retried. A failure caused by the client or by Weir ends both.
fn is_outdone(rules: &RetryRules<'_>, tried: &Tried) -> bool {
    match tried {
        Ok(begun) => rules.lists(RetryOn::Status(begun.status)),
        Err(failed) => failed.failure.blames_backend() || failed.failure.retried_as().is_some(),
    }
}

fn result_of(rules: &RetryRules<'_>, tried: &Tried, is_second: bool) -> HedgeResult {
    match tried {
        Ok(_) if is_outdone(rules, tried) => HedgeResult::Failed,
        Ok(_) if is_second => HedgeResult::Won,
        Ok(_) => HedgeResult::Lost,
        Err(Failed { failure: Failure::ClientClosed, .. }) => HedgeResult::Left,
        Err(_) => HedgeResult::Failed,
    }
}

/// Deals with an attempt that failed while another one is running: reports the failure to the backend's
/// passive health, and frees its slots.
fn settle<R>(reach: &mut Reach, call: &Call<'_, R>, chosen: Chosen, tried: Tried) {
    // A reused connection that had been closed says nothing about the backend.
    if !matches!(tried, Err(Failed { failure: Failure::Empty(_), reused: true })) {
        ask::observe(call, &chosen, &tried, clock::now());
    }
    reach.note_failed(&call.forwarding.pool, &chosen);
    if let Ok(begun) = tried {
        retried::let_go(call, &chosen, begun);
    }
}

/// Records how long the first attempt took, if that shows how long work takes: an error mostly comes sooner.
fn note(times: Option<&ResponseTimes>, began: Duration, tried: &Tried) {
    let is_told = match tried {
        Ok(begun) => begun.status < 500,
        Err(failed) => failed.failure.is_unanswered(),
    };
    note_time(times.filter(|_| is_told), began);
}

/// Records a first attempt that began at `began` and has taken until now, or longer. If the attempts that
/// lose were left out, the percentile would sink further and further.
fn note_time(times: Option<&ResponseTimes>, began: Duration) {
    if let Some(times) = times {
        let now = clock::now();
        times.record(now, now.saturating_sub(began));
    }
}
