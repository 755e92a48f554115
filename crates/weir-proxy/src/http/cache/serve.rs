//! Serves a request on a route with a cache, from the look-up to its answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use weir_cache::{
    Bypass, Crowd, Lookup, Object, RequestFacts, Reuse, is_server_error, may_serve_on_error, reuse,
    ttl_seconds,
};
use weir_io::clock;
use weir_io::stream::Sight;
use weir_io::wait::boxed;
use weir_stats::table::CacheResult;

use super::broadcast::{Arrived, FetchedHead, Reader};
use super::fetch;
use super::fetches::{BACK_OFF, Joined, Refresh};
use super::lookup::{Found, look_up};
use super::note::Forward;
use super::{RouteCache, encodings, follow, hit};
use crate::http::compress;
use crate::http::edits;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::{Awaited, Failure, Meets};
use crate::http::forward;
use crate::http::forwarding::Forwarding;
use crate::http::muxed::confirm;
use crate::http::reply;
use crate::http::request;
use crate::http::requester::Recipient as _;
use crate::http::session::Session;

/// How many fetches one request waits for, if they are lost or turn out to be for another variant, before it
/// is forwarded on its own.
const FETCHES_MOST: u32 = 3;
/// The longest wait for a fetch that this request began; the fetch's own timers end it long before.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Answers from memory, or has the response fetched.
///
/// # Errors
/// Nothing has been sent to the client.
pub async fn run(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    cache: &RouteCache,
) -> Result<After, Failure> {
    match look_up(session, exchange, cache) {
        Found::Hit { object, facts, age, ttl_seconds } => {
            exchange.ledger.cache.hit(CacheResult::Hit, age.as_secs(), ttl_seconds);
            Ok(hit::send(session, exchange, forwarding, object, &facts).await)
        }
        // Boxed: the future that waits for a backend is large, and every idle session would hold space for
        // it.
        found => {
            let miss = Miss { forwarding, cache };
            boxed(|| miss.run(session, exchange, found)).await
        }
    }
}

/// A request that no stored response answers without asking the backend.
struct Miss<'a> {
    forwarding: &'a Forwarding<'a>,
    cache: &'a RouteCache,
}

/// What a request asks for, and why no stored response answers it.
#[derive(Clone, Copy)]
struct Lacking {
    facts: RequestFacts,
    why: Forward,
}

