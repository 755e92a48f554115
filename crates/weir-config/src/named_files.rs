//! Files that a config names without containing their content, and problems with them.

use std::path::{Path, PathBuf};

use crate::peers::PeersTls;
use crate::report::Severity;
use crate::tls::{Certificate, ListenerTls, PoolTls};
use crate::world::{Nothing, World};

/// Examines the files that a config names. This crate opens none of them itself.
pub trait NamedFiles: World {
    /// Examines files in the way that their user would, without changing any, and returns all problems. An
    /// implementation without a disk finds none.
    fn look_at(&self, _files: &FileUse<'_>) -> Vec<FileProblem> {
        Vec::new()
    }

    /// Checks that a user or group with this name or number exists; `Err` says what is expected. An
    /// implementation without a disk accepts all.
    fn knows(&self, _holder: FileHolder, _name: &str) -> Result<(), String> {
        Ok(())
    }
}

impl NamedFiles for Nothing {}

/// The kind of owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileHolder {
    /// A user.
    User,
    /// A group.
    Group,
}

impl FileHolder {
    /// The word for messages.
    pub fn word(self) -> &'static str {
        match self {
            FileHolder::User => "user",
            FileHolder::Group => "group",
        }
    }
}

/// Files that a config names without containing their content, by their purpose.
#[derive(Clone, Copy, Debug)]
pub enum FileUse<'c> {
    /// Contains the token of the admin API.
    AdminToken(&'c Path),
    /// A certificate with its key, to be presented to clients.
    Certificate(&'c Certificate),
    /// A folder with more of them.
    CertificateFolder(&'c Path),
    /// Certificate authorities for clients, and their revocation lists.
    Clients(&'c ListenerTls),
    /// Keys for session tickets.
    TicketKeys(&'c [PathBuf]),
    /// The TLS files for the backends of a pool, and the addresses of the backends.
    Backends(&'c PoolTls, &'c [&'c str]),
    /// Contains certificate authorities.
    Authorities(&'c Path),
    /// Contains the secret that seals sticky cookies.
    StickySecret(&'c Path),
    /// Contains the secret of Weirs that count together.
    PeersSecret(&'c Path),
    /// Certificates of Weirs that count together.
    PeersTls(&'c PeersTls),
    /// Contains a password.
    Password(&'c Path),
    /// Contains names and passwords of accounts.
    Accounts(&'c Path),
    /// Contains the RSA key that is shown to clients, or will contain it.
    OwnKey(&'c Path),
    /// Contains the RSA key of servers.
    ServerKey(&'c Path),
    /// Receives the lines of a log.
    Log(&'c Path),
}

impl FileUse<'_> {
    /// The first of these files; `None` if there is none.
    pub fn first(&self) -> Option<&Path> {
        match self {
            FileUse::AdminToken(file)
            | FileUse::CertificateFolder(file)
            | FileUse::Authorities(file)
            | FileUse::StickySecret(file)
            | FileUse::PeersSecret(file)
            | FileUse::Password(file)
            | FileUse::Accounts(file)
            | FileUse::OwnKey(file)
            | FileUse::ServerKey(file)
            | FileUse::Log(file) => Some(file),
            FileUse::Certificate(certificate) => Some(&certificate.cert),
            FileUse::Clients(tls) => tls.client_ca.as_deref(),
            FileUse::PeersTls(tls) => Some(&tls.cert),
            FileUse::TicketKeys(files) => files.first().map(PathBuf::as_path),
            FileUse::Backends(tls, _) => tls.ca.as_deref().or(tls.cert.as_deref()),
        }
    }
}

/// A problem with a file that a config names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// Whether it keeps the config from being put in force.
    pub severity: Severity,
    /// The file: as the config names it, or one in a folder that it names.
    pub file: PathBuf,
    /// The problem, in words that follow the file's name: "can't be used".
    pub what: String,
    /// Why, what was expected, or what to do.
    pub hint: String,
}

impl FileProblem {
    /// The problem of a file that can't be used, and why.
    pub fn unusable(file: &Path, why: impl Into<String>) -> FileProblem {
        let (file, what) = (file.to_owned(), "can't be used".to_owned());
        FileProblem { severity: Severity::Error, file, what, hint: why.into() }
    }
}
