//! Heads of responses to a client, in whichever version of HTTP it speaks.
//!
//! On HTTP/1.1 the head is text, which waits in `exchange.reply` so that it is sent together with the content
//! that is there. On a stream the fields go to the encoder of its connection at once, which sends them
//! together with what follows soon.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_http::h1::encode;
use weir_http::{
    AddedField, Field, FieldEdits, Method, OwnAnswer, OwnResponse, RequestHead, ResponseContext,
    ResponseHead, SentFraming, Version, continue_fields, response_fields, write_response,
};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::Sight;
use weir_io::wait::send_all;
use weir_io::wait::{WaitError, timed_out};

use crate::http::date;
use crate::http::edit_table::Edits;
use crate::http::edits;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Beside, Forwarding};
use crate::http::ledger::Ledger;
use crate::http::requester::{Recipient, Requester};
use crate::http::response_pace::ResponsePace;
use crate::http::session::Session;
use crate::http::stream::Stream;
use crate::worker::WorkerListener;

/// Content of Weir's own answers up to this size, in bytes, is copied after the head on HTTP/1.1: one send
/// costs less than two.
const COPIED_BYTES: usize = 16 << 10;

/// Sends `100 Continue` (RFC 9110 §10.1.1).
pub async fn send_continue(client: &mut Stream, deadline: &Deadline) -> Result<(), WaitError> {
    if let Some(stream) = client.as_muxed() {
        let mut head = stream.head();
        continue_fields(&mut |name, value| head.field(name, value));
        return Ok(stream.send_head(head, false)?);
    }
    let mut interim = Vec::with_capacity(32);
    encode::write_continue(&mut interim);
    send_all(client, &interim, deadline, || {}).await
}

/// Whether an interim response is passed on to the client, which must support it (RFC 9110 §15.2). 100 is not
/// passed on: Weir has answered the client's expectation itself.
pub fn passes_on(interim: &ResponseHead, client_version: Version) -> bool {
    client_version >= Version::Http11 && interim.status() != 100
}

impl Recipient for Stream {
    #[inline]
    fn stream(&mut self) -> Option<&mut Stream> {
        Some(self)
    }

    fn poll_present(&mut self, context: &mut Context<'_>) -> io::Result<Sight> {
        Stream::poll_present(self, context)
    }

    async fn pass_on(
        &mut self,
        requester: &Requester,
        exchange: &mut Exchange,
        edits: Option<&Edits>,
        received: &[u8],
    ) -> Result<(), Failure> {
        let Exchange { request, response, reply, rendered, .. } = exchange;
        let edits = edits.and_then(|edits| edits.of_response(rendered));
        let context = ResponseContext::new(request.version(), request.method(), true);
        let context = ResponseContext { edits, ..context };
        if let Some(stream) = self.as_muxed() {
            let mut head = stream.head();
            response_fields(response, received, &context, &mut |name, value| head.field(name, value));
            return stream.send_head(head, false).map_err(|_| Failure::ClientClosed);
        }
        reply.clear();
        write_response(response, received, &context, reply);
        let sent = send_all(self, reply, &requester.deadline, || {}).await;
        reply.clear();
        sent.map_err(Failure::from)
    }
}

/// Writes the head in `exchange.response` into `exchange.reply`, or sends it if the client has a stream.
/// Gives the framing of the content.
pub fn write_head(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    received: &[u8],
    keep_alive: bool,
    beside: Beside<'_>,
) -> Result<SentFraming, Failure> {
    if exchange.ledger.cache.result.is_some() {
        exchange.ledger.cache.answered(exchange.response.status());
    }
    exchange.ledger.note_response(forwarding.listener, &exchange.response, received);
    set_pace(session, forwarding);
    let Exchange { request, response, reply, reply_head_bytes, request_id, ledger, .. } = exchange;
    let edits = edits::of_response(forwarding.listener, exchange.route, exchange.pool, &exchange.rendered);
    let context = ResponseContext {
        sticky: beside.sticky,
        websocket_accept: beside.websocket_accept,
        negotiated: beside.negotiated,
        ..context(forwarding, request, keep_alive, request_id, ledger, edits)
    };
    put_head(session, response, received, context, reply, reply_head_bytes).map_err(|_| Failure::ClientClosed)
}

/// Sets how fast the response goes to its client, before its head is written.
#[inline]
pub fn set_pace(session: &mut Session, forwarding: &Forwarding<'_>) {
    let bandwidth = forwarding.route.and_then(|route| route.bandwidth.as_ref());
    let worker = session.requester.worker.number;
    let pace = bandwidth.map(|it| ResponsePace::new(it, &forwarding.listener.shared, worker));
    session.stream.set_pace(pace);
}

/// The settings for the heads of all responses to a client, whoever answers.
pub fn context<'a>(
    forwarding: &'a Forwarding<'_>,
    request: &RequestHead,
    keep_alive: bool,
    request_id: &'a [u8],
    ledger: &'a Ledger,
    edits: Option<FieldEdits<'a>>,
) -> ResponseContext<'a> {
    ResponseContext {
        edits,
        alternative: alternative(forwarding.listener, request.version()),
        request_id,
        cache: ledger.cache.fields(),
        ..ResponseContext::new(request.version(), request.method(), keep_alive)
    }
}

