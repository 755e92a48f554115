//! `weir explain` and the data path decide alike.

mod requests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::task::JoinSet;
use weir_tests::dialogue::{After, Authority, Backend, Draws, Setup, Weir, Wire, free_address};
use weir_tests::versions::{Client, Front, Part, run};

use self::requests::{Request, once_in};

/// Every key of a listener or a route that decides about a request by its head.
const CONFIG: &str = r#"
[listener.routed]
bind = "@routed"
timeout = { client_idle = "1h" }
http = ["h1", "h2"]
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

[[listener.routed.route]]
path = "/sql/*"
pool = "by_uri"
sqli = "block"

[[listener.routed.route]]
path = ["/sticky/*", "*.png"]
pool = "sticky"

[listener.whole]
bind = "@whole"
timeout = { client_idle = "1h" }
http = ["h1", "h2"]
pool = "by_uri"
merge_slashes = true
deny_path = ["/admin/*"]

[listener.secure]
bind = "@secure"
timeout = { client_idle = "1h" }
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
        "by_header" => reason == "owns the key",
        _ => reason.contains("cookie"),
    }
}

impl Told {
    fn by_explain(said: &Value, request: &Request) -> Told {
        let text = |key: &str| said[key].as_str().map(str::to_owned);
        match said["status"].as_u64() {
            Some(status) => {
                // HEAD has no body to have a word in.
                let word = text("refusal").filter(|_| request.method != "HEAD");
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
        let address = free_address();
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
        let _ =
            write!(config, "[pool.{pool}]\nbackends = [{}]\n{keys}\nhealth = \"off\"\n", names.join(", "));
    }
    let setup = authority.setup(&config);
    backends.iter().fold(setup, |setup, (name, backend)| setup.with(name, backend.address()))
}

/// What explain foretells of a request.
struct Foretold {
    request: Request,
    expected: Told,
    said: Value,
}

impl Foretold {
    /// Whether other people's clients send it in HTTP/2, and Weir answers it there: what is malformed ends
    /// the stream.
    fn fits_http2(&self) -> bool {
        let is_malformed = matches!(self.expected, Told::Weir { status: 400 | 417 | 431 | 501, .. });
        !is_malformed
            && self.request.target.starts_with('/')
            && !self.request.fields.iter().any(|(name, _)| *name == "connection")
    }

    /// Whether explain named a backend that nothing but the request decides.
    fn is_certain(&self) -> bool {
        matches!(&self.expected, Told::Backend { backend: Some(_), .. })
    }
}

/// Requests in flight at once.
const AT_ONCE: usize = 40;

/// Connections that are kept as long as Weir keeps them.
struct Clients<'w> {
    weir: &'w Weir,
    authority: &'w Authority,
    admin: Wire,
    plain: BTreeMap<(&'static str, usize), Wire>,
    shared: BTreeMap<(&'static str, &'static str), Client>,
    /// Cookies that Weir has set.
    cookies: Vec<String>,
    seen: BTreeMap<String, u32>,
    /// Where the two did not agree.
    wrong: Vec<String>,
}

impl Clients<'_> {
    /// Asks explain about all of them, without a pause in between.
    fn explains(&mut self, requests: Vec<Request>) -> Vec<Foretold> {
        let mut questions = String::new();
        for request in &requests {
            let body = request.question().to_string();
            let length = body.len();
            let _ = write!(
                questions,
                "POST /v1/explain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            );
        }
        self.admin.sends(questions);
        let foretell = |request: Request| {
            let answer = self.admin.receives_response();
            let text = answer.text();
            assert_eq!(answer.status, 200, "{request:?}: {text}");
            let said: Value = serde_json::from_str(&text).expect("JSON");
            Foretold { expected: Told::by_explain(&said, &request), request, said }
        };
        requests.into_iter().map(foretell).collect()
    }

    /// Sends all of them at once and compares.
    async fn compare(&mut self, foretold: Vec<Foretold>, draws: &mut Draws) {
        let (mut plain, mut others) = (Vec::new(), JoinSet::new());
        for each in foretold {
            let over_http2 = each.fits_http2() && once_in(draws, 4);
            match each.request.server_name {
                None if !over_http2 => plain.push(each),
                server_name => {
                    let mut client = self.client(each.request.listener, server_name, over_http2).await;
                    let lone = client.share().is_none();
                    let exchange = async move {
                        let told = asks(&mut client, &each).await;
                        (each, told, client)
                    };
                    if lone {
                        let (each, told, client) = exchange.await;
                        let key = (each.request.listener, each.request.server_name.unwrap_or_default());
                        if !told.2 {
                            self.shared.insert(key, client);
                        }
                        self.agree(&each, told.0, told.1);
                    } else {
                        others.spawn(exchange);
                    }
                }
            }
        }
        for (number, each) in plain.iter().enumerate() {
            self.wire(each.request.listener, number).sends(each.request.bytes());
        }
        for (number, each) in plain.iter().enumerate() {
            let response = self.wire(each.request.listener, number).receives_response_to(each.request.method);
            if response.closes() {
                self.plain.remove(&(each.request.listener, number));
            }
            let cookie = response.fields.one("set-cookie").map(str::to_owned);
            let field = |name: &str| response.fields.one(name).map(str::to_owned);
            let told = Told::by_answer(response.status, field, &response.text(), each.is_certain());
            self.agree(each, told, cookie);
        }
        while let Some(done) = others.join_next().await {
            let (each, told, _) = done.expect("an answer");
            self.agree(&each, told.0, told.1);
        }
    }

    fn wire(&mut self, listener: &'static str, number: usize) -> &mut Wire {
        self.plain.entry((listener, number)).or_insert_with(|| self.weir.client(listener))
    }

    /// A client over this connection; one in HTTP/1.1 is taken out.
    async fn client(
        &mut self,
        listener: &'static str,
        name: Option<&'static str>,
        over_http2: bool,
    ) -> Client {
        let (front, key) = match (name, over_http2) {
            (None, _) => (Front::Http2, ""),
            (Some(name), true) => {
                (Front::Http2Tls, if name == "shop.example" { "h2 shop" } else { "h2 other" })
            }
            (Some(name), false) => (Front::Http1Tls, name),
        };
        if let Some(kept) = self.shared.remove(&(listener, key)) {
            if let Some(shared) = kept.share() {
                self.shared.insert((listener, key), shared);
            }
            return kept;
        }
        let host = name.unwrap_or("shop.example");
        let client = Client::connect(front, self.authority, self.weir.address(listener), host).await;
        let client = client.expect("a connection");
        if let Some(shared) = client.share() {
            self.shared.insert((listener, key), shared);
        }
        client
    }

    fn agree(&mut self, foretold: &Foretold, told: Told, cookie: Option<String>) {
        let Foretold { request, expected, said } = foretold;
        if told != *expected {
            self.wrong.push(format!("{request:?}\nexplained {expected:?}\nbut       {told:?}\n{said}"));
        }
        if let Some(pair) = cookie.as_deref().and_then(|cookie| cookie.split(';').next())
            && self.cookies.len() < 20
        {
            self.cookies.push(pair.to_owned());
        }
        let kind = match told {
            Told::Weir { status, word, .. } => format!("{status} {}", word.unwrap_or_default()),
            Told::Backend { pool, backend, .. } => format!("{pool} {}", backend.is_some()),
        };
        *self.seen.entry(kind).or_default() += 1;
    }
}

/// What the data path does, the cookie that it sets, and whether it closes the connection.
async fn asks(client: &mut Client, foretold: &Foretold) -> (Told, Option<String>, bool) {
    let request = &foretold.request;
    client.asks_for(request.host);
    let fields: Vec<_> = request.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let parts = match request.body {
        0 => Vec::new(),
        length => vec![Part::Content(Bytes::from(vec![b'x'; length]))],
    };
    let answer = client.ask(request.method, &request.target, &fields, parts).await;
    let answer = answer.unwrap_or_else(|failed| panic!("{request:?}: {failed:?}"));
    let field = |name: &str| answer.fields.get(name).and_then(|it| it.to_str().ok()).map(str::to_owned);
    let body = String::from_utf8_lossy(&answer.content);
    let told = Told::by_answer(answer.status.as_u16(), field, &body, foretold.is_certain());
    (told, field("set-cookie"), field("connection").is_some_and(|it| it == "close"))
}

/// So many requests, which must agree.
const REQUESTS: usize = 10_000;

/// Kinds of answers that there must be among them.
const KINDS: [&str; 26] = [
    "by_client true",
    "by_header true",
    "by_header false",
    "by_uri true",
    "sticky true",
    "sticky false",
    "200 ",
    "301 ",
    "410 ",
    "400 path_above_root",
    "400 path_escape",
    "400 host_repeated",
    "400 max_forwards_syntax",
    "403 denied_address",
    "403 denied_method",
    "403 denied_path",
    "403 denied_user_agent",
    "403 sqli",
    "404 no_route",
    "405 method_refused",
    "413 body_too_large",
    "417 expectation_unknown",
    "421 misdirected",
    "429 rate_limited",
    "431 header_block_too_large",
    "503 rate_limited",
];

#[test]
fn explain_and_the_data_path_agree_on_ten_thousand_requests() {
    let authority = Authority::new().signs("shop", &["shop.example"]).signs("other", &["other.example"]);
    let backends = backends();
    let weir = setup(&authority, &backends).start();
    let mut draws = Draws::new();
    let mut clients = Clients {
        weir: &weir,
        authority: &authority,
        admin: weir.client("admin"),
        plain: BTreeMap::new(),
        shared: BTreeMap::new(),
        cookies: Vec::new(),
        seen: BTreeMap::new(),
        wrong: Vec::new(),
    };
    run(Duration::from_secs(300), async {
        let mut counted = Vec::new();
        for _ in 0..REQUESTS / AT_ONCE {
            let drawn = (0..AT_ONCE).map(|_| Request::draw(&mut draws, &clients.cookies));
            let (after_others, any): (Vec<_>, Vec<_>) = drawn.partition(Request::is_counted);
            counted.extend(after_others);
            let foretold = clients.explains(any);
            clients.compare(foretold, &mut draws).await;
        }
        for request in counted {
            let foretold = clients.explains(vec![request]);
            clients.compare(foretold, &mut draws).await;
        }
    });
    println!("{:#?}", clients.seen);
    let Clients { wrong, .. } = &clients;
    assert!(wrong.is_empty(), "{} disagree:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n\n"));
    for kind in KINDS {
        assert!(clients.seen.contains_key(kind), "no request of the kind {kind:?} was drawn");
    }
}

#[test]
fn the_command_line_asks_the_same() {
    let authority = Authority::new().signs("shop", &["shop.example"]).signs("other", &["other.example"]);
    let backends = backends();
    let weir = setup(&authority, &backends).start();
    let explain = |words: &[&str]| {
        let finished = weir.command(&[&["explain", "http"], words].concat());
        finished.succeeded().to_owned()
    };
    for (words, said) in [
        (&["TRACE", "http://shop.example/", "--listener", "routed"][..], "refuse 405, method_refused"),
        (&["CONNECT", "http://shop.example:443", "--listener", "routed"], "refuse 405, method_refused"),
        (
            &["GET", "https://other.example/", "--listener", "secure", "--server-name", "shop.example"],
            "refuse 421, misdirected",
        ),
        (&["GET", "https://other.example/", "--listener", "secure"], "forward to pool by_client"),
        (
            &["PUT", "http://a/api/x", "--listener", "routed", "--header", "content-length: 101"],
            "refuse 413, body_too_large",
        ),
        (
            &["OPTIONS", "http://a/api/x", "--listener", "routed", "--header", "max-forwards: 0"],
            "respond 200, for `max-forwards` lets nobody else answer",
        ),
    ] {
        let all = explain(words);
        assert!(all.contains(&format!("action   {said}\n")), "{words:?}: {all}");
    }
    let nowhere = weir.command(&["explain", "http", "GET", "http://shop.example:9/"]);
    let said = format!("{}{}", nowhere.stdout, nowhere.stderr);
    assert!(said.contains("no HTTP listener accepts at port 9; name one with `--listener`"), "{said}");
    let moved = explain(&["GET", "http://shop.example/old/a?b", "--listener", "routed"]);
    assert!(moved.contains("location https://shop.example/new/old/a?b"), "{moved}");
    let rewritten = explain(&["GET", "http://shop.example/static/a.css", "--listener", "routed"]);
    assert!(rewritten.contains("asks for /files//a.css"), "{rewritten}");
}
