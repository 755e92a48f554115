//! Certificates in a folder, written by the admin API. Each is a single file with chain and key, so that it
//! is never there with only one of them.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pem::{EncodeConfig, LineEnding, Pem};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use weir_config::{Certificate, CipherPolicy};

use crate::certificate::{self, Facts, Loaded};
use crate::files::{LoadError, unread};
use crate::{acme, provider};

/// Most certificates in a folder (count): they are selected by a table of all names, which is rebuilt with
/// each change.
pub const MOST_CERTIFICATES: usize = 1000;

/// File name extension of certificates.
const EXTENSION: &str = "pem";

/// The file for the certificate with this name.
pub fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{EXTENSION}"))
}

/// The names of the certificates in a folder, sorted. Empty if the folder does not exist yet.
///
/// # Errors
/// The folder can't be read.
pub fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let file = entry?.file_name();
        let name = file.to_str().and_then(|file| file.strip_suffix(".pem"));
        names.extend(name.filter(|name| is_name(name)).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Whether this is an allowed name for a certificate: it must not lead to another folder or make a hidden
/// file.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=100).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

/// Reads all certificates of a folder.
pub(crate) fn load(folder: &Path, provider: &CryptoProvider) -> Result<Vec<Loaded>, LoadError> {
    files(folder)?.iter().map(|file| acme::load(file, provider)).collect()
}

/// As [`load`], but reads only `changed` and files that are not in `before`; the others must be unchanged.
pub(crate) fn load_changed(
    folder: &Path,
    changed: &Path,
    before: &[Loaded],
    provider: &CryptoProvider,
) -> Result<Vec<Loaded>, LoadError> {
    let before: HashMap<&Path, &Loaded> = before.iter().map(|each| (&*each.facts.file, each)).collect();
    let read = |file: &PathBuf| match before.get(file.as_path()) {
        Some(same) if file != changed => Ok(Loaded::clone(same)),
        _ => acme::load(file, provider),
    };
    files(folder)?.iter().map(read).collect()
}

/// The files of all certificates of a folder.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let names = names(folder).map_err(|error| unread(folder, &error))?;
    if names.len() > MOST_CERTIFICATES {
        let reason = format!("holds {} certificates; expected at most {MOST_CERTIFICATES}", names.len());
        return Err(LoadError::new(folder, reason));
    }
    Ok(names.iter().map(|name| file(folder, name)).collect())
}

/// Facts about a certificate and its key, both PEM, and the content of the file for both.
///
/// # Errors
/// They do not belong together, a certificate of the chain is not signed by the next one, or one is not valid
/// at `now` (since 1970); says which.
pub fn check(certificate: &str, key: &str, now: Duration) -> Result<(Facts, String), String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let chain = chain.map_err(|error| format!("`certificate` is not PEM: {error}"))?;
    let secret = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|error| format!("`key` is no private key in PEM without a passphrase: {error}"))?;
    let (own, rest) = chain.split_first().ok_or("`certificate` holds none; expected PEM")?;
    links(own, rest, UnixTime::since_unix_epoch(now))?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let both = Certificate { cert: "`certificate`".into(), key: "`key`".into(), ocsp: None };
    let text = text_of(&secret, &chain);
    let loaded = certificate::join(&both, chain, secret, &provider::of(CipherPolicy::Default));
    let facts = loaded.map_err(|error| format!("{} {}", error.file.display(), error.reason))?.facts;
    if facts.names.is_empty() {
        return Err("`certificate` is for no name (subject alternative name)".to_owned());
    }
    match (facts.not_before, facts.not_after) {
        (_, Some(end)) if end <= seconds => Err("`certificate` is good no more: it has expired".to_owned()),
        (Some(begin), _) if begin > seconds => Err("`certificate` is not good yet".to_owned()),
        _ => Ok((facts, text)),
    }
}

