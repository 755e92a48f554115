//! `weir explain` and the data path are of one mind.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use weir_tests::dialogue::{After, Authority, Backend, Draws, Setup, Weir, Wire};
use weir_tests::versions::{Client, Front, Part, run};

/// Every key of a listener or a route that decides about a request by its head.
const CONFIG: &str = r#"
[listener.routed]
bind = "@routed"
trusted_proxies = ["127.0.0.0/8"]
limits = { header = "4KiB" }
deny_address = ["198.51.100.0/28"]

[[listener.routed.route]]
host = ["shop.example", "*.shop.example"]
path = "/static*"
pool = "by_client"
rewrite = { prefix = "/files/" }

[[listener.routed.route]]
path = "/api/*"
method = ["GET", "HEAD", "POST"]
header = { x-canary = "1" }
pool = "by_header"
rewrite = { prefix = "/v2/" }

[[listener.routed.route]]
path = "/api/*"
pool = "by_client"
body_limit = "100B"

[[listener.routed.route]]
path = "/old/*"
redirect = { to = "https://$host/new$path$query", status = 301 }
body_limit = "1KiB"

[[listener.routed.route]]
path = "/gone"
respond = { status = 410, body = "gone" }

[[listener.routed.route]]
path = "/guarded/*"
pool = "by_uri"
deny_user_agent = ["*bot*"]
allow_method = ["GET", "HEAD", "OPTIONS", "TRACE"]
deny_path = ["*.php"]

[[listener.routed.route]]
path = "/often/*"
pool = "by_uri"
rate_limit = [
  { rate = "1/h", burst = 3, key = "header:x-user" },
  { rate = "1/h", burst = 20, key = "client_ip", at = "origin", status = 503 },
  { rate = "1/h", burst = 1, key = "route", dry_run = true },
]
concurrency_limit = { max = 1 }

[[listener.routed.route]]
path = "/sql/*"
pool = "by_uri"
sqli = "block"

[[listener.routed.route]]
path = ["/sticky/*", "*.png"]
pool = "sticky"

[listener.whole]
bind = "@whole"
pool = "by_uri"
merge_slashes = true
deny_path = ["/admin/*"]

[listener.secure]
bind = "@secure"
http = ["h1", "h2"]
pool = "by_client"
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }, { cert = "@dir/other.pem", key = "@dir/other.key" }], client_ca = "@dir/ca.pem", client_auth = "optional" }
"#;

const POOLS: [(&str, &str); 4] = [
    ("by_client", "balance = \"source\""),
    ("by_header", "balance = \"hash\"\nhash = { key = \"header:x-user\" }"),
    ("by_uri", "balance = \"maglev\"\nhash = { key = \"uri\" }"),
    ("sticky", "sticky = { cookie = \"weir\" }"),
];

/// Backends of each pool.
const EACH: usize = 3;

const HOSTS: [&str; 6] =
    ["shop.example", "IMG.shop.example", "other.example", "shop.example:8080", "shop.example.", "nobody.example"];
const METHODS: [&str; 10] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "BREW"];
const PATHS: [&str; 34] = [
    "/", "/static", "/static/a.css", "/static../secret", "/static.", "/%73tatic/x", "/api/cart", "/api/", "/api",
    "/api/../gone", "/api/%2e%2e/%2e%2e/x", "/x/./api/y", "/a//b", "//api/x", "/old/page", "/old/%41%2f",
    "/gone", "/gone/", "/guarded/a", "/guarded/x.php", "/guarded/%2E", "/often/a", "/often/b", "/often/c", "/sql/a",
    "/sql/%27", "/sticky/a", "/logo.png", "/admin/x", "//admin//x", "/..;/x", "/%zz", "/a%00b", "/nowhere",
];
const QUERIES: [&str; 6] = ["", "", "?", "?a=b", "?id=1%27%20OR%20%271%27=%271", "?q=1+UNION+SELECT+password+FROM+users"];

