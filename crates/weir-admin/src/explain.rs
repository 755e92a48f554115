//! Why a request, a connection or a statement would go where it goes: the data path's own functions asked
//! about the live state.

mod http;
mod sql;

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use weir_balance::{PickInput, Picker, TierKind, WantedRole};
use weir_config::{Bind, Protocol};
use weir_control::control::Control;
use weir_control::kernel::{Explanation, KernelPlane};
use weir_io::clock;
use weir_l4::explain::Packet;
use weir_l4::layout::{TCP, UDP};
use weir_proxy::compiled::CompiledSnapshot;
use weir_proxy::http::screening::ScreenCheck;
use weir_state::key::{Transport, flow_key};
use weir_state::{Listener, Pool, Snapshot};

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
    /// The path that routes are compared with; empty for TCP.
    pub path: String,
    /// What became of each route, in order; empty for TCP.
    pub routes: Vec<Verdict>,
    /// What is asked of the request before that, in order; empty where nothing is.
    #[serde(default)]
    pub screens: Vec<Screened>,
    /// What the screen for SQL injection says of the request's head, where the route has one.
    #[serde(default)]
    pub sqli: Option<String>,
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
    /// What the cache of the route would say; `None` where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// The choice among the pool's backends; `None` when the request goes to no pool.
    pub pool: Option<Choice>,
}

/// One route.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
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
        Question::Tcp { source, destination } => (Protocol::Tcp, *source, *destination),
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
        Question::Tcp { source, destination } => session(compiled, Protocol::Tcp, *source, *destination),
        Question::Udp { source, destination } => session(compiled, Protocol::Udp, *source, *destination),
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
        let at = |bind: &Bind| {
            let ip = bind.first.ip();
            bind.ports().contains(&destination.port()) && (ip == destination.ip() || ip.is_unspecified())
        };
        listener.config.protocol() == protocol && listener.config.bind.iter().any(at)
    };
    let listener = snapshot.listeners.iter().find(accepts);
    listener.ok_or_else(|| {
        format!("no {} listener accepts at {destination}", protocol.word().to_ascii_uppercase())
    })
}

/// What the lists of addresses of a tcp or udp listener say of a client.
fn of_client(compiled: &CompiledSnapshot, listener: &Listener, client: IpAddr) -> Vec<Screened> {
    let screen = compiled.listener(&listener.config.name).and_then(|listener| listener.screen.as_deref());
    let check = screen.and_then(|screen| screen.explain_client(client));
    let screened = |it: ScreenCheck| Screened {
        of: "listener".to_owned(),
        name: it.name,
        passes: it.passes,
        reason: it.reason,
    };
    check.map(screened).into_iter().collect()
}

