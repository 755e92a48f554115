//! The plane of a listener, and its restrictions: which keys have an effect on which plane, and which
//! settings of a listener and its pool the kernel plane cannot support.

pub(crate) mod forward;

use std::net::{IpAddr, SocketAddr};

use weir_balance::Algorithm;

use self::forward::Forward;
use crate::fields::{Fields, KeyValue, Value};
use crate::keys::{Only, Planes};
use crate::protocol::{Protocol, applies, spoken};
use crate::report::{Findings, Span};
use crate::setting::{One as _, words};
use crate::suggest::one_of;
use crate::values::address::{backend_at, show_backend};
use crate::values::bind::{Bind, InetBind};
use crate::values::unix::unix_name;

words! {
    /// Who carries a listener's packets.
    pub enum Plane {
        Proxy = "proxy": "connections and flows end at Weir, and what they carry is relayed",
        Kernel = "kernel": "packets are forwarded in the kernel, by eBPF, and nothing ends here",
        Auto = "auto": "the kernel plane where it can do all that is asked for, else the proxy plane",
    }
}

/// The plane that a listener asks for. `None` if it could not be read, and for HTTP, which has only one
/// plane.
pub(crate) fn asked(listener: &Fields) -> Option<Plane> {
    spoken(listener).filter(|protocol| applies(Only::Transport, *protocol))?;
    if listener.is_bad("plane") { None } else { Plane::from_word(listener.word("plane")) }
}

/// Whether a listener asks for a plane on which its backends answer clients directly, bypassing Weir.
pub(crate) fn is_answered_past(listener: &Fields) -> bool {
    let is_elsewhere = asked(listener).is_some_and(|plane| plane != Plane::Proxy);
    is_elsewhere && matches!(forward::asked(listener), Some(Forward::Dsr | Forward::Ipip))
}

/// A setting that keeps a listener off the kernel plane.
struct Obstacle {
    at: Span,
    message: String,
    why: String,
    /// It only tunes something that the kernel plane never does.
    is_tuning: bool,
    /// It equals the default.
    is_default: bool,
}

/// Why a listener cannot be on the kernel plane, whatever the machine supports; `None` if no setting of the
/// listener or its pool prevents it.
pub(crate) fn obstacle(listener: &Fields, pool: Option<&Fields>) -> Option<String> {
    let protocol = spoken(listener).unwrap_or_default();
    if !applies(Only::Transport, protocol) {
        return Some(format!("{} is not spoken there", protocol.word()));
    }
    let mut obstacles = of_listener(listener, protocol);
    if let Some(pool) = pool {
        obstacles.extend(of_pool(pool, protocol));
        obstacles.extend(of_families(listener, pool));
        obstacles.extend(of_ports(listener, pool));
        obstacles.extend(of_loops(listener, pool));
    }
    let first = obstacles.into_iter().find(|obstacle| !obstacle.is_tuning && !obstacle.is_default)?;
    Some(format!("{}: {}", first.message, first.why))
}

/// Reports keys that have no effect on the plane of a listener.
pub(crate) fn check_listener(root: &Fields, listener: &Fields, findings: &mut Findings<'_>) {
    let (Some(protocol), Some(plane)) = (spoken(listener), asked(listener)) else { return };
    if plane != Plane::Kernel {
        ranges(listener, findings);
    }
    if plane != Plane::Proxy {
        forward::check(listener, findings);
    }
    match plane {
        Plane::Auto => {}
        Plane::Proxy => {
            for entry in &listener.entries {
                let Some(key) = listener.schema.key(&entry.name).filter(|key| key.planes == Planes::Kernel)
                else {
                    continue;
                };
                let message = format!("`{}` means nothing on the proxy plane", key.name);
                let said = match listener.get("plane") {
                    Some(entry) => format!("is on the other ({})", findings.place(entry.at)),
                    None => "is on the other by default".to_owned(),
                };
                let hint =
                    format!("it is for `plane = \"kernel\"` and `\"auto\"`, and `{}` {said}", listener.name);
                findings.error(entry.key, message, hint);
            }
        }
        Plane::Kernel => {
            let pool = listener.text("pool");
            let pool = pool.and_then(|name| root.named("pool").find(|pool| pool.name == name));
            let mut obstacles = of_listener(listener, protocol);
            obstacles.extend(pool.map(|pool| of_families(listener, pool)).unwrap_or_default());
            obstacles.extend(pool.map(|pool| of_ports(listener, pool)).unwrap_or_default());
            obstacles.extend(pool.map(|pool| of_loops(listener, pool)).unwrap_or_default());
            for obstacle in obstacles {
                findings.error(obstacle.at, obstacle.message, obstacle.why);
            }
        }
    }
}

