//! How the kernel plane forwards packets, and what each method needs.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::fields::{Fields, Value};
use crate::keys::Shape;
use crate::report::{Findings, quote};
use crate::setting::{One as _, one, words};
use crate::units::{Refused, refuse};
use crate::values;
use crate::values::bind::Bind;

words! {
    /// What the kernel plane does to packets.
    pub enum Forward {
        Nat = "nat": "the destination becomes the backend's; answers come back through this machine",
        FullNat = "full-nat": "the source becomes one of `source_address`, too: backends need no route through this machine",
        Dsr = "dsr": "nothing but the MAC address becomes the backend's, which has the listener's address too, is on a link of this machine, and answers clients itself",
        Ipip = "ipip": "as `dsr`, within an outer IP header, so that backends may be behind routers; they take it off",
    }
}

/// Most source addresses per family for the packets of one listener.
const MAX_SOURCES: usize = 16;

/// A source address of packets.
pub(crate) static SOURCE: Shape = Shape::new("an address", "10.0.0.5", source);

/// A range of ports.
pub(crate) static PORTS: Shape =
    Shape::new("a range of ports", "61000-65535", |text| ports(text).map(|range| range.to_string()));

/// Ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}

one!(PortRange, Value::Text(text) => ports(text).ok(), |it| Value::Text(it.to_string()), PortRange { first: 0, last: 0 });
one!(IpAddr, Value::Text(text) => text.parse().ok(), |it| Value::Text(it.to_string()), IpAddr::from([0, 0, 0, 0]));

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

fn source(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not an address that packets can leave from", quote(text));
    if text.parse::<SocketAddr>().is_ok() {
        return refuse(message, "leave out the port: `source_ports` says which ones are used");
    }
    let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() else {
        return refuse(message, "expected an address of this machine, such as \"10.0.0.5\" or \"fd00::5\"");
    };
    let address = address.to_canonical();
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        return refuse(message, "answers come to it from other hosts: expected an address of this machine");
    }
    Ok(address.to_string())
}

fn ports(text: &str) -> Result<PortRange, Refused> {
    let message = format!("{} is not a range of ports", quote(text));
    let parts = text.split_once('-').map(|(first, last)| (first.trim().parse(), last.trim().parse()));
    let Some((Ok(first), Ok(last))) = parts else {
        return refuse(message, "expected the first and the last, such as \"61000-65535\"");
    };
    if first == 0 || last < first {
        return refuse(message, "expected the lower one first, from 1 to 65535");
    }
    Ok(PortRange { first, last })
}

/// The forwarding method of a listener; `None` if it could not be read.
pub(super) fn asked(listener: &Fields) -> Option<Forward> {
    if listener.is_bad("forward") { None } else { Forward::from_word(listener.word("forward")) }
}

/// Reports settings that a method needs and lacks, and settings that it does not use.
pub(super) fn check(listener: &Fields, findings: &mut Findings<'_>) {
    values::said_once(listener, "source_address", findings);
    match asked(listener) {
        None => {}
        Some(Forward::FullNat) => needs_sources(listener, findings),
        Some(Forward::Ipip) => {
            one_of_each_family(listener, findings);
            if let Some(entry) = listener.get("source_ports") {
                let message = "`source_ports` means nothing to `forward = \"ipip\"`";
                let hint = "packets keep the client's port there; it is for \"full-nat\"";
                findings.error(entry.key, message, hint);
            }
        }
        Some(forward @ (Forward::Nat | Forward::Dsr)) => {
            for name in ["source_address", "source_ports"] {
                let Some(entry) = listener.get(name) else { continue };
                let message = format!("`{name}` means nothing to `forward = \"{}\"`", forward.word());
                let hint = "packets keep the client's address and port there; it is for \"full-nat\"";
                findings.error(entry.key, message, hint);
            }
        }
    }
}

/// Outer headers have a single source address, of the packet's family.
fn one_of_each_family(listener: &Fields, findings: &mut Findings<'_>) {
    let sources = listener.list("source_address").iter();
    let sources: Vec<_> = sources.filter_map(|(at, value)| Some((*at, IpAddr::of(value)?))).collect();
    for is_ipv4 in [true, false] {
        let mut of_family = sources.iter().filter(|(_, source)| source.is_ipv4() == is_ipv4);
        if let Some((at, source)) = of_family.nth(1) {
            let message = format!("`source_address` has `{source}` beside another of its family");
            let hint = "by `ipip` each family has one, which backends know their balancer by";
            findings.error(*at, message, hint);
        }
    }
}

/// Full-NAT sends from an address of the packet's family.
fn needs_sources(listener: &Fields, findings: &mut Findings<'_>) {
    if listener.is_bad("source_address") {
        return;
    }
    let Some(_) = listener.get("source_address") else {
        let message = "`forward = \"full-nat\"` needs `source_address`";
        let hint = "say which addresses of this machine packets to backends leave from";
        findings.error(listener.at("forward"), message, hint);
        return;
    };
    let sources = listener.list("source_address").iter();
    let sources: Vec<_> = sources.filter_map(|(at, value)| Some((*at, IpAddr::of(value)?))).collect();
    // An address that could not be read may be of either family.
    if sources.len() < listener.list("source_address").len() {
        return;
    }
    for (is_ipv4, family) in [(true, "IPv4"), (false, "IPv6")] {
        let mut of_family = sources.iter().filter(|(_, source)| source.is_ipv4() == is_ipv4);
        if let Some((at, _)) = of_family.clone().nth(MAX_SOURCES) {
            let message = format!("`source_address` has more than {MAX_SOURCES} of {family}");
            findings.error(*at, message, "that many have a million ports for each backend");
        }
        let binds = listener.list("bind").iter().filter_map(|(at, value)| Some((*at, Bind::inet_of(value)?)));
        let of_binds = binds.filter(|(_, bind)| bind.first.ip().to_canonical().is_ipv4() == is_ipv4);
        let of_binds = of_binds.filter(|(_, bind)| !bind.first.ip().is_unspecified());
        if let (Some((at, bind)), None) = (of_binds.clone().next(), of_family.next()) {
            let message = format!("no `source_address` is of {family}, and `{bind}` is");
            let hint =
                format!("packets keep their family ({})", findings.place(listener.at("source_address")));
            findings.error(at, message, hint);
        }
    }
}
