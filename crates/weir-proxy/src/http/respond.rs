//! Sends a backend's response to the client and ends the exchange.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use weir_http::h1::connection::{Busy, Drained};
use weir_http::{BodyLength, BodyReader, Violation};
use weir_io::buffers::{LARGE, SMALL};
use weir_io::clock;
use weir_io::wait::send_all;
use weir_stats::table::End;

use crate::backends::Chosen;
use crate::http::attempt::Answered;
use crate::http::connection::Connection;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::kept::Kept;
use crate::http::pump::{Framing, Pump};
use crate::http::session::{Session, due};
use crate::http::upload::Upload;
use crate::http::{answer, cache, compress, drive, reply, tunnel};

/// Most bytes of a body that leave together with the head.
const WITH_HEAD_BYTES: usize = SMALL;

/// Sends the response whose head is in `exchange.response`.
pub async fn run(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    chosen: Chosen,
    answered: Answered,
    mut upload: Upload,
) -> After {
    let Answered { mut connection, mut received } = answered;
    if exchange.response.status() == 101 {
        return Box::pin(tunnel::run(session, exchange, forwarding, facts, chosen, connection, received))
            .await;
    }
    if facts.extended_connect && (200..300).contains(&exchange.response.status()) {
        // The client would take what follows for the tunnel it asked for (RFC 8441 §5).
        let failure = Failure::BadResponse(Violation::UpgradeNotNamed);
        return Box::pin(answer::failed_exchange(session, forwarding, exchange, upload, &failure)).await;
    }
    let is_muxed = connection.connection().is_muxed();
    if needs_buffer(exchange, is_muxed, received.filled().len()) && !session.worker.buffers.has_room(LARGE) {
        // Later it could only be broken off.
        let failure = Failure::OutOfMemory;
        return Box::pin(answer::failed_exchange(session, forwarding, exchange, upload, &failure)).await;
    }
    cache::learn(session, exchange, forwarding, received.filled());
    let compression = compress::decide(session, exchange, forwarding, facts, received.filled());
    let keep_client = facts.keep_alive && session.slot.draining_until().is_none() && upload.is_done();
    let head = received.filled();
    let written =
        reply::write_head(session, exchange, forwarding, facts, head, keep_client, compression.negotiated);
    let framing = match written {
        Ok(framing) => framing,
        Err(failure) => {
            return Box::pin(answer::failed_exchange(session, forwarding, exchange, upload, &failure)).await;
        }
    };
    received.consume(exchange.response.head_bytes());
    let to_stream = session.stream.is_muxed();
    let reader = reader_of(is_muxed, exchange, facts);
    // What ended with its head has been told so.
    let marked = to_stream && !framing.body.is_empty();
    let mut download = Pump::new(reader, Framing::on(marked, framing.body), Some(received), None)
        .encoded(compression.encoding);
    if !to_stream && let Err(error) = download.take_received(&mut exchange.reply, WITH_HEAD_BYTES) {
        let failure = drive::download_failure(error);
        return Box::pin(answer::failed_exchange(session, forwarding, exchange, upload, &failure)).await;
    }
    exchange.ledger.status = exchange.response.status();
    let head_bytes = exchange.reply.len() as u64 + exchange.reply_head_bytes;
    let sent = send(session, exchange, forwarding, &mut connection, &mut upload, &mut download).await;
    download.count_encoded(forwarding.listener.shared.cells.of(session.worker.number));
    count_bytes(exchange, &chosen, &upload, &download);
    exchange.ledger.bytes_sent = head_bytes + download.streamed;
    if let Err(failure) = sent {
        return broken_off(session, exchange, forwarding, &chosen, &failure);
    }
    let ended = exchange.ledger.close(session, forwarding.listener, &exchange.request_id, End::Done);
    session.idle_since = Some(ended);
    let (unread, response_drained) = download.into_rest();
    let (rest, request_drained) = upload.into_rest();
    if rest.is_some() {
        session.buffer = rest;
    }
    let keep_backend = exchange.response.keep_alive()
        && forwarding.pool.shared.config.send_proxy.is_none()
        && !connection.connection().is_muxed();
    let request_done = request_drained.is_some();
    keep(
        &chosen,
        connection,
        request_drained,
        response_drained,
        keep_backend,
        unread.map_or(0, |rest| rest.filled().len()),
        ended,
    );
    match request_done {
        true if framing.keep_alive => After::Keep,
        // The client wished to close, or can't frame what comes next: nothing more is expected of it.
        true if !facts.keep_alive => After::Close,
        _ => After::Linger,
    }
}

