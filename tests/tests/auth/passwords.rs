//! Names and passwords of a file.

use std::time::Duration;

use weir_tests::dialogue::{Setup, until};

use super::*;

const BASIC: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
auth = { basic = { users = "@dir/users", realm = "Staff only", user_header = "x-user" } }
[[listener.web.error_page]]
status = 401
body = "<p>log in</p>"
[[listener.web.route]]
path = "/public/*"
pool = "app"
auth = false
[[listener.web.route]]
path = "/passed/*"
pool = "app"
auth = { basic = { users = "@dir/users", pass_authorization = true } }
[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
[log]
access = "@dir/access.log"
"#;

/// What `htpasswd` of Apache writes for this user.
fn htpasswd(cost: &str, user: &str, password: &str) -> String {
    let arguments = ["-nbBC", cost, user, password];
    run_tool(&tool("htpasswd", "apache2-utils"), &arguments, b"", PATIENCE).succeeded().to_owned()
}

/// By argon2-cffi, of the password "secret".
const ARGON2: &str =
    "eve:$argon2id$v=19$m=256,t=1,p=2$3WTn/jdZatJib6UZQKlk4w$cTR7V0+Dg+ojNTX66ZRQZRN3V524xU6EHiS0kQOWeoc\n";

fn start(config: &str, users: &str) -> (Backend, Weir) {
    let app = app();
    let weir = Setup::of(config).with("app", app.address()).with_file("users", users).start();
    (app, weir)
}

/// curl's word for the status.
fn status(weir: &Weir, arguments: &[&str], path: &str) -> String {
    let answer = by_curl(weir, arguments, path);
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn who_shows_the_password_passes_and_backends_are_told_the_name_alone() {
    let users =
        format!("# staff\n{}{}{ARGON2}", htpasswd("4", "ann", "p:w"), htpasswd("5", "b\u{f6}b", "gr\u{fc}n"));
    let (app, weir) = start(BASIC, &users);
    for (version, user) in [
        ("--http1.1", "ann:p:w"),
        ("--http2-prior-knowledge", "ann:p:w"),
        ("--http1.1", "b\u{f6}b:gr\u{fc}n"),
        ("--http1.1", "eve:secret"),
    ] {
        let forged = ["--header", "x-user: root", "--header", "x_user: root"];
        let answer =
            by_curl(&weir, &[&[version, "--user", user, "--data", "hello"][..], &forged].concat(), "/");
        assert!(answer.ends_with("app 5"), "{user}: {answer}");
        let request = app.requests().pop().unwrap();
        assert_eq!(request.fields.all("authorization"), [""; 0], "the password goes no further");
        let name = user.split(':').next().unwrap();
        let told = request.fields.one("x-user").map(|told| told.chars().count());
        assert!(told.is_some_and(|told| told >= name.chars().count()), "{request:?}");
        assert!(!request.head.contains("root"), "{}", request.head);
    }
    assert_eq!(status(&weir, &["--user", "ann:p:w"], "/passed/x"), "200");
    assert!(app.requests().pop().unwrap().fields.one("authorization").is_some());
    assert_eq!(weir.metric("weir_auth_requests_total", &[("listener", "web"), ("result", "passed")]), 5.0);
    until("the log", || weir.file("access.log").contains("\"user\":\"ann\"").then_some(()));
    let log = weir.lines_of("access.log", 5).concat();
    assert!(
        log.contains("\"user\":\"b\u{f6}b\"") && !log.contains("p:w") && !log.contains("YW5uOnA6dw"),
        "{log}"
    );
}

#[test]
fn a_password_of_the_operators_reaches_the_backend_in_place_of_the_clients() {
    let config = BASIC.replace(
        "pool = \"app\"\nauth",
        "pool = \"app\"\nset_request_header = { authorization = \"Basic b3A6c2VjcmV0\" }\nauth",
    );
    let (app, weir) = start(&config, &htpasswd("4", "ann", "secret"));
    assert_eq!(status(&weir, &["--user", "ann:secret"], "/"), "200");
    assert_eq!(app.requests().pop().unwrap().fields.all("authorization"), ["Basic b3A6c2VjcmV0"]);
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(
        explained.contains("set authorization") && !explained.contains("remove authorization"),
        "{explained}"
    );
}

#[test]
fn a_line_of_the_log_says_who_it_was() {
    let config = format!("{BASIC}line = \"$user $status\"\n");
    let (_app, weir) =
        start(&config, &(htpasswd("4", "ann", "secret") + &htpasswd("4", "a \" 200\\", "secret")));
    assert_eq!(status(&weir, &["--user", "ann:secret"], "/"), "200");
    assert_eq!(weir.lines_of("access.log", 1), ["ann 200"]);
    assert_eq!(status(&weir, &["--user", "ann:wrong"], "/"), "401");
    assert_eq!(weir.lines_of("access.log", 2)[1], "- 401");
    assert_eq!(status(&weir, &["--user", "a \" 200\\:secret"], "/"), "200");
    let line = weir.lines_of("access.log", 3).remove(2);
    assert!(line.ends_with(" 200") && !line.contains('"'), "what ends a field is escaped: {line}");
}

#[test]
fn who_does_not_is_asked_for_it() {
    let (app, weir) = start(BASIC, &htpasswd("4", "ann", "secret"));
    let answer = asked(&weir, "GET /", &[]);
    assert_eq!((answer.status, answer.text().as_str()), (401, "<p>log in</p>"));
    let challenge = "Basic realm=\"Staff only\", charset=\"UTF-8\"";
    assert_eq!(answer.fields.all("www-authenticate"), [challenge]);
    for user in ["ann:Secret", "ann:", "Ann:secret", "nobody:secret", ":secret", "ann:secret\n"] {
        assert_eq!(status(&weir, &["--user", user], "/"), "401", "{user:?}");
    }
    for line in [
        "authorization: Bearer YW5uOnNlY3JldA==",
        "authorization: Basic",
        "authorization: Basic YW5uOnNlY3JldA",
        "authorization: Basic YW5uOnNlY3JldA==\r\nauthorization: Basic YW5uOnNlY3JldA==",
        "proxy-authorization: Basic YW5uOnNlY3JldA==",
        "cookie: authorization=YW5uOnNlY3JldA==",
    ] {
        let expected = if line.ends_with("NlY3JldA") { 200 } else { 401 };
        assert_eq!(asked(&weir, "GET /", &[line]).status, expected, "{line}");
    }
    assert_eq!(app.served(), 1);
    assert_eq!(asked(&weir, "GET /public/x", &[]).status, 200);
    // Browsers' scripts and calls of gRPC are told in their own form.
    let json = asked(&weir, "GET /", &["accept: application/json"]);
    assert!(json.text().contains("\"reason\":\"auth_denied\""), "{json:?}");
    assert_eq!(
        asked(&weir, "GET /", &["content-type: application/grpc"]).fields.one("grpc-status"),
        Some("16")
    );
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains("auth     a name and a password of 1 users are asked for"), "{explained}");
    assert!(explained.contains("remove authorization"), "{explained}");
}

#[test]
fn j7_a_password_is_computed_once_and_a_flood_of_wrong_ones_takes_no_worker() {
    let config = BASIC.replace("realm = \"Staff only\"", "checks = 1, waiting = 12");
    let config = format!("[runtime]\nworkers = 1\n{config}");
    // Much longer than a request takes, and so short that the last in line has its turn within the 30 seconds
    // that it waits, on a slow machine too.
    let (app, weir) = start(&config, &(htpasswd("10", "ann", "secret") + &htpasswd("4", "bob", "bob")));
    let good = "authorization: Basic YW5uOnNlY3JldA==";
    assert_eq!(asked(&weir, "GET /", &[good]).status, 200);
    let patience = Duration::from_secs(60);
    let mut wrong: Vec<_> = (0..12).map(|_| weir.client("web").with_patience(patience)).collect();
    for client in &mut wrong {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nauthorization: Basic YW5uOndyb25n\r\n\r\n");
    }
    // One is computed, three wait, which are a quarter of all that may, and no more of this client.
    let ends = |reason| weir.metric("weir_ends_total", &[("listener", "web"), ("reason", reason)]);
    until("the others to be refused", || (ends("auth_unavailable") >= 8.0).then_some(()));
    // Who is known does not notice, and neither does who needs no password: were passwords computed on the
    // only worker, one of these would be answered between two of the flood. While it lasts, there is time for
    // many hundreds.
    for _ in 0..30 {
        assert_eq!(asked(&weir, "GET /", &[good]).status, 200);
        assert_eq!(asked(&weir, "GET /public/x", &[]).status, 200);
    }
    assert!(ends("auth_denied") < 4.0, "the last of the flood was to be computed still");
    let mut statuses: Vec<u16> =
        wrong.into_iter().map(|mut client| client.receives_response().status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [401, 401, 401, 401, 503, 503, 503, 503, 503, 503, 503, 503]);
    assert_eq!(app.served(), 61);
}

#[test]
fn j7_one_client_leaves_room_in_line_for_others() {
    let config = BASIC.replace("realm = \"Staff only\"", "checks = 1, waiting = 8");
    // So long that none of the flood is done before all of it has come, as above.
    let (app, weir) = start(&config, &(htpasswd("10", "ann", "secret") + &htpasswd("4", "bob", "bob")));
    let patience = Duration::from_secs(60);
    let mut flood: Vec<_> = (0..12).map(|_| weir.client("web").with_patience(patience)).collect();
    for client in &mut flood {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nauthorization: Basic YW5uOndyb25n\r\n\r\n");
    }
    let auth = |result| weir.metric("weir_auth_requests_total", &[("listener", "web"), ("result", result)]);
    until("the rest of the flood to be refused", || {
        (auth("crowded") + auth("unavailable") + auth("denied") >= 9.0).then_some(())
    });
    // Another client has a place in line, and its turn.
    let mut other = client_from(&weir, 2).with_patience(patience);
    other.sends("GET / HTTP/1.1\r\nhost: a\r\nauthorization: Basic Ym9iOmJvYg==\r\n\r\n");
    assert_eq!(other.receives_response().status, 200);
    let answers: Vec<Response> = flood.into_iter().map(|mut client| client.receives_response()).collect();
    let of = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((of(401), of(503)), (3, 9));
    let refused = answers.iter().find(|answer| answer.status == 503).expect("one");
    assert_eq!(refused.fields.one("retry-after"), Some("1"));
    assert_eq!((auth("crowded"), auth("denied"), auth("passed"), app.served()), (9.0, 3.0, 1.0, 1));
}

/// To look at it once for each of them took minutes, and so did comparing each name with all before it.
#[test]
fn a_file_of_very_many_users_that_very_many_routes_name_is_looked_at_once() {
    let hash = htpasswd("4", "", "secret");
    let hash = hash.trim().strip_prefix(':').expect("a hash");
    let users: String = (0..15_000).map(|number| format!("u{number:05}:{hash}\n")).collect();
    let route = |number| {
        format!(
            "[[listener.web.route]]\npath = \"/of/{number}\"\npool = \"app\"\nauth = {{ basic = {{ users = \
             \"@dir/users\" }} }}\n"
        )
    };
    let routes: String = (0..120).map(route).collect();
    let config = BASIC.replace("[pool.app]", &format!("{routes}[pool.app]"));
    let (_app, mut weir) = start(&config, &users);
    let passes =
        |weir: &Weir| ["/", "/of/0", "/of/119"].map(|path| status(weir, &["--user", "u14999:secret"], path));
    assert_eq!(passes(&weir), ["200", "200", "200"]);
    std::fs::write(weir.dir().join("users"), users.replace("u14999:", "u15000:")).unwrap();
    weir.reloads(&config);
    assert_eq!(passes(&weir), ["401", "401", "401"]);
}

#[test]
fn a_reload_reads_the_file_anew_and_forgets_who_is_gone() {
    let (_app, mut weir) = start(BASIC, &htpasswd("4", "ann", "secret"));
    assert_eq!(status(&weir, &["--user", "ann:secret"], "/"), "200");
    let file = weir.dir().join("users");
    std::fs::write(&file, htpasswd("4", "bob", "secret")).unwrap();
    weir.reloads(BASIC);
    assert_eq!(status(&weir, &["--user", "ann:secret"], "/"), "401");
    assert_eq!(status(&weir, &["--user", "bob:secret"], "/"), "200");
    // A line that is no good leaves what is in force.
    std::fs::write(&file, format!("{ARGON2}\nmax:$apr1$r31$xxxx\n")).unwrap();
    let refused = weir.command(&["reload"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    let said = refused.stdout + &refused.stderr;
    assert!(said.contains("line 3 of") && said.contains("`max` has a hash by MD5"), "{said}");
    assert!(!said.contains("r31"), "no hash is shown: {said}");
    assert_eq!(status(&weir, &["--user", "bob:secret"], "/"), "200");
    let config = weir.command(&["check", &weir.config_path()]);
    assert_ne!(config.code, 0, "{config:?}");
}
