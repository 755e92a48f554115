//! Explains where a request, a connection or a statement would go, and why, by calling the data path's own
//! functions on the live state.

mod http;
mod session;
mod sql;
mod tls;

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use weir_balance::{PickInput, Picker, TierKind, WantedRole};
use weir_config::units::show_duration;
use weir_config::{Bind, InetBind, NEVER, Protocol};
use weir_control::control::Control;
use weir_control::kernel::{Explanation, KernelPlane};
use weir_io::clock;
use weir_l4::explain::Packet;
use weir_l4::layout::{TCP, UDP};
use weir_proxy::compiled::CompiledSnapshot;
use weir_proxy::http::screening::ScreenCheck;
use weir_proxy::timers::TimerInForce;
use weir_state::sockets;
use weir_state::{Listener, Pool, Snapshot};

use crate::maps::LookedUp;
use crate::status::reason_of;

pub use sql::{SqlQuestion, Statement, Transaction, Worded};

/// The question of a `POST /v1/explain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "lowercase", deny_unknown_fields)]
pub enum Question {
    /// An HTTP request.
    Http {
        /// Method.
        method: String,
        /// `http://host[:port]/path?query`, or `/path?query` or `*` with a `host` header.
        url: String,
        /// The peer's address: the client, or a trusted proxy that names the client in `x-forwarded-for`;
        /// default 127.0.0.1.
        from: Option<IpAddr>,
        /// Header fields.
        #[serde(default)]
        headers: Vec<(String, String)>,
        /// Name of the listener; default: the one at the URL's address and port.
        listener: Option<String>,
        /// The server name (SNI) in the TLS client hello; default: the host.
        #[serde(default)]
        server_name: Option<String>,
    },
    /// A TCP connection.
    Tcp {
        /// Address of the client.
        source: SocketAddr,
        /// Address of the listener.
        destination: SocketAddr,
        /// The server name (SNI) in the TLS client hello; default: none.
        #[serde(default)]
        server_name: Option<String>,
    },
    /// A UDP flow.
    Udp {
        /// Address of the client.
        source: SocketAddr,
        /// Address of the listener.
        destination: SocketAddr,
    },
    /// An SQL statement.
    Sql(SqlQuestion),
}

/// What would happen, and why.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Name of the listener.
    pub listener: String,
    /// Why that listener.
    pub listener_reason: String,
    /// What would keep such a request from reaching this listener; empty if nothing would.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The server name that routes of a TCP listener compare, and what happens to a client without one, in
    /// words; `None` if no route compares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// The path that routes compare; empty for TCP.
    pub path: String,
    /// The verdict of each route, in order; empty if there are none.
    pub routes: Vec<ExplainedRoute>,
    /// The checks before that, in order; empty if there are none.
    #[serde(default)]
    pub screens: Vec<Screened>,
    /// The verdict of the SQL injection screen on the request's head, if the route has one.
    #[serde(default)]
    pub sqli: Option<String>,
    /// Which authentication applies and its result; `None` if the route needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<String>,
    /// What the statement does and needs; `None` if the question is not about a statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<Statement>,
    /// On the kernel plane: each step of the packet program, in order; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// The result: `forward to pool app`, `redirect 308 to …`, `respond 200`, `refuse 404, no_route`, `refuse
    /// 403, deny_path of the route`.
    pub action: String,
    /// Status of Weir's own answer; `None` for a forwarded request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why Weir refuses it: the word in the body of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// How a refusal is shown to the client. For a forwarded request: which answers of backends are replaced
    /// by error pages, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<String>,
    /// The value that each map of the config gives for the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<LookedUp>,
    /// The target of a redirect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The path sent to a backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_path: Option<String>,
    /// The host sent to a backend, if it is not the client's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_host: Option<String>,
    /// The header changes made by rules, in the order in which they apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub header_changes: Vec<HeaderChange>,
    /// The access logs that get its line, if their conditions and samples match; `None` if there is only that
    /// of `[log]`, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<String>>,
    /// The certificate shown to a client that asks for this name (SNI), or why the handshake is refused;
    /// `None` without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The cache's verdict; `None` if the route has no cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// How the route splits its requests, by shares or a map, in words; `None` if all go to one place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Where the route's requests are mirrored to, in words; `None` if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// What is buffered for slow clients, in words; `None` if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffered: Option<String>,
    /// The HTTP version towards backends, if backends choose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The state of the pool's breaker, in words; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<String>,
    /// The sticky cookie with its attributes, as a client without one would get it; `None` if the pool has
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<String>,
    /// When a failed attempt is retried, in words; `None` if the request goes to no pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// When the request is also sent to a second backend (hedged), in words; `None` if it never is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<String>,
    /// The timeouts that apply on the way to a pool, and where each is set; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<Timer>,
    /// The choice among the pool's backends; `None` when the request goes to no pool.
    pub pool: Option<Choice>,
}

