//! Ways around: by fields, by paths, by methods, by upgrades, by what memory has (threats J1 to J4).

use weir_tests::dialogue::{Setup, until};

use super::*;

#[test]
fn j1_what_a_client_says_of_itself_reaches_no_backend_and_no_service() {
    let site = Site::start();
    let forged = [
        GOOD,
        "Remote-User: root",
        "remote_user: root",
        "REMOTE-GROUPS: wheel",
        "Remote_Groups: wheel",
        "x-forwarded-uri: /public/x",
        "x-forwarded-method: OPTIONS",
        "x-forwarded-host: other.example",
        "x-forwarded-for: 10.0.0.1",
        "x-forwarded-proto: https",
        "x-original-url: https://other.example/",
        "connection: remote-user, cookie",
    ];
    assert_eq!(asked(&site.weir, "GET /admin", &forged).status, 200);
    let request = site.request();
    assert_eq!(request.fields.all("remote-user"), ["ann"]);
    assert_eq!(request.fields.all("remote-groups"), ["a, b"]);
    assert!(!request.head.to_lowercase().contains("remote_"), "{}", request.head);
    let question = site.question();
    assert_eq!(question.fields.all("x-forwarded-uri"), ["/admin"]);
    assert_eq!(question.fields.all("x-forwarded-method"), ["GET"]);
    assert_eq!(question.fields.all("x-forwarded-host"), ["shop.example"]);
    assert_eq!(question.fields.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(question.fields.all("x-forwarded-proto"), ["http"]);
    assert!(
        !question.head.contains("root") && !question.head.contains("x-original-url"),
        "{}",
        question.head
    );
}

#[test]
fn j1_what_the_service_does_not_say_the_backend_is_not_told() {
    let quiet = Backend::serving(|_, wire| {
        wire.answers(204, &[], "");
        After::Keep
    });
    let site = Site::of(CONFIG, quiet);
    assert_eq!(asked(&site.weir, "GET /", &["remote-user: root", "remote-groups: wheel"]).status, 200);
    let head = site.request().head.to_lowercase();
    assert!(!head.contains("remote-"), "{head}");
    assert!(!site.weir.file("access.log").contains("\"user\""));
    // In HTTP/2 as well.
    let answer = by_curl(&site.weir, &["--http2-prior-knowledge", "--header", "remote-user: root"], "/");
    assert!(answer.starts_with("HTTP/2 200"), "{answer}");
    assert!(!site.request().head.to_lowercase().contains("remote-"));
}

#[test]
fn j1_what_a_client_says_of_itself_behind_a_body_reaches_no_backend_either() {
    let site = Site::start();
    let mut client = site.weir.client("web");
    let trailers = "Remote-User: root\r\nremote_groups: wheel\r\nx-checksum: 1\r\n";
    for path in ["/", "/public/x"] {
        client.sends(format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\n{GOOD}\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n{trailers}\r\n"
        ));
        client.receives_status(200);
        let request = site.request();
        assert_eq!((request.body.as_slice(), request.trailers.all("x-checksum")), (&b"hello"[..], vec!["1"]));
        assert!(request.trailers.one("remote-user").is_none(), "{request:?}");
        assert!(request.trailers.one("remote_groups").is_none(), "{request:?}");
    }
    // A body that comes piece by piece, whose end nobody has seen when the request is written.
    client.sends(format!("POST / HTTP/1.1\r\nhost: a\r\n{GOOD}\r\ntransfer-encoding: chunked\r\n\r\n"));
    for _ in 0..20 {
        client.sends(format!("2710\r\n{}\r\n", "x".repeat(10_000)));
    }
    client.sends(format!("0\r\n{trailers}\r\n"));
    client.receives_status(200);
    let request = site.request();
    assert_eq!((request.body.len(), request.trailers.all("x-checksum")), (200_000, vec!["1"]));
    assert!(request.trailers.one("remote-user").is_none(), "{:?}", request.trailers);
}

/// Ways to the pool `app` on which nobody is asked, beside a listener whose `auth` tells it who asks.
const OPEN: &str = r#"
[[listener.web.route]]
path = "/set/*"
pool = "app"
auth = false
set_request_header = { remote-user = "guest" }
[listener.open]
bind = "@open"
pool = "app"
[[listener.open.route]]
path = "/split/*"
pool = "other"
split = { to = [{ pool = "app", share = 1.0 }] }
[[listener.open.route]]
path = "/instead/*"
pool = "gone"
fallback_pool = "app"
[[listener.open.route]]
path = "/copied/*"
pool = "other"
mirror = { pool = "app" }
[[listener.open.route]]
path = "/other/*"
pool = "other"
[pool.other]
backends = ["@other"]
health = { check = "off", passive = "off" }
[pool.gone]
backends = ["@gone"]
health = { check = "off", passive = "off" }
"#;

