//! Files on disk: keys of accounts, and certificates with their keys, which nobody else may read; and the
//! files of maps. All are written atomically.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::blocking::blocking;
use crate::lease::Lease;

/// Longest account file that is read, in bytes.
const ACCOUNT_BYTES: u64 = 64 << 10;
/// Interval between attempts to take a lock that is held elsewhere.
const LOCK_EVERY: Duration = Duration::from_millis(250);

/// An exclusive lock on one thing in the store, among all processes of all hosts that share it; released when
/// dropped. If a process of this host ends, the kernel releases its lock.
#[derive(Debug)]
#[expect(dead_code, reason = "its being there is what counts")]
pub struct Lock {
    /// Released before the kernel's lock, which tells whether its process exists.
    lease: Lease,
    file: File,
}

impl Lock {
    /// Waits for the lock that belongs to `path` (for `shop.pem` it is `shop.lock`, and `shop.claim` while it
    /// is held), and first creates its folder.
    ///
    /// # Errors
    /// The store can't be written.
    pub async fn take(path: &Path) -> io::Result<Lock> {
        let claim = path.with_extension("claim");
        let path = path.with_extension("lock");
        make_folder(path.parent().unwrap_or(&path))?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(naming(&path))?;
        let mut waited = false;
        let is_alone = loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break true,
                Err(Errno::WOULDBLOCK) => {}
                // Some file systems shared by hosts have no such locks.
                Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => break false,
                Err(error) => return Err(naming(&path)(error.into())),
            }
            if !waited {
                tracing::debug!(lock = %path.display(), "somebody else orders this certificate: waiting");
            }
            waited = true;
            tokio::time::sleep(LOCK_EVERY).await;
        };
        let lease = Lease::take(&claim, is_alone).await?;
        Ok(Lock { lease, file })
    }
}

/// Creates a folder that only we can access, and any missing parents. An existing folder is closed to others.
///
/// # Errors
/// It can't be created or closed; names it.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(naming(folder))?;
    let mode = fs::metadata(folder).map_err(naming(folder))?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(naming(folder))?;
    }
    Ok(())
}

/// Writes `content` to `path` atomically: readable only for us or, if `like` is given, with its permissions
/// and owner. Until it is complete it is `next`, a name that nothing else may use. Blocks on the disk; not
/// for the control thread.
fn write_at_once(path: &Path, next: &Path, content: &[u8], like: Option<&Metadata>) -> io::Result<()> {
    let mut file = make_next(next)?;
    if let Some(like) = like {
        let is_others = file.metadata().is_ok_and(|own| (own.uid(), own.gid()) != (like.uid(), like.gid()));
        if is_others {
            fchown(&file, Some(like.uid()), Some(like.gid())).map_err(naming(next))?;
        }
        file.set_permissions(Permissions::from_mode(like.mode() & 0o7777)).map_err(naming(next))?;
    }
    file.write_all(content).and_then(|()| file.sync_all()).map_err(naming(next))?;
    put_in_place(next, path)
}

/// Creates an empty file that nobody else may read.
fn make_next(next: &Path) -> io::Result<File> {
    // A file left by a process that was killed may have other permissions than a new one.
    remove(next)?;
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(next).map_err(naming(next))
}

fn put_in_place(next: &Path, path: &Path) -> io::Result<()> {
    fs::rename(next, path).map_err(naming(path))?;
    // The file exists, even if syncing its folder fails.
    let folder = path.parent().unwrap_or(path);
    if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
        tracing::warn!(%error, folder = %folder.display(), "a folder could not be synced: after a power failure a file in it may be as it was before");
    }
    Ok(())
}

/// [`write_at_once`] on a thread that may block.
///
/// # Errors
/// The store can't be written; the earlier content is unchanged.
pub async fn write(path: PathBuf, content: Vec<u8>) -> io::Result<()> {
    let next = path.with_extension("next");
    let written = blocking(move || write_at_once(&path, &next, &content, None)).await;
    written.unwrap_or_else(Err)
}

/// Reserves this many bytes for a file at `path`, to be written by [`write_reserved`] or released by
/// [`release`]: what is expensive to obtain must not be lost to a full disk.
///
/// # Errors
/// There is not enough space.
pub async fn reserve(path: &Path, bytes: usize) -> io::Result<()> {
    let next = path.with_extension("next");
    let reserved = blocking(move || {
        let mut file = make_next(&next)?;
        // Some file systems store zeros without using space.
        let filled = file.write_all(&vec![b' '; bytes]).and_then(|()| file.sync_all());
        filled.map_err(naming(&next)).inspect_err(|_| drop(fs::remove_file(&next)))
    });
    reserved.await.unwrap_or_else(Err)
}

/// Releases what [`reserve`] has reserved.
pub fn release(path: &Path) {
    let _ = fs::remove_file(path.with_extension("next"));
}

