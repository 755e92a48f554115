//! How Weirs with a common secret know each other.
//!
//! An Ed25519 key is derived from the secret, and both sides of a TLS 1.3 connection prove that they have
//! it, by raw public keys (RFC 7250): there is no certificate that could expire. Who lacks the secret can
//! neither be a client nor a server, and recorded traffic stays unreadable if the secret leaks later.
//!
//! Or both sides show certificates of an authority ([`certified`]); then the secret is for digests alone.

mod certified;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::hmac;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use weir_config::{CipherPolicy, Peers, PeersTls};

use self::certified::Certified;
use crate::certificate::Facts;
use crate::files::{self, LoadError};
use crate::provider;
use crate::revocations::ListFacts;

/// Separate the uses of a secret.
const FOR_KEY: &[u8] = b"weir peers, Ed25519 key 1";
const FOR_SEED: &[u8] = b"weir peers, seed of limits 1";
/// The protocol that both sides must speak.
const ALPN: &[u8] = b"weir-peers/1";
/// What precedes an Ed25519 key in PKCS #8 (RFC 8410 section 7).
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// What Weirs with the same secret have in common.
pub struct PeerKeys {
    /// The seed of the limits that they share.
    pub seed: [u64; 2],
    /// For connections from others.
    pub server: Arc<ServerConfig>,
    /// For connections to others.
    pub client: Arc<ClientConfig>,
    /// Distinguishes whom certificates are believed of, so that connections are made anew when that changes;
    /// zeros without certificates.
    pub trust: [u8; 32],
    /// Facts about the certificate that this Weir shows; `None` without certificates.
    pub own: Option<Facts>,
    /// The lists of certificates that are believed no more.
    pub lists: Vec<ListFacts>,
}

impl PeerKeys {
    /// Reads everything that `config` names.
    ///
    /// # Errors
    /// A file that can't be used.
    pub fn load(config: &Peers) -> Result<PeerKeys, LoadError> {
        let derived = PeerKeys::of_secret(&config.secret_file)?;
        match &config.tls {
            None => Ok(derived),
            Some(tls) => {
                let Certified { server, client, trust, own, lists } = certified::load(tls)?;
                Ok(PeerKeys { seed: derived.seed, server, client, trust, own: Some(own), lists })
            }
        }
    }

    /// Reads the certificates that `config` names, as [`Self::load`] does. The facts are about this Weir's
    /// own certificate and the revocation lists; `Err` has all errors.
    pub(crate) fn look(config: &PeersTls) -> Result<(Facts, Vec<ListFacts>), Vec<LoadError>> {
        let read = [files::certificates(&config.cert).err(), files::certificates(&config.ca).err()];
        let key = files::private_key(&config.key).err();
        let lists = config.crl.iter().filter_map(|file| files::revocations(file).err());
        let errors: Vec<LoadError> = read.into_iter().flatten().chain(key).chain(lists).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        certified::load(config).map(|certified| (certified.own, certified.lists)).map_err(|error| vec![error])
    }

    /// Derives them from a file's content, without surrounding whitespace.
    ///
    /// # Errors
    /// The file can't be read, may be read by others, or its content is too short.
    pub(crate) fn of_secret(file: &Path) -> Result<PeerKeys, LoadError> {
        files::refuse_if_others_may_read(file)?;
        let unusable = |error: Error| LoadError::new(file, format!("gives no key that can be used: {error}"));
        PeerKeys::of(&files::secret(file)?).map_err(unusable)
    }

    fn of(secret: &[u8]) -> Result<PeerKeys, Error> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = |purpose: &[u8]| hmac::sign(&secret, purpose);
        let provider = provider::of(CipherPolicy::Default);
        let key = [&PKCS8[..], derived(FOR_KEY).as_ref()].concat();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
        let key = provider.key_provider.load_private_key(key)?;
        let public =
            key.public_key().ok_or_else(|| Error::General("the key has no public part".to_owned()))?;
        let public = CertificateDer::from(public.to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![public.clone()], key));
        let same = Arc::new(SameKey { public, provider: provider.clone() });
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(same.clone())
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified.clone())));
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(same)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let seed = derived(FOR_SEED);
        let (words, _) = seed.as_ref().as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_be_bytes(*word));
        let (seed, trust) = ([word(0), word(1)], [0; 32]);
        let (server, client) = (Arc::new(server), Arc::new(client));
        Ok(PeerKeys { seed, server, client, trust, own: None, lists: Vec::new() })
    }
}

