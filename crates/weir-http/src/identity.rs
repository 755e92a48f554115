//! The client's identity as it is sent to backends. Rendered once per connection, written with every request.

use std::io::Write as _;
use std::net::IpAddr;

use crate::h1::encode;
use crate::message::Version;
use crate::scheme::Scheme;

/// The identity of one client connection, with the field lines that convey it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    pub(crate) trusted: bool,
    /// `203.0.113.7` or `2001:db8::7`; empty for a client of a Unix socket, which has no address.
    pub(crate) address: Box<[u8]>,
    /// `for=203.0.113.7;proto=http`
    pub(crate) element: Box<[u8]>,
    /// The certificate for which the client has proved to hold the key, as a value of `client-cert`.
    pub(crate) certificate: Option<Box<[u8]>>,
    /// `via`, `x-forwarded-for`, `x-forwarded-proto`, `x-real-ip`, `x-forwarded-port` and `client-cert` lines
    /// for a client that is not trusted and sent no `via`.
    pub(crate) lines: Box<[u8]>,
    pub(crate) scheme: Scheme,
    /// The port that the client connected to; 0 if it is not known.
    pub(crate) port: u16,
    /// The request version that `lines` is for.
    pub(crate) version: Version,
}

impl ClientIdentity {
    /// Renders the identity of a client at `address` that uses `scheme`. Pass the unspecified address for a
    /// client of a Unix socket, which has none: then `forwarded` has `for=unknown` (RFC 7239 section 6.2),
    /// and `x-forwarded-for` and `x-real-ip`, which hold only addresses, do not mention it.
    ///
    /// `trusted` means that the client is one of the operator's own proxies: its forwarding fields are kept
    /// and appended to. Those of all others are overwritten (threat A24). Allocates; once per connection.
    pub fn new(address: IpAddr, scheme: Scheme, trusted: bool) -> ClientIdentity {
        let address = address.to_canonical();
        let mut text = Vec::with_capacity(LONGEST_V4);
        if !address.is_unspecified() {
            write_address(&mut text, address);
        }
        let proto = scheme.word().as_bytes();
        let element = match address {
            _ if text.is_empty() => [b"for=unknown;proto=", proto].concat(),
            IpAddr::V4(_) => [b"for=", &text[..], b";proto=", proto].concat(),
            // RFC 7239 §6: an IPv6 address is written in brackets, and therefore in quotes.
            IpAddr::V6(_) => [b"for=\"[", &text[..], b"]\";proto=", proto].concat(),
        };
        let (address, element) = (text.into(), element.into());
        let version = Version::Http11;
        let identity = ClientIdentity {
            certificate: None,
            trusted,
            address,
            element,
            lines: Box::default(),
            scheme,
            port: 0,
            version,
        };
        identity.of_version(version)
    }

    /// Sets the port that the client connected to; 0 if it is not known.
    pub fn at_port(mut self, port: u16) -> ClientIdentity {
        self.port = port;
        let version = self.version;
        self.of_version(version)
    }

    /// Sets the version of the connection's requests, for others than HTTP/1.1. The identity is valid for all
    /// versions; this only makes the most common request cheap.
    pub fn of_version(mut self, version: Version) -> ClientIdentity {
        self.version = version;
        self.lines = self.written_lines();
        self
    }

    /// Adds a certificate, in DER, for which the client has proved to hold the key. Backends get it as
    /// `client-cert` (RFC 9440).
    pub fn of_certificate(mut self, certificate: &[u8]) -> ClientIdentity {
        let value = [b":", base64(certificate).as_slice(), b":"].concat();
        self.certificate = Some(value.into_boxed_slice());
        let version = self.version;
        self.of_version(version)
    }

    /// Sets whether the client is one of the operator's own proxies.
    pub fn of_trust(self, trusted: bool) -> ClientIdentity {
        ClientIdentity { trusted, ..self }
    }

