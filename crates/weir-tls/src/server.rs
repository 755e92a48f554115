//! TLS towards the clients of one listener.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use weir_config::{
    AdminTls, Certificate, ClientAuth, HttpLimits, HttpVersion, Listener, ListenerTls, TlsVersion,
};

use crate::acme::{self, Challenges};
use crate::certificate::{self, Facts, Loaded};
use crate::dated::{Bound, DatedTickets, DatingClientVerifier};
use crate::files::{self, LoadError};
use crate::folder;
use crate::on_demand::{OnDemand, Waiting};
use crate::provider;
use crate::resolver::{Resolver, ShownCertificates, WithoutWaiting};
use crate::revocations::{ListFacts, Revocations};
use crate::sessions::{BoundSessions, NoTickets};
use crate::shared_tickets::SharedKeys;
use crate::tickets::{BoundTickets, Source, TicketKeys};

/// ALPN names (IANA, TLS ALPN protocol IDs).
const HTTP_1_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";
const HTTP_3: &[u8] = b"h3";

/// Supported versions, newest first.
static VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// Tickets sent after a full handshake. Each should be used only once (RFC 8446 appendix C.4), and browsers
/// open several connections.
const TICKET_COUNT: usize = 2;

/// Most bytes of early data over TCP that are skipped before the handshake continues (RFC 8446 §4.2.10),
/// including record headers. Clients send it if they have a ticket of another server for the same name;
/// OpenSSL and BoringSSL allow up to 16 KiB of content.
const EARLY_DATA_SKIPPED_BYTES: u32 = 32 << 10;

/// TLS settings of a listener. Each reload makes new ones; connections keep those that they began with.
#[derive(Debug)]
pub struct ServerTls {
    stream: Arc<ServerConfig>,
    /// Set if clients are asked for certificates and get tickets: makes a config for each connection.
    dated: Option<Dated>,
    quic: Option<Arc<ServerConfig>>,
    resolver: Arc<Resolver>,
    later: Later,
    shared_keys: Option<Arc<SharedKeys>>,
    clients: Option<[u8; 32]>,
    revocations: Vec<ListFacts>,
}

/// Certificates that are added, replaced and removed while the listener runs. They come after those that the
/// config names: first those obtained by ACME, as far as they exist, then those in a folder.
#[derive(Debug)]
struct Later {
    /// Files for ACME certificates, in the order of the config.
    ordered: Vec<PathBuf>,
    folder: Option<PathBuf>,
    provider: Arc<CryptoProvider>,
    /// How many certificates the config names.
    before: usize,
    /// Held while the served certificates are being replaced.
    replacing: Mutex<()>,
}

impl Later {
    /// Reads the certificates that the config names, and those that exist after them.
    fn all(&self, named: &[Certificate]) -> Result<Vec<Loaded>, LoadError> {
        let provider = &self.provider;
        let mut all: Vec<Loaded> =
            named.iter().map(|each| certificate::load(each, provider)).collect::<Result<_, _>>()?;
        // An ACME certificate that is missing or unusable will be ordered; the others are served meanwhile.
        all.extend(acme::load_all(&self.ordered, provider)?);
        if let Some(folder) = &self.folder {
            all.extend(folder::load(folder, provider)?);
        }
        Ok(all)
    }
}

