//! Fetches a response for the cache: an exchange like any other, whose client is a [`super::broadcast::Broadcast`].
//!
//! So it is chosen, connected, timed and tried again for as every other exchange is. Its client leaves when nobody waits any more, and it may
//! not go on by itself ([`super::background`]).

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use weir_cache::{Object, RequestFacts};
use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::handshake::Secure;

use super::fetches::Lease;
use super::recipient::Fetch;
use crate::client::Client;
use crate::http::answer;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forward;
use crate::http::forwarding::Forwarding;
use crate::http::muxed::Muxed;
use crate::http::route::Route;
use crate::http::session::Session;
use crate::http::stream::Stream;
use crate::worker::{self, ListenerSlot, Worker, WorkerListener};

/// A fetch that is to be made.
struct FetchJob {
    worker: Rc<Worker>,
    slot: Rc<ListenerSlot>,
    listener: Rc<WorkerListener>,
    pool: Rc<crate::backends::WorkerPool>,
    route: usize,
    rewritten: bool,
    secure: Option<Rc<Secure>>,
    client: Client,
    identity: Rc<weir_http::ClientIdentity>,
    path: Vec<u8>,
    request_id: Vec<u8>,
    fetch: Fetch,
}

/// Has a worker fetch what `exchange` asks for, or ask whether `stale` is still good.
pub fn start(
    session: &Session,
    exchange: &Exchange,
    (forwarding, listener, route): (&Forwarding<'_>, &Rc<WorkerListener>, &Route),
    lease: Lease,
    facts: RequestFacts,
    stale: Option<Arc<Object>>,
) {
    let received = session.buffer.as_ref().map_or(&[][..], Buffer::filled);
    let Some(cache) = &route.cache else { return };
    let fetch = Fetch {
        lease,
        route: route.number,
        listener: listener.clone(),
        key: exchange.key.clone(),
        facts,
        request: Rc::new(exchange.request.clone()),
        text: received[..exchange.request.head_bytes()].into(),
        stale,
        storing: None,
        began: cache.cache.store.purge_sequence(),
        asked_at: exchange.ledger.head,
        is_mismatched: false,
    };
    let job = FetchJob {
        worker: session.worker.clone(),
        slot: session.slot.clone(),
        pool: forwarding.pool.clone(),
        listener: listener.clone(),
        route: route.number,
        rewritten: forwarding.rewritten,
        secure: session.secure.clone(),
        client: exchange.ledger.client(session),
        identity: session.identity.clone(),
        path: exchange.path.clone(),
        request_id: exchange.request_id.clone(),
        fetch,
    };
    worker::spawn(&session.worker, serve(job));
}

/// Makes the fetch.
async fn serve(job: FetchJob) {
    let FetchJob { worker, slot, listener, pool, route, rewritten, path, request_id, fetch, .. } = job;
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    deadline.belongs_to(listener.shared.number());
    let (request, text, key) = (fetch.request.clone(), fetch.text.clone(), fetch.key.clone());
    let mut exchange = Exchange::take();
    let mut session = Session {
        worker: worker.clone(),
        slot,
        secure: job.secure,
        client: job.client,
        identity: job.identity,
        deadline,
        stream: Stream::muxed(Muxed::Fetch(Box::new(fetch))),
        buffer: None,
        idle_since: None,
    };
    let cache = listener.compiled.routes.route(route).and_then(|route| route.cache.as_deref());
    // The second time without conditions.
    for _ in 0..2 {
        exchange.begin(clock::now());
        exchange.ledger.is_fetch = true;
        exchange.ledger.pool = Some(pool.clone());
        exchange.request.clone_from(&request);
        exchange.path.clone_from(&path);
        exchange.request_id.clone_from(&request_id);
        exchange.key.clone_from(&key);
        exchange.is_keyed = true;
        let Some(mut buffer) = worker.buffers.borrow(text.len()) else {
            let failure = Failure::OutOfMemory;
            answer::failed_fetch(&mut session, &mut exchange, &failure);
            break;
        };
        buffer.append(&text);
        session.buffer = Some(buffer);
        let route = listener.compiled.routes.route(route);
        let forwarding = Forwarding { listener: &listener, pool: pool.clone(), route, rewritten };
        forward::run(&mut session, &mut exchange, &forwarding).await;
        let Some(Muxed::Fetch(fetch)) = session.stream.as_muxed() else { break };
        if !std::mem::take(&mut fetch.is_mismatched) {
            break;
        }
    }
    exchange.give_back();
    drop(session);
    // What it put in may have taken the place of thousands of others.
    while cache.is_some_and(|route| route.cache.store.settle()) {
        tokio::task::yield_now().await;
    }
}
