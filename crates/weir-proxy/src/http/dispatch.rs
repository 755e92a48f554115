//! One request's life, from its complete head on: plan, choose, connect, send, receive, respond, finish.
//!
//! Requests that need no backend branch off after the plan: `answer` writes Weir's own answers, `cache`
//! serves stored ones. If a backend fails, `retry` decides about another attempt; what still fails goes to
//! `failure`, which maps it to a status.

use std::rc::Rc;

use weir_http::values::accept::Wants;
use weir_io::clock;
use weir_io::wait::boxed;

use crate::access_log::Logs;
use crate::http::answer;
use crate::http::auth::{Authenticator, gate};
use crate::http::cache;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forward;
use crate::http::forwarding::Forwarding;
use crate::http::plan::{Outcome, OverTls, Plan, Received, Rules, challenge_token, plan};
use crate::http::request_values::Values;
use crate::http::requester::Requester;
use crate::http::route::Route;
use crate::http::screening;
use crate::http::session::Session;
use crate::http::sqli;
use crate::shares;
use crate::timers::ExchangeTimers;
use crate::worker::{Worker, WorkerListener};

/// Answers a request that can't be served with an error, and closes the connection.
pub async fn refuse(
    session: &mut Session,
    listener: &WorkerListener,
    exchange: &mut Exchange,
    failure: Failure,
) -> After {
    exchange.ledger.head = clock::now();
    exchange.ledger.bytes_received = session.requester.received().len() as u64;
    if exchange.request_id.is_empty() {
        // Its head could not be read, so any request id that the client sent is unknown.
        make_request_id(&session.requester.worker, &mut exchange.request_id);
    }
    boxed(|| answer::failure(session, listener, exchange, &failure)).await
}

/// Runs one exchange whose request head is complete.
pub async fn run(session: &mut Session, listener: Rc<WorkerListener>, exchange: &mut Exchange) -> After {
    if listener.shared.trusts(session.requester.client.address.ip())
        != session.requester.identity.is_trusted()
    {
        session.requester.renew_trust();
    }
    note_request(session, &listener, exchange);
    if asks_for_shared_proof(session, &listener, exchange) {
        let challenges = &listener.shared.challenges;
        boxed(|| challenges.look()).await;
    }
    let decided = decide(session, &listener, exchange);
    if let Some(logs) = listener.compiled.logs.as_deref().filter(|logs| logs.asks()) {
        capture(logs, &session.requester, &listener, exchange);
    }
    let admitted = match &decided {
        Ok(Plan { route, outcome, .. }) => match listener.compiled.routes.auth(*route) {
            Some(authenticator) if outcome.is_guarded() => {
                boxed(|| admit(session, &listener, exchange, (*route, authenticator))).await
            }
            _ => Ok(None),
        },
        Err(_) => Ok(None),
    };
    let ended = match (decided, admitted) {
        (Err(failure), _) | (_, Err(failure)) => Err(failure),
        (_, Ok(Some(after))) => return after,
        (Ok(Plan { route, outcome, .. }), Ok(None)) => match outcome {
            Outcome::Forward { pool: asked } => {
                let forwarding = Forwarding::serving(&session.requester, &listener, exchange, (route, asked));
                forwarding.begin(&session.requester, exchange);
                match route.and_then(|route| route.cache.as_deref()) {
                    None => forward::run(session, exchange, &forwarding).await,
                    Some(cache) => cache::run(session, exchange, &forwarding, cache).await,
                }
            }
            Outcome::Refuse(refused) => Err(refused.into()),
            Outcome::Redirect { to, status } => {
                Ok(boxed(|| answer::redirect(session, &listener, exchange, to, status)).await)
            }
            Outcome::Respond { status, body, content_type } => {
                Ok(boxed(|| answer::respond(session, &listener, exchange, status, body, content_type)).await)
            }
            Outcome::Trace => Ok(boxed(|| answer::last(session, &listener, exchange)).await),
            Outcome::Prove { authorization } => {
                Ok(boxed(|| answer::prove(session, &listener, exchange, &authorization)).await)
            }
        },
    };
    // Sending the error takes its own time, which is not part of the request's total time.
    let ended = ended.map_err(|failure| session.requester.judge(failure));
    session.requester.end_total();
    match ended {
        Ok(after) => after,
        Err(failure) => boxed(|| answer::failure(session, &listener, exchange, &failure)).await,
    }
}

/// Whether the client may be a certificate authority that asks for the proof of another Weir with the same
/// store.
fn asks_for_shared_proof(session: &Session, listener: &WorkerListener, exchange: &Exchange) -> bool {
    session.requester.secure.is_none() && {
        let token = challenge_token(exchange.request.path(session.requester.received()));
        token.is_some_and(|token| listener.shared.challenges.may_be_shared(token))
    }
}

/// Asks the route's authenticator whether the client may make this request; `Some` if that has answered it.
async fn admit(
    session: &mut Session,
    listener: &Rc<WorkerListener>,
    exchange: &mut Exchange,
    (route, authenticator): (Option<&Route>, &Authenticator),
) -> Result<Option<After>, Failure> {
    let maintenance = &listener.shared.maintenance;
    if let Some(pool_name) = authenticator.pool_name().filter(|_| maintenance.is_any()) {
        let closing = listener.compiled.routes.closing(route);
        let client = exchange.ledger.client(&session.requester).address.ip();
        if closing.keeps_from(maintenance, pool_name, client) {
            return Err(Failure::Maintenance { retry_after_seconds: closing.retry_after_seconds() });
        }
    }
    // The time limit for the whole request also covers the question to the authentication service.
    let pool = exchange.pool.and_then(|index| listener.pools.get(index));
    let of_pool = pool.and_then(|pool| pool.own_timeouts());
    let of_route = route.and_then(|route| route.timeout.as_ref());
    let timers = ExchangeTimers::of(&listener.shared.config.timeout, of_pool, of_route);
    session.requester.begin_total(exchange.ledger.head, timers.request_total);
    let asked = gate::ask(session, listener, exchange, authenticator).await;
    session.requester.end_total();
    asked
}

