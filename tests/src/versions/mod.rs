//! The same requests in every version of HTTP: a client for each, and a backend that answers in each, with
//! and without TLS.
//!
//! They are made of other people's libraries: hyper, and the `h3` crate over quinn.

mod backend;
mod client;
mod tls;

pub use backend::{Behind, VersionedBackend};
pub use client::{Answer, Client, Failed, Front, Part, Turns};
pub(crate) use tls::of_client;

use std::time::Duration;

/// Runs `test` to its end in a runtime of its own, at most for `patience`.
pub fn run<T>(patience: Duration, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(patience, test).await.expect("in time") })
}
