//! Access to the files and the environment variables that a config refers to.

use std::io::Read as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, access};
use weir_config::{FileHolder, FileProblem, FileUse, NamedFiles, Severity, World};
use weir_io::unix_socket::{group_number, user_number};

use crate::certificates;

/// How long what a log's file is on may take to answer.
const LOG_ANSWERS: Duration = Duration::from_secs(2);

/// The file system as this process sees it, and its environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl World for Disk {
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, String> {
        let path = Path::new(path);
        weir_tls::read_regular(path, most as u64).map_err(|error| weir_tls::why_unread(path, &error))
    }

    fn names(&self, folder: &str) -> Result<Vec<String>, String> {
        let folder = if folder.is_empty() { "." } else { folder };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
            let entry = entry.map_err(|error| error.to_string())?;
            // No pattern in a config can match a name that is not UTF-8.
            names.extend(entry.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        match std::env::var(name) {
            Ok(value) => Ok(value),
            Err(std::env::VarError::NotPresent) => Err("is not set".to_owned()),
            Err(std::env::VarError::NotUnicode(_)) => Err("is not UTF-8 text".to_owned()),
        }
    }

    fn takes_files(&self, folder: &str) -> Result<(), String> {
        weir_io::temporary::unnamed(Path::new(folder)).map(drop).map_err(|error| error.to_string())
    }
}

impl NamedFiles for Disk {
    fn look_at(&self, files: &FileUse<'_>) -> Vec<FileProblem> {
        let can_log = |file: &Path| {
            can_log(file).err().map(|why| FileProblem::unusable(file, why)).into_iter().collect()
        };
        match files {
            FileUse::Log(file) => look_at_log(file).into_iter().collect(),
            // Made when it is not there.
            FileUse::OwnKey(file) if !file.exists() => can_log(file),
            files => certificates::problems(&weir_tls::look_at(files), SystemTime::now()),
        }
    }

    fn knows(&self, holder: FileHolder, name: &str) -> Result<(), String> {
        let (number, file) = match holder {
            FileHolder::User => (user_number(name), "/etc/passwd"),
            FileHolder::Group => (group_number(name), "/etc/group"),
        };
        number.map(drop).map_err(|_| format!("expected a name in {file}, or a number"))
    }
}

/// The same for code that reads a config without putting it in force: files that only Weir itself needs are
/// not checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnlyRead;

impl World for OnlyRead {
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, String> {
        Disk.read(path, most)
    }

    fn names(&self, folder: &str) -> Result<Vec<String>, String> {
        Disk.names(folder)
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        Disk.variable(name)
    }
}

impl NamedFiles for OnlyRead {}

/// A log that can't be opened does not keep Weir from serving (decision 0052), nor does one whose disk hangs.
fn look_at_log(file: &Path) -> Option<FileProblem> {
    let look = |file: &Path| match file.is_dir() {
        true => can_log(file).err().map(|why| FileProblem::unusable(file, why)),
        false => can_append(file).err().map(|why| unopened(file, why)),
    };
    let (told, tells) = mpsc::channel();
    let on_thread = {
        let file = file.to_owned();
        move || drop(told.send(look(&file)))
    };
    match std::thread::Builder::new().name("weir-log-look".to_owned()).spawn(on_thread) {
        Ok(_) => tells.recv_timeout(LOG_ANSWERS).unwrap_or_else(|_| {
            Some(unopened(
                file,
                format!("its disk, or server of files, does not answer within {LOG_ANSWERS:?}"),
            ))
        }),
        Err(_) => look(file),
    }
}

/// Checks, without writing to the file, whether this process may append to it.
fn can_append(file: &Path) -> Result<(), String> {
    can_log(file)?;
    let (place, rights) = match file.exists() {
        true => (file, Access::WRITE_OK),
        false => (folder_of(file), Access::WRITE_OK | Access::EXEC_OK),
    };
    access(place, rights).map_err(|error| format!("{}: {}", place.display(), std::io::Error::from(error)))
}

fn unopened(file: &Path, why: String) -> FileProblem {
    let what = "can't be opened by this process as it is".to_owned();
    let hint = format!("{why}: Weir serves all the same, and its lines wait in memory until it can");
    FileProblem { severity: Severity::Warning, file: file.to_owned(), what, hint }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether lines can be put into a file, as far as that can be seen without one.
fn can_log(file: &Path) -> Result<(), String> {
    let folder = folder_of(file);
    let found = std::fs::metadata(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    match found.is_dir() && !file.is_dir() {
        true => Ok(()),
        false => Err("expected a file in a folder that is there".to_owned()),
    }
}

/// The first `most` bytes of a file that was named to a command; it may be a pipe.
pub fn read_file(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(std::io::Error::other("it is a directory"));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
