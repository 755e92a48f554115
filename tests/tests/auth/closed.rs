//! Nobody can say who may: then nobody passes (threat J5).

use weir_tests::dialogue::{ScriptedBackend, Setup, until};

use super::*;

fn refused(site: &Site, fields: &[&str]) {
    let answer = asked(&site.weir, "GET /", fields);
    assert_eq!((answer.status, answer.text().as_str()), (503, "503 Service Unavailable auth_unavailable\n"));
    assert_eq!(site.app.served(), 0);
}

#[test]
fn j5_an_answer_that_is_none_lets_nobody_pass() {
    let service = Backend::serving(|request, wire| {
        let large = "x".repeat(70_000);
        match request.fields.one("cookie").unwrap_or_default() {
            "id=500" => wire.answers(500, &[("remote-user", "ann")], "failed"),
            "id=100" => wire.sends("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 199 Odd\r\n\r\nHTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n"),
            "id=101" => wire.sends("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"),
            "id=large" => wire.answers(401, &[], &large),
            "id=cut" => wire.sends("HTTP/1.1 401 Unauthorized\r\ncontent-length: 9\r\n\r\nwho"),
            "id=200-large" => wire.answers(200, &[("remote-user", "ann"), ("set-cookie", "mine=1")], &large),
            "id=200-cut" => wire.sends("HTTP/1.1 200 OK\r\nremote-user: ann\r\ncontent-length: 9\r\n\r\nyou"),
            "id=odd" => wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"),
            _ => {}
        }
        After::Close
    });
    let site = Site::of(CONFIG, service);
    for id in ["500", "100", "101", "large", "cut", "200-large", "200-cut", "odd", "nothing"] {
        refused(&site, &[&format!("cookie: id={id}")]);
    }
    assert_eq!(site.results("unavailable"), 9.0);
    let labels = [("listener", "web"), ("reason", "auth_unavailable")];
    site.weir.reaches("weir_ends_total", &labels, 9.0);
    site.weir.reaches("weir_rejected_total", &labels, 9.0);
    assert!(!site.weir.file("access.log").contains("ann"));
}

#[test]
fn j5_a_service_that_is_gone_or_drained_lets_nobody_pass_and_open_routes_go_on() {
    let site = Site::start();
    let address = site.auth.address().to_string();
    let drained = site.weir.command(&["drain", "auth", &address]);
    assert_eq!(drained.code, 0, "{drained:?}");
    refused(&site, &[GOOD]);
    assert_eq!(asked(&site.weir, "GET /public/x", &[]).status, 200);
    let enabled = site.weir.command(&["enable", "auth", &address]);
    assert_eq!(enabled.code, 0, "{enabled:?}");
    assert_eq!(asked(&site.weir, "GET /", &[GOOD]).status, 200);
    let Site { weir, app, auth } = site;
    auth.dies();
    let answer = asked(&weir, "GET /", &[GOOD]);
    assert_eq!((answer.status, answer.fields.one("retry-after")), (503, Some("1")));
    assert_eq!(app.served(), 2);
}

#[test]
fn j5_a_service_that_says_nothing_is_given_up_in_its_time() {
    let silent = ScriptedBackend::start();
    let app = app();
    let config = CONFIG.replace("timeout = \"20s\"", "timeout = \"200ms\"");
    let weir = Setup::of(&config).with("app", app.address()).with("auth", silent.address()).start();
    let mut client = weir.client("web");
    client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\n{GOOD}\r\n\r\n"));
    let mut connection = silent.accepts();
    connection.receives_request();
    let answer = client.receives_response();
    assert_eq!((answer.status, answer.text().as_str()), (503, "503 Service Unavailable auth_unavailable\n"));
    // Half an answer is none.
    client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\n{GOOD}\r\n\r\n"));
    let mut connection = silent.accepts();
    connection.receives_request();
    connection.sends("HTTP/1.1 200 OK\r\nremote-");
    assert_eq!(client.receives_response().status, 503);
    assert_eq!(app.served(), 0);
}

