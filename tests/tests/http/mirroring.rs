//! Copies of requests for another pool.

use weir_tests::dialogue::{After, Backend, Response, ScriptedBackend, Setup, Weir, curl, until};

use super::upgrades::{echoing_websocket, open_websocket};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
set_request_header = { x-secret = "of the listener" }
[[listener.web.route]]
path = "/more/*"
pool = "app"
mirror = { pool = "shadow", credentials = true, body_limit = "1MiB", share = 0.5 }
[[listener.web.route]]
path = "/screened"
pool = "app"
sqli = "block"
mirror = { pool = "shadow" }
[[listener.web.route]]
path = "/*"
pool = "app"
remove_request_header = "x-user"
rewrite = { path = "/v2$path" }
set_request_header = { authorization = "Basic b3BlcmF0b3I6c2VjcmV0" }
mirror = { pool = "shadow", max = 2, timeout = "10s" }
[pool.app]
backends = ["@app"]
health = "off"
[pool.shadow]
backends = ["@shadow"]
health = "off"
retry = { attempts = 0 }
set_request_header = { x-shadow = "yes" }
"#;

fn app() -> Backend {
    Backend::serving(|request, wire| {
        wire.answers(200, &[], format!("app {}", request.body.len()));
        After::Keep
    })
}

fn before(app: &Backend, shadow: impl ToString) -> Weir {
    Setup::of(CONFIG).with("app", app.address()).with("shadow", shadow.to_string()).start()
}

fn count(weir: &Weir, result: &str) -> f64 {
    weir.metric("weir_mirrored_requests_total", &[("listener", "web"), ("result", result)])
}

fn reaches(weir: &Weir, result: &str, least: f64) {
    weir.reaches("weir_mirrored_requests_total", &[("listener", "web"), ("result", result)], least);
}

fn asks(weir: &Weir, text: impl AsRef<[u8]>) -> Response {
    let mut client = weir.client("web");
    client.sends(text);
    client.receives_response()
}

