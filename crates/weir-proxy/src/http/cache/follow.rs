//! Sends a response to a client while it is still being fetched.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use weir_http::forward::{Negotiated, is_of_bytes};
use weir_http::{Field, ResponseContext, ResponseHead, SentFraming, SetCookie};
use weir_io::clock;
use weir_io::stream::Sight;
use weir_io::wait::boxed;
use weir_stats::table::End;

use super::around::Trailer;
use super::broadcast::{Piece, Reader};
use crate::http::answer;
use crate::http::edit_table::Edits;
use crate::http::edits;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::{Awaited, Failure};
use crate::http::forwarding::Forwarding;
use crate::http::pages::Replaced;
use crate::http::reply;
use crate::http::sending::Sending;
use crate::http::session::Session;
use crate::http::sink::Framing;

/// Added to the fetch's own timeouts, which end it, to get the time that a reader waits for it, in case the
/// fetch's worker is stuck.
const FETCH_GRACE: Duration = Duration::from_secs(5);

/// The head of a response whose content is still to come, and what this client gets in addition.
pub struct Head<'a> {
    pub head: &'a ResponseHead,
    /// The bytes that `head` points into.
    pub text: &'a [u8],
    /// The stickiness cookie for the first client.
    pub sticky: Option<&'a SetCookie>,
    /// The result of negotiating `accept-encoding`.
    pub negotiated: Option<Negotiated>,
}

/// Sends `head` and the content that `reader` gives.
pub async fn run(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    reader: &Reader,
    head: Head<'_>,
) -> After {
    if forwarding.replaces(head.head.status()) {
        return replace(session, exchange, forwarding, head.head, head.text).await;
    }
    let keep = answer::may_keep(session, exchange);
    let Ok(framing) = write_head(session, exchange, forwarding, &head, keep) else {
        return answer::ended(session, exchange, forwarding.listener, End::ClientClosed, false);
    };
    answer::take_request(session, exchange, keep);
    exchange.ledger.answers(head.head.status());
    exchange.ledger.head_bytes_sent = exchange.reply.len() as u64 + exchange.reply_head_bytes;
    exchange.ledger.bytes_sent = exchange.ledger.head_bytes_sent;
    let is_encoded = head.negotiated.is_some_and(|negotiated| negotiated.coding.is_some());
    let sent = send(session, exchange, forwarding, reader, (framing, is_encoded)).await;
    let end = sent.as_ref().err().map_or(End::Done, Failure::end);
    answer::ended(session, exchange, forwarding.listener, end, keep && framing.keep_alive)
}

/// Sends the page that replaces a response with this head.
pub async fn replace(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    head: &ResponseHead,
    text: &[u8],
) -> After {
    let cells = forwarding.listener.shared.cells.of(session.requester.worker.number);
    cells.replaced.increment();
    let failure = Failure::Replaced(Box::new(Replaced::new(head.status(), head.fields(text))));
    boxed(|| answer::failure(session, forwarding.listener, exchange, &failure)).await
}

fn write_head(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    head: &Head<'_>,
    keep: bool,
) -> io::Result<SentFraming> {
    let Exchange { request, reply, reply_head_bytes, request_id, ledger, .. } = exchange;
    ledger.note_response(forwarding.listener, head.head, head.text);
    reply::set_pace(session, forwarding);
    let edits = edits::of_response(forwarding.listener, exchange.route, exchange.pool, &exchange.rendered);
    let context = reply::context(forwarding, request, keep, request_id, ledger, edits);
    let context = ResponseContext { sticky: head.sticky, negotiated: head.negotiated, ..context };
    reply::put_head(session, head.head, head.text, context, reply, reply_head_bytes)
}

/// Sends the head that was written, then the content as it arrives.
async fn send(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    reader: &Reader,
    (framing, is_encoded): (SentFraming, bool),
) -> Result<(), Failure> {
    let timeout = forwarding.timers();
    if framing.body.is_empty() {
        session.requester.wait(clock::now(), timeout.client_body);
        return Ok(reply::send_text(session, exchange, timeout.client_body).await?);
    }
    let head = std::mem::take(&mut exchange.reply);
    let framing = Framing::on(session.stream.is_muxed(), framing.body);
    let mut sending = Sending::new(session, framing, head, timeout.client_body);
    loop {
        // The head waits for the first content, to be sent together with it, if that has already arrived.
        if !reader.has_piece() {
            sending.flush().await?;
        }
        let session = sending.session();
        session.requester.wait(clock::now(), timeout.stream + FETCH_GRACE);
        match await_piece(session, reader).await? {
            Piece::Content(content) if content.is_empty() => {}
            Piece::Content(content) => {
                exchange.ledger.bytes_sent += content.len() as u64;
                sending.piece(content).await?;
            }
            Piece::End => break,
            Piece::Broken => return Err(Failure::BackendClosed(Awaited::Backend)),
            Piece::Left => return Err(Failure::ClientStalled),
        }
    }
    let trailers = reader.trailers();
    // Fields that are removed from the head must not come back as trailers.
    let dropped = edits::of(forwarding.listener, exchange).and_then(Edits::dropped_of_response);
    let goes = |field: &Field<'_>| {
        dropped.as_ref().is_none_or(|names| !names.drops(field.name))
            && !(is_encoded && is_of_bytes(field.name))
    };
    let fields = || trailers.iter().flat_map(|trailers| trailers.iter()).map(Trailer::field).filter(goes);
    sending.end(fields).await?;
    exchange.reply = sending.into_room();
    Ok(())
}

/// Waits for the next piece, and leaves when the client does: if the response is not stored, nothing else
/// ends the fetch.
async fn await_piece(session: &mut Session, reader: &Reader) -> Result<Piece, Failure> {
    let mut watched = true;
    poll_fn(|context| {
        if let Poll::Ready(piece) = reader.poll_piece(context) {
            return Poll::Ready(Ok(piece));
        }
        if session.requester.deadline.has_passed() {
            return Poll::Ready(Err(session.requester.judge(Failure::StreamTimeout { is_owed: false })));
        }
        if watched {
            watched = session.requester.look_at(&mut session.stream, context)? == Sight::Quiet;
        }
        Poll::Pending
    })
    .await
}
