//! HTTP: receiving requests, deciding what to do with them, and getting responses from backends.
//! ARCHITECTURE.md says which file belongs to which of these parts.

mod answer;
mod aside;
mod ask;
mod attempt;
pub mod auth;
mod breaker;
pub mod by_route;
pub mod cache;
mod claim;
pub mod closing;
mod collect;
mod compress;
mod conditions;
pub(crate) mod connection;
mod date;
mod dispatch;
mod drive;
pub mod edit_table;
pub mod edits;
pub(crate) mod exchange;
mod exchange_values;
pub mod explain;
mod failure;
mod filed;
mod forward;
mod forwarding;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod h3;
mod handshake;
mod hedge;
mod hold;
mod idle;
mod kept;
mod ledger;
pub(crate) mod limits;
mod linger;
pub mod mirror;
mod muxed;
mod opener;
pub mod pages;
pub mod plan;
pub mod pool_map;
pub mod probe;
mod pump;
mod race;
mod read_ahead;
mod replacing;
mod reply;
mod request;
pub mod request_values;
mod requester;
mod respond;
mod response_pace;
mod retried;
mod rewrite;
pub mod route;
pub(crate) mod screen;
pub mod screening;
mod sending;
mod session;
mod shared_connections;
mod sink;
pub mod split;
pub mod sqli;
pub mod sticky;
mod stream;
pub(crate) mod stream_exchange;
pub(crate) mod tasks;
mod tunnel;
mod under_way;
mod untaken;
mod upload;

/// The normalised form of `path`, as it is used in cache keys.
///
/// # Errors
/// A request for this path would be refused with 400; the text says why.
pub fn normal_path(path: &str) -> Result<Vec<u8>, String> {
    let mut normal = Vec::new();
    match weir_http::path::normalise_into(path.as_bytes(), &mut normal) {
        Ok(true) => Ok(normal),
        Ok(false) => Ok(path.as_bytes().to_vec()),
        Err(violation) => Err(violation.to_string()),
    }
}
