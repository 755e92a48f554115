//! HTTP/1.1 on the wire (RFC 9112).

pub mod chunked;
pub mod connection;
pub mod encode;
pub(crate) mod fields;
pub(crate) mod framing;
pub(crate) mod parse;
mod status_line;
pub(crate) mod target;

pub use parse::{Progress, parse_request};
pub use status_line::parse_response;
