//! TLS configurations for both sides.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::dialogue::Authority;

/// A client that trusts `authority` and offers one protocol.
pub fn of_client(authority: &Authority, protocol: &[u8]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(authority.path("ca.pem")).expect("a certificate");
    roots.add(root).expect("a root");
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config
}

/// A server with the certificate NAME.pem of `authority` that speaks one protocol.
pub fn of_server(authority: &Authority, name: &str, protocol: &[u8]) -> ServerConfig {
    let chain = CertificateDer::from_pem_file(authority.path(&format!("{name}.pem"))).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(authority.path(&format!("{name}.key"))).expect("a key");
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .expect("a certificate and its key");
    config.alpn_protocols = vec![protocol.to_vec()];
    config
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
