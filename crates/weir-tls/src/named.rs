//! Checks files before they are needed.

use std::path::Path;

use weir_config::{CipherPolicy, FileUse};

use crate::account_file::AccountFile;
use crate::certificate::{self, Facts};
use crate::client::ClientTls;
use crate::files::{self, LoadError};
use crate::peers::PeerKeys;
use crate::revocations::ListFacts;
use crate::rsa_key::{PasswordKey, ServerKey};
use crate::shared_tickets::SharedKeys;
use crate::sticky::StickyKey;
use crate::{acme, folder, own_account, provider, server, token};

/// Result of checking files that a config names.
#[derive(Debug, Default)]
pub struct Looked {
    /// Files that can't be used.
    pub errors: Vec<LoadError>,
    /// Certificates that nothing renews automatically; they may have expired.
    pub certificates: Vec<Facts>,
    /// Revocation lists in use.
    pub lists: Vec<ListFacts>,
}

/// Reads files with the same code that will use them.
pub fn look_at(named: &FileUse<'_>) -> Looked {
    match named {
        FileUse::AdminToken(file) => one(token::read(file)),
        FileUse::Certificate(named) => match certificate::look(named, &provider::of(CipherPolicy::Default)) {
            Ok(facts) => Looked { certificates: vec![facts], ..Looked::default() },
            Err(errors) => Looked { errors, ..Looked::default() },
        },
        FileUse::CertificateFolder(folder) => of_folder(folder),
        FileUse::Clients(tls) => match server::look_at_clients(tls) {
            Ok(lists) => Looked { lists, ..Looked::default() },
            Err(errors) => Looked { errors, ..Looked::default() },
        },
        FileUse::TicketKeys(files) => {
            Looked { errors: SharedKeys::look(files).err().unwrap_or_default(), ..Looked::default() }
        }
        FileUse::Backends(tls, addresses) => match ClientTls::look(tls, addresses) {
            Ok((lists, own)) => {
                Looked { lists, certificates: own.into_iter().collect(), ..Looked::default() }
            }
            Err(errors) => Looked { errors, ..Looked::default() },
        },
        FileUse::Authorities(file) => one(files::certificates(file)),
        FileUse::PeersSecret(file) => one(PeerKeys::of_secret(file)),
        FileUse::PeersTls(tls) => match PeerKeys::look(tls) {
            Ok((facts, lists)) => Looked { certificates: vec![facts], lists, ..Looked::default() },
            Err(errors) => Looked { errors, ..Looked::default() },
        },
        FileUse::StickySecret(file) => one(StickyKey::load(Some(file))),
        FileUse::Password(file) => one(own_account::read_password(file)),
        FileUse::Accounts(file) => one(AccountFile::load(file)),
        FileUse::OwnKey(file) => one(PasswordKey::load(Some(file))),
        FileUse::ServerKey(file) => one(ServerKey::load(file)),
        FileUse::Log(_) => Looked::default(),
    }
}

fn one<T>(read: Result<T, LoadError>) -> Looked {
    Looked { errors: read.err().into_iter().collect(), ..Looked::default() }
}

fn of_folder(folder: &Path) -> Looked {
    let files = match folder::files(folder) {
        Ok(files) => files,
        Err(error) => return one::<()>(Err(error)),
    };
    let provider = provider::of(CipherPolicy::Default);
    let mut looked = Looked::default();
    for file in &files {
        match acme::load(file, &provider) {
            Ok(loaded) => looked.certificates.push(loaded.facts),
            Err(error) => looked.errors.push(error),
        }
    }
    looked
}
