//! Sends a response to a client while it is being fetched.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use weir_http::forward::Negotiated;
use weir_http::h1::chunked::{write_chunk_end, write_chunk_head, write_last_chunk};
use weir_http::{AddedField, BodyLength, ResponseContext, ResponseHead, SentFraming};
use weir_io::clock;
use weir_io::stream::Sight;
use weir_io::wait::send_all;
use weir_io::wait::{WaitError, timed_out};
use weir_stats::table::End;

use super::around::Trailer;
use super::broadcast::{Piece, Reader};
use crate::http::answer;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::Forwarding;
use crate::http::reply;
use crate::http::requester::Requester;
use crate::http::session::Session;

/// The fetch has its own timers, which end it. Who reads of it waits for that with this much on top, in case its worker stands still.
const FETCH_GRACE: Duration = Duration::from_secs(5);

/// The head of a response whose content is still to come, and what its client is told beside it.
pub struct Head<'a> {
    pub head: &'a ResponseHead,
    /// What `head` points into.
    pub text: &'a [u8],
    /// The cookie of who asked first.
    pub sticky: Option<&'a AddedField>,
    /// What the client's `accept-encoding` made of it.
    pub negotiated: Option<Negotiated>,
}

/// Sends `head` and what `reader` gives.
pub async fn run(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    reader: &Reader,
    head: Head<'_>,
) -> After {
    let keep = answer::may_keep(session, exchange);
    let Ok(framing) = write_head(session, exchange, forwarding, &head, keep) else {
        return answer::ended(session, exchange, forwarding.listener, (End::ClientClosed, false), false);
    };
    answer::take_request(session, exchange, keep);
    exchange.ledger.status = head.head.status();
    exchange.ledger.bytes_sent = exchange.reply.len() as u64 + exchange.reply_head_bytes;
    let sent = send(session, exchange, forwarding, reader, framing).await;
    let end = sent.as_ref().err().map_or(End::Done, Failure::end);
    answer::ended(session, exchange, forwarding.listener, (end, sent.is_ok()), keep && framing.keep_alive)
}

fn write_head(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    head: &Head<'_>,
    keep: bool,
) -> io::Result<SentFraming> {
    let Exchange { request, reply, reply_head_bytes, request_id, ledger, .. } = exchange;
    let asked = (request.version(), request.method());
    let context = reply::context(forwarding, asked, keep, request_id, ledger);
    let context = ResponseContext { sticky: head.sticky, negotiated: head.negotiated, ..context };
    reply::put_head(session, (head.head, head.text), context, (reply, reply_head_bytes))
}

/// Sends the head that was written, then the content as it comes.
async fn send(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    reader: &Reader,
    framing: SentFraming,
) -> Result<(), Failure> {
    let timeout = forwarding.listener.shared.config.timeout;
    let patience = |session: &Session| {
        session.requester.wait(clock::now(), timeout.client_body);
    };
    patience(session);
    let is_chunked = framing.body == BodyLength::Chunked;
    if framing.body.is_empty() {
        send_all(&mut session.stream, &exchange.reply, &session.requester.deadline, || {}).await?;
        return Ok(());
    }
    // The head waits for the first content, to leave together with it.
    let mut lead = std::mem::take(&mut exchange.reply);
    let ended = loop {
        if !lead.is_empty() && !reader.has_piece() {
            send_all(&mut session.stream, &lead, &session.requester.deadline, || {}).await?;
            lead.clear();
        }
        session.requester.wait(clock::now(), timeout.backend + FETCH_GRACE);
        let piece = await_piece(session, reader).await?;
        patience(session);
        match piece {
            Piece::Content(content) if content.is_empty() => {}
            Piece::Content(content) => {
                exchange.ledger.bytes_sent += content.len() as u64;
                if is_chunked {
                    write_chunk_head(&mut lead, content.len() as u64);
                }
                send_piece(session, &lead, content, is_chunked).await?;
                lead.clear();
            }
            Piece::End => break Ok(()),
            Piece::Broken => break Err(Failure::BackendClosed),
        }
    };
    if ended.is_ok() {
        let trailers = reader.trailers();
        let trailers = || trailers.iter().flat_map(|trailers| trailers.iter()).map(Trailer::field);
        if is_chunked {
            write_last_chunk(&mut lead, trailers());
        }
        send_all(&mut session.stream, &lead, &session.requester.deadline, || {}).await?;
        reply::finish(session, trailers).await?;
    }
    exchange.reply = lead;
    ended
}

/// Waits for the next piece, and leaves when the client does: a fetch that is not kept has nobody else to end it.
async fn await_piece(session: &mut Session, reader: &Reader) -> Result<Piece, Failure> {
    let mut watched = true;
    poll_fn(|context| {
        if let Poll::Ready(piece) = reader.poll_piece(context) {
            return Poll::Ready(Ok(piece));
        }
        if session.requester.deadline.has_passed() {
            return Poll::Ready(Err(Failure::BackendTimeout));
        }
        if watched {
            watched = session.requester.look_at(&mut session.stream, context)? == Sight::Quiet;
        }
        Poll::Pending
    })
    .await
}

/// Sends what stands before the content, the content, and what stands behind it.
async fn send_piece(
    session: &mut Session,
    lead: &[u8],
    mut content: Bytes,
    is_chunked: bool,
) -> Result<(), WaitError> {
    let Session { stream, requester: Requester { deadline, .. }, .. } = session;
    if let Some(stream) = stream.as_muxed() {
        while !content.is_empty() {
            poll_fn(|context| match stream.poll_send_bytes(context, &mut content, false) {
                Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
                Poll::Pending => timed_out(deadline),
            })
            .await?;
        }
        return Ok(());
    }
    let mut end = Vec::new();
    if is_chunked {
        write_chunk_end(&mut end);
    }
    let mut parts: [&[u8]; 3] = [lead, &content, &end];
    while parts.iter().any(|part| !part.is_empty()) {
        let mut sent = poll_fn(|context| {
            let places = parts.map(IoSlice::new);
            let first = parts.iter().position(|part| !part.is_empty()).unwrap_or(0);
            match stream.poll_send_slices(context, &places[first..]) {
                Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
                Poll::Pending => timed_out(deadline),
            }
        })
        .await?;
        for part in &mut parts {
            let of_part = sent.min(part.len());
            *part = &part[of_part..];
            sent -= of_part;
        }
    }
    Ok(())
}
