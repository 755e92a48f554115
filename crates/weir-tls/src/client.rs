//! TLS towards the backends of one pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use weir_config::{CipherPolicy, PoolProtocol, PoolTls, Verify};

use crate::certificate::Facts;
use crate::dated::{DatedSessions, DatingServerVerifier};
use crate::files::{self, LoadError};
use crate::revocations::{ListFacts, Revocations};
use crate::{provider, server};

/// Where systems keep the public authorities; the first file that exists is used.
const SYSTEM_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Sessions to remember for each backend.
const SESSIONS: usize = 64;

/// TLS settings for a pool's backends.
#[derive(Debug)]
pub struct ClientTls {
    base: ClientConfig,
    /// The certificate verifier; `None` if every certificate is accepted at any time.
    verifier: Option<Arc<dyn ServerCertVerifier>>,
    revocations: Revocations,
    server_name: Option<String>,
    /// The pool's protocol.
    protocol: PoolProtocol,
    /// A digest of everything that was read.
    digest: [u8; 32],
}

/// TLS settings for one backend. It has its own sessions, as another backend could not resume them.
#[derive(Clone, Debug)]
pub struct BackendTls {
    /// The config, with a session cache shared by all workers.
    pub config: Arc<ClientConfig>,
    /// As `config`, for probes, which use HTTP/1.1 whatever the pool's protocol is.
    pub for_http1: Arc<ClientConfig>,
    /// As `config`, but lets the backend choose HTTP/2 or HTTP/1.1; `None` if the pool's config fixes the
    /// protocol.
    pub for_either: Option<Arc<ClientConfig>>,
    /// As `config`, for HTTP/3; `None` if the pool does not use it.
    pub for_h3: Option<Arc<ClientConfig>>,
    /// The name that the backend must prove.
    pub name: ServerName<'static>,
    digest: [u8; 32],
}

impl BackendTls {
    /// Whether both use the same keys, trust the same authorities and expect the same name.
    pub fn is_same(&self, other: &BackendTls) -> bool {
        self.digest == other.digest && self.name == other.name
    }

    /// Checks the ALPN result of a backend: it must have agreed on HTTP/2 if the pool uses that (RFC 9113
    /// section 3.2).
    ///
    /// # Errors
    /// A readable description of what the backend failed to do.
    pub fn check_agreed(&self, alpn: Option<&[u8]>) -> Result<(), &'static str> {
        match self.config.alpn_protocols == [b"h2"] && alpn != Some(b"h2") {
            true => Err("it does not agree to HTTP/2 (ALPN)"),
            false => Ok(()),
        }
    }
}

