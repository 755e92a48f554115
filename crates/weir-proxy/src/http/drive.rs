//! The waits of an exchange in which both directions may move at once.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use weir_http::{Asked, Progress, parse_response};
use weir_io::buffers::{Buffer, SMALL};
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_io::stream::Sight;

use crate::backends::ConnectError;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::muxed::Muxed;
use crate::http::pump::{Pump, PumpError};
use crate::http::reply;
use crate::http::session::{Session, due};
use crate::http::stream::Stream;
use crate::http::upload::Upload;

/// Receives the response's head, moving the request's body meanwhile. Interim responses are passed on as they come.
pub async fn until_response(
    session: &mut Session,
    backend: &mut Stream,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    upload: &mut Upload,
) -> Result<Buffer, Failure> {
    exchange.response.clear();
    let mut received: Option<Buffer> = None;
    let mut watched = session.buffer.is_none();
    let mut interim_count = 0;
    loop {
        poll_fn(|context| {
            if upload.is_moving() {
                poll_upload(session, backend, forwarding, upload, context)?;
            }
            let polled = poll_head(session, backend, exchange, facts, &mut received, context);
            if polled.is_ready() {
                return polled;
            }
            if watched && upload.is_done() {
                watched = look_at_client(session, context)? == Sight::Quiet;
            }
            if has_passed(session) {
                return Poll::Ready(Err(match upload.is_awaited() {
                    _ if is_drained(session) => Failure::Drained,
                    true => Failure::BodyTimeout,
                    false => Failure::BackendTimeout,
                }));
            }
            Poll::Pending
        })
        .await?;
        let Some(mut buffer) = received.take() else { return Err(Failure::Empty) };
        if !exchange.response.is_interim() {
            return Ok(buffer);
        }
        interim_count += 1;
        if interim_count > facts.limits.interim_responses {
            return Err(Failure::InterimFlood);
        }
        reply::pass_interim_on(session, exchange, &facts.response_context(true), buffer.filled()).await?;
        if !upload.is_awaited() {
            // It says that the backend is at work on it; how often it may do so is bounded.
            let patience = forwarding.listener.shared.config.timeout.backend;
            session.deadline.set(due(&session.slot, clock::now(), patience));
        }
        buffer.consume(exchange.response.head_bytes());
        exchange.response.clear();
        received = Some(buffer).filter(|buffer| !buffer.is_empty());
    }
}

/// Moves the body on and renews the deadline while it moves.
fn poll_upload(
    session: &mut Session,
    backend: &mut Stream,
    forwarding: &Forwarding<'_>,
    upload: &mut Upload,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let mut moved = false;
    let polled = upload.poll(context, &mut session.stream, backend, &session.worker.buffers, &mut moved);
    let is_over = polled.is_ready();
    if let Poll::Ready(result) = polled {
        result?;
    }
    if moved || is_over {
        let now = clock::now();
        let listener = &forwarding.listener.shared.config;
        if upload.is_too_slow(now, listener.http().limits.min_body_rate) {
            return Err(Failure::BodyTimeout);
        }
        let patience =
            if upload.is_awaited() { listener.timeout.client_body } else { listener.timeout.backend };
        session.deadline.set(due(&session.slot, now, patience));
    }
    Ok(())
}

/// Receives and parses until a head, interim or final, is complete.
fn poll_head(
    session: &Session,
    backend: &mut Stream,
    exchange: &mut Exchange,
    facts: &Facts,
    received: &mut Option<Buffer>,
    context: &mut Context<'_>,
) -> Poll<Result<(), Failure>> {
    if let Some(stream) = backend.as_muxed() {
        return poll_stream_head(session, stream, exchange, facts, received, context);
    }
    loop {
        if let Some(buffer) = received.as_ref() {
            match parse_response(buffer.filled(), &facts.limits, facts.method, &mut exchange.response) {
                Ok(Progress::Complete { .. }) => return Poll::Ready(Ok(())),
                Ok(Progress::Partial) => {}
                Err(violation) => return Poll::Ready(Err(Failure::BadResponse(violation))),
            }
        }
        let nothing_yet = |received: &Option<Buffer>| received.is_none() && !exchange.response.has_started();
        match std::task::ready!(poll_receive_head(session, backend, facts, received, context)) {
            Ok(0) if nothing_yet(received) => return Poll::Ready(Err(Failure::Empty)),
            Ok(0) => return Poll::Ready(Err(Failure::BackendClosed)),
            Ok(_) => {}
            Err(Failure::BackendClosed) if nothing_yet(received) => return Poll::Ready(Err(Failure::Empty)),
            Err(failure) => return Poll::Ready(Err(failure)),
        }
    }
}

