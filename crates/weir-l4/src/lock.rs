//! Ownership of the kernel plane below a directory: one process has it at a time.
//!
//! The lock is that of flock(2), on the directory itself. The BPF file system supports it, it is visible in
//! every mount and namespace that has the directory, and it ends with the last process that has the
//! descriptor, however that one ends. It is passed to another process as a duplicate of the descriptor
//! (USR2).

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::program::{Error, is_mounted};

/// The right of this process, and of those that it has given a duplicate to, to change what is pinned below a
/// directory.
#[derive(Debug)]
pub struct DirectoryLock(File);

impl DirectoryLock {
    /// Locks a directory, and creates it if it is missing, accessible only for its owner, since whoever can
    /// open it can lock it.
    ///
    /// # Errors
    /// [`Error::Held`] if another process has it; or the directory can't be created or opened.
    pub fn acquire(directory: &Path) -> Result<DirectoryLock, Error> {
        if !is_mounted(directory) {
            return Err(Error::NotMounted { directory: directory.to_owned() });
        }
        let file = |source| Error::File { path: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(file)?;
        let held = File::open(directory).map_err(file)?;
        match flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(DirectoryLock(held)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(Error::Held { directory: directory.to_owned(), by: holder(&held) })
            }
            Err(error) => Err(file(error.into())),
        }
    }

    /// A lock that another process has handed over.
    pub fn adopt(given: OwnedFd) -> DirectoryLock {
        DirectoryLock(given.into())
    }

    /// A duplicate for another process.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }

    /// Whether it is the lock of this directory.
    pub fn is_of(&self, directory: &Path) -> bool {
        let place = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let own = self.0.metadata().map(place).ok();
        own.is_some() && own == std::fs::metadata(directory).map(place).ok()
    }

    /// The path of the directory.
    pub fn directory(&self) -> PathBuf {
        let link = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        std::fs::read_link(link).unwrap_or_default()
    }
}

/// The number of a process that has locked `file`, as far as this process can see others. The number in the
/// lock itself may be that of a process that has passed it on and ended.
fn holder(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let place = format!(" {major:02x}:{minor:02x}:{} ", meta.ino());
    let is_lock = |line: &str| line.starts_with("lock:") && line.contains(" FLOCK ") && line.contains(&place);
    let has_it = |pid: &u32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        let mut texts = open.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        texts.any(|text| text.lines().any(is_lock))
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(has_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any directory can be locked; [`DirectoryLock::acquire`] wants one of the BPF file system.
    fn locked(directory: &Path) -> Option<DirectoryLock> {
        let file = File::open(directory).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| DirectoryLock(file))
    }

    #[test]
    fn a_lock_is_held_until_the_last_descriptor_of_it_is_closed_and_tells_of_whom_it_is() {
        // Of a plain file system: some say otherwise in locks than stat(2) does which device they are on.
        let directory = Path::new("/dev/shm").join(format!("weir-lock-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let lock = locked(&directory).expect("nobody has it");
        assert!(locked(&directory).is_none());
        assert_eq!(holder(&File::open(&directory).unwrap()), Some(std::process::id()));
        let given = DirectoryLock::adopt(lock.duplicate().unwrap());
        drop(lock);
        assert!(locked(&directory).is_none());
        assert!(given.is_of(&directory) && !given.is_of(&std::env::temp_dir()));
        assert_eq!(given.directory(), directory.canonicalize().unwrap());
        drop(given);
        assert!(locked(&directory).is_some());
        std::fs::remove_dir(directory).unwrap();
    }
}
