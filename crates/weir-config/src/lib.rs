//! What did the operator ask for?
//!
//! Reads `weir.toml` into a [`Config`]: typed, complete (every default filled in) and cross-checked (every name that is used
//! exists). All mistakes are reported at once. Never opens a socket and never reads a clock; reading the file itself is the
//! caller's work, so that the same text gives the same answer everywhere.
//!
//! Start reading at [`schema`], then `keys/tables.rs` (the one table of keys) and `parse.rs` (the way from text to config).
#![forbid(unsafe_code)]

mod bind;
mod build;
mod check;
mod diff;
mod fields;
mod keys;
mod limits;
mod parse;
pub mod reference;
mod report;
pub mod schema;
mod suggest;
mod syntax;
pub mod units;
mod values;
mod write;

pub use diff::{Change, ChangeKind, KeyChange, diff};
pub use parse::{Checked, check_text, decode, parse};
pub use report::{Problem, Report, Severity};
pub use schema::*;
pub use write::{SECRET, text as quoted, to_toml, to_toml_without_secrets};
