//! How Weir learns which backends are up, and what it does then.

mod agents;
mod ejection;
mod endings;
mod kill;
mod last_resort;
mod one_client;
mod probes;
mod questions;

use weir_tests::dialogue::{After, Backend, Weir};

/// Answers with its name.
pub fn named(name: &'static str) -> Backend {
    Backend::serving(move |_, wire| {
        wire.answers(200, &[], name);
        After::Keep
    })
}

/// Whether the backend may be chosen.
pub fn is_up(weir: &Weir, backend: impl ToString) -> bool {
    weir.metric("weir_backend_up", &[("backend", &backend.to_string())]) == 1.0
}

/// The config of an HTTP listener, `web`, in front of a pool with two backends, `a` and `b`, and these lines.
fn two_backends(of_pool: &str) -> String {
    format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@a", "@b"]
        {of_pool}
        "#
    )
}
