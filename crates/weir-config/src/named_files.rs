//! Files that a config names and does not hold, and what is wrong with them.

use std::path::{Path, PathBuf};

use crate::report::Severity;
use crate::tls::{Certificate, ListenerTls, PoolTls};
use crate::world::{Nothing, World};

/// Looks at the files that a config names. This crate opens none of them either.
pub trait NamedFiles: World {
    /// Looks at files as who puts them to their use does, without a change to any: all that is wrong with
    /// them. Where there is no disk nothing is said against them.
    fn look_at(&self, _files: &FileUse<'_>) -> Vec<FileProblem> {
        Vec::new()
    }

    /// Whether there is a user or group of this name, or number; `Err` says what is expected. Where there is
    /// no disk everybody is there.
    fn knows(&self, _holder: FileHolder, _name: &str) -> Result<(), String> {
        Ok(())
    }
}

impl NamedFiles for Nothing {}

/// Whom a file is to belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileHolder {
    /// A user.
    User,
    /// A group.
    Group,
}

impl FileHolder {
    /// The word in messages.
    pub fn word(self) -> &'static str {
        match self {
            FileHolder::User => "user",
            FileHolder::Group => "group",
        }
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
