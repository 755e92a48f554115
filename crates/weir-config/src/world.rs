//! What a config may ask the world for: other files, and the environment. This crate looks at neither; the
//! program hands it something that does.

use std::path::{Path, PathBuf};

use crate::report::Severity;
use crate::tls::{Certificate, ListenerTls, PoolTls};

/// Reads for a config. Paths are as the config says them, below the folder of the file that says so.
pub trait World {
    /// The first `most` bytes of a file. `Err` says why there are none, in the system's words.
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, String>;

    /// The names of what is in a folder, in any order; `""` is the folder that the program runs in. `Err` as
    /// for [`World::read`].
    fn names(&self, folder: &str) -> Result<Vec<String>, String>;

    /// The value of an environment variable. `Err` says why there is none.
    fn variable(&self, name: &str) -> Result<String, String>;

    /// Whether files can be made in a folder. `Err` says why not, in the system's words; a world that has no
    /// disk says nothing against it.
    fn takes_files(&self, _folder: &str) -> Result<(), String> {
        Ok(())
    }

    /// Looks at files as who puts them to their use does, without a change to any: all that is wrong with
    /// them. A world that has no disk says nothing against them.
    fn look_at(&self, _files: &FileUse<'_>) -> Vec<FileProblem> {
        Vec::new()
    }
}

/// Files that a config names and does not hold, with what they are for.
#[derive(Clone, Copy, Debug)]
pub enum FileUse<'c> {
    /// Holds the token of the admin API.
    AdminToken(&'c Path),
    /// A certificate with its key, to be shown to clients.
    Certificate(&'c Certificate),
    /// A folder of more of them.
    CertificateFolder(&'c Path),
    /// The authorities of clients, and the lists of what they have revoked.
    Clients(&'c ListenerTls),
    /// Keys for tickets.
    TicketKeys(&'c [PathBuf]),
    /// What TLS is spoken with towards the backends of a pool, which are at these addresses.
    Backends(&'c PoolTls, &'c [&'c str]),
    /// Holds authorities.
    Authorities(&'c Path),
    /// Holds what sticky cookies are sealed with.
    StickySecret(&'c Path),
    /// Holds a password.
    Password(&'c Path),
    /// Holds names and passwords of accounts.
    Accounts(&'c Path),
    /// Holds the RSA key that clients are shown, or will hold it.
    OwnKey(&'c Path),
    /// Holds the RSA key of servers.
    ServerKey(&'c Path),
    /// Gets lines of a log.
    Log(&'c Path),
}

/// What is wrong with a file that a config names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// Whether the config can't be put in force with it.
    pub severity: Severity,
    /// Which: as the config names it, or one in a folder that it names.
    pub file: PathBuf,
    /// What is wrong, as what is said of the file: "can't be used".
    pub what: String,
    /// Why, what was expected, or what to do.
    pub hint: String,
}

impl FileProblem {
    /// Of a file that can't be put to its use, and why.
    pub fn unusable(file: &Path, why: impl Into<String>) -> FileProblem {
        let (file, what) = (file.to_owned(), "can't be used".to_owned());
        FileProblem { severity: Severity::Error, file, what, hint: why.into() }
    }
}

/// For a text that stands alone: whatever it asks for is not there.
pub(crate) struct Nothing;

/// What such a text is told.
const ALONE: &str = "this text is read by itself, without files and environment";

impl World for Nothing {
    fn read(&self, _: &str, _: usize) -> Result<Vec<u8>, String> {
        Err(ALONE.to_owned())
    }

    fn names(&self, _: &str) -> Result<Vec<String>, String> {
        Err(ALONE.to_owned())
    }

    fn variable(&self, _: &str) -> Result<String, String> {
        Err(ALONE.to_owned())
    }
}

/// The folder of a file, with the slash behind it; empty for a bare name.
pub(crate) fn folder_of(path: &str) -> &str {
    path.rfind('/').map_or("", |slash| &path[..=slash])
}

/// `path` as seen from `folder`, without steps that lead nowhere: two ways to write one path are one, but for
/// links.
pub(crate) fn below(folder: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{folder}{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match (part, parts.last()) {
            ("..", Some(last)) if *last != ".." => {
                parts.pop();
            }
            ("..", None) if whole.starts_with('/') => {}
            _ => parts.push(part),
        }
    }
    let root = if whole.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_seen_from_the_folder_of_the_file_that_says_it() {
        assert_eq!(below(folder_of("/etc/weir/weir.toml"), "conf.d/a.toml"), "/etc/weir/conf.d/a.toml");
        assert_eq!(below(folder_of("/etc/weir/weir.toml"), "../lists/./a"), "/etc/lists/a");
        assert_eq!(below(folder_of("weir.toml"), "/a"), "/a");
        assert_eq!(below(folder_of("weir.toml"), "a"), "a");
        assert_eq!(below(folder_of("conf/weir.toml"), "../../a"), "../a");
        assert_eq!(below("/", "../../a"), "/a");
    }
}
