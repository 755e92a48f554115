//! Sends an object: one head written, the content from where it is kept.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use weir_cache::{Body, Object, RequestFacts};
use weir_http::forward::Negotiated;
use weir_http::{Method, ResponseContext, ResponseHead, SentFraming};
use weir_io::clock;
use weir_io::wait::send_all;
use weir_io::wait::{WaitError, timed_out};
use weir_stats::table::End;

use super::lookup::{Share, share_of};
use super::{encodings, follow};
use crate::http::answer;
use crate::http::compress;
use crate::http::exchange::{After, Exchange};
use crate::http::forwarding::Forwarding;
use crate::http::reply;
use crate::http::session::Session;

/// Content up to this size is copied behind the head, bytes: one place to send from costs less than two.
const WITH_HEAD_BYTES: u64 = 1 << 10;
/// Places that one send gathers from.
const GATHERED: usize = 8;

/// Sends what the request gets of `object`, whose `exchange.cache` says how it came here.
pub async fn send(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    object: Arc<Object>,
    facts: &RequestFacts,
) -> After {
    let offer = compress::offer(
        forwarding.compress(),
        (&exchange.request, session.requester.received()),
        (object.head(), object.text()),
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
                    return Box::pin(follow::run(session, exchange, forwarding, &reader, head)).await;
                }
            }
        }
        (Some(offer), share) => (None, Some(offer.as_it_is(share == Share::NotModified))),
    };
    let mut content = Content { object, share, coding, next: 0, end: 0 };
    (content.next, content.end) = match share {
        _ if facts.method == Method::Head => (0, 0),
        Share::Whole => (0, content.body().len()),
        Share::Part { start, end } => (start, end),
        Share::NotModified | Share::Unsatisfiable => (0, 0),
    };
    let keep = answer::may_keep(session, exchange);
    let written = write_head(session, exchange, forwarding, &content, negotiated, keep);
    let Ok((framing, status)) = written else {
        return answer::ended(session, exchange, forwarding.listener, (End::ClientClosed, false), false);
    };
    answer::take_request(session, exchange, keep);
    exchange.ledger.status = status;
    let length = content.end - content.next;
    exchange.ledger.bytes_sent = exchange.reply.len() as u64 + exchange.reply_head_bytes + length;
    let sent = send_content(session, exchange, forwarding, &mut content).await;
    let end = match &sent {
        Ok(()) => End::Done,
        Err(WaitError::TimedOut) => End::ClientBody,
        Err(WaitError::Broken(_)) => End::ClientClosed,
    };
    if sent.is_err() {
        exchange.ledger.bytes_sent -= content.end - content.next;
    }
    answer::ended(session, exchange, forwarding.listener, (end, sent.is_ok()), keep && framing.keep_alive)
}

/// Sends what was written of the head, and the content.
async fn send_content(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    content: &mut Content,
) -> Result<(), WaitError> {
    let patience = forwarding.listener.shared.config.timeout.client_body;
    session.requester.wait(exchange.ledger.nearly_now(), patience);
    let length = content.end - content.next;
    if session.stream.is_muxed() {
        return if length == 0 { Ok(()) } else { send_on_stream(session, forwarding, content).await };
    }
    if length > WITH_HEAD_BYTES {
        return send_gathered(session, exchange, forwarding, content).await;
    }
    let pieces = content.body().slices(content.next, content.end);
    pieces.for_each(|piece| exchange.reply.extend_from_slice(piece));
    content.next = content.end;
    exchange.ledger.leave_places();
    let Session { stream, requester, .. } = session;
    send_all(stream, &exchange.reply, &requester.deadline, || requester.wait(clock::now(), patience)).await
}

/// Writes the head into `exchange.reply`, or sends it where the client has a stream. Gives how the content follows, and the status.
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
    let asked = (request.version(), request.method());
    let context = reply::context(forwarding, asked, keep, request_id, ledger);
    let context = ResponseContext { negotiated, ..context };
    let framing = reply::put_head(session, (head, text), context, (reply, reply_head_bytes))?;
    Ok((framing, head.status()))
}

/// The part of an object's content that is still to be sent.
struct Content {
    object: Arc<Object>,
    share: Share,
    /// What it was made into, where it does not go as it is.
    coding: Option<weir_cache::Coding>,
    next: u64,
    end: u64,
}

impl Content {
    fn body(&self) -> &Body {
        // What was made once stays with the object.
        let made = self.coding.and_then(|coding| self.object.encoded(coding));
        made.unwrap_or(self.object.body())
    }

    /// The next bytes, at most to the end of a chunk; `None` at the end.
    fn piece(&self) -> Option<Bytes> {
        if self.next >= self.end {
            return None;
        }
        let mut start = 0;
        for chunk in self.body().chunks() {
            let chunk_end = start + chunk.len() as u64;
            if self.next < chunk_end {
                let from = (self.next - start) as usize;
                let to = (self.end.min(chunk_end) - start) as usize;
                return Some(chunk.slice(from..to));
            }
            start = chunk_end;
        }
        None
    }
}

/// Head and content, gathered from where they are.
async fn send_gathered(
    session: &mut Session,
    exchange: &Exchange,
    forwarding: &Forwarding<'_>,
    content: &mut Content,
) -> Result<(), WaitError> {
    let Session { stream, requester, .. } = session;
    let patience = forwarding.listener.shared.config.timeout.client_body;
    let mut head = &exchange.reply[..];
    while !head.is_empty() || content.next < content.end {
        let sent = poll_fn(|context| {
            let mut places = [IoSlice::new(&[]); GATHERED];
            places[0] = IoSlice::new(head);
            let mut count = usize::from(!head.is_empty());
            for bytes in content.body().slices(content.next, content.end).take(GATHERED - count) {
                places[count] = IoSlice::new(bytes);
                count += 1;
            }
            match stream.poll_send_slices(context, &places[..count]) {
                Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
                Poll::Pending => timed_out(&requester.deadline),
            }
        })
        .await?;
        let of_head = sent.min(head.len());
        head = &head[of_head..];
        content.next += (sent - of_head) as u64;
        if !head.is_empty() || content.next < content.end {
            requester.wait(clock::now(), patience);
        }
    }
    Ok(())
}

/// Content in the frames of a stream, which hold on to it where it is kept.
async fn send_on_stream(
    session: &mut Session,
    forwarding: &Forwarding<'_>,
    content: &mut Content,
) -> Result<(), WaitError> {
    let patience = forwarding.listener.shared.config.timeout.client_body;
    let Session { stream, requester, .. } = &mut *session;
    let Some(stream) = stream.as_muxed() else { return Ok(()) };
    while let Some(mut piece) = content.piece() {
        let before = piece.len();
        let is_last = content.next + before as u64 == content.end;
        poll_fn(|context| match stream.poll_send_bytes(context, &mut piece, is_last) {
            Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
            Poll::Pending => timed_out(&requester.deadline),
        })
        .await?;
        content.next += (before - piece.len()) as u64;
        if content.next < content.end {
            requester.wait(clock::now(), patience);
        }
    }
    reply::finish(session, std::iter::empty).await
}
