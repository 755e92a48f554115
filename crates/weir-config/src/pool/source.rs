//! `source` and `interface` of a pool: the local end of connections to backends.

use std::fmt;
use std::net::IpAddr;

use crate::fields::{Fields, Value};
use crate::keys::Shape;
use crate::pool::protocol::PoolProtocol;
use crate::protocol::Protocol;
use crate::report::{Findings, quote};
use crate::setting::{One as _, one};
use crate::units::{Refused, refuse};
use crate::uses::Uses;
use crate::values::interface::INTERFACE;

/// The source address that backends see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This address of this machine, towards backends of its family.
    Address(IpAddr),
    /// The client's own.
    Client,
}

/// An address of this machine, or `client`.
pub(crate) static SOURCE: Shape = Shape::new("an address of this machine, or `client`", "10.0.0.9", |text| {
    source(text).map(|it| it.to_string())
});

/// One interface.
pub(crate) static ONE_INTERFACE: Shape = Shape::new("one interface", "eth1", |text| {
    if text.contains('*') {
        return refuse(format!("{} is not one interface", quote(text)), "connections leave by one: name it");
    }
    (INTERFACE.read)(text)
});

one!(Source, Value::Text(text) => source(text).ok(), |it| Value::Text(it.to_string()), Source::Client);

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Address(address) => address.fmt(out),
            Source::Client => out.write_str("client"),
        }
    }
}

fn source(text: &str) -> Result<Source, Refused> {
    if text == "client" {
        return Ok(Source::Client);
    }
    let message = format!("{} is not an address", quote(text));
    let Ok(address) = text.parse::<IpAddr>() else {
        let hint = match text {
            "clientip" | "transparent" | "$remote_addr" | "client_ip" => "did you mean \"client\"?",
            _ => "expected one of this machine, without a port, such as \"10.0.0.9\", or \"client\"",
        };
        return refuse(message, hint);
    };
    let address = address.to_canonical();
    if address.is_unspecified() || address.is_multicast() {
        return refuse(message, "leave it out to have the kernel choose");
    }
    Ok(Source::Address(address))
}

/// Reports contradictions, and what is impossible.
pub(super) fn check(pool: &Fields, protocol: PoolProtocol, uses: &Uses, findings: &mut Findings<'_>) {
    let listed = pool.list("source").iter().filter_map(|(at, value)| Some((*at, Source::of(value)?)));
    let listed: Vec<_> = listed.collect();
    for (number, (at, source)) in listed.iter().enumerate() {
        let is_like = |(_, other): &&(_, Source)| match (source, other) {
            (Source::Address(one), Source::Address(two)) => one.is_ipv4() == two.is_ipv4(),
            _ => true,
        };
        if let Some((_, other)) = listed[..number].iter().find(is_like) {
            let message = format!("`source` has `{source}` beside `{other}`");
            findings.error(*at, message, "expected one address for each family, or \"client\" alone");
        }
    }
    let Some((at, _)) = listed.iter().find(|(_, source)| *source == Source::Client) else { return };
    if protocol.may_share() {
        let hint =
            format!("HTTP/2 has many clients on one connection ({})", findings.place(pool.at("protocol")));
        let message =
            format!("`source = \"client\"` cannot stand beside `protocol = \"{}\"`", protocol.word());
        findings.error(*at, message, hint);
    }
    if let Some(by) = uses.first(&pool.name, |protocol| protocol == Protocol::Mysql) {
        let hint = format!("sessions share connections to MySQL servers, and {}", by.speaks(findings));
        findings.error(*at, "`source = \"client\"` is not for MySQL servers", hint);
    }
}
