//! Chooses the backend for a request, session or flow, and keeps track of which backends are up.
//!
//! A [`Pool`] holds the backends of one `[pool.x]` and their live state. A [`Picker`], one per worker thread,
//! chooses among them. [`HealthMachine`] turns probe results into up and down. This crate never does I/O,
//! reads a clock or draws randomness: `now` is a [`Duration`](std::time::Duration) since any monotonic origin
//! the caller likes, and random draws are arguments. So a simulation, `weir explain` and live traffic run the
//! same code.
//!
//! Who calls what:
//!
//! - A worker calls [`Picker::pick`] (lock-free, no allocation), connects, and calls [`Pool::release`]
//!   exactly once when the exchange or session ends, with [`Pool::observe`] saying how it went.
//! - The control thread changes facts ([`Backend::set_health`], [`Pool::set_admin_state`],
//!   [`Pool::set_weight`]) and then calls [`Pool::refresh`], which publishes a new immutable view if, and
//!   only if, something changed. It sleeps until [`Pool::next_change`].
//!
//! Start reading in `pool.rs`, then `picker.rs`; each algorithm is one file of its own under `choice/`.
#![forbid(unsafe_code)]

mod admin;
mod agent;
mod algorithm;
mod alias_table;
mod backend;
mod breaker;
mod choice;
mod explain;
mod failures;
mod health;
mod latency;
pub mod maglev;
mod moment;
mod outlier;
mod pick;
mod picker;
mod pool;
mod rates;
mod response_times;
mod retry_budget;
mod ring;
mod role;
mod sequence;
mod settings;
mod slow_start;
mod stable_hash;
mod state;
mod trial;
mod view;

pub use admin::AdminState;
pub use agent::AgentSays;
pub use algorithm::Algorithm;
pub use backend::{Backend, BackendSettings, Health, MAX_WEIGHT, WeightTooLarge};
pub use breaker::{Admitted, Breaker, BreakerSettings, BreakerState, Turn};
pub use explain::{BackendStatus, Explanation, Refusal};
pub use health::{HealthMachine, Transition, start_offset};
pub use outlier::{Blamed, Ejection, Outcome};
pub use pick::{BackendIndex, NoPick, Pick, PickInput, PickReason};
pub use picker::Picker;
pub use pool::{Eligible, Pool, Refreshed};
pub use rates::{Counted, Outlier};
pub use response_times::{ResponseTimes, WINDOW_SECONDS};
pub use retry_budget::{RetryBudget, RetryShare};
pub use role::{Readers, Role, WantedRole};
pub use settings::{Passive, Settings, SuccessRate};
pub use stable_hash::{address_hash, flow_hash, stable_hash};
pub use state::{State, TierKind};
pub use trial::LastResort;
