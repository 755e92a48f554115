//! Parsers for the values of single fields: dates, entity tags, ranges, directives, negotiation.
//!
//! Each grammar has a file. The functions take the values as a head returns them, one for each line of that
//! name, and return typed values. A peer's mistake is never an error here; it is read in the way that does
//! the least harm: a malformed lifetime counts as none, a malformed condition does not hold, and a malformed
//! range asks for the whole.

pub mod accept;
pub mod accept_encoding;
pub mod cache_control;
pub mod cdn_cache_control;
pub mod cookies;
pub mod delta_seconds;
pub mod entity_tag;
pub mod http_date;
mod list;
pub mod range;
pub mod retry_after;
pub mod vary;
pub mod via;
