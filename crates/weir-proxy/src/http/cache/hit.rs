//! Sends an object: one head written, the content from where it is kept.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use weir_cache::{Object, RequestFacts};
use weir_http::{Method, ResponseContext, ResponseHead, SentFraming};
use weir_stats::table::End;

use super::lookup::{Share, share_of};
use crate::clock;
use crate::http::answer;
use crate::http::exchange::{After, Exchange};
use crate::http::forward::Forwarding;
use crate::http::reply;
use crate::http::session::{Session, due};
use crate::io::{WaitError, send_all, timed_out};

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
    let share = share_of(session, exchange, &object, facts);
    let keep = answer::may_keep(session, exchange);
    let range = match share {
        _ if facts.method == Method::Head => 0..0,
        Share::Whole => 0..object.body().len(),
        Share::Part { start, end } => start..end,
        Share::NotModified | Share::Unsatisfiable => 0..0,
    };
    let is_empty = range.is_empty();
    let written = write_head(session, exchange, forwarding, &object, (share, is_empty), keep);
    let Ok((framing, status)) = written else {
        exchange.ledger.close(session, forwarding.listener, &exchange.request_id, End::ClientClosed);
        return After::Reset;
    };
    answer::take_request(session, exchange, keep);
    let length = range.end - range.start;
    exchange.ledger.status = status;
    exchange.ledger.bytes_sent = exchange.reply.len() as u64 + exchange.reply_head_bytes + length;
    let patience = forwarding.listener.shared.config.timeout.client_body;
    session.deadline.set(due(&session.slot, exchange.ledger.nearly_now(), patience));
    let mut content = Content { object, next: range.start, end: range.end };
    let sent = if session.stream.is_muxed() {
        if is_empty { Ok(()) } else { send_on_stream(session, forwarding, &mut content).await }
    } else if length <= WITH_HEAD_BYTES {
        let pieces = content.object.body().slices(range.start, range.end);
        pieces.for_each(|piece| exchange.reply.extend_from_slice(piece));
        let Session { stream, slot, deadline, .. } = session;
        let sent =
            send_all(stream, &exchange.reply, deadline, || deadline.set(due(slot, clock::now(), patience)));
        content.next = content.end;
        sent.await
    } else {
        send_gathered(session, exchange, forwarding, &mut content).await
    };
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

/// Writes the head into `exchange.reply`, or sends it where the client has a stream.
fn write_head(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    object: &Object,
    (share, is_last): (Share, bool),
    keep: bool,
) -> io::Result<(SentFraming, u16)> {
    let Exchange { request, response, outgoing, reply, reply_head_bytes, request_id, ledger, .. } = exchange;
    let (head, text): (&ResponseHead, &[u8]) = match share {
        Share::Whole => (object.head(), object.text()),
        _ => (response, outgoing),
    };
    let version = request.version();
    let context = ResponseContext {
        added: forwarding.route.map_or(&[], |route| &route.response_fields),
        alternative: reply::alternative(forwarding.listener, version),
        request_id,
        cache: ledger.cache.fields(),
        ..ResponseContext::new(version, request.method(), keep)
    };
    let framing = reply::put_head(session, (head, text), context, |_| is_last, (reply, reply_head_bytes))?;
    Ok((framing, head.status()))
}

/// The part of an object's content that is still to be sent.
struct Content {
    object: Arc<Object>,
    next: u64,
    end: u64,
}

impl Content {
    /// The next bytes, at most to the end of a chunk; `None` at the end.
    fn piece(&self) -> Option<Bytes> {
        if self.next >= self.end {
            return None;
        }
        let mut start = 0;
        for chunk in self.object.body().chunks() {
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
    let Session { stream, slot, deadline, .. } = session;
    let patience = forwarding.listener.shared.config.timeout.client_body;
    let mut head = &exchange.reply[..];
    while !head.is_empty() || content.next < content.end {
        let sent = poll_fn(|context| {
            let mut places = [IoSlice::new(&[]); GATHERED];
            places[0] = IoSlice::new(head);
            let mut count = usize::from(!head.is_empty());
            for bytes in content.object.body().slices(content.next, content.end).take(GATHERED - count) {
                places[count] = IoSlice::new(bytes);
                count += 1;
            }
            match stream.poll_send_slices(context, &places[..count]) {
                Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
                Poll::Pending => timed_out(deadline),
            }
        })
        .await?;
        let of_head = sent.min(head.len());
        head = &head[of_head..];
        content.next += (sent - of_head) as u64;
        if !head.is_empty() || content.next < content.end {
            deadline.set(due(slot, clock::now(), patience));
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
    let Session { stream, slot, deadline, .. } = session;
    let Some(stream) = stream.as_muxed() else { return Ok(()) };
    let patience = forwarding.listener.shared.config.timeout.client_body;
    while let Some(mut piece) = content.piece() {
        let before = piece.len();
        let is_last = content.next + before as u64 == content.end;
        poll_fn(|context| match stream.poll_send_bytes(context, &mut piece, is_last) {
            Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
            Poll::Pending => timed_out(deadline),
        })
        .await?;
        content.next += (before - piece.len()) as u64;
        if content.next < content.end {
            deadline.set(due(slot, clock::now(), patience));
        }
    }
    poll_fn(|context| match stream.poll_finish(context, std::iter::empty()) {
        Poll::Ready(finished) => Poll::Ready(finished.map_err(WaitError::Broken)),
        Poll::Pending => timed_out(deadline),
    })
    .await
}
