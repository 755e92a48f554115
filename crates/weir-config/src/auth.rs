//! `auth` of a listener or a route: who may ask, and who says so.

use std::time::Duration;

use crate::fields::{Fields, Value};
use crate::keys::{
    Each, KIB, Limit, MIB, Shape, duration, list, list_or, millis, seconds, size, table as below,
};
use crate::keys::{text, text_or};
use crate::named_pool;
use crate::report::{Findings, quote};
use crate::setting::{Section as _, table};
use crate::units::{Refused, refuse};
use crate::values::NAME;
use crate::values::http::{ADDED_RESPONSE_HEADER, FRAMING, SET_REQUEST_HEADER, field_name};
use crate::values::path::PROBE_PATH;

table! {
    /// Lets requests pass only from those who have shown who they are. On a listener it holds for all of its
    /// routes, redirects and answers from the config too; a route may say otherwise, and `auth = false` lets
    /// everybody pass there. Read the [guide](../guide/authentication.md).
    #[derive(Eq)]
    pub struct Authentication at "[listener.NAME.auth]" {
        /// Asks a service of another pool about each request.
        forward: Option<ForwardAuth> =
            below(ForwardAuth::TABLE)
                .http()
                .default("off")
                .also(&["forward_auth", "forwardauth", "auth_request", "ext_authz", "request"]);
    }
}

table! {
    /// Asks a service about each request before it goes on, as nginx's `auth_request` and Traefik's
    /// ForwardAuth do: `GET` without a body, with `x-forwarded-method`, `-uri`, `-host`, `-proto`, `-port` and
    /// `-for` of the request that is asked about. 2xx lets it pass; 3xx and 4xx go to the client with all
    /// that the service says; anything else, or no answer in time, refuses it with 503.
    #[derive(Eq)]
    pub struct ForwardAuth at "[listener.NAME.auth.forward]" {
        /// The pool of the service.
        pool: String =
            text(&NAME).http().required().also(&["address", "backend", "upstream", "service", "url"]);
        /// Path, and query where it needs one, that the service is asked for.
        path: String = text_or(&PROBE_PATH, "/").http().also(&["uri", "endpoint"]);
        /// Fields of the request that the service is told besides.
        request_headers as "request_header": Vec<String> =
            list_or(
                Each::Text(&ASKED_HEADER),
                &["accept", "accept-language", "authorization", "cookie", "user-agent", "x-requested-with"],
            )
            .http()
            .brief()
            .default("what a login needs: see the guide")
            .also(&["request_headers", "auth_request_headers", "headers"]);
        /// Fields of its answer that the backend is told of requests that pass. What a client sends by these
        /// names never reaches the backend.
        copy_to_backend: Vec<String> =
            list(Each::Text(&SET_REQUEST_HEADER))
                .http()
                .default("none")
                .also(&["copy_headers", "auth_response_headers", "response_headers", "auth_request_set"]);
        /// Fields of its answer that the client is told in the answer to requests that pass: `set-cookie`
        /// beside those of the backend, others in their place.
        copy_to_client: Vec<String> =
            list_or(Each::Text(&ADDED_RESPONSE_HEADER), &["set-cookie"])
                .http()
                .also(&["add_auth_cookies_to_response"]);
        /// The field of its answer that names the user, for the log.
        user: Option<String> =
            text(&USER_HEADER).http().default("none").also(&["user_header", "remote_user"]);
        /// For the whole answer, with all waits and tries; no longer than `timeout.request_total`.
        timeout: Duration =
            duration(Limit::new(
                seconds(5),
                millis(10),
                seconds(300),
                "the client waits for it before its own request goes on",
            ))
            .http();
        /// Most bytes of an answer's content. One that is larger refuses the request with 503.
        body_limit_bytes as "body_limit": u64 =
            size(Limit::new(64 * KIB, 0, MIB, "it is held in memory until it is whole")).http();
    }
}

/// A field that the service is told of.
static ASKED_HEADER: Shape = Shape::new("a header field", "cookie", asked_header);
/// A field that names a user.
static USER_HEADER: Shape = Shape::new("a header field", "remote-user", field_name);

/// Fields that Weir writes in the question itself.
const WRITTEN: [&str; 9] = [
    "accept-encoding",
    "forwarded",
    "host",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-request-id",
];

fn asked_header(text: &str) -> Result<String, Refused> {
    let name = field_name(text)?;
    let hint = match name.as_str() {
        "x-forwarded-method" | "x-forwarded-uri" | "x-original-method" | "x-original-url" => {
            "Weir says itself what the request is; a client's word for it would pass for that"
        }
        name if WRITTEN.contains(&name) => "Weir writes it for every question",
        name if FRAMING.contains(&name) => "it describes the connection or the body",
        "range" | "if-match" | "if-none-match" | "if-modified-since" | "if-unmodified-since" | "if-range" => {
            "it is about the content of the request's own answer"
        }
        _ => return Ok(name),
    };
    refuse(format!("{} cannot be passed on to the service", quote(text)), hint)
}

/// Notes what is wrong with the `auth` of a listener or a route.
pub(crate) fn check(root: &Fields, fields: &Fields, findings: &mut Findings<'_>) {
    let Some(entry) = fields.get("auth") else { return };
    let Some(auth) = fields.table("auth") else { return };
    if auth.lacks("forward") {
        let hint = "expected `forward = { pool = \"…\", path = \"…\" }`, or `auth = false`";
        findings.error(entry.key, "`auth` does not say who decides", hint);
        return;
    }
    let Some(forward) = auth.table("forward") else { return };
    named_pool::exists(root, forward, "pool", findings);
    for (at, value) in forward.list("copy_to_backend") {
        let Value::Text(name) = value else { continue };
        for verb in ["set", "add"] {
            let map = format!("{verb}_request_header");
            let Some(rule) = fields.map(&map).iter().find(|rule| rule.name == *name) else { continue };
            let hint = format!("`{map}` says another value ({}); keep one", findings.place(rule.key));
            findings.error(*at, format!("`{name}` cannot be copied and set"), hint);
        }
    }
}

/// What a backend is told of a user must not make the answer for all: the key of a cache does not have it
/// (threat E1). `route` has what it takes over from its listener.
pub(crate) fn cached(route: &Fields, findings: &mut Findings<'_>) {
    if !matches!(route.get("cache").map(|entry| &entry.value), Some(Value::Table(_))) {
        return;
    }
    let held = route.holds("auth");
    let Some(Value::Table(auth)) = held.as_deref() else { return };
    let copied = auth.table("forward").map(|forward| forward.list("copy_to_backend")).unwrap_or_default();
    let Some((at, Value::Text(name))) = copied.first() else { return };
    let hint = format!(
        "an answer that is made for one user would be given to all ({} copies `{name}`); take one of the two out, or give this \
         route an `auth` of its own",
        findings.place(*at)
    );
    findings.error(route.at("cache"), "`cache` cannot stand beside `copy_to_backend`", hint);
}

/// The pools that are asked who may pass, on behalf of a listener or a route.
pub(crate) fn pools(fields: &Fields) -> Option<&str> {
    fields.table("auth")?.table("forward")?.text("pool")
}