/// Writes a head into `reply`, or sends it if the client has a stream and counts its bytes. Gives the framing
/// of the content.
#[inline]
pub fn put_head(
    session: &mut Session,
    head: &ResponseHead,
    text: &[u8],
    context: ResponseContext<'_>,
    reply: &mut Vec<u8>,
    reply_head_bytes: &mut u64,
) -> io::Result<SentFraming> {
    reply.clear();
    let stream = session.stream.as_muxed();
    let write = |date: &[u8]| {
        let context = ResponseContext { date, ..context };
        let Some(stream) = stream else { return Ok(write_response(head, text, &context, reply)) };
        let mut parts = stream.head();
        let framing = response_fields(head, text, &context, &mut |name, value| {
            *reply_head_bytes += text_bytes(name, value);
            parts.field(name, value);
        });
        // An answer to HEAD from the cache has the content's length, but none of the content.
        let is_last = framing.body.is_empty() || context.request_method == Method::Head;
        stream.send_head(parts, is_last && head.status() != 101)?;
        Ok(framing)
    };
    let has_date = head.value(weir_http::KnownHeader::Date, text).is_some();
    if has_date { write(b"") } else { date::now(write) }
}

/// Writes an answer of Weir's own into `exchange.reply`; if the client has a stream, its head is sent and
/// only the content is left there. Gives the content that is sent after it without being copied; [`send_own`]
/// sends what is left, and that content.
pub fn begin_own<'a>(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    answer: &OwnAnswer<'a>,
    keep_alive: bool,
) -> io::Result<&'a [u8]> {
    edits::prepare(&session.requester, listener, exchange);
    let Exchange { request, reply, reply_head_bytes, request_id, route, pool, rendered, ledger, .. } =
        exchange;
    reply.clear();
    session.stream.set_pace(None);
    let stream = session.stream.as_muxed();
    let edits = edits::of_response(listener, *route, *pool, rendered);
    date::now(|date| {
        let own = OwnResponse {
            keep_alive,
            version: request.version(),
            // The method is known even for a refused request, unless the method itself could not be parsed.
            head_only: request.method() == Method::Head,
            request_id,
            date,
            alternative: alternative(listener, request.version()),
            edits,
        };
        let Some(stream) = stream else {
            let content = answer.write(&own, COPIED_BYTES, reply);
            ledger.head_bytes_sent = (reply.len() - content) as u64;
            return Ok(answer.lent(&own, COPIED_BYTES));
        };
        let mut head = stream.head();
        let mut field = |name: &[u8], value: &[u8]| {
            *reply_head_bytes += text_bytes(name, value);
            head.field(name, value);
        };
        answer.visit(&own, &mut field, reply);
        ledger.head_bytes_sent = *reply_head_bytes;
        let lent = answer.lent(&own, 0);
        stream.send_head(head, reply.is_empty() && lent.is_empty())?;
        Ok(lent)
    })
}

/// Sends what is in `exchange.reply`. The client may take none of it for `patience`, which starts when the
/// deadline was set.
#[inline]
pub async fn send_text(
    session: &mut Session,
    exchange: &Exchange,
    patience: Duration,
) -> Result<(), WaitError> {
    let Session { stream, requester, .. } = session;
    let renew = || requester.wait(clock::now(), patience);
    send_all(stream, &exchange.reply, &requester.deadline, renew).await
}

/// Sends what [`begin_own`] left, the `lent` content, and the end.
pub async fn send_own(session: &mut Session, exchange: &mut Exchange, lent: &[u8]) -> Result<(), WaitError> {
    exchange.ledger.leave_places();
    for bytes in [&exchange.reply[..], lent].into_iter().filter(|bytes| !bytes.is_empty()) {
        send_all(&mut session.stream, bytes, &session.requester.deadline, || {}).await?;
    }
    finish(session, std::iter::empty).await
}

/// Ends the message if that takes more than its last byte.
pub async fn finish<'t, T: Iterator<Item = Field<'t>>>(
    session: &mut Session,
    trailers: impl Fn() -> T,
) -> Result<(), WaitError> {
    let Session { stream, requester: Requester { deadline, .. }, .. } = session;
    poll_fn(|context| match stream.poll_finish(context, trailers()) {
        Poll::Ready(finished) => Poll::Ready(finished.map_err(WaitError::Broken)),
        Poll::Pending => timed_out(deadline),
    })
    .await
}

/// The `alt-svc` for a client that speaks `version`: one that speaks HTTP/3 does not need it.
fn alternative(listener: &WorkerListener, version: Version) -> Option<&AddedField> {
    listener.compiled.alternative.as_ref().filter(|_| version != Version::Http3)
}

/// The size of a field for logs and counters, in bytes: its text as in HTTP/1.1, because its encoded size
/// says nothing.
fn text_bytes(name: &[u8], value: &[u8]) -> u64 {
    (name.len() + value.len() + 4) as u64
}
