//! Which packets go where, and how does the kernel know?
//!
//! A program in the kernel (`bpf/nat.bpf.c`) takes packets for a listener at the ingress of an interface and
//! makes them packets to a backend; what it goes by lies in maps. This crate compiles and loads it, and
//! writes the maps. It never knows HTTP, and never decides who is up: it is told.
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
