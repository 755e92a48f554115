//! Asks a pool for a response: chooses a backend, makes an attempt, and retries if that is safe and useful.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_config::{NEVER, PoolProtocol, RetryOn};
use weir_http::h1::connection::Busy;
use weir_http::values::retry_after;
use weir_http::{BodyLength, BodyReader, KnownHeader, Limits, ResponseHead};
use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::stream::{Duplex as _, Sight};
use weir_io::wait::boxed;

use crate::backends::Chosen;
use crate::http::attempt::{Begun, Failed};
use crate::http::breaker::Passed;
use crate::http::connection::Connection;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::race::Race;
use crate::http::requester::{Recipient, Requester};
use crate::http::retried;
use crate::http::upload::Upload;
use crate::reach::{Attempt, Reach, RetryRules, RetryVerdict};
use crate::worker::Worker;

/// A request to a pool, with everything that is needed until the response's head has arrived.
pub struct Call<'a, R> {
    pub requester: &'a Requester,
    pub recipient: &'a mut R,
    pub exchange: &'a mut Exchange,
    pub forwarding: &'a Forwarding<'a>,
    pub facts: &'a Facts,
    pub upload: &'a mut Upload,
    /// When the current attempt must give way to another one; [`Duration::MAX`] if no other may follow.
    pub try_until: Duration,
    /// Whether another attempt may follow if the backend sends nothing at all on the connection of this one.
    pub leaves_silent: bool,
    /// The request to send, if two backends may be asked in parallel.
    pub race: Option<&'a Race>,
}

/// A response whose head is complete, in `exchange.response`.
pub struct Answered {
    /// The backend that sent it.
    pub chosen: Chosen,
    pub connection: Busy<Connection>,
    /// The bytes received of the response, beginning with its head.
    pub received: Buffer,
}

