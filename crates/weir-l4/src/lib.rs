//! Which packets go where, and how does the kernel find out?
//!
//! A program in the kernel (`bpf/nat.bpf.c`) takes packets for a listener at the ingress of an interface and
//! turns them into packets to a backend, according to maps. This crate compiles and loads the program, and
//! writes the maps. It does not know HTTP, and does not decide which backends are up: it is told.
//!
//! Start reading at [`program`], and in the C at `balance`.

#![deny(unsafe_code)]

mod attachments;
pub mod bpf;
pub mod decap;
pub mod explain;
pub mod flows;
pub mod host;
pub mod kernel;
pub mod layout;
pub mod lock;
pub mod numbers;
pub mod origins;
pub mod plan;
pub mod ports;
pub mod probes;
pub mod program;
pub mod sockets;
pub mod tables;
mod verdict;
pub mod wanted;