/// Plans the request, and consults access lists and rate limits if the plan says so. Leaves in
/// `exchange.paths` how path and query differ from what was sent.
fn decide<'l>(
    session: &Session,
    listener: &'l WorkerListener,
    exchange: &mut Exchange,
) -> Result<Plan<'l>, Failure> {
    let Exchange { request, paths, ledger, request_id, .. } = exchange;
    let requester = &session.requester;
    let text = requester.received();
    let tls = requester.secure.as_deref();
    let tls =
        tls.map(|secure| OverTls { server: &secure.server, server_name: secure.server_name.as_deref() });
    let rules = Rules {
        config: &listener.shared.config,
        routes: &listener.compiled.routes,
        challenges: &listener.shared.challenges,
    };
    let client = ledger.client(requester).address;
    let received = Received { head: request, text, tls, client: client.ip() };
    let values = || Values { request_id, ..Values::of_head(requester, listener, &received, client) };
    let plan = plan(&rules, &received, &values, paths);
    if let Some(route) = plan.route {
        exchange.route = Some(route.number);
        ledger.note_route(&requester.worker, listener, route);
    }
    exchange.pool = plan.pool();
    if plan.is_screened {
        screening::at_edge(requester, listener, plan.route, &received, paths, ledger)?;
        let closing = listener.compiled.routes.closing(plan.route);
        let whereto = || plan.whereto(&listener.shared, |pool| &listener.pools[pool].shared.config.name);
        if closing.keeps_out(&listener.shared.maintenance, whereto, client.ip()).is_some() {
            return Err(Failure::Maintenance { retry_after_seconds: closing.retry_after_seconds() });
        }
        let asked = plan.route.map_or(listener.shared.config.http().sqli, |route| route.sqli);
        sqli::head(asked, &received, listener.shared.cells.of(requester.worker.number), ledger)?;
    } else if matches!(plan.outcome, Outcome::Refuse(_)) {
        screening::unasked(requester, listener, &received, paths, ledger);
    }
    Ok(plan)
}

/// Copies from the request's bytes what the log, the counters and the answer need, because the bytes are gone
/// once the request has been forwarded.
fn note_request(session: &mut Session, listener: &WorkerListener, exchange: &mut Exchange) {
    if session.requester.identity.is_trusted() {
        let requester = &mut session.requester;
        let Requester { worker, client: proxy, buffers: before, .. } = &*requester;
        let client = proxy.of_request(&listener.shared.config, &exchange.request, requester.received());
        requester.buffers = shares::behind_proxy(worker, before, proxy, &client);
        exchange.ledger.note_client(client);
    }
    let received = session.requester.received();
    exchange.ledger.bytes_received = exchange.request.head_bytes() as u64;
    exchange.wants = Wants::of(&exchange.request, received);
    match exchange.request.request_id(received) {
        Some(sent) => exchange.request_id.extend_from_slice(sent),
        None => make_request_id(&session.requester.worker, &mut exchange.request_id),
    }
    if listener.is_logged(&session.requester.worker) {
        exchange.ledger.note_request(&exchange.request, received);
    }
}

/// Copies from the request's bytes the values that access logs ask for.
#[cold]
fn capture(logs: &Logs, requester: &Requester, listener: &WorkerListener, exchange: &mut Exchange) {
    let mut captured = std::mem::take(&mut exchange.ledger.captured);
    logs.note_request(&mut captured, &Values::of(requester, listener, exchange));
    exchange.ledger.captured = captured;
}

/// Appends 128 random bits in hexadecimal.
fn make_request_id(worker: &Worker, out: &mut Vec<u8>) {
    let mut text = [0; 32];
    let bits = [worker.draw(), worker.draw()];
    let halves = bits.into_iter().flat_map(|bits| [(bits >> 32) as u32, bits as u32]);
    for (place, half) in text.chunks_exact_mut(8).zip(halves) {
        place.copy_from_slice(&hexadecimal(half));
    }
    out.extend_from_slice(&text);
}

/// Eight hexadecimal digits, computed all at once: each request has an id, and one digit at a time takes
/// three times as long. Not inlined, because the compiler would then vectorise several calls, with constants
/// that take six cache lines.
#[inline(never)]
fn hexadecimal(bits: u32) -> [u8; 8] {
    let mut digits = u64::from(bits);
    // Spreads the digits, one to each byte.
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // 1 in each byte whose digit is a letter.
    let letters = (digits + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    let to_letter = u64::from(b'a' - b'0' - 10);
    (digits + 0x3030_3030_3030_3030 + letters * to_letter).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_that_the_standard_library_writes() {
        for bits in [0, 1, 0x0123_4567, 0x89ab_cdef, 0x9a9a_a9a9, u32::MAX] {
            assert_eq!(hexadecimal(bits).as_slice(), format!("{bits:08x}").as_bytes());
        }
    }
}
