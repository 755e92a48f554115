//! What routes ask of requests beside host, path, method and fields, and what they make of expressions with
//! groups (threats A28 and A29).

use serde_json::{Value, json};
use weir_tests::dialogue::{After, Backend, Response, Setup, Weir};

/// A backend that says what it was asked for, and with which fields of `x-` that it was told.
fn mirror() -> Backend {
    Backend::serving(|request, wire| {
        let told = |name| request.fields.one(name).unwrap_or_default().to_owned();
        let fields = [("x-tenant-seen", told("x-tenant")), ("x-version-seen", told("x-version"))];
        let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
        wire.answers(200, &fields, &request.target);
        After::Keep
    })
}

fn config(routes: &str) -> String {
    format!(
        "[listener.web]\nbind = \"@web\"\naccept_proxy = [\"127.0.0.0/8\"]\n{routes}\n[pool.app]\nbackends = [\"@app\"]\nhealth = \"off\"\n"
    )
}

fn start(routes: &str, backend: &Backend) -> Weir {
    Setup::of(&config(routes)).with("app", backend.address()).start()
}

/// Asks as `client`, by a PROXY header.
fn ask(weir: &Weir, client: &str, target: &str, fields: &str) -> Response {
    let mut wire = weir.client("web");
    let (version, own) = if client.contains(':') { ("TCP6", "2001:db8::80") } else { ("TCP4", "192.0.2.80") };
    wire.sends(format!(
        "PROXY {version} {client} {own} 5555 80\r\nGET {target} HTTP/1.1\r\nhost: shop.test\r\n{fields}\r\n"
    ));
    wire.receives_response()
}

/// What `weir explain http` says of the same request.
fn explained(weir: &Weir, client: &str, target: &str, fields: &[(&str, &str)]) -> Value {
    let headers: Vec<Value> =
        [("host", "shop.test")].iter().chain(fields).map(|(name, value)| json!([name, value])).collect();
    let question = json!({
        "protocol": "http", "method": "GET", "url": format!("http://{}{target}", weir.address("web")),
        "headers": headers, "from": client,
    });
    weir.admin().calls("POST", "/v1/explain", &[], &question.to_string()).json()
}

/// The route that took it, by the answer, and by the explanation of the same request.
fn taken_by(weir: &Weir, client: &str, target: &str, fields: &[(&str, &str)]) -> String {
    let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let answered = ask(weir, client, target, &lines).text();
    let said = explained(weir, client, target, fields);
    let routes = said["routes"].as_array().cloned().unwrap_or_default();
    let taken = routes.iter().find(|route| route["taken"] == true);
    let taken = taken.and_then(|route| route["route"].as_str()).unwrap_or("none").to_owned();
    assert_eq!(answered.trim(), taken, "{target} from {client} with {fields:?}: {said}");
    taken
}

const EACH: &str = r#"
[[listener.web.route]]
name = "inside"
path = "/admin/*"
client_ip = ["10.0.0.0/8", "2001:db8:1::/48"]
not = [{ client_ip = "10.66.0.0/16" }, { query = { debug = "*" }, cookie = { trusted = "no*" } }]
respond = { status = 200, body = "inside" }

[[listener.web.route]]
name = "version"
path = ["~^/v[0-9]+/", "~(?i)\\.php$"]
respond = { status = 200, body = "version" }

[[listener.web.route]]
name = "beta"
any = [{ cookie = { beta = "1" } }, { query = { beta = "~^(1|yes)$" } }, { header = { x-ring = "beta-*" } }]
respond = { status = 200, body = "beta" }

[[listener.web.route]]
name = "mobile"
header = { user-agent = "~Mobile|Android", accept-language = "*" }
respond = { status = 200, body = "mobile" }

[[listener.web.route]]
name = "rest"
respond = { status = 200, body = "rest" }
"#;

