//! Sends a backend's response to the client and ends the exchange.

use std::future::poll_fn;
use std::task::Poll;

use weir_http::Violation;
use weir_http::h1::connection::{Busy, Drained};
use weir_io::buffers::{LARGE, SMALL};
use weir_io::clock;
use weir_io::wait::boxed;
use weir_stats::table::End;

use crate::backends::Chosen;
use crate::http::ask::{self, Answered};
use crate::http::connection::Connection;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::pump::Pump;
use crate::http::read_ahead::ReadAhead;
use crate::http::requester::Requester;
use crate::http::session::Session;
use crate::http::sink::Framing;
use crate::http::upload::Upload;
use crate::http::{cache, compress, drive, edits, kept, reply, tunnel};

/// Most bytes of a body that are sent together with the head.
const WITH_HEAD_BYTES: usize = SMALL;

/// Sends the response whose head is in `exchange.response`.
///
/// # Errors
/// Nothing has been sent to the client.
pub async fn run(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    mut answered: Answered,
    upload: &mut Upload,
) -> Result<After, Failure> {
    if exchange.response.status() == 101 {
        return boxed(|| tunnel::run(session, exchange, forwarding, facts, answered)).await;
    }
    may_be_sent(session, exchange, facts, &mut answered)?;
    let reader = answered.body_reader(&exchange.response, forwarding.limits());
    let Answered { chosen, mut connection, mut received } = answered;
    cache::learn(session, exchange, forwarding, received.filled());
    let compression = compress::decide(session, exchange, forwarding, facts, received.filled());
    let keep_client =
        facts.keep_alive && session.requester.slot.draining_until().is_none() && upload.has_left_client();
    let beside = facts.beside(compression.negotiated);
    let framing = reply::write_head(session, exchange, forwarding, received.filled(), keep_client, beside)?;
    received.consume(exchange.response.head_bytes());
    let to_stream = session.stream.is_muxed();
    // The recipient already knows about a response that ended with its head.
    let marked = to_stream && !framing.body.is_empty();
    exchange.ledger.head_bytes_sent = exchange.reply.len() as u64 + exchange.reply_head_bytes;
    let mut download = Pump::new(reader, Framing::on(marked, framing.body), Some(received), None);
    if let Some(edits) = edits::of(forwarding.listener, exchange) {
        download = download.dropping(edits.dropped_of_response());
    }
    download.set_encoding(compression.encoding);
    if !to_stream {
        let taken = download.take_received(&mut exchange.reply, WITH_HEAD_BYTES);
        taken.map_err(drive::download_failure)?;
    }
    exchange.ledger.answers(exchange.response.status());
    let head_bytes = exchange.reply.len() as u64 + exchange.reply_head_bytes;
    let mut ahead = None;
    let bodies = Bodies { upload, download: &mut download, ahead: &mut ahead };
    let sent = send(session, exchange, forwarding, &mut connection, bodies).await;
    download.count_encoded(forwarding.listener.shared.cells.of(session.requester.worker.number));
    count_bytes(exchange, &chosen, upload, &download);
    let held = ahead.as_ref().map_or(0, |ahead| ahead.held_bytes());
    exchange.ledger.bytes_sent = head_bytes + download.streamed - held;
    if let Err(failure) = sent {
        let failure = session.requester.judge(failure);
        return Ok(broken_off(session, exchange, forwarding, &chosen, &failure));
    }
    if let Some(ahead) = ahead.filter(|ahead| !ahead.is_drained()) {
        let left =
            Left { chosen, connection, download, ahead, may_keep: (framing.keep_alive, facts.keep_alive) };
        return Ok(boxed(|| give_rest(session, exchange, forwarding, upload, left)).await);
    }
    let ended =
        exchange.ledger.close(&session.requester, forwarding.listener, &exchange.request_id, End::Done);
    session.idle_since = Some(ended);
    let request_drained = take_rest(session, upload);
    let request_done = request_drained.is_some();
    if let Some(request) = request_drained
        && exchange.response.keep_alive()
        && !upload.is_cut()
    {
        kept::keep(&chosen, connection, request, download, ended);
    }
    Ok(after(request_done, framing.keep_alive, facts.keep_alive))
}

/// What happens to the client's connection.
fn after(request_done: bool, may_keep: bool, wishes_to_keep: bool) -> After {
    match request_done {
        true if may_keep => After::Keep,
        // The client wants to close, or could not frame what comes next: nothing more is expected of it.
        true if !wishes_to_keep => After::Close,
        _ => After::Linger,
    }
}

/// Gives the bytes that the client sent after its request back to the session; gives proof that the request
/// is over.
#[inline]
fn take_rest(session: &mut Session, upload: &mut Upload) -> Option<Drained> {
    let (rest, request_drained) = upload.take_rest();
    if rest.is_some() {
        session.requester.buffer = rest;
    }
    request_drained
}