#[test]
fn j1_what_a_client_says_of_itself_reaches_a_backend_by_no_way_on_which_nobody_is_asked_either() {
    let routes = OPEN.split("[listener.open]").next().expect("routes");
    let config = CONFIG.replace("[pool.app]", &format!("{routes}[pool.app]"));
    let config = config + OPEN.strip_prefix(routes).expect("the rest");
    let (app, auth, other, gone) = (app(), verifier(), app(), app());
    let setup = Setup::of(&config).with("app", app.address()).with("auth", auth.address());
    let weir = setup.with("other", other.address()).with("gone", gone.address()).start();
    assert_eq!(weir.command(&["drain", "gone", &gone.address().to_string()]).code, 0);

    let asks = |listener: &str, path: &str| {
        let mut client = weir.client(listener);
        client.sends(format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nRemote-User: root\r\nremote_user: root\r\nREMOTE-GROUPS: \
             root\r\nx-own: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nremote_user: root\r\n\r\n"
        ));
        client.receives_status(200);
    };
    let told = |backend: &Backend, path: &str| {
        let request = until(&format!("{path} at the backend"), || backend.requests().pop());
        backend.forgets();
        assert_eq!((request.target.as_str(), request.fields.one("x-own")), (path, Some("1")));
        request
    };
    // What goes to no pool is told apart from what does.
    assert_eq!(asked(&weir, "OPTIONS /public/x", &["max-forwards: 0"]).status, 200);
    for (listener, path) in [
        ("web", "/public/x"),
        ("open", "/"),
        ("open", "/split/x"),
        ("open", "/instead/x"),
        ("open", "/copied/x"),
    ] {
        asks(listener, path);
        let request = told(&app, path);
        assert!(!request.head.contains("root"), "{path}: {}", request.head);
        assert!(request.trailers.one("remote_user").is_none(), "{path}: {:?}", request.trailers);
    }
    // In HTTP/2 as well.
    let forged = ["--http2-prior-knowledge", "--header", "remote-user: root", "--header", "x-own: 1"];
    assert!(by_curl(&weir, &forged, "/public/x").starts_with("HTTP/2 200"));
    let request = told(&app, "/public/x");
    assert!(!request.head.contains("root"), "{}", request.head);
    // What the operator says there stands, and where no backend is told of users, nobody is believed to be.
    asks("web", "/set/x");
    let request = told(&app, "/set/x");
    assert_eq!(request.fields.all("remote-user"), ["guest"]);
    assert!(!request.head.contains("root"), "{}", request.head);
    other.forgets();
    asks("open", "/other/x");
    assert_eq!(told(&other, "/other/x").fields.all("remote-user"), ["root"]);

    let explained = |name: &str, path: &str| {
        let url = format!("http://{}{path}", weir.address(name));
        weir.command(&["explain", "http", "GET", &url]).stdout
    };
    for (name, path) in [("web", "/public/x"), ("open", "/"), ("open", "/split/x")] {
        let said = explained(name, path);
        assert!(said.contains("remove remote-user") && said.contains("remove remote-groups"), "{said}");
    }
    let said = explained("web", "/set/x");
    assert!(said.contains("set remote-user") && !said.contains("remove remote-user"), "{said}");
    assert!(!explained("open", "/other/x").contains("remote-user"));
}

#[test]
fn j2_the_service_is_asked_about_the_path_that_the_backend_gets() {
    // It lets all pass but what is below /admin.
    let service = Backend::serving(|request, wire| {
        let uri = request.fields.one("x-forwarded-uri").unwrap_or_default();
        wire.answers(if uri.starts_with("/admin") { 403 } else { 200 }, &[], "");
        After::Keep
    });
    let site = Site::of(CONFIG, service);
    for path in [
        "/admin",
        "/%61dmin",
        "/x/../admin",
        "/x/%2e%2e/admin",
        "/./admin",
        "/admin/../admin/x?a=/x",
        "/public/../admin",
        "/public/%2e%2e/admin",
        "/x/..;/admin",
        "/x%2f..%2fadmin",
        "//admin",
        "/admin%00",
        "/x\\..\\admin",
        "http://shop.example/x/../admin",
    ] {
        site.app.forgets();
        let status = asked(&site.weir, &format!("GET {path}"), &[]).status;
        if let Some(request) = site.app.requests().pop() {
            assert_eq!(status, 200);
            let uri = site.question().fields.one("x-forwarded-uri").unwrap_or_default().to_owned();
            assert_eq!(request.target, uri, "{path}");
            assert!(!request.target.starts_with("/admin"), "{path}");
        } else {
            assert!(matches!(status, 400 | 403), "{path}: {status}");
        }
    }
    assert_eq!(asked(&site.weir, "OPTIONS *", &[]).status, 200);
    assert_eq!(site.question().fields.one("x-forwarded-uri"), Some("*"));
}

