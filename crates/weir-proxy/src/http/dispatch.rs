//! One request's life, from its head on: plan, choose, connect, send, receive, respond, finish.
//!
//! What needs no backend leaves after the plan: `answer` gives what is ours to say, `cache` what memory has.
//! A backend that fails leads to `retry`, and any failure that remains to `failure`, which knows its status.

use std::rc::Rc;

use weir_http::values::accept::Wants;
use weir_io::clock;

use crate::access_log::Logs;
use crate::http::answer;
use crate::http::auth::gate;
use crate::http::cache;
use crate::http::closing;
use crate::http::edits;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forward;
use crate::http::forwarding::Forwarding;
use crate::http::plan::{Outcome, OverTls, Plan, Received, Rules, plan};
use crate::http::request_values::Values;
use crate::http::requester::Requester;
use crate::http::route::Route;
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
    let decided = decide(session, &listener, exchange);
    if let Some(logs) = listener.compiled.logs.as_deref().filter(|logs| logs.asks()) {
        capture(logs, &session.requester, exchange);
    }
    let ended = match decided {
        Err(failure) => Err(failure),
        Ok(Plan { route, outcome, .. }) => match admit(session, &listener, exchange, (route, &outcome)).await
        {
            Err(failure) => Err(failure),
            Ok(Some(after)) => return after,
            Ok(None) => match outcome {
                Outcome::Forward { pool: asked } => {
                    let fallbacks = listener.compiled.routes.fallbacks(route);
                    let serving =
                        closing::serving(asked, fallbacks, |index| &listener.pools[index].shared.balance);
                    let is_fallback = serving != asked;
                    if is_fallback {
                        listener.pools[asked].cells().fallbacks.increment();
                    }
                    let pool = listener.pools[serving].clone();
                    exchange.ledger.pool = Some(pool.clone());
                    exchange.pool = Some(serving);
                    edits::prepare(&session.requester, &listener, exchange);
                    let mut forwarding = Forwarding::new(&listener, pool, route);
                    forwarding.is_fallback = is_fallback;
                    session.requester.begin_total(exchange.ledger.head, forwarding.timers.request_total);
                    match route.and_then(|route| route.cache.as_deref()) {
                        None => forward::run(session, exchange, &forwarding).await,
                        Some(cache) => cache::run(session, exchange, &forwarding, cache).await,
                    }
                }
                Outcome::Refuse(refused) => Err(refused.into()),
                Outcome::Redirect { to, status } => {
                    Ok(Box::pin(answer::redirect(session, &listener, exchange, to, status)).await)
                }
                Outcome::Respond { status, body, content_type } => {
                    Ok(Box::pin(answer::respond(session, &listener, exchange, status, body, content_type))
                        .await)
                }
                Outcome::Trace => Ok(Box::pin(answer::trace(session, &listener, exchange)).await),
                Outcome::Prove { authorization } => {
                    Ok(Box::pin(answer::prove(session, &listener, exchange, &authorization)).await)
                }
            },
        },
    };
    // What there is to say yet is said in a time of its own.
    let ended = ended.map_err(|failure| session.requester.judge(failure));
    session.requester.end_total();
    match ended {
        Ok(after) => after,
        Err(failure) => Box::pin(answer::failure(session, &listener, exchange, &failure)).await,
    }
}

/// Asks whether whoever asks may, where the listener or the route wants to know; `Some` where it was
/// answered.
async fn admit(
    session: &mut Session,
    listener: &Rc<WorkerListener>,
    exchange: &mut Exchange,
    (route, outcome): (Option<&Route>, &Outcome<'_>),
) -> Result<Option<After>, Failure> {
    match listener.compiled.routes.auth(route) {
        Some(authenticator) if outcome.is_guarded() => {
            Box::pin(gate::ask(session, listener, exchange, authenticator)).await
        }
        _ => Ok(None),
    }
}

/// Plans, and asks lists and limits where the plan says so; leaves in `exchange.paths` what differs from
/// what was sent.
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
    let values = || Values { request_id, ..Values::of_head(requester, &received, client) };
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
    }
    Ok(plan)
}

/// Keeps what the log, the counters and the answer need of the request's bytes, which are gone once it has
/// been forwarded.
fn note_request(session: &Session, listener: &WorkerListener, exchange: &mut Exchange) {
    let received = session.requester.received();
    exchange.ledger.bytes_received = exchange.request.head_bytes() as u64;
    exchange.wants = Wants::of(&exchange.request, received);
    if session.requester.identity.is_trusted() {
        let requester = &session.requester;
        let client = requester.client.of_request(&listener.shared.config, &exchange.request, received);
        exchange.ledger.note_client(client);
    }
    match exchange.request.request_id(received) {
        Some(sent) => exchange.request_id.extend_from_slice(sent),
        None => make_request_id(&session.requester.worker, &mut exchange.request_id),
    }
    if listener.is_logged(&session.requester.worker) {
        exchange.ledger.note_request(&exchange.request, received);
    }
}

/// Keeps what logs ask of the request's bytes.
#[cold]
fn capture(logs: &Logs, requester: &Requester, exchange: &mut Exchange) {
    let mut captured = std::mem::take(&mut exchange.ledger.captured);
    logs.note_request(&mut captured, &Values::of(requester, exchange));
    exchange.ledger.captured = captured;
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