/// Reports keys of a pool that have no effect for a listener on the kernel plane. `who` names that listener;
/// `alone` says that no other plane uses the pool.
pub(crate) fn check_pool(
    pool: &Fields,
    protocol: Protocol,
    who: &str,
    alone: bool,
    findings: &mut Findings<'_>,
) {
    for obstacle in of_pool(pool, protocol) {
        let hint = format!("{}; {who}", obstacle.why);
        match obstacle.is_tuning {
            false => findings.error(obstacle.at, obstacle.message, hint),
            true if alone => findings.warning(obstacle.at, obstacle.message, hint),
            true => {}
        }
    }
}

/// Reports port ranges on a plane that would need one socket for each port.
pub(crate) fn ranges(listener: &Fields, findings: &mut Findings<'_>) {
    for (at, value) in listener.list("bind") {
        let Some(bind) = Bind::inet_of(value).filter(InetBind::is_range) else { continue };
        let hint = match asked(listener) {
            Some(plane) => {
                let place = findings.place(listener.at("plane"));
                format!(
                    "it is for `plane = \"kernel\"`, and `{}` asks for \"{}\" ({place})",
                    listener.name,
                    plane.word()
                )
            }
            None => "it is for tcp and udp with `plane = \"kernel\"`".to_owned(),
        };
        findings.error(*at, format!("`{bind}` is a range of ports"), hint);
    }
}

fn of_listener(listener: &Fields, protocol: Protocol) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    for (at, value) in listener.list("bind") {
        let bind = match Bind::of(value) {
            None => continue,
            Some(bind @ Bind::Unix(_)) => {
                let message = format!("the kernel plane cannot take `{bind}`");
                let why = "packets come to addresses, and it is a Unix socket";
                obstacles.push(Obstacle::new(*at, message, why));
                continue;
            }
            Some(Bind::Inet(bind)) => bind,
        };
        let ip = bind.first.ip().to_canonical();
        let why = if is_of_many(ip) {
            "it takes what comes for one host, and nobody connects to a multicast, broadcast or reserved address: say one of one host"
        } else if ip.is_unspecified() {
            "it takes packets by their destination, which is an address: list those that clients use"
        } else if bind.first.port() == 0 {
            "nobody chooses a free port there: say which one"
        } else if ip.is_loopback() {
            "only this machine reaches a loopback address, and the kernel plane takes what comes in from others"
        } else if is_of_link(ip) {
            "an address of one link alone is reached from such addresses, which no packet is forwarded from: say one that holds beyond"
        } else {
            continue;
        };
        obstacles.push(Obstacle::new(*at, format!("the kernel plane cannot take `{bind}`"), why));
    }
    of_keys(listener, protocol, &mut obstacles);
    obstacles
}

/// Multicast and broadcast, and addresses that stand for no host (RFC 1112 §4, RFC 6890 §2.2.2).
fn is_of_many(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            address.octets()[0] >= 224 || (address.octets()[0] == 0 && !address.is_unspecified())
        }
        IpAddr::V6(address) => address.is_multicast(),
    }
}

