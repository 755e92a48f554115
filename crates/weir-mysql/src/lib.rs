//! **What does this statement want, what does it leave behind, and who is primary?**
//!
//! This crate reads and writes MySQL's client/server protocol, tells what a statement needs and changes, and
//! judges what the members of a cluster say about it. It never does I/O, reads a clock, draws randomness,
//! picks a backend, or panics on input.
//!
//! Where to start reading: the packets of the protocol are the first group of modules, what statements mean
//! and who is primary the second.
#![forbid(unsafe_code)]

// The protocol: bytes to typed values and back.

// Statements, session state and topology.