impl ServerTls {
    /// Reads everything that `config`, the `tls` of `listener`, names. Tickets are bound to the listener's
    /// name; `challenges` is the ACME state of the process.
    ///
    /// # Errors
    /// A file can't be used.
    pub fn load(
        listener: &Listener,
        config: &ListenerTls,
        tickets: &Arc<TicketKeys>,
        challenges: &Challenges,
    ) -> Result<ServerTls, LoadError> {
        let weir_config::Http { versions: http, limits, .. } = listener.http();
        let listener = listener.name.as_str();
        let provider = provider::of(config.ciphers);
        let later = Later {
            ordered: config.ordered().map(acme::file).collect(),
            folder: config.certificate_folder.clone(),
            provider: provider.clone(),
            before: config.certificates.len(),
            replacing: Mutex::default(),
        };
        if config.certificates.is_empty() && config.acme.is_empty() && config.certificate_folder.is_none() {
            return Err(LoadError::new(Path::new(listener), "has no certificate; expected at least one"));
        }
        let certificates = later.all(&config.certificates)?;
        authorities_of_services(config)?;
        let on_demand = config.acme.iter().filter_map(|acme| challenges.on_demand(acme)).collect();
        let resolver = Arc::new(Resolver::new(certificates, on_demand));
        let mut bound_to = digest::Context::new(&digest::SHA256);
        bound_to.update(&(listener.len() as u64).to_be_bytes());
        bound_to.update(listener.as_bytes());
        let asks_for_certificate = config.client_ca.is_some();
        let (verifier, revocations) = match &config.client_ca {
            Some(file) => client_verifier(file, config, &provider, &mut bound_to)?,
            None => (WebPkiClientVerifier::no_client_auth(), Revocations::default()),
        };
        let mut bytes = [0; 32];
        bytes.copy_from_slice(bound_to.finish().as_ref());
        let early = config.early_data.then(|| BoundSessions {
            sessions: tickets.sessions().clone(),
            bound_to: remembered(bytes, limits),
        });
        let shared_keys = match &config.ticket_keys[..] {
            [] => None,
            files => Some(Arc::new(SharedKeys::load(files)?)),
        };
        let keys = shared_keys.clone().map_or_else(|| Source::Own(tickets.clone()), Source::Shared);
        let tickets = config.tickets.then(|| Arc::new(BoundTickets { keys, bound_to: bytes }));
        // A single config for all connections could not tell whose certificate expires when.
        let (for_all, for_each) = if asks_for_certificate { (None, tickets) } else { (tickets, None) };
        let versions: &'static [&'static SupportedProtocolVersion] = match config.min_version {
            TlsVersion::V12 => &VERSIONS,
            TlsVersion::V13 => &VERSIONS[..1],
        };
        let tickets = for_all.map(|tickets| tickets as Arc<dyn ProducesTickets>);
        let parts = Parts { listener: listener.to_owned(), provider, verifier, tickets };
        // rustls selects the first of our protocols that the client also offers; clients that support HTTP/2
        // should get it.
        let alpn = [(HttpVersion::H2, HTTP_2), (HttpVersion::H1, HTTP_1_1)];
        let alpn =
            alpn.into_iter().filter(|(version, _)| http.contains(version)).map(|(_, name)| name.to_vec());
        let stream = StreamParts { versions, alpn: alpn.collect(), resolver: resolver.clone() };
        let mut quic = match http.contains(&HttpVersion::H3) {
            true => {
                let resolver = Arc::new(WithoutWaiting(resolver.clone()));
                Some(parts.config(&[&TLS13], vec![HTTP_3.to_vec()], resolver)?)
            }
            false => None,
        };
        if let Some((quic, early)) = quic.as_mut().zip(early) {
            take_early_data(quic, early);
        }
        Ok(ServerTls {
            stream: Arc::new(stream.config(&parts)?),
            dated: for_each.map(|tickets| Dated { parts, stream, tickets, lists_end: revocations.end() }),
            quic: quic.map(Arc::new),
            resolver,
            later,
            shared_keys,
            clients: asks_for_certificate.then_some(bytes),
            revocations: revocations.facts,
        })
    }

    /// The TLS config of the admin API. Tickets are bound to it, and are invalid after the process has ended.
    ///
    /// # Errors
    /// A file can't be used.
    pub fn for_admin(config: &AdminTls) -> Result<Arc<ServerConfig>, LoadError> {
        let listener = Listener { name: "the admin API".to_owned(), ..Listener::default() };
        let certificate =
            Certificate { cert: config.cert.clone(), key: config.key.clone(), ..Certificate::default() };
        let tls = ListenerTls {
            certificates: vec![certificate],
            client_ca: config.client_ca.clone(),
            ..ListenerTls::default()
        };
        Ok(ServerTls::load(&listener, &tls, &TicketKeys::new([]), &Challenges::default())?.stream)
    }

    /// The config for a connection over TCP: TLS 1.2 and 1.3, ALPN according to the listener's `http`.
    pub fn stream_config(&self) -> Arc<ServerConfig> {
        let dated = self.dated.as_ref().and_then(|dated| dated.config().ok());
        dated.unwrap_or_else(|| self.stream.clone())
    }

    /// The config for QUIC: TLS 1.3, ALPN `h3`, the same certificates, tickets and policy; without tickets if
    /// clients are asked for certificates. `None` if the listener does not use HTTP/3.
    pub fn quic_config(&self) -> Option<&Arc<ServerConfig>> {
        self.quic.as_ref()
    }

    /// The certificates now served, in the order of the config, then those obtained by ACME, then those in
    /// the folder.
    pub fn certificates(&self) -> Vec<Facts> {
        self.resolver.served().certificates.iter().map(|each| each.facts.clone()).collect()
    }

    pub(crate) fn keys(&self) -> Vec<Arc<CertifiedKey>> {
        self.resolver.served().certificates.iter().map(|each| each.key.clone()).collect()
    }

    /// Reads an ACME certificate again, and serves it to new connections. Open connections keep the one that
    /// they began with. `Ok(false)` when it is already served, or does not belong to this listener.
    ///
    /// # Errors
    /// It does not exist or can't be used; what was served remains.
    pub fn take_up_ordered(&self, file: &Path) -> Result<bool, LoadError> {
        if !self.later.ordered.iter().any(|own| own == file) {
            return Ok(false);
        }
        self.serve_ordered(file, acme::load(file, &self.later.provider)?)
    }

    /// The same for a PEM chain with its key that is meant for `file` but could not be written there.
    ///
    /// # Errors
    /// It can't be used; what was served remains.
    pub fn take_up_unwritten(&self, file: &Path, pem: &str) -> Result<bool, LoadError> {
        if !self.later.ordered.iter().any(|own| own == file) {
            return Ok(false);
        }
        self.serve_ordered(file, acme::read(file, pem, &self.later.provider)?)
    }

    fn serve_ordered(&self, file: &Path, found: Loaded) -> Result<bool, LoadError> {
        let _alone = self.later.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let served = self.resolver.served();
        let (named, later) = served.certificates.split_at(self.later.before);
        let now = |file: &Path| later.iter().find(|each| each.facts.file == file);
        if now(file).is_some_and(|own| own.key.cert == found.key.cert) {
            return Ok(false);
        }
        let of_file = |own: &PathBuf| if own == file { Some(&found) } else { now(own) };
        let ordered = self.later.ordered.iter().filter_map(of_file);
        let of_folder = later.iter().filter(|each| !self.later.ordered.contains(&each.facts.file));
        self.resolver.replace(named.iter().chain(ordered).chain(of_folder).cloned().collect());
        Ok(true)
    }

    /// Reads the certificate in `changed` again, which may have been removed, and those that were added to
    /// the folder by other means, and serves the result to new connections. Does nothing if the folder does
    /// not belong to this listener.
    ///
    /// # Errors
    /// One can't be used; what was served remains.
    pub fn take_up_folder(&self, folder: &Path, changed: &Path) -> Result<(), LoadError> {
        if self.later.folder.as_deref() != Some(folder) {
            return Ok(());
        }
        let _alone = self.later.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let served = self.resolver.served();
        let (named, later) = served.certificates.split_at(self.later.before);
        let found = folder::load_changed(folder, changed, later, &self.later.provider)?;
        let ordered = later.iter().filter(|each| self.later.ordered.contains(&each.facts.file));
        self.resolver.replace(named.iter().chain(ordered).chain(&found).cloned().collect());
        Ok(())
    }

    /// Stops stapling responses that are out of date at `now` (seconds since 1970), and resumes if the clock
    /// was set back; returns the certificates affected.
    pub fn restaple(&self, now: i64) -> Vec<Facts> {
        if self.resolver.served().restapled(now).is_none() {
            return Vec::new();
        }
        let _alone = self.later.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((certificates, changed)) = self.resolver.served().restapled(now) else { return Vec::new() };
        self.resolver.replace(certificates);
        changed
    }

    /// The sources of certificates that are ordered on demand.
    pub fn on_demand(&self) -> &[Arc<OnDemand>] {
        self.resolver.on_demand()
    }

    /// Which of them orders a certificate for `name` (lower case); `None` when none does, or there is one
    /// that is always served.
    pub fn orders(&self, name: &str) -> Option<&Arc<OnDemand>> {
        self.resolver.orders(name)
    }

    /// The certificates from which one is presented to a client that asks for `name` (lower case), not
    /// counting those obtained on demand; `None` if there are none: the handshake is refused.
    pub fn shown(&self, name: Option<&str>) -> Option<ShownCertificates> {
        self.resolver.shown(name)
    }

    /// Orders a certificate for `name` (lower case) if there should be one, and returns a place to wait for
    /// it; `None` when there is nothing to wait for.
    pub fn wanted(&self, name: &str) -> Option<Waiting> {
        self.orders(name)?.wanted(name)
    }

    /// The ticket keys that are shared with other Weirs; `None` if it uses keys of this one.
    pub fn shared_keys(&self) -> Option<&Arc<SharedKeys>> {
        self.shared_keys.as_ref()
    }

    /// The revocation lists used for clients.
    pub fn revocations(&self) -> &[ListFacts] {
        &self.revocations
    }

    /// Whether clients are asked for certificates.
    pub fn asks_for_certificate(&self) -> bool {
        self.clients.is_some()
    }

    /// A digest of what decides which client certificates are accepted: the authorities, the revocation
    /// lists, and whether a certificate is required. `None` if clients are not asked for one.
    pub fn clients(&self) -> Option<&[u8; 32]> {
        self.clients.as_ref()
    }

    /// Whether a client that asked for `server_name` may send requests for `host` on that connection: `host`
    /// would have got the same certificates (RFC 9110 section 7.4, threat B14). `host` has no port, and may
    /// be in any case.
    pub fn covers(&self, server_name: Option<&str>, host: &str) -> bool {
        let (asked, host) = (server_name.map(str::to_ascii_lowercase), host.to_ascii_lowercase());
        self.resolver.group(asked.as_deref()) == self.resolver.group(Some(&host))
    }
}

