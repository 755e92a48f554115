//! Certificates obtained by ACME, as far as handshakes and requests are concerned: where they are stored, and
//! what proves control of a domain to an authority while it validates.

mod looks;
mod reading;
mod shared_proof;
mod turns;

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use arc_swap::ArcSwap;
use aws_lc_rs::digest;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use weir_config::{Acme, Certificate, CipherPolicy};

pub use self::looks::{BegunLook, Look};
use self::looks::{HANDSHAKES, Looks, TOKENS};
pub(crate) use self::reading::load_all;
pub use self::shared_proof::{PROOF_BYTES, SharedProof};
use self::turns::Turns;
use crate::certificate::{self, Facts};
use crate::files::LoadError;
use crate::on_demand::OnDemand;
use crate::provider;

/// The ALPN name of handshakes that prove a domain (RFC 8737 section 6.1).
pub const PROTOCOL: &[u8] = b"acme-tls/1";

/// Bytes of the digest that tells file names apart.
const DIGEST_BYTES: usize = 4;

/// The folder for everything obtained from one authority; with external account binding, for one account.
pub fn folder(acme: &Acme) -> PathBuf {
    let host = acme.directory.strip_prefix("https://").unwrap_or(&acme.directory);
    let host = host.split(['/', '?']).next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let host: String = host.chars().map(plain).collect();
    let whose: Vec<&str> = std::iter::once(acme.directory.as_str()).chain(acme.external_key_id()).collect();
    acme.store.join(format!("{host}-{}", short_digest(&whose)))
}

/// The file with the certificate's chain and its key, both PEM: a single file, so that it is never there with
/// only one of them.
pub fn file(acme: &Acme) -> PathBuf {
    let mut domains: Vec<&str> = acme.domains.iter().map(String::as_str).collect();
    domains.sort_unstable();
    let first = domains.first().copied().unwrap_or_default();
    // A domain name has at most 253 bytes, and a file name 255.
    let first = &first[..first.len().min(200)];
    // A star in a file name would be a pattern to a shell.
    let first = first.replace('*', "_");
    folder(acme).join(format!("{first}-{}.pem", short_digest(&domains)))
}

/// Reads the certificate in [`file`].
///
/// # Errors
/// It does not exist, or can't be used.
pub fn stored(acme: &Acme) -> Result<Facts, LoadError> {
    load(&file(acme), &provider::of(CipherPolicy::Default)).map(|loaded| loaded.facts)
}

/// Facts about a chain with its key, both PEM, that is not stored yet.
///
/// # Errors
/// The reason why it can't be used.
pub fn look(pem: &str) -> Result<Facts, String> {
    let loaded = read(Path::new(""), pem, &provider::of(CipherPolicy::Default));
    loaded.map(|loaded| loaded.facts).map_err(|error| error.reason)
}

/// Reads a PEM chain with its key that is meant for `file`.
pub(crate) fn read(
    file: &Path,
    pem: &str,
    provider: &rustls::crypto::CryptoProvider,
) -> Result<certificate::Loaded, LoadError> {
    let refuse = |error: rustls::pki_types::pem::Error| LoadError::new(file, error.to_string());
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(refuse)?;
    let both = Certificate { cert: file.to_owned(), key: file.to_owned(), ocsp: None };
    certificate::join(&both, chain.map_err(refuse)?, key, provider)
}

/// Reads a file with a chain and a key.
pub(crate) fn load(
    file: &Path,
    provider: &rustls::crypto::CryptoProvider,
) -> Result<certificate::Loaded, LoadError> {
    let both = Certificate { cert: file.to_owned(), key: file.to_owned(), ocsp: None };
    certificate::load(&both, provider)
}