/// As [`write()`], into the space that [`reserve`] has reserved.
///
/// # Errors
/// The store can't be written; the earlier content is unchanged.
pub async fn write_reserved(path: PathBuf, content: Vec<u8>) -> io::Result<()> {
    let next = path.with_extension("next");
    let written = blocking(move || {
        let mut file = match OpenOptions::new().write(true).open(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_next(&next)?,
            opened => opened.map_err(naming(&next))?,
        };
        let filled = file.write_all(&content).and_then(|()| file.set_len(content.len() as u64));
        filled.and_then(|()| file.sync_all()).map_err(naming(&next))?;
        put_in_place(&next, &path)
    });
    written.await.unwrap_or_else(Err)
}

/// Replaces the content of an existing file atomically; its permissions, and links that lead to it, stay.
/// Blocks on the disk.
///
/// # Errors
/// It can't be written; the earlier content is unchanged.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = fs::canonicalize(path).map_err(naming(path))?;
    let like = fs::metadata(&file).map_err(naming(path))?;
    // The folder is the operator's, and may have files with any name.
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let next = file.with_file_name(format!(".{name}.weir-next"));
    // On a full disk, an incomplete file would remain.
    write_at_once(&file, &next, content, Some(&like)).inspect_err(|_| drop(fs::remove_file(&next)))
}

/// Creates an empty file, accessible only for us, if it does not exist, and sets its modification time to
/// `when`. Blocks on the disk.
///
/// # Errors
/// The store can't be written.
pub fn touch(path: &Path, when: SystemTime) -> io::Result<()> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    file.and_then(|file| file.set_modified(when)).map_err(naming(path))
}

/// The text of a file in the store; `None` if it does not exist.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    match weir_tls::read_regular(path, ACCOUNT_BYTES) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(io::Error::other).map_err(naming(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(naming(path)(error)),
    }
}

/// Removes a file from the store. It is no error if it does not exist: another process may have removed it.
///
/// # Errors
/// It can't be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(naming(path)(error)),
        _ => Ok(()),
    }
}

/// When a file was last modified; `None` if it does not exist.
pub fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn naming(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let name = path.display().to_string();
    move |error| io::Error::new(error.kind(), format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("weir-store-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn nobody_else_can_read_what_is_stored_and_leftovers_do_no_harm() {
        let folder = folder("modes");
        DirBuilder::new().mode(0o755).create(&folder).unwrap();
        let file = folder.join("ca").join("shop.pem");
        let _lock = Lock::take(&file).await.unwrap();
        fs::write(file.with_extension("next"), "half of somethi").unwrap();
        fs::set_permissions(file.with_extension("next"), Permissions::from_mode(0o644)).unwrap();
        write(file.clone(), b"secret".to_vec()).await.unwrap();
        write(file.clone(), b"newer".to_vec()).await.unwrap();
        assert_eq!(read(&file).unwrap().as_deref(), Some("newer"));
        assert_eq!((mode(&file), mode(&folder.join("ca"))), (0o600, 0o700));
        assert!(!file.with_extension("next").exists());
        assert!(read(&folder.join("nothing")).unwrap().is_none());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_is_replaced_keeps_its_permissions_and_the_link_that_leads_to_it() {
        let folder = folder("replaced");
        make_folder(&folder).unwrap();
        let (file, link) = (folder.join("tenants.map"), folder.join("link.map"));
        fs::write(&file, "before").unwrap();
        fs::write(folder.join("tenants.next"), "another's").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink("tenants.map", &link).unwrap();
        replace(&link, b"behind").unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("behind", 0o644));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(folder.join("tenants.next")).unwrap(), "another's");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3, "nothing of its own is left");
        let error = replace(&folder.join("nothing.map"), b"x").unwrap_err();
        assert!(error.to_string().contains("nothing.map"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_others_could_read_is_closed_to_them() {
        let folder = folder("closed");
        fs::create_dir_all(folder.join("ca")).unwrap();
        fs::set_permissions(folder.join("ca"), Permissions::from_mode(0o755)).unwrap();
        let _lock = Lock::take(&folder.join("ca/shop.pem")).await.unwrap();
        assert_eq!(mode(&folder.join("ca")), 0o700);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn only_one_at_a_time_holds_a_lock() {
        let folder = folder("lock");
        let file = folder.join("shop.pem");
        let held = Lock::take(&file).await.unwrap();
        let other = folder.join("other.pem");
        let _other = Lock::take(&other).await.unwrap();
        let mut second = std::pin::pin!(Lock::take(&file));
        let early = tokio::time::timeout(Duration::from_millis(50), second.as_mut()).await;
        assert!(early.is_err(), "two hold it");
        drop(held);
        second.await.unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_written_is_named() {
        let error = Lock::take(Path::new("/proc/nowhere/shop.pem")).await.unwrap_err();
        assert!(error.to_string().contains("/proc/nowhere"), "{error}");
    }
}