impl fmt::Debug for PeerKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the keys of peers")
    }
}

/// Accepts who proves to have our own key.
#[derive(Debug)]
struct SameKey {
    public: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl SameKey {
    fn compare(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match shown.as_ref() == self.public.as_ref() {
            true => Ok(()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }
}

/// TLS 1.2 is not spoken.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("expected TLS 1.3".to_owned()))
}

impl ServerCertVerifier for SameKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.compare(shown).map(|()| ServerCertVerified::assertion())
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
        self.verify(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for SameKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.compare(shown).map(|()| ClientCertVerified::assertion())
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
        self.verify(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    fn keys(secret: &str) -> PeerKeys {
        PeerKeys::of(secret.as_bytes()).unwrap()
    }

    /// What either side says in the end about a handshake between two Weirs.
    fn meet(client: &PeerKeys, server: &PeerKeys) -> [Result<(), Error>; 2] {
        let name = ServerName::try_from("weir.invalid").unwrap();
        let mut client = ClientConnection::new(client.client.clone(), name).unwrap();
        let mut server = ServerConnection::new(server.server.clone()).unwrap();
        let mut found = [Ok(()), Ok(())];
        for _ in 0..9 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            server.read_tls(&mut &bytes[..]).unwrap();
            found[1] = found[1].clone().and_then(|()| server.process_new_packets().map(drop));
            bytes.clear();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            client.read_tls(&mut &bytes[..]).unwrap();
            found[0] = found[0].clone().and_then(|()| client.process_new_packets().map(drop));
        }
        if found == [Ok(()), Ok(())] {
            assert_eq!(server.alpn_protocol(), Some(ALPN));
            client.writer().write_all(b"counts").unwrap();
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().unwrap();
            let mut said = [0; 6];
            server.reader().read_exact(&mut said).unwrap();
            assert_eq!(&said, b"counts");
        }
        found
    }

    /// Threat D70.
    #[test]
    fn d70_weirs_with_the_same_secret_know_each_other_and_nobody_else() {
        let (ours, same, other) =
            (keys("a secret of ours"), keys("a secret of ours"), keys("another secret!!"));
        assert_eq!(meet(&ours, &same), [Ok(()), Ok(())]);
        assert_eq!((ours.seed == same.seed, ours.seed == other.seed), (true, false));
        assert!(meet(&ours, &other)[0].is_err(), "no server without the secret is told anything");
        // A client that is content with any server.
        let eager = ClientConfig::builder_with_provider(provider::of(CipherPolicy::Default))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(SameKey {
                public: ours.public(),
                provider: provider::of(CipherPolicy::Default),
            }));
        let mut without = eager.clone().with_no_client_auth();
        without.alpn_protocols = vec![ALPN.to_vec()];
        let without = PeerKeys { client: Arc::new(without), ..keys("another secret!!") };
        assert!(meet(&without, &ours)[1].is_err(), "no client without a key");
        let mut with_another =
            eager.with_client_cert_resolver(other.client.client_auth_cert_resolver.clone());
        with_another.alpn_protocols = vec![ALPN.to_vec()];
        let with_another = PeerKeys { client: Arc::new(with_another), ..keys("another secret!!") };
        assert!(meet(&with_another, &ours)[1].is_err(), "no client with another key");
    }

    impl PeerKeys {
        fn public(&self) -> CertificateDer<'static> {
            let resolver = &self.client.client_auth_cert_resolver;
            resolver.resolve(&[], &[SignatureScheme::ED25519]).unwrap().cert[0].clone()
        }
    }

    #[test]
    fn a_secret_that_others_may_read_or_that_is_short_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let file = std::env::temp_dir().join(format!("weir-peers-{}", std::process::id()));
        for (content, mode, expected) in [
            ("0123456789abcdef\n", 0o600, None),
            ("0123456789abcde\n", 0o600, Some("holds a secret of 15 bytes")),
            ("0123456789abcdef\n", 0o644, Some("may be read by others")),
        ] {
            std::fs::write(&file, content).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            match (PeerKeys::of_secret(&file), expected) {
                (Ok(_), None) => {}
                (Err(error), Some(expected)) => assert!(error.reason.contains(expected), "{error}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
        std::fs::remove_file(&file).unwrap();
    }
}
