//! Tests the built program from outside.
//!
//! Drives the `weir` binary through raw sockets and other people's clients. It depends on no crate of the
//! product, so a mistake shared between the product and its tests can't hide. The tests are in `tests/e2e.rs`
//! and its directories. This library has what they are written with, which the load programs in `src/bin`
//! share.
//!
//! Start reading at [`dialogue`], then any file of `tests/http/`.
#![forbid(unsafe_code)]

pub mod attack;
pub mod crowd;
pub mod dialogue;
pub mod hung;
pub mod mysql;
pub mod network;
pub mod raw;
pub mod soak;
pub mod storm;
pub mod versions;
