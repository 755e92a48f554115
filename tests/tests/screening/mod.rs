//! What listeners and routes ask of requests before they let them pass: lists, limits of rate, limits of
//! requests at once.

mod answers;
mod bodies;
mod cleared;
mod clients;
mod concurrency;
mod listed;
mod lists;
mod rates;
mod reload;

use weir_tests::dialogue::{Backend, Response, Setup, Weir};

/// Weir whose one route to `app` has these keys, and whose access log is a file of the test.
pub fn with_route(backend: &Backend, keys: &str) -> Setup {
    let config = format!(
        r#"
        [runtime]
        workers = 2
        [log]
        access = "@dir/access.log"
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        name = "guarded"
        pool = "app"
        {keys}
        [pool.app]
        backends = ["@app"]
        health = {{ check = "off", passive = "off" }}
        "#
    );
    Setup::of(&config).with("app", backend.address())
}

/// Weir whose listener has these keys, its one pool, and a route `/own` that is answered by the config.
pub fn with_listener(backend: &Backend, keys: &str) -> Setup {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        {keys}
        [[listener.web.route]]
        path = "/own"
        respond = {{ status = 200, body = "own" }}
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#
    );
    Setup::of(&config).with("app", backend.address())
}

/// A request on a connection of its own.
pub fn ask(weir: &Weir, method: &str, target: &str, fields: &str) -> Response {
    let mut client = weir.client("web");
    client.sends(format!("{method} {target} HTTP/1.1\r\nhost: a\r\n{fields}connection: close\r\n\r\n"));
    client.receives_response_to(method)
}

/// What was refused for this reason.
pub fn rejected(weir: &Weir, reason: &str) -> f64 {
    weir.metric("weir_rejected_total", &[("listener", "web"), ("reason", reason)])
}