fn short_digest(words: &[&str]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for word in words {
        context.update(word.as_bytes());
        context.update(&[0]);
    }
    context.finish().as_ref()[..DIGEST_BYTES].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Proofs for the challenges of authorities. One for the process, shared by its listeners; empty nearly
/// always.
#[derive(Default)]
pub struct Challenges {
    /// The answer for each token, which is the last part of the requested path (RFC 8555 section 8.3).
    tokens: Shelf<Arc<str>>,
    /// The certificate to present in the handshake, by domain (RFC 8737), and which order's turn it is.
    certificates: Arc<Shelf<Arc<CertifiedKey>>>,
    turns: Turns,
    /// Proofs of other Weirs that share a store with this one, as far as they were looked up.
    found: Found,
    looks: Looks,
    /// The config for such handshakes: without client certificates and resumption.
    config: OnceLock<Arc<ServerConfig>>,
    /// What listeners and reloads share for each `acme` with `on_demand`, as long as one of them uses it.
    on_demand: Mutex<Vec<Weak<OnDemand>>>,
}

/// Proofs of other Weirs.
#[derive(Default)]
struct Found {
    tokens: Shelf<Arc<str>>,
    certificates: Arc<Shelf<FoundProof>>,
}

/// A proof of another Weir, turned into a certificate here.
#[derive(Clone)]
struct FoundProof {
    digest: [u8; 32],
    shown: Arc<CertifiedKey>,
}

/// Items that exist for a while, read by many threads.
struct Shelf<T> {
    things: ArcSwap<HashMap<String, T>>,
    /// Whether there are any; written by the thread that holds `changing`.
    is_used: AtomicBool,
    changing: Mutex<()>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Shelf<T> {
        Shelf { things: ArcSwap::default(), is_used: AtomicBool::new(false), changing: Mutex::default() }
    }
}

impl<T: Clone> Shelf<T> {
    fn change(&self, change: impl FnOnce(&mut HashMap<String, T>)) {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut things = HashMap::clone(&self.things.load());
        change(&mut things);
        let is_used = !things.is_empty();
        self.things.store(Arc::new(things));
        self.is_used.store(is_used, Ordering::Release);
    }

    fn find(&self, name: &str) -> Option<T> {
        self.things.load().get(name).cloned()
    }
}

/// Keeps the proof for a challenge available until it is dropped.
#[must_use = "the challenge can be met for as long as this is kept"]
pub struct Offer {
    challenges: Arc<Challenges>,
    what: What,
}

enum What {
    Token(String),
    Domain(String, Arc<CertifiedKey>),
}

/// The turn of one order to prove its domains by handshakes, among those that have a domain in common with
/// it. It ends when this is dropped.
#[must_use = "the turn ends with it"]
pub struct Turn {
    challenges: Arc<Challenges>,
    domains: Vec<String>,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.challenges.turns.end(self.number, &self.domains);
    }
}

impl Challenges {
    /// The answer to a request for this token; `None` for a token that no authority was given. Takes no lock.
    pub fn answer(&self, token: &str) -> Option<Arc<str>> {
        self.tokens.find(token).or_else(|| self.found.tokens.find(token))
    }

    /// Whether a request for this token may be for another Weir's order: then wait for [`Self::look`].
    pub fn may_be_shared(&self, token: &str) -> bool {
        self.looks.is_open_for(TOKENS) && shared_proof::is_token(token) && self.answer(token).is_none()
    }

    /// Whether handshake proofs of other Weirs are looked up. Costs one load.
    #[inline]
    pub fn shares_handshakes(&self) -> bool {
        self.looks.is_open_for(HANDSHAKES)
    }

    /// Whether a handshake for a challenge of this domain may be for another Weir's order: then wait for
    /// [`Self::look`].
    pub fn may_be_shared_handshake(&self, domain: &str) -> bool {
        let is_known =
            || self.certificates.find(domain).is_some() || self.found.certificates.find(domain).is_some();
        self.shares_handshakes() && !is_known()
    }

