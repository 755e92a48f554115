//! The configuration in force and the live state that belongs to it.
//!
//! A [`Snapshot`] is one consistent piece: the config, its listeners and its pools with their backends. It is
//! immutable but for live cells (counters, health, connections in flight, queues), which the next snapshot
//! takes over. The control side compiles it and puts it in force on every [`plane::Plane`]. This crate
//! depends on no plane, and what only one plane needs is compiled there. It moves no bytes and decides
//! nothing: `weir-balance` chooses the backend of a request.
//!
//! Start reading at [`snapshot`], then [`change`] (one backend more or less) and [`plane`] (how a snapshot
//! comes into force).
#![forbid(unsafe_code)]

pub mod bandwidth;
pub mod change;
pub mod connections;
pub mod counterparts;
pub mod departure;
pub mod hidden;
pub mod key;
pub mod listener;
pub mod maintenance;
pub mod maps;
pub mod memory;
pub mod named;
pub mod nudge;
pub mod picked;
pub mod plane;
pub mod pool;
pub mod queue;
pub mod server;
pub mod snapshot;
pub mod sockets;
pub mod token_keys;

pub use change::PoolChange;
pub use listener::Listener;
pub use maps::Maps;
pub use pool::{Backend, Choice, Origin, Pool, Resolved};
pub use server::ServerFacts;
pub use snapshot::Snapshot;