impl ClientTls {
    /// Reads everything that `config` names.
    ///
    /// # Errors
    /// A file that can't be used.
    pub fn load(config: &PoolTls, protocol: PoolProtocol) -> Result<ClientTls, LoadError> {
        let provider = provider::of(CipherPolicy::Default);
        let mut digest = digest::Context::new(&digest::SHA256);
        digest.update(&[config.verify as u8, protocol as u8]);
        let mut revocations = Revocations::default();
        let verifier: Option<Arc<dyn ServerCertVerifier>> = if config.verify != Verify::Nobody {
            let (file, authorities) = authorities(config.ca.as_deref())?;
            authorities.iter().for_each(|each| digest.update(each));
            revocations = Revocations::load(&config.crl, &authorities)?;
            let roots = match &config.ca {
                Some(file) => server::roots(file, &authorities)?,
                None => {
                    let mut roots = RootCertStore::empty();
                    roots.add_parsable_certificates(authorities);
                    roots
                }
            };
            let roots = Arc::new(roots);
            revocations.lists.iter().for_each(|each| digest.update(each));
            let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
                .with_crls(revocations.lists.clone())
                .enforce_revocation_expiration()
                .build()
                .map_err(|error| LoadError::new(&file, error.to_string()))?;
            match config.verify {
                Verify::Authority => Some(Arc::new(AnyName { roots, provider: provider.clone() })),
                Verify::Name | Verify::Nobody => Some(verifier),
            }
        } else {
            None
        };
        let file = config.cert.as_deref().unwrap_or(Path::new("tls"));
        let broken = |error: Error| LoadError::new(file, error.to_string());
        let asked = verifier.clone().unwrap_or_else(|| Arc::new(AnyCertificate(provider.clone())));
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(broken)?
            .dangerous()
            .with_custom_certificate_verifier(asked);
        let mut base = match config.client() {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let (chain, secret) = (files::certificates(cert)?, files::private_key(key)?);
                chain.iter().for_each(|each| digest.update(each));
                digest.update(secret.secret_der());
                builder.with_client_auth_cert(chain, secret).map_err(|error| {
                    LoadError::new(key, format!("does not go with {}: {error}", cert.display()))
                })?
            }
        };
        base.alpn_protocols = match protocol {
            PoolProtocol::H2 => vec![b"h2".to_vec()],
            PoolProtocol::H1 | PoolProtocol::Auto | PoolProtocol::H3 => vec![b"http/1.1".to_vec()],
        };
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.finish().as_ref());
        let server_name = config.server_name.clone();
        Ok(ClientTls { base, verifier, revocations, server_name, protocol, digest: bytes })
    }

    /// Reads everything that `config` names, as [`Self::load`] does, and checks the names of backends.
    /// Returns the revocation lists and facts about the client certificate; `Err` has all errors.
    pub(crate) fn look(
        config: &PoolTls,
        addresses: &[&str],
    ) -> Result<(Vec<ListFacts>, Option<Facts>), Vec<LoadError>> {
        let mut errors = Vec::new();
        if config.verify != Verify::Nobody {
            errors.extend(authorities(config.ca.as_deref()).err());
            errors.extend(config.crl.iter().filter_map(|file| files::revocations(file).err()));
        }
        let mut own = None;
        if let Some((cert, key)) = config.client() {
            errors.extend(files::private_key(key).err());
            match files::certificates(cert) {
                Ok(chain) => own = chain.first().map(|first| Facts::of_dates(cert, first)),
                Err(error) => errors.push(error),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        // The protocol makes no difference to any file.
        let tls = ClientTls::load(config, PoolProtocol::H1).map_err(|error| vec![error])?;
        let nameless: Vec<_> = addresses.iter().filter_map(|address| tls.name_of(address).err()).collect();
        if nameless.is_empty() { Ok((tls.revocations.facts, own)) } else { Err(nameless) }
    }

    /// The revocation lists used for backends.
    pub fn revocations(&self) -> &[ListFacts] {
        &self.revocations.facts
    }

    /// The same without ALPN, for connections whose protocol Weir does not handle.
    pub fn without_alpn(mut self) -> ClientTls {
        self.base.alpn_protocols.clear();
        self.digest[0] ^= 1;
        self
    }

    /// Whether both use the same keys, trust the same authorities and expect the same names.
    pub fn is_same(&self, other: &ClientTls) -> bool {
        self.digest == other.digest && self.server_name == other.server_name
    }

    /// The name that the backend at `address`, a host and port as configured, must prove.
    ///
    /// # Errors
    /// Its host is not a valid server name.
    pub fn name_of(&self, address: &str) -> Result<ServerName<'static>, LoadError> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        // A service must prove the name that it is looked up by; the targets in its SRV records could be
        // anyone.
        let host =
            if weir_config::is_service(host) { host.splitn(3, '.').last().unwrap_or(host) } else { host };
        ServerName::try_from(self.server_name.as_deref().unwrap_or(host).to_owned()).map_err(|_| {
            let reason =
                "its host can't be asked for as a server name; expected `server_name` in the pool's `tls`";
            LoadError::new(Path::new(address), reason)
        })
    }

    /// Settings for the backend at `address`. `before` is reused, with its sessions, if nothing has changed.
    ///
    /// # Errors
    /// As [`Self::name_of`].
    pub fn for_backend(&self, address: &str, before: Option<&BackendTls>) -> Result<BackendTls, LoadError> {
        let name = self.name_of(address)?;
        if let Some(before) = before.filter(|before| before.digest == self.digest && before.name == name) {
            return Ok(before.clone());
        }
        let mut config = self.base.clone();
        self.remember_sessions(&mut config);
        let mut http1 = config.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        let offering = |protocols: &[&[u8]]| {
            let mut offering = config.clone();
            offering.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(offering)
        };
        let for_either = self.protocol.lets_pick().then(|| offering(&[b"h2", b"http/1.1"]));
        // A session over TCP can't be resumed over QUIC, which has parameters of its own.
        let for_h3 = (self.protocol == PoolProtocol::H3).then(|| {
            let mut h3 = ClientConfig::clone(&offering(&[b"h3"]));
            self.remember_sessions(&mut h3);
            Arc::new(h3)
        });
        let (config, for_http1) = (Arc::new(config), Arc::new(http1));
        Ok(BackendTls { config, for_http1, for_either, for_h3, name, digest: self.digest })
    }

    /// Enables session resumption, at most for as long as the certificate of the original session is valid.
    fn remember_sessions(&self, config: &mut ClientConfig) {
        let Some(verifier) = &self.verifier else {
            config.resumption = Resumption::in_memory_sessions(SESSIONS);
            return;
        };
        let sessions = DatedSessions::new(SESSIONS);
        let (verifier, lists_end) = (verifier.clone(), self.revocations.end());
        config.resumption = Resumption::store(sessions.clone());
        let verifier = DatingServerVerifier { verifier, lists_end, sessions };
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
    }
}

