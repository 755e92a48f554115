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
    /// The first is for clients whose server name none is for. Not empty where there is no `acme`.
    pub certificates: Vec<Certificate>,
    /// A certificate that is got and renewed; it stands behind `certificates`.
    pub acme: Option<Acme>,
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
    /// Whether requests of HTTP/3 are taken before the handshake is over (0-RTT); default false.
    pub early_data: bool,
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

/// `acme` of a listener's `tls`: one certificate, ordered from a certificate authority (RFC 8555).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// URL of the authority's directory, `https://…`.
    pub directory: String,
    /// Names that the certificate is to be for, lower case; at least one, none twice.
    pub domains: Vec<String>,
    /// Whom the authority may write to: `mailto:` URLs.
    pub contact: Vec<String>,
    /// Ways to prove that the domains are ours, in the order in which they are tried; at least one.
    pub challenges: Vec<AcmeChallenge>,
    /// Authorities that the directory's own certificate must come from; `None` takes the system's.
    pub ca: Option<PathBuf>,
    /// Folder for account keys, certificates and their keys. Default [`ACME_STORE`].
    pub store: PathBuf,
}

/// Where certificates and keys are kept when the file says nothing.
pub const ACME_STORE: &str = "/var/lib/weir/acme";

/// A way to prove to a certificate authority that a domain is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// A file under `/.well-known/acme-challenge/` on port 80 (RFC 8555 section 8.3).
    Http01,
    /// A TLS handshake on port 443 (RFC 8737).
    TlsAlpn01,
}

impl AcmeChallenge {
    /// Every way, in the order in which they are tried when the file says nothing.
    pub const ALL: [AcmeChallenge; 2] = [AcmeChallenge::Http01, AcmeChallenge::TlsAlpn01];

    /// As written in the file, and as the RFCs name it.
    pub fn word(self) -> &'static str {
        match self {
            AcmeChallenge::Http01 => "http-01",
            AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
        }
    }

    /// The challenge of that word.
    pub fn from_word(word: &str) -> Option<AcmeChallenge> {
        AcmeChallenge::ALL.into_iter().find(|each| each.word() == word)
    }
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