/// Ends an exchange whose response failed on its way.
fn broken_off(
    session: &Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    chosen: &Chosen,
    failure: &Failure,
) -> After {
    if failure.blames_backend() {
        chosen.observe_failure(&session.worker, clock::now(), || failure.of_backend());
    }
    if let Some(rejected) = failure.rejected() {
        forwarding.listener.shared.cells.of(session.worker.number).rejected[rejected as usize].increment();
    }
    exchange.ledger.close(session, forwarding.listener, &exchange.request_id, failure.end());
    // What reached the client is not whole, and it must be able to tell.
    After::Reset
}

/// Whether the response's body certainly needs a buffer besides the one that holds its head and whatever came behind it, `here` bytes altogether.
fn needs_buffer(exchange: &Exchange, is_muxed: bool, here: usize) -> bool {
    match exchange.response.body() {
        body if body.is_empty() => false,
        _ if is_muxed => true,
        BodyLength::Length(bytes) => bytes > here.saturating_sub(exchange.response.head_bytes()) as u64,
        // Its end may be here.
        _ => false,
    }
}

/// Counts what went to the backend and came from it.
fn count_bytes(exchange: &mut Exchange, chosen: &Chosen, upload: &Upload, download: &Pump) {
    let cells = chosen.backend().cells();
    cells.bytes_sent.add(upload.streamed_bytes());
    cells.bytes_received.add(exchange.response.head_bytes() as u64 + download.received);
    exchange.ledger.bytes_received += upload.received_bytes();
}

/// What reads the response's body from a backend's connection, or from a stream of one.
fn reader_of(is_stream: bool, exchange: &Exchange, facts: &Facts) -> BodyReader {
    match is_stream {
        true => BodyReader::of_stream(exchange.response.body()),
        false => BodyReader::new(exchange.response.body(), &facts.limits),
    }
}

/// Sends the head with what came of the body, then whatever is left of both bodies.
async fn send(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    connection: &mut Busy<Connection>,
    upload: &mut Upload,
    download: &mut Pump,
) -> Result<(), Failure> {
    let patience = forwarding.listener.shared.config.timeout.client_body;
    session.deadline.set(due(&session.slot, exchange.ledger.response_at(), patience));
    if download.is_done() && upload.is_done() {
        exchange.ledger.leave_places();
    }
    let Session { stream, slot, deadline, .. } = session;
    send_all(stream, &exchange.reply, deadline, || deadline.set(due(slot, clock::now(), patience))).await?;
    if download.is_done()
        || (session.stream.is_muxed() && sends_at_once(session, connection, upload, download).await?)
    {
        return Ok(());
    }
    Box::pin(drive::until_sent(session, connection.connection(), forwarding, upload, download)).await
}

/// Hands a small body that is here already to a client's stream; false when there is more to be done.
async fn sends_at_once(
    session: &mut Session,
    connection: &mut Busy<Connection>,
    upload: &Upload,
    download: &mut Pump,
) -> Result<bool, Failure> {
    if !upload.is_done() {
        return Ok(false);
    }
    let Session { stream, worker, .. } = session;
    poll_fn(|context| {
        let mut moved = false;
        match download.poll(context, connection.connection(), stream, &worker.buffers, &mut moved) {
            Poll::Ready(result) => Poll::Ready(result.map(|()| true).map_err(drive::download_failure)),
            Poll::Pending => Poll::Ready(Ok(false)),
        }
    })
    .await
}

/// Keeps the backend's connection for another exchange when this one ended cleanly in both directions.
fn keep(
    chosen: &Chosen,
    connection: Busy<Connection>,
    request: Option<Drained>,
    response: Option<Drained>,
    keep_alive: bool,
    unread_bytes: usize,
    now: Duration,
) {
    let (Some(request), Some(response)) = (request, response) else { return };
    if let Ok(idle) = connection.finish(request, response, keep_alive, unread_bytes) {
        let backend = chosen.backend();
        backend.kept::<Kept>().keep_idle(backend, idle, now, chosen.pool.shared.config.keep_alive.max);
    }
}
