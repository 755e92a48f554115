//! The URI scheme: cleartext or TLS.

/// Scheme of a URI, or of the listener that received a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Cleartext.
    #[default]
    Http,
    /// Over TLS or QUIC.
    Https,
}

impl Scheme {
    /// The scheme as written in a URI.
    pub const fn word(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port when a URI names none.
    pub const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}
