//! Sends a stored object: its head is written anew, its content is sent from where it is stored.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use weir_cache::{Body, Coding, Object, RequestFacts};
use weir_http::forward::Negotiated;
use weir_http::{BodyLength, Method, ResponseContext, ResponseHead, SentFraming};
use weir_io::wait::{WaitError, boxed};
use weir_stats::table::End;

use super::follow::replace;
use super::lookup::{Share, share_of};
use super::{encodings, follow};
use crate::http::answer;
use crate::http::compress;
use crate::http::edits;
use crate::http::exchange::{After, Exchange};
use crate::http::forwarding::Forwarding;
use crate::http::reply;
use crate::http::sending::Sending;
use crate::http::session::Session;
use crate::http::sink::Framing;

/// Content up to this size, in bytes, is copied behind the head: one buffer to send costs less than two.
const WITH_HEAD_BYTES: u64 = 1 << 10;

/// Sends what the request gets of `object`. `exchange.cache` already says how the cache answered.
pub async fn send(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    object: Arc<Object>,
    facts: &RequestFacts,
) -> After {
    if forwarding.replaces(object.head().status()) {
        return replace(session, exchange, forwarding, object.head(), object.text()).await;
    }
    let offer = compress::offer(
        forwarding.compress(),
        &exchange.request,
        session.requester.received(),
        object.head(),
        object.text(),
    );
    let share = share_of(session, exchange, &object, facts, offer.as_ref());
    let (coding, negotiated) = match (offer, share) {
        (None, _) => (None, None),
        (Some(offer), Share::Whole) => {
            match encodings::form_of(session, forwarding, &object, facts, &offer) {
                encodings::Form::AsItIs => (None, Some(offer.as_it_is(false))),
                encodings::Form::Kept(coding, negotiated) => (Some(coding), Some(negotiated)),
                encodings::Form::Coming(reader, negotiated) => {
                    let head = follow::Head {
                        head: object.head(),
                        text: object.text(),
                        sticky: None,
                        negotiated: Some(negotiated),
                    };
                    return boxed(|| follow::run(session, exchange, forwarding, &reader, head)).await;
                }
            }
        }
        (Some(offer), share) => (None, Some(offer.as_it_is(share == Share::NotModified))),
    };
    let range = match share {
        _ if facts.method == Method::Head => 0..0,
        Share::Whole => 0..body_of(&object, coding).len(),
        Share::Part { start, end } => start..end,
        Share::NotModified | Share::Unsatisfiable => 0..0,
    };
    let mut content = Content { object, share, coding, range };
    let keep = answer::may_keep(session, exchange);
    let written = write_head(session, exchange, forwarding, &content, negotiated, keep);
    let Ok((framing, status)) = written else {
        return answer::ended(session, exchange, forwarding.listener, End::ClientClosed, false);
    };
    answer::take_request(session, exchange, keep);
    exchange.ledger.answers(status);
    exchange.ledger.head_bytes_sent = exchange.reply.len() as u64 + exchange.reply_head_bytes;
    exchange.ledger.bytes_sent = exchange.ledger.head_bytes_sent + content.length();
    let sent = send_content(session, exchange, forwarding, &mut content).await;
    let end = match &sent {
        Ok(()) => End::Done,
        Err(WaitError::TimedOut) => End::ClientBody,
        Err(WaitError::Broken(_)) => End::ClientClosed,
    };
    if sent.is_err() {
        exchange.ledger.bytes_sent -= content.length();
    }
    answer::ended(session, exchange, forwarding.listener, end, keep && framing.keep_alive)
}

/// Sends the head that was written, and the content.
async fn send_content(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    content: &mut Content,
) -> Result<(), WaitError> {
    let patience = forwarding.timers().client_body;
    session.requester.wait(exchange.ledger.nearly_now(), patience);
    let length = content.length();
    let is_muxed = session.stream.is_muxed();
    if is_muxed && length == 0 {
        return Ok(());
    }
    if is_muxed || length > WITH_HEAD_BYTES {
        let head = std::mem::take(&mut exchange.reply);
        let mut sending =
            Sending::new(session, Framing::on(is_muxed, BodyLength::Length(length)), head, patience);
        let Content { object, coding, range, .. } = content;
        let sent = sending.kept(body_of(object, *coding), range).await;
        exchange.reply = sending.into_room();
        return sent;
    }
    let range = content.range.clone();
    let pieces = body_of(&content.object, content.coding).slices(range.start, range.end);
    pieces.for_each(|piece| exchange.reply.extend_from_slice(piece));
    content.range.start = content.range.end;
    exchange.ledger.leave_places();
    reply::send_text(session, exchange, patience).await
}

/// Writes the head into `exchange.reply`, or sends it if the client has a stream. Gives the framing of the
/// content, and the status.
fn write_head(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    content: &Content,
    negotiated: Option<Negotiated>,
    keep: bool,
) -> io::Result<(SentFraming, u16)> {
    let Exchange { request, response, outgoing, reply, reply_head_bytes, request_id, ledger, .. } = exchange;
    let (head, text): (&ResponseHead, &[u8]) = match content.share {
        Share::Whole => (content.object.head(), content.object.text()),
        _ => (response, outgoing),
    };
    ledger.note_response(forwarding.listener, head, text);
    reply::set_pace(session, forwarding);
    let edits = edits::of_response(forwarding.listener, exchange.route, exchange.pool, &exchange.rendered);
    let context = reply::context(forwarding, request, keep, request_id, ledger, edits);
    let context = ResponseContext { negotiated, ..context };
    let framing = reply::put_head(session, head, text, context, reply, reply_head_bytes)?;
    Ok((framing, head.status()))
}

/// The part of an object's content that is still to be sent.
struct Content {
    object: Arc<Object>,
    share: Share,
    /// The coding of the form that is sent; `None` for the content as stored.
    coding: Option<Coding>,
    range: Range<u64>,
}

impl Content {
    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The content of an object, or its encoded form, which is stored with it.
fn body_of(object: &Object, coding: Option<Coding>) -> &Body {
    let made = coding.and_then(|coding| object.encoded(coding));
    made.unwrap_or(object.body())
}
