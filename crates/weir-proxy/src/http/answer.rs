//! Answers that Weir makes itself: errors, redirects, fixed responses, and the proof of a domain for an ACME
//! authority.

use weir_http::{AddedField, ErrorForm, Method, OwnAnswer, RequestHead};
use weir_io::buffers::Held;
use weir_io::clock;
use weir_stats::table::{End, Rejected};
use weir_template::Template;

use crate::http::auth::Refused;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::pages;
use crate::http::reply;
use crate::http::request_values::{self, Values};
use crate::http::session::Session;
use crate::worker::WorkerListener;

/// Answers a request with an error. Nothing of a response has been sent to the client: the request was not
/// forwarded, or that failed.
pub async fn failure(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    failure: &Failure,
) -> After {
    let cells = listener.shared.cells.of(session.requester.worker.number);
    if let Some(rejected) = failure.rejected() {
        cells.count_rejected(rejected);
    }
    if let (Failure::BadRequest(violation), Some(stream)) = (failure, session.stream.as_muxed()) {
        stream.note_violation(*violation);
    }
    let Some(status) = failure.status() else {
        exchange.ledger.close(&session.requester, listener, &exchange.request_id, failure.end());
        return After::Reset;
    };
    let keep = !failure.closes_client() && may_keep(session, exchange);
    let routes = &listener.compiled.routes;
    let route = exchange.route.and_then(|number| routes.route(number));
    let pages = match failure {
        Failure::Maintenance { .. } => routes.closing(route).pages.as_deref(),
        _ => routes.pages(route),
    };
    let mut form = pages::form(pages, status, exchange.wants);
    if let ErrorForm::Grpc { is_late, .. } = &mut form {
        *is_late = matches!(failure, Failure::RequestTotal(_));
    }
    let answer = OwnAnswer::Error {
        status,
        word: failure.word(),
        retry_after_seconds: failure.retry_after_seconds(),
        form,
        fields: failure.fields(),
    };
    // A gRPC call is answered with 200; the counters should show the real status.
    if failure.is_by_limit() {
        exchange.ledger.passage.forget_charges();
    }
    exchange.ledger.answers(status);
    send(session, listener, exchange, &answer, failure.end(), keep).await
}

/// Answers with a redirect.
pub async fn redirect(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    to: &Template,
    status: u16,
) -> After {
    let location = request_values::location(to, &Values::of(&session.requester, listener, exchange));
    let keep = may_keep(session, exchange);
    let answer = OwnAnswer::Redirect { status, location: &location };
    send(session, listener, exchange, &answer, End::Responded, keep).await
}

/// Answers with a fixed response from the config.
pub async fn respond(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    status: u16,
    body: &str,
    content_type: &str,
) -> After {
    let keep = may_keep(session, exchange);
    let fields: Vec<_> = AddedField::new(b"content-type", content_type.as_bytes()).into_iter().collect();
    let answer = OwnAnswer::Simple { status, fields: &fields, body: body.as_bytes() };
    send(session, listener, exchange, &answer, End::Responded, keep).await
}

/// Answers a request that authentication did not let pass, as the service says.
pub async fn denied(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    refused: &Refused,
) -> After {
    listener.shared.cells.of(session.requester.worker.number).count_rejected(Rejected::AuthDenied);
    let keep = may_keep(session, exchange);
    let answer =
        OwnAnswer::Simple { status: refused.status, fields: &refused.fields, body: &refused.content };
    // The content is for this client alone, and the client may be slow to read it.
    let held = Held::new(&session.requester.buffers);
    held.set(refused.content.capacity() as u64);
    send(session, listener, exchange, &answer, End::AuthDenied, keep).await
}

/// Proves to a certificate authority that the host is ours (RFC 8555 §8.3).
pub async fn prove(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    authorization: &str,
) -> After {
    let keep = may_keep(session, exchange);
    let fields: Vec<_> = AddedField::new(b"content-type", b"application/octet-stream").into_iter().collect();
    let answer = OwnAnswer::Simple { status: 200, fields: &fields, body: authorization.as_bytes() };
    send(session, listener, exchange, &answer, End::Responded, keep).await
}

