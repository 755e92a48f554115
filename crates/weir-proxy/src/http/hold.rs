//! Holds a request's body back until enough of it has arrived: to inspect it, or so that no backend has to
//! wait for a slow client.

use std::future::poll_fn;
use std::task::{Context, Poll};

use weir_config::PoolProtocol;
use weir_http::BodyLength;
use weir_http::values::accept::Wants;
use weir_io::buffers::Charge;
use weir_io::clock;
use weir_io::temporary::TemporaryFile;

use crate::http::claim::HeldClaim;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::pump::PumpError;
use crate::http::reply;
use crate::http::session::Session;
use crate::http::upload::{Upload, failure_of};

/// Holds the body back if the pool or the route buffers requests. `charge` accounts for the memory of what is
/// held before and after; it is kept as long as the body may be sent again.
pub(super) async fn whole(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    upload: &mut Upload,
    charge: &mut Option<Charge>,
) -> Result<(), Failure> {
    let is_streaming = exchange.wants == Wants::Grpc && lets_calls_pass(&forwarding.pool.shared);
    let buffer = forwarding.buffer.filter(|buffer| buffer.requests > 0 && !is_streaming && !upload.is_done());
    let Some(buffer) = buffer else { return Ok(()) };
    let buffers = session.requester.buffers.clone();
    // If it is also framed for a backend that chooses HTTP/1.1, there is a second copy.
    let copies = if facts.protocol.lets_pick() { 2 } else { 1 };
    let mut claim =
        HeldClaim::new(&buffers, charge, buffer.requests, copies).expecting(exchange.request.body());
    hold(session, exchange, forwarding, facts, upload, &mut claim).await?;
    // If memory is short, the file begins earlier.
    let in_memory = if claim.is_refused() { upload.held() } else { buffer.requests };
    if !upload.is_received() && !upload.is_done() {
        file(session, exchange, forwarding, upload, in_memory).await?;
    }
    let cells = forwarding.pool.cells();
    match upload.is_received() {
        true => cells.buffered_requests.increment(),
        false => cells.unbuffered_requests.increment(),
    }
    Ok(())
}

/// Whether gRPC calls to `pool` are never held: both sides may take turns, and a client that waits for an
/// answer would wait for ever. gRPC needs HTTP/2, so where all backends speak HTTP/1.1 there are no calls: a
/// slow client that only claims to make one (`content-type`) is held like any other (threat D51).
pub fn lets_calls_pass(pool: &weir_state::Pool) -> bool {
    pool.config.protocol != PoolProtocol::H1 && !pool.backends.iter().all(|it| it.picked.is_h1())
}

/// Receives what exceeds `in_memory` bytes into a file, if files are configured and the body may fit.
async fn file(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    upload: &mut Upload,
    in_memory: u64,
) -> Result<(), Failure> {
    let Some(buffer) = forwarding.buffer else { return Ok(()) };
    let may_fit = match exchange.request.body() {
        BodyLength::Length(length) => length <= in_memory.saturating_add(buffer.requests_file),
        _ => buffer.requests_file > 0,
    };
    let Some(files) = forwarding.listener.compiled.files.as_ref().filter(|_| may_fit) else { return Ok(()) };
    let buffers = &session.requester.buffers;
    let Some(file) = TemporaryFile::begin(files, buffer.requests_file, buffers) else { return Ok(()) };
    upload.begin_file(file);
    upload.resume(clock::now());
    wait_for(session, forwarding, upload, |context, session, upload| {
        upload.poll_file(context, &mut session.stream, &session.requester.buffers)
    })
    .await?;
    upload.end_file();
    upload.pause(clock::now());
    exchange.ledger.note_wait();
    Ok(())
}

/// Receives into `exchange.outgoing`, after the head, until the body is complete or `claim` has no room for
/// more. The body is then sent with the head, and can be sent again.
pub(super) async fn hold(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    upload: &mut Upload,
    claim: &mut HeldClaim<'_>,
) -> Result<(), Failure> {
    if facts.expect_continue && upload.is_awaited() && !exchange.continued {
        exchange.continued = true;
        reply::send_continue(&mut session.stream, &session.requester.deadline).await?;
    }
    upload.resume(clock::now());
    wait_for(session, forwarding, upload, |context, Session { stream, requester, .. }, upload| {
        upload.poll_hold(context, stream, &requester.buffers, &mut exchange.outgoing, claim)
    })
    .await?;
    upload.pause(clock::now());
    exchange.ledger.note_wait();
    Ok(())
}

/// Receives by calling `poll` until it is ready, as long as the client keeps sending.
async fn wait_for(
    session: &mut Session,
    forwarding: &Forwarding<'_>,
    upload: &mut Upload,
    mut poll: impl FnMut(&mut Context<'_>, &mut Session, &mut Upload) -> Poll<Result<(), PumpError>>,
) -> Result<(), Failure> {
    let config = &forwarding.listener.shared.config;
    let patience = forwarding.timers().client_body;
    let mut held = u64::MAX;
    let mut is_stuck = false;
    poll_fn(|context| {
        if let Poll::Ready(result) = poll(context, session, upload) {
            return Poll::Ready(result.map_err(failure_of));
        }
        // Time that the disk takes does not count against the client.
        let was_stuck = std::mem::replace(&mut is_stuck, upload.is_stuck());
        match (was_stuck, is_stuck) {
            (false, true) => upload.pause(clock::now()),
            (true, false) => upload.resume(clock::now()),
            _ => {}
        }
        if held != upload.received_bytes() {
            held = upload.received_bytes();
            let now = clock::now();
            if upload.is_too_slow(now, config.http().limits.min_body_rate) {
                return Poll::Ready(Err(Failure::BodyTimeout));
            }
            session.requester.wait(now, patience);
        } else if session.requester.deadline.has_passed() {
            return Poll::Ready(Err(if is_stuck { Failure::BufferLost } else { Failure::BodyTimeout }));
        }
        Poll::Pending
    })
    .await
}
