//! Reports sockets that would listen on the same address.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::{Listener, Speaks};
use crate::admin::AdminBind;
use crate::fields::{Fields, Value};
use crate::plane::{self, Plane};
use crate::protocol::spoken;
use crate::report::{Findings, Span};
use crate::setting::One as _;
use crate::values::bind::Bind;
use crate::values::http::HttpVersion;

/// Most addresses of all listeners together, counting each port: each is an entry in a kernel table.
const MOST_ADDRESSES: usize = 65_536;

struct Bound {
    address: SocketAddr,
    /// Whether it has a socket. On the kernel plane there is none: packets are taken before sockets see them,
    /// and all others go on to the sockets.
    is_socket: bool,
    /// The interfaces that its sockets are bound to; empty for all. Only listeners can have any.
    interfaces: Rc<[String]>,
    /// Whether other sockets may use the same address on other interfaces.
    is_listener: bool,
    /// `listener `web``
    owner: Rc<str>,
    at: Option<Span>,
}

/// Sockets by transport (true: UDP) and port, so that the comparison takes time in proportion to the file's
/// length.
type Taken = BTreeMap<(bool, u16), Vec<Bound>>;

/// Reports listeners that clash with each other, with the admin API, which listens on `admin` unless that
/// could not be read, or with the address where other Weirs reach this one (`[peers]`).
pub(crate) fn check(
    root: &Fields,
    listeners: &[Arc<Listener>],
    admin: Option<SocketAddr>,
    findings: &mut Findings<'_>,
) {
    let said = root.table("admin").and_then(|admin| admin.get("bind"));
    let mut taken = taken_before(root, admin.map(|address| (address, said.map(|entry| entry.at))), findings);
    let mut sockets: BTreeMap<Arc<str>, (Rc<str>, Span)> = BTreeMap::new();
    if let Some((entry, AdminBind::Unix(name))) =
        said.and_then(|entry| Some((entry, AdminBind::of(&entry.value)?)))
    {
        sockets.insert(name, ("the admin API".into(), entry.at));
    }
    let mut count = 0;
    for (listener, fields) in listeners.iter().zip(root.named("listener")) {
        if spoken(fields).is_none() || fields.is_bad("plane") {
            continue;
        }
        // A listener with `auto` may have a socket.
        let is_socket = plane::asked(fields) != Some(Plane::Kernel);
        let owner: Rc<str> = format!("listener `{}`", listener.name).into();
        // On the other planes, interfaces say where packets are taken, for any listener.
        let said = if listener.plane == Plane::Proxy { &listener.interfaces[..] } else { &[] };
        let interfaces: Rc<[String]> = said.iter().map(ToString::to_string).collect();
        for (at, value) in fields.list("bind") {
            if let Some(Bind::Unix(name)) = Bind::of(value) {
                match sockets.get(&name) {
                    Some((other, place)) => {
                        let hint = format!("{other} has it already ({})", findings.place(*place));
                        findings.error(*at, format!("`unix:{name}` is bound twice"), hint);
                    }
                    None => drop(sockets.insert(name, (owner.clone(), *at))),
                }
                continue;
            }
            let Some(bind) = Bind::inet_of(value).filter(|bind| bind.first.port() != 0) else { continue };
            count += bind.ports().len();
            if count > MOST_ADDRESSES && bind.is_range() {
                let message = format!("listeners have more than {MOST_ADDRESSES} addresses with this range");
                findings.error(
                    *at,
                    message,
                    "each port counts: expected shorter ranges, over all listeners together",
                );
                return;
            }
            let mut is_reported = false;
            for (address, is_udp) in
                bind.each().flat_map(|at| transports(listener).map(move |is_udp| (at, is_udp)))
            {
                let others = taken.entry((is_udp, address.port())).or_default();
                let bound = Bound {
                    address,
                    is_socket,
                    interfaces: interfaces.clone(),
                    is_listener: true,
                    owner: owner.clone(),
                    at: Some(*at),
                };
                if let Some(other) = others.iter().find(|other| other.clashes(&bound))
                    && !std::mem::replace(&mut is_reported, true)
                {
                    let (message, hint) = explain(&bound, other, findings);
                    findings.error(*at, message, hint);
                }
                others.push(bound);
            }
        }
    }
}

