//! How do bytes get in and out of a socket, in bounded memory and bounded time?
//!
//! The crate has read buffers that a connection borrows only while bytes are in them, one deadline for each
//! session, TLS records, pipes for `splice(2)`, batches of datagrams, nameless temporary files for what must
//! not stay in memory ([`temporary`]), and the system calls that tokio does not offer. It does not know what
//! the bytes mean (no HTTP, no TCP or UDP proxying), who sends them (no listener, no backend), what the
//! config says, or which worker it runs on: the caller passes in buffers and deadlines.
//!
//! Start reading at [`stream`], a plain or encrypted connection, then [`wait`], [`deadline`] and [`buffers`],
//! which every user of a connection needs.
#![deny(unsafe_code)]

pub mod at;
pub mod buffers;
pub mod clock;
pub mod deadline;
pub mod flood;
pub mod handshake;
pub mod listener;
pub mod local_end;
pub mod meter;
pub mod pipes;
pub mod race;
pub mod server_name;
pub mod socket;
pub mod stream;
pub mod system;
pub mod temporary;
pub mod tls;
pub mod unix_socket;
pub mod wait;
