//! Who the client is: the one place that decides it.
//!
//! Of a connection it is the TCP peer, or whom a PROXY header from an accepted peer names. Of a request that
//! a trusted proxy passes on it is whom `x-forwarded-for` names. Lists and limits, choices by address, the
//! log, the PROXY header to a backend and `weir explain` all mean this one. Wherever clients are counted,
//! [`weir_screen::address_key`] stands for them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weir_config::ProxyVersion;
use weir_http::proxy_protocol::{self, ProxyAddresses};

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

    /// The client of one request of this connection, given the values of `x-forwarded-for` in order: where
    /// the connection's own is a trusted proxy, the last entry that is none, for what stands further right
    /// was written by whoever is nearer to us. An entry that is no address ends the search, and so does the
    /// first.
    pub fn of_request<'a>(
        &self,
        listener: &weir_config::Listener,
        forwarded_for: impl Iterator<Item = &'a [u8]>,
    ) -> Client {
        let trusts = |address| weir_config::contains(&listener.http().trusted_proxies, address);
        if !trusts(self.address.ip()) {
            return *self;
        }
        let mut found = None;
        for entry in forwarded_for.flat_map(|value| value.split(|&byte| byte == b',')) {
            match address_of(entry.trim_ascii()) {
                Some(address) if trusts(address.ip()) => found = found.or(Some(address)),
                Some(address) => found = Some(address),
                None => found = None,
            }
        }
        Client { address: found.unwrap_or(self.address), ..*self }
    }

    /// The port that it connected to, as far as known; 0 where it is not. `local` says which address of ours
    /// its connection came to, and is asked where the listener has several ports, or any.
    pub fn port_asked(
        &self,
        listener: &weir_config::Listener,
        local: impl FnOnce() -> io::Result<SocketAddr>,
    ) -> u16 {
        let mut ports = listener.bind.iter().map(|bind| bind.first.port());
        let first = ports.next().unwrap_or(0);
        let only = Some(first).filter(|first| *first != 0 && ports.all(|port| port == *first));
        match (self.destination, only) {
            (Some(destination), _) => destination.port(),
            (None, Some(port)) => port,
            (None, None) => local().map_or(0, |local| local.port()),
        }
    }

    /// The PROXY protocol header that names this client to a backend; `local` says which address of ours its
    /// connection came to.
    pub fn proxy_header(
        &self,
        version: ProxyVersion,
        local: impl FnOnce() -> io::Result<SocketAddr>,
    ) -> Vec<u8> {
        let destination = self.destination.or_else(|| local().ok());
        let addresses = destination.map(|destination| ProxyAddresses { source: self.address, destination });
        let addresses = addresses.filter(|_| !is_unix(self.address.ip()));
        let mut header = Vec::with_capacity(proxy_protocol::V1_LONGEST_BYTES);
        match version {
            ProxyVersion::V1 => proxy_protocol::write_v1(addresses, &mut header),
            // LOCAL would say that nobody is behind it.
            ProxyVersion::V2 if is_unix(self.address.ip()) => {
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
}
