//! Rules about header fields and the language of their values (threat A27).

mod alternatives;
mod answers;
mod cached;
mod explained;
mod hosts;
mod injection;
mod replaced;
mod rules;
mod secured;
mod versions;

use weir_tests::dialogue::{After, Backend, Fields, Response, Setup, Weir};

/// A backend that says which software it is, and sets two cookies.
fn talkative() -> Backend {
    Backend::serving(|_, wire| {
        let fields = [
            ("server", "inner/1.0"),
            ("x-powered-by", "PHP/5.3"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("x-set", "theirs"),
        ];
        wire.answers(200, &fields, "ok");
        After::Keep
    })
}

/// Weir with this listener and the lines of its pool before a backend.
fn before(backend: &Backend, of_listener: &str, of_pool: &str) -> Weir {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        {of_listener}
        [pool.app]
        backends = ["@app"]
        health = {{ check = "off", passive = "off" }}
        {of_pool}
        "#
    );
    Setup::of(&config).with("app", backend.address()).start()
}

/// Sends this head, and gives what the client is answered.
fn ask(weir: &Weir, head: &str) -> Response {
    let mut client = weir.client("web");
    client.sends(head);
    client.receives_response()
}

/// What the backend was asked with after this head, which is answered 200.
fn asked(weir: &Weir, backend: &Backend, head: &str) -> Fields {
    let response = ask(weir, head);
    assert_eq!(response.status, 200, "{head}");
    backend.requests().pop().expect("a request").fields
}
