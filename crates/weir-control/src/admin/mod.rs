//! The admin API: what an operator, a script or a monitoring system reads and changes over HTTP.

mod api;
pub mod auth;
pub mod endpoints;
mod metrics;
mod page;
mod purge;
pub mod server;
mod slots;
