//! Sockets of the Unix domain.

mod admin;
mod backends;
mod binds;
mod files;

use std::sync::atomic::{AtomicU32, Ordering};

static NAMED: AtomicU32 = AtomicU32::new(0);

/// A path, or with `@` in front a name in the abstract namespace, that no other test has; as a config has it
/// behind `unix:`.
fn fresh(kind: &str) -> String {
    let number = NAMED.fetch_add(1, Ordering::Relaxed);
    let name = format!("weir-unix-{}-{number}", std::process::id());
    match kind {
        "@" => format!("@{name}"),
        _ => std::env::temp_dir().join(name).display().to_string(),
    }
}
