//! Bytes of a connection, relayed as they are.

mod pipes;
pub mod relay;
pub mod session;
