//! **What does a statement need, what state does it leave on its connection, and which member is the
//! primary?**
//!
//! This crate reads and writes MySQL's client/server protocol, classifies statements by what they need and
//! change, and works out a cluster's topology from what its members report. It never does I/O, reads a clock,
//! draws randomness, picks a backend, or panics on input.
//!
//! Where to start reading: [`packet`] finds packets in a stream of bytes, [`greeting`] and [`login`] cover
//! the connection phase, [`command`] holds the commands that a client sends, and [`answer`] finds the end of
//! a server's answer. The second group of modules classifies statements and finds the primary.
#![forbid(unsafe_code)]

// The protocol: bytes to typed values and back.
pub mod answer;
pub mod authentication;
pub mod capability;
pub mod command;
pub mod compressed;
pub mod eof;
pub mod error_number;
pub mod greeting;
pub mod login;
pub mod outcome;
pub mod packet;
pub mod parameters;
pub mod response;
pub mod session_track;
pub mod turns;
pub mod value;
mod wire_error;

// Statements, session state and topology.
mod charset;
mod classify;
mod functions;
pub mod gtid;
pub mod hidden;
pub mod hint;
mod known_states;
mod known_verdicts;
pub mod lag;
mod lexer;
mod reading;
mod set;
mod sql_mode;
pub mod state;
pub mod topology;
mod verb;
mod verdict;

pub use charset::{ClientCharset, in_wide_charset};
pub use classify::{classify, classify_head};
pub use known_states::KnownStates;
pub use known_verdicts::KnownVerdicts;
pub use lexer::SqlDialect;
pub use set::{NamesCollation, collation_of_set_names};
pub use sql_mode::SqlMode;
pub use verdict::{
    BeyondReadOnly, Completion, KillTarget, LeftBehind, OpenTransaction, ReadsBack, Resend, RoleWanted,
    RouteReason, SessionFacts, SplitAccess, StatementKind, StatementVerdict, TableUse, TransactionStep,
};
pub use wire_error::WireError;
