//! Forwards a request to a pool: writes it anew, chooses, tries, tries again where that is safe and useful.
//!
//! Waits that most exchanges never come to (errors, queues, connecting, large bodies, tunnels) are boxed here and further
//! down: a session's future is as large as its largest path, and every idle connection holds one.

use std::task::Context;

use weir_config::RetryOn;
use weir_http::{
    BodyLength, BodyReader, KnownHeader, Query, RequestContext, Scheme, Violation, request_fields,
    write_request,
};
use weir_io::buffers::{Buffer, SMALL};
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_io::stream::Sight;
use weir_state::key::{KeySource, choice_key};

use crate::backends::Chosen;
use crate::http::answer;
use crate::http::attempt::{self, Answered, Failed};
use crate::http::compress;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::h2;
use crate::http::handshake::Handshake;
use crate::http::pump::{Framing, Pump};
use crate::http::respond;
use crate::http::screening;
use crate::http::session::{Session, limits_of};
use crate::http::sqli;
use crate::http::sticky::{self, Sticky};
use crate::http::upload::{self, Upload};
use crate::reach::{Attempt, Reach, Verdict, Wish};

/// Most bytes of a body that leave together with the head.
const WITH_HEAD_BYTES: usize = SMALL;

/// Runs the exchange from here to its end.
pub async fn run(session: &mut Session, exchange: &mut Exchange, forwarding: &Forwarding<'_>) -> After {
    if let Err(failure) = screening::at_origin(session, exchange, forwarding) {
        return Box::pin(answer::failure(session, forwarding.listener, exchange, &failure)).await;
    }
    let begun = serialise(session, exchange, forwarding)
        .and_then(|facts| Ok((begin_upload(session, exchange, forwarding, &facts)?, facts)));
    let (mut upload, mut facts) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            return Box::pin(answer::failure(session, forwarding.listener, exchange, &failure)).await;
        }
    };
    if let Some(kind) = facts.inspected.take()
        && let Err(failure) =
            Box::pin(sqli::body(session, exchange, forwarding, (&facts, &kind), &mut upload)).await
    {
        return Box::pin(answer::failed_exchange(session, forwarding, exchange, upload, &failure)).await;
    }
    let mut reach = Reach::begin(&forwarding.pool, facts.wish, exchange.ledger.head);
    let mut only_new = false;
    loop {
        let chosen = match choose_backend(session, exchange, forwarding, &mut reach).await {
            Ok(chosen) => chosen,
            Err(failure) => {
                return Box::pin(answer::failed_exchange(session, forwarding, exchange, upload, &failure))
                    .await;
            }
        };
        exchange.ledger.note_backend(&chosen);
        let tried =
            attempt::make(session, exchange, forwarding, &facts, &chosen, &mut upload, only_new).await;
        let attempt = Attempt {
            idempotent: facts.method.is_idempotent(),
            replayable: upload.is_replayable(),
            reused: matches!(tried, Err(Failed { reused: true, .. })),
            kind: match &tried {
                Ok(_) => Some(RetryOn::Status(exchange.response.status())),
                Err(failed) => failed.failure.retried_as(),
            },
        };
        let cells = forwarding.listener.shared.cells.of(session.worker.number);
        let verdict = reach.after(&forwarding.pool, &chosen, &attempt, cells);
        observe(session, exchange, &chosen, &tried, verdict);
        only_new = match verdict {
            Verdict::Again => false,
            Verdict::Reconnect => true,
            Verdict::Leave => {
                return match tried {
                    Ok(answered) => {
                        facts.sticky.answered_by(&chosen);
                        respond::run(session, exchange, forwarding, &facts, chosen, answered, upload).await
                    }
                    Err(failed) => {
                        let failure = &failed.failure;
                        Box::pin(answer::failed_exchange(session, forwarding, exchange, upload, failure))
                            .await
                    }
                };
            }
        };
        exchange.ledger.retries = reach.retries();
        upload.retry(clock::now());
    }
}

/// Tells passive health and the latency average what became of an attempt, and counts it.
fn observe(
    session: &Session,
    exchange: &Exchange,
    chosen: &Chosen,
    tried: &Result<Answered, Failed>,
    verdict: Verdict,
) {
    let cells = chosen.backend().cells();
    let now = match tried {
        Ok(_) => exchange.ledger.response_at(),
        Err(_) => clock::now(),
    };
    match tried {
        // A connection that aged out says nothing about the backend.
        _ if verdict == Verdict::Reconnect => {}
        Ok(_) => {
            let status = exchange.response.status();
            cells.requests[usize::from(status / 100).min(5)].increment();
            match status {
                502..=504 => {
                    chosen.observe_failure(&session.worker, now, || format!("answered {status}"));
                }
                _ => chosen.observe_success(now, exchange.ledger.backend_header.unwrap_or_default()),
            }
        }
        Err(failed) if failed.failure.blames_backend() => {
            cells.requests[0].increment();
            chosen.observe_failure(&session.worker, now, || failed.failure.of_backend());
        }
        Err(_) => {}
    }
}

