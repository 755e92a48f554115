//! The cryptography: which algorithms of aws-lc are used, and a warm-up for their first use, which is slow.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{SignatureScheme, SupportedCipherSuite};
use weir_config::CipherPolicy;

use crate::server::ServerTls;

/// Every suite has forward secrecy and authenticated encryption; rustls has no others.
static STRONG: &[SupportedCipherSuite] = &[
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

static NIST: &[SupportedCipherSuite] = &[
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

/// The hybrid with ML-KEM comes first: what is recorded today must not be readable with future quantum
/// computers.
static GROUPS: &[&dyn SupportedKxGroup] =
    &[kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1];

static NIST_GROUPS: &[&dyn SupportedKxGroup] = &[kx_group::SECP256R1, kx_group::SECP384R1];

/// The algorithms of a policy.
pub(crate) fn of(policy: CipherPolicy) -> Arc<CryptoProvider> {
    let (suites, groups) = match policy {
        CipherPolicy::Default => (aws_lc_rs::DEFAULT_CIPHER_SUITES, GROUPS),
        CipherPolicy::Strong => (STRONG, GROUPS),
        CipherPolicy::Nist => (NIST, NIST_GROUPS),
    };
    Arc::new(CryptoProvider {
        cipher_suites: suites.to_vec(),
        kx_groups: groups.to_vec(),
        ..aws_lc_rs::default_provider()
    })
}

/// Runs everything once that a handshake uses: the first use in a thread takes tens of milliseconds, which a
/// client would otherwise mistake for the round-trip time of its connection.
pub fn warm_up(server: &ServerTls) {
    let config = server.stream_config();
    let provider = config.crypto_provider();
    for group in &provider.kx_groups {
        let Ok(ours) = group.start() else { continue };
        let public = ours.pub_key().to_vec();
        let _ = group.start_and_complete(&public);
        drop(ours);
    }
    let schemes = [
        SignatureScheme::ECDSA_NISTP256_SHA256,
        SignatureScheme::ECDSA_NISTP384_SHA384,
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::ED25519,
    ];
    for key in server.keys() {
        if let Some(signer) = key.key.choose_scheme(&schemes) {
            let _ = signer.sign(b"warm");
        }
    }
    let tickets = &config.ticketer;
    if tickets.enabled()
        && let Some(ticket) = tickets.encrypt(b"warm")
    {
        let _ = tickets.decrypt(&ticket);
    }
}
