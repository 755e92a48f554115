//! Asks a service in another pool whether a request may pass. The question goes the way of all requests to
//! pools, with the pool's balancing, health checks, connections, timers and retries.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_http::{AddedField, Conditions, Field, KnownHeader, ResponseHead, Violation};
use weir_io::buffers::LARGE;
use weir_io::clock;
use weir_io::stream::{Duplex as _, Sight};

use super::{AuthService, Refused, UserFacts, put_line, question};
use crate::http::ask::{Answered, Call};
use crate::http::collect::{self, Incoming};
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::Forwarding;
use crate::http::muxed::confirm;
use crate::http::pump::Pump;
use crate::http::request;
use crate::http::requester::Recipient;
use crate::http::session::Session;
use crate::http::sink::{Framing, Parts, Sink};
use crate::http::stream::Stream;
use crate::http::upload::Upload;
use crate::worker::WorkerListener;

/// Asks about the request in `exchange`, unless the answer is remembered. `Ok(None)` lets it pass, with the
/// facts about the user in `exchange.user`.
///
/// # Errors
/// There is no answer, or none that makes sense.
pub async fn ask(
    session: &mut Session,
    listener: &Rc<WorkerListener>,
    exchange: &mut Exchange,
    service: &AuthService,
) -> Result<Option<Refused>, Failure> {
    let known = service.remembered.as_deref();
    let known = known.map(|memory| (memory, question::tag(&session.requester, exchange, service, memory)));
    if let Some((memory, tag)) = &known
        && memory.recall(tag, exchange.ledger.nearly_now(), &mut exchange.user)
    {
        return Ok(None);
    }
    await_handshake(session, exchange, service).await?;
    let mut asked = Exchange::take();
    asked.begin(clock::now());
    let said = about(session, listener, exchange, (service, &mut asked)).await;
    asked.give_back();
    match (&said, known) {
        (Ok(Said { refused: None, sets_cookie: false }), Some((memory, tag))) => {
            let forgotten = memory.keep(tag, clock::now(), &exchange.user);
            listener.shared.cells.of(session.requester.worker.number).auth_forgotten.add(forgotten);
        }
        (Ok(_), _) => {}
        // Facts about the user from an incomplete answer do not count.
        (Err(_), _) => exchange.user.clear(),
    }
    said.map(|said| said.refused)
}

/// Makes early data wait for the end of the handshake: somebody who replays a client's first flight must not
/// have the service asked in that client's name. The service may count requests, or accept one-time passwords
/// (RFC 8470 section 3, threat C7).
async fn await_handshake(
    session: &mut Session,
    exchange: &mut Exchange,
    service: &AuthService,
) -> Result<(), Failure> {
    let Session { requester, stream, .. } = session;
    if exchange.early
        && let Some(stream) = stream.as_muxed()
    {
        requester.wait(clock::now(), service.timeout);
        confirm(stream, &requester.deadline).await?;
        exchange.early = false;
    }
    Ok(())
}

/// A service's answer.
struct Said {
    /// `None` if it lets the request pass.
    refused: Option<Refused>,
    /// Whether it sets a cookie, which is only for this client, once.
    sets_cookie: bool,
}

