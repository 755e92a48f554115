//! One certificate with its key, and facts about it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use weir_config::Certificate;

use crate::files::{self, LoadError};
use crate::ocsp;
use crate::x509;

/// Most certificates in a chain (threat D4).
const CHAIN_COUNT: usize = 10;
/// Most bytes of a chain (threat D4).
const CHAIN_BYTES: usize = 64 << 10;

/// Facts about a certificate, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// As configured.
    pub file: PathBuf,
    /// DNS names, in lower case, including wildcards such as `*.example`.
    pub names: Vec<String>,
    /// Seconds since 1970; `None` if the certificate has no time in a known form.
    pub not_before: Option<i64>,
    /// As [`Self::not_before`].
    pub not_after: Option<i64>,
    /// Whether an OCSP response is stapled.
    pub is_stapled: bool,
    /// Until when it may be stapled, in seconds since 1970; `None` when it does not say.
    pub staple_ends: Option<i64>,
    /// The identity that its authority knows it by; `None` when it lacks one.
    pub identity: Option<Identity>,
}

/// How long before a certificate expires Weir warns: automatic renewal should have happened by then, and
/// there is time to renew it by hand.
pub const ENDS_SOON: Duration = Duration::from_secs(14 * 86_400);

/// Whether a certificate is valid at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// It is, and for some time.
    Good,
    /// Not yet; it will be from this time on.
    NotYet(SystemTime),
    /// It is, but expires soon, at this time.
    EndsSoon(SystemTime),
    /// It expired at this time.
    Ended(SystemTime),
}

impl Facts {
    /// Whether it is valid at `now`. A certificate without times counts as valid. A short-lived one expires
    /// soon when a third of its lifetime is left.
    pub fn validity(&self, now: SystemTime) -> Validity {
        let (begins, ends) = (moment(self.not_before), moment(self.not_after));
        if let Some(begins) = begins.filter(|begins| *begins > now) {
            return Validity::NotYet(begins);
        }
        let Some(ends) = ends else { return Validity::Good };
        let Ok(left) = ends.duration_since(now) else { return Validity::Ended(ends) };
        let life = begins.and_then(|begins| ends.duration_since(begins).ok());
        match left < life.map_or(ENDS_SOON, |life| ENDS_SOON.min(life / 3)) {
            true => Validity::EndsSoon(ends),
            false => Validity::Good,
        }
    }

    /// For a certificate that is not presented to clients.
    pub(crate) fn of_dates(file: &Path, certificate: &CertificateDer<'_>) -> Facts {
        let (not_before, not_after) = x509::validity(certificate).unzip();
        Facts { file: file.to_owned(), not_before, not_after, ..Facts::default() }
    }
}

fn moment(seconds: Option<i64>) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds?).ok()?))
}

/// The identifiers by which an authority knows a certificate (RFC 9773 section 4.1), each as in its DER,
/// without tag and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Identifier of the key that signed it.
    pub authority_key: Vec<u8>,
    /// Serial number, chosen by the authority.
    pub serial: Vec<u8>,
}

/// A certificate that can be served.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub key: Arc<CertifiedKey>,
    pub facts: Facts,
    /// The response to staple while it is in date. Also kept when it is not, as the clock may have been
    /// wrong.
    pub staple: Option<Arc<[u8]>>,
}

impl Loaded {
    /// The certificate as it should be at `now` (seconds since 1970), if its stapling changes.
    pub fn restapled(&self, now: i64) -> Option<Loaded> {
        let is_stapled = self.facts.staple_ends.is_none_or(|end| now < end);
        let staple = self.staple.as_ref().filter(|_| is_stapled != self.facts.is_stapled)?;
        let ocsp = is_stapled.then(|| staple.to_vec());
        let key = Arc::new(CertifiedKey { ocsp, ..CertifiedKey::clone(&self.key) });
        Some(Loaded { key, facts: Facts { is_stapled, ..self.facts.clone() }, staple: self.staple.clone() })
    }
}

/// Reads the certificate and its key, and checks that they belong together.
pub(crate) fn load(config: &Certificate, provider: &CryptoProvider) -> Result<Loaded, LoadError> {
    join(config, files::certificates(&config.cert)?, files::private_key(&config.key)?, provider)
}

/// As [`load`], but returns all errors.
pub(crate) fn look(config: &Certificate, provider: &CryptoProvider) -> Result<Facts, Vec<LoadError>> {
    let (chain, secret) = (files::certificates(&config.cert), files::private_key(&config.key));
    let staple = config.ocsp.as_deref().map(files::read).transpose();
    match (chain, secret, staple) {
        (Ok(chain), Ok(secret), Ok(_)) => {
            let joined = join(config, chain, secret, provider);
            joined.map(|loaded| loaded.facts).map_err(|error| vec![error])
        }
        (chain, secret, staple) => {
            Err([chain.err(), secret.err(), staple.err()].into_iter().flatten().collect())
        }
    }
}

