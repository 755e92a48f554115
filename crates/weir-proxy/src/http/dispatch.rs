//! One request's life, from its head on: plan, choose, connect, send, receive, respond, finish.
//!
//! What needs no backend leaves after the plan: `answer` gives what is ours to say, `cache` what memory has. A backend that fails leads to
//! `retry`, and any failure that remains to `failure`, which knows its status.

use std::rc::Rc;
use std::sync::Arc;

use weir_http::{BodyLength, KnownHeader, Method, RequestHead, Violation, path};
use weir_io::clock;

use crate::http::answer;
use crate::http::cache;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forward;
use crate::http::forwarding::Forwarding;
use crate::http::route::{Action, Decision, RequestView, Route, without_port};
use crate::http::screening;
use crate::http::session::Session;
use crate::http::sqli;
use crate::worker::{Worker, WorkerListener};

/// Answers what can't be served and closes.
pub async fn refuse(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    failure: Failure,
) -> After {
    exchange.ledger.head = clock::now();
    exchange.ledger.bytes_received = session.requester.received().len() as u64;
    Box::pin(answer::failure(session, listener, exchange, &failure)).await
}

/// Runs one exchange whose request head is complete.
pub async fn run(session: &mut Session, listener: Rc<WorkerListener>, exchange: &mut Exchange) -> After {
    note_request(session, &listener, exchange);
    let plan = match plan(session, &listener, exchange) {
        Ok(plan) => plan,
        Err(failure) => return Box::pin(answer::failure(session, &listener, exchange, &failure)).await,
    };
    match plan {
        Plan::Forward { pool, route, rewritten } => {
            let pool = listener.pools[pool].clone();
            exchange.ledger.pool = Some(pool.clone());
            let forwarding = Forwarding { listener: &listener, pool, route, rewritten };
            let ended = match route.and_then(|route| route.cache.as_deref()) {
                None => forward::run(session, exchange, &forwarding).await,
                Some(cache) => cache::run(session, exchange, &forwarding, cache).await,
            };
            match ended {
                Ok(after) => after,
                Err(failure) => Box::pin(answer::failure(session, &listener, exchange, &failure)).await,
            }
        }
        Plan::Redirect { to, status } => {
            Box::pin(answer::redirect(session, &listener, exchange, to, status)).await
        }
        Plan::Respond { status, body, content_type } => {
            Box::pin(answer::respond(session, &listener, exchange, status, body, content_type)).await
        }
        Plan::Trace => Box::pin(answer::trace(session, &listener, exchange)).await,
        Plan::Prove { authorization } => {
            Box::pin(answer::prove(session, &listener, exchange, &authorization)).await
        }
    }
}

/// What to do with a request.
enum Plan<'l> {
    Forward {
        pool: usize,
        route: Option<&'l Route>,
        rewritten: bool,
    },
    Redirect {
        to: &'l str,
        status: u16,
    },
    Respond {
        status: u16,
        body: &'l str,
        content_type: &'l str,
    },
    /// `Max-Forwards: 0`: the answer is ours (RFC 9110 §7.6.2).
    Trace,
    /// A certificate authority looks whether the host is ours (RFC 8555 §8.3).
    Prove {
        authorization: Arc<str>,
    },
}

/// Where certificate authorities look.
const CHALLENGES: &[u8] = b"/.well-known/acme-challenge/";