/// What all configs of one listener have in common.
#[derive(Clone, Debug)]
struct Parts {
    listener: String,
    provider: Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    tickets: Option<Arc<dyn ProducesTickets>>,
}

/// What configs for TCP have in addition.
#[derive(Debug)]
struct StreamParts {
    versions: &'static [&'static SupportedProtocolVersion],
    alpn: Vec<Vec<u8>>,
    resolver: Arc<Resolver>,
}

impl StreamParts {
    fn config(&self, parts: &Parts) -> Result<ServerConfig, LoadError> {
        let mut config = parts.config(self.versions, self.alpn.clone(), self.resolver.clone())?;
        // Early data is not accepted: that would take sessions stored on the server, and `ticketer` says that
        // there are none. The value only limits how much is skipped.
        config.max_early_data_size = EARLY_DATA_SKIPPED_BYTES;
        Ok(config)
    }
}

/// Makes configs for single connections, whose sessions last no longer than the client's certificate is
/// valid.
#[derive(Debug)]
struct Dated {
    parts: Parts,
    stream: StreamParts,
    tickets: Arc<BoundTickets>,
    /// When the first of the revocation lists expires (seconds since 1970).
    lists_end: Option<i64>,
}

impl Dated {
    fn config(&self) -> Result<Arc<ServerConfig>, LoadError> {
        let bound = Bound::new();
        let verifier = Arc::new(DatingClientVerifier {
            verifier: self.parts.verifier.clone(),
            lists_end: self.lists_end,
            bound: bound.clone(),
        });
        let tickets = Arc::new(DatedTickets { tickets: self.tickets.clone(), bound });
        let parts = Parts { verifier, tickets: Some(tickets), ..self.parts.clone() };
        self.stream.config(&parts).map(Arc::new)
    }
}

