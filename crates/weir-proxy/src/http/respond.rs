//! Sends a backend's response to the client and ends the exchange.

use std::time::Duration;

use weir_http::h1::connection::{Busy, Drained};
use weir_http::{BodyLength, BodyReader, KnownHeader, ResponseContext, write_response};
use weir_stats::table::End;

use crate::backends::{Chosen, Connection};
use crate::buffers::SMALL;
use crate::clock;
use crate::http::attempt::Answered;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forward::{Facts, Forwarding};
use crate::http::pump::Pump;
use crate::http::session::{Session, due};
use crate::http::upload::Upload;
use crate::http::{answer, date, drive, tunnel};
use crate::io::send_all;

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
    let keep_client = facts.keep_alive && session.slot.draining_until().is_none() && upload.is_done();
    let framing = write_head(exchange, forwarding, facts, received.filled(), keep_client);
    received.consume(exchange.response.head_bytes());
    let body = exchange.response.body();
    let mut download = Pump::new(
        BodyReader::new(body, &facts.limits),
        framing.body == BodyLength::Chunked,
        Some(received),
        None,
    );
    if let Err(error) = download.take_received(&mut exchange.reply, WITH_HEAD_BYTES) {
        let failure = drive::download_failure(error);
        return Box::pin(answer::failed_exchange(session, forwarding, exchange, upload, &failure)).await;
    }
    let status = exchange.response.status();
    exchange.ledger.status = status;
    let head_bytes = exchange.reply.len() as u64;
    let sent = send(session, exchange, forwarding, &mut connection, &mut upload, &mut download).await;
    let cells = chosen.backend().cells();
    cells.bytes_sent.add(upload.streamed_bytes());
    cells.bytes_received.add(exchange.response.head_bytes() as u64 + download.received);
    exchange.ledger.bytes_received += upload.received_bytes();
    exchange.ledger.bytes_sent = head_bytes + download.streamed;
    if let Err(failure) = sent {
        if failure.blames_backend() {
            chosen.observe_failure(&session.worker, clock::now(), || failure.of_backend());
        }
        exchange.ledger.close(session, forwarding.listener, &exchange.request_id, failure.end());
        // What reached the client is not whole, and it must be able to tell.
        return After::Reset;
    }
    let ended = exchange.ledger.close(session, forwarding.listener, &exchange.request_id, End::Done);
    session.idle_since = Some(ended);
    let (unread, response_drained) = download.into_rest();
    let (rest, request_drained) = upload.into_rest();
    if rest.is_some() {
        session.buffer = rest;
    }
    let keep_backend = exchange.response.keep_alive() && forwarding.pool.shared.config.send_proxy.is_none();
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

fn write_head(
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    received: &[u8],
    keep_alive: bool,
) -> weir_http::SentFraming {
    let has_date = exchange.response.value(KnownHeader::Date, received).is_some();
    let Exchange { response, reply, request_id, .. } = exchange;
    let mut write = |date: &[u8]| {
        let context = ResponseContext {
            added: forwarding.route.map_or(&[], |route| &route.response_fields),
            sticky: facts.sticky_field(),
            request_id,
            date,
            ..facts.response_context(keep_alive)
        };
        reply.clear();
        write_response(response, received, &context, reply)
    };
    if has_date { write(b"") } else { date::now(write) }
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
    let Session { stream, slot, deadline, .. } = session;
    send_all(stream, &exchange.reply, deadline, || deadline.set(due(slot, clock::now(), patience))).await?;
    if download.is_done() {
        return Ok(());
    }
    Box::pin(drive::until_sent(session, connection.connection(), forwarding, upload, download)).await
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
        chosen.backend().keep_idle(idle, now, chosen.pool.shared.config.keep_alive.max);
    }
}