/// The addresses that are no listener's: that of the admin API, with its place if the file says it, and that
/// for other Weirs.
fn taken_before(
    root: &Fields,
    admin: Option<(SocketAddr, Option<Span>)>,
    findings: &mut Findings<'_>,
) -> Taken {
    let mut taken = Taken::new();
    let admin = admin.map(|(address, at)| {
        let owner = if at.is_some() { "the admin API" } else { "the admin API (`[admin]` moves it)" };
        (address, at, owner)
    });
    let peers = root.table("peers").and_then(|peers| peers.get("bind"));
    let peers = peers.and_then(|entry| match &entry.value {
        Value::Text(text) => Some((text.parse().ok()?, Some(entry.at), "`[peers]`")),
        _ => None,
    });
    for (address, at, owner) in admin.into_iter().chain(peers).filter(|(address, ..)| address.port() != 0) {
        let (interfaces, owner) = (Rc::default(), owner.into());
        let bound = Bound { address, is_socket: true, interfaces, is_listener: false, owner, at };
        let others = taken.entry((false, address.port())).or_default();
        if let Some((other, at)) = others.iter().find(|other| other.clashes(&bound)).zip(at) {
            let (message, hint) = explain(&bound, other, findings);
            findings.error(at, message, hint);
        }
        others.push(bound);
    }
    taken
}

/// Whether each socket of a listener is UDP. HTTP/3 has one beside the others, if there are others.
fn transports(listener: &Listener) -> impl Iterator<Item = bool> + use<> {
    let (first, second) = match &listener.speaks {
        Speaks::Http(http) => {
            let speaks_h3 = http.versions.contains(&HttpVersion::H3);
            ((http.versions != [HttpVersion::H3]).then_some(false), speaks_h3.then_some(true))
        }
        Speaks::Tcp | Speaks::Mysql(_) => (Some(false), None),
        Speaks::Udp => (Some(true), None),
    };
    first.into_iter().chain(second)
}

impl Bound {
    /// Whether this and another bind with the same port accept the same clients.
    fn clashes(&self, other: &Bound) -> bool {
        if self.is_socket && other.is_socket {
            overlap(other.address, self.address) && !self.is_apart_from(other)
        } else {
            other.address.ip().to_canonical() == self.address.ip().to_canonical()
        }
    }

    /// Whether the kernel can tell by the interface to which of the two a client has connected. If one of two
    /// sockets at the same address has no interface, the kernel picks whichever it finds first, when they are
    /// groups (`SO_REUSEPORT`); but it prefers the exact address to the unspecified one, whatever the
    /// interfaces.
    fn is_apart_from(&self, other: &Bound) -> bool {
        let (own, others) = (&self.interfaces, &other.interfaces);
        let is_apart = match (own.is_empty(), others.is_empty()) {
            (true, true) => false,
            (false, false) => !own.iter().any(|name| others.contains(name)),
            (true, false) | (false, true) => {
                self.address.ip().to_canonical() != other.address.ip().to_canonical()
            }
        };
        self.is_listener && other.is_listener && is_apart
    }
}

/// Whether sockets at two addresses with the same port accept the same clients. `[::]` is IPv6 only, so it
/// does not overlap with IPv4.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let (a, b) = (a.ip().to_canonical(), b.ip().to_canonical());
    a.is_ipv4() == b.is_ipv4() && (a == b || a.is_unspecified() || b.is_unspecified())
}

fn explain(bound: &Bound, other: &Bound, findings: &Findings<'_>) -> (String, String) {
    let address = bound.address;
    let place = other.at.map_or_else(String::new, |at| format!(" ({})", findings.place(at)));
    let Bound { address: taken, owner, .. } = other;
    if address.ip().to_canonical() == taken.ip().to_canonical() {
        let mut hint = format!("{owner} has it already{place}");
        let are_sockets = bound.is_socket && other.is_socket && other.is_listener;
        if are_sockets && bound.interfaces.is_empty() != other.interfaces.is_empty() {
            hint += ", and one of both names no `interface`: expected the interfaces of each";
        }
        return (format!("{address} is bound twice"), hint);
    }
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let port = address.port();
    let hint = if taken.ip().is_unspecified() {
        format!("{owner} takes port {port} of every {family} address with {taken}{place}")
    } else {
        format!("it takes port {port} of every {family} address, and {owner} has {taken}{place}")
    };
    (format!("{address} clashes with {taken}"), hint)
}