#[test]
fn each_kind_of_condition_decides_and_explain_says_the_same() {
    let backend = Backend::saying("unused");
    let weir = start(&format!("{EACH}[[listener.web.route]]\npath = \"/never\"\npool = \"app\""), &backend);
    let by = |client: &str, target: &str, fields: &[(&str, &str)]| taken_by(&weir, client, target, fields);
    assert_eq!(by("10.1.2.3", "/admin/x", &[]), "inside");
    assert_eq!(by("2001:db8:1::7", "/admin/x", &[]), "inside");
    assert_eq!(by("192.0.2.1", "/admin/x", &[]), "rest");
    assert_eq!(by("10.66.0.1", "/admin/x", &[]), "rest");
    assert_eq!(by("10.1.2.3", "/admin/x?debug", &[]), "inside");
    assert_eq!(by("10.1.2.3", "/admin/x?debug", &[("cookie", "a=1; trusted=nobody")]), "rest");
    // However it is spelt.
    assert_eq!(by("10.1.2.3", "/admin/x?a=1&%64ebug=", &[("cookie", "trusted=no")]), "rest");
    assert_eq!(by("192.0.2.1", "/v12/a", &[]), "version");
    assert_eq!(by("192.0.2.1", "/%76%312/a", &[]), "version");
    assert_eq!(by("192.0.2.1", "/a/INDEX.PHP", &[]), "version");
    assert_eq!(by("192.0.2.1", "/V12/a", &[]), "rest");
    assert_eq!(by("192.0.2.1", "/", &[("cookie", "beta=1")]), "beta");
    assert_eq!(by("192.0.2.1", "/?beta=yes", &[]), "beta");
    assert_eq!(by("192.0.2.1", "/?beta=yesterday", &[("x-ring", "beta-7")]), "beta");
    assert_eq!(by("192.0.2.1", "/?beta=yesterday", &[("x-ring", "alpha")]), "rest");
    let phone = ("user-agent", "Mozilla/5.0 (Linux; Android 15)");
    assert_eq!(by("192.0.2.1", "/", &[phone]), "rest");
    assert_eq!(by("192.0.2.1", "/", &[phone, ("accept-language", "de")]), "mobile");
}

#[test]
fn explain_says_which_condition_turned_a_request_away_and_no_secret() {
    let weir = start(&format!("{EACH}[[listener.web.route]]\npath = \"/never\"\npool = \"app\""), &mirror());
    let said = explained(&weir, "10.66.0.1", "/admin/x", &[]);
    let reasons: Vec<&str> =
        said["routes"].as_array().unwrap().iter().filter_map(|route| route["reason"].as_str()).collect();
    assert_eq!(reasons[0], "condition 1 of `not` holds: client_ip matched", "{said}");
    assert_eq!(reasons[1], "path `/admin/x` is not `~^/v[0-9]+/` or `~(?i)\\.php$`");
    assert_eq!(reasons[2], "no condition of `any` holds");
    assert_eq!(reasons[3], "header `accept-language` is missing or has another value");
    let config = weir.admin().reads("/v1/config").response.text();
    assert!(config.contains("(secret)") && !config.contains("Android"), "{config}");
}

const REWRITES: &str = r#"
[[listener.web.route]]
path = "~^/v([0-9]+)/users/([^/]+)/(.*)"
pool = "app"
rewrite = { path = "/users/$3", add_query = "user=$2" }
set_request_header = { x-version = "$1", x-tenant = "$header.x-tenant" }

[[listener.web.route]]
path = "~^/t/(.*)"
pool = "app"
rewrite = { path = "/tenants/$header.x-tenant/$1" }

[[listener.web.route]]
path = "~^/find/(.+)"
pool = "app"
rewrite = { path = "/search", query = "q=$1" }

[[listener.web.route]]
path = "/bare/*"
pool = "app"
rewrite = { query = "" }

[[listener.web.route]]
path = "~^/old(?:/(a))?/(.*)"
redirect = { to = "/$2", status = 301 }

[[listener.web.route]]
path = "~^/item/([0-9]+)"
redirect = { to = "https://shop.test/items?id=$1", status = 302 }
"#;

