//! The meaning of single fields' values: dates, entity tags, ranges, directives, negotiation.
//!
//! Each grammar has a file. They take the values as a head gives them, one for each line of that name, and
//! answer with typed values. A peer's mistake is never an error here but the reading that can do the least
//! harm: freshness that nobody can read is none, a condition that nobody can read does not hold, a range that
//! nobody can read asks for the whole.

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