/// A timeout in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timer {
    /// Its key below `timeout`.
    pub name: String,
    /// As in the config: `30s`, or `off`.
    pub value: String,
    /// `route`, `pool` or `listener`.
    pub from: String,
}

/// One route.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainedRoute {
    /// Its name.
    pub route: String,
    /// Whether it matched the request.
    pub taken: bool,
    /// Why, or why not.
    pub reason: String,
}

/// One change to a header field.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeaderChange {
    /// The receiver of the message: `backend` or `client`.
    pub to: String,
    /// The owner of the rule: `listener`, `pool` or `route`.
    pub of: String,
    /// `set`, `add`, `remove` or `replace`.
    pub action: String,
    /// Name of the field.
    pub name: String,
    /// The new value; `None` if the field is removed, or left out because the value is empty. For `replace`:
    /// which values are replaced, and by what. Possible secrets are masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// One check that a listener or a route makes on a request, and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Screened {
    /// `listener` or `route`.
    pub of: String,
    /// The key of the config.
    pub name: String,
    /// Whether the request passes.
    pub passes: bool,
    /// Why, in words.
    pub reason: String,
}

/// The choice among the backends of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// Name of the pool.
    pub pool: String,
    /// The algorithm's name.
    pub balance: String,
    /// The backend that would be chosen now; `None` when none can be.
    pub backend: Option<String>,
    /// Why that one, or why none.
    pub reason: String,
    /// Every backend.
    pub backends: Vec<Candidate>,
}

/// One backend in a choice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// As configured.
    pub address: String,
    /// Its state as a word.
    pub state: String,
    /// `primary` or `secondary`; `None` if backends have no roles, or its role is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Requests in flight now.
    pub in_flight: u32,
    /// Weight in force.
    pub weight: u32,
    /// Why it could not be chosen; empty if it could.
    pub refusal: String,
    /// Why it is not ready: the result of its probe, or the failure that ejected it; empty if it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Answers the question, or says what is wrong with it.
pub async fn explain(
    compiled: &CompiledSnapshot,
    kernel: &KernelPlane,
    question: &Question,
) -> Result<Answer, String> {
    let (protocol, source, destination) = match question {
        Question::Tcp { source, destination, .. } => (Protocol::Tcp, *source, *destination),
        Question::Udp { source, destination } => (Protocol::Udp, *source, *destination),
        Question::Http { .. } | Question::Sql(_) => return on_the_proxy_plane(compiled, question),
    };
    let listener = listener_at(&compiled.snapshot, protocol, destination)?;
    if !kernel.placements().is_in_kernel(&listener.config.name) {
        return on_the_proxy_plane(compiled, question);
    }
    let protocol = if protocol == Protocol::Udp { UDP } else { TCP };
    let explained = kernel.explain(Packet { source, destination, protocol }).await?;
    let mut answer = in_kernel(&compiled.snapshot, listener, destination, explained);
    answer.screens = of_client(compiled, listener, source.ip());
    Ok(answer)
}

/// The verdict of the kernel's own program, and the state of the pool's backends.
fn in_kernel(
    snapshot: &Snapshot,
    listener: &Listener,
    destination: SocketAddr,
    explained: Explanation,
) -> Answer {
    let mut answer = Answer::of(listener, format!("takes packets to {destination} on the kernel plane"));
    let pool = explained.pool.as_deref().or(listener.config.pool.as_deref());
    answer.pool = pool.and_then(|name| snapshot.pool(name)).map(|pool| {
        let mut choice = choose(pool, None, None);
        let chosen = pool.backends.iter().find(|it| it.resolved.address() == explained.backend);
        choice.backend = chosen.filter(|_| explained.backend.is_some()).map(|it| it.address.clone());
        choice.reason = "what the program in the kernel says".to_owned();
        choice
    });
    answer.steps = explained.steps;
    answer.action = explained.action;
    answer
}

/// Answers by the proxy's own functions.
fn on_the_proxy_plane(compiled: &CompiledSnapshot, question: &Question) -> Result<Answer, String> {
    match question {
        Question::Http { method, url, from, headers, listener, server_name } => {
            let peer = from.unwrap_or(IpAddr::from([127, 0, 0, 1]));
            let asked = http::Asked::read(method, url, headers)?;
            http::explain(compiled, &asked, peer, listener.as_deref(), server_name.as_deref())
        }
        Question::Tcp { source, destination, server_name } => {
            session::of_connection(compiled, *source, *destination, server_name.as_deref())
        }
        Question::Udp { source, destination } => session::of_flow(compiled, *source, *destination),
        Question::Sql(question) => sql::explain(compiled, question),
    }
}