/// Decides; leaves the path for the backend in `exchange.path` when it differs from the one sent.
fn plan<'l>(
    session: &Session,
    listener: &'l WorkerListener,
    exchange: &mut Exchange,
) -> Result<Plan<'l>, Failure> {
    let received = session.requester.received();
    let request = &exchange.request;
    if request.method() == Method::Connect {
        return Err(Failure::MethodRefused);
    }
    if session.requester.secure.is_none()
        && let Some(token) = request.path(received).strip_prefix(CHALLENGES)
        && let Some(authorization) =
            std::str::from_utf8(token).ok().and_then(|token| listener.shared.challenges.answer(token))
    {
        return Ok(Plan::Prove { authorization });
    }
    if let Some(secure) = &session.requester.secure
        && !secure.covers(without_port(request.host(received).unwrap_or_default()))
    {
        return Err(Failure::Misdirected);
    }
    let is_last_hop = request.max_forwards() == Some(0);
    // A backend would echo the request's cookies and credentials into a page (A26).
    if request.method() == Method::Trace && !is_last_hop {
        return Err(Failure::MethodRefused);
    }
    let raw = request.path(received);
    let mut rewritten = normalise(listener, request, raw, &mut exchange.path)?;
    let routed: &[u8] = if rewritten { &exchange.path } else { raw };
    let decision = if listener.compiled.routes.is_empty() {
        listener.compiled.routes.default_pool().map_or(Decision::Nowhere, |pool| Decision::Default { pool })
    } else {
        let header = |name: &[u8]| request.combined(name, received);
        listener.compiled.routes.decide(&RequestView {
            host: without_port(request.host(received).unwrap_or_default()),
            path: routed,
            method: request.method_text(received),
            header: &header,
        })
    };
    let of_route = match &decision {
        Decision::Nowhere => return Err(Failure::NoRoute),
        Decision::Default { .. } => None,
        Decision::Route { route, .. } => {
            exchange.route = Some(route.number);
            exchange.ledger.note_route(&session.requester.worker, &route.name, route.access_log);
            Some(*route)
        }
    };
    let head = (request, received, routed);
    screening::at_edge(&session.requester, listener, of_route, head, &mut exchange.ledger)?;
    let asked = of_route.map_or(listener.shared.config.http().sqli, |route| route.sqli);
    sqli::head(asked, session, listener, (request, received), &mut exchange.ledger)?;
    if is_last_hop {
        return Ok(Plan::Trace);
    }
    let (route, prefix) = match decision {
        Decision::Nowhere => return Err(Failure::NoRoute),
        Decision::Default { pool } => return Ok(Plan::Forward { pool, route: None, rewritten }),
        Decision::Route { route, prefix } => (route, prefix),
    };
    if let (Some(limit), BodyLength::Length(length)) = (route.body_limit_bytes, request.body())
        && length > limit
    {
        return Err(Failure::BodyTooLarge);
    }
    Ok(match &route.action {
        Action::Pool(pool) => {
            if let Some(replacement) = &route.rewrite_prefix {
                let rest = routed[prefix..].to_vec();
                rewrite(replacement, &rest, &mut exchange.path)?;
                rewritten = true;
            }
            Plan::Forward { pool: *pool, route: Some(route), rewritten }
        }
        Action::Redirect { to, status } => Plan::Redirect { to, status: *status },
        Action::Respond { status, body, content_type } => {
            Plan::Respond { status: *status, body, content_type }
        }
    })
}

/// Puts the path for the backend into `out`: `replacement`, and what the prefix left of the path.
fn rewrite(replacement: &[u8], rest: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
    out.clear();
    out.extend_from_slice(replacement);
    out.extend_from_slice(rest);
    // The rest of `/static../secret` behind `/static` is no dot segment before it stands behind a slash.
    if path::has_dot_segment(out) { Err(Failure::BadRequest(Violation::PathAboveRoot)) } else { Ok(()) }
}

/// Puts the normal form of the path into `out` where it is another; gives whether it is.
fn normalise(
    listener: &WorkerListener,
    request: &RequestHead,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, Failure> {
    let normalised = match listener.shared.config.http().merge_slashes {
        true if !request.path_is_plain() || path::has_empty_segment(raw) => {
            path::normalise_merging_into(raw, out)
        }
        false if !request.path_is_plain() => path::normalise_into(raw, out),
        _ => return Ok(false),
    };
    normalised.map_err(Failure::BadRequest)
}

/// Keeps what the log, the counters and the answer need of the request's bytes, which are gone once it has been forwarded.
fn note_request(session: &Session, listener: &WorkerListener, exchange: &mut Exchange) {
    let received = session.requester.received();
    exchange.ledger.bytes_received = exchange.request.head_bytes() as u64;
    if session.requester.identity.is_trusted() {
        let forwarded_for = exchange.request.values(KnownHeader::XForwardedFor, received);
        exchange
            .ledger
            .note_client(session.requester.client.of_request(&listener.shared.config, forwarded_for));
    }
    match exchange.request.request_id(received) {
        Some(sent) => exchange.request_id.extend_from_slice(sent),
        None => make_request_id(&session.requester.worker, &mut exchange.request_id),
    }
    if session.requester.worker.log.enabled() {
        exchange.ledger.note_request(&exchange.request, received);
    }
}

/// 128 random bits in hexadecimal.
fn make_request_id(worker: &Worker, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    let bits = (u128::from(worker.draw()) << 64) | u128::from(worker.draw());
    for (place, byte) in text.chunks_exact_mut(2).zip(bits.to_be_bytes()) {
        place[0] = DIGITS[usize::from(byte >> 4)];
        place[1] = DIGITS[usize::from(byte & 15)];
    }
    out.extend_from_slice(&text);
}