/// An IPv6 address that is valid on one link only, and that no router forwards (RFC 4291 §2.5.6).
fn is_of_link(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Keys of a table and its subtables that the kernel plane does not support. Keys that the protocol does not
/// use anyway are left to the protocol's check.
fn of_keys(fields: &Fields, protocol: Protocol, obstacles: &mut Vec<Obstacle>) {
    for entry in &fields.entries {
        let Some(key) = fields.schema.key(&entry.name).filter(|key| applies(key.only, protocol)) else {
            continue;
        };
        let (why, is_tuning) = match key.planes {
            Planes::Proxy(why) => (why, false),
            Planes::ProxyTuning(why) => (why, true),
            Planes::All | Planes::Kernel => {
                entry.value.tables().into_iter().for_each(|below| of_keys(below, protocol, obstacles));
                continue;
            }
        };
        if !matches!(entry.value, Value::Off | Value::Bad) {
            let message = format!("`{}` means nothing on the kernel plane", key.name);
            let is_default = is_default(fields, entry);
            obstacles.push(Obstacle { is_tuning, is_default, ..Obstacle::new(entry.key, message, why) });
        }
    }
}

fn is_default(fields: &Fields, entry: &KeyValue) -> bool {
    match (&entry.value, fields.unsaid(&entry.name)) {
        (Value::Number(said), Some(Value::Number(unsaid))) => *said == unsaid,
        (Value::Duration(said), Some(Value::Duration(unsaid))) => *said == unsaid,
        (Value::Word(said), Some(Value::Word(unsaid))) => *said == unsaid,
        (Value::Table(below), _) => below.entries.iter().all(|entry| is_default(below, entry)),
        _ => false,
    }
}

fn of_pool(pool: &Fields, protocol: Protocol) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    let name = &pool.name;
    of_keys(pool, protocol, &mut obstacles);
    let balance = pool.holds("balance").and_then(|value| Algorithm::of(&value));
    if let Some(balance) = balance.filter(|balance| !is_in_kernel(*balance)) {
        let words = Algorithm::ALL.into_iter().filter(|algorithm| is_in_kernel(*algorithm));
        let why = format!("expected {}", one_of(words.map(Algorithm::word)));
        let message = format!("pool `{name}` cannot choose by `{balance}` on the kernel plane");
        obstacles.push(Obstacle::new(pool.at("balance"), message, why));
    }
    let count = pool.tables("backends").count();
    if balance == Some(Algorithm::LeastConnections) && count > MOST_COMPARED {
        let why = format!(
            "those beyond the first {MOST_COMPARED} would get nothing: expected another `balance`, such as \"maglev\", or pools with fewer"
        );
        let message = format!(
            "pool `{name}` has {count} backends, and `least-connections` compares {MOST_COMPARED} on the kernel plane"
        );
        obstacles.push(Obstacle::new(pool.at("balance"), message, why));
    }
    let is_hashed = matches!(balance, Some(Algorithm::Hash | Algorithm::Maglev));
    if let Some(hash) = pool.table("hash").filter(|_| is_hashed)
        && let Some(key) = hash.text("key").filter(|key| !matches!(*key, "client_ip" | "flow"))
    {
        let message = format!("pool `{name}` cannot hash `{key}` on the kernel plane");
        let why = "packets tell addresses and ports: expected \"client_ip\"";
        obstacles.push(Obstacle::new(hash.at("key"), message, why));
    }
    for (at, backend) in pool.tables("backends") {
        if let Some(address) = backend.text("address").filter(|address| unix_name(address).is_some()) {
            let message = format!("the kernel plane cannot forward to `{address}`");
            obstacles.push(Obstacle::new(at, message, "packets go to addresses, and it is a Unix socket"));
        }
        let Some(address) = backend.text("address").and_then(backend_at) else { continue };
        let why = if address.ip().to_canonical().is_loopback() {
            "it is this machine, and packets are forwarded to others"
        } else if is_of_link(address.ip()) {
            "an address of one link alone says nothing of which link that is: expected one that holds beyond"
        } else {
            continue;
        };
        let message = format!("the kernel plane cannot forward to `{}`", show_backend(address));
        obstacles.push(Obstacle::new(at, message, why));
    }
    obstacles
}