async fn about(
    session: &mut Session,
    listener: &Rc<WorkerListener>,
    exchange: &mut Exchange,
    (service, asked): (&AuthService, &mut Exchange),
) -> Result<Said, Failure> {
    let Session { requester: of_client, stream, .. } = session;
    let mut text = Vec::new();
    if !question::write(
        of_client,
        exchange,
        service,
        &listener.compiled.limits,
        (&mut text, &mut asked.request),
    ) {
        return Err(Failure::AuthUnavailable);
    }
    let mut requester = of_client.beside(exchange.ledger.client(of_client)).await;
    requester.begin_total(clock::now(), service.timeout);
    requester.end_by(of_client.last_moment());
    let mut buffer = requester.buffers.borrow(text.len()).ok_or(Failure::OutOfMemory)?;
    buffer.append(&text);
    requester.buffer = Some(buffer);
    let pool = listener.pools.get(service.pool).ok_or(Failure::AuthUnavailable)?.clone();
    let forwarding = Forwarding::new(listener, pool, None);
    asked.ledger.pool = Some(forwarding.pool.clone());
    asked.pool = Some(service.pool);
    asked.is_question = true;
    asked.request_id.clone_from(&exchange.request_id);

    let facts = request::serialise(&requester, asked, &forwarding, Conditions::AsSent)?;
    request::take_head(&mut requester, asked);
    let mut asker = Asker {
        client: stream,
        content: Vec::new(),
        most: service.body_limit_bytes as usize,
        is_too_large: false,
    };
    let (upload, recipient) = (&mut Upload::none(), &mut asker);
    let call = Call {
        requester: &requester,
        recipient,
        exchange: asked,
        forwarding: &forwarding,
        facts: &facts,
        upload,
        try_until: std::time::Duration::MAX,
        leaves_silent: false,
        race: None,
    };
    let mut answered = call.ask().await?;
    let status = asked.response.status();
    if status == 101 {
        return Err(Failure::BadResponse(Violation::UpgradeNotNamed));
    }
    if answered.needs_buffer(&asked.response) && !requester.buffers.has_room(LARGE) {
        return Err(Failure::OutOfMemory);
    }
    let reader = answered.body_reader(&asked.response, forwarding.limits());
    let Answered { chosen, connection, mut received } = answered;
    let sets_cookie = asked.response.values(KnownHeader::SetCookie, received.filled()).next().is_some();
    let told = match status {
        200..=299 => {
            note_user(&asked.response, received.filled(), service, &mut exchange.user);
            None
        }
        300..=499 => Some(fields_of(&asked.response, received.filled())),
        _ => return Err(Failure::AuthUnavailable),
    };
    received.consume(asked.response.head_bytes());
    let framing = Framing::on(!asked.response.body().is_empty(), asked.response.body());
    let download = Pump::new(reader, framing, Some(received), None);
    let incoming = Incoming { chosen, connection, download };
    let ended = collect::content(&mut asker, &requester, asked, &forwarding, incoming).await;
    if asker.is_too_large {
        return Err(Failure::AuthUnavailable);
    }
    // An incomplete answer does not count, even if what has arrived would let the request pass.
    ended?;
    let refused = told.map(|fields| Refused { status, fields, content: asker.content });
    Ok(Said { refused, sets_cookie })
}

/// Stores the facts about the user from the answer.
fn note_user(head: &ResponseHead, text: &[u8], service: &AuthService, user: &mut UserFacts) {
    let is_in = |names: &[Box<str>], field: &Field<'_>| {
        names.iter().find(|name| field.name.eq_ignore_ascii_case(name.as_bytes())).cloned()
    };
    for field in head.end_to_end_fields(text) {
        if let Some(name) = is_in(&service.to_backend, &field) {
            put_line(&mut user.to_backend, &name, field.value);
        }
        if let Some(name) = is_in(&service.to_client, &field) {
            put_line(&mut user.to_client, &name, field.value);
        }
        if user.name.is_empty()
            && service.user.as_deref().is_some_and(|name| field.name.eq_ignore_ascii_case(name.as_bytes()))
        {
            user.name.extend_from_slice(field.value);
        }
    }
}

/// Fields that Weir writes itself in its own answers.
const WRITTEN: [KnownHeader; 5] = [
    KnownHeader::Date,
    KnownHeader::XRequestId,
    KnownHeader::AltSvc,
    KnownHeader::Via,
    KnownHeader::ContentLength,
];

fn fields_of(head: &ResponseHead, text: &[u8]) -> Vec<AddedField> {
    let fields = head.end_to_end_fields(text).filter(|field| !WRITTEN.contains(&field.known));
    fields.filter_map(|field| AddedField::new(field.name, field.value).ok()).collect()
}

/// Receives the answer into memory, and watches meanwhile whether the client that it is about is still there.
struct Asker<'s> {
    client: &'s mut Stream,
    content: Vec<u8>,
    /// Most bytes of content.
    most: usize,
    /// Whether the content was larger.
    is_too_large: bool,
}

impl Recipient for Asker<'_> {
    /// The service gets nothing of the client's body, but the client may send it meanwhile.
    fn gather_body(&mut self, context: &mut Context<'_>) {
        self.client.gather(context);
    }

    fn poll_present(&mut self, context: &mut Context<'_>) -> io::Result<Sight> {
        Stream::poll_present(self.client, context)
    }
}

impl Sink for Asker<'_> {
    fn poll_take(&mut self, _: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>> {
        if self.content.len() + parts.content.len() > self.most {
            self.is_too_large = true;
            return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        self.content.extend_from_slice(parts.content);
        Poll::Ready(Ok(parts.content.len()))
    }
}