/// A request, and the listener that it is sent to.
#[derive(Debug)]
struct Request {
    listener: &'static str,
    method: &'static str,
    host: &'static str,
    target: String,
    fields: Vec<(&'static str, String)>,
    body: usize,
    /// The name that the client gives in its TLS greeting.
    server_name: Option<&'static str>,
}

fn one_of<T: Copy>(draws: &mut Draws, all: &[T]) -> T {
    all[draws.below(all.len() as u64) as usize]
}

/// Whether it happens this time, of so many.
fn once_in(draws: &mut Draws, times: u64) -> bool {
    draws.below(times) == 0
}

impl Request {
    fn draw(draws: &mut Draws, cookies: &[String]) -> Request {
        let listener = one_of(draws, &["routed", "routed", "routed", "routed", "whole", "whole", "secure"]);
        if listener == "secure" {
            return Request::over_tls(draws);
        }
        let method = if once_in(draws, 3) { one_of(draws, &METHODS) } else { one_of(draws, &METHODS[..3]) };
        let host = one_of(draws, &HOSTS);
        let target = match method {
            "CONNECT" => format!("{}:443", host.split(':').next().unwrap_or_default()),
            "OPTIONS" if once_in(draws, 4) => "*".to_owned(),
            _ => format!("{}{}", one_of(draws, &PATHS), one_of(draws, &QUERIES)),
        };
        let mut request =
            Request { listener, method, host, target, fields: Vec::new(), body: 0, server_name: None };
        request.draw_fields(draws, cookies);
        if matches!(method, "POST" | "PUT" | "PATCH" | "BREW" | "OPTIONS") {
            request.body = one_of(draws, &[0, 5, 100, 101, 1024, 1025]);
            request.fields.push(("content-length", request.body.to_string()));
        }
        if listener == "routed" && once_in(draws, 100) {
            request.fields.push(("x-long", "x".repeat(one_of(draws, &[3_000, 5_000]))));
        }
        request
    }

    fn over_tls(draws: &mut Draws) -> Request {
        let (server_name, host) = (
            one_of(draws, &["shop.example", "other.example"]),
            one_of(draws, &["shop.example", "other.example", "nobody.example"]),
        );
        let method = one_of(draws, &["GET", "POST", "DELETE"]);
        let target = format!("{}{}", one_of(draws, &["/", "/a", "/%61"]), one_of(draws, &["", "?a=b"]));
        let (fields, server_name) = (Vec::new(), Some(server_name));
        Request { listener: "secure", method, host, target, fields, body: 0, server_name }
    }

    fn draw_fields(&mut self, draws: &mut Draws, cookies: &[String]) {
        let fields = &mut self.fields;
        for _ in 0..draws.below(3) {
            fields.push(("x-user", format!("u{}", draws.below(300))));
        }
        if once_in(draws, 2) {
            fields.push(("x-canary", one_of(draws, &["1", "1", "2", ""]).to_owned()));
        }
        if once_in(draws, 3) {
            fields.push(("user-agent", one_of(draws, &["curl/8", "a bot", "Mozilla/5.0"]).to_owned()));
        }
        if once_in(draws, 2) {
            let client = format!("198.51.100.{}", draws.below(256));
            let forwarded = one_of(draws, &["", "192.0.2.1, ", "unknown, "]).to_owned() + &client;
            fields.push(("x-forwarded-for", forwarded + one_of(draws, &["", ", 127.0.0.9", ", what"])));
        }
        if once_in(draws, 8) {
            fields.push(("max-forwards", one_of(draws, &["0", "0", "3", "x"]).to_owned()));
        }
        if !cookies.is_empty() && once_in(draws, 2) {
            fields.push(("cookie", cookies[draws.below(cookies.len() as u64) as usize].clone()));
        }
        if once_in(draws, 50) {
            fields.push(one_of_owned(draws));
        }
    }

