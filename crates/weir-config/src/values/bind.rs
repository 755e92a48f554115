//! Where a listener accepts: an address with one port or a range of ports; or a Unix socket.

use std::fmt;
use std::net::{AddrParseError, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use super::address::bind;
use super::unix::{self, unix_name};
use crate::fields::Value;
use crate::keys::Shape;
use crate::report::quote;
use crate::setting::one;
use crate::units::{Refused, refuse};

/// An address of this machine, with a port or a range of ports, or a Unix socket. Port 0 takes a free one.
pub(crate) static BINDS: Shape = Shape::new("an address and port", "0.0.0.0:8080", text_of).or_number();

/// Where a listener accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bind {
    /// At an address.
    Inet(InetBind),
    /// A Unix socket; the name is that after `unix:`.
    Unix(Arc<str>),
}

/// An address of this machine and its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InetBind {
    /// The address, with the first port.
    pub first: SocketAddr,
    /// The last port; equal to the first one if there is only one.
    pub last_port: u16,
}

one!(
    Bind,
    Value::Text(text) => text.parse().ok(),
    |it| Value::Text(it.to_string()),
    Bind::from(SocketAddr::from(([0, 0, 0, 0], 0)))
);

impl Bind {
    /// The address and ports; `None` for a Unix socket.
    pub fn inet(&self) -> Option<&InetBind> {
        match self {
            Bind::Inet(inet) => Some(inet),
            Bind::Unix(_) => None,
        }
    }

    /// The name of the Unix socket; `None` for an address.
    pub fn unix(&self) -> Option<&str> {
        match self {
            Bind::Inet(_) => None,
            Bind::Unix(name) => Some(name),
        }
    }

    /// Like [`Self::inet`], for an element of a list.
    pub(crate) fn inet_of(value: &Value) -> Option<InetBind> {
        use crate::setting::One as _;
        Bind::of(value)?.inet().copied()
    }
}

impl InetBind {
    /// Its ports.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.first.port()..=self.last_port
    }

    /// Whether it has more than one port.
    pub fn is_range(&self) -> bool {
        self.last_port != self.first.port()
    }

    /// Its address with each of its ports.
    pub fn each(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let ip = self.first.ip();
        self.ports().map(move |port| SocketAddr::new(ip, port))
    }
}

impl From<SocketAddr> for Bind {
    fn from(at: SocketAddr) -> Bind {
        Bind::Inet(InetBind { first: at, last_port: at.port() })
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bind::Inet(inet) => write!(out, "{inet}"),
            Bind::Unix(name) => write!(out, "unix:{name}"),
        }
    }
}

impl fmt::Display for InetBind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.first)?;
        if self.is_range() { write!(out, "-{}", self.last_port) } else { Ok(()) }
    }
}

/// Parses the form in a file; the shape reports mistakes in other texts.
impl FromStr for Bind {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Bind, AddrParseError> {
        if let Some(name) = unix_name(text) {
            return Ok(Bind::Unix(name.into()));
        }
        let (first, last) = text.rsplit_once('-').unwrap_or((text, ""));
        let first: SocketAddr = first.parse()?;
        Ok(Bind::Inet(InetBind { first, last_port: last.parse().unwrap_or(first.port()) }))
    }
}

fn text_of(text: &str) -> Result<String, Refused> {
    if let Some(name) = unix_name(text) {
        return unix::check_bind(text, name);
    }
    let Some((start, last)) = text.rsplit_once('-') else { return bind(text) };
    let Ok(first) = start.parse::<SocketAddr>() else { return bind(text) };
    let message = format!("{} is not an address and a range of ports", quote(text));
    let Ok(last_port) = last.parse::<u16>() else {
        return refuse(message, format!("{} is not a port: expected {} to 65535", quote(last), first.port()));
    };
    if first.port() == 0 || last_port < first.port() {
        return refuse(message, "expected the lower port first, from 1 to 65535");
    }
    Ok(InetBind { first, last_port }.to_string())
}
