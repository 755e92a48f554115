//! `auth` of a listener or a route: which requests may pass, and which service or file decides.

pub(crate) mod base64;
pub(crate) mod key_source;
pub(crate) mod keys;
mod remember;
mod told;
pub(crate) mod users;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use self::base64::{Alphabet, decode as decode_base64};
use self::key_source::KEY_SOURCE;
pub(crate) use self::key_source::is_url;
pub use self::key_source::{FetchedKeys, KeySource};
pub use self::keys::{KEYS_OF_A_NAME_MOST, KeySet, PublicKey, Signing, TokenKey};
pub use self::remember::{QuestionPart, RememberedAnswers};
pub use self::users::Account;
use self::users::Mistake;
use crate::error_page::PageFile;
use crate::fields::{Fields, KeyValue, Value};
use crate::keys::{
    DAY, Each, KIB, Limit, MIB, Shape, count, duration, flag, list, list_or, map, millis, seconds, size,
    table as below, text, text_or,
};
use crate::named_pool;
use crate::report::{Findings, Span, quote};
use crate::setting::{Section as _, table};
use crate::units::{Refused, refuse};
use crate::values::address::{FILE, PEM_FILE};
use crate::values::http::{ADDED_RESPONSE_HEADER, COOKIE_NAME, FRAMING, SET_REQUEST_HEADER, field_name};
use crate::values::path::PROBE_PATH;
use crate::values::template::{of_anybody, redirect_to};
use crate::values::{NAME, TEXT};
use weir_template::Template;

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
        /// Asks for a name and a password (RFC 7617) of a file.
        basic: Option<BasicAuth> =
            below(BasicAuth::TABLE)
                .http()
                .default("off")
                .also(&["basic_auth", "basicauth", "auth_basic", "userlist", "htpasswd"]);
        /// Asks for a signed token (JWT, RFC 7519).
        jwt: Option<TokenAuth> =
            below(TokenAuth::TABLE).http().default("off").also(&["auth_jwt", "bearer", "oidc", "token"]);
    }
}

table! {
    /// Asks for a signed token (JWT, RFC 7519) whose time is not over, by RS256, RS384, RS512, PS256, PS384,
    /// PS512, ES256, ES384 or EdDSA. Tokens with a shared secret, or with no signature, are never taken.
    #[derive(Eq)]
    pub struct TokenAuth at "[listener.NAME.auth.jwt]" {
        /// The public keys, a JWK set (RFC 7517) of at most 1MiB and 200 keys. A file is read when the config
        /// is, and at every reload. What a URL has is fetched while the config is in force; `http://` leads
        /// to this machine only.
        keys: Option<KeySource> =
            text(&KEY_SOURCE)
                .http()
                .required()
                .also(&[
                    "jwks",
                    "jwks_file",
                    "key_file",
                    "auth_jwt_key_file",
                    "jwks_uri",
                    "jwks_url",
                    "remote_jwks",
                    "auth_jwt_key_request",
                ]);
        /// PEM file of the authorities that the certificate of the provider must come from.
        ca: Option<PathBuf> = text(&PEM_FILE).http().default("those of the system").also(&["ca_file"]);
        /// How often keys are fetched: earlier where the provider says so (`cache-control: max-age`), down to
        /// 5 minutes, and before they are `stale`.
        refresh: Duration =
            duration(Limit::new(
                seconds(3600),
                seconds(1),
                WEEK,
                "each asks the provider, and a key that it has taken back is good until then",
            ))
            .http()
            .also(&["cache_duration", "interval", "ttl", "refresh_interval"]);
        /// A token that none of the keys has signed has them fetched earlier: not sooner than this behind the
        /// fetch before, whatever clients send.
        early_refresh: Duration =
            duration(Limit::new(
                seconds(10),
                seconds(1),
                seconds(3600),
                "whoever makes up tokens could have the provider asked without end",
            ))
            .http()
            .also(&["cooldown", "refresh_cooldown"]);
        /// How long keys hold while the provider gives none. Then, and before the first, no token passes
        /// (503).
        stale: Duration =
            duration(Limit::new(DAY, seconds(1), MONTH, "a key that was taken back would be good for ever"))
                .http()
                .also(&["stale_if_error", "keep"]);
        /// For a whole fetch, from the name's look-up to the last byte.
        fetch_timeout: Duration =
            duration(Limit::new(seconds(5), millis(100), seconds(60), "requests wait for it"))
                .http()
                .also(&["timeout"]);
        /// Most requests that wait for a fetch, a quarter of them of one client at most. Beyond it 503.
        waiting: u32 = count(Limit::new(100, 0, 10_000, "each is a connection with what it sent")).http();
        /// Who may have issued it (`iss`).
        issuer: Vec<String> = list(Each::Text(&TEXT)).http().default("whoever has one of the keys").also(&["iss", "issuers"]);
        /// For whom it must be (`aud`), one of them.
        audience: Vec<String> = list(Each::Text(&TEXT)).http().default("whomever").also(&["aud", "audiences"]);
        /// By how much clocks may differ.
        leeway: Duration =
            duration(Limit::new(seconds(30), seconds(0), seconds(3600), "a token that is over should be"))
                .http()
                .also(&["clock_skew", "auth_jwt_leeway"]);
        /// The cookie that has it.
        cookie: Option<String> =
            text(&COOKIE_NAME).http().default("none: it is in `authorization: Bearer`").also(&["cookie_name"]);
        /// Fields that backends are told, and the claim of each; `a.b` is the claim `b` within `a`. What a
        /// client sends by these names never reaches them.
        claims: BTreeMap<String, String> =
            map(&SET_REQUEST_HEADER, &TEXT).http().default("none").also(&["claims_to_headers", "headers"]);
        /// The claim that names the user, for the log.
        user: String = text_or(&TEXT, "sub").http().also(&["user_claim"]);
    }
}

