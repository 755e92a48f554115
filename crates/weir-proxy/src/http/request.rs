//! The request as it is sent to backends: written anew once, the same for every attempt.

use weir_config::{PoolProtocol, SqliMode};
use weir_http::{
    BodyLength, BodyReader, Conditions, KnownHeader, Query, RequestContext, RequestHead, Scheme, Violation,
    request_fields, write_request,
};
use weir_io::buffers::SMALL;

use crate::http::compress;
use crate::http::edit_table::Edits;
use crate::http::edits;
use crate::http::exchange::{BackendHeads, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::h2;
use crate::http::handshake::Handshake;
use crate::http::kept;
use crate::http::plan::key_of;
use crate::http::pump::Pump;
use crate::http::request_values::Values;
use crate::http::requester::Requester;
use crate::http::session::Session;
use crate::http::sink::Framing;
use crate::http::sqli;
use crate::http::sticky::{self, Sticky};
use crate::http::upload::{self, Upload};
use crate::reach::Wish;
use crate::seldom::Seldom;

/// Most bytes of a body that are sent together with the head.
const WITH_HEAD_BYTES: usize = SMALL;

/// Writes the request for the backend into `exchange.outgoing`; after that, the received bytes are not needed
/// any more.
///
/// # Errors
/// The pool's backends speak HTTP/2, which can't carry the request.
pub fn serialise(
    requester: &Requester,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    conditions: Conditions<'_>,
) -> Result<Facts, Failure> {
    let edits = edits::of(forwarding.listener, exchange);
    if let Some(edits) = edits {
        edits::fill_in_request(edits, requester, forwarding.listener, exchange)?;
    }
    if requester.identity.is_trusted() {
        edits::note_client(requester, exchange);
    }
    let received = requester.received();
    let request = &exchange.request;
    // For an upgrade with a body it would be ambiguous where the tunnel begins (A18).
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
        // Parts of the request that are not in the key must not influence a response for all (threat E1).
        if asked.query != exchange.paths.query(request.query(received)) {
            context.query = Query::Of(asked.query);
        }
        // Listeners that share responses may have several ports.
        context.port = Some(asked.port());
        context.host = Some(asked.authority).filter(|host| request.host(received) != Some(*host));
    }
    context.hidden_cookie = sticky::hidden(&forwarding.pool.shared.config);
    context.early = exchange.early;
    context.upgrade = upgrade.is_some();
    let pool = &forwarding.pool.shared.config;
    // A tunnel takes a connection of its own, and a backend that chooses HTTP/2 may not support extended
    // CONNECT.
    let protocol = match pool.protocol {
        PoolProtocol::Auto | PoolProtocol::H3 if upgrade.is_some() => PoolProtocol::H1,
        protocol => protocol,
    };
    let over_h2 = protocol == PoolProtocol::H2;
    let handshake = upgrade.map_or(Handshake::Theirs, |to| {
        Handshake::of(request, received, to, over_h2, || requester.worker.draw())
    });
    context.websocket_key = handshake.key();
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
    let heads = Heads { only: &mut exchange.outgoing, others: &mut exchange.heads };
    let (protocol, is_tunnel) = heads.write(request, received, &context, protocol)?;
    let values = || Values::of(requester, forwarding.listener, exchange);
    let key = pool.balance.needs_key().then(|| key_of(pool, &values())).flatten();
    let sticky = Sticky::of(&forwarding.pool.shared, request.values(KnownHeader::Cookie, received));
    Ok(Facts {
        method: request.method(),
        version: request.version(),
        keep_alive: request.keep_alive(),
        upgrade: is_tunnel,
        extended_connect: request.is_extended_connect(),
        protocol,
        handshake,
        expect_continue: request.expect_continue(),
        inspected: sqli::body_kind(forwarding.sqli(), request, received).ok().flatten(),
        coding: compress::wish(forwarding.compress(), request, received),
        wish: Wish { key, sticky: sticky.wanted, ..Wish::default() },
        sticky,
    })
}

/// Where the head is written for each protocol version of backends.
struct Heads<'a> {
    /// For pools that only use HTTP/1.1.
    only: &'a mut Vec<u8>,
    /// For other pools.
    others: &'a mut Seldom<BackendHeads>,
}

