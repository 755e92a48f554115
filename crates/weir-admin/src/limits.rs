//! `POST /v1/limits/clear`

use std::net::IpAddr;

use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_control::control::Control;
use weir_proxy::compiled::Debtor;

use crate::api::{Error, ok};

/// Whose debts are forgotten, and where.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearLimits {
    /// The client at this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// Who has this as the header, the cookie or the text that the limit goes by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Everybody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// At this listener only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// By the limits of routes of this name only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
}

pub(crate) fn clear(control: &Control, request: &ClearLimits) -> Result<Response, Error> {
    let debtor = match (request.client, &request.key, request.all) {
        (Some(client), None, false) => Debtor::Client(client),
        (None, Some(key), false) => Debtor::Key(key.as_bytes()),
        (None, None, true) => Debtor::All,
        _ => return Err(Error::bad_request("expected one of `client`, `key` and `\"all\": true`")),
    };
    let compiled = control.compiled();
    let named = |name: &str| request.listener.as_deref().is_none_or(|wanted| wanted == name);
    let listeners = compiled.listeners().filter(|(listener, _)| named(&listener.config.name));
    let each = listeners.map(|(_, compiled)| compiled.clear_debts(request.route.as_deref(), &debtor));
    let (cleared, limits) = each.fold((0, 0), |(owed, all), (more, others)| (owed + more, all + others));
    if limits == 0 {
        let what = "no such listener or route has a `rate_limit`".to_owned();
        return Err(Error(StatusCode::NOT_FOUND, "not_found", what));
    }
    // A key may be a secret, such as a token.
    let ClearLimits { client, all, listener, route, .. } = request;
    tracing::info!(cleared, limits, ?client, all, ?listener, ?route, "limits cleared");
    Ok(ok(&json!({ "cleared": cleared, "limits": limits })))
}
