//! What did the operator ask for?
//!
//! Reads `weir.toml` into a [`Config`]: typed, complete (every default filled in) and cross-checked (every name that is used
//! exists). All mistakes are reported at once. Never opens a socket and never reads a clock; reading the file itself is the
//! caller's work, so that the same text gives the same answer everywhere.
//!
//! Start reading at [`schema`].
#![forbid(unsafe_code)]

pub mod schema;

pub use schema::*;
