//! The admin API and the command line that speaks to it.

mod access;
mod api;
mod changes;
mod command_line;
mod explain;
mod strangers;
mod top;

use weir_tests::dialogue::{Backend, Setup, Weir};

/// Two backends in one pool, probed.
pub const TWO: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@a", "@b"]
health = { check = "tcp", interval = "200ms", fast_interval = "50ms", timeout = "200ms" }
"#;

/// Weir with [`TWO`].
pub fn two(a: &Backend, b: &Backend) -> Weir {
    Setup::of(TWO).with("a", a.address()).with("b", b.address()).start()
}
