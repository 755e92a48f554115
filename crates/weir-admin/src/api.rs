//! The implementation of each endpoint.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequestParts as _, Query, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;

use crate::auth::{Access, Auth, Refusal};
use crate::endpoints::{Call, Endpoint, openapi};
use crate::explain::{Question, explain};
use crate::status;
use crate::{certificates, limits, maintenance, map_calls, maps, metrics, page, purge};
use weir_control::control::{ChangeError, Control, Phase};
use weir_control::events::Event;
use weir_control::kernel::FlowFilter;
use weir_control::reload::ReloadVerdict;
use weir_state::Snapshot;

/// Largest request body that is read.
const BODY_BYTES: usize = 64 * 1024;
/// Time for the body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an event stream gets a comment, so that neither side takes it for dead.
const STREAM_KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The error code for changes that are refused while another process is about to take over.
const UPGRADE_UNDER_WAY: &str = "upgrade_under_way";

/// The state that a handler needs.
#[derive(Clone)]
pub(crate) struct Context {
    pub control: Arc<Control>,
    pub auth: Arc<Auth>,
    pub endpoint: &'static Endpoint,
}

/// An error response: status, code, message.
#[derive(Debug)]
pub(crate) struct Error(pub StatusCode, pub &'static str, pub String);

impl From<ChangeError> for Error {
    fn from(error: ChangeError) -> Error {
        let (status, code) = match &error {
            ChangeError::NoPool { .. } | ChangeError::NoBackend { .. } => {
                (StatusCode::NOT_FOUND, "not_found")
            }
            ChangeError::Exists(_) | ChangeError::Last(_) => (StatusCode::CONFLICT, "conflict"),
            ChangeError::Invalid(_) => (StatusCode::BAD_REQUEST, "bad_request"),
            ChangeError::Publish(_) => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Error(status, code, error.to_string())
    }
}

impl Error {
    pub(crate) fn bad_request(message: impl Into<String>) -> Error {
        Error(StatusCode::BAD_REQUEST, "bad_request", message.into())
    }

    /// For calls that would make a change unknown to the new process.
    fn upgrade_under_way() -> Error {
        let message = "an upgrade is under way: nothing is changed until the new process serves, or has failed to start; try again in a second";
        Error(StatusCode::SERVICE_UNAVAILABLE, UPGRADE_UNDER_WAY, message.to_owned())
    }

    fn response(self) -> Response {
        let Error(status, code, message) = self;
        let mut response = answer_json(status, &json!({ "error": { "code": code, "message": message } }));
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110 section 11.6.1 requires it.
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if code == UPGRADE_UNDER_WAY {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Answers one request: first the checks, then the endpoint.
pub(crate) async fn answer(context: Context, request: Request) -> Response {
    if let Err(refusal) = context.auth.check(request.headers(), context.endpoint.access()) {
        return refused(refusal).response();
    }
    let answered = dispatch(&context, request).await;
    let mut response = answered.unwrap_or_else(Error::response);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn refused(refusal: Refusal) -> Error {
    let (status, code, message) = match refusal {
        Refusal::Host => (
            StatusCode::FORBIDDEN,
            "forbidden",
            "the host field names another machine; use this one's address, or send the token",
        ),
        Refusal::CrossSite => {
            (StatusCode::FORBIDDEN, "forbidden", "changing calls from another site's page are refused")
        }
        Refusal::Token => (
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "expected `authorization: Bearer TOKEN` with the token of admin.token_file",
        ),
    };
    Error(status, code, message.to_owned())
}

async fn dispatch(context: &Context, request: Request) -> Result<Response, Error> {
    let control = &*context.control;
    let (mut parts, mut body) = request.into_parts();
    let parameters = RawPathParams::from_request_parts(&mut parts, &()).await;
    let parameters = parameters.map_err(|error| Error::bad_request(error.to_string()))?;
    let parameter =
        |name: &str| parameters.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value);
    let mut change = None;
    if context.endpoint.access() == Access::Change {
        if !context.endpoint.body.is_empty() {
            // Read the body first, or a client that sends it slowly would hold up an upgrade.
            body = Body::from(read_body(body).await?);
        }
        change = Some(control.begin_change().ok_or_else(Error::upgrade_under_way)?);
    }
    let answered = answer_call(context, &parts, parameter, body).await;
    drop(change);
    answered
}

async fn answer_call<'p>(
    context: &Context,
    parts: &Parts,
    parameter: impl Fn(&str) -> &'p str,
    body: Body,
) -> Result<Response, Error> {
    let control = &*context.control;
    match context.endpoint.call {
        Call::Page => Ok(html(page::render(&status::of(control), &control.bus().latest(20)))),
        Call::Live => Ok("live\n".into_response()),
        Call::Ready => ready(control),
        Call::Metrics => {
            Ok(([(header::CONTENT_TYPE, weir_stats::expose::CONTENT_TYPE)], metrics::text(control))
                .into_response())
        }
        Call::Status => Ok(ok(&status::of(control))),
        Call::Config => config(&control.snapshot()),
        Call::Reload => reload(control).await,
        Call::Pools => Ok(ok(&json!({ "pools": status::of(control).pools }))),
        Call::Pool => pool(control, &control.snapshot(), parameter("pool")),
        Call::PatchBackend => {
            let change = read_json::<Change>(body).await?;
            patch(control, parameter("pool"), parameter("address"), &change).await
        }
        Call::AddBackend => add(control, parameter("pool"), read_json::<Addition>(body).await?).await,
        Call::RemoveBackend => {
            let snapshot = control.remove_backend(parameter("pool"), parameter("address")).await?;
            Ok(ok(&edited("removed", &snapshot, parameter("address"), REMOVED)))
        }
        Call::Certificates => certificates::list(control, parameter("listener")),
        Call::PutCertificate => {
            certificates::may_carry_keys(&context.auth)?;
            let upload = read_json(body).await?;
            certificates::put(control, parameter("listener"), parameter("certificate"), upload).await
        }
        Call::RemoveCertificate => {
            certificates::remove(control, parameter("listener"), parameter("certificate")).await
        }
        Call::CachePurge => purge::purge(control, &read_json::<purge::PurgeRequest>(body).await?),
        Call::Limits => {
            let which = Query::<limits::WhichLimits>::try_from_uri(&parts.uri);
            let Query(which) = which.map_err(|error| Error::bad_request(error.body_text()))?;
            limits::list(control, which).await
        }
        Call::ClearLimits => limits::clear(control, &read_json(body).await?),
        Call::Maintenance => Ok(maintenance::show(control)),
        Call::SwitchMaintenance => maintenance::switch(control, read_json(body).await?),
        Call::Maps => Ok(ok(&json!({ "maps": maps::of(control) }))),
        Call::Map => {
            let asked = Query::<map_calls::Asked>::try_from_uri(&parts.uri);
            let Query(asked) = asked.map_err(|error| Error::bad_request(error.body_text()))?;
            map_calls::show(control, parameter("map"), asked)
        }
        Call::PutMapLine | Call::RemoveMapLine => {
            let meant = Query::<map_calls::Meant>::try_from_uri(&parts.uri);
            let Query(meant) = meant.map_err(|error| Error::bad_request(error.body_text()))?;
            let value = match context.endpoint.call {
                Call::PutMapLine => Some(read_json(body).await?),
                _ => None,
            };
            map_calls::change(control, parameter("map"), meant, value).await
        }
        Call::Explain => {
            let question = read_json::<Question>(body).await?;
            let answer = explain(&control.compiled(), control.kernel(), &question).await;
            let mut answer = answer.map_err(Error::bad_request)?;
            answer.say_why(control);
            Ok(ok(&answer))
        }
        Call::Flows => {
            let filter = Query::<FlowFilter>::try_from_uri(&parts.uri);
            let Query(filter) = filter.map_err(|error| Error::bad_request(error.body_text()))?;
            control.kernel().flows(filter).await.map(|flows| ok(&flows)).map_err(Error::bad_request)
        }
        Call::Events => Ok(events(control, &parts.headers)),
        Call::OpenApi => Ok(ok(&openapi())),
    }
}

fn ready(control: &Control) -> Result<Response, Error> {
    let unavailable = |kind, why: String| Err(Error(StatusCode::SERVICE_UNAVAILABLE, kind, why));
    if control.phase() == Phase::Draining {
        return unavailable("draining", "the process is on its way out".to_owned());
    }
    let unattached = control.kernel().seen().map(|seen| seen.unattached.clone()).unwrap_or_default();
    match unattached.first_key_value() {
        None => Ok("ready\n".into_response()),
        Some((name, why)) => {
            unavailable("unattached", format!("the kernel plane takes no packets at {name}: {why}"))
        }
    }
}

/// The config in force as the file would have it, under its names, with every default filled in and without
/// secrets.
fn config(snapshot: &Snapshot) -> Result<Response, Error> {
    let text = weir_config::to_toml_without_secrets(&snapshot.shown());
    let mut config: serde_json::Map<String, Value> = toml::from_str(&text)
        .map_err(|error| Error(StatusCode::INTERNAL_SERVER_ERROR, "failed", error.to_string()))?;
    config.insert("generation".to_owned(), json!(snapshot.generation));
    Ok(ok(&config))
}

async fn reload(control: &Control) -> Result<Response, Error> {
    let outcome = control.reload("api").await;
    let (status, code) = match outcome.result {
        ReloadVerdict::Applied | ReloadVerdict::Unchanged => return Ok(ok(&json!({ "reload": outcome }))),
        ReloadVerdict::Refused => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
        ReloadVerdict::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
    };
    Ok(answer_json(
        status,
        &json!({ "error": { "code": code, "message": outcome.error }, "reload": outcome }),
    ))
}

fn pool(control: &Control, snapshot: &Snapshot, name: &str) -> Result<Response, Error> {
    let pool = snapshot.pool(name).ok_or_else(|| ChangeError::no_pool(name, snapshot))?;
    Ok(ok(&status::pool(control, pool)))
}

/// Body of a PATCH.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    state: Option<String>,
    weight: Option<u32>,
}

async fn patch(control: &Control, pool: &str, address: &str, change: &Change) -> Result<Response, Error> {
    if change.state.is_none() && change.weight.is_none() {
        return Err(Error::bad_request("nothing to change, expected `state`, `weight` or both"));
    }
    let state = change.state.as_deref().map(status::admin_state).transpose().map_err(Error::bad_request)?;
    let (pool, index) = control.tune(pool, address, state, change.weight).await?;
    let backend = status::backend_of(control, &pool, index);
    Ok(ok(
        &json!({ "backend": backend, "note": "a state lasts until it is changed again, a weight until the next reload of the file" }),
    ))
}

/// Body of a POST that adds a backend.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Addition {
    address: String,
    weight: Option<u32>,
    max_connections: Option<u32>,
    #[serde(default)]
    backup: bool,
    #[serde(default)]
    lasting: bool,
}

async fn add(control: &Control, pool: &str, addition: Addition) -> Result<Response, Error> {
    let Addition { address, weight, max_connections, backup, lasting } = addition;
    let backend = weir_config::Backend {
        address: address.clone(),
        weight: weight.unwrap_or(1),
        max_connections,
        backup,
        ..weir_config::Backend::default()
    };
    let snapshot = control.add_backend(pool, backend, lasting).await?;
    let note = if lasting { LASTING } else { FORGOTTEN };
    Ok(answer_json(StatusCode::CREATED, &edited("added", &snapshot, &address, note)))
}

/// How long an added or removed backend stays so.
const FORGOTTEN: &str = "in force now; the next reload of the config file forgets it, so change the file too";
const LASTING: &str = "in force now; it outlives reloads and upgrades, and is forgotten when Weir is stopped";
const REMOVED: &str =
    "in force now; the next reload of the config file brings back what the file has, so change the file too";

fn edited(change: &str, snapshot: &Snapshot, address: &str, note: &str) -> Value {
    json!({
        change: address,
        "generation": snapshot.generation,
        "note": note,
    })
}

fn events(control: &Control, headers: &axum::http::HeaderMap) -> Response {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    // A client that connects for the first time gets new events, preceded by the few most recent ones.
    let (missed, live) = control.bus().subscribe(last.unwrap_or(0));
    let stream = tokio_stream::iter(missed).chain(BroadcastStream::new(live).filter_map(Result::ok));
    let stream = stream.map(|event: Event| Ok::<_, Infallible>(sse_event(&event)));
    Sse::new(stream).keep_alive(KeepAlive::new().interval(STREAM_KEEP_ALIVE)).into_response()
}

fn sse_event(event: &Event) -> sse::Event {
    let data = serde_json::to_string(event).unwrap_or_default();
    sse::Event::default().id(event.id.to_string()).event(event.what.name()).data(data)
}

/// Reads a body, limited in bytes and time.
async fn read_body(body: Body) -> Result<Bytes, Error> {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, BODY_BYTES)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => {
            let message = format!("the body is longer than {BODY_BYTES} bytes, or broke off");
            Err(Error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message))
        }
        Err(_) => {
            let message = format!("the body took longer than {BODY_TIMEOUT:?}");
            Err(Error(StatusCode::REQUEST_TIMEOUT, "timeout", message))
        }
    }
}

/// Reads a JSON body like [`read_body`].
async fn read_json<T: DeserializeOwned>(body: Body) -> Result<T, Error> {
    let bytes = read_body(body).await?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::bad_request(format!("the body is not what was expected: {error}")))
}

pub(crate) async fn no_such_path() -> Response {
    let message = "no such path; GET /v1/openapi.json lists them".to_owned();
    Error(StatusCode::NOT_FOUND, "not_found", message).response()
}

pub(crate) async fn no_such_method() -> Response {
    let message = "the path knows other methods; GET /v1/openapi.json lists them".to_owned();
    Error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).response()
}

pub(crate) fn ok(value: &impl Serialize) -> Response {
    answer_json(StatusCode::OK, value)
}

fn answer_json(status: StatusCode, value: &impl Serialize) -> Response {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// A page that may load nothing and must not be framed.
fn html(text: String) -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, policy)];
    (headers, text).into_response()
}
