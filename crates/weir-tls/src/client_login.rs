//! What clients of a pool of MySQL servers log in with: the key that encrypts their passwords, and the known
//! accounts.

use std::fmt;
use std::sync::{Arc, OnceLock};

use weir_config::{Passwords, PoolMysql};

use crate::account_file::AccountFile;
use crate::files::{self, LoadError};
use crate::rsa_key::{PasswordKey, ServerKey};

/// What was read from the files that `[pool.NAME.mysql]` names for client logins.
pub struct ClientLogin {
    /// Weir's own key.
    pub own_key: Arc<PasswordKey>,
    /// The servers' key, where the config pins one.
    pub server_key: Option<ServerKey>,
    /// The accounts of `passwords_file`.
    pub file: Option<AccountFile>,
    /// The content of the servers' key file, for comparison.
    server_pem: Option<Vec<u8>>,
}

/// The key used if the config names no file: made when first needed, and kept across reloads.
static KEY_OF_THE_PROCESS: OnceLock<Arc<PasswordKey>> = OnceLock::new();

impl ClientLogin {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// A file can't be used, or a file with a secret can be read by others than its owner.
    pub(crate) fn load(config: &PoolMysql) -> Result<Arc<ClientLogin>, LoadError> {
        let own_key = match (&config.key_file, KEY_OF_THE_PROCESS.get()) {
            (Some(file), _) => Arc::new(PasswordKey::load(Some(file))?),
            (None, Some(key)) => key.clone(),
            (None, None) => {
                let key = Arc::new(PasswordKey::load(None)?);
                KEY_OF_THE_PROCESS.get_or_init(|| key).clone()
            }
        };
        let (mut server_key, mut server_pem) = (None, None);
        if let Some(file) = &config.server_public_key {
            server_key = Some(ServerKey::load(file)?);
            server_pem = Some(files::read(file)?);
        }
        let file = config.passwords_file.as_deref().filter(|_| config.passwords == Passwords::File);
        let file = file.map(AccountFile::load).transpose()?;
        Ok(Arc::new(ClientLogin { own_key, server_key, file, server_pem }))
    }

    /// Whether both log clients in in the same way.
    pub fn is_same(&self, other: &ClientLogin) -> bool {
        let is_same_file = match (&self.file, &other.file) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        is_same_file
            && self.own_key.public_pem() == other.own_key.public_pem()
            && self.server_pem == other.server_pem
    }
}

impl fmt::Debug for ClientLogin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ClientLogin").finish_non_exhaustive()
    }
}