    /// Looks up the proofs of other Weirs in the stores. Concurrent callers share one look-up.
    pub fn look(&self) -> Look<'_> {
        self.looks.ask()
    }

    /// Sets what is looked up from now on.
    pub fn look_for(&self, tokens: bool, handshakes: bool) {
        let mask = |is_open, what| if is_open { what } else { 0 };
        self.looks.open_for(mask(tokens, TOKENS) | mask(handshakes, HANDSHAKES));
        if !tokens && !handshakes {
            self.take_found(Vec::new());
        }
    }

    /// Waits until a worker asks for a look-up.
    pub async fn asked(&self) -> BegunLook<'_> {
        self.looks.asked().await
    }

    /// Replaces the proofs found earlier by those found now in the stores. If there are two for one domain,
    /// the later one counts. Generates a key for each new handshake proof, so do not call it on a worker
    /// thread. Returns whether anything was found.
    pub fn take_found(&self, proofs: Vec<SharedProof>) -> bool {
        let (mut tokens, mut certificates) = (HashMap::new(), HashMap::new());
        for proof in proofs {
            match proof {
                SharedProof::Token { token, authorization } => {
                    tokens.insert(token, Arc::from(authorization));
                }
                SharedProof::Handshake { domain, digest } => {
                    let known = self.found.certificates.find(&domain).filter(|known| known.digest == digest);
                    let shown = known.map_or_else(|| proof_with_config(self, &domain, &digest), Ok);
                    // A certificate that can't be generated is left out; the authority will report what was
                    // missing.
                    if let Ok(shown) = shown {
                        certificates.insert(domain, shown);
                    }
                }
            }
        }
        let is_any = !tokens.is_empty() || !certificates.is_empty();
        self.found.tokens.change(|all| *all = tokens);
        self.found.certificates.change(|all| *all = certificates);
        is_any
    }

    /// The config for a challenge's handshake; `None` while no such handshake is expected. Costs one load.
    #[inline]
    pub fn stream_config(&self) -> Option<&Arc<ServerConfig>> {
        let is_used = self.certificates.is_used.load(Ordering::Acquire)
            || self.found.certificates.is_used.load(Ordering::Acquire);
        if is_used { self.config.get() } else { None }
    }

    /// What the process shares for this `acme`; `None` without `on_demand`.
    pub fn on_demand(&self, acme: &Acme) -> Option<Arc<OnDemand>> {
        acme.on_demand.as_ref()?;
        let mut all = self.on_demand.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|each| each.strong_count() > 0);
        if let Some(own) = all.iter().filter_map(Weak::upgrade).find(|each| each.acme() == acme) {
            return Some(own);
        }
        let new = Arc::new(OnDemand::new(acme)?);
        all.push(Arc::downgrade(&new));
        Some(new)
    }

    /// Answers requests for `token` with `authorization`, on every listener for HTTP without TLS.
    pub fn offer_token(self: &Arc<Challenges>, token: &str, authorization: &str) -> Offer {
        self.tokens.change(|tokens| {
            tokens.insert(token.to_owned(), authorization.into());
        });
        Offer { challenges: self.clone(), what: What::Token(token.to_owned()) }
    }

    /// Waits until all earlier orders that also have one of `domains` have ended their turns.
    pub async fn turn(self: &Arc<Challenges>, domains: &[String]) -> Turn {
        let number = self.turns.begin(domains);
        let turn = Turn { challenges: self.clone(), domains: domains.to_vec(), number };
        self.turns.come(number, domains).await;
        turn
    }

    /// Presents a certificate with `digest` in handshakes of [`PROTOCOL`] for `domain`, on every listener
    /// with TLS. It replaces one that another order has offered: see [`Challenges::turn`].
    ///
    /// # Errors
    /// The reason why the certificate can't be generated.
    pub fn offer_handshake(self: &Arc<Challenges>, domain: &str, digest: &[u8; 32]) -> Result<Offer, String> {
        let shown = Arc::new(proof(domain, digest)?);
        self.make_config()?;
        self.certificates.change(|certificates| {
            certificates.insert(domain.to_owned(), shown.clone());
        });
        Ok(Offer { challenges: self.clone(), what: What::Domain(domain.to_owned(), shown) })
    }

    fn make_config(&self) -> Result<(), String> {
        if self.config.get().is_none() {
            let shown =
                ShownProofs { own: self.certificates.clone(), found: self.found.certificates.clone() };
            let config = config(Arc::new(shown)).map_err(|error| error.to_string())?;
            let _ = self.config.set(Arc::new(config));
        }
        Ok(())
    }
}

fn proof_with_config(challenges: &Challenges, domain: &str, digest: &[u8; 32]) -> Result<FoundProof, String> {
    challenges.make_config()?;
    Ok(FoundProof { digest: *digest, shown: Arc::new(proof(domain, digest)?) })
}

impl Drop for Offer {
    fn drop(&mut self) {
        match &self.what {
            What::Token(token) => self.challenges.tokens.change(|tokens| drop(tokens.remove(token))),
            What::Domain(domain, own) => self.challenges.certificates.change(|shown| {
                if shown.get(domain).is_some_and(|now| Arc::ptr_eq(now, own)) {
                    shown.remove(domain);
                }
            }),
        }
    }
}

impl fmt::Debug for Challenges {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tokens, domains) = (self.tokens.things.load().len(), self.certificates.things.load().len());
        write!(out, "{tokens} tokens and {domains} handshakes awaited")
    }
}

