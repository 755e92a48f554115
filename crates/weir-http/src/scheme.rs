//! Cleartext or TLS, as a URI says it.

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
