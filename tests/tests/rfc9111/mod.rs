//! What the cache keeps, gives, asks for anew and never mixes up (RFC 9111, 5861, 9110, 9211, 9213), seen by
//! curl and by the origin.
//!
//! Threats E1 to E8 are named in the comments of the tests that guard them.

mod collapse;
mod conditions;
mod keys;
mod odd;
mod purge;
mod ranges;
mod stale;
mod storing;
mod threats;
mod validation;
mod versions;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weir_tests::dialogue::{
    After, Backend, Fields, PATIENCE, Request, Response, Setup, Weir, Wire, run_tool, tool,
};

/// What the origin answers.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    fields: Vec<(String, String)>,
    body: String,
}

/// An answer with these field lines, separated by newlines.
fn reply(status: u16, lines: &str, body: impl Into<String>) -> Reply {
    let fields = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    let split = |line: &str| {
        let (name, value) = line.split_once(':').expect("a field line");
        (name.to_owned(), value.trim().to_owned())
    };
    Reply { status, fields: fields.map(split).collect(), body: body.into() }
}

/// A 200.
fn ok(lines: &str, body: impl Into<String>) -> Reply {
    reply(200, lines, body)
}

/// Weir with a cache before an origin.
struct Site {
    weir: Weir,
    origin: Option<Backend>,
}

const CONFIG: &str = r#"
[cache]
memory = "64MiB"

[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
timeout = { connect = "2s", backend = "5s" }

[[listener.web.route]]
path = "/*"
pool = "app"
[listener.web.route.cache]
RULES

[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
retry = { attempts = 0 }
"#;

/// A site whose route has these cache keys. The origin answers by request, and by how many requests for the
/// same target came before.
fn site(rules: &str, answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Site {
    let counts: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let origin = Backend::serving(move |request, wire| {
        let before = {
            let mut counts = counts.lock().expect("counts");
            let count = counts.entry(request.target.clone()).or_default();
            *count += 1;
            *count - 1
        };
        let Reply { status, fields, body } = answer(request, before);
        let mut fields: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if request.method == "HEAD" {
            fields.push(("content-length", "5"));
            let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            wire.sends(format!("HTTP/1.1 {status} Status\r\n{lines}\r\n"));
        } else if matches!(status, 204 | 304) {
            let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            wire.sends(format!("HTTP/1.1 {status} Status\r\n{lines}\r\n"));
        } else {
            wire.answers(status, &fields, body);
        }
        After::Keep
    });
    let weir = Setup::of(&CONFIG.replace("RULES", rules)).with("app", origin.address()).start();
    Site { weir, origin: Some(origin) }
}

/// A site whose origin sends these fields each time, and how many requests for the target came before.
fn site_sending(rules: &str, lines: &str) -> Site {
    let lines = lines.to_owned();
    site(rules, move |_, before| ok(&lines, before.to_string()))
}

/// An origin that answers by how many requests came before.
fn by_number(answer: impl Fn(usize, &mut Wire) + Send + Sync + 'static) -> Backend {
    let count = AtomicUsize::new(0);
    Backend::serving(move |_, wire| {
        answer(count.fetch_add(1, Ordering::SeqCst), wire);
        After::Keep
    })
}

impl Site {
    fn origin(&self) -> &Backend {
        self.origin.as_ref().expect("the origin lives")
    }

    /// How many requests have reached the origin.
    fn served(&self) -> usize {
        self.origin().served()
    }

    /// The requests that have reached the origin.
    fn asked(&self) -> Vec<Request> {
        self.origin().requests()
    }

    fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.weir.address("web"))
    }

    /// What curl gets for a target, sending these fields, such as `accept: a`.
    fn get(&self, target: &str, fields: &[&str]) -> Response {
        self.curl(target, fields, &[])
    }

    fn curl(&self, target: &str, fields: &[&str], options: &[&str]) -> Response {
        let url = self.url(target);
        let mut words = vec![
            "--silent",
            "--show-error",
            "--include",
            "--max-time",
            "20",
            "--noproxy",
            "*",
            "--path-as-is",
        ];
        for field in fields {
            words.extend(["--header", field]);
        }
        words.extend(options);
        words.push(&url);
        let finished = run_tool(&tool("curl", "curl"), &words, b"", PATIENCE * 2);
        response(finished.succeeded())
    }

    /// The bodies of `count` answers to one request.
    fn bodies(&self, target: &str, fields: &[&str], count: usize) -> Vec<String> {
        (0..count).map(|_| self.get(target, fields).text()).collect()
    }

    /// Asks twice; whether the second came from memory. The origin must have been asked accordingly.
    #[track_caller]
    fn is_kept(&self, target: &str, fields: &[&str]) -> bool {
        let before = self.served();
        let first = self.get(target, fields);
        let second = self.get(target, fields);
        let asked = self.served() - before;
        assert!((1..=2).contains(&asked), "the origin was asked {asked} times");
        let kept = asked == 1;
        assert_eq!(is_hit(&second), kept, "asked {asked} times, then {first:?}, then {second:?}");
        kept
    }

    /// The origin goes away, resetting what is open.
    fn origin_dies(&mut self) -> std::net::SocketAddr {
        self.origin.take().expect("the origin lives").dies()
    }
}

/// What curl has printed with `--include`.
fn response(text: &str) -> Response {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let (line, lines) = head.split_once("\r\n").unwrap_or((head, ""));
    let mut words = line.split(' ');
    let version = words.next().unwrap_or_default().to_owned();
    let status =
        words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no status: {text:?}"));
    let split =
        |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    let fields = Fields(lines.split("\r\n").filter_map(split).collect());
    Response { status, version, fields, body: body.as_bytes().to_vec(), ..Response::default() }
}

/// What `cache-status` says (RFC 9211).
fn status_of(response: &Response) -> String {
    response.fields.one("cache-status").unwrap_or_default().to_owned()
}

/// Whether it came from memory, as it says itself. What was answered so has an age.
fn is_hit(response: &Response) -> bool {
    let hit = status_of(response).split(';').any(|part| part.trim() == "hit");
    assert!(!hit || response.fields.one("age").is_some(), "a hit without an age: {response:?}");
    hit
}

fn age_of(response: &Response) -> u64 {
    let age = response.fields.one("age").unwrap_or_else(|| panic!("no age: {response:?}"));
    age.parse().unwrap_or_else(|_| panic!("age {age:?}"))
}
