//! Keys by which requests are counted.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use weir_template::{Source, Template, Variable};

use crate::digest::{Digest, digest};
use crate::network::Network;
use crate::screen::Facts;
use crate::shown::{Masked, Remembered, is_secret, is_secret_name};

/// Digest domains by the source of the key, so that no text collides with a client.
const BY_CLIENT: u64 = 0;
/// The value of a header or a cookie.
const BY_VALUE: u64 = 1;
/// A template's text.
const BY_TEXT: u64 = 2;

/// A key by which requests are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The client's network: its address, cut to this many bits.
    ClientIp {
        /// Bits of an IPv4 address, up to 32.
        v4_bits: u8,
        /// Bits of an IPv6 address, up to 128. One customer has at least a /64, and can use each of its
        /// addresses.
        v6_bits: u8,
    },
    /// One count for the whole route.
    Route,
    /// One count for the whole listener.
    Listener,
    /// The whole value of a header field (name in lower case).
    Header(Box<str>),
    /// The value of a cookie.
    Cookie(Box<str>),
    /// A template, in which `$client_ip` stands for the client's network.
    Value {
        /// The template.
        template: Template,
        /// As in [`Key::ClientIp`].
        v4_bits: u8,
        /// As in [`Key::ClientIp`].
        v6_bits: u8,
    },
}

impl Key {
    /// By client: the default.
    pub const CLIENT: Key = Key::ClientIp { v4_bits: 32, v6_bits: 64 };

    /// Whether there is only one count.
    pub fn is_whole(&self) -> bool {
        matches!(self, Key::Route | Key::Listener)
    }

    /// Digest of a request's key; `None` if there is only one count. A request without the header or cookie
    /// is counted by its client, or leaving it out would evade the limit.
    pub(crate) fn digest(&self, seed: [u64; 2], facts: &Facts<'_>) -> Option<Digest> {
        Some(match self {
            Key::Route | Key::Listener => return None,
            Key::ClientIp { v4_bits, v6_bits } => by_client(seed, facts.client, *v4_bits, *v6_bits),
            Key::Header(name) => by_value(seed, facts, (facts.header)(name.as_bytes()).as_deref()),
            Key::Cookie(name) => by_value(seed, facts, (facts.cookie)(name.as_bytes())),
            Key::Value { template, v4_bits, v6_bits } => {
                let mut value = Vec::with_capacity(64);
                let client = Network::of(facts.client, *v4_bits, *v6_bits);
                match fill_in(facts.values, client, template, &mut value) {
                    true => digest(seed, BY_TEXT, &value),
                    false => by_client(seed, facts.client, *v4_bits, *v6_bits),
                }
            }
        })
    }

    /// Digest of a key with this text; `None` if clients are counted, or all requests together.
    pub(crate) fn digest_of_text(&self, seed: [u64; 2], text: &[u8]) -> Option<Digest> {
        match self {
            Key::Route | Key::Listener | Key::ClientIp { .. } => None,
            Key::Header(_) | Key::Cookie(_) => Some(digest(seed, BY_VALUE, text)),
            Key::Value { .. } => Some(digest(seed, BY_TEXT, text)),
        }
    }

    /// A text that two keys share only if they count by the same, on any Weir.
    pub(crate) fn identity(&self) -> String {
        match self {
            Key::ClientIp { v4_bits, v6_bits } | Key::Value { v4_bits, v6_bits, .. } => {
                format!("{self} /{v4_bits} /{v6_bits}")
            }
            _ => self.to_string(),
        }
    }

    /// What to remember of a request's key for display. Allocates if it is a text.
    pub(crate) fn remembered(&self, facts: &Facts<'_>) -> Remembered {
        let of_client = |v4_bits, v6_bits| Remembered::Client(Network::of(facts.client, v4_bits, v6_bits));
        let of_value = |value: Option<&[u8]>, is_secret: bool| match (value, is_secret) {
            (None, _) => of_client(32, 64),
            (Some(_), true) => Remembered::hidden(),
            (Some(value), false) => Remembered::of_text(value, false),
        };
        match self {
            Key::Route | Key::Listener => Remembered::All,
            Key::ClientIp { v4_bits, v6_bits } => of_client(*v4_bits, *v6_bits),
            Key::Header(name) => of_value((facts.header)(name.as_bytes()).as_deref(), is_secret_name(name)),
            Key::Cookie(name) => of_value((facts.cookie)(name.as_bytes()), true),
            Key::Value { template, v4_bits, v6_bits } => {
                let client = Network::of(facts.client, *v4_bits, *v6_bits);
                let mut text = Vec::new();
                match fill_in(&Masked(facts.values), client, template, &mut text) {
                    true => Remembered::of_text(&text, template.variables().any(is_secret)),
                    false => of_client(*v4_bits, *v6_bits),
                }
            }
        }
    }

    /// A request's key, in words.
    pub(crate) fn describe(&self, facts: &Facts<'_>) -> String {
        let of_client = || format!("client {} (it has no such value)", Network::of(facts.client, 32, 64));
        let of_value = |name: &str, value: Option<&[u8]>| {
            value.map_or_else(of_client, |value| format!("{name} `{}`", String::from_utf8_lossy(value)))
        };
        match self {
            Key::Route => "the route".to_owned(),
            Key::Listener => "the listener".to_owned(),
            Key::ClientIp { v4_bits, v6_bits } => {
                format!("client {}", Network::of(facts.client, *v4_bits, *v6_bits))
            }
            Key::Header(name) => of_value(name, (facts.header)(name.as_bytes()).as_deref()),
            Key::Cookie(name) => of_value(name, (facts.cookie)(name.as_bytes())),
            Key::Value { template, v4_bits, v6_bits } => {
                let mut value = Vec::new();
                let client = Network::of(facts.client, *v4_bits, *v6_bits);
                let any = fill_in(facts.values, client, template, &mut value);
                of_value(template.as_written(), Some(&*value).filter(|_| any))
            }
        }
    }
}

