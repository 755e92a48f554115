//! One certificate with its key, and for which names it is good.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use weir_config::Certificate;

use crate::files::{self, LoadError};
use crate::ocsp;
use crate::x509;

/// Certificates in a chain (threat D4).
const CHAIN_COUNT: usize = 10;
/// Bytes of a chain (threat D4).
const CHAIN_BYTES: usize = 64 << 10;

/// What people want to know of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// As configured.
    pub file: PathBuf,
    /// DNS names, lower case, wildcards among them as `*.example`.
    pub names: Vec<String>,
    /// Seconds since 1970; `None` when the certificate does not say it in any form that is known.
    pub not_before: Option<i64>,
    /// As [`Self::not_before`].
    pub not_after: Option<i64>,
    /// Whether an OCSP response is stapled.
    pub is_stapled: bool,
    /// Until when that may be, in seconds since 1970; `None` when it does not say.
    pub staple_ends: Option<i64>,
    /// By what its authority knows it; `None` when it does not say.
    pub identity: Option<Identity>,
}

/// By what an authority knows a certificate (RFC 9773 section 4.1), both as in its DER, without tag and
/// length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Of the key that signed it.
    pub authority_key: Vec<u8>,
    /// Given by the authority.
    pub serial: Vec<u8>,
}

/// A certificate that can be served with.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub key: Arc<CertifiedKey>,
    pub facts: Facts,
}

impl Loaded {
    /// Whether what is stapled may be no more.
    pub fn has_old_staple(&self, now: i64) -> bool {
        self.facts.is_stapled && self.facts.staple_ends.is_some_and(|end| end <= now)
    }

    /// The same with nothing stapled.
    pub fn without_staple(&self) -> Loaded {
        let key = CertifiedKey { ocsp: None, ..CertifiedKey::clone(&self.key) };
        Loaded { key: Arc::new(key), facts: Facts { is_stapled: false, ..self.facts.clone() } }
    }
}

/// Reads the certificate and its key, and makes sure that they belong together.
pub(crate) fn load(config: &Certificate, provider: &CryptoProvider) -> Result<Loaded, LoadError> {
    join(config, files::certificates(&config.cert)?, files::private_key(&config.key)?, provider)
}

/// Makes sure that a chain and a key, which `config` names, belong together and can be served.
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
    Ok(Loaded { key: Arc::new(key), facts })
}
