//! MySQL listeners before real servers.

mod cluster;
mod compression;
mod drain;
mod failover;
mod limits;
mod programs;
mod replication;
mod sessions;

use weir_tests::dialogue::{Setup, Weir};
use weir_tests::mysql::{BEFORE_PAIR, Client, Login, Pair};

/// Weir before the pair.
fn before(pair: &Pair) -> Weir {
    Setup::of(BEFORE_PAIR).with("primary", pair.primary.address).with("replica", pair.replica.address).start()
}

/// A client of `app`'s at a listener, in the schema `shop`.
fn client(weir: &Weir, listener: &str) -> Client {
    Client::log_in(weir.address(listener), &Login::of("app", "shop")).expect("app is let in")
}