/// The file content, written from what was checked, since other text in the input was not.
fn text_of(secret: &PrivateKeyDer<'_>, chain: &[CertificateDer<'_>]) -> String {
    let tag = match secret {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    let key = Pem::new(tag, secret.secret_der());
    let certificates = chain.iter().map(|each| Pem::new("CERTIFICATE", each.as_ref()));
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    std::iter::once(key).chain(certificates).map(|each| pem::encode_config(&each, config)).collect()
}

/// Checks that each certificate of a chain is signed by the next one and valid at `now`. The last one is not
/// checked further: clients decide whether to trust it.
fn links(own: &CertificateDer<'_>, rest: &[CertificateDer<'_>], now: UnixTime) -> Result<(), String> {
    let Some((top, between)) = rest.split_last() else { return Ok(()) };
    let broken = |error: webpki::Error| {
        format!(
            "the chain does not hold ({error:?}); expected the certificate, then each that signed the one before"
        )
    };
    let anchor = webpki::anchor_from_trusted_cert(top).map_err(broken)?;
    let parsed = webpki::EndEntityCert::try_from(own).map_err(broken)?;
    let usage = webpki::KeyUsage::server_auth();
    let algorithms = provider::of(CipherPolicy::Default).signature_verification_algorithms.all;
    parsed.verify_for_usage(algorithms, &[anchor], between, now, usage, None, None).map_err(broken)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    struct Made {
        certificate: String,
        key: String,
        authority: String,
    }

    fn made() -> Made {
        let authority_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).unwrap();
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(["shop.example".to_owned()]).unwrap();
        let own = own.signed_by(&key, &issuer).unwrap();
        Made { certificate: own.pem(), key: key.serialize_pem(), authority: authority.pem() }
    }

    /// The year 2026.
    const NOW: Duration = Duration::from_secs(1_790_000_000);

    #[test]
    fn a_certificate_with_its_key_and_chain_is_taken_and_is_one_file() {
        let made = made();
        let chain = made.certificate.clone() + &made.authority;
        let (facts, text) = check(&chain, &made.key, NOW).unwrap();
        assert_eq!(facts.names, ["shop.example"]);
        assert!(text.contains("PRIVATE KEY") && text.matches("BEGIN CERTIFICATE").count() == 2);
        assert!(check(&made.certificate, &made.key, NOW).is_ok(), "one without its chain");
        // What was not looked at is not kept.
        let more = format!("{}{}{}", self::made().certificate, made.key, self::made().key);
        let (_, text) = check(&made.certificate, &more, NOW).unwrap();
        assert_eq!(
            (text.matches("BEGIN CERTIFICATE").count(), text.matches("BEGIN PRIVATE").count()),
            (1, 1)
        );
        assert!(acme::look(&text).is_ok());
    }

    #[test]
    fn what_does_not_belong_together_or_is_not_good_now_is_refused_and_no_key_is_shown() {
        let (made, other) = (made(), self::made());
        let year_1970 = Duration::from_secs(1);
        let year_5000 = Duration::from_secs(95_000_000_000);
        let mixed = made.certificate.clone() + &other.authority;
        for (certificate, key, now, expected) in [
            (&made.certificate, &other.key, NOW, "is not the key of"),
            (&mixed, &made.key, NOW, "the chain does not hold"),
            (&made.certificate, &made.key, year_5000, "expired"),
            (&made.certificate, &made.key, year_1970, "not good yet"),
            (&made.key, &made.key, NOW, "holds none"),
            (&made.certificate, &made.certificate, NOW, "no private key"),
        ] {
            let error = check(certificate, key, now).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!key.lines().any(|line| line.len() > 20 && error.contains(line)), "{error}");
        }
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        assert!(is_name("shop.example") && is_name("a_b-1"));
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "\u{e9}", "a\0"] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(!is_name(&"a".repeat(101)));
        assert_eq!(names(Path::new("/nowhere/at/all")).unwrap(), [""; 0]);
    }
}
