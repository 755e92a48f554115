//! MySQL servers that replicate to each other, as the control side asks them.
//!
//! [`watch`] asks the servers of each pool, on a thread of its own, who is the primary, and gives them their
//! roles. Each server has a [`member`]; [`looks`] says when it is asked and when to decide; what the answers
//! mean is said by `weir_mysql::topology`. [`receipt`] follows failovers, [`roster`] members that no config
//! names, and [`seen`] is what operators are shown. [`client`] logs in to one server and asks it a question.

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
