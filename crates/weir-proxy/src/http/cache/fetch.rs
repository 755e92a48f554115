//! Fetches a response for the cache: sends the request to a backend like any other request, and passes the
//! response to a [`super::broadcast::Broadcast`].
//!
//! So choosing a backend, connecting, timeouts and retries work as for every other request. The recipient
//! counts as gone when nobody waits any more and the fetch may not go on by itself ([`super::background`]).

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use weir_cache::{Object, RequestFacts};
use weir_http::Violation;
use weir_io::buffers::LARGE;
use weir_io::clock;
use weir_io::handshake::Secure;

use super::fetches::Lease;
use super::recipient::Fetch;
use crate::client::Client;
use crate::http::ask::{Answered, Call};
use crate::http::collect::{self, Incoming};
use crate::http::exchange::Exchange;
use crate::http::failure::{FailedFetch, Failure};
use crate::http::forwarding::Forwarding;
use crate::http::mirror::copies;
use crate::http::plan::Paths;
use crate::http::pump::Pump;
use crate::http::request;
use crate::http::requester::{Requester, Total};
use crate::http::screening;
use crate::http::session::Session;
use crate::http::sink::Framing;
use crate::http::upload::Upload;
use crate::worker::{self, ListenerSlot, Worker, WorkerListener};

/// A fetch to make.
struct FetchJob {
    worker: Rc<Worker>,
    slot: Rc<ListenerSlot>,
    listener: Rc<WorkerListener>,
    pool: Rc<crate::backends::WorkerPool>,
    route: usize,
    pool_index: Option<usize>,
    secure: Option<Rc<Secure>>,
    client: Client,
    identity: Rc<weir_http::ClientIdentity>,
    paths: Paths,
    request_id: Vec<u8>,
    fetch: Fetch,
}

/// Has a worker fetch what `exchange` asks for, or revalidate `stale`.
pub fn start(
    session: &Session,
    exchange: &Exchange,
    forwarding: &Forwarding<'_>,
    lease: Lease,
    facts: RequestFacts,
    stale: Option<Arc<Object>>,
) {
    let Requester { worker, slot, secure, identity, .. } = &session.requester;
    let Some(route) = forwarding.route.filter(|route| route.cache.is_some()) else { return };
    let fetch = Fetch {
        lease,
        route: route.number,
        listener: forwarding.listener.clone(),
        key: exchange.key.clone(),
        facts,
        request: Rc::new(exchange.request.clone()),
        text: session.requester.received()[..exchange.request.head_bytes()].into(),
        stale,
        storing: None,
        asked_at: exchange.ledger.head,
        is_mismatched: false,
    };
    let job = FetchJob {
        worker: worker.clone(),
        slot: slot.clone(),
        pool: forwarding.pool.clone(),
        listener: forwarding.listener.clone(),
        route: route.number,
        pool_index: exchange.pool,
        secure: secure.clone(),
        client: exchange.ledger.client(&session.requester),
        identity: identity.clone(),
        paths: exchange.paths.clone(),
        request_id: exchange.request_id.clone(),
        fetch,
    };
    worker::spawn(worker, serve(job));
}

/// Makes the fetch.
async fn serve(job: FetchJob) {
    let FetchJob { worker, slot, listener, pool, route, paths, request_id, mut fetch, .. } = job;
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    deadline.belongs_to(listener.shared.number());
    let (request, text, key) = (fetch.request.clone(), fetch.text.clone(), fetch.key.clone());
    let mut exchange = Exchange::take();
    let mut requester = Requester {
        worker: worker.clone(),
        slot,
        secure: job.secure,
        client: job.client,
        identity: job.identity,
        // What is fetched is for many clients.
        buffers: worker.buffers.clone(),
        deadline,
        total: Total::endless(),
        buffer: None,
    };
    let (number, pool_index) = (route, job.pool_index);
    let route = listener.compiled.routes.route(number);
    let forwarding = Forwarding::new(&listener, pool, route);
    // The second time without conditions.
    for is_again in [false, true] {
        exchange.begin(clock::now());
        exchange.ledger.pool = Some(forwarding.pool.clone());
        (exchange.route, exchange.pool) = (Some(number), pool_index);
        exchange.request.clone_from(&request);
        exchange.paths.clone_from(&paths);
        exchange.request_id.clone_from(&request_id);
        exchange.key.clone_from(&key);
        exchange.is_keyed = true;
        let Some(mut buffer) = worker.buffers.borrow(text.len()) else {
            fetch.fail(FailedFetch::of(&Failure::OutOfMemory));
            break;
        };
        buffer.append(&text);
        requester.buffer = Some(buffer);
        if let Err(failure) = fetch.ask(&mut requester, &mut exchange, &forwarding, is_again).await {
            fetch.fail(FailedFetch::of(&failure));
        }
        if !std::mem::take(&mut fetch.is_mismatched) {
            break;
        }
    }
    exchange.give_back();
    // Dropping the fetch tells those who still wait that nothing more comes.
    drop((fetch, requester));
    // A large stored object may have displaced thousands of others.
    while route.and_then(|route| route.cache.as_deref()).is_some_and(|route| route.cache.store.settle()) {
        tokio::task::yield_now().await;
    }
}

impl Fetch {
    /// Sends the request to the pool, and takes its answer.
    ///
    /// # Errors
    /// There is no response; those who wait are to be told.
    async fn ask(
        &mut self,
        requester: &mut Requester,
        exchange: &mut Exchange,
        forwarding: &Forwarding<'_>,
        is_again: bool,
    ) -> Result<(), Failure> {
        screening::at_origin(requester, exchange, forwarding)?;
        let mirror = forwarding.route.and_then(|route| route.mirror.as_deref());
        if let Some(mirror) = mirror.filter(|_| !is_again) {
            // A fetch has no body that would have to arrive first.
            let _sent_once_chosen = copies::begin(requester, exchange, forwarding, mirror);
        }
        let mut facts = request::serialise(requester, exchange, forwarding, self.conditions())?;
        request::take_head(requester, exchange);
        let (recipient, upload) = (&mut *self, &mut Upload::none());
        let call = Call {
            requester,
            recipient,
            exchange,
            forwarding,
            facts: &facts,
            upload,
            try_until: Duration::MAX,
            leaves_silent: false,
            race: None,
        };
        let mut answered = call.ask().await?;
        facts.answered_by(&answered.chosen, requester.secure.is_some());
        if exchange.response.status() == 101 {
            return Err(Failure::BadResponse(Violation::UpgradeNotNamed));
        }
        if answered.needs_buffer(&exchange.response) && !requester.buffers.has_room(LARGE) {
            // Later on, the response could only be broken off.
            return Err(Failure::OutOfMemory);
        }
        let reader = answered.body_reader(&exchange.response, forwarding.limits());
        let Answered { chosen, connection, mut received } = answered;
        let sticky = facts.sticky_cookie();
        let length = self.begin(&exchange.response, received.filled(), exchange.ledger.origin(), sticky);
        received.consume(exchange.response.head_bytes());
        // The recipient already knows about a response that ended with its head.
        let framing = Framing::on(!length.is_empty(), length);
        let download = Pump::new(reader, framing, Some(received), None);
        let incoming = Incoming { chosen, connection, download };
        // Readers that already have the head learn that the response broke off when nothing more comes.
        let _ = collect::content(self, requester, exchange, forwarding, incoming).await;
        Ok(())
    }
}