/// Threat J14.
#[test]
fn a_copy_says_what_the_request_says_but_for_what_proves_who_somebody_is() {
    let (app, shadow) = (app(), app());
    let weir = before(&app, shadow.address());
    let fields = "host: shop.example\r\nauthorization: Bearer t\r\nCookie: id=1\r\nproxy-authorization: p\r\nx-own: 1\r\nx-user: root";
    let answer = asks(
        &weir,
        format!("POST /a?b=c HTTP/1.1\r\n{fields}\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\nhello"),
    );
    assert_eq!((answer.status, answer.text().as_str()), (200, "app 5"));
    reaches(&weir, "answered", 1.0);
    let (asked, copied) = (&app.requests()[0], &shadow.requests()[0]);
    assert_eq!((copied.method.as_str(), copied.target.as_str()), ("POST", "/v2/a?b=c"));
    assert_eq!((asked.target.as_str(), asked.fields.one("x-mirrored")), ("/v2/a?b=c", None));
    assert_eq!(copied.body, b"hello");
    let of = |name: &str| copied.fields.one(name);
    assert_eq!((of("host"), of("x-own"), of("x-mirrored")), (Some("shop.example"), Some("1"), Some("1")));
    assert_eq!((of("x-shadow"), of("x-forwarded-for")), (Some("yes"), Some("127.0.0.1")));
    assert_eq!(of("x-request-id"), asked.fields.one("x-request-id"));
    for name in ["authorization", "cookie", "proxy-authorization", "x-secret", "expect", "x-user", "x_user"] {
        assert_eq!(of(name), None, "{name}");
    }
    assert_eq!(asked.fields.one("x-secret"), Some("of the listener"));

    // In chunks, without a body, and by HTTP/2.
    asks(
        &weir,
        "PUT /b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    );
    asks(&weir, "GET /c HTTP/1.1\r\nhost: a\r\n\r\n");
    let url = format!("http://{}/d", weir.address("web"));
    let said = curl(&["--http2-prior-knowledge", "--data", "over two", "--cookie", "id=2", &url]);
    assert_eq!(said, "app 8");
    reaches(&weir, "answered", 4.0);
    let copies = shadow.requests();
    let of = |path: &str| copies.iter().find(|copy| copy.target == path).expect("a copy");
    assert_eq!(of("/v2/b").body, b"abcde");
    assert_eq!((of("/v2/c").method.as_str(), of("/v2/c").body.len()), ("GET", 0));
    assert_eq!((of("/v2/d").body.as_slice(), of("/v2/d").fields.one("cookie")), (&b"over two"[..], None));
}

#[test]
fn what_is_refused_is_not_copied() {
    let (app, shadow) = (app(), app());
    let weir = before(&app, shadow.address());
    let body = "id=1+UNION+SELECT+password+FROM+users--";
    let form = "content-type: application/x-www-form-urlencoded";
    let of = |body: &str| {
        format!(
            "POST /screened HTTP/1.1\r\nhost: a\r\n{form}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    assert_eq!(asks(&weir, of(body)).status, 403);
    assert_eq!(asks(&weir, of("id=1")).status, 200);
    reaches(&weir, "answered", 1.0);
    let copies: Vec<_> = shadow.requests().iter().map(|copy| copy.body.clone()).collect();
    assert_eq!(copies, [b"id=1"]);
}

/// It may be that no backend may or can be asked, and that the one that was asked does not answer.
#[test]
fn what_no_backend_takes_is_not_copied() {
    let pool = |name: &str, backend: &str, more: &str| {
        format!(
            "[[listener.web.route]]\npath = \"/{name}\"\npool = \"{name}\"\nmirror = {{ pool = \"shadow\" }}\n\
             [pool.{name}]\nbackends = [{backend}]\nhealth = {{ check = \"off\", passive = \"off\" }}\n{more}\n"
        )
    };
    let config = [
        "[listener.web]\nbind = \"@web\"\n",
        &pool("broken", "\"@bad\"", "breaker = { of = 2, within = \"1h\", for = \"1h\" }"),
        &pool("away", "{ address = \"@bad\", weight = 0 }", ""),
        &pool(
            "full",
            "{ address = \"@silent\", max_connections = 1 }",
            "queue = { max = 0, timeout = \"1s\" }",
        ),
        &pool("good", "\"@good\"", ""),
        "[pool.shadow]\nbackends = [\"@shadow\"]\nhealth = { check = \"off\" }\n",
    ];
    let bad = Backend::serving(|_, _| After::Close);
    let (silent, good, shadow) = (ScriptedBackend::start(), app(), app());
    let weir = Setup::of(&config.concat())
        .with("bad", bad.address())
        .with("silent", silent.address())
        .with("good", good.address())
        .with("shadow", shadow.address())
        .start();
    let post = |name: &str| format!("POST /{name} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi");
    let get = |name: &str| format!("GET /{name} HTTP/1.1\r\nhost: a\r\n\r\n");
    // They open the breaker.
    for _ in 0..2 {
        assert_eq!(asks(&weir, post("broken")).status, 502);
    }
    let mut first = weir.client("web");
    first.sends(post("full"));
    let mut busy = silent.accepts();
    busy.receives_request();
    for name in ["broken", "away", "full"] {
        assert_eq!([asks(&weir, get(name)).status, asks(&weir, post(name)).status], [503, 503], "{name}");
    }
    busy.answers(200, &[], "first");
    first.receives_status(200);
    assert_eq!(asks(&weir, get("good")).status, 200);
    reaches(&weir, "answered", 2.0);
    let mut copies: Vec<_> = shadow.requests().into_iter().map(|copy| copy.target).collect();
    copies.sort();
    assert_eq!(copies, ["/full", "/good"]);
}

#[test]
fn credentials_go_along_where_it_is_said_and_a_share_is_of_the_same_requests_each_time() {
    let (app, shadow) = (app(), app());
    let weir = before(&app, shadow.address());
    for round in 0..2 {
        for number in 0..60 {
            asks(
                &weir,
                format!(
                    "GET /more/{round} HTTP/1.1\r\nhost: a\r\ncookie: c=1\r\nx-request-id: id-{number}\r\n\r\n"
                ),
            );
        }
    }
    assert_eq!(app.served(), 120);
    let ids = |round: &str| {
        let copies = shadow.requests();
        let of_round = copies.iter().filter(|copy| copy.target == format!("/more/{round}"));
        let mut ids: Vec<String> =
            of_round.map(|copy| copy.fields.one("x-request-id").unwrap_or_default().to_owned()).collect();
        ids.sort();
        ids
    };
    // As many as are copied are counted, once they have been answered.
    until("the copies", || {
        let (first, second) = (ids("0"), ids("1"));
        (first.len() > 10 && first == second).then_some(())
    });
    assert!(ids("0").len() < 50, "{:?}", ids("0"));
    assert!(shadow.requests().iter().all(|copy| copy.fields.one("cookie") == Some("c=1")));
}

/// Threat J16.
#[test]
fn a_body_that_is_too_long_or_not_whole_makes_no_copy_and_goes_on_unhurt() {
    let (app, shadow) = (app(), app());
    let weir = before(&app, shadow.address());
    let long = vec![b'x'; 600 << 10];
    let mut request =
        format!("POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", long.len()).into_bytes();
    request.extend_from_slice(&long);
    assert_eq!(asks(&weir, &request).text(), format!("app {}", long.len()));
    assert_eq!(count(&weir, "body"), 1.0);
    // Nobody knows before that it is too long.
    let mut request = b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..10 {
        request.extend_from_slice(b"8000\r\n");
        request.extend_from_slice(&vec![b'y'; 0x8000]);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(asks(&weir, &request).text(), format!("app {}", 0x8000 * 10));
    assert_eq!(count(&weir, "body"), 2.0);
    // Large, but not too large: it comes whole.
    let url = format!("http://{}/more/x", weir.address("web"));
    let file = weir.dir().join("body");
    std::fs::write(&file, vec![b'z'; 900 << 10]).expect("written");
    let data = format!("@{}", file.display());
    until("a copy", || {
        curl(&["--data-binary", &data, "--header", "expect:", &url]);
        shadow.requests().iter().any(|copy| copy.body.len() == 900 << 10).then_some(())
    });
    assert_eq!(shadow.requests().iter().filter(|copy| copy.target == "/v2/a").count(), 0);
}

/// Threat J16: each took the memory of the longest body that is copied, of which it had sent nothing.
#[test]
fn clients_that_only_begin_to_send_leave_the_memory_for_copies_to_others() {
    const CONFIG: &str = r#"
    [runtime]
    workers = 1
    memory = "16MiB"
    memory_share_per_client = 1.0
    [listener.web]
    bind = "@web"
    timeout = { client_body = "1h" }
    limits = { min_body_rate = "0B/s" }
    [[listener.web.route]]
    path = "/*"
    pool = "app"
    mirror = { pool = "shadow", body_limit = "1MiB" }
    [pool.app]
    backends = ["@app"]
    health = "off"
    [pool.shadow]
    backends = ["@shadow"]
    health = "off"
    "#;
    let (app, shadow) = (app(), app());
    let weir = Setup::of(CONFIG).with("app", app.address()).with("shadow", shadow.address()).start();
    let begin = |framing: &str| {
        let mut client = weir.client("web");
        client.sends(format!("POST /slow HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n"));
        client
    };
    let slow: Vec<_> = (0..20)
        .map(|number| {
            begin(if number % 2 == 0 { "content-length: 1000000" } else { "transfer-encoding: chunked" })
        })
        .collect();
    until("all to have begun", || (app.connections() == slow.len()).then_some(()));
    let small = "POST /small HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    assert_eq!(asks(&weir, small).text(), "app 5");
    reaches(&weir, "answered", 1.0);
    assert_eq!((count(&weir, "memory"), shadow.requests()[0].body.as_slice()), (0.0, &b"hello"[..]));
}

/// Threat J15.
#[test]
fn a_copy_is_not_copied_and_a_tunnel_is_not_either() {
    let (app, shadow) = (echoing_websocket(), self::app());
    let weir = before(&app, shadow.address());
    asks(&weir, "GET /a HTTP/1.1\r\nhost: a\r\nx-mirrored: 1\r\n\r\n");
    assert_eq!(count(&weir, "looped"), 1.0);
    let mut socket = open_websocket(&weir);
    socket.sends("hello");
    assert_eq!(socket.receives(5), b"hello");
    assert_eq!(shadow.served(), 0);
}

/// It took the mark out of the copy, as a field that `connection` names.
#[test]
fn a_client_can_not_hide_that_a_copy_is_one() {
    let (app, shadow) = (app(), self::app());
    let weir = before(&app, shadow.address());
    let named = "connection: x-mirrored, x-own, te\r\nx-own: 1\r\nx-other: 1\r\nte: trailers";
    asks(&weir, format!("GET /a HTTP/1.1\r\nhost: a\r\n{named}\r\n\r\n"));
    reaches(&weir, "answered", 1.0);
    let (asked, copied) = (&app.requests()[0].fields, &shadow.requests()[0].fields);
    assert_eq!((copied.one("x-mirrored"), copied.one("x-other")), (Some("1"), Some("1")));
    assert_eq!((asked.one("x-own"), copied.one("x-own")), (None, None), "it is of the client's connection");
    assert_eq!(asked.one("te"), copied.one("te"));
}

#[test]
fn a_mirror_that_hangs_resets_or_talks_without_end_is_no_burden() {
    let app = app();
    let hanging = ScriptedBackend::start();
    let weir = before(&app, hanging.address());
    let asks = |weir: &Weir| asks(weir, "GET /a HTTP/1.1\r\nhost: a\r\n\r\n").text();
    assert_eq!([asks(&weir), asks(&weir)], ["app 0", "app 0"]);
    let mut behind: Vec<_> = (0..2).map(|_| hanging.accepts()).collect();
    behind.iter_mut().for_each(|wire| drop(wire.receives_request()));
    for _ in 0..20 {
        assert_eq!(asks(&weir), "app 0");
    }
    assert_eq!(count(&weir, "busy"), 20.0, "two are under way");
    behind.pop().expect("two are there").resets();
    reaches(&weir, "failed", 1.0);
    // The other one gets an answer without an end.
    let mut talking = behind.pop().expect("one is left");
    talking.sends("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    let piece = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    while talking.tries_to_send(&piece).is_ok() {}
    reaches(&weir, "failed", 2.0);
    assert_eq!(asks(&weir), "app 0");
    // Nobody listens there any more.
    drop(hanging);
    until("a failure to connect", || {
        assert_eq!(asks(&weir), "app 0");
        (count(&weir, "failed") > 2.0).then_some(())
    });
    assert_eq!(
        weir.metric("weir_requests_total", &[("listener", "web"), ("code", "2xx")]),
        app.served() as f64
    );
}

#[test]
fn explain_says_where_copies_go_and_a_reload_ends_it() {
    let (app, shadow) = (app(), app());
    let mut weir = before(&app, shadow.address());
    let explained = |weir: &Weir| {
        let url = format!("http://{}/a", weir.address("web"));
        weir.command(&["explain", "http", "GET", &url]).stdout
    };
    let said =
        "100.0 % of the requests are copied to pool shadow, bodies up to 65536 bytes, without credentials";
    assert!(explained(&weir).contains(said), "{}", explained(&weir));
    assert_eq!(shadow.served(), 0);
    asks(&weir, "GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
    reaches(&weir, "answered", 1.0);
    weir.reloads(&CONFIG.replace("mirror = {", "# mirror = {"));
    asks(&weir, "GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!((app.served(), shadow.served()), (2, 1));
    assert!(!explained(&weir).contains("mirror"));
}

/// Threat J14: what a route copies says nothing of whether memory may answer.
#[test]
fn what_is_fetched_for_memory_is_copied_once_and_what_memory_answers_is_not() {
    let kept = Backend::serving(|request, wire| {
        let revalidated = request.fields.one("if-none-match").is_some();
        let fields = [("etag", "\"a\""), ("cache-control", "max-age=3600")];
        wire.answers(if revalidated { 304 } else { 200 }, &fields, if revalidated { "" } else { "kept" });
        After::Keep
    });
    let shadow = app();
    let config = CONFIG.replace("path = \"/*\"", "path = \"/*\"\ncache = { }");
    let weir = Setup::of(&config).with("app", kept.address()).with("shadow", shadow.address()).start();
    let get = |fields: &str| asks(&weir, format!("GET /page HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
    for _ in 0..3 {
        assert_eq!(get("").text(), "kept");
    }
    reaches(&weir, "answered", 1.0);
    assert_eq!((kept.served(), shadow.requests()[0].target.as_str()), (1, "/v2/page"));
    // Asked whether what is kept is still good.
    assert_eq!(get("cache-control: no-cache\r\n").text(), "kept");
    reaches(&weir, "answered", 2.0);
    assert_eq!((kept.served(), shadow.served()), (2, 2));
}

#[test]
fn explain_says_why_there_is_no_copy_of_a_request() {
    let (app, shadow) = (app(), app());
    let weir = before(&app, shadow.address());
    let url = format!("http://{}/a", weir.address("web"));
    let explained = |fields: &[&str]| {
        let words = ["explain", "http", "GET", &url].into_iter();
        let fields = fields.iter().flat_map(|field| ["--header", field]);
        weir.command(&words.chain(fields).collect::<Vec<_>>()).stdout
    };
    let looped = explained(&["x-mirrored: 1"]);
    assert!(looped.contains("this one is not: it is one itself (x-mirrored)"), "{looped}");
    let tunnel = explained(&["connection: upgrade", "upgrade: websocket"]);
    assert!(tunnel.contains("this one is not: it asks for a tunnel"), "{tunnel}");
    let switched = weir.command(&["maintenance", "on", "--pool", "shadow"]);
    assert_eq!(switched.code, 0, "{switched:?}");
    let closed = explained(&[]);
    assert!(closed.contains("this one is not: that pool is in maintenance"), "{closed}");
}