table! {
    /// Asks for a name and a password (RFC 7617), and holds them against a file of users. Passwords come in
    /// the clear with every request: only with `tls`. Each that is wrong, or new, costs a processor some
    /// milliseconds, on threads of their own; a `rate_limit` bounds who may try how often.
    #[derive(Eq)]
    pub struct BasicAuth at "[listener.NAME.auth.basic]" {
        /// The file: lines of `NAME:HASH` by bcrypt or Argon2, of at most 1MiB. It is read when the config
        /// is, and at every reload.
        users: Option<PageFile> =
            text(&FILE).http().required().also(&["file", "auth_basic_user_file", "users_file", "usersfile"]);
        /// What clients show to people when they ask for the password.
        realm: String = text_or(&REALM, "restricted").http().also(&["auth_basic", "title"]);
        /// The field that backends are told the name by. What a client sends by it never reaches them.
        user_header: Option<String> =
            text(&SET_REQUEST_HEADER).http().default("none").also(&["header_field", "headerfield", "user"]);
        /// Whether backends are told the password: passes `authorization` on.
        pass_authorization: bool = flag(false).http();
        /// For how long a password that was right is not computed again; memory holds a keyed hash of it.
        remember: Duration =
            duration(Limit::new(seconds(300), seconds(1), DAY, "each request would compute it, or none for days"))
                .http()
                .also(&["cache", "cache_ttl", "ttl"]);
        /// Most passwords that are computed at once.
        checks: u32 =
            count(Limit::new(2, 1, 64, "each takes a whole processor, and by Argon2 the memory that its hash says"))
                .http();
        /// Most requests that wait for that, a quarter of them of one client at most; beyond it 503. Clients
        /// take turns.
        waiting: u32 = count(Limit::new(100, 0, 10_000, "each waits for those before it")).http();
    }
}

table! {
    /// Asks a service about each request before it goes on, as nginx's `auth_request` and Traefik's
    /// ForwardAuth do: `GET` without a body, with `x-forwarded-method`, `-uri`, `-host`, `-proto`, `-port`
    /// and
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
        /// The cookies that the service is told of, where `cookie` is among these; a `*` at the end stands
        /// for any rest of a name. Others change no answer of its.
        cookies: Vec<String> = list(Each::Text(&COOKIE_NAME)).http().default("all of them").also(&["cookie_names"]);
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
        /// Where browsers are led (302) that the service answers with 401: GET and HEAD that accept
        /// `text/html`. Others get the 401. What is filled in is percent-encoded, so that it stays in its
        /// parameter.
        sign_in: Option<Template> =
            text(&SIGN_IN).http().default("nowhere").also(&["login", "login_url", "auth_signin", "error_page", "on_denied"]);
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
        /// Lets requests pass for some time by an answer that was given before.
        remember: Option<RememberedAnswers> =
            below(RememberedAnswers::TABLE)
                .http()
                .default("off: each request is asked about")
                .also(&["cache", "auth_request_cache"]);
    }
}

const WEEK: Duration = seconds(7 * DAY.as_secs());
const MONTH: Duration = seconds(30 * DAY.as_secs());

