//! Who the client is: the one place that decides it.
//!
//! Of a connection it is the TCP peer, or whom a PROXY header from an accepted peer names. Of a request that
//! a trusted proxy passes on it is whom `x-forwarded-for` names, or the field that the listener says. Lists
//! and limits, choices by address, the log, the PROXY header to a backend and `weir explain` all mean this
//! one. Wherever clients are counted, [`weir_screen::address_key`] stands for them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_config::ProxyVersion;
use weir_http::proxy_protocol::{self, ProxyAddresses};
use weir_http::{Field, KnownHeader, RequestHead};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The TCP peer.
    pub peer: SocketAddr,
    /// The client; its port is 0 where a proxy named none.
    pub address: SocketAddr,
    /// The address the client connected to, as far as known: ours, or the one in the PROXY header.
    pub destination: Option<SocketAddr>,
}

impl Client {
    /// Who connected, where nobody speaks for others.
    pub fn of_peer(peer: SocketAddr) -> Client {
        Client { peer, address: peer, destination: None }
    }

    /// The client of one request of this connection, read from `text`. Where the connection's own is no
    /// trusted proxy, it is that; else it is whom the field of the listener's `client_address` names, and the
    /// proxy where that names nobody.
    pub fn of_request(&self, listener: &weir_config::Listener, head: &RequestHead, text: &[u8]) -> Client {
        let http = listener.http();
        let trusts = |address| weir_config::contains(&http.trusted_proxies, address);
        if !trusts(self.address.ip()) {
            return *self;
        }
        let asked = http.client_address.as_ref();
        let entries = || {
            let values = head.values(KnownHeader::XForwardedFor, text);
            values.flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii)
        };
        let found = match (asked.and_then(|it| it.single_field()), asked.and_then(|it| it.hops)) {
            (Some(name), _) => {
                alone(head.fields(text).filter(|it| it.name.eq_ignore_ascii_case(name.as_bytes())))
            }
            (None, Some(hops)) => by_hops(entries, usize::from(hops)),
            (None, None) => last_untrusted(entries(), trusts),
        };
        Client { address: found.unwrap_or(self.address), ..*self }
    }

    /// Keeps which address of ours its connection came to, where no header has said one: for what is asked in
    /// its name by whoever does not have the connection. It costs a system call.
    pub fn note_destination(&mut self, local: impl FnOnce() -> io::Result<SocketAddr>) {
        self.destination = self.destination.or_else(|| local().ok());
    }

    /// The port that it connected to, as far as known; 0 where it is not. `local` says which address of ours
    /// its connection came to, and is asked where the listener has several ports, or any.
    pub fn port_asked(
        &self,
        listener: &weir_config::Listener,
        local: impl FnOnce() -> io::Result<SocketAddr>,
    ) -> u16 {
        // A Unix socket has none.
        let mut ports = listener.bind.iter().map(|bind| bind.inet().map_or(0, |inet| inet.first.port()));
        let first = ports.next().unwrap_or(0);
        let only = Some(first).filter(|first| *first != 0 && ports.all(|port| port == *first));
        match (self.destination, only) {
            (Some(destination), _) => destination.port(),
            (None, Some(port)) => port,
            (None, None) => local().map_or(0, |local| local.port()),
        }
    }

    /// The PROXY protocol header that names this client to a backend; `local` says which address of ours its
    /// connection came to. Where nobody knows that, the client is named all the same, beside the unspecified
    /// address of its family: a header that names nobody has a backend take us for the client.
    pub fn proxy_header(
        &self,
        version: ProxyVersion,
        local: impl FnOnce() -> io::Result<SocketAddr>,
    ) -> Vec<u8> {
        let source = self.address;
        let known = self.destination.or_else(|| local().ok()).filter(|it| !is_unix(it.ip()));
        let destination = known.unwrap_or_else(|| unspecified_beside(source.ip()));
        let addresses = (!is_unix(source.ip())).then_some(ProxyAddresses { source, destination });
        let mut header = Vec::with_capacity(proxy_protocol::V1_LONGEST_BYTES);
        match version {
            ProxyVersion::V1 => proxy_protocol::write_v1(addresses, &mut header),
            // LOCAL would say that nobody is behind it.
            ProxyVersion::V2 if addresses.is_none() => {
                proxy_protocol::write_v2_unspecified(&mut header);
            }
            ProxyVersion::V2 => proxy_protocol::write_v2(addresses, &mut header),
        }
        header
    }
}

