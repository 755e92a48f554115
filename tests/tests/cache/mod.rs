//! Answers from memory.

mod abandoned;
mod fill;
mod hits;
mod laggards;
mod purge;

use weir_tests::dialogue::{Backend, Response, Setup, Weir};

pub use abandoned::Silent;

/// One route that keeps what it may.
const KEEPS: &str = r#"
[listener.web]
bind = "@web"
timeout = { connect = "1s", backend = "3s" }
[[listener.web.route]]
pool = "app"
[listener.web.route.cache]
stale_if_error = "1h"
collapse_timeout = "2s"
object_max = "1MiB"
[pool.app]
backends = ["@app"]
retry = { attempts = 0 }
health = { check = "off", passive = "off" }
"#;

fn before(backend: &Backend) -> Weir {
    Setup::of(KEEPS).with("app", backend.address()).start()
}

/// What a GET of `path` with these further field lines is answered.
fn get(weir: &Weir, path: &str, lines: &str) -> Response {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n{lines}\r\n"));
    client.receives_response()
}

fn status(response: &Response) -> String {
    response.fields.one("cache-status").unwrap_or_default().to_owned()
}