/// A field that the service is told of.
static ASKED_HEADER: Shape = Shape::new("a header field", "cookie", asked_header);
/// Where people log in.
static SIGN_IN: Shape =
    Shape::new("a target", "/oauth2/sign_in?rd=$scheme://$host$path$query", sign_in).with_variables();
/// What people are shown.
static REALM: Shape = Shape::new("a realm", "Staff only", realm);
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

fn sign_in(text: &str) -> Result<String, Refused> {
    let text = redirect_to(text)?;
    if let Ok(template) = Template::parse(&text, 0) {
        of_anybody(&template, "`sign_in`")?;
    }
    Ok(text)
}

fn realm(text: &str) -> Result<String, Refused> {
    let message = || format!("{} is not a realm", quote(text));
    if text.is_empty() || text.chars().count() > 100 {
        return refuse(message(), "expected 1 to 100 characters");
    }
    if text.chars().any(|c| c.is_control() || matches!(c, '"' | '\\')) {
        return refuse(
            message(),
            "it stands in quotes in a header field: no quotes, backslashes or line breaks",
        );
    }
    Ok(text.to_owned())
}

impl TokenAuth {
    /// The keys in the file; none if it was not read, or if keys are fetched.
    pub fn public_keys(&self) -> Vec<TokenKey> {
        match &self.keys {
            Some(KeySource::File(file)) => keys::keys(&file.content).0,
            Some(KeySource::Url(_)) | None => Vec::new(),
        }
    }
}

/// How many of `waiting` one client (an IPv4 address, an IPv6 /64) may use: a quarter, but at least one.
fn waiting_of_client(waiting: u32) -> u32 {
    (waiting / 4).max(1).min(waiting)
}

impl BasicAuth {
    /// Most requests of one client that may wait (count).
    pub fn waiting_of_client(&self) -> u32 {
        waiting_of_client(self.waiting)
    }

    /// The users in the file; none if it was not read.
    pub fn accounts(&self) -> Vec<Account<'_>> {
        self.users.as_ref().map(|file| users::accounts(&file.content).0).unwrap_or_default()
    }
}

/// The ways to authenticate.
const WAYS: [&str; 3] = ["forward", "basic", "jwt"];

