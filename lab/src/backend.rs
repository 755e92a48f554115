//! The servers behind the load balancer in a measurement, kept cheap so that the load balancer is what is
//! measured.

mod bulk;
mod echo;
mod http;
pub mod mysql;
pub mod slow;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use clap::ValueEnum;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

/// A backend's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// HTTP/1.1 with a 13-byte answer, or as many bytes as `?size=` asks for.
    Http,
    /// TCP: sends without end to whoever connects.
    Bulk,
    /// HTTP/1.1 with a 13-byte answer 20 ms after each request.
    Slow,
    /// TCP: sends every byte back.
    Echo,
    /// Like `Echo`, but each connection ends after the first answer.
    EchoOnce,
    /// MySQL: a canned answer to every SELECT.
    Mysql,
    /// Like `Mysql`, and it offers TLS.
    MysqlTls,
}

impl BackendKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Bulk => "bulk",
            Self::Slow => "slow",
            Self::Echo => "echo",
            Self::EchoOnce => "echo-once",
            Self::Mysql => "mysql",
            Self::MysqlTls => "mysql-tls",
        }
    }
}

/// The path at which an HTTP backend gives its counters.
const COUNTERS_PATH: &str = "/lab-counters";

/// What an HTTP or MySQL backend has served since it started, apart from requests for these counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub connections: u64,
    /// Requests or statements answered.
    pub requests: u64,
}

/// Fetches the counters of the HTTP backend at `address`.
pub fn counters(address: SocketAddr) -> io::Result<Counters> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("GET {COUNTERS_PATH} HTTP/1.1\r\nhost: lab\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let numbers = answer.split_once("\r\n\r\n").and_then(|(_, body)| {
        let (connections, requests) = body.trim().split_once(' ')?;
        Some(Counters { connections: connections.parse().ok()?, requests: requests.parse().ok()? })
    });
    numbers.ok_or_else(|| {
        io::Error::other(format!("the backend answered `{answer}` where its counters were expected"))
    })
}

/// Serves at `address` (port 0: any free port) until the process ends. Prints the address on standard output.
pub fn serve(kind: BackendKind, address: SocketAddr) -> io::Result<()> {
    let listener = listen(address)?;
    let address = rustix::net::getsockname(&listener)?;
    let address = SocketAddr::try_from(address)?;
    println!("listening on {address}");
    io::stdout().flush()?;
    match kind {
        BackendKind::Http => http::serve(&listener),
        BackendKind::Bulk => bulk::serve(&listener),
        BackendKind::Slow => slow::serve(&listener),
        BackendKind::Echo | BackendKind::EchoOnce => echo::serve(&listener, kind == BackendKind::EchoOnce),
        BackendKind::Mysql | BackendKind::MysqlTls => mysql::serve(&listener, kind == BackendKind::MysqlTls),
    }
}

/// A non-blocking listening socket at `address` (port 0: any free port).
pub fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let listener = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    rustix::net::sockopt::set_socket_reuseaddr(&listener, true)?;
    rustix::net::bind(&listener, &address)?;
    rustix::net::listen(&listener, 4096)?;
    Ok(listener)
}