impl Heads<'_> {
    /// Writes the heads for `protocol`. Gives the protocols that remain possible, and whether a tunnel is
    /// requested.
    fn write(
        self,
        request: &RequestHead,
        received: &[u8],
        context: &RequestContext<'_>,
        protocol: PoolProtocol,
    ) -> Result<(PoolProtocol, bool), Failure> {
        if protocol == PoolProtocol::H1 {
            write_request(request, received, context, self.only);
            return Ok((protocol, context.upgrade));
        }
        let mut head = h2::RequestParts::default();
        let connect = request_fields(request, received, context, &mut |name, value| head.field(name, value));
        match (head.into_request(), protocol) {
            (Ok(head), _) => self.others.stream = Some(head),
            // Backends that choose may still be asked in HTTP/1.1.
            (Err(_), PoolProtocol::Auto | PoolProtocol::H3) => {
                return self.write(request, received, context, PoolProtocol::H1);
            }
            // No backend would accept it: an attempt would cost retry budget of the pool, and count against a
            // backend.
            (Err(_), _) => return Err(Failure::BadRequest(Violation::TargetNotForHttp2)),
        }
        if protocol.lets_pick() {
            write_request(request, received, context, &mut self.others.picked);
        }
        Ok((protocol, connect.is_some()))
    }
}

/// Removes the head from the client's buffer, and with it the part of the body that has arrived.
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
        false => BodyReader::new(body, forwarding.limits()),
    };
    let announced = exchange.body_to_backends();
    // If backends choose the protocol, it is framed for each one once that has chosen.
    let framing = Framing::on(facts.protocol != PoolProtocol::H1, announced);
    let mut pump = Pump::new(reader, framing, session.requester.buffer.take(), limit)
        .dropping(edits::of(forwarding.listener, exchange).and_then(Edits::dropped_of_request))
        .putting_aside(exchange.put_aside, &session.requester.buffers);
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

/// The head of a request that may wait here for its body, so that it can be written anew after that; `None`
/// if all of it is here, or it is forwarded as it comes.
pub fn kept_head(requester: &Requester, exchange: &Exchange, forwarding: &Forwarding<'_>) -> Option<Vec<u8>> {
    let holds = forwarding.buffer.is_some_and(|buffer| buffer.requests > 0)
        || forwarding.sqli().mode != SqliMode::Off;
    let (received, head_bytes) = (requester.received(), exchange.request.head_bytes());
    let is_here = match exchange.request.body() {
        body if body.is_empty() => true,
        BodyLength::Length(length) => (received.len() - head_bytes) as u64 >= length,
        _ => false,
    };
    (holds && !is_here).then(|| received[..head_bytes].to_vec())
}

/// Writes a request anew that was written for another pool. `text` is its head; the part of its body that is
/// here follows. The first `head_bytes` of `exchange.outgoing` were its head before.
pub fn serialise_anew(
    requester: &mut Requester,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    upload: &mut Upload,
    (text, head_bytes): (&[u8], usize),
) -> Result<Facts, Failure> {
    let mut buffer = requester.buffers.borrow(text.len()).ok_or(Failure::OutOfMemory)?;
    buffer.append(text);
    // Bytes that came after the head are with the upload.
    let behind = requester.buffer.replace(buffer);
    exchange.forwarded = false;
    forwarding.begin(requester, exchange);
    let held = exchange.outgoing.split_off(head_bytes);
    exchange.outgoing.clear();
    exchange.heads.clear();
    let facts = serialise(requester, exchange, forwarding, Conditions::AsSent);
    requester.buffer = behind;
    exchange.forwarded = true;
    let facts = facts?;
    upload.drop_names(edits::of(forwarding.listener, exchange).and_then(Edits::dropped_of_request));
    let framing = Framing::on(facts.protocol != PoolProtocol::H1, exchange.body_to_backends());
    upload.move_to(framing, held, forwarding.limits(), &mut exchange.outgoing)?;
    Ok(facts)
}

/// Puts the head back before the bytes received after it: the request, which has no body, is answered from
/// the cache. False if there is no memory for it.
pub fn take_back(requester: &mut Requester, exchange: &mut Exchange, head: &[u8]) -> bool {
    if !exchange.forwarded {
        return true;
    }
    let behind = requester.buffer.as_ref().map_or(&[][..], |buffer| buffer.filled());
    let Some(mut buffer) = requester.buffers.borrow(head.len() + behind.len()) else { return false };
    buffer.append(head);
    buffer.append(behind);
    requester.buffer = Some(buffer);
    exchange.forwarded = false;
    true
}

/// Removes the head from the received bytes: it is not needed any more.
pub fn take_head(requester: &mut Requester, exchange: &mut Exchange) {
    exchange.forwarded = true;
    if let Some(buffer) = &mut requester.buffer {
        buffer.consume(exchange.request.head_bytes());
        if buffer.is_empty() {
            requester.buffer = None;
        }
    }
}
