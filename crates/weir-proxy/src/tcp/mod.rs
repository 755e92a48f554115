//! Bytes of a connection, relayed as they are.

pub mod relay;
pub mod session;
