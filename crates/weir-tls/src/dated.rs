//! How long a session may be resumed after the other side has presented a certificate: as long as that
//! certificate and the revocation lists it was checked against are valid.
//!
//! A resumed session presents no certificate, and each brings tickets for the next, so without a limit a
//! session could be resumed for ever (RFC 8446 section 4.6.1). For clients the limit is part of the ticket;
//! for backends it is stored with their sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ProducesTickets;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, NamedGroup, SignatureScheme};

use crate::tickets::BoundTickets;
use crate::x509;

/// Bytes of the limit at the beginning of a ticket's content.
const BOUND_BYTES: usize = size_of::<i64>();

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Until when a session with this certificate may be resumed (seconds since 1970), if the revocation lists
/// are valid until `lists_end`.
fn bound_of(certificate: &CertificateDer<'_>, lists_end: Option<i64>) -> i64 {
    let own_end = x509::validity(certificate).map_or(i64::MIN, |(_, end)| end);
    own_end.min(lists_end.unwrap_or(i64::MAX))
}

/// Shared by the verifier and the tickets of one connection: until when its session may be resumed (seconds
/// since 1970). Unlimited if the client has presented no certificate.
#[derive(Clone, Debug)]
pub(crate) struct Bound(Arc<AtomicI64>);

impl Bound {
    /// For a new connection.
    pub fn new() -> Bound {
        Bound(Arc::new(AtomicI64::new(i64::MAX)))
    }
}

/// The tickets for one connection to a listener that asks clients for certificates.
#[derive(Debug)]
pub(crate) struct DatedTickets {
    pub tickets: Arc<BoundTickets>,
    pub bound: Bound,
}

impl ProducesTickets for DatedTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.tickets.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let bound = self.bound.0.load(Ordering::Relaxed).to_be_bytes();
        self.tickets.encrypt(&[&bound, plain].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let mut plain = self.tickets.decrypt(ticket)?;
        let bound = i64::from_be_bytes(*plain.first_chunk()?);
        if bound <= now() {
            return None;
        }
        self.bound.0.store(bound, Ordering::Relaxed);
        plain.drain(..BOUND_BYTES);
        Some(plain)
    }
}

/// Verifies the client certificate of one connection, and records when it expires.
#[derive(Debug)]
pub(crate) struct DatingClientVerifier {
    pub verifier: Arc<dyn ClientCertVerifier>,
    /// When the first of the revocation lists expires.
    pub lists_end: Option<i64>,
    pub bound: Bound,
}

impl ClientCertVerifier for DatingClientVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        self.bound.0.store(bound_of(end_entity, self.lists_end), Ordering::Relaxed);
        Ok(verified)
    }

    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// The sessions with one backend, which all began with the certificate that it presented last.
#[derive(Debug)]
pub(crate) struct DatedSessions {
    most: usize,
    kept: ArcSwap<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// Until when they may be resumed (seconds since 1970).
    bound: i64,
    sessions: ClientSessionMemoryCache,
}

impl DatedSessions {
    /// Stores up to `most` sessions.
    pub fn new(most: usize) -> Arc<DatedSessions> {
        let kept = Kept { bound: i64::MAX, sessions: ClientSessionMemoryCache::new(most) };
        Arc::new(DatedSessions { most, kept: ArcSwap::from_pointee(kept) })
    }

    /// The backend has presented a certificate with which sessions may be resumed until `bound`. Sessions
    /// from another certificate are discarded, because their limit is no longer known.
    fn note(&self, bound: i64) {
        if self.kept.load().bound != bound {
            let sessions = ClientSessionMemoryCache::new(self.most);
            self.kept.store(Arc::new(Kept { bound, sessions }));
        }
    }

    /// The sessions, if they may still be resumed.
    fn good(&self) -> Option<Arc<Kept>> {
        Some(self.kept.load_full()).filter(|kept| kept.bound > now())
    }
}

impl ClientSessionStore for DatedSessions {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.kept.load().sessions.set_kx_hint(server_name, group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.kept.load().sessions.kx_hint(server_name)
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.kept.load().sessions.set_tls12_session(server_name, value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.good()?.sessions.tls12_session(server_name)
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.kept.load().sessions.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.kept.load().sessions.insert_tls13_ticket(server_name, value);
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.good()?.sessions.take_tls13_ticket(server_name)
    }
}

/// Verifies a backend's certificate, and records with its sessions when it expires.
#[derive(Debug)]
pub(crate) struct DatingServerVerifier {
    pub verifier: Arc<dyn ServerCertVerifier>,
    /// When the first of the revocation lists expires.
    pub lists_end: Option<i64>,
    pub sessions: Arc<DatedSessions>,
}

impl ServerCertVerifier for DatingServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier = &self.verifier;
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.sessions.note(bound_of(end_entity, self.lists_end));
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tickets::{Source, TicketKeys};

    #[test]
    fn a_ticket_opens_until_its_bound_and_hands_that_on() {
        let tickets = Arc::new(BoundTickets { keys: Source::Own(TicketKeys::new([])), bound_to: [7; 32] });
        let of = |bound| {
            let connection = DatedTickets { tickets: tickets.clone(), bound: Bound::new() };
            connection.bound.0.store(bound, Ordering::Relaxed);
            connection
        };
        let end = now() + 1000;
        let ticket = of(end).encrypt(b"session").unwrap();
        let next = of(i64::MAX);
        assert_eq!(next.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        let renewed = next.encrypt(b"session").unwrap();
        let third = of(i64::MAX);
        assert!(third.decrypt(&renewed).is_some());
        assert_eq!(third.bound.0.load(Ordering::Relaxed), end);
        assert_eq!(of(i64::MAX).decrypt(&of(now()).encrypt(b"session").unwrap()), None);
    }

    #[test]
    fn the_bound_is_the_end_of_the_certificate_or_of_a_list_that_ends_sooner() {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.not_after = rcgen::date_time_ymd(2040, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let end = 2_208_988_800;
        for (lists_end, bound) in [(None, end), (Some(end + 1), end), (Some(5), 5)] {
            assert_eq!(bound_of(certificate.der(), lists_end), bound);
        }
        assert_eq!(bound_of(&CertificateDer::from(&b"none"[..]), None), i64::MIN);
    }

    #[test]
    fn sessions_of_another_certificate_are_forgotten_and_old_ones_not_given_out() {
        let sessions = DatedSessions::new(4);
        let kept = |sessions: &DatedSessions| sessions.kept.load_full();
        sessions.note(now() + 1000);
        let first = kept(&sessions);
        sessions.note(first.bound);
        assert!(Arc::ptr_eq(&first, &kept(&sessions)) && sessions.good().is_some());
        sessions.note(now());
        assert!(!Arc::ptr_eq(&first, &kept(&sessions)) && sessions.good().is_none());
    }
}
