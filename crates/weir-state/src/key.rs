//! The hash by which source, hash and maglev choose. Decided here alone, for the data path and for
//! explanations. Pure.

use std::net::{IpAddr, SocketAddr};

use weir_balance::{Algorithm, address_hash, flow_hash, stable_hash};
use weir_config::HashKey;
use weir_screen::FieldLookup;
use weir_template::Source;

/// The parts of a request that can be hashed.
pub struct KeySource<'a> {
    /// The client's address, taken from headers only if they are trusted.
    pub client: IpAddr,
    /// The path as sent, without the query.
    pub path: &'a [u8],
    /// The request-target as sent.
    pub target: &'a [u8],
    /// Looks up the whole value of a header field by name.
    pub header: &'a FieldLookup<'a>,
    /// Looks up the value of the first cookie with a name.
    pub cookie: &'a dyn Fn(&[u8]) -> Option<&'a [u8]>,
    /// The values of the variables in a template.
    pub values: &'a dyn Source,
}

/// The hash that the pool's algorithm chooses by; `None` if it needs none, or if the request lacks what the
/// pool hashes.
#[inline]
pub fn choice_key(pool: &weir_config::Pool, source: &KeySource<'_>) -> Option<u64> {
    if pool.balance.needs_key() { hash(pool, source) } else { None }
}

fn hash(pool: &weir_config::Pool, source: &KeySource<'_>) -> Option<u64> {
    if pool.balance == Algorithm::Source {
        return Some(address_hash(source.client));
    }
    Some(match &pool.hash.key {
        // The config check rejects `flow` for pools that balance requests.
        HashKey::ClientIp | HashKey::Flow => address_hash(source.client),
        HashKey::Path => stable_hash(source.path),
        HashKey::Uri => stable_hash(source.target),
        HashKey::Header(name) => stable_hash(&(source.header)(name.as_bytes())?),
        HashKey::Cookie(name) => stable_hash((source.cookie)(name.as_bytes())?),
        HashKey::Value(template) => {
            let mut value = Vec::with_capacity(64);
            template.render_any(source.values, &mut value).then(|| stable_hash(&value))?
        }
    })
}

/// What carries bytes or datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP connections.
    Tcp,
    /// UDP flows.
    Udp,
}

impl Transport {
    /// Its protocol number in IP headers.
    pub const fn number(self) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        }
    }
}

/// Like [`choice_key`], for a TCP connection or a UDP flow, of which only addresses are known. Pools that
/// hash a part of a request use the client's address instead.
///
/// `destination` returns the address that the client sent to. It is called only if that address is hashed;
/// `None` if it is unknown.
#[inline]
pub fn flow_key(
    pool: &weir_config::Pool,
    transport: Transport,
    client: SocketAddr,
    destination: impl FnOnce() -> Option<SocketAddr>,
) -> Option<u64> {
    if !pool.balance.needs_key() {
        return None;
    }
    match (pool.balance, &pool.hash.key) {
        (Algorithm::Hash | Algorithm::Maglev, HashKey::Flow) => {
            Some(flow_hash(client, destination()?, transport.number()))
        }
        _ => Some(address_hash(client.ip())),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn config(protocol: &str, balance: &str) -> weir_config::Config {
        let text = format!(
            "[listener.web]\nprotocol = '{protocol}'\nbind = '127.0.0.1:8080'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.1:80']\n{balance}\n"
        );
        weir_config::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"))
    }

    fn key(balance: &str, lacks: bool) -> Option<u64> {
        let config = config("http", balance);
        let found = |value: &'static [u8]| (!lacks).then_some(value);
        let source = KeySource {
            client: "::ffff:192.0.2.7".parse().unwrap(),
            path: b"/a",
            target: b"/a?b",
            header: &|name| found(b"green").filter(|_| name == b"x-user").map(Cow::Borrowed),
            cookie: &|name| found(b"blue").filter(|_| name == b"user"),
            values: &Filled(!lacks),
        };
        choice_key(&config.pools[0], &source)
    }

    /// Each variable says its own name, or nothing.
    struct Filled(bool);

    impl Source for Filled {
        fn put(&self, variable: &weir_template::Variable, out: &mut Vec<u8>) {
            if self.0 {
                out.extend_from_slice(variable.name().as_bytes());
            }
        }
    }

    #[test]
    fn each_key_word_hashes_the_part_of_the_request_that_it_names() {
        let client = Some(address_hash("192.0.2.7".parse().unwrap()));
        let by = |key: &str| format!("balance = 'hash'\nhash = {{ key = '{key}' }}");
        for (balance, expected) in [
            ("balance = 'source'".to_owned(), client),
            (by("client_ip"), client),
            (by("path"), Some(stable_hash(b"/a"))),
            (by("uri"), Some(stable_hash(b"/a?b"))),
            (by("header:x-user"), Some(stable_hash(b"green"))),
            (by("cookie:user"), Some(stable_hash(b"blue"))),
            (by("$client_ip"), client),
            (by("$header.X-User"), Some(stable_hash(b"green"))),
            (by("$cookie.user"), Some(stable_hash(b"blue"))),
            (by("a$host/$query.id"), Some(stable_hash(b"ahost/query.id"))),
            ("balance = 'round-robin'".to_owned(), None),
        ] {
            assert_eq!(key(&balance, false), expected, "{balance}");
        }
    }

    #[test]
    fn flows_are_hashed_whole_where_the_pool_says_so_and_by_the_clients_address_elsewhere() {
        let (client, destination) = ("192.0.2.7:4711".parse().unwrap(), "10.0.9.9:53".parse().unwrap());
        let by_address = Some(address_hash("192.0.2.7".parse().unwrap()));
        let tcp = Some(flow_hash(client, destination, 6));
        let udp = Some(flow_hash(client, destination, 17));
        assert_ne!(tcp, udp);
        for (balance, key, of_tcp, of_udp) in [
            ("maglev", "flow", tcp, udp),
            ("hash", "flow", tcp, udp),
            ("hash", "client_ip", by_address, by_address),
            ("source", "flow", by_address, by_address),
            ("round-robin", "flow", None, None),
        ] {
            let config = config("tcp", &format!("balance = '{balance}'\nhash = {{ key = '{key}' }}"));
            let ask = |transport| flow_key(&config.pools[0], transport, client, || Some(destination));
            assert_eq!(ask(Transport::Tcp), of_tcp, "{balance} {key}");
            assert_eq!(ask(Transport::Udp), of_udp, "{balance} {key}");
        }
    }

    #[test]
    fn where_nobody_knows_the_destination_a_flow_has_no_key() {
        let config = config("udp", "balance = 'maglev'\nhash = { key = 'flow' }");
        let client = "192.0.2.7:4711".parse().unwrap();
        assert_eq!(flow_key(&config.pools[0], Transport::Udp, client, || None), None);
    }

    #[test]
    fn a_request_without_the_header_or_cookie_has_no_key() {
        for word in ["header:x-user", "cookie:user", "$cookie.user", "a$host/$query.id"] {
            assert_eq!(key(&format!("balance = 'hash'\nhash = {{ key = '{word}' }}"), true), None, "{word}");
        }
    }
}