/// Whether a client has come by a Unix socket, and nobody says from where.
pub fn is_unix(address: IpAddr) -> bool {
    address == weir_io::listener::UNIX_PEER.ip()
}

/// The address that stands for none, of the family that `address` is of.
fn unspecified_beside(address: IpAddr) -> SocketAddr {
    let ip = match address.to_canonical() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

/// The only value there is. A second one was written by somebody whom the first was to replace, so that
/// neither is believed; an address holds no comma, so a list is none.
fn alone<'a>(mut fields: impl Iterator<Item = Field<'a>>) -> Option<SocketAddr> {
    let first = fields.next()?;
    if fields.next().is_some() { None } else { address_of(first.value) }
}

/// The entry that is so many from the right, or the first where there are fewer. Empty ones are none (RFC
/// 9110 section 5.6.1.2).
fn by_hops<'a, E: Iterator<Item = &'a [u8]>>(entries: impl Fn() -> E, hops: usize) -> Option<SocketAddr> {
    let entries = || entries().filter(|entry| !entry.is_empty());
    address_of(entries().nth(entries().count().saturating_sub(hops))?)
}

/// The last entry that is no trusted proxy, for what stands further right was written by whoever is nearer to
/// us. An entry that is no address ends the search, and so does the first.
fn last_untrusted<'a>(
    entries: impl Iterator<Item = &'a [u8]>,
    trusts: impl Fn(IpAddr) -> bool,
) -> Option<SocketAddr> {
    entries.fold(None, |found, entry| match address_of(entry) {
        Some(address) if trusts(address.ip()) => found.or(Some(address)),
        other => other,
    })
}

