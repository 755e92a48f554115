//! Reads stored certificates on a thread of its own: the store may be behind a network that is down, and who
//! loads a config must learn that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustls::crypto::CryptoProvider;

use super::load;
use crate::certificate::Loaded;
use crate::files::LoadError;

/// How long one file may take.
const LONGEST_READ: Duration = Duration::from_secs(5);

/// The certificates in those of `files` that exist and can be used, in their order.
///
/// # Errors
/// The store does not answer.
pub(crate) fn load_all(files: &[PathBuf], provider: &Arc<CryptoProvider>) -> Result<Vec<Loaded>, LoadError> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let (told, tells) = mpsc::channel();
    let read = {
        let (files, provider) = (files.to_vec(), provider.clone());
        move || files.iter().all(|file| told.send(load(file, &provider).ok()).is_ok())
    };
    if std::thread::Builder::new().name("weir-store".to_owned()).spawn(read).is_err() {
        // A shortage of threads must not look like one of certificates.
        return Ok(files.iter().filter_map(|file| load(file, provider).ok()).collect());
    }
    collect(files, LONGEST_READ, |limit| tells.recv_timeout(limit))
}

fn collect(
    files: &[PathBuf],
    limit: Duration,
    mut next: impl FnMut(Duration) -> Result<Option<Loaded>, RecvTimeoutError>,
) -> Result<Vec<Loaded>, LoadError> {
    let mut all = Vec::new();
    for file in files {
        match next(limit) {
            Ok(found) => all.extend(found),
            Err(RecvTimeoutError::Timeout) => {
                let store = file.parent().unwrap_or(Path::new(""));
                let reason = format!(
                    "the store of certificates does not answer within {limit:?}; expected a disk, or a server \
                     of files, that works"
                );
                return Err(LoadError { is_hung: true, ..LoadError::new(store, reason) });
            }
            // Its thread panicked at this file; certificates that are missing are ordered.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(all)
}
