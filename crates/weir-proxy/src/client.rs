//! Who the client is, of a connection and of a request.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weir_config::ProxyVersion;
use weir_http::proxy_protocol::{self, ProxyAddresses};

use crate::snapshot::Listener;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The TCP peer.
    pub peer: SocketAddr,
    /// The client: the TCP peer, or whom a PROXY header from an accepted peer names.
    pub address: SocketAddr,
    /// The address the client connected to, as far as known: ours, or the one in the PROXY header.
    pub destination: Option<SocketAddr>,
}

impl Client {
    /// The PROXY protocol header that names this client to a backend; `local` says which address of ours its connection came to.
    pub fn proxy_header(
        &self,
        version: ProxyVersion,
        local: impl FnOnce() -> io::Result<SocketAddr>,
    ) -> Vec<u8> {
        let destination = self.destination.or_else(|| local().ok());
        let addresses = destination.map(|destination| ProxyAddresses { source: self.address, destination });
        let mut header = Vec::with_capacity(proxy_protocol::V1_LONGEST_BYTES);
        match version {
            ProxyVersion::V1 => proxy_protocol::write_v1(addresses, &mut header),
            ProxyVersion::V2 => proxy_protocol::write_v2(addresses, &mut header),
        }
        header
    }
}

/// The client that is counted and listed: who connected, or, where that is a trusted proxy, the last one before it in `x-forwarded-for` that is
/// none. An entry that is no address ends the search, and so does the first.
pub fn believed<'a>(
    listener: &Listener,
    peer: IpAddr,
    forwarded_for: impl Iterator<Item = &'a [u8]>,
) -> IpAddr {
    if !listener.trusts(peer) {
        return peer;
    }
    // What stands further right was written by whoever is nearer to us.
    let mut found = None;
    for entry in forwarded_for.flat_map(|value| value.split(|&byte| byte == b',')) {
        match address_of(entry.trim_ascii()) {
            Some(address) if listener.trusts(address) => found = found.or(Some(address)),
            Some(address) => found = Some(address),
            None => found = None,
        }
    }
    found.unwrap_or(peer)
}

/// An address, with or without brackets and port.
fn address_of(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address =
        bare.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|with_port| with_port.ip()));
    address.ok().map(|address| address.to_canonical())
}
