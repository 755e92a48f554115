//! `[dns]`: which name servers resolve host names, and which answers are accepted.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::fields::{Fields, Value};
use crate::keys::{DAY, Each, HOUR, Limit, Shape, count, duration, list, millis, seconds, timer};
use crate::pool::Pool;
use crate::report::{Findings, quote};
use crate::setting::{one, table};
use crate::units::{Refused, refuse};
use crate::values::address::{NETWORK, contains, is_service};
use crate::values::said_once;

table! {
    /// Who is asked what host names of backends stand for, and how much of an answer is believed.
    #[derive(Eq)]
    pub struct Dns at "[dns]" {
        /// Name servers, asked one after the other until one knows; `"resolv.conf"` stands for those of
        /// `/etc/resolv.conf`. They are asked for names as they are written, without search domains, and say
        /// how long an answer lasts.
        resolvers: Vec<NameServer> =
            list(Each::Text(&RESOLVER))
                .default("the system's resolver, every 5 to 10 seconds; for services those of `/etc/resolv.conf`")
                .also(&["nameserver", "nameservers", "resolver", "servers"]);
        /// For one answer of one name server.
        timeout: Duration =
            duration(Limit::new(seconds(2), millis(100), seconds(60), "backends wait for it when Weir starts"))
                .also(&["resolver_timeout"]);
        /// An answer is taken to last so long at least.
        min_ttl: Duration =
            duration(Limit::new(seconds(1), millis(100), HOUR, "a name server should not be asked all the time"));
        /// An answer is taken to last so long at most.
        max_ttl: Duration =
            duration(Limit::new(seconds(300), millis(100), DAY, "backends that are gone are asked until then"))
                .also(&["valid", "hold"]);
        /// Where a name stands for one backend and has several addresses, and the one in use has not
        /// accepted a connection after so long, the next is tried beside it, IPv6 and IPv4 in turn (RFC
        /// 8305); one that refuses is followed at once. Which works is kept in use. Not for MySQL servers.
        try_next: Duration =
            timer(Limit::new(millis(250), millis(10), seconds(10), "every connection to an address that is silent waits so long"))
                .also(&["happy_eyeballs", "happyeyeballs", "connection_attempt_delay"]);
        /// Most backends that one name stands for; further addresses of it are left out.
        max_members: usize =
            count(Limit::new(64, 1, 1024, "whoever can answer for a name could fill the memory with backends"));
        /// Networks that answers may lie in; what lies elsewhere is left out.
        allow_address: Vec<IpNet> =
            list(Each::Text(&NETWORK)).default("everywhere").also(&["allow", "networks"]);
    }
}

impl Dns {
    /// Whether an answer may contain an address. Unspecified, multicast and broadcast addresses are never
    /// backends.
    pub fn allows(&self, address: IpAddr) -> bool {
        // An IPv4 network contains the same addresses in their IPv4-mapped form.
        let plain = address.to_canonical();
        let is_nobodys = match plain {
            IpAddr::V4(plain) => plain.is_unspecified() || plain.is_multicast() || plain.is_broadcast(),
            IpAddr::V6(plain) => plain.is_unspecified() || plain.is_multicast(),
        };
        let networks = &self.allow_address;
        !is_nobodys && (networks.is_empty() || contains(networks, plain))
    }
}

/// A source of name servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameServer {
    /// This name server.
    At(SocketAddr),
    /// The name servers of the system.
    ResolvConf,
}

/// The word for the system's name servers.
const RESOLV_CONF: &str = "resolv.conf";

/// The port of name servers.
const PORT: u16 = 53;

static RESOLVER: Shape = Shape::new("an address or `\"resolv.conf\"`", "10.0.0.53", |text| {
    name_server(text).map(|server| server.to_string())
});

/// A name server, with its port in the normal form.
pub(crate) static NAME_SERVER: Shape =
    Shape::new("the address of a name server", "10.0.0.53", |text| match name_server(text)? {
        NameServer::At(address) => Ok(address.to_string()),
        NameServer::ResolvConf => refuse(
            format!("{} is not one name server", quote(text)),
            "expected an address such as \"10.0.0.53\" or \"10.0.0.53:5353\"",
        ),
    });

one!(
    NameServer,
    Value::Text(text) => name_server(text).ok(),
    |it| Value::Text(it.to_string()),
    NameServer::ResolvConf
);

impl fmt::Display for NameServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameServer::At(address) => write!(out, "{address}"),
            NameServer::ResolvConf => write!(out, "{RESOLV_CONF}"),
        }
    }
}

fn name_server(text: &str) -> Result<NameServer, Refused> {
    if text == RESOLV_CONF || text == "/etc/resolv.conf" {
        return Ok(NameServer::ResolvConf);
    }
    let address: Result<IpAddr, _> = text.trim_matches(['[', ']']).parse();
    let address = address.map(|address| SocketAddr::new(address, PORT)).or_else(|_| text.parse());
    match address {
        Ok(address) if address.port() != 0 => Ok(NameServer::At(address)),
        _ => refuse(
            format!("{} is not a name server", quote(text)),
            "expected an address such as \"10.0.0.53\" or \"10.0.0.53:5353\", or \"resolv.conf\"",
        ),
    }
}

/// Reports contradictions.
pub(crate) fn check(dns: &Dns, pools: &[Arc<Pool>], fields: &Fields, findings: &mut Findings<'_>) {
    said_once(fields, "resolvers", findings);
    if dns.resolvers.len() > 1 && dns.resolvers.contains(&NameServer::ResolvConf) {
        let hint = "expected addresses, or \"resolv.conf\" alone";
        findings.error(fields.at("resolvers"), "`resolvers` names some and those of the system", hint);
    }
    if dns.min_ttl > dns.max_ttl {
        let hint = format!("expected at most `max_ttl` ({})", findings.place(fields.at("max_ttl")));
        findings.error(fields.at("min_ttl"), "`min_ttl` is longer than `max_ttl`", hint);
    }
    // SRV records are always requested from name servers, whatever resolves host names.
    let mut backends = pools.iter().flat_map(|pool| &pool.backends);
    if dns.resolvers.is_empty() && !backends.any(|backend| is_service(&backend.address)) {
        for name in ["timeout", "min_ttl", "max_ttl"] {
            if let Some(entry) = fields.get(name) {
                let hint = "the system's resolver has its own, and does not say how long an answer lasts; \
                            expected `resolvers` beside it";
                findings.warning(entry.key, format!("`{name}` has no effect"), hint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowing(networks: &[&str]) -> Dns {
        let allow_address = networks.iter().map(|text| text.parse().unwrap()).collect();
        Dns { allow_address, ..Dns::default() }
    }

    #[test]
    fn only_addresses_of_the_allowed_networks_are_taken_in_either_form() {
        let dns = allowing(&["10.0.0.0/8", "fd00::/8"]);
        for good in ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1"] {
            assert!(dns.allows(good.parse().unwrap()), "{good}");
        }
        for bad in ["127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "2001:db8::1"] {
            assert!(!dns.allows(bad.parse().unwrap()), "{bad}");
        }
    }

    #[test]
    fn an_address_of_nobody_is_taken_nowhere() {
        let dns = allowing(&[]);
        for nobodys in ["0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "255.255.255.255", "ff02::1"] {
            assert!(!dns.allows(nobodys.parse().unwrap()), "{nobodys}");
        }
        assert!(dns.allows("127.0.0.1".parse().unwrap()));
    }
}
