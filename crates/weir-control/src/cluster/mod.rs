//! MySQL servers that replicate from each other, as the control side sees them.
//!
//! [`watch`] asks the servers of each pool, on a separate thread, which one is the primary, and sets their
//! roles. Each server has a [`member`]; [`looks`] determines when it is asked and when to decide;
//! `weir_mysql::topology` interprets the answers. [`receipt`] documents failovers, [`roster`] handles members
//! that the config does not name, and [`seen`] is what operators see. [`client`] logs in to one server and
//! makes a query.

pub mod client;
mod hidden;
mod looks;
mod member;
mod receipt;
mod roster;
pub mod seen;
#[cfg(test)]
mod tests;
mod vigil;
pub mod watch;

pub use receipt::Receipt;
pub use roster::RosterChange;
