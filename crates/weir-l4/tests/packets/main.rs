//! Packets in, packets out: the program in the kernel, run by the kernel's own test runner in a namespace of
//! its own.
//!
//! What is expected is written from the RFCs, not from the C. Root and BPF are needed; without them the tests
//! fail.

mod frames;
mod kinds;
mod namespace;
mod outcome;
mod plane;

mod admission;
mod checksums;
mod damaged;
mod decap;
mod direct;
mod dsr;
mod flows;
mod foreign;
mod fragments;
mod full_nat;
mod hashing;
mod headers;
mod hop_limit;
mod host;
mod icmp;
mod ipip;
mod mtu;
mod nat;
mod one_way;
mod opening;
mod probes;
mod ranges;
mod swept;
mod unforwarding;
