//! Runs the authentication that the listener or the route asks for: after access lists, rate limits and
//! maintenance, and before the cache or a backend answers.

use std::rc::Rc;

use weir_http::values::accept::Wants;
use weir_io::clock;
use weir_stats::table::AuthResult;

use super::{Authenticator, Refused, basic, service, sign_in};
use crate::http::answer;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::{Awaited, Denied, Failure};
use crate::http::request_values::Values;
use crate::http::requester::Requester;
use crate::http::session::Session;
use crate::worker::WorkerListener;

/// Authenticates the request. `Ok(None)` lets it pass; otherwise it has been answered.
///
/// # Errors
/// Nothing has been sent to the client, and the request must not go on.
pub async fn ask(
    session: &mut Session,
    listener: &Rc<WorkerListener>,
    exchange: &mut Exchange,
    authenticator: &Authenticator,
) -> Result<Option<After>, Failure> {
    exchange.user.clear();
    let began = exchange.ledger.nearly_now();
    let answered = match authenticator {
        Authenticator::Service(service) => service::ask(session, listener, exchange, service).await,
        Authenticator::Passwords(passwords) => basic::ask(passwords, session, exchange).await.map(|()| None),
        Authenticator::Tokens(tokens) => tokens.ask(session, exchange).await.map(|()| None),
        Authenticator::Nobody => Err(Failure::AuthUnavailable),
    };
    let answered = answered.map_err(|failure| closed(failure, &session.requester));
    exchange.ledger.note_wait();
    exchange.ledger.auth = Some(clock::now().saturating_sub(began));
    if listener.is_logged(&session.requester.worker) {
        exchange.ledger.note_user(&exchange.user.name);
    }
    if let Some(logs) = listener.compiled.logs.as_deref().filter(|logs| logs.asks_of_user()) {
        let mut captured = std::mem::take(&mut exchange.ledger.captured);
        logs.note_user(&mut captured, &Values::of(&session.requester, listener, exchange));
        exchange.ledger.captured = captured;
    }
    let result = match &answered {
        Ok(None) if exchange.user.is_remembered => Some(AuthResult::Remembered),
        Ok(None) => Some(AuthResult::Passed),
        Ok(Some(_)) | Err(Failure::AuthDenied(_)) => Some(AuthResult::Denied),
        Err(Failure::AuthUnavailable | Failure::RequestTotal(_)) => Some(AuthResult::Unavailable),
        Err(Failure::AuthCrowded) => Some(AuthResult::Crowded),
        // The client has left, or Weir itself ran out of memory or time.
        Err(_) => None,
    };
    if let Some(result) = result {
        listener.shared.cells.of(session.requester.worker.number).auth[result as usize].increment();
    }
    let Some(mut refused) = answered? else { return Ok(None) };
    if matches!(exchange.wants, Wants::Grpc | Wants::GrpcWeb) {
        // A gRPC call gets its status in trailers, whatever the service answers.
        let Refused { status, fields, .. } = refused;
        // A gRPC client can't follow a redirect to a login page.
        let status = if status < 400 { 401 } else { status };
        let fields = fields.into_iter().filter(|field| field.name().eq_ignore_ascii_case(b"set-cookie"));
        return Err(Failure::AuthDenied(Box::new(Denied { status, fields: fields.collect() })));
    }
    if let Authenticator::Service(service) = authenticator
        && let Some(to) = &service.sign_in
        && sign_in::is_due(&session.requester, exchange, &refused)
    {
        refused = sign_in::redirect(to, &Values::of(&session.requester, listener, exchange), refused);
    }
    Ok(Some(answer::denied(session, listener, exchange, &refused).await))
}

/// Maps a failure of the service to the failure of the request, which never passes then.
fn closed(failure: Failure, requester: &Requester) -> Failure {
    match failure {
        Failure::AuthDenied(_)
        | Failure::AuthCrowded
        | Failure::ClientClosed
        | Failure::Drained
        | Failure::OutOfMemory => failure,
        // The service had no more time than the request itself, and that is over.
        _ if requester.last_moment() <= clock::now() => Failure::RequestTotal(Awaited::Nobody),
        _ => Failure::AuthUnavailable,
    }
}
