//! Reads the files that a config names.

use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Most of a file that is read, in bytes: a bundle of all public authorities has a quarter of a MiB.
const FILE_BYTES: u64 = 8 << 20;

/// A file that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// Which.
    pub file: PathBuf,
    /// Why, and what was expected.
    pub reason: String,
}

impl LoadError {
    pub(crate) fn new(file: &Path, reason: impl Into<String>) -> LoadError {
        LoadError { file: file.to_owned(), reason: reason.into() }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.file.display(), self.reason)
    }
}

impl std::error::Error for LoadError {}

/// The whole file.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    let result =
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_BYTES + 1).read_to_end(&mut bytes));
    match result {
        Err(error) => Err(LoadError::new(file, format!("can't be read: {error}"))),
        Ok(_) if bytes.len() as u64 > FILE_BYTES => {
            Err(LoadError::new(file, format!("is longer than {FILE_BYTES} bytes; expected PEM")))
        }
        Ok(_) => Ok(bytes),
    }
}

/// A file with a secret that others than its owner may read is refused, as ssh(1) does.
pub(crate) fn refuse_if_others_may_read(file: &Path) -> Result<(), LoadError> {
    let found = std::fs::metadata(file);
    let found = found.map_err(|error| LoadError::new(file, format!("can't be read: {error}")))?;
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let reason = format!("may be read by others (its mode is {mode:03o}); expected 600, by `chmod 600`");
        return Err(LoadError::new(file, reason));
    }
    Ok(())
}

/// Every certificate of a PEM file, at least one.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => {
            Err(LoadError::new(file, "holds no certificate; expected PEM (`-----BEGIN CERTIFICATE-----`)"))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(LoadError::new(file, format!("is not PEM: {error}"))),
    }
}

/// Every list of revoked certificates of PEM files, at least one of each.
pub(crate) fn revocations(
    files: &[PathBuf],
) -> Result<Vec<CertificateRevocationListDer<'static>>, LoadError> {
    let mut lists = Vec::new();
    for file in files {
        let bytes = read(file)?;
        let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
        let found = found.map_err(|error| LoadError::new(file, format!("is not PEM: {error}")))?;
        if found.is_empty() {
            return Err(LoadError::new(file, "holds no list; expected PEM (`-----BEGIN X509 CRL-----`)"));
        }
        lists.extend(found);
    }
    Ok(lists)
}

/// The first private key of a PEM file.
pub(crate) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, LoadError> {
    let bytes = read(file)?;
    if bytes.windows(17).any(|window| window == b"BEGIN ENCRYPTED P") {
        return Err(LoadError::new(file, "the private key is encrypted; expected one without a passphrase"));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            LoadError::new(file, "holds no private key; expected PEM (`-----BEGIN PRIVATE KEY-----`)")
        }
        error => LoadError::new(file, format!("is not PEM: {error}")),
    })
}
