//! The servers behind the load balancer in a measurement, kept cheap so that the load balancer is what is measured.

mod bulk;
mod http;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use clap::ValueEnum;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

/// What a backend speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// HTTP/1.1 with a 13-byte answer, or as many bytes as `?size=` asks for.
    Http,
    /// TCP: sends without end to whoever connects.
    Bulk,
}

/// Serves on 127.0.0.1:`port` (0: any free one) until the process ends; says on standard output where.
pub fn serve(kind: BackendKind, port: u16) -> io::Result<()> {
    let listener = listen(port)?;
    let address = rustix::net::getsockname(&listener)?;
    let address = SocketAddrV4::try_from(address)?;
    println!("listening on {address}");
    io::stdout().flush()?;
    match kind {
        BackendKind::Http => http::serve(&listener),
        BackendKind::Bulk => bulk::serve(&listener),
    }
}

/// A non-blocking listening socket on 127.0.0.1:`port` (0: any free one).
pub fn listen(port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    rustix::net::sockopt::set_socket_reuseaddr(&listener, true)?;
    rustix::net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    rustix::net::listen(&listener, 4096)?;
    Ok(listener)
}
