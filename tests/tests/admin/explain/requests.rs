//! Requests of all kinds, drawn.

use std::fmt::Write as _;

use serde_json::{Value, json};
use weir_tests::dialogue::Draws;

const HOSTS: [&str; 6] = [
    "shop.example",
    "IMG.shop.example",
    "other.example",
    "shop.example:8080",
    "shop.example.",
    "nobody.example",
];
/// Where a tunnel may lead; of some requests `host` says another.
const TUNNELS: [&str; 2] = ["shop.example:443", "other.example:443"];
const METHODS: [&str; 10] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "BREW"];
const PATHS: [&str; 34] = [
    "/",
    "/static",
    "/static/a.css",
    "/static../secret",
    "/static.",
    "/%73tatic/x",
    "/api/cart",
    "/api/",
    "/api",
    "/api/../gone",
    "/api/%2e%2e/%2e%2e/x",
    "/x/./api/y",
    "/a//b",
    "//api/x",
    "/old/page",
    "/old/%41%2f",
    "/gone",
    "/gone/",
    "/guarded/a",
    "/guarded/x.php",
    "/guarded/%2E",
    "/often/a",
    "/often/b",
    "/often/c",
    "/sql/a",
    "/sql/%27",
    "/sticky/a",
    "/logo.png",
    "/admin/x",
    "//admin//x",
    "/..;/x",
    "/%zz",
    "/a%00b",
    "/nowhere",
];
const QUERIES: [&str; 6] =
    ["", "", "?", "?a=b", "?id=1%27%20OR%20%271%27=%271", "?q=1+UNION+SELECT+password+FROM+users"];

/// A request, and the listener that it is sent to.
#[derive(Clone, Debug)]
pub struct Request {
    pub listener: &'static str,
    pub method: &'static str,
    pub host: &'static str,
    pub target: String,
    pub fields: Vec<(&'static str, String)>,
    pub body: usize,
    /// The name that the client gives in its TLS greeting.
    pub server_name: Option<&'static str>,
}

fn one_of<T: Copy>(draws: &mut Draws, all: &[T]) -> T {
    all[draws.below(all.len() as u64) as usize]
}

/// Whether it happens this time, of so many.
pub fn once_in(draws: &mut Draws, times: u64) -> bool {
    draws.below(times) == 0
}

impl Request {
    pub fn draw(draws: &mut Draws, cookies: &[String]) -> Request {
        let listener = one_of(draws, &["routed", "routed", "routed", "routed", "whole", "whole", "secure"]);
        if listener == "secure" {
            return Request::over_tls(draws);
        }
        let method = if once_in(draws, 3) { one_of(draws, &METHODS) } else { one_of(draws, &METHODS[..3]) };
        let host = one_of(draws, if method == "CONNECT" { &TUNNELS } else { &HOSTS });
        let target = match method {
            "CONNECT" => one_of(draws, &TUNNELS).to_owned(),
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
        let body = if method == "POST" { 5 } else { 0 };
        let mut fields = Vec::new();
        if body > 0 {
            fields.push(("content-length", body.to_string()));
        }
        let server_name = Some(server_name);
        Request { listener: "secure", method, host, target, fields, body, server_name }
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

    pub fn question(&self) -> Value {
        let mut headers: Vec<_> = self.fields.iter().map(|(name, value)| json!([name, value])).collect();
        headers.insert(0, json!(["host", self.host]));
        let url = match self.method {
            "CONNECT" => format!("http://{}", self.target),
            _ => self.target.clone(),
        };
        json!({
            "protocol": "http", "method": self.method, "url": url, "from": "127.0.0.1", "headers": headers,
            "listener": self.listener, "server_name": self.server_name,
        })
    }

    /// Whether what becomes of it depends on those before it.
    pub fn is_counted(&self) -> bool {
        self.target.starts_with("/often/")
    }

    pub fn bytes(&self) -> Vec<u8> {
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
        &[
            ("expect", "a miracle"),
            ("transfer-encoding", "cow"),
            ("connection", "x-user"),
            ("host", "second.example"),
        ],
    );
    (name, value.to_owned())
}