#[test]
fn groups_stand_in_paths_queries_fields_and_redirects() {
    let backend = mirror();
    let weir = start(REWRITES, &backend);
    let target = |target: &str, fields: &str| ask(&weir, "192.0.2.1", target, fields).text();
    let answer = ask(&weir, "192.0.2.1", "/v12/users/bob/a/b?x=1", "x-tenant: acme\r\n");
    assert_eq!(answer.text(), "/users/a/b?x=1&user=bob");
    assert_eq!(
        (answer.fields.one("x-version-seen"), answer.fields.one("x-tenant-seen")),
        (Some("12"), Some("acme"))
    );
    assert_eq!(target("/v1/users/bob/", ""), "/users/?user=bob");
    assert_eq!(target("/t/a/b?x=1", "x-tenant: a/b\r\n"), "/tenants/a%2Fb/a/b?x=1");
    assert_eq!(target("/find/shoes%20red?x=1", ""), "/search?q=shoes%20red");
    assert_eq!(target("/bare/a?x=1", ""), "/bare/a");
    let location = |target: &str| {
        let answer = ask(&weir, "192.0.2.1", target, "");
        (answer.status, answer.fields.one("location").unwrap_or_default().to_owned())
    };
    assert_eq!(location("/old/a/b/c?x=1"), (301, "/b/c".to_owned()));
    assert_eq!(location("/item/77/x"), (302, "https://shop.test/items?id=77".to_owned()));
    let said = explained(&weir, "192.0.2.1", "/v12/users/bob/a?x=1", &[]);
    assert_eq!(said["backend_path"], "/users/a?x=1&user=bob", "{said}");
    assert_eq!(said["routes"][0]["reason"], "path matched, $1 is `12`, $2 is `bob`, $3 is `a`");
    assert_eq!(explained(&weir, "192.0.2.1", "/old/a/b", &[])["location"], "/b");
}

#[test]
fn a29_what_a_client_writes_leads_out_of_no_place_that_it_is_put_in() {
    let backend = mirror();
    let weir = start(REWRITES, &backend);
    let get = |target: &str, fields: &str| ask(&weir, "192.0.2.1", target, fields);
    // A parameter of its own.
    assert_eq!(get("/find/a&admin=1", "").text(), "/search?q=a%26admin%3D1");
    assert_eq!(get("/find/a%26admin=1%23", "").text(), "/search?q=a%26admin%3D1%23");
    // Another directory.
    for tenant in ["..", "."] {
        assert_eq!(get("/t/a", &format!("x-tenant: {tenant}\r\n")).status, 400, "{tenant}");
    }
    assert_eq!(get("/t/a", "x-tenant: %2e%2e\r\n").text(), "/tenants/%252e%252e/a");
    assert_eq!(get("/t/a", "x-tenant: ..;x\r\n").text(), "/tenants/..%3Bx/a");
    assert_eq!(get("/t/a", "x-tenant: ../../b?c#d\r\n").text(), "/tenants/..%2F..%2Fb%3Fc%23d/a");
    // Another site.
    for target in ["/old//evil.test/", "/old///evil.test/", "/old/a//evil.test/"] {
        assert_eq!(get(target, "").fields.one("location"), Some("/evil.test/"), "{target}");
    }
    assert_eq!(get("/old/%5Cevil.test", "").status, 400);
    // Another line.
    let answer = get("/old/a%0d%0aset-cookie:%20a=1", "");
    assert_eq!((answer.status, answer.fields.one("set-cookie")), (400, None));
    let told = get("/v1/users/a%00b/x", "");
    assert_eq!(told.status, 400);
}

#[test]
fn a28_an_expression_that_explodes_elsewhere_answers_every_path() {
    let routes = r#"
        [[listener.web.route]]
        path = ["~^/(a+)+$", "~^/((a|aa)+)$", "~^/(.*a){12}$", "~^/(a|a?)+b"]
        respond = { status = 200, body = "matched" }
        [[listener.web.route]]
        header = { x-a = "~^(a+)+$", x-b = "~(x+x+)+y" }
        pool = "app"
        [[listener.web.route]]
        respond = { status = 200, body = "no match" }
    "#;
    let weir = start(routes, &mirror());
    let long = "a".repeat(7_000);
    let fields = format!("x-a: {long}\r\nx-b: {}\r\n", "x".repeat(7_000));
    for _ in 0..20 {
        assert_eq!(ask(&weir, "192.0.2.1", &format!("/{long}!"), &fields).text(), "no match");
    }
    assert_eq!(ask(&weir, "192.0.2.1", &format!("/{long}"), &fields).text(), "matched");
}

