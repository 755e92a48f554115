//! What does the operator see and ask?
//!
//! The admin API over HTTP: status, metrics, events, the config in force, a page for people, `weir explain`,
//! and the calls that change something. Reads what [`weir_control::control::Control`] knows and asks it for
//! changes; decides nothing itself and never touches a client's bytes.
//!
//! Start reading at [`endpoints`] (every call, in one table), then `api.rs` (what each answers) and [`auth`]
//! (who may ask).
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
mod metrics;
pub mod on_demand;
mod page;
mod process;
mod purge;
pub mod reach;
pub mod server;
mod slots;
pub mod status;
pub mod token_keys;