    fn question(&self, weir: &Weir) -> Value {
        let mut headers: Vec<_> = self.fields.iter().map(|(name, value)| json!([name, value])).collect();
        headers.insert(0, json!(["host", self.host]));
        let url = match self.method {
            "CONNECT" => format!("http://{}", self.target),
            _ => self.target.clone(),
        };
        assert!(weir.address(self.listener).port() > 0);
        json!({
            "protocol": "http", "method": self.method, "url": url, "from": "127.0.0.1", "headers": headers,
            "listener": self.listener, "server_name": self.server_name,
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", self.method, self.target, self.host);
        for (name, value) in &self.fields {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        text += "\r\n";
        text.into_bytes().into_iter().chain(std::iter::repeat_n(b'x', self.body)).collect()
    }
}

/// A field that a request is refused for, or that must make no difference.
fn one_of_owned(draws: &mut Draws) -> (&'static str, String) {
    let (name, value) = one_of(
        draws,
        &[("expect", "a miracle"), ("transfer-encoding", "cow"), ("connection", "x-user"), ("host", "second.example")],
    );
    (name, value.to_owned())
}

/// What of an answer can be told beforehand.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// Weir answers: its status, the word in an error's body, where a redirect leads.
    Weir { status: u64, word: Option<String>, location: Option<String> },
    /// A backend answers: its pool, its address where the choice is no chance, the path that it is asked for.
    Backend { pool: String, backend: Option<String>, path: String },
}

/// Whether a choice in this pool leaves nothing to chance, given how explain says that it came about.
fn is_certain(pool: &str, reason: &str) -> bool {
    match pool {
        "by_client" | "by_uri" => true,
        "by_header" => reason.contains("hash"),
        _ => reason.contains("cookie"),
    }
}

impl Told {
    fn by_explain(said: &Value, request: &Request) -> Told {
        let text = |key: &str| said[key].as_str().map(str::to_owned);
        match said["status"].as_u64() {
            Some(status) => {
                // HEAD has no body to have a word in.
                let word = text("end").filter(|word| word != "responded" && request.method != "HEAD");
                Told::Weir { status, word, location: text("location") }
            }
            None => {
                let choice = &said["pool"];
                let pool = choice["pool"].as_str().unwrap_or_default().to_owned();
                let is_certain = is_certain(&pool, choice["reason"].as_str().unwrap_or_default());
                let backend = choice["backend"].as_str().map(str::to_owned).filter(|_| is_certain);
                Told::Backend { pool, backend, path: text("backend_path").unwrap_or_default() }
            }
        }
    }

    fn by_answer(status: u16, field: impl Fn(&str) -> Option<String>, body: &str, certain: bool) -> Told {
        match field("x-pool") {
            Some(pool) => Told::Backend {
                pool,
                backend: field("x-backend").filter(|_| certain),
                path: field("x-path").unwrap_or_default(),
            },
            None => {
                let is_error = status >= 400 && field("content-type").is_some_and(|it| it.contains("utf-8"));
                let last = || body.trim_end().rsplit(' ').next().map(str::to_owned);
                let word = if is_error && body.starts_with(char::is_numeric) { last() } else { None };
                Told::Weir { status: u64::from(status), word, location: field("location") }
            }
        }
    }
}

/// Backends that say who they are and what they were asked for.
fn backends() -> Vec<(String, Backend)> {
    let all = POOLS.iter().flat_map(|(pool, _)| (0..EACH).map(move |number| (*pool, number)));
    all.map(|(pool, number)| {
        let address = weir_tests::dialogue::free_address();
        let backend = Backend::counting_at(address, move |request, wire| {
            let path = request.target.split('?').next().unwrap_or_default();
            let fields = [("x-pool", pool), ("x-backend", &address.to_string()), ("x-path", path)];
            if request.method == "HEAD" {
                let fields = fields.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
                wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{fields}\r\n"));
            } else {
                wire.answers(200, &fields, "ok");
            }
            After::Keep
        });
        (format!("{pool}{number}"), backend)
    })
    .collect()
}

fn setup(authority: &Authority, backends: &[(String, Backend)]) -> Setup {
    let mut config = CONFIG.to_owned();
    for (pool, keys) in POOLS {
        let names: Vec<String> = (0..EACH).map(|number| format!("\"@{pool}{number}\"")).collect();
        let _ = write!(config, "[pool.{pool}]\nbackends = [{}]\n{keys}\nhealth = \"off\"\n", names.join(", "));
    }
    let setup = authority.setup(&config);
    backends.iter().fold(setup, |setup, (name, backend)| setup.with(name, backend.address()))
}

/// Connections that are kept as long as Weir keeps them.
struct Clients<'w> {
    weir: &'w Weir,
    authority: &'w Authority,
    admin: Wire,
    plain: BTreeMap<&'static str, Wire>,
    secure: BTreeMap<&'static str, Client>,
}

impl Clients<'_> {
    fn explains(&mut self, question: &Value) -> Value {
        let body = question.to_string();
        self.admin.sends(format!(
            "POST /v1/explain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let answer = self.admin.receives_response();
        let text = answer.text();
        assert_eq!(answer.status, 200, "{question}: {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// What the data path does; a cookie that it sets goes to `cookies`.
    async fn asks(&mut self, request: &Request, certain: bool, cookies: &mut Vec<String>) -> Told {
        if request.listener == "secure" {
            return self.asks_over_tls(request, certain).await;
        }
        let wire = self
            .plain
            .entry(request.listener)
            .or_insert_with(|| self.weir.client(request.listener));
        wire.sends(request.bytes());
        let response = wire.receives_response_to(request.method);
        if response.closes() {
            self.plain.remove(request.listener);
        }
        if let Some(cookie) = response.fields.one("set-cookie").and_then(|cookie| cookie.split(';').next())
            && cookies.len() < 20
        {
            cookies.push(cookie.to_owned());
        }
        let field = |name: &str| response.fields.one(name).map(str::to_owned);
        Told::by_answer(response.status, field, &response.text(), certain)
    }

    async fn asks_over_tls(&mut self, request: &Request, certain: bool) -> Told {
        let name = request.server_name.expect("a name");
        if !self.secure.contains_key(name) {
            let client =
                Client::connect(Front::Http1Tls, self.authority, self.weir.address("secure"), name).await;
            self.secure.insert(name, client.expect("a connection"));
        }
        let client = self.secure.get_mut(name).expect("a client");
        client.asks_for(request.host);
        let parts = if request.method == "POST" { vec![Part::Content(Bytes::from_static(b"x"))] } else { vec![] };
        let answer = client.ask(request.method, &request.target, &[], parts).await.expect("an answer");
        if answer.fields.get("connection").is_some_and(|it| it == "close") {
            self.secure.remove(name);
        }
        let field = |name: &str| answer.fields.get(name).and_then(|it| it.to_str().ok()).map(str::to_owned);
        Told::by_answer(answer.status.as_u16(), field, &String::from_utf8_lossy(&answer.content), certain)
    }
}

/// So many requests, which must agree.
const REQUESTS: u32 = 10_000;

#[test]
fn explain_and_the_data_path_agree_on_ten_thousand_requests() {
    let authority =
        Authority::new().signs("shop", &["shop.example"]).signs("other", &["other.example"]);
    let backends = backends();
    let weir = setup(&authority, &backends).start();
    let mut draws = Draws::new();
    let mut clients = Clients {
        weir: &weir,
        authority: &authority,
        admin: weir.client("admin"),
        plain: BTreeMap::new(),
        secure: BTreeMap::new(),
    };
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    run(Duration::from_secs(600), async {
        let mut cookies = Vec::new();
        for number in 0..REQUESTS {
            let request = Request::draw(&mut draws, &cookies);
            let question = request.question(&weir);
            let said = clients.explains(&question);
            let expected = Told::by_explain(&said, &request);
            let certain = matches!(&expected, Told::Backend { backend: Some(_), .. });
            let told = clients.asks(&request, certain, &mut cookies).await;
            assert_eq!(told, expected, "request {number}: {request:?}\n{said}");
            let kind = match told {
                Told::Weir { status, word, .. } => format!("{status} {}", word.unwrap_or_default()),
                Told::Backend { pool, backend, .. } => format!("{pool} {}", backend.is_some()),
            };
            *seen.entry(kind).or_default() += 1;
        }
    });
    println!("{seen:#?}");
    for kind in [
        "by_client true", "by_header true", "by_header false", "by_uri true", "sticky true", "sticky false",
        "200 ", "301 ", "410 ", "400 path_above_root", "400 path_escape", "400 host_repeated",
        "400 max_forwards_syntax", "403 denied_address", "403 denied_method", "403 denied_path",
        "403 denied_user_agent", "403 sqli", "404 no_route", "405 method_refused", "413 body_too_large",
        "417 expectation_unknown", "421 misdirected", "429 rate_limited", "431 header_block_too_large",
        "503 rate_limited",
    ] {
        assert!(seen.contains_key(kind), "no request of the kind {kind:?} was drawn");
    }
}