impl Parts {
    fn config(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        alpn: Vec<Vec<u8>>,
        resolver: Arc<dyn ResolvesServerCert>,
    ) -> Result<ServerConfig, LoadError> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(versions)
            .map_err(|error| {
                LoadError::new(Path::new(&self.listener), format!("can't speak TLS so: {error}"))
            })?;
        let mut config =
            builder.with_client_cert_verifier(self.verifier.clone()).with_cert_resolver(resolver);
        config.alpn_protocols = alpn;
        // Suites with 256-bit keys come first, whatever a client that supports several prefers.
        config.ignore_client_order = true;
        // Sessions live only in tickets: other workers could not use what one worker stored.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match &self.tickets {
            Some(tickets) => {
                config.ticketer = tickets.clone();
                config.send_tls13_tickets = TICKET_COUNT;
            }
            None => config.send_tls13_tickets = 0,
        }
        Ok(config)
    }
}

/// Checks that the authorities for `on_demand` services can be read, instead of finding out when the first
/// client waits.
fn authorities_of_services(config: &ListenerTls) -> Result<(), LoadError> {
    let mut named = config.acme.iter().filter_map(|acme| acme.on_demand.as_ref()?.ca.as_ref());
    named.try_for_each(|ca| files::certificates(ca).map(drop))
}

