//! HTTP/1.1 through the proxy plane.

mod bad_responses;
mod balancing;
mod bandwidth;
mod behind_proxies;
mod bodies;
mod breaker;
mod buffer_files;
mod buffering;
mod conditions;
mod counters;
mod early_answers;
mod forwarded_fields;
mod framing;
mod gunicorn;
mod heads;
mod hedge_attacks;
pub mod hedging;
mod held_requests;
mod large_bodies;
mod maps;
mod mirroring;
mod paths;
mod pipelining;
mod queue;
mod refusal;
mod retries;
mod retry_rules;
mod routing;
mod slow_peers;
mod splitting;
mod sticky;
mod timers;
pub mod upgrades;
mod waits;

use weir_tests::dialogue::{Backend, ScriptedBackend, Setup, Weir};

/// One listener, one pool, one backend, no probes: what the backend receives is what clients sent.
pub const PLAIN: &str = r#"
[listener.web]
bind = "@web"
pool = "app"

[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
"#;

/// Weir with [`PLAIN`] before this backend.
pub fn plain(backend: &Backend) -> Weir {
    Setup::of(PLAIN).with("app", backend.address()).start()
}

/// Weir with [`PLAIN`] before a backend that does what the test says.
pub fn plain_before(backend: &ScriptedBackend) -> Weir {
    Setup::of(PLAIN).with("app", backend.address()).start()
}
