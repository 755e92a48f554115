//! Who the client is, as backends are told. Rendered once per connection, written with every request.

use std::net::IpAddr;

use crate::message::Version;

/// Scheme of a URI, or of the listener a request came by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Cleartext.
    #[default]
    Http,
    /// Over TLS or QUIC.
    Https,
}

impl Scheme {
    /// The word in a URI.
    pub const fn word(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port that goes without saying.
    pub const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// The identity of one client connection, with the field text that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    pub(crate) trusted: bool,
    /// `203.0.113.7` or `2001:db8::7`
    pub(crate) address: Box<[u8]>,
    /// `for=203.0.113.7;proto=http`
    pub(crate) element: Box<[u8]>,
    /// `via`, `x-forwarded-for` and `x-forwarded-proto` lines for a client that is not trusted and sent no `via`.
    pub(crate) lines: Box<[u8]>,
    pub(crate) scheme: Scheme,
    /// The version of the requests that `lines` is for.
    pub(crate) version: Version,
}

impl ClientIdentity {
    /// Renders the identity of a client at `address` that came by `scheme`.
    ///
    /// `trusted` says that the client is one of the operator's own proxies: what it says about who asked is kept and
    /// appended to. From all others it is overwritten (threat A24). Allocates; once per connection.
    pub fn new(address: IpAddr, scheme: Scheme, trusted: bool) -> ClientIdentity {
        let address = address.to_canonical();
        let proto = scheme.word();
        let element = match address {
            IpAddr::V4(address) => format!("for={address};proto={proto}"),
            // RFC 7239 §6: an IPv6 address stands in brackets, and so in quotes.
            IpAddr::V6(address) => format!("for=\"[{address}]\";proto={proto}"),
        };
        let version = Version::Http11;
        let address = address.to_string().into_bytes().into_boxed_slice();
        let lines = lines(version, &address, scheme);
        ClientIdentity { trusted, address, element: element.into_bytes().into(), lines, scheme, version }
    }

    /// The same for a connection whose requests come in another version than HTTP/1.1. Identities say the same of all
    /// versions; this only makes the usual request cheap.
    pub fn of_version(mut self, version: Version) -> ClientIdentity {
        self.lines = lines(version, &self.address, self.scheme);
        self.version = version;
        self
    }

    /// Whether the client's own forwarding fields are kept.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// The address as text, without port or brackets.
    pub fn address(&self) -> &[u8] {
        &self.address
    }
}

fn lines(version: Version, address: &[u8], scheme: Scheme) -> Box<[u8]> {
    let parts = [
        b"via: ",
        version.received_protocol(),
        b"\r\nx-forwarded-for: ",
        address,
        b"\r\nx-forwarded-proto: ",
        scheme.word().as_bytes(),
        b"\r\n",
    ];
    parts.concat().into_boxed_slice()
}
