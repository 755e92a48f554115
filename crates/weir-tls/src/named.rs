//! Files that are tried before they are needed.

use std::path::Path;

use weir_config::FileUse;

use crate::account_file::AccountFile;
use crate::files::{self, LoadError};
use crate::rsa_key::{PasswordKey, ServerKey};
use crate::{own_account, token};

/// Whether a file can be put to its use: it is read as it will be then.
///
/// # Errors
/// It can't.
pub fn can_use(file: &Path, purpose: FileUse) -> Result<(), LoadError> {
    match purpose {
        FileUse::AdminToken => token::read(file).map(drop),
        FileUse::Pem => files::read(file).map(drop),
        FileUse::Password => own_account::read_password(file).map(drop),
        FileUse::Accounts => AccountFile::load(file).map(drop),
        FileUse::OwnKey => PasswordKey::load(Some(file)).map(drop),
        FileUse::ServerKey => ServerKey::load(file).map(drop),
        FileUse::Log => Ok(()),
    }
}