/// Most backends that least-connections compares: MAX_COMPARED of the packet program.
const MOST_COMPARED: usize = 1024;

fn is_in_kernel(algorithm: Algorithm) -> bool {
    match algorithm {
        Algorithm::RoundRobin
        | Algorithm::LeastConnections
        | Algorithm::Source
        | Algorithm::Hash
        | Algorithm::Maglev => true,
        Algorithm::RandomTwo | Algorithm::LeastTime | Algorithm::First => false,
    }
}

/// For each address of a listener, the first backend of the other address family. The family of a host name
/// is not known here.
fn of_families(listener: &Fields, pool: &Fields) -> Vec<Obstacle> {
    let is_ipv4 = |address: &SocketAddr| address.ip().to_canonical().is_ipv4();
    let backends = pool.tables("backends").filter_map(|(_, backend)| backend_at(backend.text("address")?));
    let backends: Vec<SocketAddr> = backends.collect();
    let binds = listener.list("bind").iter();
    let binds = binds.filter_map(|(at, value)| Some((*at, Bind::inet_of(value)?)));
    let binds = binds.filter(|(_, bind)| !bind.first.ip().to_canonical().is_unspecified());
    let obstacle = |(at, bind): (Span, InetBind)| {
        let other = backends.iter().find(|backend| is_ipv4(backend) != is_ipv4(&bind.first))?;
        let other = show_backend(*other);
        let message = format!("the kernel plane cannot forward from `{bind}` to `{other}`");
        let why = "it keeps the address family: make a listener and a pool for each of IPv4 and IPv6";
        Some(Obstacle::new(at, message, why))
    };
    binds.filter_map(obstacle).collect()
}

/// Backends that are addresses of the listener itself.
fn of_loops(listener: &Fields, pool: &Fields) -> Vec<Obstacle> {
    let binds = listener.list("bind").iter().filter_map(|(_, value)| Bind::inet_of(value));
    let binds: Vec<InetBind> = binds.collect();
    let obstacle = |(at, backend): (Span, &Fields)| {
        let address = backend_at(backend.text("address")?)?;
        let is_taken = |bind: &&InetBind| {
            let has_port = address.port() == 0 || bind.ports().contains(&address.port());
            bind.first.ip().to_canonical() == address.ip().to_canonical() && has_port
        };
        let bind = binds.iter().find(is_taken)?;
        let message = format!("the kernel plane cannot forward from `{bind}` to `{}`", show_backend(address));
        let why =
            "it is the listener itself, which would take its packets again: expected where the backend is";
        Some(Obstacle::new(at, message, why))
    };
    pool.tables("backends").filter_map(obstacle).collect()
}

/// Backends at another port than the listener, with a method that forwards packets unchanged.
fn of_ports(listener: &Fields, pool: &Fields) -> Vec<Obstacle> {
    let Some(forward @ (Forward::Dsr | Forward::Ipip)) = forward::asked(listener) else { return Vec::new() };
    let binds = listener.list("bind").iter().filter_map(|(_, value)| Bind::inet_of(value));
    let binds: Vec<InetBind> = binds.collect();
    let obstacle = |(at, backend): (Span, &Fields)| {
        let address = backend.text("address")?;
        let port: u16 = address.rsplit_once(':')?.1.parse().ok()?;
        let bind = binds.iter().find(|bind| bind.ports() != (port..=port))?;
        let message = format!("the kernel plane cannot forward from `{bind}` to `{address}`");
        let by = format!("by `{}` packets keep their port", forward.word());
        let why = match bind.is_range() {
            true => format!("{by}: leave it out here"),
            false => format!("{by}: expected port {}", bind.first.port()),
        };
        Some(Obstacle::new(at, message, why))
    };
    pool.tables("backends").filter_map(obstacle).collect()
}

impl Obstacle {
    fn new(at: Span, message: String, why: impl Into<String>) -> Obstacle {
        Obstacle { at, message, why: why.into(), is_tuning: false, is_default: false }
    }
}

#[cfg(test)]
mod tests;