#[test]
fn j3_every_method_is_asked_about_and_so_is_an_upgrade() {
    let site = Site::start();
    for method in ["HEAD", "OPTIONS", "DELETE", "PATCH", "PROPFIND", "get"] {
        assert_eq!(asked(&site.weir, &format!("{method} /"), &[]).status, 401, "{method}");
        assert_eq!(site.question().fields.one("x-forwarded-method"), Some(method));
    }
    // Also where the answer is Weir's own, for nobody else may answer (RFC 9110 section 7.6.2).
    for method in ["OPTIONS", "TRACE"] {
        let last = |credentials: &str| {
            asked(&site.weir, &format!("{method} /x"), &["max-forwards: 0", credentials]).status
        };
        assert_eq!((last("cookie: id=bad"), last(GOOD)), (401, 200), "{method}");
        assert_eq!(site.question().fields.one("x-forwarded-method"), Some(method));
    }
    let upgrade =
        ["upgrade: websocket", "connection: upgrade", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="];
    let version = "sec-websocket-version: 13";
    let refused = asked(&site.weir, "GET /chat", &[&upgrade[..], &[version]].concat());
    assert_eq!((refused.status, refused.text().as_str()), (401, "who are you?"));
    assert_eq!(site.app.served(), 0);
    let head = site.question().head.to_lowercase();
    assert!(!head.contains("upgrade") && !head.contains("websocket"), "the question asks for none: {head}");
}

#[test]
fn j3_a_websocket_that_may_opens_with_what_the_service_says() {
    let socket = super::super::http::upgrades::echoing_websocket();
    let auth = Backend::serving(|_, wire| {
        wire.answers(200, &[("remote-user", "ann"), ("set-cookie", "seen=1")], "");
        After::Keep
    });
    let weir = Setup::of(CONFIG).with("app", socket.address()).with("auth", auth.address()).start();
    let mut client = super::super::http::upgrades::open_websocket(&weir);
    client.sends("hello");
    client.receives_exactly("hello");
    assert_eq!(socket.requests()[0].fields.all("remote-user"), ["ann"]);
}

#[test]
fn j4_what_memory_has_is_for_those_alone_who_may_ask() {
    let site = Site::start();
    let kept = |fields: &[&str]| asked(&site.weir, "GET /kept/page", fields);
    assert_eq!(kept(&[]).status, 401);
    let first = kept(&[GOOD]);
    assert_eq!((first.status, first.text().as_str()), (200, "app 0"));
    // Backends that set a cookie are kept without it here or not at all; what counts is who is asked.
    let count = site.auth.served();
    assert_eq!(kept(&[GOOD]).status, 200);
    assert_eq!(site.auth.served(), count + 1, "each request is asked about");
    let refused = kept(&["cookie: id=bad"]);
    assert_eq!((refused.status, refused.text().as_str()), (401, "who are you?"));
    assert_eq!(kept(&["cache-control: only-if-cached"]).status, 401);
    assert_eq!(kept(&["cache-control: max-stale"]).status, 401);
}

#[test]
fn j4_a_page_in_memory_is_given_to_who_may_and_its_cookies_are_each_ones_own() {
    let number = std::sync::atomic::AtomicUsize::new(0);
    let auth = Backend::serving(move |request, wire| {
        let may = request.fields.all("cookie").contains(&"id=good");
        let mine = format!("mine={}", number.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
        wire.answers(if may { 200 } else { 401 }, &[("set-cookie", &mine)], "");
        After::Keep
    });
    let app = Backend::serving(|_, wire| {
        wire.answers(200, &[("cache-control", "public, max-age=60")], "page");
        After::Keep
    });
    let weir = Setup::of(CONFIG).with("app", app.address()).with("auth", auth.address()).start();
    for number in 0..3 {
        let answer = asked(&weir, "GET /kept/page", &[GOOD]);
        assert_eq!(answer.text(), "page");
        assert_eq!(answer.fields.all("set-cookie"), [format!("mine={number}")]);
    }
    assert_eq!(app.served(), 1, "memory answers");
    assert_eq!(asked(&weir, "GET /kept/page", &[]).status, 401);
    let lines = weir.lines_of("access.log", 4);
    assert_eq!(lines.iter().filter(|line| line.contains("\"cache\":\"hit\"")).count(), 2, "{lines:#?}");
}

#[test]
fn a_trusted_proxy_names_the_client_that_the_service_is_told_of() {
    let config = CONFIG.replace(
        "pool = \"app\"\n[listener.web.auth",
        "pool = \"app\"\ntrusted_proxies = [\"127.0.0.1\"]\n[listener.web.auth",
    );
    let site = Site::of(&config, verifier());
    let fields =
        [GOOD, "x-forwarded-for: 203.0.113.7", "x-forwarded-proto: https", "x-forwarded-uri: /other"];
    assert_eq!(asked(&site.weir, "GET /admin", &fields).status, 200);
    let question = site.question();
    assert_eq!(question.fields.all("x-forwarded-for"), ["203.0.113.7, 127.0.0.1"]);
    assert_eq!(question.fields.all("x-forwarded-proto"), ["https"]);
    assert_eq!(question.fields.all("x-real-ip"), ["203.0.113.7"]);
    assert_eq!(question.fields.all("x-forwarded-uri"), ["/admin"], "who asks is one thing, what for another");
}
