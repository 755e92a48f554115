//! HTTP: a client's session, and the life of one exchange.

mod answer;
mod attempt;
mod date;
mod drive;
pub(crate) mod exchange;
mod failure;
mod forward;
mod ledger;
mod linger;
mod pump;
mod respond;
mod retry;
pub mod route;
pub(crate) mod session;
mod sticky;
mod tunnel;
mod upload;
