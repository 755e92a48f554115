//! Tells which file is waited for while a config is read, if its disk, or the server of files that it is on,
//! does not answer: without that, a program that is starting would seem to do nothing.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use weir_config::{FileHolder, FileProblem, FileUse, NamedFiles, World};

use crate::config_files::Disk;

/// No disk that answers takes as long for one file.
const PATIENCE: Duration = Duration::from_secs(5);

/// [`Disk`], and somebody who watches it.
pub(crate) struct WatchedDisk(Sender<Option<String>>);

impl WatchedDisk {
    /// `tell` gets what to say of each file that has been waited for, on another thread.
    pub(crate) fn telling(tell: impl Fn(String) + Send + 'static) -> WatchedDisk {
        let (begun, looks) = mpsc::channel();
        let watch = move || {
            let mut awaited: Option<String> = None;
            loop {
                match looks.recv_timeout(PATIENCE) {
                    Ok(file) => awaited = file,
                    Err(RecvTimeoutError::Timeout) => {
                        if let Some(file) = awaited.take() {
                            tell(format!(
                                "waiting for {file}: its disk, or a server of files, has not answered for {PATIENCE:?}"
                            ));
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        // Without a thread nothing is told.
        let _ = std::thread::Builder::new().name("weir-slow-files".to_owned()).spawn(watch);
        WatchedDisk(begun)
    }

    /// Does `work`, which may wait for this file.
    pub(crate) fn within<T>(&self, file: &str, work: impl FnOnce() -> T) -> T {
        let _ = self.0.send(Some(file.to_owned()));
        let done = work();
        let _ = self.0.send(None);
        done
    }
}

impl World for WatchedDisk {
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, String> {
        self.within(path, || Disk.read(path, most))
    }

    fn names(&self, folder: &str) -> Result<Vec<String>, String> {
        self.within(folder, || Disk.names(folder))
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        Disk.variable(name)
    }

    fn takes_files(&self, folder: &str) -> Result<(), String> {
        self.within(folder, || Disk.takes_files(folder))
    }
}

impl NamedFiles for WatchedDisk {
    fn look_at(&self, files: &FileUse<'_>) -> Vec<FileProblem> {
        match files.first().and_then(Path::to_str) {
            Some(file) => self.within(file, || Disk.look_at(files)),
            None => Disk.look_at(files),
        }
    }

    fn knows(&self, holder: FileHolder, name: &str) -> Result<(), String> {
        Disk.knows(holder, name)
    }
}
