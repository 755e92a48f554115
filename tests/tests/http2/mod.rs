//! HTTP/2 to clients and to backends, through other people's programs and, for attacks, frame by frame.

mod curl;
mod floods;
mod honest;
mod idle;
mod ignored;
mod load;
mod malformed;
mod matrix;
mod picking;
mod remote_calls;
mod shared;
mod small_frames;
mod specification;
mod stalls;
mod tunnels;
mod unreachable;
mod upgrade;
mod upstream;

use weir_tests::dialogue::http2::Http2;
use weir_tests::dialogue::{Backend, Setup, Weir};

/// A listener that speaks both versions to clients, and a pool that is spoken to in HTTP/1.1.
const BOTH: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"

[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
"#;

/// Weir with [`BOTH`] before this backend.
fn both(backend: &Backend) -> Weir {
    Setup::of(BOTH).with("app", backend.address()).start()
}

/// A client that speaks HTTP/2 by prior knowledge, with these settings.
fn connect(weir: &Weir, settings: &[u8]) -> Http2 {
    Http2::client(weir.client("web"), settings)
}