/// An address, with or without brackets and port; the port is 0 where there is none. The unspecified one
/// names nobody, and must not pass for somebody at a Unix socket.
fn address_of(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().map(|address| SocketAddr::new(address, 0));
    let address =
        address.or_else(|_| text.parse::<SocketAddr>()).ok().filter(|it| !is_unix(it.ip().to_canonical()))?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_with_and_without_brackets_and_port() {
        for (text, expected) in [
            ("192.0.2.7", Some("192.0.2.7:0")),
            ("192.0.2.7:4711", Some("192.0.2.7:4711")),
            ("2001:db8::7", Some("[2001:db8::7]:0")),
            ("[2001:db8::7]", Some("[2001:db8::7]:0")),
            ("[2001:db8::7]:4711", Some("[2001:db8::7]:4711")),
            ("::ffff:192.0.2.7", Some("192.0.2.7:0")),
            ("unknown", None),
            ("0.0.0.0", None),
            ("[::ffff:0.0.0.0]:80", None),
            ("192.0.2", None),
            ("[192.0.2.7", None),
            ("", None),
        ] {
            let expected = expected.map(|text| text.parse().unwrap());
            assert_eq!(address_of(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_client_is_named_also_where_nobody_knows_what_it_connected_to() {
        let header = |client: &Client, version| {
            client.proxy_header(version, || Err(io::ErrorKind::Unsupported.into()))
        };
        for (source, line) in [
            ("192.0.2.7:4711", "PROXY TCP4 192.0.2.7 0.0.0.0 4711 0\r\n"),
            ("[2001:db8::7]:4711", "PROXY TCP6 2001:db8::7 :: 4711 0\r\n"),
            ("0.0.0.0:0", "PROXY UNKNOWN\r\n"),
        ] {
            let mut client = Client::of_peer(source.parse().unwrap());
            assert_eq!(String::from_utf8_lossy(&header(&client, ProxyVersion::V1)), line);
            // As version 2 has it: PROXY of a stream over IPv4, IPv6, or nothing that can be named.
            let family = match (is_unix(client.address.ip()), client.address.is_ipv4()) {
                (true, _) => 0x00,
                (false, true) => 0x11,
                (false, false) => 0x21,
            };
            assert_eq!(header(&client, ProxyVersion::V2)[12..14], [0x21, family]);
            // A Unix socket is no address that a header can say.
            client.note_destination(|| Ok(weir_io::listener::UNIX_PEER));
            assert_eq!(String::from_utf8_lossy(&header(&client, ProxyVersion::V1)), line);
        }
    }

    /// Whom a request with these lines is from that came from 10.0.0.1, which is trusted with its network.
    fn client_of(asked: &str, lines: &str) -> String {
        let config = format!(
            "[listener.a]\nbind = '127.0.0.1:1'\npool = 'p'\ntrusted_proxies = ['10.0.0.0/8']\n{asked}\n[pool.p]\nbackends = ['127.0.0.1:2']\n"
        );
        let config = weir_config::parse("a.toml", &config).unwrap_or_else(|report| panic!("{report}"));
        let text = format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}\r\n");
        let mut head = RequestHead::new();
        let parsed = weir_http::parse_request(text.as_bytes(), &weir_http::Limits::default(), &mut head);
        assert!(matches!(parsed, Ok(weir_http::Progress::Complete { .. })), "{parsed:?}");
        let peer = Client::of_peer("10.0.0.1:99".parse().unwrap());
        peer.of_request(&config.listeners[0], &head, text.as_bytes()).address.ip().to_string()
    }

    #[test]
    fn of_a_list_it_is_the_last_entry_that_is_no_trusted_proxy() {
        let of = |lines| client_of("", lines);
        assert_eq!(of("x-forwarded-for: 1.1.1.1, 2.2.2.2, 10.0.0.9\r\n"), "2.2.2.2");
        assert_eq!(of("x-forwarded-for: 1.1.1.1\r\nX-Forwarded-For: 10.0.0.9,10.0.0.8\r\n"), "1.1.1.1");
        assert_eq!(of("x-forwarded-for: 10.0.0.7, 10.0.0.8\r\n"), "10.0.0.7");
        assert_eq!(of("x-forwarded-for: 1.1.1.1, unknown\r\n"), "10.0.0.1");
        assert_eq!(of("x-forwarded-for: 1.1.1.1, unknown, 10.0.0.8\r\n"), "10.0.0.8");
        assert_eq!(of("cf-connecting-ip: 1.1.1.1\r\n"), "10.0.0.1");
    }

    #[test]
    fn of_so_many_hops_it_is_the_entry_that_the_outermost_of_them_wrote() {
        let of = |hops: u8, lines| client_of(&format!("client_address = {{ hops = {hops} }}"), lines);
        let list = "x-forwarded-for: 9.9.9.9, 1.1.1.1\r\nx-forwarded-for: 2.2.2.2\r\n";
        assert_eq!(of(1, list), "2.2.2.2");
        assert_eq!(of(2, list), "1.1.1.1");
        assert_eq!(of(4, list), "9.9.9.9", "the first, where there are fewer");
        assert_eq!(of(2, "x-forwarded-for: 9.9.9.9, unknown, 2.2.2.2\r\n"), "10.0.0.1");
        assert_eq!(of(2, "x-forwarded-for: 9.9.9.9,, 1.1.1.1, , 2.2.2.2,\r\n"), "1.1.1.1");
        assert_eq!(of(1, ""), "10.0.0.1");
    }

    #[test]
    fn of_a_field_of_its_own_it_is_its_only_value() {
        let of = |lines: &str| client_of("client_address = 'cf-connecting-ip'", lines);
        let list = "x-forwarded-for: 9.9.9.9\r\n";
        assert_eq!(of(&format!("{list}CF-Connecting-IP: 1.1.1.1\r\n")), "1.1.1.1");
        assert_eq!(of("cf-connecting-ip: 2001:db8::1\r\n"), "2001:db8::1");
        for lines in [
            "",
            "cf-connecting-ip: 1.1.1.1\r\ncf-connecting-ip: 1.1.1.1\r\n",
            "cf-connecting-ip: 1.1.1.1, 2.2.2.2\r\n",
            "cf-connecting-ip: unknown\r\n",
            "cf-connecting-ip:\r\n",
            "cf_connecting_ip: 1.1.1.1\r\n",
        ] {
            assert_eq!(of(&format!("{list}{lines}")), "10.0.0.1", "{lines:?}");
        }
    }
}