#[test]
fn j5_a_request_waits_no_longer_for_the_service_than_it_may_take_itself() {
    let silent = ScriptedBackend::start();
    let app = app();
    let config = CONFIG.replace(
        "pool = \"app\"\n[listener.web.auth",
        "pool = \"app\"\ntimeout = { request_total = \"1m\" }\n[listener.web.auth",
    );
    let config = config.replace("[pool.app]", "[pool.app]\ntimeout = { request_total = \"300ms\" }");
    let weir = Setup::of(&config).with("app", app.address()).with("auth", silent.address()).start();
    let mut client = weir.client("web");
    client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\n{GOOD}\r\n\r\n"));
    let mut connection = silent.accepts();
    connection.receives_request();
    assert_eq!(client.receives_response().status, 504);
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "request_total_timeout")], 1.0);
    weir.reaches("weir_auth_requests_total", &[("listener", "web"), ("result", "unavailable")], 1.0);
    assert_eq!(weir.metric("weir_backend_failures_total", &[]), 0.0, "nobody is blamed for it");
    assert_eq!(app.served(), 0);
}

#[test]
fn a_client_that_leaves_is_not_asked_about_any_longer() {
    let silent = ScriptedBackend::start();
    let app = app();
    let weir = Setup::of(CONFIG).with("app", app.address()).with("auth", silent.address()).start();
    let mut client = weir.client("web");
    client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\n{GOOD}\r\n\r\n"));
    let mut connection = silent.accepts();
    connection.receives_request();
    client.resets();
    connection.receives_close();
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "client_closed")], 1.0);
    assert_eq!(app.served(), 0);
}

#[test]
fn a_fallback_does_not_answer_for_the_service() {
    let sorry = Backend::saying("sorry");
    let config = CONFIG.replace("[pool.auth]", "[pool.auth]\nfallback_pool = \"sorry\"");
    let config = config + "[pool.sorry]\nbackends = [\"@sorry\"]\nhealth = \"off\"\n";
    let (app, auth) = (app(), verifier());
    let setup = Setup::of(&config).with("app", app.address()).with("auth", auth.address());
    let weir = setup.with("sorry", sorry.address()).start();
    assert_eq!(asked(&weir, "GET /", &[GOOD]).status, 200);
    let drained = weir.command(&["drain", "auth", &auth.address().to_string()]);
    assert_eq!(drained.code, 0, "{drained:?}");
    assert_eq!(asked(&weir, "GET /", &[GOOD]).status, 503);
    assert_eq!((sorry.served(), app.served()), (0, 1));
}

#[test]
fn many_questions_at_once_each_get_the_answer_to_their_own() {
    let site = Site::start();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let site = &site;
            scope.spawn(move || {
                let mut client = site.weir.client("web");
                for number in 0..50 {
                    let good = (thread + number) % 3 != 0;
                    let cookie = if good { "id=good" } else { "id=bad" };
                    client.sends(format!("GET /{number} HTTP/1.1\r\nhost: a\r\ncookie: {cookie}\r\n\r\n"));
                    assert_eq!(client.receives_response().status, if good { 200 } else { 401 });
                }
            });
        }
    });
    let all = site.results("passed") + site.results("denied");
    until("all to be counted", || (all >= 400.0).then_some(()));
    assert_eq!(site.results("passed") as usize, site.app.served());
}

#[test]
fn explain_says_that_a_service_that_can_t_be_asked_lets_nobody_pass() {
    let broken = Backend::serving(|_, wire| {
        wire.answers(500, &[], "");
        After::Keep
    });
    let breaker = "[pool.auth]\nbreaker = { of = 2, within = \"1h\", for = \"1h\" }";
    let site = Site::of(&CONFIG.replace("[pool.auth]", breaker), broken);
    let url = format!("http://{}/admin", site.weir.address("web"));
    let explained = || site.weir.command(&["explain", "http", "GET", &url]).succeeded().to_owned();
    assert!(explained().contains("action   forward to pool app\n"), "{}", explained());
    for _ in 0..3 {
        refused(&site, &[GOOD]);
    }
    let said = "action   refuse 503, pool auth, which is asked who may, has its breaker open\n";
    assert!(explained().contains(said), "{}", explained());
    let drained = site.weir.command(&["drain", "auth", &site.auth.address().to_string()]);
    assert_eq!(drained.code, 0, "{drained:?}");
    let said = "action   refuse 503, pool auth, which is asked who may, has no backend left\n";
    assert!(explained().contains(said), "{}", explained());
}
