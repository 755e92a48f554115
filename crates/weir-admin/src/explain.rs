//! Why a request, a connection or a statement would go where it goes: the data path's own functions asked
//! about the live state.

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

/// What `POST /v1/explain` asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "lowercase", deny_unknown_fields)]
pub enum Question {
    /// An HTTP request.
    Http {
        /// Method.
        method: String,
        /// `http://host[:port]/path?query`, or `/path?query` or `*` with a `host` header.
        url: String,
        /// Who connects: the client, or a trusted proxy that names it in `x-forwarded-for`; default
        /// 127.0.0.1.
        from: Option<IpAddr>,
        /// Header fields.
        #[serde(default)]
        headers: Vec<(String, String)>,
        /// Name of the listener; default: the one that the URL's address and port lead to.
        listener: Option<String>,
        /// The name that the client asks for in its TLS greeting; default: the host.
        #[serde(default)]
        server_name: Option<String>,
    },
    /// A TCP connection.
    Tcp {
        /// Address of the client.
        source: SocketAddr,
        /// Address of the listener.
        destination: SocketAddr,
        /// The name that the client asks for in its TLS greeting; default: none.
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
    /// Why that one.
    pub listener_reason: String,
    /// What keeps the question from coming to this listener as it is asked; empty where nothing does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The server name that routes of a TCP listener are compared with, and what becomes of a client without
    /// one, in words; `None` where no route asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// The path that routes are compared with; empty for TCP.
    pub path: String,
    /// What became of each route, in order; empty where there are none.
    pub routes: Vec<ExplainedRoute>,
    /// What is asked of the request before that, in order; empty where nothing is.
    #[serde(default)]
    pub screens: Vec<Screened>,
    /// What the screen for SQL injection says of the request's head, where the route has one.
    #[serde(default)]
    pub sqli: Option<String>,
    /// Who says whether the request may pass, and what becomes of the answer; `None` where everybody may ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<String>,
    /// What the statement wants and leaves behind; `None` where the question is about no statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<Statement>,
    /// On the kernel plane: each step of the packet program, in order; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// What happens: `forward to pool app`, `redirect 308 to …`, `respond 200`, `refuse 404, no_route`,
    /// `refuse 403, deny_path of the route`.
    pub action: String,
    /// Status of Weir's own answer; `None` for what is forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why Weir refuses it, the word that the body of the answer says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// How the client is told of a refusal; for what is forwarded, which answers of backends pages take the
    /// place of, where any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<String>,
    /// What each map of the config says of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<LookedUp>,
    /// Where a redirect leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The path that a backend is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_path: Option<String>,
    /// The host that a backend is asked by, where it is not the client's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_host: Option<String>,
    /// What rules change about header fields, in the order in which it is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub header_changes: Vec<HeaderChange>,
    /// The access logs that its line goes to, where their conditions and samples let it pass; `None` where
    /// there is only the one of `[log]`, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<String>>,
    /// Which certificate a client is shown that asks for this name (SNI), or why the handshake is refused;
    /// `None` without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// What the cache of the route would say; `None` where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// Which of the route's requests go where, by shares or a map, in words; `None` where all go to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Where copies of the route's requests go, in words; `None` where none are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// What is held back for slow clients, in words; `None` where nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffered: Option<String>,
    /// What backends are asked in, where they pick it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// How the pool's breaker stands, in words; `None` where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<String>,
    /// The cookie that keeps a client on its backend, with its attributes, as one without it is told; `None`
    /// where the pool has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<String>,
    /// When a failed attempt is made again, in words; `None` for what goes to no pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// When a second backend is asked beside the first, in words; `None` where none ever is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<String>,
    /// The timers of what goes to a pool, and who says each; empty for the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<Timer>,
    /// The choice among the pool's backends; `None` when the request goes to no pool.
    pub pool: Option<Choice>,
}

/// A timer in force.
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
    /// Whether it took the request.
    pub taken: bool,
    /// Why, or why not.
    pub reason: String,
}

/// One change to a header field.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeaderChange {
    /// Who gets the message: `backend` or `client`.
    pub to: String,
    /// Whose rule it is: `listener`, `pool` or `route`.
    pub of: String,
    /// `set`, `add` or `remove`.
    pub action: String,
    /// Name of the field.
    pub name: String,
    /// Its value; `None` where it is taken out, and where it comes out empty and is left out. What may be
    /// secret is masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// One question that a listener or a route asks of a request, and the answer.
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
    /// The algorithm's word.
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
    /// Its state's word.
    pub state: String,
    /// `primary` or `secondary`; `None` where backends have no roles, or nobody knows this one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Being worked on now.
    pub in_flight: u32,
    /// In force.
    pub weight: u32,
    /// Why it was out of the question; empty when it could have been chosen.
    pub refusal: String,
    /// Why it is not ready: what its probe got, the failure that ejected it; empty where it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Answers, or says what is wrong with the question.
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

/// What the kernel's own program says, beside how the backends of its pool stand.
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

/// Answers from the proxy's own functions.
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

/// The listener of a protocol at an address.
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

/// ` by eth0` where a listener accepts what comes by that interface only: another may accept the rest.
fn by_interfaces(config: &weir_config::Listener) -> String {
    let names: Vec<_> = sockets::interfaces_of(config).collect();
    if names.is_empty() { String::new() } else { format!(" by {}", names.join(" and ")) }
}

/// What the lists of addresses and limits of rate of a listener that speaks no HTTP say of a client.
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

/// Has a client refused that did not pass one of the screens; whether that is so.
fn refuse_by_screens(answer: &mut Answer) -> bool {
    let Some(refused) = answer.screens.iter().find(|it| !it.passes) else { return false };
    let word = if refused.name == "rate_limit" { "rate_limited" } else { "denied_address" };
    answer.action = format!("refuse, {word}");
    answer.refusal = Some(word.to_owned());
    true
}

/// The timers in force, for people.
fn timers(all: [TimerInForce; 6]) -> Vec<Timer> {
    let told = |it: TimerInForce| Timer {
        name: it.name.to_owned(),
        value: if it.timer == NEVER { "off".to_owned() } else { show_duration(it.timer) },
        from: it.said_by.word().to_owned(),
    };
    all.into_iter().map(told).collect()
}

impl Answer {
    /// Says of each backend of the pool why it is not ready, as the status does.
    pub fn say_why(&mut self, control: &Control) {
        let snapshot = control.snapshot();
        let Some(choice) = &mut self.pool else { return };
        let Some(pool) = snapshot.pool(&choice.pool) else { return };
        for candidate in &mut choice.backends {
            let index = pool.backends.iter().position(|backend| backend.address == candidate.address);
            candidate.why = index.map(|index| reason_of(control, pool, index)).unwrap_or_default();
        }
    }

    /// Nothing but which listener it comes to.
    fn of(listener: &Listener, listener_reason: String) -> Answer {
        Answer { listener: listener.config.name.clone(), listener_reason, ..Answer::default() }
    }
}

fn choose(pool: &Pool, key: Option<u64>, sticky: Option<u64>) -> Choice {
    choose_in(pool, key, sticky, None)
}

/// The same among the backends that have a role.
fn choose_in(pool: &Pool, key: Option<u64>, sticky: Option<u64>, role: Option<WantedRole>) -> Choice {
    // The middle of the range for both draws: an explanation should not change when nothing else does.
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
