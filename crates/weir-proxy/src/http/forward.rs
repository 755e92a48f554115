//! Forwards a client's request to a pool, and the response to the client.
//!
//! Code that most exchanges never run (errors, queues, connecting, large bodies, tunnels) is boxed here and
//! in what it calls: a session's future is as large as its largest path, and every idle connection holds one.

use std::rc::Rc;
use std::time::Duration;

use weir_cache::is_server_error;
use weir_config::PoolProtocol;
use weir_http::Conditions;
use weir_http::h1::connection::Drained;
use weir_io::buffers::{Charge, SMALL};
use weir_io::clock;
use weir_io::wait::boxed;

use crate::http::ask::{Answered, Call};
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::mirror::copies;
use crate::http::pages::Replaced;
use crate::http::pump::Pump;
use crate::http::requester::Requester;
use crate::http::session::Session;
use crate::http::sink::Framing;
use crate::http::upload::Upload;
use crate::http::{attempt, hold, kept, request, respond, screening, sqli};
use crate::worker::WorkerListener;

/// Runs the exchange from here to its end.
///
/// # Errors
/// Nothing has been sent to the client.
pub async fn run(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
) -> Result<After, Failure> {
    screening::at_origin(&session.requester, exchange, forwarding)?;
    let copy = match forwarding.route.and_then(|route| route.mirror.as_deref()) {
        Some(mirror) => copies::begin(&session.requester, exchange, forwarding, mirror),
        None => None,
    };
    let head = request::kept_head(&session.requester, exchange, forwarding);
    let mut facts = request::serialise(&session.requester, exchange, forwarding, Conditions::AsSent)?;
    let head_bytes = exchange.outgoing.len();
    let mut upload = request::begin_upload(session, exchange, forwarding, &facts)?;
    let mut charge = None;
    let mut held = hold_back(session, exchange, forwarding, &facts, &mut upload, &mut charge).await;
    let now = head.as_ref().map(|_| session.requester.slot.current());
    let mut anew = None;
    if let (Some(head), Some(now), Ok(_)) = (&head, &now, &held)
        && let Some(elsewhere) = elsewhere(&session.requester, exchange, forwarding, now, &upload)
    {
        let requester = &mut session.requester;
        match request::serialise_anew(requester, exchange, &elsewhere, &mut upload, (head, head_bytes)) {
            Ok(written) => facts = written,
            Err(failure) => held = Err(failure),
        }
        anew = Some(elsewhere);
    }
    let forwarding = anew.as_deref().unwrap_or(forwarding);
    let Session { requester, stream, .. } = &mut *session;
    let answered = match held {
        Ok(()) => {
            let facts = &facts;
            let (try_until, leaves_silent, race) = (Duration::MAX, false, None);
            let recipient = &mut *stream;
            let upload = &mut upload;
            let call = Call {
                requester,
                recipient,
                exchange: &mut *exchange,
                forwarding,
                facts,
                upload,
                try_until,
                leaves_silent,
                race,
            };
            let answered = call.ask().await;
            if let (Some(copy), Ok(_)) = (copy, &answered) {
                copy.send(upload);
            }
            upload.leave_file();
            // The charge for the memory is kept as long as a backend may still be sent some of it.
            let is_held = charge.is_some() && upload.held() > SMALL as u64;
            if answered.is_ok() {
                upload.own_untaken(charge.take(), || attempt::take_outgoing(exchange, facts));
            }
            if is_held {
                exchange.outgoing = Vec::new();
                if let Some(heads) = exchange.heads.used() {
                    heads.framed = Vec::new();
                }
            }
            answered
        }
        Err(failure) => Err(failure),
    };
    let ended = match answered {
        Ok(answered) if gives_way(exchange, forwarding) => {
            return Err(replace(session, exchange, forwarding, answered, &mut upload));
        }
        Ok(answered) => {
            facts.answered_by(&answered.chosen, session.requester.secure.is_some());
            respond::run(session, exchange, forwarding, &facts, answered, &mut upload).await
        }
        Err(failure) => Err(failure),
    };
    if ended.is_err() {
        leave(session, exchange, &mut upload);
    }
    ended
}

