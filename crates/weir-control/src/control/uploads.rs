//! Certificates that an operator's programs put into the folder of a listener, and remove from it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fmt, io};

use weir_tls::{Facts, folder};

use super::Control;
use crate::events::What;
use crate::store;

/// Why a certificate was not accepted, or not removed.
#[derive(Debug)]
pub enum UploadError {
    /// No listener with TLS has that name.
    NoListener(String),
    /// The listener has no `certificate_folder`.
    NoFolder(String),
    /// There is no certificate with that name.
    NoCertificate(String),
    /// It can't be served, or the name is not allowed; says why.
    Refused(String),
    /// The folder has the most certificates allowed.
    Full,
    /// The folder can't be read or written.
    Store(io::Error),
}

impl fmt::Display for UploadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UploadError::NoListener(name) => write!(out, "no listener with TLS is named `{name}`"),
            UploadError::NoFolder(name) => {
                write!(out, "listener `{name}` takes none; expected `certificate_folder` in its `tls`")
            }
            UploadError::NoCertificate(name) => write!(out, "there is no certificate `{name}`"),
            UploadError::Refused(reason) => write!(out, "{reason}"),
            UploadError::Full => {
                write!(out, "there are {} certificates; expected no more", folder::MOST_CERTIFICATES)
            }
            UploadError::Store(error) => write!(out, "{error}"),
        }
    }
}

impl Control {
    /// Checks a certificate and its key, both PEM, stores them in the listener's folder under `name`, and
    /// serves them to new connections at all listeners with that folder. Replaces one with the same name.
    ///
    /// # Errors
    /// The reason; nothing was changed.
    pub async fn put_certificate(
        &self,
        listener: &str,
        name: &str,
        certificate: &str,
        key: &str,
    ) -> Result<Facts, UploadError> {
        if !folder::is_name(name) {
            let expected = "expected up to 100 letters, digits, `.`, `-` and `_`, and no `.` in front";
            return Err(UploadError::Refused(format!("a certificate can't have that name; {expected}")));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (facts, text) = folder::check(certificate, key, now).map_err(UploadError::Refused)?;
        // A concurrent reload might have read the folder before, and be put in force afterwards.
        let _turn = self.reloading.lock().await;
        let kept_in = self.certificate_folder(listener)?;
        let others = folder::names(&kept_in).map_err(UploadError::Store)?;
        if others.len() >= folder::MOST_CERTIFICATES && !others.iter().any(|other| other == name) {
            return Err(UploadError::Full);
        }
        let file = folder::file(&kept_in, name);
        store::make_folder(&kept_in).map_err(UploadError::Store)?;
        let before = weir_tls::read_regular(&file, u64::MAX).ok();
        if let Err(error) = store::write(file.clone(), text.into_bytes()).await {
            // A key that was partly written to a full disk is useless.
            store::release(&file);
            return Err(UploadError::Store(error));
        }
        if let Err(error) = self.take_up(&kept_in, &file) {
            self.put_back(&kept_in, &file, before).await;
            return Err(error);
        }
        self.tell_of(&facts.names, "uploaded", &file);
        Ok(Facts { file, ..facts })
    }

    /// Removes a certificate from the listener's folder; open connections are not affected.
    ///
    /// # Errors
    /// The reason; nothing was changed.
    pub async fn remove_certificate(&self, listener: &str, name: &str) -> Result<(), UploadError> {
        let _turn = self.reloading.lock().await;
        let kept_in = self.certificate_folder(listener)?;
        let found = folder::names(&kept_in).map_err(UploadError::Store)?;
        if !found.iter().any(|other| other == name) {
            return Err(UploadError::NoCertificate(name.to_owned()));
        }
        let file = folder::file(&kept_in, name);
        let before = weir_tls::read_regular(&file, u64::MAX).ok();
        std::fs::remove_file(&file).map_err(UploadError::Store)?;
        if let Err(error) = self.take_up(&kept_in, &file) {
            self.put_back(&kept_in, &file, before).await;
            return Err(error);
        }
        self.tell_of(&[name.to_owned()], "removed", &file);
        Ok(())
    }

    /// The folder for certificates of a listener.
    ///
    /// # Errors
    /// There is no such listener, or it has no folder.
    pub fn certificate_folder(&self, listener: &str) -> Result<PathBuf, UploadError> {
        let snapshot = self.snapshot();
        let found = snapshot.config.listeners.iter().find(|it| it.name == listener);
        let Some(tls) = found.and_then(|it| it.tls.as_ref()) else {
            return Err(UploadError::NoListener(listener.to_owned()));
        };
        tls.certificate_folder.clone().ok_or_else(|| UploadError::NoFolder(listener.to_owned()))
    }

    /// Restores a file if the folder could not be loaded, and makes the listeners that have loaded it go
    /// back. Failures here are left to the operator: the call has failed, and says why.
    async fn put_back(&self, kept_in: &Path, file: &Path, before: Option<Vec<u8>>) {
        let done = match before {
            Some(before) => store::write(file.to_owned(), before).await,
            None => std::fs::remove_file(file),
        };
        if let Err(error) = done {
            tracing::warn!(file = %file.display(), %error, "what an upload has replaced could not be put back");
        }
        let _ = self.take_up(kept_in, file);
    }

    /// Makes all listeners with a folder serve its content, now that `file` has changed.
    fn take_up(&self, kept_in: &Path, file: &Path) -> Result<(), UploadError> {
        for listener in self.snapshot().listeners.iter().filter_map(|listener| listener.tls.as_ref()) {
            let taken = listener.take_up_folder(kept_in, file);
            taken.map_err(|error| UploadError::Store(io::Error::other(error.to_string())))?;
        }
        Ok(())
    }

    fn tell_of(&self, names: &[String], change: &'static str, file: &Path) {
        let (names, detail) = (names.join(", "), file.display().to_string());
        tracing::info!(names, file = detail, "operator: certificate {change}");
        self.bus.tell(What::Certificate { names, change, detail });
    }
}
