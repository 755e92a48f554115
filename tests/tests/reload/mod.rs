//! Changing the running program: reload, upgrade, signals, restart.

mod arrivals;
mod changes;
mod composed;
mod conversations;
mod interfaces;
mod refused;
mod restart;
mod running;
mod signals;
mod storm;
mod supervised;
mod upgrade;

use weir_tests::dialogue::{After, Backend, Response, Weir};

/// Answers with its name.
pub fn named(name: &'static str) -> Backend {
    Backend::serving(move |_, wire| {
        wire.answers(200, &[], name);
        After::Keep
    })
}

/// A GET on a connection of its own.
pub fn ask(weir: &Weir, listener: &str) -> Response {
    let mut client = weir.client(listener);
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    client.receives_response()
}
