//! How do QUIC connections (RFC 9000) live on datagram sockets that several workers and processes share?
//!
//! The protocol itself is `quinn-proto`'s, which does no I/O. This crate receives and sends for it, steers
//! datagrams to the worker that has their connection, decides who may begin one and when a client has to
//! prove its address, bounds what clients make it hold or do, and offers streams. It never knows what is said
//! on them, nor which listeners there are: whoever serves connections brings a [`port::Front`], with the
//! settings and the error codes of his own protocol.
//!
//! Start reading at [`endpoint`], which moves everything, then [`connection`].
#![forbid(unsafe_code)]

pub mod cid;
pub mod connection;
pub mod counts;
pub mod crypto;
pub mod endpoint;
mod flood_budget;
pub mod forward;
pub mod keys;
pub mod other_processes;
mod padding;
mod path;
pub mod port;
pub mod process;
mod proofs;
pub mod socket;
#[cfg(test)]
mod tests;
mod timers;
mod wakers;
mod windows;
