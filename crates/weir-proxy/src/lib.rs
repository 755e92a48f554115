//! The proxy plane: terminates connections in user space and moves bytes.
//!
//! Decides no policy by itself: which pool is `http::route`'s answer, which backend is `weir-balance`'s, where a body ends is
//! `weir-http`'s. The control side compiles a [`snapshot::Snapshot`] and hands it to the [`plane::ProxyPlane`]; everything on
//! the data path is owned by one worker thread and never locked.
//!
//! Start reading at [`worker`] (what the sessions of one thread share), then `listen` and `accept` (a new connection), then `http::session` and
//! `http::exchange`.
#![forbid(unsafe_code)]

mod accept;
pub mod access_log;
mod backends;
pub mod client;
mod counterparts;
pub mod events;
mod handshake;
pub mod http;
mod identify;
mod listen;
mod memory;
pub mod plane;
mod queue;
mod reach;
pub mod seats;
pub mod snapshot;
pub mod sockets;
pub mod staging;
mod tcp;
mod udp;
mod worker;
