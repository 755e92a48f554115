//! Reads the files that a config names.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use rustix::fs::OFlags;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Longest file that is read, in bytes: a bundle of all public authorities has a quarter of a MiB.
const FILE_BYTES: u64 = 8 << 20;

/// A file that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The file.
    pub file: PathBuf,
    /// Why, and what was expected.
    pub reason: String,
    /// Whether nothing is known of it, because what it is on does not answer.
    pub is_hung: bool,
}

impl LoadError {
    pub(crate) fn new(file: &Path, reason: impl Into<String>) -> LoadError {
        LoadError { file: file.to_owned(), reason: reason.into(), is_hung: false }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.file.display(), self.reason)
    }
}

impl std::error::Error for LoadError {}

/// Why a file can't be read, as a message for people. It names the user if permission was denied, and the
/// current directory if the path is relative.
pub fn why_unread(file: &Path, error: &io::Error) -> String {
    let user = rustix::process::geteuid().as_raw();
    match (error.kind(), std::env::current_dir()) {
        (io::ErrorKind::PermissionDenied, _) => format!(
            "{error}: this program runs as user {user} here; expected one that the user may read as whom Weir runs"
        ),
        (io::ErrorKind::NotFound, Ok(folder)) if file.is_relative() => format!(
            "{error}: looked for in {}, where this program was started; a path that begins with a slash leads to the same file everywhere",
            folder.display()
        ),
        _ => error.to_string(),
    }
}

/// The first `most` bytes of a file that a config names. All such files are read with this function.
///
/// Opening a pipe without a writer would block in open(2), and with it whatever reloads, answers `/livez` and
/// probes. This function does not block, and refuses what is not a regular file.
///
/// # Errors
/// It can't be read, or is not a regular file.
pub fn read_regular(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (opened, bytes_now) = open_regular(file).map(|(opened, found)| (opened, found.len()))?;
    read_open(opened, bytes_now, most)
}

/// Opens a regular file as [`read_regular`] does, and gives what is known of it.
fn open_regular(file: &Path) -> io::Result<(File, Metadata)> {
    let regular = |found: Metadata| match found.is_file() {
        true => Ok(found),
        false => Err(io::Error::other("it is no regular file")),
    };
    // Checked before opening, since opening a device can have effects; and again afterwards, since the path
    // may lead elsewhere by then.
    regular(std::fs::metadata(file)?)?;
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    let found = regular(opened.metadata()?)?;
    Ok((opened, found))
}

/// The first `most` bytes of an open file of about `bytes_now` bytes. There is room for them from the
/// beginning: a vector that grows would leave copies of a secret behind, which nobody wipes.
fn read_open(opened: File, bytes_now: u64, most: u64) -> io::Result<Vec<u8>> {
    let room = bytes_now.saturating_add(1).min(most).min(FILE_BYTES + 1);
    let mut bytes = Vec::with_capacity(room as usize);
    opened.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The error for a file that can't be read.
pub(crate) fn unread(file: &Path, error: &io::Error) -> LoadError {
    LoadError::new(file, format!("can't be read: {}", why_unread(file, error)))
}

/// The whole file.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
    whole(file, read_regular(file, FILE_BYTES + 1), "expected PEM")
}

/// The whole of a file that only its owner may read; `expected` says what it should be. The file whose mode
/// is judged is the one that is read, also where another one is put into its place meanwhile.
pub(crate) fn read_private(file: &Path, expected: &str) -> Result<Vec<u8>, LoadError> {
    let (opened, found) = open_regular(file).map_err(|error| unread(file, &error))?;
    refuse_mode_for_others(file, &found)?;
    whole(file, read_open(opened, found.len(), FILE_BYTES + 1), expected)
}

fn whole(file: &Path, read: io::Result<Vec<u8>>, expected: &str) -> Result<Vec<u8>, LoadError> {
    match read {
        Err(error) => Err(unread(file, &error)),
        Ok(bytes) if bytes.len() as u64 > FILE_BYTES => {
            Err(LoadError::new(file, format!("is longer than {FILE_BYTES} bytes; {expected}")))
        }
        Ok(bytes) => Ok(bytes),
    }
}

/// Least length of a secret, in bytes; a shorter one could be found by brute force.
pub(crate) const LEAST_SECRET_BYTES: usize = 16;

