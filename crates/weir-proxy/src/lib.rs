//! The proxy plane: terminates connections in user space and moves bytes.
//!
//! The crate makes no policy decisions of its own: `http::route` picks the pool, `weir-balance` picks the
//! backend, and `weir-http` says where a body ends. The control side compiles a [`weir_state::Snapshot`] and
//! hands it to the [`plane::ProxyPlane`]. One worker thread owns everything on the data path, without locks.
//!
//! Start reading at [`worker`] (what the sessions of one thread share), then `listen` and `accept` (a new
//! connection), then `http::h1` and `http::dispatch`.
#![forbid(unsafe_code)]

mod accept;
pub mod access_log;
mod admission;
mod backends;
pub mod client;
pub mod compiled;
mod connect_error;
mod ended;
mod enders;
pub mod events;
mod evictions;
mod handshake;
pub mod http;
mod identify;
mod listen;
mod listener_socket;
mod mysql;
mod pace;
pub mod plane;
mod reach;
mod seldom;
mod shares;
mod slots;
mod tcp;
pub mod timers;
mod udp;
mod worker;

pub use reach::{HedgeRules, RetryRules};