    /// Whether the client's own forwarding fields are kept.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// The address as text, without port or brackets.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// The port that the client connected to; 0 where it is not known.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn written_lines(&self) -> Box<[u8]> {
        let mut lines = Vec::with_capacity(192 + self.certificate.as_ref().map_or(0, |value| value.len()));
        encode::write_field(&mut lines, b"via", self.version.received_protocol());
        if !self.address.is_empty() {
            encode::write_field(&mut lines, b"x-forwarded-for", &self.address);
        }
        encode::write_field(&mut lines, b"x-forwarded-proto", self.scheme.word().as_bytes());
        if !self.address.is_empty() {
            encode::write_field(&mut lines, b"x-real-ip", &self.address);
        }
        if self.port != 0 {
            lines.extend_from_slice(b"x-forwarded-port: ");
            encode::write_decimal(&mut lines, u64::from(self.port));
            lines.extend_from_slice(b"\r\n");
        }
        if let Some(certificate) = &self.certificate {
            encode::write_field(&mut lines, b"client-cert", certificate);
        }
        lines.into()
    }
}

/// Base64 (RFC 4648 section 4), as structured fields write byte sequences (RFC 8941 section 3.3.5).
fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=group.len()].copy_from_slice(group);
        let word = u32::from_be_bytes(word);
        for digit in 0..4 {
            let value = (word >> (18 - 6 * digit)) as usize & 63;
            text.push(if digit <= group.len() { DIGITS[value] } else { b'=' });
        }
    }
    text
}

const LONGEST_V4: usize = "255.255.255.255".len();

/// Writes the address as text, without port or brackets, with the same result as the standard library.
///
/// For IPv4 it avoids the formatting machinery, which takes longer for one address than parsing a request.
pub fn write_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                encode::write_decimal(out, u64::from(octet));
            }
        }
        IpAddr::V6(address) => {
            // Writing to a vector can't fail.
            let _ = write!(out, "{address}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_standard_library_writes_them() {
        for text in ["0.0.0.0", "9.10.99.100", "255.255.255.255", "2001:db8::7", "::ffff:203.0.113.7"] {
            let mut out = b"x ".to_vec();
            write_address(&mut out, text.parse().unwrap());
            assert_eq!(out, format!("x {text}").as_bytes());
        }
    }

    #[test]
    fn an_identity_says_the_same_in_every_field() {
        let identity = |address: &str, scheme| ClientIdentity::new(address.parse().unwrap(), scheme, false);
        // An IPv4 client of a socket for both families is an IPv4 client.
        for address in ["203.0.113.7", "::ffff:203.0.113.7"] {
            let found = identity(address, Scheme::Http);
            assert_eq!(found.address(), b"203.0.113.7");
            assert_eq!(&*found.element, b"for=203.0.113.7;proto=http");
            let lines = "via: 1.1 weir\r\nx-forwarded-for: 203.0.113.7\r\nx-forwarded-proto: http\r\nx-real-ip: 203.0.113.7\r\n";
            assert_eq!(&*found.lines, lines.as_bytes());
            let found = found.at_port(8080);
            assert_eq!(&*found.lines, format!("{lines}x-forwarded-port: 8080\r\n").as_bytes());
        }
        let found = identity("2001:db8::7", Scheme::Https);
        assert_eq!(&*found.element, b"for=\"[2001:db8::7]\";proto=https");
        assert!(found.lines.ends_with(b"x-forwarded-proto: https\r\nx-real-ip: 2001:db8::7\r\n"));
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        // The test vectors of RFC 4648 section 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text.as_bytes());
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), b"+//+");
    }

    #[test]
    fn a_certificate_stands_among_the_lines_of_every_version() {
        let identity = ClientIdentity::new("10.0.0.1".parse().unwrap(), Scheme::Https, false);
        let identity = identity.of_certificate(b"foo").at_port(443).of_version(Version::Http2);
        assert!(identity.lines.ends_with(b"x-forwarded-port: 443\r\nclient-cert: :Zm9v:\r\n"));
    }
}