/// Answers TRACE or OPTIONS whose `max-forwards` is used up (RFC 9110 §7.6.2).
pub async fn last(session: &mut Session, listener: &WorkerListener, exchange: &mut Exchange) -> After {
    let keep = may_keep(session, exchange);
    let head = exchange.request.clone();
    let received =
        session.requester.buffer.as_ref().map(|buffer| buffer.filled().to_vec()).unwrap_or_default();
    let answer = match head.method() {
        Method::Options => OwnAnswer::Options,
        _ => OwnAnswer::Trace { head: &head, buffer: &received },
    };
    send(session, listener, exchange, &answer, End::Responded, keep).await
}

/// Whether the client's connection can be kept: the client wants that, and no body of its request is left
/// unread.
pub fn may_keep(session: &Session, exchange: &Exchange) -> bool {
    let body_left = exchange.body_left || (!exchange.forwarded && !exchange.request.body().is_empty());
    exchange.request.keep_alive()
        && exchange.request.is_complete()
        && !body_left
        && session.requester.slot.draining_until().is_none()
}

/// Removes the request that is being answered from the session's buffer, unless it was forwarded, which has
/// done that.
pub fn take_request(session: &mut Session, exchange: &Exchange, keep: bool) {
    if !exchange.forwarded
        && let Some(buffer) = &mut session.requester.buffer
        && keep
    {
        buffer.consume(exchange.request.head_bytes());
        if buffer.is_empty() {
            session.requester.buffer = None;
        }
    }
}

/// Ends an exchange that was answered without a backend's connection; `End::Done` if all was sent that its
/// head announces.
pub fn ended(
    session: &mut Session,
    exchange: &mut Exchange,
    listener: &WorkerListener,
    end: End,
    keep: bool,
) -> After {
    session.idle_since = Some(exchange.ledger.close(&session.requester, listener, &exchange.request_id, end));
    match end {
        End::Done if keep => After::Keep,
        End::Done if !exchange.request.keep_alive() => After::Close,
        End::Done => After::Linger,
        // The client must be able to tell that the answer is incomplete.
        _ => After::Reset,
    }
}

/// The answer that takes the place of one with status 2xx to an extended CONNECT; `None` if `answer` is none:
/// its client would take what follows for the tunnel that it asked for (RFC 8441 §5).
fn without_tunnel<'a>(request: &RequestHead, answer: &OwnAnswer<'a>) -> Option<OwnAnswer<'a>> {
    if !request.is_extended_connect() || !(200..300).contains(&answer.status()) {
        return None;
    }
    Some(match *answer {
        // An error whose form is that of a gRPC call.
        OwnAnswer::Error { status, word, retry_after_seconds, fields, .. } => {
            OwnAnswer::Error { status, word, retry_after_seconds, form: ErrorForm::Text, fields }
        }
        _ => OwnAnswer::error(501, End::NoTunnel.word(), None),
    })
}

/// Sends the answer and ends the exchange.
async fn send(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    answer: &OwnAnswer<'_>,
    end: End,
    keep: bool,
) -> After {
    let refusal = without_tunnel(&exchange.request, answer);
    let (answer, end) = match &refusal {
        Some(refusal) if end == End::Responded => (refusal, End::NoTunnel),
        Some(refusal) => (refusal, end),
        None => (answer, end),
    };
    let began = reply::begin_own(session, listener, exchange, answer, keep);
    take_request(session, exchange, keep);
    if exchange.ledger.status() == 0 {
        exchange.ledger.answers(answer.status());
    }
    let lent_bytes = began.as_ref().map_or(0, |lent| lent.len());
    exchange.ledger.bytes_sent = (exchange.reply.len() + lent_bytes) as u64 + exchange.reply_head_bytes;
    let patience = listener.shared.config.timeout.client_body;
    session.requester.wait(clock::now(), patience);
    let sent = match began {
        Ok(lent) => reply::send_own(session, exchange, lent).await,
        Err(error) => Err(error.into()),
    };
    session.idle_since = Some(exchange.ledger.close(&session.requester, listener, &exchange.request_id, end));
    match sent {
        Err(_) => After::Reset,
        Ok(()) if keep => After::Keep,
        Ok(()) => After::Linger,
    }
}