/// The listener for a protocol at an address.
fn listener_at(
    snapshot: &Snapshot,
    protocol: Protocol,
    destination: SocketAddr,
) -> Result<&std::sync::Arc<Listener>, String> {
    let accepts = |listener: &&std::sync::Arc<Listener>| {
        let at = |bind: &InetBind| {
            let ip = bind.first.ip();
            bind.ports().contains(&destination.port()) && (ip == destination.ip() || ip.is_unspecified())
        };
        listener.config.protocol() == protocol && listener.config.bind.iter().filter_map(Bind::inet).any(at)
    };
    let listener = snapshot.listeners.iter().find(accepts);
    listener.ok_or_else(|| {
        format!("no {} listener accepts at {destination}", protocol.word().to_ascii_uppercase())
    })
}

/// ` by eth0` if a listener accepts only from that interface: another listener may accept the rest.
fn by_interfaces(config: &weir_config::Listener) -> String {
    let names: Vec<_> = sockets::interfaces_of(config).collect();
    if names.is_empty() { String::new() } else { format!(" by {}", names.join(" and ")) }
}

/// The verdicts of address lists and rate limits on a client, for a listener that does not speak HTTP.
fn of_client(compiled: &CompiledSnapshot, listener: &Listener, client: IpAddr) -> Vec<Screened> {
    let screen = compiled.listener(&listener.config.name).and_then(|listener| listener.screen.as_deref());
    let checks = screen.map(|screen| screen.explain_client(client, clock::now())).unwrap_or_default();
    let screened = |it: ScreenCheck| Screened {
        of: "listener".to_owned(),
        name: it.name,
        passes: it.passes,
        reason: it.reason,
    };
    checks.into_iter().map(screened).collect()
}

/// Marks the answer as refused if a check failed; returns whether one did.
fn refuse_by_screens(answer: &mut Answer) -> bool {
    let Some(refused) = answer.screens.iter().find(|it| !it.passes) else { return false };
    let word = if refused.name == "rate_limit" { "rate_limited" } else { "denied_address" };
    answer.action = format!("refuse, {word}");
    answer.refusal = Some(word.to_owned());
    true
}

/// The timeouts in force, in words.
fn timers(all: [TimerInForce; 6]) -> Vec<Timer> {
    let told = |it: TimerInForce| Timer {
        name: it.name.to_owned(),
        value: if it.timer == NEVER { "off".to_owned() } else { show_duration(it.timer) },
        from: it.said_by.word().to_owned(),
    };
    all.into_iter().map(told).collect()
}

impl Answer {
    /// Adds to each backend of the pool the reason why it is not ready, as in the status.
    pub fn say_why(&mut self, control: &Control) {
        let snapshot = control.snapshot();
        let Some(choice) = &mut self.pool else { return };
        let Some(pool) = snapshot.pool(&choice.pool) else { return };
        for candidate in &mut choice.backends {
            let index = pool.backends.iter().position(|backend| backend.address == candidate.address);
            candidate.why = index.map(|index| reason_of(control, pool, index)).unwrap_or_default();
        }
    }

    /// An answer that names only the listener.
    fn of(listener: &Listener, listener_reason: String) -> Answer {
        Answer { listener: listener.config.name.clone(), listener_reason, ..Answer::default() }
    }
}

fn choose(pool: &Pool, key: Option<u64>, sticky: Option<u64>) -> Choice {
    choose_in(pool, key, sticky, None)
}

/// The same, among the backends with a role.
fn choose_in(pool: &Pool, key: Option<u64>, sticky: Option<u64>, role: Option<WantedRole>) -> Choice {
    // Both draws are in the middle of the range, so that an explanation changes only if something else does.
    let input = PickInput { now: clock::now(), draw: [u32::MAX / 2; 2], key, sticky, exclude: &[], role };
    let explanation = Picker::new(pool.balance.clone()).explain(&input);
    let (backend, reason) = match &explanation.outcome {
        Ok(pick) => {
            let mut reason = pick.reason.words().to_owned();
            match pick.tier {
                TierKind::LastResort => {
                    reason = format!("{reason}; {}", explanation.backends[pick.index].0.last_resort_words());
                }
                TierKind::Panic => reason = format!("{reason}; {}", weir_balance::BackendStatus::PANIC_WORDS),
                TierKind::Ordinary | TierKind::Backup => {}
            }
            (pool.backends.get(pick.index).map(|it| it.address.clone()), reason)
        }
        Err(none) => (None, none.to_string()),
    };
    let backends = explanation.backends.iter().map(|(status, refusal)| Candidate {
        address: status.address.clone(),
        state: status.state.word().to_owned(),
        role: status.role.map(|role| role.word().to_owned()),
        in_flight: status.in_flight,
        weight: status.weight,
        refusal: refusal.map(|refusal| refusal.words().to_owned()).unwrap_or_default(),
        why: String::new(),
    });
    let (pool, balance) = (pool.config.name.clone(), pool.config.balance.word().to_owned());
    Choice { pool, balance, backend, reason, backends: backends.collect() }
}

#[cfg(test)]
mod tests;
