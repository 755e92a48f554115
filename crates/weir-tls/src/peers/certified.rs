//! Weirs that know each other by certificates of an authority (`[peers.tls]`).
//!
//! Both sides show one, which must come from the authority and be for the name that all Weirs have among
//! theirs. Under which address a Weir is reached does not matter: it is known by a number of its own.

use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};
use weir_config::{CipherPolicy, PeersTls};

use super::{ALPN, no_tls12};
use crate::certificate::Facts;
use crate::files::{self, LoadError};
use crate::revocations::{ListFacts, Revocations};
use crate::{provider, server};

/// What certificates give; as in [`PeerKeys`](super::PeerKeys).
pub(super) struct Certified {
    pub server: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
    pub trust: [u8; 32],
    /// Facts about this Weir's own certificate.
    pub own: Facts,
    /// The revocation lists.
    pub lists: Vec<ListFacts>,
}

/// Reads everything that `config` names.
///
/// # Errors
/// A file that can't be used.
pub(super) fn load(config: &PeersTls) -> Result<Certified, LoadError> {
    let provider = provider::of(CipherPolicy::Default);
    let authorities = files::certificates(&config.ca)?;
    let revoked = Revocations::load(&config.crl, &authorities)?;
    let roots = Arc::new(server::roots(&config.ca, &authorities)?);
    let unusable = |error: String| LoadError::new(config.crl.first().unwrap_or(&config.ca), error);
    let name = ServerName::try_from(config.name.clone())
        .map_err(|error| unusable(format!("`{}` is in no certificate: {error}", config.name)))?;
    let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
        .with_crls(revoked.lists.clone())
        .enforce_revocation_expiration()
        .build()
        .map_err(|error| unusable(error.to_string()))?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .with_crls(revoked.lists.clone())
        .enforce_revocation_expiration()
        .build()
        .map_err(|error| unusable(error.to_string()))?;
    let mut trust = digest::Context::new(&digest::SHA256);
    trust.update(config.name.as_bytes());
    authorities.iter().for_each(|each| trust.update(each));
    revoked.lists.iter().for_each(|each| trust.update(each));
    let chain = files::certificates(&config.cert)?;
    let key = files::private_key(&config.key)?;
    let shown = chain.first().ok_or_else(|| unusable("is empty".to_owned()))?;
    let own = Facts::of_dates(&config.cert, shown);
    ParsedCertificate::try_from(shown).and_then(|shown| verify_server_name(&shown, &name)).map_err(|_| {
        let reason = format!("is not for `{}`: no other Weir would believe it", config.name);
        LoadError::new(&config.cert, reason)
    })?;
    let same = Arc::new(SameName { name, servers, clients });
    let broken = |error: Error| LoadError::new(&config.cert, error.to_string());
    let apart = |error: Error| {
        LoadError::new(&config.key, format!("does not go with {}: {error}", config.cert.display()))
    };
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(broken)?
        .with_client_cert_verifier(same.clone())
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(apart)?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(broken)?
        .dangerous()
        .with_custom_certificate_verifier(same)
        .with_client_auth_cert(chain, key)
        .map_err(apart)?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.resumption = Resumption::disabled();
    client.enable_sni = false;
    let mut bytes = [0; 32];
    bytes.copy_from_slice(trust.finish().as_ref());
    let (server, client) = (Arc::new(server), Arc::new(client));
    Ok(Certified { server, client, trust: bytes, own, lists: revoked.facts })
}

/// Accepts whose certificate comes from the authority and is for the name of all Weirs.
#[derive(Debug)]
struct SameName {
    name: ServerName<'static>,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl ServerCertVerifier for SameName {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.servers.verify_server_cert(shown, chain, &self.name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.servers.verify_tls13_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.servers.supported_verify_schemes()
    }
}

impl ClientCertVerifier for SameName {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.clients.verify_client_cert(shown, chain, now)?;
        verify_server_name(&ParsedCertificate::try_from(shown)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.clients.verify_tls13_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}
