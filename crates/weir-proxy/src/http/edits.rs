//! Applies header rules to a request and its response; their values are filled in once per request.

use weir_config::NewField;
use weir_http::{FieldEdits, Violation};
use weir_template::{Piece, Template};

use crate::client::is_unix;
use crate::http::edit_table::{Edits, Rendered, put_line};
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::request_values::Values;
use crate::http::requester::Requester;
use crate::worker::WorkerListener;

/// The value that a new field would have, as text; `None` if the field is left out. If `is_secret`, texts
/// from the config, which may be secret, are masked.
pub fn value_of(field: &NewField, values: &Values<'_>, is_secret: bool) -> Option<String> {
    if let Some(constant) = field.value.as_constant() {
        return Some(if is_secret { masked(&field.value) } else { constant.to_owned() });
    }
    let mut line = Vec::new();
    put_line(b"", &field.value, values, &mut line);
    if line.is_empty() {
        return None;
    }
    let says_something =
        |piece: &Piece| matches!(piece, Piece::Text(text) if text.contains(char::is_alphanumeric));
    if is_secret && field.value.pieces().iter().any(says_something) {
        return Some(masked(&field.value));
    }
    Some(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
}

/// A value that may be secret, for display: the names of its variables, and a mask for its texts.
pub fn masked(value: &Template) -> String {
    let variables: Vec<String> = value.variables().map(|it| format!("${}", it.name())).collect();
    match variables.is_empty() {
        true => weir_config::SECRET.to_owned(),
        false => format!("{} with {}", variables.join(", "), weir_config::SECRET),
    }
}

/// The rules for the exchange; `None` if nothing has any rules.
#[inline]
pub(crate) fn of<'l>(listener: &'l WorkerListener, exchange: &Exchange) -> Option<&'l Edits> {
    let table = listener.compiled.edits.as_deref()?;
    Some(match exchange.is_question {
        true => table.of_question(exchange.pool),
        false => table.of(exchange.route, exchange.pool),
    })
}

/// Fills in the response's fields while the request's bytes are still there. Called once for each pool that
/// the request is to go to.
#[inline]
pub(crate) fn prepare(requester: &Requester, listener: &WorkerListener, exchange: &mut Exchange) {
    if listener.compiled.edits.is_some() {
        fill_in_response(requester, listener, exchange);
    }
}

#[inline(never)]
fn fill_in_response(requester: &Requester, listener: &WorkerListener, exchange: &mut Exchange) {
    let Some(edits) = of(listener, exchange) else { return };
    if std::mem::replace(&mut exchange.rendered.has_response, true) {
        return;
    }
    if let Some(side) = &edits.response {
        let mut rendered = std::mem::take(&mut exchange.rendered);
        let values = Values::of(requester, listener, exchange);
        side.render(&values, &exchange.user.to_client, &mut rendered.response);
        side.fill_in(&values, &mut rendered.for_response);
        exchange.rendered = rendered;
    }
}

/// The edits for the response, whose lines [`prepare`] has filled in.
#[inline]
pub(crate) fn of_response<'a>(
    listener: &'a WorkerListener,
    route: Option<usize>,
    pool: Option<usize>,
    rendered: &'a Rendered,
) -> Option<FieldEdits<'a>> {
    let table = listener.compiled.edits.as_deref()?;
    table.of(route, pool).of_response(rendered)
}

/// Fills in the fields and the host that are sent to the backend.
///
/// # Errors
/// The host that the rules give is not a valid host.
#[inline(never)]
pub(crate) fn fill_in_request(
    edits: &Edits,
    requester: &Requester,
    listener: &WorkerListener,
    exchange: &mut Exchange,
) -> Result<(), Failure> {
    let mut rendered = std::mem::take(&mut exchange.rendered);
    let values = Values::of(requester, listener, exchange);
    if let Some(side) = &edits.request {
        side.render(&values, &exchange.user.to_backend, &mut rendered.request);
        side.fill_in(&values, &mut rendered.for_request);
    }
    let mut is_host = true;
    if let Some(template) = &edits.host {
        rendered.host.clear();
        template.render(&values, &mut rendered.host);
        is_host = weir_http::is_host(&rendered.host);
    }
    exchange.rendered = rendered;
    if is_host { Ok(()) } else { Err(Failure::BadRequest(Violation::HostSyntax)) }
}

/// Writes down the client's address where a trusted proxy names it; nothing if the proxy names nobody and is
/// connected by a Unix socket.
pub(crate) fn note_client(requester: &Requester, exchange: &mut Exchange) {
    let client = exchange.ledger.client(requester).address.ip().to_canonical();
    exchange.rendered.client.clear();
    if !is_unix(client) {
        weir_http::write_address(&mut exchange.rendered.client, client);
    }
}
