//! TCP listeners: a session for each connection, whose bytes are relayed as they are.

pub mod relay;
pub mod session;
