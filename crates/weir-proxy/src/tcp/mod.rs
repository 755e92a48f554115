//! TCP listeners: one session per connection, whose bytes are relayed unchanged.

pub mod relay;
pub mod session;
