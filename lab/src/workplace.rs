//! The lab's workplace on this machine: a directory for configs and logs, and a lock so that only one lab
//! measures at a time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A directory for configs and logs, removed when dropped.
pub struct Workplace(PathBuf);

impl Workplace {
    const PREFIX: &str = "weir-lab-";

    /// Makes one, and removes those whose lab was killed before it could.
    pub fn make() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        for entry in fs::read_dir(&parent)?.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(Self::PREFIX)?.parse::<u32>().ok());
            if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = parent.join(format!("{}{}", Self::PREFIX, std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Makes one at `path`, which nothing else uses.
    pub fn at(path: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// An empty directory of that name in it.
    pub fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until no other lab measures on this machine, because two would disturb each other. The turn ends
/// when the file is dropped.
pub fn wait_for_turn() -> io::Result<fs::File> {
    let path = std::env::temp_dir().join("weir-lab.lock");
    // A file that another user made can be opened only for reading, which is enough to wait for its lock.
    let file = match fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => fs::File::open(&path)?,
        opened => opened?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            eprintln!("waiting for another measurement on this machine to end (--together does not wait)");
            file.lock()?;
        }
        Err(fs::TryLockError::Error(error)) => return Err(error),
    }
    Ok(file)
}
