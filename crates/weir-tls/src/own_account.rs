//! Weir's own account on the MySQL servers of a pool, which it uses to find out which one is the primary.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use weir_config::PoolMysql;

use crate::files::{self, LoadError};
use crate::password::{LONGEST_BYTES, Password};
use crate::rsa_key::ServerKey;

/// Name and password of an account, and the key that encrypts the password when there is no TLS.
pub struct OwnAccount {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: Password,
    /// The servers' key, where the config pins one.
    pub server_key: Option<ServerKey>,
    /// The content of the key's file, for comparison.
    key_file: Option<Vec<u8>>,
}

impl OwnAccount {
    /// Reads the files that `config` names; `None` if it has no account.
    ///
    /// # Errors
    /// A file can't be used, or others than its owner may read the password.
    pub(crate) fn load(config: &PoolMysql) -> Result<Option<Arc<OwnAccount>>, LoadError> {
        let Some(user) = config.user.clone() else { return Ok(None) };
        let password = match &config.password_file {
            Some(file) => read_password(file)?,
            None => Password::new(b"").ok_or_else(|| LoadError::new(Path::new("password"), "is too long"))?,
        };
        let (mut server_key, mut key_file) = (None, None);
        if let Some(file) = &config.server_public_key {
            server_key = Some(ServerKey::load(file)?);
            key_file = Some(files::read(file)?);
        }
        Ok(Some(Arc::new(OwnAccount { user, password, server_key, key_file })))
    }

    /// Whether both log in in the same way.
    pub fn is_same(&self, other: &OwnAccount) -> bool {
        self.user == other.user && self.password.is_same(&other.password) && self.key_file == other.key_file
    }
}

impl fmt::Debug for OwnAccount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("OwnAccount").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The password in a file: the whole content except the line end.
pub(crate) fn read_password(file: &Path) -> Result<Password, LoadError> {
    files::refuse_if_others_may_read(file)?;
    let bytes = zeroize::Zeroizing::new(files::read(file)?);
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.contains(&b'\n') || line.contains(&0) {
        return Err(LoadError::new(file, "has more than one line; expected a password and nothing else"));
    }
    Password::new(line).ok_or_else(|| {
        LoadError::new(file, format!("is longer than {LONGEST_BYTES} bytes; expected a password"))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// What a password file with these contents and mode comes to.
    fn of_file(contents: &[u8], mode: u32) -> Result<Vec<u8>, String> {
        let file = std::env::temp_dir().join(format!("weir-password-{}-{mode:o}", std::process::id()));
        std::fs::write(&file, contents).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let read = read_password(&file).map(|password| password.bytes().to_vec());
        std::fs::remove_file(&file).unwrap();
        read.map_err(|error| error.reason)
    }

    #[test]
    fn a_password_file_is_one_line_that_nobody_else_may_read() {
        for line in [&b"se same"[..], b"se same\n", b"se same\r\n"] {
            assert_eq!(of_file(line, 0o600).as_deref(), Ok(&b"se same"[..]));
        }
        assert_eq!(of_file(b"", 0o400).as_deref(), Ok(&b""[..]));
        assert!(of_file(b"a\nb\n", 0o600).unwrap_err().contains("more than one line"));
        assert!(of_file(b"sesame", 0o640).unwrap_err().contains("may be read by others"));
        assert!(of_file(&[b'a'; LONGEST_BYTES + 1], 0o600).unwrap_err().contains("longer"));
    }

    #[test]
    fn what_is_printed_of_an_account_does_not_have_its_password() {
        let account = OwnAccount {
            user: "weir".to_owned(),
            password: Password::new(b"sesame").unwrap(),
            server_key: None,
            key_file: None,
        };
        assert_eq!(format!("{account:?}"), "OwnAccount { user: \"weir\", .. }");
    }
}
