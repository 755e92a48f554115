//! `protocol`: the HTTP version spoken to a pool's backends.

use crate::fields::Fields;
use crate::report::Findings;
use crate::setting::words;
use crate::values::unix::unix_name;

words! {
    /// HTTP version towards backends.
    pub enum PoolProtocol {
        H1 = "h1": "HTTP/1.1",
        H2 = "h2": "HTTP/2: many clients share few connections; without `tls` by prior knowledge",
        Auto = "auto": "HTTP/2 or HTTP/1.1, whichever the backend picks over TLS (ALPN); upgrades such as WebSocket go over HTTP/1.1",
        H3 = "h3": "HTTP/3, over QUIC at the port of each backend; over TCP as `\"auto\"` where that does not come about (`fall_back_after`)",
    }
}

impl PoolProtocol {
    /// Whether backends choose between HTTP/2 and HTTP/1.1, over TCP.
    pub fn lets_pick(self) -> bool {
        matches!(self, PoolProtocol::Auto | PoolProtocol::H3)
    }

    /// Whether a connection may carry the requests of many clients at once.
    pub fn may_share(self) -> bool {
        self != PoolProtocol::H1
    }
}

/// Reports keys that contradict it.
pub(super) fn check(pool: &Fields, protocol: PoolProtocol, has_tls: bool, findings: &mut Findings<'_>) {
    let place = |findings: &Findings<'_>| findings.place(pool.at("protocol"));
    if protocol.may_share()
        && let Some(entry) = pool.get("send_proxy")
    {
        let has_many = if protocol == PoolProtocol::H3 { "HTTP/3" } else { "HTTP/2" };
        let hint = format!(
            "a PROXY header names one client for a whole connection, and {has_many} has many on one ({})",
            place(findings)
        );
        let message = format!("`send_proxy` cannot stand beside `protocol = \"{}\"`", protocol.word());
        findings.error(entry.key, message, hint);
    }
    if protocol.lets_pick() && !has_tls && !pool.is_bad("tls") {
        let hint = match protocol {
            PoolProtocol::H3 => "QUIC is always encrypted: expected `tls` of the pool beside it",
            _ => {
                "the two sides agree on a version within TLS: expected `tls` of the pool beside it, or \
                 \"h1\" or \"h2\""
            }
        };
        let message = format!("`protocol = \"{}\"` needs `tls`", protocol.word());
        findings.error(pool.at("protocol"), message, hint);
    }
    if protocol == PoolProtocol::H3 {
        beside_h3(pool, findings);
    } else if let Some(entry) = pool.get("fall_back_after").filter(|_| !pool.is_bad("protocol")) {
        let hint = "it says when HTTP/3 is given up: expected `protocol = \"h3\"` beside it";
        findings.warning(entry.key, "`fall_back_after` has no effect", hint);
    }
}

/// Reports keys that are not supported with HTTP/3 yet.
fn beside_h3(pool: &Fields, findings: &mut Findings<'_>) {
    for name in ["source", "interface"] {
        if let Some(entry) = pool.get(name) {
            let hint = format!(
                "connections of HTTP/3 share a socket of each worker, which leaves from where routes say ({})",
                findings.place(pool.at("protocol"))
            );
            let message = format!("`{name}` cannot stand beside `protocol = \"h3\"`");
            findings.error(entry.key, message, hint);
        }
    }
    for (at, backend) in pool.tables("backends") {
        if let Some(address) = backend.text("address").filter(|address| unix_name(address).is_some()) {
            let hint = format!("HTTP/3 goes over UDP ({})", findings.place(pool.at("protocol")));
            findings.error(at, format!("backend `{address}` is a Unix socket"), hint);
        }
    }
}