/// The results of examining the user and key files of a config: each file is examined once, however many
/// routes name it.
#[derive(Default)]
pub(crate) struct Looked(HashMap<(&'static str, *const u8), Rc<Look>>);

/// Everything wrong with a file, each as a message and a hint.
struct Look(Vec<(String, String)>);

impl Looked {
    /// `key` says how the content is interpreted; the config keeps `content` alive.
    fn at(&mut self, key: &'static str, content: &Arc<[u8]>, look: impl FnOnce() -> Look) -> Rc<Look> {
        self.0.entry((key, content.as_ptr())).or_insert_with(|| Rc::new(look())).clone()
    }
}

/// Reports mistakes in the `auth` of a listener or a route.
pub(crate) fn check(root: &Fields, fields: &Fields, looked: &mut Looked, findings: &mut Findings<'_>) {
    let Some(entry) = fields.get("auth") else { return };
    let Some(auth) = fields.table("auth") else { return };
    let said: Vec<&KeyValue> = WAYS.iter().filter_map(|way| auth.get(way)).collect();
    match said[..] {
        [] if WAYS.iter().all(|way| auth.lacks(way)) => {
            let hint = "expected `forward = { pool = \"…\" }`, `basic = { users = \"…\" }` or `jwt = { keys = \"…\" }`, or \
                        `auth = false`";
            findings.error(entry.key, "`auth` does not say who decides", hint);
        }
        [first, second, ..] => {
            let hint = format!("`{}` ({}) decides already; keep one", first.name, findings.place(first.key));
            let message = format!("`auth` cannot have both `{}` and `{}`", first.name, second.name);
            findings.error(second.key, message, hint);
        }
        _ => {}
    }
    if let Some(basic) = auth.table("basic") {
        check_basic(fields, basic, looked, findings);
    }
    if let Some(jwt) = auth.table("jwt") {
        check_jwt(fields, jwt, looked, findings);
    }
    let Some(forward) = auth.table("forward") else { return };
    named_pool::exists(root, forward, "pool", findings);
    for (at, value) in forward.list("copy_to_backend") {
        let Value::Text(name) = value else { continue };
        set_otherwise(fields, *at, name, findings);
    }
}

/// Reports a header rule in the same table that sets a field to something other than the user data.
fn set_otherwise(fields: &Fields, at: Span, name: &str, findings: &mut Findings<'_>) {
    for verb in ["set", "add"] {
        let map = format!("{verb}_request_header");
        let Some(rule) = fields.map(&map).iter().find(|rule| rule.name == *name) else { continue };
        let hint = format!("`{map}` says another value ({}); keep one", findings.place(rule.key));
        findings.error(at, format!("`{name}` cannot be copied and set"), hint);
    }
}

fn check_basic(fields: &Fields, basic: &Fields, looked: &mut Looked, findings: &mut Findings<'_>) {
    if let (Some(entry), Some(name)) = (basic.get("user_header"), basic.text("user_header")) {
        set_otherwise(fields, entry.at, name, findings);
    }
    let Some(entry) = basic.get("users") else { return };
    let Value::Read(path, content) = &entry.value else { return };
    let look = looked.at("users", content, || {
        let (accounts, mistakes) = users::accounts(content);
        let is_empty = accounts.is_empty() && mistakes.is_empty();
        let said =
            |Mistake { line, message, hint }| (format!("line {line} of {}: {message}", quote(path)), hint);
        let mut all: Vec<_> = mistakes.into_iter().map(said).collect();
        if is_empty {
            let hint = "nobody could pass: expected lines of `NAME:HASH`, as `htpasswd -B` writes them";
            all.push((format!("{} has no users", quote(path)), hint.to_owned()));
        }
        Look(all)
    });
    for (message, hint) in &look.0 {
        findings.error(entry.at, message, hint);
    }
}

fn check_jwt(fields: &Fields, jwt: &Fields, looked: &mut Looked, findings: &mut Findings<'_>) {
    for claim in jwt.map("claims") {
        set_otherwise(fields, claim.key, &claim.name, findings);
    }
    if jwt.lacks("audience") {
        let hint = "name those that this site is called by";
        findings.warning(
            jwt.at,
            "tokens that were issued for other services pass: there is no `audience`",
            hint,
        );
    }
    key_source::check(jwt, findings);
    let Some(entry) = jwt.get("keys") else { return };
    let Value::Read(path, content) = &entry.value else { return };
    let look = looked.at("keys", content, || {
        let (keys, mistakes) = keys::keys(content);
        let is_empty = keys.is_empty() && mistakes.is_empty();
        let said = |(number, message)| {
            let of = if number == 0 { quote(path) } else { format!("key {number} of {}", quote(path)) };
            let hint = "expected a JWK set with public keys by RSA, P-256, P-384 or Ed25519";
            (format!("{of}: {message}"), hint.to_owned())
        };
        let mut all: Vec<_> = mistakes.into_iter().map(said).collect();
        if is_empty {
            let hint = "nobody could pass: its keys are for something else, by `use` or `key_ops`";
            all.push((format!("{} has no keys for signatures", quote(path)), hint.to_owned()));
        }
        Look(all)
    });
    for (message, hint) in &look.0 {
        findings.error(entry.at, message, hint);
    }
}

/// User data sent to a backend must not affect an answer that all clients share: it is not part of the cache
/// key (threat E1). `route` includes what it inherits from its listener.
pub(crate) fn cached(route: &Fields, findings: &mut Findings<'_>) {
    if !matches!(route.get("cache").map(|entry| &entry.value), Some(Value::Table(_))) {
        return;
    }
    let held = route.holds("auth");
    let Some(Value::Table(auth)) = held.as_deref() else { return };
    let copied = auth.table("forward").map(|forward| forward.list("copy_to_backend")).unwrap_or_default();
    let of_basic = auth.table("basic").and_then(|basic| basic.get("user_header"));
    let of_jwt = auth.table("jwt").and_then(|jwt| jwt.map("claims").first());
    let (key, at, name) = match (copied.first(), of_basic, of_jwt) {
        (Some((at, Value::Text(name))), ..) => ("copy_to_backend", *at, name),
        (_, Some(KeyValue { at, value: Value::Text(name), .. }), _) => ("user_header", *at, name),
        (.., Some(KeyValue { key, name, .. })) => ("claims", *key, name),
        _ => return,
    };
    let or_else = match route.get("auth") {
        Some(_) => "",
        None => ", or give this route an `auth` of its own",
    };
    let hint = format!(
        "an answer that is made for one user would be given to all ({} tells backends `{name}`); take one of the two out{or_else}",
        findings.place(at)
    );
    findings.error(route.at("cache"), format!("`cache` cannot stand beside `{key}`"), hint);
}

/// The pool whose service authenticates requests for a listener or a route.
pub(crate) fn pools(fields: &Fields) -> Option<&str> {
    fields.table("auth")?.table("forward")?.text("pool")
}