/// Takes the next head of a stream, whose text then is what was received.
fn poll_stream_head(
    session: &Session,
    stream: &mut Muxed,
    exchange: &mut Exchange,
    facts: &Facts,
    received: &mut Option<Buffer>,
    context: &mut Context<'_>,
) -> Poll<Result<(), Failure>> {
    let Exchange { response, reply, upgrade, .. } = exchange;
    let upgrade = facts.upgrade.then_some(upgrade.as_slice());
    // The vector for the reply is free until there is a response.
    reply.clear();
    let asked = Asked { method: facts.method, upgrade };
    let polled = std::task::ready!(stream.poll_response(context, &facts.limits, asked, response, reply));
    Poll::Ready(match polled {
        Ok(Ok(())) => match session.worker.buffers.borrow(reply.len()) {
            Some(mut buffer) => {
                buffer.append(reply);
                *received = Some(buffer);
                Ok(())
            }
            None => Err(Failure::OutOfMemory),
        },
        Ok(Err(violation)) => Err(Failure::BadResponse(violation)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(Failure::Connect(ConnectError::Declined))
        }
        Err(_) => Err(Failure::BackendClosed),
    })
}

/// Receives once; a buffer is borrowed only when there is something to receive.
fn poll_receive_head(
    session: &Session,
    backend: &mut Stream,
    facts: &Facts,
    received: &mut Option<Buffer>,
    context: &mut Context<'_>,
) -> Poll<Result<usize, Failure>> {
    if std::task::ready!(backend.poll_readable(context)).is_err() {
        return Poll::Ready(Err(Failure::BackendClosed));
    }
    let mut buffer = match received.take() {
        Some(mut buffer) => {
            buffer.compact();
            if buffer.is_full() {
                let size = (buffer.capacity() * 2).min(facts.limits.head_bytes().max(2 * SMALL));
                let Some(mut larger) = session.worker.buffers.borrow(size) else {
                    return Poll::Ready(Err(Failure::OutOfMemory));
                };
                larger.append(buffer.filled());
                larger
            } else {
                buffer
            }
        }
        None => match session.worker.buffers.borrow(SMALL) {
            Some(buffer) => buffer,
            None => return Poll::Ready(Err(Failure::OutOfMemory)),
        },
    };
    let polled = backend.receive_ready(context, &mut buffer);
    if !buffer.is_empty() {
        *received = Some(buffer);
    }
    polled.map_err(|_| Failure::BackendClosed)
}

/// Looks at the client without taking anything. `Err` when it has left: it reset the connection, or ended its direction where that counts as
/// leaving.
pub fn look_at_client(session: &mut Session, context: &mut Context<'_>) -> Result<Sight, Failure> {
    match session.stream.poll_present(context) {
        Ok(Sight::Ended) if session.slot.current().shared.config.http().abort_on_close => {
            Err(Failure::ClientClosed)
        }
        seen => seen.map_err(|_| Failure::ClientClosed),
    }
}

/// Moves both bodies until the response's is over.
pub async fn until_sent(
    session: &mut Session,
    backend: &mut Stream,
    forwarding: &Forwarding<'_>,
    upload: &mut Upload,
    download: &mut Pump,
) -> Result<(), Failure> {
    let timeout = forwarding.listener.shared.config.timeout;
    // The deadline so far was for the head; whose turn it is now shows after the first look.
    let mut is_first = true;
    // Who has sent more already can't be seen to leave before that is received.
    let mut watched = session.buffer.is_none();
    poll_fn(|context| {
        let mut moved = std::mem::take(&mut is_first);
        if upload.is_moving() {
            let polled =
                upload.poll(context, &mut session.stream, backend, &session.worker.buffers, &mut moved);
            if let Poll::Ready(Err(failure)) = polled {
                return Poll::Ready(Err(failure));
            }
        }
        let polled =
            download.poll(context, backend, &mut session.stream, &session.worker.buffers, &mut moved);
        if let Poll::Ready(result) = polled {
            return Poll::Ready(result.map_err(download_failure));
        }
        // A backend that has begun to answer may wait for the rest of the request: then the client is the slow one.
        let awaits_backend = download.waits_for_source() && !upload.is_awaited();
        // Otherwise nobody would notice that it has gone before there is something to send.
        if watched && awaits_backend && upload.is_done() {
            watched = look_at_client(session, context)? == Sight::Quiet;
        }
        if moved {
            // The rate of the request's body counts no more: the two may be taking turns, and say little and seldom.
            let now = clock::now();
            let patience = if awaits_backend { timeout.backend } else { timeout.client_body };
            session.deadline.set(due(&session.slot, now, patience));
        } else if has_passed(session) {
            return Poll::Ready(Err(match awaits_backend {
                _ if is_drained(session) => Failure::Drained,
                true => Failure::BackendTimeout,
                false if upload.is_awaited() => Failure::BodyTimeout,
                false => Failure::ClientStalled,
            }));
        }
        Poll::Pending
    })
    .await
}

/// Whether the session's deadline has passed. It is brought forward once draining has begun, which every session is woken for.
fn has_passed(session: &Session) -> bool {
    if let Some(until) = session.slot.draining_until() {
        session.deadline.no_later_than(until);
    }
    session.deadline.has_passed()
}

/// Whether the time that draining grants is over.
fn is_drained(session: &Session) -> bool {
    session.slot.draining_until().is_some_and(|until| until <= clock::now())
}

/// What went wrong on the backend's side.
pub fn download_failure(error: PumpError) -> Failure {
    match error {
        PumpError::SourceClosed => Failure::BackendClosed,
        PumpError::Malformed(violation) => Failure::BadResponse(violation),
        PumpError::SinkClosed => Failure::ClientClosed,
        PumpError::OutOfMemory | PumpError::TooLarge => Failure::OutOfMemory,
    }
}
