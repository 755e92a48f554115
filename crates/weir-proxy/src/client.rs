//! Decides who the client is; nothing else decides it.
//!
//! The client of a connection is the TCP peer, or whoever a PROXY header from an accepted peer names. The
//! client of a request that a trusted proxy forwards is whoever `x-forwarded-for` names, or the field that
//! the listener configures. Access lists and rate limits, balancing by address, the access log, the PROXY
//! header to a backend and `weir explain` all use this client. Wherever clients are counted,
//! [`weir_screen::address_key`] identifies them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_config::ProxyVersion;
use weir_http::proxy_protocol::{self, ProxyAddresses};
use weir_http::{Field, KnownHeader, RequestHead};

/// The client of a connection or a request.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The TCP peer.
    pub peer: SocketAddr,
    /// The client's address; its port is 0 if a proxy named none.
    pub address: SocketAddr,
    /// The address the client connected to, as far as known: ours, or the one in the PROXY header.
    pub destination: Option<SocketAddr>,
}

impl Client {
    /// The client of a connection whose peer speaks only for itself.
    pub fn of_peer(peer: SocketAddr) -> Client {
        Client { peer, address: peer, destination: None }
    }

    /// The client of one request on this connection, read from `text`. If the connection's client is no
    /// trusted proxy, it is also the request's. Otherwise it is whoever the field of the listener's
    /// `client_address` names, or the proxy itself if that names nobody.
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

    /// Stores which address of ours the connection came to, unless a header has named one, for requests that
    /// are made on the client's behalf without access to its connection. Costs a system call.
    pub fn note_destination(&mut self, local: impl FnOnce() -> io::Result<SocketAddr>) {
        self.destination = self.destination.or_else(|| local().ok());
    }

    /// The port that the client connected to, as far as known; 0 if unknown. `local` gives the address of
    /// ours that its connection came to, and is called only if the listener has several ports, or an
    /// ephemeral one.
    pub fn port_asked(
        &self,
        listener: &weir_config::Listener,
        local: impl FnOnce() -> io::Result<SocketAddr>,
    ) -> u16 {
        // A Unix socket has no port.
        let mut ports = listener.bind.iter().map(|bind| bind.inet().map_or(0, |inet| inet.first.port()));
        let first = ports.next().unwrap_or(0);
        let only = Some(first).filter(|first| *first != 0 && ports.all(|port| port == *first));
        match (self.destination, only) {
            (Some(destination), _) => destination.port(),
            (None, Some(port)) => port,
            (None, None) => local().map_or(0, |local| local.port()),
        }
    }

    /// The PROXY protocol header that names this client to a backend; `local` gives the address of ours that
    /// its connection came to. If that is not known, the header still names the client, with the unspecified
    /// address of its family as destination: with a header that names nobody, a backend would take us for the
    /// client.
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
            // LOCAL would mean that there is no client.
            ProxyVersion::V2 if addresses.is_none() => {
                proxy_protocol::write_v2_unspecified(&mut header);
            }
            ProxyVersion::V2 => proxy_protocol::write_v2(addresses, &mut header),
        }
        header
    }
}

/// Whether a client is connected by a Unix socket, and no proxy has named its address.
pub fn is_unix(address: IpAddr) -> bool {
    address == weir_io::listener::UNIX_PEER.ip()
}

/// The unspecified address of the same family as `address`.
fn unspecified_beside(address: IpAddr) -> SocketAddr {
    let ip = match address.to_canonical() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

/// The address in the only field line. If there are two, one comes from somebody whose value the proxy
/// should have replaced, so neither is believed. An address contains no comma, so a list is not accepted.
fn alone<'a>(mut fields: impl Iterator<Item = Field<'a>>) -> Option<SocketAddr> {
    let first = fields.next()?;
    if fields.next().is_some() { None } else { address_of(first.value) }
}

/// The entry that is `hops` from the right, or the first one if there are fewer. Empty entries don't count
/// (RFC 9110 section 5.6.1.2).
fn by_hops<'a, E: Iterator<Item = &'a [u8]>>(entries: impl Fn() -> E, hops: usize) -> Option<SocketAddr> {
    let entries = || entries().filter(|entry| !entry.is_empty());
    address_of(entries().nth(entries().count().saturating_sub(hops))?)
}

/// The last entry that is no trusted proxy; entries further right were written by hops closer to us. The
/// search ends at an entry that is no address, and at the first entry.
fn last_untrusted<'a>(
    entries: impl Iterator<Item = &'a [u8]>,
    trusts: impl Fn(IpAddr) -> bool,
) -> Option<SocketAddr> {
    entries.fold(None, |found, entry| match address_of(entry) {
        Some(address) if trusts(address.ip()) => found.or(Some(address)),
        other => other,
    })
}

/// Parses an address, with or without brackets and port; the port is 0 if there is none. The unspecified
/// address names nobody, and must not be taken for a client on a Unix socket.
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
            // Version 2: PROXY for a stream over IPv4, over IPv6, or over a family that can't be named.
            let family = match (is_unix(client.address.ip()), client.address.is_ipv4()) {
                (true, _) => 0x00,
                (false, true) => 0x11,
                (false, false) => 0x21,
            };
            assert_eq!(header(&client, ProxyVersion::V2)[12..14], [0x21, family]);
            // A PROXY header can't name the address of a Unix socket.
            client.note_destination(|| Ok(weir_io::listener::UNIX_PEER));
            assert_eq!(String::from_utf8_lossy(&header(&client, ProxyVersion::V1)), line);
        }
    }

    /// The client of a request with these lines that came from 10.0.0.1, which is trusted like its whole
    /// network.
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