/// Writes the request for the backend into `exchange.outgoing`; from then on the bytes received are not needed.
///
/// # Errors
/// Backends are spoken to in HTTP/2, which cannot carry it.
fn serialise(
    session: &Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
) -> Result<Facts, Failure> {
    let received = session.buffer.as_ref().map_or(&[][..], Buffer::filled);
    let request = &exchange.request;
    // An upgrade with a body would leave two readings of where the tunnel begins (A18).
    let upgrade = request.upgrade(received).filter(|_| request.body().is_empty());
    if let Some(protocol) = upgrade {
        exchange.upgrade.extend_from_slice(protocol);
    }
    let mut context = RequestContext::new(&session.identity, &exchange.request_id);
    context.path = forwarding.rewritten.then_some(&exchange.path);
    if let Some(asked) = exchange.key.parts().filter(|_| exchange.is_keyed) {
        // What is not in the key must not choose an answer for all (threat E1).
        if asked.query != request.query(received) {
            context.query = Query::Of(asked.query);
        }
        context.host = Some(asked.authority).filter(|host| request.host(received) != Some(*host));
    }
    context.early = exchange.early;
    context.upgrade = upgrade.is_some();
    let over_h2 = forwarding.over_h2();
    let handshake = upgrade.map_or(Handshake::Theirs, |protocol| {
        Handshake::of(request, received, protocol, over_h2, || session.worker.draw())
    });
    context.websocket_key = handshake.key();
    let pool = &forwarding.pool.shared.config;
    //= https://www.rfc-editor.org/rfc/rfc9112#section-9.3
    //# A client that does not support persistent connections MUST send the
    //# "close" connection option in every request message.
    context.close = pool.send_proxy.is_some() || pool.keep_alive.max == 0;
    let any_backend = forwarding.pool.backends.first().map_or("", |backend| backend.shared.address.as_str());
    context.default_host = any_backend.as_bytes();
    context.backend_scheme = if pool.tls.is_some() { Scheme::Https } else { Scheme::Http };
    if let Some(route) = forwarding.route {
        context.added = &route.request_fields;
    }
    if let Some(fetch) = session.stream.as_fetch() {
        context.conditions = fetch.conditions();
    }
    let is_upgrade = if over_h2 {
        let mut head = h2::RequestParts::default();
        let connect = request_fields(request, received, &context, &mut |name, value| head.field(name, value));
        // No backend would take it: a try would cost the pool's retry budget, and a backend its good name.
        let head = head.into_request().map_err(|_| Failure::BadRequest(Violation::TargetNotForHttp2))?;
        exchange.stream_head = Some(head);
        connect.is_some()
    } else {
        write_request(request, received, &context, &mut exchange.outgoing);
        upgrade.is_some()
    };
    let cookies = || {
        request.fields(received).filter(|field| field.known == KnownHeader::Cookie).map(|field| field.value)
    };
    let source = KeySource {
        client: exchange.ledger.client(session).address.ip(),
        path: request.path(received),
        target: request.target(received),
        header: &|name| request.combined(name, received),
        cookie: &|name| sticky::cookie(cookies(), name),
    };
    let sticky = Sticky::of(pool, cookies());
    Ok(Facts {
        method: request.method(),
        version: request.version(),
        keep_alive: request.keep_alive(),
        upgrade: is_upgrade,
        extended_connect: request.is_extended_connect(),
        handshake,
        expect_continue: request.expect_continue(),
        inspected: sqli::body_kind(forwarding.sqli(), request, received).ok().flatten(),
        limits: limits_of(&forwarding.listener.shared.config.http().limits),
        coding: compress::wish(forwarding.compress(), request, received),
        wish: Wish { key: choice_key(pool, &source), sticky: sticky.wanted },
        sticky,
    })
}

/// Takes the head off the client's buffer and, with it, what came of the body.
fn begin_upload(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
) -> Result<Upload, Failure> {
    let head_bytes = exchange.request.head_bytes();
    exchange.forwarded = true;
    if let Some(buffer) = &mut session.buffer {
        buffer.consume(head_bytes);
        if buffer.is_empty() {
            session.buffer = None;
        }
    }
    let body = exchange.request.body();
    if body.is_empty() {
        return Ok(Upload::none());
    }
    let limit = forwarding.route.and_then(|route| route.body_limit_bytes);
    let reader = match session.stream.is_muxed() {
        true => BodyReader::of_stream(body),
        false => BodyReader::new(body, &facts.limits),
    };
    let announced = if body.is_open_ended() { BodyLength::Chunked } else { body };
    let framing = Framing::on(forwarding.over_h2(), announced);
    let mut pump = Pump::new(reader, framing, session.buffer.take(), limit);
    if facts.inspected.is_some() {
        pump.keep_copy();
        return Ok(Upload::of(pump, exchange.ledger.head));
    }
    pump.take_received(&mut exchange.outgoing, WITH_HEAD_BYTES).map_err(upload::failure_of)?;
    if session.stream.is_ended() && pump.waits_for_source() {
        pump.end_source(&mut session.stream).map_err(upload::failure_of)?;
        pump.take_received(&mut exchange.outgoing, WITH_HEAD_BYTES).map_err(upload::failure_of)?;
    }
    Ok(Upload::of(pump, exchange.ledger.head))
}

/// Chooses a backend; in line where all are busy.
async fn choose_backend(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    reach: &mut Reach,
) -> Result<Chosen, Failure> {
    let now = exchange.ledger.nearly_now();
    let Session { worker, deadline, stream, .. } = session;
    let mut watched = true;
    // One that only half-closed is taken for gone too, as nothing has been sent on for it. Most of those have left, and in a queue
    // that is when the backends can least afford to work for nobody.
    let client_gone = |context: &mut Context<'_>| {
        stream.gather(context);
        if !watched {
            return false;
        }
        let seen = stream.poll_present(context);
        watched = matches!(seen, Ok(Sight::Quiet));
        matches!(seen, Ok(Sight::Ended) | Err(_))
    };
    match reach.choose(worker, &forwarding.pool, deadline, now, client_gone).await {
        Ok(got) => {
            if got.queued.is_some() {
                exchange.ledger.queue = got.queued;
            }
            Ok(got.chosen)
        }
        Err(unavailable) => {
            exchange.ledger.queue = unavailable.queued().or(exchange.ledger.queue);
            Err(unavailable.into())
        }
    }
}
