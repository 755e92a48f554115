//! May this request pass?
//!
//! A [`Screen`] is what a listener or a route asks of its requests: lists of addresses, methods, paths and
//! user agents that are denied or alone allowed, limits of rate (of requests, or of answers of certain
//! statuses), and limits of requests at once. It answers
//! with a [`Refusal`] that says why, and [`Screen::explain`] says the same without counting anything. This
//! crate does no I/O, reads no clock and draws no randomness: `now` is a [`Duration`](std::time::Duration)
//! since any monotonic origin, and the seed of its hashes is an argument.
//!
//! A screen is shared by all workers: lists are immutable, and limits are atomics or short critical sections
//! of one shard, touched once per request. What a client can make it remember is bounded
//! ([`RateLimit::keys`]), and nobody loses a debt because others make new ones. Whom its limits have refused
//! is listed by [`Screen::limits`].
//!
//! Start reading in `screen.rs`; then `pattern.rs` and `addresses.rs` (lists), `bucket.rs` and `table.rs`
//! (rates), `concurrency.rs` and `adaptive.rs`. Whether a text carries SQL is answered in [`sqli`], which
//! stands alone.
#![forbid(unsafe_code)]

mod adaptive;
mod addresses;
mod answer_status;
mod bucket;
mod concurrency;
mod digest;
mod explain;
mod key;
mod limit_status;
mod network;
mod pattern;
mod rate;
mod rate_limiter;
mod refused_keys;
mod screen;
mod settings;
mod shown;
pub mod sqli;
mod table;

pub use addresses::{Networks, contains};
pub use answer_status::AnswerStatus;
pub use concurrency::Slot;
pub use explain::ScreenCheck;
pub use key::{Key, address_key};
pub use limit_status::{LimitRule, LimitStatus};
pub use pattern::{Case, Groups, Pattern, PatternSet};
pub use rate::Rate;
pub use rate_limiter::Debtor;
pub use refused_keys::RefusedKey;
pub use screen::{AdaptiveState, Facts, FieldLookup, Passage, Reason, Refusal, Screen, admit};
pub use settings::{AdaptiveLimit, Checkpoint, ConcurrencyLimit, RateLimit, Settings};
pub use shown::Whose;
