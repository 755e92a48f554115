//! End to end: what Weir promises, checked on the built program through sockets.
//!
//! One module a subject; threat rows (A1 … H6) are named in the comments of the tests that guard them.
#![forbid(unsafe_code)]

mod acme;
mod admin;
mod answers;
mod auth;
mod cache;
mod clients;
mod compression;
mod convert;
mod headers;
mod health;
mod http;
mod http2;
mod http3;
mod kernel;
mod logs;
mod mysql;
mod names;
mod peers;
mod reload;
mod resources;
mod rfc9111;
mod screening;
mod sites;
mod tcp;
mod tls;
mod udp;
mod unix;
mod versions;
