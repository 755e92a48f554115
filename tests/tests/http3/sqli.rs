//! `sqli` of a route, in all versions of HTTP.

use super::*;

const ROUTES: &str = r#"
[[listener.web.route]]
name = "watched"
path = "/watched*"
pool = "app"
sqli = "report"
[[listener.web.route]]
name = "guarded"
path = "/*"
pool = "app"
sqli = "block"
sqli_body = "8KiB"
[pool.app]"#;

const UNION: &str = "id=-1%27+union+select+name%2Cpassword+from+users--+";

fn guarded(authority: &Authority, backend: &Backend) -> Weir {
    let config = CONFIG.replace("[pool.app]", ROUTES).replace("pool = \"app\"\ntls", "tls");
    authority.setup(&config).with("app", backend.address()).start()
}

/// The statuses that curl got for `arguments` in each version that it speaks over TCP.
fn statuses(authority: &Authority, weir: &Weir, path: &str, arguments: &[&str]) -> Vec<String> {
    let port = weir.address("web").port();
    let (ca, resolve) = (authority.path("ca.pem"), format!("shop.example:{port}:127.0.0.1"));
    let url = format!("https://shop.example:{port}{path}");
    let curl = tool("curl", "curl");
    let ask = |version: &str| {
        let mut all =
            vec!["-s", version, "--max-time", "20", "--cacert", &ca, "--resolve", &resolve, "--noproxy", "*"];
        all.extend(["-o", "/dev/null", "-w", "%{http_code}"]);
        all.extend(arguments);
        all.push(&url);
        run_tool(&curl, &all, b"", PATIENCE).succeeded().to_owned()
    };
    ["--http1.1", "--http2"].map(ask).to_vec()
}

#[test]
fn injections_in_any_place_get_403_and_ordinary_requests_pass() {
    let (authority, backend) = (authority(), site());
    let weir = guarded(&authority, &backend);
    let json = "{\"user\": {\"name\": \"x' or '1'='1\"}}";
    let attacks: [(&str, &[&str]); 8] = [
        (&format!("/item?{UNION}"), &[]),
        ("/item/1%27%20or%201=1--%20", &[]),
        ("/", &["-H", "x-forwarded-for: 1' and sleep(5)--"]),
        ("/", &["-b", "session=1%27+and+benchmark(1000000,md5(1))%23"]),
        ("/", &["-A", "x' union select 1,2,3--"]),
        ("/", &["--data", UNION]),
        ("/", &["--json", json]),
        ("/", &["-F", "name=x' or '1'='1"]),
    ];
    for (path, arguments) in attacks {
        assert_eq!(statuses(&authority, &weir, path, arguments), ["403", "403"], "{path} {arguments:?}");
    }
    let before = backend.served();
    let ordinary: [(&str, &[&str]); 5] = [
        ("/item?name=O%27Reilly&q=1+or+2+items", &[]),
        ("/", &["--data", "comment=select+a+plan+from+the+union%27s+offers"]),
        ("/", &["--json", "{\"name\": \"O'Hara\", \"note\": \"5' x 7\\\"\"}"]),
        ("/", &["-F", "name=d'Angelo"]),
        ("/", &["-H", "transfer-encoding: chunked", "--data", "q=women%27s+coats"]),
    ];
    for (path, arguments) in ordinary {
        let got = statuses(&authority, &weir, path, arguments);
        assert_eq!(got, ["200", "200"], "{path} {arguments:?}");
    }
    assert_eq!(backend.served() - before, 10);
    assert_eq!(before, 0, "no injection reached a backend");
    assert_eq!(weir.metric("weir_sqli_requests_total", &[("listener", "web"), ("verdict", "blocked")]), 16.0);
    assert_eq!(weir.metric("weir_sqli_requests_total", &[("listener", "web"), ("verdict", "passed")]), 10.0);
    assert_eq!(weir.metric("weir_rejected_total", &[("listener", "web"), ("reason", "sqli")]), 16.0);
    let lines = weir.lines_of("access.log", 26);
    assert!(lines[0].contains("\"end\":\"sqli\",\"sqli\":\"query parameter `id`: union\""), "{}", lines[0]);
}

#[test]
fn http_3_is_screened_too() {
    let (authority, backend) = (authority(), site());
    let weir = guarded(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        let mut ask = async |path: &str, body: &str| {
            let method = if body.is_empty() { "GET" } else { "POST" };
            let request = http::Request::builder().method(method).uri(format!("https://shop.example{path}"));
            let request =
                request.header("content-type", "application/x-www-form-urlencoded").body(()).unwrap();
            let mut stream = client.requests.send_request(request).await.unwrap();
            if !body.is_empty() {
                stream.send_data(Bytes::copy_from_slice(body.as_bytes())).await.unwrap();
            }
            stream.finish().await.unwrap();
            stream.recv_response().await.unwrap().status().as_u16()
        };
        assert_eq!(ask(&format!("/item?{UNION}"), "").await, 403);
        assert_eq!(ask("/item?q=O%27Reilly", "").await, 200);
        assert_eq!(ask("/", UNION).await, 403);
        assert_eq!(ask("/", "q=O%27Reilly").await, 200);
    });
}