impl<R: Recipient> Call<'_, R> {
    /// Makes attempts until there is a final response, perhaps an error from the backend, or no retry is
    /// possible.
    pub async fn ask(mut self) -> Result<Answered, Failure> {
        let passed = Passed::ask(&self.forwarding.pool, || self.exchange.ledger.nearly_now())?;
        let limited_since =
            self.exchange.ledger.passage.is_counted().then(|| self.exchange.ledger.nearly_now());
        let answered = self.tries().await;
        if let Some(since) = limited_since {
            self.tell_limits(since, answered.as_ref().map(|_| self.exchange.response.status()));
        }
        if let Some(passed) = passed {
            match &answered {
                Ok(_) => passed.tell(self.exchange.response.status() >= 500),
                // A failed connection may be the fault of its client alone, and a single client could then
                // open the breaker for all.
                Err(Failure::Connect(error))
                    if error.may_be_of_client() && self.forwarding.pool.leaves_as_clients() => {}
                Err(failure) if failure.blames_backend() => passed.tell(true),
                Err(_) => {}
            }
        }
        answered
    }

    /// Reports to limits on concurrent requests how long the response took, if that shows how long work
    /// takes: an error mostly comes sooner than a proper response. The time in which the body arrived is up
    /// to the client.
    #[cold]
    fn tell_limits(&self, since: Duration, status: Result<u16, &Failure>) {
        let ledger = &self.exchange.ledger;
        let (now, is_told) = match status {
            Ok(status) => (ledger.response_at(), status < 500),
            Err(failure) => (clock::now(), failure.is_unanswered()),
        };
        let since = since.max(self.upload.moved_at());
        ledger.passage.answered(now, is_told.then(|| now.saturating_sub(since)));
    }

    async fn tries(&mut self) -> Result<Answered, Failure> {
        let mut hedge = self.hedge_rules();
        let pool = &self.forwarding.pool;
        let rules = RetryRules::of(&pool.shared.config.retry, self.forwarding.route_retry());
        let pays = rules.attempts > 0 || hedge.is_some();
        let mut reach = Reach::begin_paying(pool, self.facts.wish, self.exchange.ledger.head, pays)
            .until(self.requester.last_moment());
        let mut only_new = false;
        loop {
            let chosen = self.choose(&mut reach).await?;
            self.exchange.ledger.note_backend(&chosen);
            if let Some(act) = self.exchange.once_chosen.take() {
                act();
            }
            self.try_until = self.end_of_try(&reach);
            self.leaves_silent = self.facts.protocol != PoolProtocol::H1 && self.may_leave_silent(&reach);
            let (chosen, tried) = match hedge {
                None => {
                    let tried = self.attempt(&chosen, only_new).await;
                    (chosen, tried)
                }
                Some(rules) => boxed(|| self.hedged(&mut reach, chosen, only_new, rules)).await?,
            };
            // Most responses have a status that is never retried.
            if let Ok(begun) = &tried
                && begun.status < RetryOn::FIRST_STATUS
            {
                let now = self.exchange.ledger.response_at();
                observe_answer(&self.requester.worker, &chosen, begun, now);
                return tried.map(|begun| Answered::of(chosen, begun)).map_err(|failed| failed.failure);
            }
            // One hedge is enough: the next attempt uses another backend anyway.
            hedge = hedge.filter(|_| self.exchange.ledger.hedge.is_none());
            only_new = match self.judge(&mut reach, &chosen, &tried, only_new) {
                RetryVerdict::Again => false,
                RetryVerdict::Reconnect => true,
                RetryVerdict::Leave => {
                    return tried.map(|begun| Answered::of(chosen, begun)).map_err(|failed| failed.failure);
                }
            };
            if let Ok(begun) = tried {
                retried::let_go(self, &chosen, begun);
            }
            self.exchange.ledger.retries = reach.retries();
            // What was read from a file is counted here; nothing else that is sent again was sent after the
            // head.
            chosen.backend().cells().bytes_sent.add(self.upload.streamed_bytes());
            self.upload.retry(clock::now());
            if let Some(pause) = reach.pause() {
                drop(chosen);
                boxed(|| self.pause(pause)).await?;
            }
        }
    }

    /// What to do after an attempt that failed, or whose response may be retried. Reports the attempt to
    /// passive health.
    #[inline(never)]
    fn judge(
        &self,
        reach: &mut Reach,
        chosen: &Chosen,
        tried: &Result<Begun, Failed>,
        only_new: bool,
    ) -> RetryVerdict {
        let attempt = Attempt {
            idempotent: self.facts.method.is_idempotent(),
            replayable: self.upload.is_replayable(),
            // Another exchange may just have opened the shared connection of a stream; then its age is no
            // excuse.
            reused: !only_new && matches!(tried, Err(Failed { reused: true, .. })),
            kind: match tried {
                Ok(begun) => Some(RetryOn::Status(begun.status)),
                Err(failed) => failed.failure.retried_as(),
            },
            retry_after: tried.as_ref().ok().and_then(|begun| self.retry_after(begun)),
            route: self.forwarding.route_retry(),
        };
        let cells = self.forwarding.listener.shared.cells.of(self.requester.worker.number);
        let verdict = reach.after(&self.forwarding.pool, chosen, &attempt, cells);
        // A connection that aged out says nothing about the backend.
        if verdict != RetryVerdict::Reconnect {
            let ledger = &self.exchange.ledger;
            let now = if tried.is_ok() { ledger.response_at() } else { clock::now() };
            observe(self, chosen, tried, now);
        }
        verdict
    }

    /// When the attempt that is about to be made must give way to another one if it takes too long.
    fn end_of_try(&self, reach: &Reach) -> Duration {
        let pool = &self.forwarding.pool.shared;
        let (of_pool, of_route) = (&pool.config.retry, self.forwarding.route_retry());
        if of_pool.per_try_timeout == NEVER && of_route.is_none() {
            return Duration::MAX;
        }
        let rules = RetryRules::of(of_pool, of_route);
        // `made` counts this attempt already.
        let made = reach.made().saturating_sub(1);
        if rules.per_try == NEVER
            || !self.upload.is_here()
            || !rules.may_cut_short(made, self.facts.method.is_idempotent())
        {
            return Duration::MAX;
        }
        let now = clock::now();
        // If no retry could follow, cutting the attempt off would turn a slow answer into an error.
        if pool.balance.retry_budget().available(now) > 0 { now + rules.per_try } else { Duration::MAX }
    }

    /// Whether a retry may follow if the backend sends nothing at all. If none may, waiting for the backend
    /// to come back is better than an error.
    fn may_leave_silent(&self, reach: &Reach) -> bool {
        let retry = &self.forwarding.pool.shared.config.retry;
        let rules = RetryRules::of(retry, self.forwarding.route_retry());
        let made = reach.made().saturating_sub(1);
        rules.may_follow(made, RetryOn::Empty, self.facts.method.is_idempotent())
    }

    /// How long to wait from `now` on for a backend whose own timeout is `patience`.
    pub fn within_try(&self, now: Duration, patience: Duration) -> Duration {
        patience.min(self.try_until.saturating_sub(now))
    }

    /// The wait that the response asks for in `retry-after`.
    fn retry_after(&self, begun: &Begun) -> Option<Duration> {
        let response = &self.exchange.response;
        if !matches!(response.status(), 429 | 503) {
            return None;
        }
        let value = response.value(KnownHeader::RetryAfter, begun.received.filled())?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        retry_after::parse(value, wall)
    }

    /// Waits before the next attempt, unless the client leaves.
    async fn pause(&mut self, pause: Duration) -> Result<(), Failure> {
        let Call { requester, recipient, exchange, .. } = self;
        exchange.ledger.note_wait();
        requester.wait(clock::now(), pause);
        let mut watched = requester.sees_leave(*recipient);
        poll_fn(|context| {
            recipient.gather_body(context);
            if watched {
                watched = requester.look_at(*recipient, context)? == Sight::Quiet;
            }
            match requester.is_late() {
                true if requester.is_drained() => Poll::Ready(Err(Failure::Drained)),
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// Chooses a backend, and waits in line if all are busy.
    async fn choose(&mut self, reach: &mut Reach) -> Result<Chosen, Failure> {
        let Call { requester, recipient, exchange, forwarding, .. } = self;
        let now = exchange.ledger.nearly_now();
        let mut watched = true;
        // A client that only half-closes counts as gone too, because nothing has been forwarded for it. Most
        // of these have left, and while there is a queue, backends can least afford to work for nobody.
        let client_gone = |context: &mut Context<'_>| {
            recipient.gather_body(context);
            if !watched {
                return recipient.stream().is_some_and(|stream| stream.is_broken_off(context));
            }
            let seen = recipient.poll_present(context);
            watched = matches!(seen, Ok(Sight::Quiet));
            matches!(seen, Ok(Sight::Ended) | Err(_))
        };
        let pool = &forwarding.pool;
        match reach.choose(&requester.worker, pool, &requester.deadline, now, client_gone).await {
            Ok(got) => {
                if got.queued.is_some() {
                    exchange.ledger.queue = got.queued;
                }
                Ok(got.chosen)
            }
            Err(unavailable) => {
                exchange.ledger.queue = unavailable.queued().or(exchange.ledger.queue);
                Err(requester.judge(unavailable.into()))
            }
        }
    }
}

/// Reports the outcome of an attempt to passive health and the latency average, and counts it.
pub fn observe<R>(call: &Call<'_, R>, chosen: &Chosen, tried: &Result<Begun, Failed>, now: Duration) {
    let worker = &call.requester.worker;
    match tried {
        Ok(begun) => observe_answer(worker, chosen, begun, now),
        Err(failed) if failed.failure.blames_backend() => {
            chosen.backend().cells().requests[0].increment();
            let reason = || failed.failure.of_backend();
            match &failed.failure {
                Failure::Connect(error) if error.may_be_of_client() => {
                    let client = call.exchange.ledger.client(call.requester).address.ip();
                    chosen.observe_failure_for(client, worker, now, reason);
                }
                _ => chosen.observe_failure(worker, now, reason),
            }
        }
        Err(_) => {}
    }
}

/// As [`observe`], for an attempt that was answered.
#[inline]
fn observe_answer(worker: &Worker, chosen: &Chosen, answer: &Begun, now: Duration) {
    let Begun { status, latency, .. } = *answer;
    chosen.backend().cells().requests[usize::from(status / 100).min(5)].increment();
    match status >= 400 && is_failure(&chosen.pool.shared.config, status) {
        true => chosen.observe_failure(worker, now, || format!("answered {status}")),
        false => chosen.observe_success(now, latency),
    }
}

/// Whether this status counts as a failure of the backend.
fn is_failure(pool: &weir_config::Pool, status: u16) -> bool {
    match &pool.health.passive {
        Some(passive) => passive.is_failure(status),
        // Counted even without passive health.
        None => matches!(status, 502..=504),
    }
}

impl Answered {
    #[inline]
    fn of(chosen: Chosen, begun: Begun) -> Answered {
        Answered { chosen, connection: begun.connection, received: begun.received }
    }

    /// Whether the response's body certainly needs another buffer than the one with its head and what came
    /// right after it.
    pub fn needs_buffer(&mut self, response: &ResponseHead) -> bool {
        match response.body() {
            body if body.is_empty() => false,
            _ if self.connection.connection().is_muxed() => true,
            BodyLength::Length(bytes) => {
                let here = self.received.filled().len().saturating_sub(response.head_bytes());
                bytes > here as u64
            }
            // The end may already have arrived.
            _ => false,
        }
    }

    /// The reader for the response's body from a backend's connection, or from a stream of a shared one.
    pub fn body_reader(&mut self, response: &ResponseHead, limits: &Limits) -> BodyReader {
        match self.connection.connection().is_muxed() {
            true => BodyReader::of_stream(response.body()),
            false => BodyReader::of_response(response.body(), limits),
        }
    }
}

/// Reports to passive health and the counters that a response broke off.
pub fn broke_off(requester: &Requester, forwarding: &Forwarding<'_>, chosen: &Chosen, failure: &Failure) {
    if failure.blames_backend() {
        chosen.observe_failure(&requester.worker, clock::now(), || failure.of_backend());
    }
    if let Some(rejected) = failure.rejected() {
        let cells = forwarding.listener.shared.cells.of(requester.worker.number);
        cells.count_rejected(rejected);
    }
}
