//! The admin API: what the operator can see and change.
//!
//! It serves, over HTTP: status, metrics, events, the config in force, a status page, `weir explain`, and the
//! calls that change something. It reads the state of [`weir_control::control::Control`] and asks it for
//! changes; it decides nothing itself and never touches a client's bytes.
//!
//! Start reading at [`endpoints`] (every call, in one table), then `api.rs` (the implementation of each) and
//! [`auth`] (who may call).
#![forbid(unsafe_code)]

mod api;
pub mod auth;
mod certificates;
pub mod endpoints;
pub mod explain;
pub mod limits;
pub mod maintenance;
mod map_calls;
pub mod maps;
pub mod memory;
mod metrics;
mod names;
pub mod on_demand;
mod page;
mod process;
mod purge;
pub mod reach;
pub mod server;
mod slots;
pub mod status;
pub mod token_keys;