fn session(
    compiled: &CompiledSnapshot,
    protocol: Protocol,
    source: SocketAddr,
    destination: SocketAddr,
) -> Result<Answer, String> {
    let snapshot = &compiled.snapshot;
    let listener = listener_at(snapshot, protocol, destination)?;
    let pool = listener.config.pool.as_deref().and_then(|name| snapshot.pool(name));
    let pool = pool.ok_or_else(|| format!("listener `{}` has no pool", listener.config.name))?;
    let mut answer = Answer::of(listener, format!("accepts at {destination}"));
    answer.screens = of_client(compiled, listener, source.ip());
    if answer.screens.iter().any(|it| !it.passes) {
        answer.action = "refuse, denied_address".to_owned();
        answer.refusal = Some("denied_address".to_owned());
        return Ok(answer);
    }
    answer.action = format!("forward to pool {}", pool.config.name);
    let transport = match protocol {
        Protocol::Udp => Transport::Udp,
        Protocol::Http | Protocol::Tcp | Protocol::Mysql => Transport::Tcp,
    };
    let key = flow_key(&pool.config, transport, source, || Some(destination));
    answer.pool = Some(choose(pool, key, None));
    Ok(answer)
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
            if pick.tier == TierKind::LastResort {
                reason = format!("{reason}; {}", explanation.backends[pick.index].0.last_resort_words());
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
mod tests {
    use super::*;
    use std::sync::Arc;
    use weir_tls::{Loaded, TicketKeys};

    fn snapshot(text: &str) -> CompiledSnapshot {
        let config = weir_config::parse("test.toml", text).unwrap_or_else(|report| panic!("{report}"));
        let loaded = Loaded::load(&config, &TicketKeys::new([]), &Arc::default()).unwrap();
        let snapshot = Snapshot::compile(Arc::new(config), &loaded, None, 1);
        CompiledSnapshot::compile(Arc::new(snapshot), None, 1)
    }

    const CONFIG: &str = "
        [listener.web]
        bind = '0.0.0.0:8080'
        pool = 'app'
        [[listener.web.route]]
        host = 'shop.example'
        path = '/api/*'
        pool = 'api'
        [[listener.web.route]]
        path = '/old/*'
        redirect = { to = 'https://shop.example' }
        [listener.raw]
        protocol = 'tcp'
        bind = '127.0.0.1:7000'
        pool = 'app'
        [pool.app]
        backends = ['10.0.0.1:80', '10.0.0.2:80']
        [pool.api]
        backends = ['10.0.0.3:80']
        balance = 'source'
    ";

    fn ask(url: &str) -> Result<Answer, String> {
        let (method, url) = ("GET".to_owned(), url.to_owned());
        on_the_proxy_plane(
            &snapshot(CONFIG),
            &Question::Http {
                method,
                url,
                from: None,
                headers: Vec::new(),
                listener: None,
                server_name: None,
            },
        )
    }

    #[test]
    fn a_request_is_followed_to_its_backend_with_a_reason_at_each_step() {
        let answer = ask("http://shop.example:8080/api/cart?id=1").unwrap();
        assert_eq!(
            (answer.listener.as_str(), answer.listener_reason.as_str()),
            ("web", "accepts at port 8080")
        );
        assert_eq!(answer.path, "/api/cart");
        assert_eq!(answer.routes.iter().map(|it| it.taken).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(answer.action, "forward to pool api");
        let choice = answer.pool.unwrap();
        assert_eq!((choice.backend.as_deref(), choice.balance.as_str()), (Some("10.0.0.3:80"), "source"));
        assert!(!choice.reason.is_empty());
    }

    #[test]
    fn what_no_route_takes_goes_to_the_listeners_pool_and_a_redirect_to_no_pool() {
        assert_eq!(ask("http://other:8080/api/x").unwrap().action, "forward to pool app");
        let redirected = ask("http://other:8080/old/x").unwrap();
        assert!(redirected.action.starts_with("redirect 308 to "), "{}", redirected.action);
        assert!(redirected.pool.is_none());
    }

    #[test]
    fn a_port_nobody_accepts_at_leads_to_the_only_listener_and_says_so() {
        let answer = ask("http://shop.example/").unwrap();
        assert_eq!(answer.listener_reason, "the only HTTP listener, though it does not accept at port 80");
    }

    #[test]
    fn a_question_that_can_not_be_understood_says_what_was_expected() {
        for url in ["", "http://", "/no-host"] {
            let error = ask(url).unwrap_err();
            assert!(error.contains("expected http://host"), "{url}: {error}");
        }
    }

    #[test]
    fn a_connection_is_explained_by_its_destination() {
        let tcp = |destination: &str| {
            let (source, destination) = ("10.9.9.9:1234".parse().unwrap(), destination.parse().unwrap());
            on_the_proxy_plane(&snapshot(CONFIG), &Question::Tcp { source, destination })
        };
        let answer = tcp("127.0.0.1:7000").unwrap();
        assert_eq!((answer.listener.as_str(), answer.action.as_str()), ("raw", "forward to pool app"));
        assert_eq!(tcp("127.0.0.1:7001").unwrap_err(), "no TCP listener accepts at 127.0.0.1:7001");
    }

    #[test]
    fn a_cookie_leads_where_the_data_path_would_go_also_from_a_second_header_line() {
        let config = "
            [listener.web]
            bind = '0.0.0.0:8080'
            pool = 'app'
            [pool.app]
            backends = ['10.0.0.1:80', '10.0.0.2:80', '10.0.0.3:80']
            sticky = { cookie = 'weir' }
        ";
        let snapshot = snapshot(config);
        let sticky = snapshot.snapshot.pools[0].sticky.clone().unwrap();
        for backend in &snapshot.snapshot.pools[0].backends {
            let cookie = |value: &str| ("Cookie".to_owned(), value.to_owned());
            let question = Question::Http {
                method: "GET".to_owned(),
                url: "http://shop.example:8080/".to_owned(),
                from: None,
                headers: vec![
                    cookie("a=1"),
                    cookie(&format!("b=2; weir={}", sticky.seal(backend.balance.id()))),
                ],
                listener: None,
                server_name: None,
            };
            let choice = on_the_proxy_plane(&snapshot, &question).unwrap().pool.unwrap();
            assert_eq!(choice.backend.as_deref(), Some(backend.address.as_str()));
            assert_eq!(choice.reason, "the cookie names it");
        }
    }

    const MYSQL: &str = "
        [listener.db]
        protocol = 'mysql'
        bind = '127.0.0.1:6446'
        pool = 'cluster'
        deny_address = ['10.9.9.0/24']
        [listener.reads]
        protocol = 'mysql'
        bind = '127.0.0.1:6447'
        access = 'read-only'
        pool = 'cluster'
        [listener.split]
        protocol = 'mysql'
        bind = '127.0.0.1:6450'
        access = 'auto'
        pool = 'cluster'
        [listener.passed]
        protocol = 'mysql'
        bind = '127.0.0.1:6448'
        pool = 'cluster'
        tls = { mode = 'passthrough' }
        [pool.cluster]
        backends = ['10.0.0.1:3306', '10.0.0.2:3306']
        [pool.cluster.mysql]
        topology = 'static'
    ";

    fn of_sql(question: serde_json::Value) -> Result<Answer, String> {
        let mut question = question;
        question["protocol"] = "sql".into();
        on_the_proxy_plane(&snapshot(MYSQL), &serde_json::from_value(question).unwrap())
    }

    #[test]
    fn a_statement_goes_to_the_backend_in_the_role_of_its_listener_and_says_what_its_text_wants() {
        for (listener, wants, reason, backend) in [
            ("db", "primary", "read_write_listener", "10.0.0.1:3306"),
            ("reads", "any", "read_only_listener", "10.0.0.2:3306"),
            ("split", "any", "plain_read", "10.0.0.2:3306"),
            ("passed", "primary", "read_write_listener", "10.0.0.1:3306"),
        ] {
            let text = "SELECT a FROM t";
            let answer = of_sql(serde_json::json!({ "statement": text, "listener": listener })).unwrap();
            let statement = answer.statement.unwrap();
            assert_eq!((statement.wants.as_str(), statement.reason.word.as_str()), (wants, reason));
            assert_eq!(
                (statement.own_wants.as_str(), statement.own_reason.word.as_str()),
                ("any", "plain_read")
            );
            assert_eq!(answer.pool.unwrap().backend.as_deref(), Some(backend), "{listener}");
            let stays = answer.action.contains("its session stays there");
            assert_eq!(stays, listener == "passed", "{}", answer.action);
        }
    }

    #[test]
    fn a_statement_says_what_it_leaves_behind_and_asks_for_and_whether_it_may_be_sent_again() {
        let text = "SET @id = LAST_INSERT_ID()";
        let answer = of_sql(serde_json::json!({ "statement": text, "listener": "db" })).unwrap();
        let statement = answer.statement.unwrap();
        let words = |all: &[Worded]| all.iter().map(|it| it.word.clone()).collect::<Vec<_>>();
        assert_eq!(words(&statement.leaves), ["user_variable"]);
        assert_eq!(words(&statement.reads_back), ["last_insert_id"]);
        assert!(statement.pins);
        assert_eq!(statement.resend.word, "if_refused");
        assert_eq!(statement.own_reason.word, "setting");
    }

    #[test]
    fn a_statement_is_judged_by_the_session_that_the_question_describes() {
        let text = r"SELECT 'a\'; DELETE FROM t; -- '";
        let with = |key: &str, value: serde_json::Value| {
            let mut question = serde_json::json!({ "statement": text, "listener": "db" });
            question[key] = value;
            of_sql(question).unwrap().statement.unwrap()
        };
        assert_eq!(with("sql_mode", "".into()).own_reason.word, "plain_read");
        assert_eq!(with("sql_mode", "NO_BACKSLASH_ESCAPES".into()).own_reason.word, "several_statements");
        assert_eq!(with("charset", "swe7".into()).own_reason.word, "unreadable");
        assert_eq!(with("autocommit", true.into()).resend.word, "anywhere");
        assert_eq!(with("autocommit", false.into()).resend.word, "never");
        assert_eq!(with("transaction", "read-write".into()).resend.word, "never");
    }

    #[test]
    fn a_question_about_a_statement_names_its_listener_where_there_are_several() {
        let ask = |question| of_sql(question).unwrap_err();
        let expected = "expected `listener` to name one of db, reads, split, passed";
        assert_eq!(ask(serde_json::json!({ "statement": "SELECT 1" })), expected);
        let other = ask(serde_json::json!({ "statement": "SELECT 1", "listener": "web" }));
        assert_eq!(other, "no MySQL listener is named `web`, expected one of db, reads, split, passed");
        let denied = serde_json::json!({ "statement": "SELECT 1", "listener": "db", "from": "10.9.9.1" });
        assert_eq!(of_sql(denied).unwrap().action, "refuse, denied_address");
    }
}