impl fmt::Display for Key {
    /// The form in the config.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::ClientIp { .. } => write!(out, "client_ip"),
            Key::Route => write!(out, "route"),
            Key::Listener => write!(out, "listener"),
            Key::Header(name) => write!(out, "header:{name}"),
            Key::Cookie(name) => write!(out, "cookie:{name}"),
            Key::Value { template, .. } => write!(out, "{template}"),
        }
    }
}

/// The values of a request, except that the client is its network: an IPv6 customer has many addresses, and
/// would get one count for each.
struct Counted<'a> {
    values: &'a dyn Source,
    client: Network,
}

impl Source for Counted<'_> {
    fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
        match variable {
            Variable::ClientIp => out.extend_from_slice(self.client.to_string().as_bytes()),
            other => self.values.put(other, out),
        }
    }
}

/// Appends the template's text for a request of this client; returns whether any variable had a value.
fn fill_in(values: &dyn Source, client: Network, template: &Template, out: &mut Vec<u8>) -> bool {
    template.render_any(&Counted { values, client }, out)
}

/// The default key of a client with this address: an IPv4 address, or an IPv6 /64.
pub fn address_key(client: IpAddr) -> IpAddr {
    Network::of(client, 32, 64).address
}

/// The key of the end site of a client with this address, an IPv6 /48 (RFC 6177), all of whose addresses may
/// be one person's. `None` for IPv4, where an address is one.
pub fn site_key(client: IpAddr) -> Option<IpAddr> {
    Some(Network::of(client, 32, 48).address).filter(IpAddr::is_ipv6)
}

fn by_value(seed: [u64; 2], facts: &Facts<'_>, value: Option<&[u8]>) -> Digest {
    match value {
        Some(value) => digest(seed, BY_VALUE, value),
        None => by_client(seed, facts.client, 32, 64),
    }
}

fn by_client(seed: [u64; 2], client: IpAddr, v4_bits: u8, v6_bits: u8) -> Digest {
    let bytes = match Network::of(client, v4_bits, v6_bits).address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    digest(seed, BY_CLIENT, &Ipv6Addr::octets(&bytes))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::screen::FieldLookup;

    fn facts<'a>(client: &str, header: &'a FieldLookup<'a>) -> Facts<'a> {
        Facts {
            client: client.parse().unwrap(),
            path: b"/",
            method: b"GET",
            user_agent: b"",
            header,
            cookie: &|_| None,
            values: &Named,
        }
    }

    /// Gives each variable its own name as its value, except cookies.
    struct Named;

    impl Source for Named {
        fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
            if !matches!(variable, Variable::Cookie(_)) {
                out.extend_from_slice(variable.name().as_bytes());
            }
        }
    }

    fn same(key: &Key, one: &str, other: &str) -> bool {
        let none = |_: &[u8]| None;
        key.digest([1, 2], &facts(one, &none)) == key.digest([1, 2], &facts(other, &none))
    }

    #[test]
    fn clients_are_told_apart_by_their_address_and_in_ipv6_by_their_64() {
        assert!(!same(&Key::CLIENT, "192.0.2.1", "192.0.2.2"));
        assert!(same(&Key::CLIENT, "192.0.2.1", "::ffff:192.0.2.1"));
        assert!(same(&Key::CLIENT, "2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert!(!same(&Key::CLIENT, "2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(!same(&Key::CLIENT, "::", "0.0.0.0"));
        let wide = Key::ClientIp { v4_bits: 24, v6_bits: 128 };
        assert!(same(&wide, "192.0.2.1", "192.0.2.255") && !same(&wide, "192.0.2.1", "192.0.3.1"));
        assert!(!same(&wide, "2001:db8::1", "2001:db8::2"));
    }

    #[test]
    fn a_text_is_counted_by_what_it_says_and_a_client_in_it_by_its_network() {
        let value =
            |text: &str| Key::Value { template: Template::parse(text, 0).unwrap(), v4_bits: 24, v6_bits: 64 };
        let by_path = value("$client_ip $path");
        assert!(same(&by_path, "192.0.2.1", "192.0.2.255") && !same(&by_path, "192.0.2.1", "192.0.3.1"));
        assert!(same(&by_path, "2001:db8:1:2::1", "2001:db8:1:2:ffff::1"));
        assert!(same(&value("$host"), "192.0.2.1", "198.51.100.1"));
        let lacking = value("user:$cookie.user");
        assert!(!same(&lacking, "192.0.2.1", "198.51.100.1"), "counted by its client");
        let none = |_: &[u8]| None;
        let told = by_path.describe(&facts("2001:db8:1:2::1", &none));
        assert_eq!(told, "$client_ip $path `2001:db8:1:2::/64 path`");
        assert_eq!(by_path.to_string(), "$client_ip $path");
    }

    #[test]
    fn who_leaves_the_header_out_is_counted_by_address() {
        let key = Key::Header("x-user".into());
        assert!(!same(&key, "192.0.2.1", "192.0.2.2"));
        let green = |name: &[u8]| (name == b"x-user").then_some(Cow::Borrowed(&b"green"[..]));
        let by = |client| key.digest([1, 2], &facts(client, &green));
        assert_eq!(by("192.0.2.1"), by("192.0.2.2"));
        assert_eq!(key.describe(&facts("192.0.2.1", &green)), "x-user `green`");
    }
}
