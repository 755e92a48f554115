//! QUIC (RFC 9000): the transport of HTTP/3, on datagram sockets of our own.
//!
//! The protocol itself is `quinn-proto`'s, which does no I/O. This module receives and sends for it, steers datagrams to the worker that has their
//! connection, decides who may begin one, and offers streams. Start reading at [`endpoint`].

pub mod cid;
pub mod connection;
pub mod counts;
pub mod crypto;
pub mod endpoint;
pub mod forward;
mod gauge;
pub mod keys;
pub mod kin;
mod padding;
mod path;
pub mod port;
mod proofs;
pub mod seat;
pub mod socket;
#[cfg(test)]
mod tests;
mod timers;
mod wakers;
mod windows;