#[test]
fn what_a_listener_says_holds_for_what_no_route_takes_and_for_routes_that_say_nothing() {
    let (authority, backend) = (authority(), site());
    let routes = r#"
sqli = "block"
sqli_body = "8KiB"
[[listener.web.route]]
path = "/silent*"
pool = "app"
[[listener.web.route]]
path = "/open*"
pool = "app"
sqli = "off"
[[listener.web.route]]
path = "/headonly*"
pool = "app"
sqli_body = "0B"
[pool.app]"#;
    let weir = authority.setup(&CONFIG.replace("[pool.app]", routes)).with("app", backend.address()).start();
    let of = |path: &str, arguments: &[&str]| statuses(&authority, &weir, path, arguments).remove(0);
    for (path, in_query, in_body) in [
        ("/other", "403", "403"),
        ("/silent", "403", "403"),
        ("/open", "200", "200"),
        ("/headonly", "403", "200"),
    ] {
        assert_eq!(of(&format!("{path}?{UNION}"), &[]), in_query, "{path}");
        assert_eq!(of(path, &["--data", UNION]), in_body, "{path}");
        assert_eq!(of(&format!("{path}?q=O%27Reilly"), &[]), "200", "{path}");
    }
    let url = format!("https://shop.example:{}/other?{UNION}", weir.address("web").port());
    let said = weir.command(&["explain", "http", "GET", &url]).succeeded().to_owned();
    assert!(said.contains("action   refuse 403, sqli"), "{said}");
}

#[test]
fn a_report_lets_injections_pass_and_says_so() {
    let (authority, backend) = (authority(), site());
    let weir = guarded(&authority, &backend);
    assert_eq!(statuses(&authority, &weir, &format!("/watched?{UNION}"), &[]), ["200", "200"]);
    assert_eq!(statuses(&authority, &weir, "/watched", &["--data", UNION]), ["200", "200"]);
    assert_eq!(weir.metric("weir_sqli_requests_total", &[("listener", "web"), ("verdict", "reported")]), 4.0);
    // Each worker writes its own lines: which comes first says nothing.
    let lines = weir.lines_of("access.log", 4);
    for (method, place) in [("GET", "query parameter"), ("POST", "form field")] {
        let found = format!("\"end\":\"done\",\"sqli\":\"{place} `id`: union\"");
        let of_method: Vec<_> =
            lines.iter().filter(|line| line.contains(&format!("\"method\":\"{method}\""))).collect();
        assert!(of_method.len() == 2 && of_method.iter().all(|line| line.contains(&found)), "{lines:#?}");
    }
}

#[test]
fn what_is_behind_the_part_of_a_body_that_is_looked_at_passes_unread_and_is_counted() {
    let (authority, backend) = (authority(), site());
    let weir = guarded(&authority, &backend);
    let long = format!("a={}&{UNION}", "x".repeat(100_000));
    let file = weir.dir().join("form");
    std::fs::write(&file, &long).unwrap();
    let data = format!("@{}", file.display());
    assert_eq!(statuses(&authority, &weir, "/", &["--data-binary", &data]), ["200", "200"]);
    assert_eq!(weir.metric("weir_sqli_requests_total", &[("listener", "web"), ("verdict", "cut")]), 2.0);
    std::fs::write(&file, format!("a={}&{UNION}&b={}", "x".repeat(4_000), "y".repeat(100_000))).unwrap();
    assert_eq!(statuses(&authority, &weir, "/", &["--data-binary", &data]), ["403", "403"]);
}

#[test]
fn explain_says_where_an_injection_is_and_what_makes_it_one() {
    let (authority, backend) = (authority(), site());
    let weir = guarded(&authority, &backend);
    let explain = |path: &str| {
        let url = format!("https://shop.example:{}{path}", weir.address("web").port());
        weir.command(&["explain", "http", "GET", &url]).succeeded().to_owned()
    };
    let blocked = explain(&format!("/item?{UNION}"));
    assert!(
        blocked.contains("query parameter `id`: adds the rows of another query with union select"),
        "{blocked}"
    );
    assert!(blocked.contains("action   refuse 403, sqli"), "{blocked}");
    let reported = explain(&format!("/watched?{UNION}"));
    assert!(
        reported.contains("reported, and passed") && reported.contains("forward to pool app"),
        "{reported}"
    );
    let passed = explain("/item?name=O%27Reilly");
    assert!(passed.contains("sqli     nothing was found"), "{passed}");
}
