//! A request as it goes to backends: written anew once, the same for every attempt.

use weir_http::{
    BodyLength, BodyReader, Conditions, KnownHeader, Query, RequestContext, Scheme, Violation,
    request_fields, write_request,
};
use weir_io::buffers::SMALL;

use crate::http::compress;
use crate::http::edits;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::h2;
use crate::http::handshake::Handshake;
use crate::http::kept;
use crate::http::plan::key_of;
use crate::http::pump::Pump;
use crate::http::request_values::Values;
use crate::http::requester::Requester;
use crate::http::session::{Session, limits_of};
use crate::http::sink::Framing;
use crate::http::sqli;
use crate::http::sticky::Sticky;
use crate::http::upload::{self, Upload};
use crate::reach::Wish;

/// Most bytes of a body that leave together with the head.
const WITH_HEAD_BYTES: usize = SMALL;

/// Writes the request for the backend into `exchange.outgoing`; from then on the bytes received are not
/// needed.
///
/// # Errors
/// Backends are spoken to in HTTP/2, which cannot carry it.
pub fn serialise(
    requester: &Requester,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    conditions: Conditions<'_>,
) -> Result<Facts, Failure> {
    let edits = edits::of(forwarding.listener, exchange);
    if let Some(edits) = edits {
        edits::fill_in_request(edits, requester, exchange)?;
    }
    if requester.identity.is_trusted() {
        edits::note_client(requester, exchange);
    }
    let received = requester.received();
    let request = &exchange.request;
    // An upgrade with a body would leave two readings of where the tunnel begins (A18).
    let upgrade = request.upgrade(received).filter(|_| request.body().is_empty());
    if let Some(protocol) = upgrade {
        exchange.upgrade.extend_from_slice(protocol);
    }
    let mut context = RequestContext::new(&requester.identity, &exchange.request_id);
    context.path = exchange.paths.forwarded();
    if exchange.paths.has_new_query() {
        context.query = Query::Of(exchange.paths.query(None));
    }
    if let Some(asked) = exchange.key.parts().filter(|_| exchange.is_keyed) {
        // What is not in the key must not choose an answer for all (threat E1).
        if asked.query != exchange.paths.query(request.query(received)) {
            context.query = Query::Of(asked.query);
        }
        context.host = Some(asked.authority).filter(|host| request.host(received) != Some(*host));
    }
    context.early = exchange.early;
    context.upgrade = upgrade.is_some();
    let over_h2 = forwarding.over_h2();
    let handshake = upgrade.map_or(Handshake::Theirs, |protocol| {
        Handshake::of(request, received, protocol, over_h2, || requester.worker.draw())
    });
    context.websocket_key = handshake.key();
    let pool = &forwarding.pool.shared.config;
    //= https://www.rfc-editor.org/rfc/rfc9112#section-9.3
    //# A client that does not support persistent connections MUST send the
    //# "close" connection option in every request message.
    context.close = kept::is_one_clients(pool) || pool.keep_alive.max == 0;
    let any_backend = forwarding.pool.backends.first().map_or("", |backend| backend.shared.address.as_str());
    context.default_host = any_backend.as_bytes();
    context.backend_scheme = if pool.tls.is_some() { Scheme::Https } else { Scheme::Http };
    if let Some(edits) = edits {
        context.edits = edits.of_request(&exchange.rendered);
        context.backend_host = edits.host(&exchange.rendered);
    }
    context.client = requester.identity.is_trusted().then_some(exchange.rendered.client());
    context.conditions = conditions;
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
    let key = pool.balance.needs_key().then(|| key_of(pool, &Values::of(requester, exchange))).flatten();
    let sticky = Sticky::of(&forwarding.pool.shared, request.values(KnownHeader::Cookie, received));
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
        wish: Wish { key, sticky: sticky.wanted, ..Wish::default() },
        sticky,
    })
}

/// Takes the head off the client's buffer and, with it, what came of the body.
pub fn begin_upload(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
) -> Result<Upload, Failure> {
    take_head(&mut session.requester, exchange);
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
    let mut pump = Pump::new(reader, framing, session.requester.buffer.take(), limit);
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

/// Takes the head off what was received: it is not needed any more.
pub fn take_head(requester: &mut Requester, exchange: &mut Exchange) {
    exchange.forwarded = true;
    if let Some(buffer) = &mut requester.buffer {
        buffer.consume(exchange.request.head_bytes());
        if buffer.is_empty() {
            requester.buffer = None;
        }
    }
}
