//! What stands between Weir and Pebble and has the authority say something else now and then.

use std::net::SocketAddr;

use weir_tests::dialogue::{After, Backend, Fields, Request, Setup, Weir, Wire, free_address};

use super::Pebble;

/// TLS towards Weir and towards Pebble; between the two everything comes by the test.
const FRONT: &str = r#"
[listener.ca]
bind = "@front"
http = ["h1"]
pool = "test"
tls = { certificates = [{ cert = "@dir/front.pem", key = "@dir/front.key" }] }
[listener.on]
bind = "@on"
http = ["h1"]
pool = "pebble"
set_request_header = { x-forwarded-proto = "https" }
[pool.test]
backends = ["@test"]
health = "off"
[pool.pebble]
backends = ["@pebble"]
tls = { ca = "@dir/front-ca.pem", server_name = "localhost" }
health = "off"
"#;

/// Fields of Pebble's answers that are passed on.
const PASSED_ON: [&str; 5] = ["content-type", "link", "location", "replay-nonce", "retry-after"];

/// What the authority says to one request.
pub struct Answer {
    status: u16,
    fields: Fields,
    body: Vec<u8>,
}

impl Answer {
    /// A no, as ACME has it.
    pub fn problem(status: u16, kind: &str, detail: &str) -> Answer {
        let kind = format!("urn:ietf:params:acme:error:{kind}");
        let body = serde_json::json!({ "type": kind, "detail": detail, "status": status });
        Answer { status, fields: Fields(Vec::new()), body: body.to_string().into_bytes() }
            .with("content-type", "application/problem+json")
    }

    /// A yes.
    pub fn json(body: &serde_json::Value) -> Answer {
        Answer { status: 200, fields: Fields(Vec::new()), body: body.to_string().into_bytes() }
    }

    /// Something that is not ACME.
    pub fn plain(status: u16) -> Answer {
        Answer { status, fields: Fields(Vec::new()), body: b"busy".to_vec() }
    }

    /// With one more field.
    pub fn with(mut self, name: &str, value: &str) -> Answer {
        self.fields.0.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Its body, JSON, after this change.
    pub fn changed(mut self, change: impl FnOnce(&mut serde_json::Value)) -> Answer {
        let mut body = serde_json::from_slice(&self.body).expect("JSON");
        change(&mut body);
        self.body = body.to_string().into_bytes();
        self
    }

    /// What its body, JSON, has by this name.
    pub fn says(&self, name: &str) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body[name].as_str().unwrap_or_default().to_owned()
    }
}

/// An authority that a test speaks through. Remembers what it was asked.
pub struct Between {
    front: SocketAddr,
    _front: Weir,
    test: Backend,
}

impl Between {
    /// Answers with `says`, which gets each request and the way to have Pebble answer it.
    pub fn and(
        pebble: &Pebble,
        says: impl Fn(&Request, &dyn Fn() -> Answer) -> Answer + Send + Sync + 'static,
    ) -> Between {
        let (front, on) = (free_address(), free_address());
        let test = Backend::serving(move |request, wire| {
            let answer = says(request, &|| passed_on(on, request));
            let fields: Vec<(&str, &str)> =
                answer.fields.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            wire.answers(answer.status, &fields, answer.body);
            After::Close
        });
        let weir = Setup::of(FRONT)
            .with("front", front)
            .with("on", on)
            .with("test", test.address())
            .with("pebble", pebble.address)
            .with_file("front.pem", &pebble.front_file("localhost.pem"))
            .with_file("front.key", &pebble.front_file("localhost.key"))
            .with_file("front-ca.pem", &pebble.front_ca())
            .start();
        Between { front, _front: weir, test }
    }

    /// Where the authority's directory is.
    pub fn directory(&self) -> String {
        format!("https://localhost:{}/dir", self.front.port())
    }

    /// How often it was sent something to a path that begins so.
    pub fn asked(&self, path: &str) -> usize {
        let is_one = |request: &&Request| request.method == "POST" && request.target.starts_with(path);
        self.test.requests().iter().filter(is_one).count()
    }
}

/// What Pebble says to it.
fn passed_on(on: SocketAddr, request: &Request) -> Answer {
    let mut wire = Wire::connect(on);
    let host = request.fields.one("host").unwrap_or_default();
    let kind = request.fields.one("content-type").unwrap_or("text/plain");
    let head = format!(
        "{} {} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        request.method,
        request.target,
        request.body.len()
    );
    wire.sends([head.as_bytes(), &request.body].concat());
    let answer = wire.receives_response_to(&request.method);
    let is_passed_on = |name: &str| PASSED_ON.iter().any(|known| name.eq_ignore_ascii_case(known));
    let fields = answer.fields.0.into_iter().filter(|(name, _)| is_passed_on(name)).collect();
    Answer { status: answer.status, fields: Fields(fields), body: answer.body }
}
