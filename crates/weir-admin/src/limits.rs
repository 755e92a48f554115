//! `GET /v1/limits` and `POST /v1/limits/clear`

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_control::blocking::blocking;
use weir_control::control::Control;
use weir_proxy::compiled::{CompiledSnapshot, Debtor, LimitRule, LimitStatus, RefusedKey, Whose};

use crate::api::{Error, ok};

/// Which debts to clear, and in which limits.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearLimits {
    /// Those of the client at this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// Those of the key with this header, cookie or template value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// All of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Only in limits of this listener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// Only in limits of routes with this name.
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
        return Err(nowhere("`rate_limit`"));
    }
    // A key may be a secret, such as a token.
    let ClearLimits { client, all, listener, route, .. } = request;
    tracing::info!(cleared, limits, ?client, all, ?listener, ?route, "limits cleared");
    Ok(ok(&json!({ "cleared": cleared, "limits": limits })))
}

fn nowhere(what: &str) -> Error {
    Error(StatusCode::NOT_FOUND, "not_found", format!("no such listener or route has a {what}"))
}

/// Keys shown per limit by default (count).
const USUAL_KEYS: usize = 20;

/// Which limits to list, and how many keys of each.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichLimits {
    listener: Option<String>,
    route: Option<String>,
    keys: Option<usize>,
}

/// The current state of limits.
#[derive(Debug, Serialize, Deserialize)]
pub struct LimitList {
    /// By listener in the order of the config, the listener's own limits first.
    pub limits: Vec<LimitEntry>,
}

/// One limit.
#[derive(Debug, Serialize, Deserialize)]
pub struct LimitEntry {
    /// Name of its listener.
    pub listener: String,
    /// Name of its route; `None` for a limit of the listener itself.
    pub route: Option<String>,
    /// `rate_limit` or `concurrency_limit`.
    pub limit: String,
    /// The key by which it counts.
    pub key: String,
    /// Of a rate limit: the count and the time.
    pub rate: Option<String>,
    /// Of a rate limit: the burst.
    pub burst: Option<u32>,
    /// Statuses of the answers that it counts; empty if it counts requests or connections.
    pub statuses: Vec<String>,
    /// Of a concurrency limit: the current maximum.
    pub max: Option<u32>,
    /// `edge` or `origin`.
    pub at: String,
    /// Whether it only counts and refuses nothing.
    pub dry_run: bool,
    /// Keys that have debts, or requests in progress.
    pub tracked_count: u64,
    /// Most keys that it distinguishes; `None` if it counts all together, or counts requests in progress.
    pub keys: Option<u32>,
    /// How often a key found no bucket of its own.
    pub overflow_total: u64,
    /// How often it refused, or would have in a dry run.
    pub refused_total: u64,
    /// The keys it refused, most often refused first.
    pub refused: Vec<LimitedKey>,
    /// Whether it counts together with the Weirs of `[peers]`.
    #[serde(default)]
    pub shared: bool,
}

/// A key that a limit has refused.
#[derive(Debug, Serialize, Deserialize)]
pub struct LimitedKey {
    /// The counted client, or its network.
    pub client: Option<String>,
    /// The counted value of a header, cookie or template; `None`, as is `client`, if all are counted
    /// together.
    pub key: Option<String>,
    /// Whether possible secrets in `key` are replaced by `[hidden …]`.
    pub hidden: bool,
    /// Whether `key` is cut off.
    pub cut: bool,
    /// How often it was refused since it entered the list.
    pub refused_total: u64,
    /// Seconds since the last refusal.
    pub refused_ago_seconds: f64,
    /// Of a rate limit: seconds until it is let in again; 0 if it is now.
    pub let_in_after_seconds: Option<f64>,
    /// Of a concurrency limit: its requests in progress.
    pub under_way: Option<u32>,
}

/// Lists limits. Runs on a thread of its own, since counting millions of keys takes a while.
pub(crate) async fn list(control: &Control, which: WhichLimits) -> Result<Response, Error> {
    let compiled = control.compiled();
    let is_narrow = which.listener.is_some() || which.route.is_some();
    let listed = blocking(move || listed(&compiled, &which)).await;
    let limits =
        listed.map_err(|error| Error(StatusCode::SERVICE_UNAVAILABLE, "failed", error.to_string()))?;
    if limits.is_empty() && is_narrow {
        return Err(nowhere("limit"));
    }
    Ok(ok(&LimitList { limits }))
}

fn listed(compiled: &Arc<CompiledSnapshot>, which: &WhichLimits) -> Vec<LimitEntry> {
    let most = which.keys.unwrap_or(USUAL_KEYS);
    let named = |name: &str| which.listener.as_deref().is_none_or(|wanted| wanted == name);
    let listeners = compiled.listeners().filter(|(listener, _)| named(&listener.config.name));
    let of_listener = listeners.flat_map(|(listener, compiled)| {
        let limits = compiled.limits(which.route.as_deref(), most);
        limits.into_iter().map(|(route, status)| entry(&listener.config.name, route.as_deref(), status))
    });
    of_listener.collect()
}

fn entry(listener: &str, route: Option<&str>, status: LimitStatus) -> LimitEntry {
    let LimitStatus { rule, tracked, room, overflowed, refused, refused_keys, is_shared } = status;
    let (limit, key, at, dry_run) = match &rule {
        LimitRule::Rate(rate) => ("rate_limit", &rate.key, rate.at, rate.dry_run),
        LimitRule::Concurrency { settings, .. } => {
            ("concurrency_limit", &settings.key, settings.at, settings.dry_run)
        }
    };
    let (rate, max) = match &rule {
        LimitRule::Rate(rate) => (Some(rate), None),
        LimitRule::Concurrency { max, .. } => (None, Some(*max)),
    };
    let statuses = rate.map_or(&[][..], |rate| &rate.statuses);
    LimitEntry {
        listener: listener.to_owned(),
        route: route.map(str::to_owned),
        limit: limit.to_owned(),
        key: key.to_string(),
        rate: rate.map(|rate| rate.rate.to_string()),
        burst: rate.map(|rate| rate.burst),
        statuses: statuses.iter().map(ToString::to_string).collect(),
        max,
        at: at.word().to_owned(),
        dry_run,
        tracked_count: tracked,
        keys: room,
        overflow_total: overflowed,
        refused_total: refused,
        refused: refused_keys.into_iter().map(limited_key).collect(),
        shared: is_shared,
    }
}

fn limited_key(refused: RefusedKey) -> LimitedKey {
    let RefusedKey { whose, refused, since, wait, under_way } = refused;
    let (client, key, hidden, cut) = match whose {
        Whose::Client(client) => (Some(client), None, false, false),
        Whose::Text { text, hidden, cut } => (None, Some(text), hidden, cut),
        Whose::All => (None, None, false, false),
    };
    LimitedKey {
        client,
        key,
        hidden,
        cut,
        refused_total: refused,
        refused_ago_seconds: since.as_secs_f64(),
        let_in_after_seconds: wait.map(|wait| wait.as_secs_f64()),
        under_way,
    }
}
