//! Lets a request pass or not, as its listener or its route asks: behind lists, limits and maintenance, and
//! before memory or a backend answers.

use std::rc::Rc;

use weir_http::values::accept::Wants;
use weir_io::clock;
use weir_stats::table::AuthResult;

use super::{Authenticator, Refused, basic, service};
use crate::http::answer;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::{Denied, Failure};
use crate::http::session::Session;
use crate::worker::WorkerListener;

/// Asks. `Ok(None)` lets the request pass; else it was answered.
///
/// # Errors
/// Nothing has reached the client, and the request must not go on.
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
        Authenticator::Tokens(tokens) => tokens.ask(session, exchange).map(|()| None),
        Authenticator::Nobody => Err(Failure::AuthUnavailable),
    };
    let answered = answered.map_err(closed);
    exchange.ledger.note_wait();
    exchange.ledger.auth = Some(clock::now().saturating_sub(began));
    if session.requester.worker.log.enabled() {
        exchange.ledger.note_user(&exchange.user.name);
    }
    let result = match &answered {
        Ok(None) => Some(AuthResult::Passed),
        Ok(Some(_)) | Err(Failure::AuthDenied(_)) => Some(AuthResult::Denied),
        Err(Failure::AuthUnavailable) => Some(AuthResult::Unavailable),
        // The client has left, or Weir's own memory or time was over.
        Err(_) => None,
    };
    if let Some(result) = result {
        listener.shared.cells.of(session.requester.worker.number).auth[result as usize].increment();
    }
    let Some(refused) = answered? else { return Ok(None) };
    if matches!(exchange.wants, Wants::Grpc | Wants::GrpcWeb) {
        // A call is told by its trailers, whatever the service says.
        let Refused { status, fields, .. } = refused;
        // It can go to no login page.
        let status = if status < 400 { 401 } else { status };
        let fields = fields.into_iter().filter(|field| field.name().eq_ignore_ascii_case(b"set-cookie"));
        return Err(Failure::AuthDenied(Box::new(Denied { status, fields: fields.collect() })));
    }
    Ok(Some(answer::denied(session, listener, exchange, &refused).await))
}

/// What a failure of the service means for the request that was asked about: it does not pass.
fn closed(failure: Failure) -> Failure {
    match failure {
        Failure::AuthDenied(_) | Failure::ClientClosed | Failure::Drained | Failure::OutOfMemory => failure,
        _ => Failure::AuthUnavailable,
    }
}