/// The configured authorities file, or the system's; `None` when there is none.
pub(crate) fn authorities_file(configured: Option<&Path>) -> Option<PathBuf> {
    let said = || std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let found = || SYSTEM_FILES.iter().map(PathBuf::from).find(|file| file.exists());
    configured.map(Path::to_owned).or_else(said).or_else(found)
}

/// The configured authorities, or the system's.
fn authorities(configured: Option<&Path>) -> Result<(PathBuf, Vec<CertificateDer<'static>>), LoadError> {
    let file = authorities_file(configured).ok_or_else(|| {
        LoadError::new(Path::new(SYSTEM_FILES[0]), "is not there; expected `ca` or the system's authorities")
    })?;
    let found = files::certificates(&file)?;
    Ok((file, found))
}

/// Accepts a certificate for any name if a trusted authority issued it: for `verify = "ca"`. The certificates
/// that a MySQL server generates at its first start contain no host name (MySQL 8.4 Reference Manual section
/// 8.3.3.1).
#[derive(Debug)]
struct AnyName {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts any certificate: for `verify = false`. Handshake signatures must still be made with its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    /// An authority, and a certificate of it that names nobody.
    fn nameless() -> (CertificateDer<'static>, CertificateDer<'static>) {
        let (root_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut root = CertificateParams::default();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = root.self_signed(&root_key).unwrap().der().clone();
        let issuer = Issuer::new(root, root_key);
        let certificate = CertificateParams::default().signed_by(&key, &issuer).unwrap();
        (authority, certificate.der().clone())
    }

    #[test]
    fn a_certificate_that_names_nobody_is_taken_for_its_authority_and_for_no_other() {
        let (authority, certificate) = nameless();
        let (stranger, _) = nameless();
        let name = ServerName::try_from("db.example").unwrap();
        let check = |root: &CertificateDer<'static>| {
            let mut roots = RootCertStore::empty();
            roots.add(root.clone()).unwrap();
            let any_name = AnyName { roots: Arc::new(roots), provider: provider::of(CipherPolicy::Default) };
            any_name.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now())
        };
        check(&authority).unwrap();
        assert!(check(&stranger).is_err());
    }
}
