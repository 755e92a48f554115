//! Tests of `weir explain`.

use super::*;
use std::sync::Arc;
use weir_proxy::access_log::AccessLog;
use weir_tls::{Loaded, TicketKeys};

/// An environment in which every variable has the same value, without any files.
struct Everywhere(&'static str);

impl weir_config::World for Everywhere {
    fn read(&self, _: &str, _: usize) -> Result<Vec<u8>, String> {
        Err("is not there".to_owned())
    }

    fn names(&self, _: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn variable(&self, _: &str) -> Result<String, String> {
        Ok(self.0.to_owned())
    }
}

impl weir_config::NamedFiles for Everywhere {}

fn snapshot(text: &str) -> CompiledSnapshot {
    snapshot_in(text, &Everywhere("x"))
}

fn snapshot_in(text: &str, world: &Everywhere) -> CompiledSnapshot {
    let root = weir_config::Root { name: "test.toml", text };
    let config = weir_config::check_files(&[root], world).unwrap_or_else(|report| panic!("{report}")).config;
    let loaded = Loaded::load(&config, &TicketKeys::new([]), &Arc::default()).unwrap();
    let log = AccessLog::start(&config.log, &config.access_logs).unwrap();
    let snapshot = Snapshot::compile(Arc::new(config), &loaded, None, 1);
    CompiledSnapshot::compile(Arc::new(snapshot), None, 1, &log)
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
    ask_of(&snapshot(CONFIG), url)
}

fn ask_of(snapshot: &CompiledSnapshot, url: &str) -> Result<Answer, String> {
    let (method, url) = ("GET".to_owned(), url.to_owned());
    on_the_proxy_plane(
        snapshot,
        &Question::Http { method, url, from: None, headers: Vec::new(), listener: None, server_name: None },
    )
}

#[test]
fn a_request_is_followed_to_its_backend_with_a_reason_at_each_step() {
    let answer = ask("http://shop.example:8080/api/cart?id=1").unwrap();
    assert_eq!((answer.listener.as_str(), answer.listener_reason.as_str()), ("web", "accepts at port 8080"));
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
fn where_a_redirect_leads_is_not_shown_where_that_came_from_elsewhere() {
    const GIVEN: &str = "
        [listener.web]
        bind = '0.0.0.0:8080'
        [[listener.web.route]]
        path = '/plain'
        redirect = { to = 'https://plain.example' }
        [[listener.web.route]]
        path = '/nameless'
        redirect = { to = 'https://${env:KEY}.example' }
        [[listener.web.route]]
        name = 'named'
        path = '/named/*'
        redirect = { to = 'https://shop.example$path?key=${env:KEY}' }
    ";
    let snapshot = snapshot_in(GIVEN, &Everywhere("s3cret"));
    for (path, action, location) in [
        ("plain", "redirect 308 to https://plain.example", "https://plain.example"),
        ("nameless", "redirect 308 to (secret)", "(secret)"),
        ("named/x", "redirect 308 to $path with (secret)", "$path with (secret)"),
    ] {
        let answer = ask_of(&snapshot, &format!("http://a:8080/{path}")).unwrap();
        assert_eq!((answer.action.as_str(), answer.location.as_deref()), (action, Some(location)));
        assert!(!format!("{answer:?}").contains("s3cret"), "{answer:?}");
    }
}

#[test]
fn what_a_backend_is_asked_for_is_not_shown_where_that_came_from_elsewhere() {
    const GIVEN: &str = "
        [listener.web]
        bind = '0.0.0.0:8080'
        [[listener.web.route]]
        path = '/key/*'
        pool = 'app'
        rewrite = { add_query = 'key=${env:KEY}' }
        [[listener.web.route]]
        path = '/host/*'
        pool = 'app'
        backend_host = '${env:KEY}.example'
        [[listener.web.route]]
        path = '/pool/*'
        pool = 'of-host'
        [[listener.web.route]]
        path = '/plain/*'
        pool = 'app'
        rewrite = { add_query = 'a=b' }
        backend_host = 'plain.example'
        [pool.app]
        backends = ['10.0.0.1:80']
        [pool.of-host]
        backends = ['10.0.0.2:80']
        backend_host = '${env:KEY}.example'
    ";
    let snapshot = snapshot_in(GIVEN, &Everywhere("s3cret"));
    for (path, backend_path, host) in [
        ("/key/1", "(secret)", None),
        ("/host/1", "/host/1", Some("(secret)")),
        ("/pool/1", "/pool/1", Some("(secret)")),
        ("/plain/1", "/plain/1?a=b", Some("plain.example")),
    ] {
        let answer = ask_of(&snapshot, &format!("http://a:8080{path}")).unwrap();
        let told = (answer.backend_path.as_deref(), answer.backend_host.as_deref());
        assert_eq!(told, (Some(backend_path), host), "{path}");
        assert!(!format!("{answer:?}").contains("s3cret"), "{answer:?}");
    }
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
        on_the_proxy_plane(&snapshot(CONFIG), &Question::Tcp { source, destination, server_name: None })
    };
    let answer = tcp("127.0.0.1:7000").unwrap();
    assert_eq!((answer.listener.as_str(), answer.action.as_str()), ("raw", "forward to pool app"));
    assert_eq!(tcp("127.0.0.1:7001").unwrap_err(), "no TCP listener accepts at 127.0.0.1:7001");
}

#[test]
fn a_connection_is_explained_by_the_route_that_takes_its_server_name() {
    let config = "
        [listener.pass]
        protocol = 'tcp'
        bind = '127.0.0.1:7000'
        [[listener.pass.route]]
        name = 'shop'
        sni = ['shop.example']
        pool = 'app'
        timeout = { tunnel = '7m' }
        [pool.app]
        backends = ['10.0.0.1:80']
    ";
    let ask = |name: Option<&str>| {
        let (source, destination) = ("10.9.9.9:1234".parse().unwrap(), "127.0.0.1:7000".parse().unwrap());
        let server_name = name.map(str::to_owned);
        on_the_proxy_plane(&snapshot(config), &Question::Tcp { source, destination, server_name })
    };
    let taken = ask(Some("SHOP.example.")).unwrap();
    assert_eq!(taken.action, "forward to pool app");
    assert_eq!(taken.server_name.unwrap(), "shop.example; a client that asks for none: refuse, no_route");
    let tunnel = taken.timers.iter().find(|timer| timer.name == "tunnel").unwrap();
    assert_eq!((tunnel.value.as_str(), tunnel.from.as_str()), ("7m", "route"));
    // An address is not a server name (RFC 6066 section 3).
    for nameless in [None, Some("10.0.0.1")] {
        let refused = ask(nameless).unwrap();
        assert_eq!((refused.action.as_str(), refused.routes[0].taken), ("refuse, no_route", false));
        assert!(refused.pool.is_none() && refused.timers.is_empty());
    }
    assert!(ask(Some("a b")).unwrap_err().contains("expected one such as shop.example"));
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
            headers: vec![cookie("a=1"), cookie(&format!("b=2; weir={}", sticky.seal(backend.balance.id())))],
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
        assert_eq!((statement.own_wants.as_str(), statement.own_reason.word.as_str()), ("any", "plain_read"));
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
    assert!(!statement.for_the_primary_alone, "a session may set what is its own wherever it is kept");
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
