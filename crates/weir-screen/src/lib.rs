//! Decides whether a request may pass.
//!
//! A [`Screen`] holds the checks that a listener or a route makes on its requests: allow and deny lists of
//! addresses, methods, paths and user agents, rate limits (of requests, or of answers with certain statuses),
//! and concurrency limits. It answers with a [`Refusal`] that says why, and [`Screen::explain`] gives the
//! same verdict without counting anything. This crate does no I/O, reads no clock and draws no randomness:
//! `now` is a [`Duration`](std::time::Duration) since any monotonic origin, and the seed of its hashes is an
//! argument.
//!
//! A screen is shared by all workers: lists are immutable, and limits are atomics or short critical sections
//! of one shard, entered once per request. The memory that clients can make it use is bounded
//! ([`RateLimit::keys`]), and no key loses its debt because others make new ones. [`Screen::limits`] lists
//! the keys that its limits have refused.
//!
//! Limits can be counted together by several Weirs: `sharing.rs` says what one tells the others, and what
//! follows from what they say.
//!
//! Start reading in `screen.rs`; then `pattern.rs` and `addresses.rs` (lists), `bucket.rs` and `table.rs`
//! (rates), `concurrency.rs` and `adaptive.rs`. [`sqli`] decides whether a text carries SQL; it is
//! independent of the rest.
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
mod sharing;
mod shown;
pub mod sqli;
mod table;
mod token_counts;
mod untold;

pub use addresses::{Networks, contains};
pub use answer_status::AnswerStatus;
pub use concurrency::Slot;
pub use digest::Seeds;
pub use explain::ScreenCheck;
pub use key::{Key, address_key, site_key};
pub use limit_status::{LimitRule, LimitStatus};
pub use pattern::{Case, Groups, Pattern, PatternSet};
pub use rate::Rate;
pub use rate_limiter::Debtor;
pub use refused_keys::RefusedKey;
pub use screen::{AdaptiveState, Facts, FieldLookup, Passage, Reason, Refusal, Screen, admit};
pub use settings::{AdaptiveLimit, Checkpoint, ConcurrencyLimit, RateLimit, Settings};
pub use sharing::{KeyDebt, LimitId, LimitLook, SharedKey, SharedLimit, TokenCount};
pub use shown::Whose;