/// Whether this response can be sent to the client: later on it could only be broken off.
fn may_be_sent(
    session: &Session,
    exchange: &Exchange,
    facts: &Facts,
    answered: &mut Answered,
) -> Result<(), Failure> {
    if facts.extended_connect && (200..300).contains(&exchange.response.status()) {
        // The client would take what follows for the tunnel that it asked for (RFC 8441 §5).
        return Err(Failure::BadResponse(Violation::UpgradeNotNamed));
    }
    let buffers = &session.requester.buffers;
    if answered.needs_buffer(&exchange.response) && !buffers.has_room(LARGE) {
        return Err(Failure::OutOfMemory);
    }
    Ok(())
}

/// Both bodies of an exchange in transit.
struct Bodies<'a> {
    upload: &'a mut Upload,
    download: &'a mut Pump,
    /// Where the response is read ahead, once that begins.
    ahead: &'a mut Option<Box<ReadAhead>>,
}

/// A response that has come completely, but that its client has not got completely.
struct Left {
    chosen: Chosen,
    connection: Busy<Connection>,
    download: Pump,
    ahead: Box<ReadAhead>,
    /// Whether the client's connection may be kept, and whether the client wants that.
    may_keep: (bool, bool),
}

/// Releases the backend, and sends the rest to the client.
async fn give_rest(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    upload: &mut Upload,
    left: Left,
) -> After {
    let Left { chosen, connection, download, mut ahead, may_keep } = left;
    let request_drained = take_rest(session, upload);
    let request_done = request_drained.is_some();
    if let Some(request) = request_drained
        && exchange.response.keep_alive()
        && !upload.is_cut()
    {
        kept::keep(&chosen, connection, request, download, clock::now());
    }
    drop(chosen);
    forwarding.pool.cells().read_ahead.increment();
    exchange.ledger.leave_places();
    let held = ahead.held_bytes();
    let given = drive::until_drained(session, forwarding, &mut ahead).await;
    exchange.ledger.bytes_sent += held - ahead.held_bytes();
    let failure = given.err().map(|failure| session.requester.judge(failure));
    let end = failure.as_ref().map_or(End::Done, Failure::end);
    let ended = exchange.ledger.close(&session.requester, forwarding.listener, &exchange.request_id, end);
    session.idle_since = Some(ended);
    match failure {
        Some(_) => After::Reset,
        None => after(request_done, may_keep.0, may_keep.1),
    }
}

/// Ends an exchange whose response broke off.
fn broken_off(
    session: &Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    chosen: &Chosen,
    failure: &Failure,
) -> After {
    ask::broke_off(&session.requester, forwarding, chosen, failure);
    exchange.ledger.close(&session.requester, forwarding.listener, &exchange.request_id, failure.end());
    // The client's response is incomplete, and the client must be able to tell.
    After::Reset
}

/// Counts the bytes sent to and received from the backend.
fn count_bytes(exchange: &mut Exchange, chosen: &Chosen, upload: &Upload, download: &Pump) {
    let cells = chosen.backend().cells();
    cells.bytes_sent.add(upload.streamed_bytes());
    cells.bytes_received.add(exchange.response.head_bytes() as u64 + download.received);
    exchange.ledger.bytes_received += upload.received_bytes();
}

/// Sends the head with the part of the body that has come, then the rest of both bodies.
async fn send(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    connection: &mut Busy<Connection>,
    bodies: Bodies<'_>,
) -> Result<(), Failure> {
    let Bodies { upload, download, ahead } = bodies;
    let patience = forwarding.timers().client_body;
    session.requester.wait(exchange.ledger.response_at(), patience);
    if download.is_done() && upload.is_done() {
        exchange.ledger.leave_places();
    }
    reply::send_text(session, exchange, patience).await?;
    if download.is_done()
        || (session.stream.is_muxed() && sends_at_once(session, connection, upload, download).await?)
    {
        return Ok(());
    }
    let most = forwarding.buffer.map_or(0, |buffer| buffer.responses);
    if most > 0 {
        let files = forwarding.listener.compiled.files.as_ref();
        let in_file = forwarding.buffer.map_or(0, |buffer| buffer.responses_file);
        let in_memory = ReadAhead::new(most, &session.requester.buffers);
        *ahead = in_memory.map(|ahead| Box::new(ahead.before_file(files, in_file)));
    }
    let (backend, ahead) = (connection.connection(), ahead.as_deref_mut());
    boxed(|| drive::until_sent(session, backend, forwarding, upload, download, ahead)).await
}

/// Sends a small body that is here already on a client's stream; false if there is more to do.
async fn sends_at_once(
    session: &mut Session,
    connection: &mut Busy<Connection>,
    upload: &Upload,
    download: &mut Pump,
) -> Result<bool, Failure> {
    if !upload.is_done() {
        return Ok(false);
    }
    let Session { stream, requester: Requester { buffers, .. }, .. } = session;
    poll_fn(|context| {
        let mut moved = false;
        match download.poll(context, connection.connection(), stream, buffers, &mut moved) {
            Poll::Ready(result) => Poll::Ready(result.map(|()| true).map_err(drive::download_failure)),
            Poll::Pending => Poll::Ready(Ok(false)),
        }
    })
    .await
}