/// The certificate that proves a domain: self-signed, with the digest of the key authorization (RFC 8737
/// section 3).
fn proof(domain: &str, digest: &[u8; 32]) -> Result<CertifiedKey, String> {
    let made = || {
        let mut params = CertificateParams::new([domain.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = KeyPair::generate()?;
        Ok((params.self_signed(&key)?, key))
    };
    let (certificate, key) = made().map_err(|error: rcgen::Error| error.to_string())?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = provider::of(CipherPolicy::Default);
    let key = provider.key_provider.load_private_key(key).map_err(|error| error.to_string())?;
    // Not validated again: it has an extension that makes it a proof, and that no one else should trust.
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

fn config(certificates: Arc<ShownProofs>) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider::of(CipherPolicy::Default))
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Selects the proof for a handshake.
struct ShownProofs {
    own: Arc<Shelf<Arc<CertifiedKey>>>,
    found: Arc<Shelf<FoundProof>>,
}

impl ResolvesServerCert for ShownProofs {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        self.own.find(&name).or_else(|| self.found.find(&name).map(|found| found.shown))
    }
}

impl fmt::Debug for ShownProofs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} and {} domains", self.own.things.load().len(), self.found.things.load().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acme(domains: &[&str]) -> Acme {
        Acme {
            directory: "https://ca.example:14000/dir".to_owned(),
            domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
            contact: Vec::new(),
            store: PathBuf::from("/store"),
            ..Acme::default()
        }
    }

    #[test]
    fn a_certificate_has_one_place_whatever_the_order_of_its_domains() {
        let (one, other) =
            (file(&acme(&["a.example", "b.example"])), file(&acme(&["b.example", "a.example"])));
        assert_eq!(one, other);
        assert_ne!(one, file(&acme(&["a.example"])));
        let folder = folder(&acme(&["a.example"])).display().to_string();
        assert!(folder.starts_with("/store/ca.example_14000-"), "{folder}");
        assert!(file(&acme(&["*.a.example"])).display().to_string().contains("/_.a.example-"));
    }

    #[test]
    fn two_customers_of_one_authority_have_accounts_of_their_own() {
        let of = |key_id: &str| {
            let external = weir_config::ExternalAccount { key_id: key_id.to_owned(), key: String::new() };
            folder(&Acme { external_account: Some(external), ..acme(&["a.example"]) })
        };
        assert_ne!(of("one"), of("two"));
        assert_ne!(of("one"), folder(&acme(&["a.example"])));
    }

    #[test]
    fn a_challenge_can_be_met_for_as_long_as_it_is_offered() {
        let challenges = Arc::new(Challenges::default());
        assert!(challenges.answer("token").is_none() && challenges.stream_config().is_none());
        let token = challenges.offer_token("token", "token.thumb");
        let shaken = challenges.offer_handshake("shop.example", &[7; 32]).unwrap();
        assert_eq!(challenges.answer("token").as_deref(), Some("token.thumb"));
        assert!(challenges.answer("other").is_none());
        assert!(challenges.certificates.find("shop.example").is_some());
        let config = challenges.stream_config().unwrap();
        assert_eq!(config.alpn_protocols, [PROTOCOL.to_vec()]);
        drop((token, shaken));
        assert!(challenges.answer("token").is_none() && challenges.stream_config().is_none());
    }

    #[test]
    fn what_another_weir_has_to_prove_is_shown_for_as_long_as_it_is_found() {
        let challenges = Arc::new(Challenges::default());
        let token = |name: &str| SharedProof::Token {
            token: name.to_owned(),
            authorization: format!("{name}.thumb"),
        };
        let shaken =
            |digest| SharedProof::Handshake { domain: "shop.example".to_owned(), digest: [digest; 32] };
        assert!(!challenges.may_be_shared("token") && !challenges.shares_handshakes());
        challenges.look_for(true, true);
        assert!(challenges.may_be_shared("token") && challenges.may_be_shared_handshake("shop.example"));
        assert!(!challenges.may_be_shared("../token"), "it is none");
        assert!(challenges.take_found(vec![token("token"), shaken(7)]));
        assert_eq!(challenges.answer("token").as_deref(), Some("token.thumb"));
        assert!(!challenges.may_be_shared("token") && !challenges.may_be_shared_handshake("shop.example"));
        let shown = || challenges.found.certificates.find("shop.example").unwrap().shown;
        let first = shown();
        assert!(challenges.stream_config().is_some() && challenges.take_found(vec![shaken(7)]));
        assert!(Arc::ptr_eq(&first, &shown()), "no key is made for what is known");
        assert!(challenges.answer("token").is_none());
        assert!(challenges.take_found(vec![shaken(7), shaken(8)]) && !Arc::ptr_eq(&first, &shown()));
        assert!(!challenges.take_found(Vec::new()) && challenges.stream_config().is_none());
    }

    #[test]
    fn what_ends_takes_no_proof_away_that_another_order_has_offered() {
        let challenges = Arc::new(Challenges::default());
        let offer = |digest| challenges.offer_handshake("shop.example", &[digest; 32]).unwrap();
        let first = offer(7);
        let second = offer(8);
        drop(first);
        assert!(challenges.certificates.find("shop.example").is_some());
        drop(second);
        assert!(challenges.stream_config().is_none());
    }

    #[test]
    fn the_proof_of_a_domain_has_its_name_and_the_digest_and_nothing_else() {
        let shown = proof("shop.example", &[7; 32]).unwrap();
        let Err(parsed) = webpki::EndEntityCert::try_from(&shown.cert[0]) else { panic!("it is believed") };
        // Critical, and known to nobody but those who ask for it: it can't be mistaken for a certificate of
        // the domain.
        assert_eq!(parsed, webpki::Error::UnsupportedCriticalExtension);
        let der = shown.cert[0].as_ref();
        let digest = [&[0x04, 0x22, 0x04, 0x20][..], &[7; 32]].concat();
        assert!(der.windows(digest.len()).any(|window| window == digest));
        assert!(der.windows(12).any(|window| window == b"shop.example"));
    }
}
