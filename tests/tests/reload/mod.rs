//! Changing the running program: reload, upgrade, signals, restart.

mod arrivals;
mod buffer_directory;
mod changes;
mod composed;
mod conversations;
mod hung;
mod interfaces;
mod refused;
mod restart;
mod retried;
mod running;
mod signals;
mod soak;
mod storm;
mod supervised;
mod upgrade;

use weir_tests::dialogue::{After, Backend, Response, Signal, Weir, until};

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

/// Has Weir told to end (TERM) in the middle of an upgrade, whose new process goes on behind that.
pub fn ended_while_upgraded(weir: &Weir) {
    let old = weir.pid();
    // Whoever reads its config from a pipe waits until there is one.
    let config = std::fs::read(weir.config_path()).expect("the config");
    std::fs::remove_file(weir.config_path()).expect("remove");
    let made = std::process::Command::new("mkfifo").arg(weir.config_path()).status().expect("mkfifo");
    assert!(made.success());
    weir.signals_pid(old, Signal::USR2);
    until("the upgrade to begin", || weir.stderr().contains("starting the new process").then_some(()));
    weir.signals_pid(old, Signal::TERM);
    until("the old one to wait", || weir.stderr().contains("told to end during an upgrade").then_some(()));
    std::fs::write(weir.config_path(), config).expect("let the new one go on");
}