/// The secret in a file, without surrounding whitespace.
///
/// # Errors
/// The file can't be read, or its content is too short.
pub(crate) fn secret(file: &Path) -> Result<Vec<u8>, LoadError> {
    let content = read(file)?;
    let secret = content.trim_ascii();
    if secret.len() < LEAST_SECRET_BYTES {
        let reason = format!(
            "holds a secret of {} bytes; expected at least {LEAST_SECRET_BYTES}, such as \
             `openssl rand -hex 32` writes",
            secret.len()
        );
        return Err(LoadError::new(file, reason));
    }
    Ok(secret.to_vec())
}

/// Refuses a file with a secret if others than its owner may read it, as ssh(1) does.
pub(crate) fn refuse_if_others_may_read(file: &Path) -> Result<(), LoadError> {
    refuse_mode_for_others(file, &std::fs::metadata(file).map_err(|error| unread(file, &error))?)
}

fn refuse_mode_for_others(file: &Path, found: &Metadata) -> Result<(), LoadError> {
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let reason = format!("may be read by others (its mode is {mode:03o}); expected 600, by `chmod 600`");
        return Err(LoadError::new(file, reason));
    }
    Ok(())
}

/// All certificates in a PEM file, at least one.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        // The tag of a sequence (X.690 section 8.9), with which every certificate in DER begins.
        Ok(found) if found.is_empty() && bytes.first() == Some(&0x30) => {
            let reason = "is DER; expected PEM, as `openssl x509 -inform der -in FILE` makes of it";
            Err(LoadError::new(file, reason))
        }
        Ok(found) if found.is_empty() => {
            Err(LoadError::new(file, "holds no certificate; expected PEM (`-----BEGIN CERTIFICATE-----`)"))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(LoadError::new(file, format!("is not PEM: {error}"))),
    }
}

/// The revocation lists in a PEM file, at least one.
pub(crate) fn revocations(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, LoadError> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| LoadError::new(file, format!("is not PEM: {error}")))?;
    if found.is_empty() {
        return Err(LoadError::new(file, "holds no list; expected PEM (`-----BEGIN X509 CRL-----`)"));
    }
    Ok(found)
}

/// The first private key in a PEM file.
pub(crate) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, LoadError> {
    let bytes = read(file)?;
    // The markers of PKCS #8 and, for older formats, of RFC 1421 section 4.6.1.1.
    let says = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    if says(b"BEGIN ENCRYPTED P") || says(b"Proc-Type: 4,ENCRYPTED") {
        let reason = "the private key is encrypted; expected one without a passphrase, as `openssl pkey -in FILE` makes of it";
        return Err(LoadError::new(file, reason));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            LoadError::new(file, "holds no private key; expected PEM (`-----BEGIN PRIVATE KEY-----`)")
        }
        error => LoadError::new(file, format!("is not PEM: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_read_a_file_learns_who_tried_and_who_must() {
        let said = why_unread(Path::new("/shop.pem"), &io::Error::from(io::ErrorKind::PermissionDenied));
        let user = rustix::process::geteuid().as_raw();
        assert!(said.contains(&format!("as user {user} ")) && said.contains("as whom Weir runs"), "{said}");
        let said = why_unread(Path::new("/shop.pem"), &io::Error::from(io::ErrorKind::NotFound));
        assert!(!said.contains("user"), "{said}");
    }

    #[test]
    fn files_in_another_form_are_told_with_what_makes_the_right_one_of_them() {
        let folder = std::env::temp_dir().join(format!("weir-tls-forms-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let made = |name: &str, content: &[u8]| {
            let file = folder.join(name);
            std::fs::write(&file, content).unwrap();
            file
        };
        let der = certificates(&made("der", b"\x30\x82\x01\x00")).unwrap_err();
        let old = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAA==\n-----END RSA PRIVATE KEY-----\n";
        let old = private_key(&made("old", old)).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(der.reason.starts_with("is DER") && der.reason.contains("openssl x509"), "{der}");
        assert!(old.reason.contains("is encrypted") && old.reason.contains("openssl pkey"), "{old}");
    }

    #[test]
    fn whose_path_is_no_whole_one_learns_where_it_was_looked_for() {
        let is_gone = io::Error::from(io::ErrorKind::NotFound);
        let said = why_unread(Path::new("shop.pem"), &is_gone);
        let here = std::env::current_dir().unwrap();
        assert!(said.contains(&format!("looked for in {}, ", here.display())), "{said}");
        assert!(!why_unread(Path::new("/shop.pem"), &is_gone).contains("looked for"));
    }
}