impl Miss<'_> {
    async fn run(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        found: Found,
    ) -> Result<After, Failure> {
        // A fetched response serves others too, so it must not be fetched for an early request that may be a
        // replay.
        if exchange.early
            && let Some(stream) = session.stream.as_muxed()
        {
            confirm(stream, &session.requester.deadline).await?;
            exchange.early = false;
        }
        exchange.is_keyed = !matches!(found, Found::Past(_));
        match found {
            Found::Hit { object, facts, age, ttl_seconds } => {
                exchange.ledger.cache.hit(CacheResult::Hit, age.as_secs(), ttl_seconds);
                Ok(hit::send(session, exchange, self.forwarding, object, &facts).await)
            }
            Found::Stale { object, facts, age } => {
                self.give_stale(session, exchange, object, facts, age).await
            }
            Found::Nothing { facts, stale, why } => {
                let now = exchange.ledger.head;
                // A request that comes just after a failure does not wait for the next fetch.
                let has_failed = self.cache.cache.fetches.passes(exchange.key.hash(), &facts, now);
                let instead = stale.clone().filter(|_| has_failed);
                if let Some(object) = self.instead(instead, &facts, exchange) {
                    return Ok(hit::send(session, exchange, self.forwarding, object, &facts).await);
                }
                if !facts.may_store() {
                    // The response has no content to store, or must not be stored: it is useless to others.
                    exchange.ledger.cache.forwarded(CacheResult::Miss, why);
                    return self.forward(session, exchange, self.forwarding, &facts, stale).await;
                }
                self.fetch(session, exchange, Lacking { facts, why }, stale).await
            }
            Found::NotCached => Err(Failure::NotCached),
            Found::Passes(facts) => {
                exchange.ledger.cache.passing = Some(facts);
                exchange.ledger.cache.forwarded(CacheResult::Pass, Forward::UriMiss);
                exchange.ledger.cache.detail("hit-for-miss");
                forward::run(session, exchange, self.forwarding).await
            }
            Found::Past(bypass) => {
                let is_method = bypass == Bypass::Method;
                let why = if is_method { Forward::Method } else { Forward::Bypass };
                exchange.ledger.cache.forwarded(CacheResult::Bypass, why);
                if is_method {
                    let received = session.requester.received();
                    let text = &received[..exchange.request.head_bytes()];
                    exchange.ledger.cache.unsafe_request.extend_from_slice(text);
                } else {
                    exchange.ledger.cache.detail(bypass.word());
                }
                forward::run(session, exchange, self.forwarding).await
            }
        }
    }

    /// Serves a stale response, and has it fetched anew unless that is already happening.
    async fn give_stale(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        object: Arc<Object>,
        facts: RequestFacts,
        age: Duration,
    ) -> Result<After, Failure> {
        // A request whose response can't be stored would only block a refresh whose response can.
        let refresh = match facts.may_store() && !self.forwarding.is_fallback() {
            true => self.cache.cache.refresh(&exchange.key, &facts, exchange.ledger.head),
            false => Refresh::Needless,
        };
        match refresh {
            Refresh::Begun(lease) => {
                let stale = Some(object.clone());
                fetch::start(session, exchange, self.forwarding, lease, facts, stale);
            }
            Refresh::Needless => {}
            Refresh::NoRoom => {
                let lacking = Lacking { facts, why: Forward::Stale };
                return self.fetch(session, exchange, lacking, Some(object)).await;
            }
        }
        let ttl_seconds = ttl_seconds(&object, exchange.ledger.head);
        exchange.ledger.cache.hit(CacheResult::Stale, age.as_secs(), ttl_seconds);
        Ok(hit::send(session, exchange, self.forwarding, object, &facts).await)
    }

    /// Waits for the key's fetch, and begins one if there is none.
    async fn fetch(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        lacking: Lacking,
        stale: Option<Arc<Object>>,
    ) -> Result<After, Failure> {
        let Lacking { facts, why } = lacking;
        if self.forwarding.is_fallback() {
            return self.ask_fallback(session, exchange, lacking, stale).await;
        }
        let mut failed_before = false;
        for _ in 0..FETCHES_MOST {
            let (mut reader, leads) = match self.join(session, exchange, &facts, stale.is_some()) {
                Joined::Found(object) => {
                    self.note_age(exchange, CacheResult::Hit, &object, &facts);
                    return Ok(hit::send(session, exchange, self.forwarding, object, &facts).await);
                }
                Joined::Follows(reader) => (reader, false),
                Joined::Leads(lease, reader) => {
                    fetch::start(session, exchange, self.forwarding, lease, facts, stale.clone());
                    (reader, true)
                }
            };
            reader.takes_it_along(exchange.ledger.passage.is_counted());
            exchange.ledger.note_wait();
            let arrived = self.await_answer(session, exchange, &reader, leads).await;
            if is_error(&arrived)
                && let Some(object) = self.instead(stale.clone(), &facts, exchange)
            {
                drop(reader);
                if arrived.is_err() {
                    // Requests that come next do not wait for this fetch either while it is still running.
                    self.note_failure(exchange, &facts);
                }
                return Ok(hit::send(session, exchange, self.forwarding, object, &facts).await);
            }
            match arrived {
                Err(Failure::QueueTimeout) => {
                    return self.go_past(session, exchange, lacking, "collapse-timeout").await;
                }
                Err(failure) => return Err(failure),
                Ok(Arrived::Lost | Arrived::Interim(_)) => {}
                Ok(Arrived::Released { .. }) => {
                    return self.go_past(session, exchange, lacking, "not-stored").await;
                }
                // The failure may be due to the content of the other request. If it happens twice, it is
                // believed.
                Ok(Arrived::Failed(failed))
                    if !leads
                        && failed.meets == Meets::Request
                        && !std::mem::replace(&mut failed_before, true) => {}
                Ok(Arrived::Failed(failed)) => {
                    exchange.ledger.cache.forwarded(CacheResult::Miss, why);
                    return Err(Failure::Fetch(failed));
                }
                Ok(Arrived::Object(object)) => {
                    drop(reader);
                    let result = if leads { CacheResult::Revalidated } else { CacheResult::Collapsed };
                    exchange.ledger.cache.forwarded(result, why);
                    exchange.ledger.cache.answered(304);
                    self.note_shared(exchange, &object, &facts, leads);
                    return Ok(hit::send(session, exchange, self.forwarding, object, &facts).await);
                }
                Ok(Arrived::Streaming(head)) => {
                    if leads || self.is_for(session, exchange, &head) {
                        return self.take(session, exchange, reader, &head, lacking, leads).await;
                    }
                    // The fetch is for another variant; `exchange.key` is now the key of ours.
                }
            }
        }
        self.go_past(session, exchange, lacking, "lost").await
    }

    /// Asks the fallback pool that stands in for the route's pool, and stores nothing of its answer. A stale
    /// response of the route's own pool takes precedence over the fallback, as it does over an error.
    async fn ask_fallback(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        lacking: Lacking,
        stale: Option<Arc<Object>>,
    ) -> Result<After, Failure> {
        if let Some(object) = self.instead(stale, &lacking.facts, exchange) {
            return Ok(hit::send(session, exchange, self.forwarding, object, &lacking.facts).await);
        }
        exchange.ledger.cache.forwarded(CacheResult::Bypass, lacking.why);
        exchange.ledger.cache.detail("fallback");
        forward::run(session, exchange, self.forwarding).await
    }

    fn join(
        &self,
        session: &Session,
        exchange: &mut Exchange,
        facts: &RequestFacts,
        has_stale: bool,
    ) -> Joined<Arc<Object>> {
        let cache = &self.cache.cache;
        let Exchange { key, request, .. } = exchange;
        let mut fresh_key = key.clone();
        cache.join(key, Some(facts), || {
            if has_stale {
                return None;
            }
            // A fetch that has just ended may have stored it.
            let received = session.requester.received();
            let weir_cache::Lookup::Hit(object) = cache.store.get(&mut fresh_key, request, received) else {
                return None;
            };
            matches!(reuse(&object, facts, clock::now()), Reuse::Fresh { .. }).then_some(object)
        })
    }

    /// Waits for whatever will answer the request, and passes on the interim responses before it.
    async fn await_answer(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        reader: &Reader,
        leads: bool,
    ) -> Result<Arrived, Failure> {
        loop {
            let interim = match self.await_head(session, reader, leads).await? {
                Arrived::Interim(interim) => interim,
                arrived => return Ok(arrived),
            };
            let patience = self.forwarding.timers().client_body;
            session.requester.wait(clock::now(), patience);
            exchange.response.clone_from(&interim.head);
            if reply::passes_on(&exchange.response, exchange.request.version()) {
                let edits = edits::of(self.forwarding.listener, exchange);
                let Session { requester, stream, .. } = &mut *session;
                stream.pass_on(requester, exchange, edits, &interim.text).await?;
            }
        }
    }

    /// Waits for the next interim response or for the final result.
    async fn await_head(
        &self,
        session: &mut Session,
        reader: &Reader,
        leads: bool,
    ) -> Result<Arrived, Failure> {
        let patience = if leads { LONGEST } else { self.cache.collapse_timeout };
        session.requester.wait(clock::now(), patience);
        let mut watched = true;
        poll_fn(|context| {
            if let Poll::Ready(arrived) = reader.poll_arrived(context) {
                return Poll::Ready(Ok(arrived));
            }
            if watched {
                watched = session.requester.look_at(&mut session.stream, context)? == Sight::Quiet;
            }
            match session.requester.deadline.has_passed() {
                true if session
                    .requester
                    .slot
                    .draining_until()
                    .is_some_and(|until| until <= clock::now()) =>
                {
                    Poll::Ready(Err(Failure::Drained))
                }
                true => Poll::Ready(Err(Failure::QueueTimeout)),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// Whether a response that is being fetched is the variant that this request asks for; if not, the key
    /// becomes that of the request's own variant.
    fn is_for(&self, session: &Session, exchange: &mut Exchange, head: &FetchedHead) -> bool {
        let Some((vary, variant)) = &head.variant else { return false };
        let received = session.requester.received();
        let Exchange { key, request, .. } = exchange;
        key.select(vary, request, received);
        *key.bytes() == **variant
    }

    /// Sends a response that is being fetched, or the object that it has become.
    async fn take(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        reader: Reader,
        head: &FetchedHead,
        lacking: Lacking,
        leads: bool,
    ) -> Result<After, Failure> {
        let Lacking { facts, why } = lacking;
        exchange.ledger.cache.forwarded(if leads { CacheResult::Miss } else { CacheResult::Collapsed }, why);
        exchange.ledger.cache.answered(head.head.status());
        if leads {
            exchange.ledger.note_origin(head.origin);
        }
        let wants_part = facts.conditional || facts.range;
        let kept = reader.object();
        // The rest may still break off, or be purged before it is complete (RFC 9211 §2.6).
        let is_stored = kept.is_some();
        let object = match kept {
            None if head.is_late => None,
            None if wants_part || (head.is_personal && !leads) => self.await_object(session, &reader).await,
            // The stored object lacks what was only for the first client, and the trailers.
            Some(_) if !wants_part && head.is_personal && leads => None,
            Some(_) if !wants_part && !head.is_personal && reader.trailers().is_some() => None,
            object => object,
        };
        if object.is_none() && wants_part && reader.is_broken() {
            return Err(Failure::BackendClosed(Awaited::Backend));
        }
        if let Some(object) = object {
            drop(reader);
            exchange.ledger.cache.flag("stored");
            self.note_shared(exchange, &object, &facts, leads);
            return Ok(hit::send(session, exchange, self.forwarding, object, &facts).await);
        }
        let is_kept = head.freshness.is_some() && !head.is_late;
        if (wants_part && !is_kept) || (head.is_personal && !leads) {
            // The whole response was requested in order to store it, which will not happen: what the client
            // wants is now requested in the way that the client asked for it.
            drop(reader);
            return self.go_past(session, exchange, lacking, "not-stored").await;
        }
        if is_stored {
            exchange.ledger.cache.flag("stored");
        }
        if !leads {
            exchange.ledger.cache.flag("collapsed");
            let age_seconds = head.freshness.map(|fresh| fresh.age(clock::now()).as_secs());
            exchange.ledger.cache.age_seconds = age_seconds.filter(|seconds| *seconds > 0);
        }
        self.follow(session, exchange, reader, head, leads).await
    }

    /// Sends a response that is being fetched, encoded if it is to be.
    async fn follow(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        reader: Reader,
        fetched: &FetchedHead,
        leads: bool,
    ) -> Result<After, Failure> {
        let offer = compress::offer(
            self.forwarding.compress(),
            &exchange.request,
            session.requester.received(),
            &fetched.head,
            &fetched.text,
        );
        let encoded = offer
            .as_ref()
            .and_then(|offer| encodings::of_broadcast(session, self.forwarding, &reader, offer));
        let (reader, negotiated) = match encoded {
            Some((encoded, negotiated)) => {
                // A reader that does not read would hold up a response that is not stored.
                drop(reader);
                (encoded, Some(negotiated))
            }
            None => (reader, offer.map(|offer| offer.as_it_is(false))),
        };
        let sticky = fetched.sticky.as_ref().filter(|_| leads);
        let head = follow::Head { head: &fetched.head, text: &fetched.text, sticky, negotiated };
        Ok(follow::run(session, exchange, self.forwarding, &reader, head).await)
    }

    /// The whole object, if it becomes available while the client can be kept waiting.
    async fn await_object(&self, session: &mut Session, reader: &Reader) -> Option<Arc<Object>> {
        session.requester.wait(clock::now(), self.cache.collapse_timeout);
        poll_fn(|context| match reader.poll_object(context) {
            Poll::Ready(object) => Poll::Ready(object),
            Poll::Pending if session.requester.deadline.has_passed() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// A stale response, which is better than an error (RFC 5861 §4).
    fn instead(
        &self,
        stale: Option<Arc<Object>>,
        facts: &RequestFacts,
        exchange: &mut Exchange,
    ) -> Option<Arc<Object>> {
        let now = clock::now();
        let object = stale.filter(|object| may_serve_on_error(object, facts, &self.cache.rules, now))?;
        self.note_age(exchange, CacheResult::ErrorStale, &object, facts);
        Some(object)
    }

    fn note_age(&self, exchange: &mut Exchange, result: CacheResult, object: &Object, facts: &RequestFacts) {
        let (age, ttl) = self.age_of(object, facts);
        exchange.ledger.cache.hit(result, age, ttl);
    }

    /// Notes the age for a response that was fetched for several requests. Clients that joined the fetch are
    /// told its age. The client whose request began the fetch is told only what the origin said about it: an
    /// `age` field implies that the origin was not asked (RFC 9111 §5.1).
    fn note_shared(&self, exchange: &mut Exchange, object: &Object, facts: &RequestFacts, leads: bool) {
        if !leads {
            exchange.ledger.cache.flag("collapsed");
        }
        let age_seconds = self.age_of(object, facts).0;
        exchange.ledger.cache.age_seconds = Some(age_seconds).filter(|seconds| !leads || *seconds > 0);
    }

    /// Age and remaining freshness, in seconds.
    fn age_of(&self, object: &Object, facts: &RequestFacts) -> (u64, i64) {
        let now = clock::now();
        match reuse(object, facts, now) {
            Reuse::Fresh { age, ttl } => (age.as_secs(), ttl.as_secs() as i64),
            Reuse::Stale { age, .. } | Reuse::Validate { age, .. } => {
                (age.as_secs(), ttl_seconds(object, now))
            }
            Reuse::OnlyIfCached => (0, ttl_seconds(object, now)),
        }
    }

    /// Forwards the request to a backend as if there were no cache.
    async fn go_past(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        lacking: Lacking,
        detail: &str,
    ) -> Result<After, Failure> {
        // The request may have waited long for another's fetch, so the rules may have changed since.
        let now = session.requester.slot.current();
        let anew = self.forwarding.anew(&session.requester, exchange, &now);
        if let Some(anew) = &anew {
            anew.begin(&session.requester, exchange);
        }
        let forwarding = anew.as_ref().unwrap_or(self.forwarding);
        // The answer of a fallback shows nothing about what others get.
        exchange.ledger.cache.passing = Some(lacking.facts).filter(|_| !forwarding.is_fallback());
        exchange.ledger.cache.forwarded(CacheResult::Pass, lacking.why);
        exchange.ledger.cache.detail(detail);
        // The stale response may have been purged or replaced meanwhile.
        let Exchange { key, request, .. } = &mut *exchange;
        let kept = match self.cache.cache.store.get(key, request, session.requester.received()) {
            Lookup::Hit(object) => Some(object),
            Lookup::Absent | Lookup::VariantAbsent => None,
        };
        self.forward(session, exchange, forwarding, &lacking.facts, kept).await
    }

    /// Forwards the request for this client alone. `kept` is served in place of an error, if that is allowed.
    async fn forward(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        forwarding: &Forwarding<'_>,
        facts: &RequestFacts,
        kept: Option<Arc<Object>>,
    ) -> Result<After, Failure> {
        let covers = |kept: &Arc<Object>| may_serve_on_error(kept, facts, &self.cache.rules, clock::now());
        let Some(kept) = kept.filter(covers) else {
            return forward::run(session, exchange, forwarding).await;
        };
        let text = session.requester.received()[..exchange.request.head_bytes()].to_vec();
        exchange.ledger.cache.is_covered = true;
        let failure = match forward::run(session, exchange, forwarding).await {
            Ok(after) => return Ok(after),
            Err(failure) => failure,
        };
        let is_error = failure.status().is_some_and(is_server_error);
        if !is_error || !request::take_back(&mut session.requester, exchange, &text) {
            return Err(failure);
        }
        if matches!(failure, Failure::Replaced(_)) || failure.meets() != Meets::Client {
            self.note_failure(exchange, facts);
        }
        let Some(object) = self.instead(Some(kept), facts, exchange) else { return Err(failure) };
        exchange.reply.clear();
        Ok(hit::send(session, exchange, forwarding, object, facts).await)
    }

    /// For a while, requests that may be answered by a stale response do not wait for a fetch.
    fn note_failure(&self, exchange: &Exchange, facts: &RequestFacts) {
        if !facts.demands() {
            let now = clock::now();
            self.cache.cache.fetches.pass(exchange.key.hash(), Crowd::All, now, now + BACK_OFF);
        }
    }
}

/// Whether the result of a fetch, or its lack within the time limit, is worse than a stale response.
fn is_error(arrived: &Result<Arrived, Failure>) -> bool {
    match arrived {
        Ok(Arrived::Failed(_)) | Err(Failure::QueueTimeout) => true,
        Ok(Arrived::Released { status }) => status.is_some_and(is_server_error),
        Ok(Arrived::Streaming(head)) => is_server_error(head.head.status()),
        _ => false,
    }
}