/// Makes a config for QUIC accept early data. rustls accepts it only from clients whose session the server
/// has stored, and only once per session.
fn take_early_data(quic: &mut ServerConfig, sessions: BoundSessions) {
    quic.ticketer = Arc::new(NoTickets);
    quic.session_storage = Arc::new(sessions);
    // RFC 9001 section 4.6.1: QUIC itself limits the amount.
    quic.max_early_data_size = u32::MAX;
}

/// What a stored session is bound to: a client sends early data within the limits that it was given in that
/// session, so those must not have become lower (RFC 9000 section 7.4.1, RFC 9114 section 7.2.4.2). For
/// simplicity none of them may have changed.
fn remembered(bound_to: [u8; 32], limits: &HttpLimits) -> [u8; 32] {
    let mut digest = digest::Context::new(&digest::SHA256);
    digest.update(&bound_to);
    digest.update(format!("{limits:?}").as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.finish().as_ref());
    bytes
}

/// The verifier of client certificates. The trusted authorities and the revocation lists are part of
/// `bound_to`: a resumed session presents no certificate, and what was valid before a new revocation list may
/// not be any more.
fn client_verifier(
    file: &Path,
    config: &ListenerTls,
    provider: &Arc<CryptoProvider>,
    bound_to: &mut digest::Context,
) -> Result<(Arc<dyn ClientCertVerifier>, Revocations), LoadError> {
    let authorities = files::certificates(file)?;
    let revoked = Revocations::load(&config.crl, &authorities)?;
    // Tickets of form 1 had no expiry.
    bound_to.update(&[2, u8::from(config.client_auth == ClientAuth::Required)]);
    authorities.iter().for_each(|each| bound_to.update(each));
    revoked.lists.iter().for_each(|each| bound_to.update(each));
    let roots = roots(file, &authorities)?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .with_crls(revoked.lists.clone())
        .enforce_revocation_expiration();
    let builder = match config.client_auth {
        ClientAuth::Required => builder,
        ClientAuth::Optional => builder.allow_unauthenticated(),
    };
    let verifier = builder
        .build()
        .map_err(|error| LoadError::new(config.crl.first().map_or(file, |it| it), error.to_string()))?;
    Ok((verifier, revoked))
}

/// Reads what client certificates are checked with, as [`ServerTls::load`] does; `Err` has all errors.
pub(crate) fn look_at_clients(config: &ListenerTls) -> Result<Vec<ListFacts>, Vec<LoadError>> {
    let Some(file) = &config.client_ca else { return Ok(Vec::new()) };
    let lists = config.crl.iter().filter_map(|file| files::revocations(file).err());
    let errors: Vec<LoadError> = files::certificates(file).err().into_iter().chain(lists).collect();
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut bound_to = digest::Context::new(&digest::SHA256);
    match client_verifier(file, config, &provider::of(config.ciphers), &mut bound_to) {
        Ok((_, revocations)) => Ok(revocations.facts),
        Err(error) => Err(vec![error]),
    }
}

/// The trusted authorities, every one of which must be readable.
pub(crate) fn roots(
    file: &Path,
    authorities: &[rustls::pki_types::CertificateDer<'static>],
) -> Result<RootCertStore, LoadError> {
    let mut roots = RootCertStore::empty();
    for (number, each) in authorities.iter().enumerate() {
        roots.add(each.clone()).map_err(|error| {
            LoadError::new(
                file,
                format!("certificate {} is no authority that can be used: {error}", number + 1),
            )
        })?;
    }
    Ok(roots)
}
