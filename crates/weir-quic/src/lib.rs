//! How do QUIC connections (RFC 9000) live on datagram sockets that several workers and processes share?
//!
//! The protocol itself is in `quinn-proto`, which does no I/O. This crate receives and sends for it, steers
//! datagrams to the worker that has their connection, decides which clients may open a connection and when
//! they must prove their address, limits what clients can make it store or do, and offers streams. It does
//! not know what is sent on the streams, nor which listeners exist: the code that serves connections provides
//! a [`port::Front`], with the settings and error codes of its protocol.
//!
//! Start reading at [`endpoint`], which drives everything, then [`connection`].
#![forbid(unsafe_code)]

pub mod allowance;
pub mod cid;
pub mod connection;
pub mod counts;
pub mod crypto;
pub mod endpoint;
mod flood_budget;
pub mod forward;
mod frames;
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