/// Waits until as much of the request's body is here as must be before a backend is asked; `charge` then
/// accounts for its memory.
#[inline]
async fn hold_back(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    upload: &mut Upload,
    charge: &mut Option<Charge>,
) -> Result<(), Failure> {
    if facts.inspected.is_some() {
        boxed(|| sqli::body(session, exchange, forwarding, facts, upload, charge)).await?;
    }
    if forwarding.buffer.is_some() {
        boxed(|| hold::whole(session, exchange, forwarding, facts, upload, charge)).await?;
    }
    Ok(())
}

/// The pool for a request after the wait for its body; `None` if it has not changed.
fn elsewhere<'n>(
    requester: &Requester,
    exchange: &Exchange,
    forwarding: &'n Forwarding<'_>,
    now: &'n Rc<WorkerListener>,
    upload: &Upload,
) -> Option<Box<Forwarding<'n>>> {
    let anew = forwarding.anew(requester, exchange, now)?;
    let is_possible = anew.pool.shared.config.protocol == PoolProtocol::H1 || upload.may_be_framed_anew();
    is_possible.then(|| Box::new(anew))
}

/// Whether a backend's response is replaced by a page, or by a stored response.
#[inline]
fn gives_way(exchange: &Exchange, forwarding: &Forwarding<'_>) -> bool {
    forwarding.replaces(exchange.response.status()) || is_covered(exchange)
}

/// Whether it is an error that a stored response can replace.
#[inline]
fn is_covered(exchange: &Exchange) -> bool {
    let status = exchange.response.status();
    status >= 500 && is_server_error(status) && exchange.ledger.cache.is_covered
}

/// Receives a response that is replaced by another one. If all of it is here already, as is mostly the case,
/// its connection is kept.
fn replace(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    mut answered: Answered,
    upload: &mut Upload,
) -> Failure {
    let response = &exchange.response;
    let replaced = Replaced::new(response.status(), response.fields(answered.received.filled()));
    let reader = answered.body_reader(response, forwarding.limits());
    let Answered { chosen, connection, mut received } = answered;
    received.consume(response.head_bytes());
    let framing = Framing::on(false, response.body());
    let mut download = Pump::new(reader, framing, Some(received), None);
    exchange.reply.clear();
    let taken = download.take_received(&mut exchange.reply, SMALL);
    chosen.backend().cells().bytes_received.add(response.head_bytes() as u64 + download.received);
    let is_whole = taken.is_ok() && download.is_done() && response.keep_alive() && !upload.is_cut();
    if let Some(request) = leave(session, exchange, upload)
        && is_whole
    {
        kept::keep(&chosen, connection, request, download, clock::now());
    }
    if !is_covered(exchange) {
        forwarding.listener.shared.cells.of(session.requester.worker.number).replaced.increment();
    }
    Failure::Replaced(Box::new(replaced))
}

/// Gives up on a request that had a backend but gets no response from it. What is left of its body decides
/// whether the client's connection can be kept. Gives proof if nothing is left.
fn leave(session: &mut Session, exchange: &mut Exchange, upload: &mut Upload) -> Option<Drained> {
    exchange.ledger.bytes_received += upload.received_bytes();
    if let (Some(pool), Some(backend)) = (&exchange.ledger.pool, exchange.ledger.backend) {
        // Everything was sent to the last backend, because streamed bytes are not sent again.
        pool.backends[backend].cells().bytes_sent.add(upload.streamed_bytes());
    }
    let (rest, drained) = upload.take_rest();
    if rest.is_some() {
        session.requester.buffer = rest;
    }
    exchange.body_left = drained.is_none();
    drained
}
