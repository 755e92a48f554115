//! TLS, and the versions of HTTP that are chosen along with it.

use std::path::PathBuf;

/// A version of HTTP, as a connection carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0 and 1.1 (RFC 9112).
    H1,
    /// HTTP/2 (RFC 9113).
    H2,
    /// HTTP/3 over QUIC (RFC 9114).
    H3,
}

impl HttpVersion {
    /// As written in the file.
    pub fn word(self) -> &'static str {
        match self {
            HttpVersion::H1 => "h1",
            HttpVersion::H2 => "h2",
            HttpVersion::H3 => "h3",
        }
    }

    /// The version of that word.
    pub fn from_word(word: &str) -> Option<HttpVersion> {
        [HttpVersion::H1, HttpVersion::H2, HttpVersion::H3].into_iter().find(|version| version.word() == word)
    }
}

/// `[listener.NAME.tls]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// Not empty; the first is for clients whose server name none is for.
    pub certificates: Vec<Certificate>,
    /// Authorities of client certificates; `None` asks clients for none.
    pub client_ca: Option<PathBuf>,
    /// Default required. Means nothing without `client_ca`.
    pub client_auth: ClientAuth,
    /// Default 1.2.
    pub min_version: TlsVersion,
    /// Default `Default`.
    pub ciphers: CipherPolicy,
    /// Whether sessions may be resumed with tickets; default true.
    pub tickets: bool,
}

/// One certificate with its key: files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// PEM, the end entity's first.
    pub cert: PathBuf,
    /// PEM.
    pub key: PathBuf,
    /// DER, stapled as it is.
    pub ocsp: Option<PathBuf>,
}

/// Whether a client must have a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// No handshake without one (default).
    Required,
    /// A client without one is served too.
    Optional,
}

/// Oldest version of TLS that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// RFC 5246 (default).
    V12,
    /// RFC 8446.
    V13,
}

/// Which cipher suites and key exchanges are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CipherPolicy {
    /// AES-GCM and ChaCha20-Poly1305 with forward secrecy.
    Default,
    /// Of these, those with keys of 256 bits.
    Strong,
    /// AES-GCM, P-256 and P-384.
    Nist,
}

/// `tls` of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTls {
    /// Authorities of backends' certificates; `None` takes the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate and key; both or neither.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Asked for and verified; `None` takes the host of each backend.
    pub server_name: Option<String>,
    /// Default true.
    pub verify: bool,
}