/// Checks that a chain and a key, which `config` names, belong together and can be served.
pub(crate) fn join(
    config: &Certificate,
    chain: Vec<CertificateDer<'static>>,
    secret: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<Loaded, LoadError> {
    if chain.is_empty() {
        return Err(LoadError::new(&config.cert, "holds no certificate"));
    }
    if chain.len() > CHAIN_COUNT || chain.iter().map(|each| each.len()).sum::<usize>() > CHAIN_BYTES {
        let reason = format!(
            "holds {} certificates; expected a chain of at most {CHAIN_COUNT} and {CHAIN_BYTES} bytes",
            chain.len()
        );
        return Err(LoadError::new(&config.cert, reason));
    }
    let names: Vec<String> = match webpki::EndEntityCert::try_from(&chain[0]) {
        Ok(parsed) => parsed.valid_dns_names().map(str::to_ascii_lowercase).collect(),
        Err(error) => {
            return Err(LoadError::new(
                &config.cert,
                format!("is no certificate that can be served: {error}"),
            ));
        }
    };
    let (not_before, not_after) = x509::validity(&chain[0]).unzip();
    let identity =
        x509::identity(&chain[0]).map(|(authority_key, serial)| Identity { authority_key, serial });
    let (own, mut staple_ends) = (chain[0].clone(), None);
    let mut key = CertifiedKey::from_der(chain, secret, provider).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            LoadError::new(&config.key, format!("is not the key of {}", config.cert.display()))
        }
        error => LoadError::new(&config.key, format!("is no key that can be used: {error}")),
    })?;
    if let Some(file) = &config.ocsp {
        let response = files::read(file)?;
        staple_ends = ocsp::good_until(&response, &own).map_err(|reason| {
            LoadError::new(file, format!("can't be stapled to {}: it {reason}", config.cert.display()))
        })?;
        key.ocsp = Some(response);
    }
    let facts = Facts {
        file: config.cert.clone(),
        names,
        not_before,
        not_after,
        is_stapled: config.ocsp.is_some(),
        staple_ends,
        identity,
    };
    let staple = key.ocsp.as_deref().map(Arc::from);
    Ok(Loaded { key: Arc::new(key), facts, staple })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that was ahead for a moment took the response away for good.
    #[test]
    fn a_response_is_stapled_whenever_it_is_in_date_by_the_clock() {
        let key = rcgen::KeyPair::generate().unwrap();
        let shown =
            rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let der = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
        let provider = crate::provider::of(weir_config::CipherPolicy::Default);
        let key = provider.key_provider.load_private_key(der.into()).unwrap();
        let key = CertifiedKey {
            ocsp: Some(b"good".to_vec()),
            ..CertifiedKey::new(vec![shown.der().clone()], key)
        };
        let facts = Facts { is_stapled: true, staple_ends: Some(1000), ..Facts::default() };
        let fresh = Loaded { key: Arc::new(key), facts, staple: Some(b"good".as_slice().into()) };
        assert!(fresh.restapled(999).is_none(), "nothing changes");
        let old = fresh.restapled(1000).unwrap();
        assert_eq!((old.facts.is_stapled, old.key.ocsp.as_deref()), (false, None));
        assert!(old.restapled(1001).is_none(), "that is said once");
        let again = old.restapled(999).unwrap();
        assert_eq!((again.facts.is_stapled, again.key.ocsp.as_deref()), (true, Some(&b"good"[..])));
    }

    #[test]
    fn a_certificate_ends_soon_two_weeks_before_its_end_or_at_a_third_of_a_short_life() {
        let at = |day: u64| UNIX_EPOCH + Duration::from_secs(day * 86_400);
        let facts = |first: i64, last: i64| Facts {
            not_before: Some(first * 86_400),
            not_after: Some(last * 86_400),
            ..Facts::default()
        };
        let long = facts(1, 100);
        for (day, expected) in [
            (0, Validity::NotYet(at(1))),
            (1, Validity::Good),
            (86, Validity::Good),
            (87, Validity::EndsSoon(at(100))),
            (100, Validity::EndsSoon(at(100))),
            (101, Validity::Ended(at(100))),
        ] {
            assert_eq!(long.validity(at(day)), expected, "day {day}");
        }
        let short = facts(1, 7);
        assert_eq!(short.validity(at(5)), Validity::Good);
        assert_eq!(short.validity(at(6)), Validity::EndsSoon(at(7)));
        assert_eq!(Facts::default().validity(at(1)), Validity::Good);
    }
}
