//! Scripted clients, scripted backends and a running Weir between them.
//!
//! A test is a dialogue: the client sends these bytes, the backend receives those. Every wait is bounded by
//! [`PATIENCE`] and fails with what was received so far; no test sleeps to let something happen, it polls
//! until it has happened.

mod admin;
mod authority;
mod backend;
mod bodies;
mod configs;
mod door;
pub mod http2;
pub mod http3;
mod message;
mod name_server;
mod ports;
mod process;
mod program;
pub mod quic;
mod quiet;
mod scripted;
mod sets;
mod tools;
mod weir;
mod wire;
mod zone_server;

pub use admin::{Admin, Answer, Sample};
pub use authority::Authority;
pub use backend::{After, Backend};
pub use bodies::{Draws, fingerprint, pattern};
pub use configs::{EVERY_PROTOCOL, EVERY_VERSION, INNER, NO_HEALTH, NO_PROBES, ONE_POOL, one_pool};
pub use door::Door;
pub use message::{Broken, Fields, Request, Response};
pub use name_server::NameServer;
pub use ports::{Unreachable, datagram_socket, free_address, listen_at};
pub use process::{Usage, processes_mentioning, processor_time_of, usage_of};
pub use program::{Gunicorn, Program};
pub use quiet::{Quiet, alone};
pub use scripted::ScriptedBackend;
pub use sets::Sets;
pub use tools::{Finished, client_program, curl, run_tool, tool};
pub use weir::{Setup, Signal, Weir, weir_binary};
pub use wire::Wire;
pub use zone_server::{UPDATE_KEY, ZoneServer};

use std::time::{Duration, Instant};

/// The fail-safe bound of every wait: long enough for a loaded machine, short enough that a hang is a clear
/// failure.
pub const PATIENCE: Duration = Duration::from_secs(30 * SLOWNESS);

/// Factor for timeouts: on an emulated machine beside others (`make kernels`) everything takes longer.
pub const SLOWNESS: u64 = if option_env!("WEIR_TEST_SLOW").is_some() { 12 } else { 1 };

/// Repeats `question` until it returns `Some`, for at most [`PATIENCE`].
///
/// Panics with `what` when it never does.
pub fn until<T>(what: &str, question: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, question)
}

/// [`until`] with a bound of its own, for things that take long by design.
pub fn until_within<T>(patience: Duration, what: &str, mut question: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = question() {
            return answer;
        }
        assert!(begun.elapsed() < patience, "waited {patience:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
