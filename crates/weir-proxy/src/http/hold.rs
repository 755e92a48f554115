//! Holds a request's body back until there is enough of it: to look at it, or so that no backend waits for
//! a client.

use std::future::poll_fn;
use std::task::Poll;

use weir_http::BodyLength;
use weir_io::buffers::Charge;
use weir_io::clock;

use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::reply;
use crate::http::requester::Requester;
use crate::http::session::Session;
use crate::http::upload::{Upload, failure_of};

/// Holds the body back where the pool or the route has requests buffered; gives what stands for the memory,
/// to be kept as long as the body may be sent again.
pub(super) async fn whole(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    upload: &mut Upload,
) -> Result<Option<Charge>, Failure> {
    let most = forwarding.buffer.map_or(0, |buffer| buffer.requests);
    if most == 0 || upload.is_done() {
        return Ok(None);
    }
    let expected = match exchange.request.body() {
        BodyLength::Length(length) => length.min(most),
        _ => most,
    };
    let cells = forwarding.pool.cells();
    let Some(charge) = session.requester.worker.buffers.charge(expected) else {
        cells.unbuffered_requests.increment();
        return Ok(None);
    };
    hold(session, exchange, forwarding, facts, upload, most).await?;
    match upload.is_received() {
        true => cells.buffered_requests.increment(),
        false => cells.unbuffered_requests.increment(),
    }
    Ok(Some(charge))
}

/// Receives into `exchange.outgoing`, behind the head, until the body is over or there are `most` bytes of
/// it. It leaves with the head, and can be sent once more.
pub(super) async fn hold(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    upload: &mut Upload,
    most: u64,
) -> Result<(), Failure> {
    if facts.expect_continue && upload.is_awaited() && !exchange.continued {
        exchange.continued = true;
        reply::send_continue(&mut session.stream, &session.requester.deadline).await?;
    }
    upload.resume(clock::now());
    receive(session, exchange, forwarding, upload, most).await?;
    upload.pause(clock::now());
    exchange.ledger.note_wait();
    Ok(())
}

async fn receive(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    upload: &mut Upload,
    most: u64,
) -> Result<(), Failure> {
    let config = &forwarding.listener.shared.config;
    let patience = forwarding.timers.client_body;
    let mut held = u64::MAX;
    poll_fn(|context| {
        let Session { stream, requester: Requester { worker, .. }, .. } = &mut *session;
        let polled = upload.poll_hold(context, stream, &worker.buffers, &mut exchange.outgoing, most);
        if let Poll::Ready(result) = polled {
            return Poll::Ready(result.map_err(failure_of));
        }
        if held != upload.received_bytes() {
            held = upload.received_bytes();
            let now = clock::now();
            if upload.is_too_slow(now, config.http().limits.min_body_rate) {
                return Poll::Ready(Err(Failure::BodyTimeout));
            }
            session.requester.wait(now, patience);
        } else if session.requester.deadline.has_passed() {
            return Poll::Ready(Err(Failure::BodyTimeout));
        }
        Poll::Pending
    })
    .await
}