#[test]
fn limits_are_counted_by_groups_and_stay_with_a_route_that_asks_for_the_same() {
    let routes = |body: &str| {
        format!(
            "[[listener.web.route]]\npath = \"~^/t/([^/]+)/\"\nclient_ip = \"192.0.2.0/24\"\nrate_limit = {{ rate = \"1/h\", burst = 1, key = \"tenant $1\" }}\nrespond = {{ status = 200, body = \"{body}\" }}\n[[listener.web.route]]\npool = \"app\""
        )
    };
    let backend = mirror();
    let mut weir = start(&routes("one"), &backend);
    let status = |weir: &Weir, target: &str| ask(weir, "192.0.2.1", target, "").status;
    assert_eq!(["/t/a/1", "/t/a/2", "/t/b/1"].map(|target| status(&weir, target)), [200, 429, 200]);
    weir.reloads(&config(&routes("two")));
    assert_eq!(status(&weir, "/t/a/3"), 429, "the count is of the route, known by what it asks for");
    assert_eq!(ask(&weir, "192.0.2.1", "/t/c/1", "").text(), "two");
}

#[test]
fn what_is_kept_is_told_apart_by_what_the_backend_is_asked_for() {
    let routes = r#"
        [[listener.web.route]]
        path = "~^/bare/(.*)"
        pool = "app"
        cache = { ttl = "1h" }
        rewrite = { query = "" }
        [[listener.web.route]]
        path = "~^/v([0-9]+)/(.*)"
        pool = "app"
        cache = { ttl = "1h" }
        rewrite = { path = "/$2", add_query = "version=$1" }
    "#;
    let backend = mirror();
    let weir = start(routes, &backend);
    let get = |target: &str| ask(&weir, "192.0.2.1", target, "").text();
    assert_eq!(["/bare/a?x=1", "/bare/a?x=2", "/bare/a"].map(get), ["/bare/a"; 3]);
    assert_eq!(backend.served(), 1, "a query that no backend hears of makes no object of its own");
    let versions = ["/v1/a?x", "/v2/a?x", "/v1/a?x", "/v1/a"];
    let expected = ["/a?x&version=1", "/a?x&version=2", "/a?x&version=1", "/a?version=1"];
    assert_eq!(versions.map(get), expected);
    assert_eq!(backend.served(), 4);
}

#[test]
fn a_host_by_expression_is_taken_in_the_order_of_the_file_whatever_its_capitals() {
    let config = r#"
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        name = "eu"
        host = '~^shop-[0-9]+\.eu\.example$'
        not = { host = "~-13" }
        respond = { body = "eu" }
        [[listener.web.route]]
        name = "named"
        host = "shop-1.eu.example"
        respond = { body = "named" }
        [[listener.web.route]]
        name = "thirteen"
        host = ["shop-13.eu.example", "*.us.example"]
        respond = { body = "thirteen" }
        [[listener.web.route]]
        host = "~(?-i)LAST"
        respond = { body = "capitals" }
    "#;
    let weir = Setup::of(config).start();
    let asks = |host: &str| {
        let mut client = weir.client("web");
        client.sends(format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"));
        let answer = client.receives_response();
        (answer.status, answer.text())
    };
    let says = |text: &str| (200, text.to_owned());
    for host in ["shop-2.eu.example", "Shop-2.EU.example:8080", "shop-1.eu.example"] {
        assert_eq!(asks(host), says("eu"), "{host}");
    }
    assert_eq!(asks("shop-13.eu.example"), says("thirteen"));
    assert_eq!(asks("a.us.example"), says("thirteen"));
    assert_eq!(asks("xLASTx"), says("capitals"));
    for host in ["shop-x.eu.example", "shop-2.eu.example.evil", "xlastx"] {
        assert_eq!(asks(host).0, 404, "{host}");
    }
    let url = format!("http://shop-13.eu.example:{}/", weir.address("web").port());
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains("thirteen"), "{explained}");
}
