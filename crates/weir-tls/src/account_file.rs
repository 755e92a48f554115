//! A file of accounts and passwords, for `passwords = "file"`: `user:password` on each line.

use std::collections::HashMap;
use std::path::Path;

use zeroize::Zeroizing;

use crate::accounts::LONGEST_NAME_BYTES;
use crate::files::{self, LoadError};
use crate::password::{LONGEST_BYTES, Password};

/// U+FEFF in UTF-8, at the beginning of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The accounts in a file.
pub struct AccountFile {
    by_name: HashMap<Box<[u8]>, Password>,
    digest: [u8; 32],
}

impl AccountFile {
    /// Reads a file. A name ends at the first colon, and everything after it is the password. Empty lines and
    /// those that begin with `#` are ignored, and so is a byte order mark, which some editors write: with it,
    /// the first account would have a name that no client logs in with.
    ///
    /// # Errors
    /// The file can't be read, others than its owner may read it, or a line has no account, or one that was
    /// already there.
    pub fn load(file: &Path) -> Result<AccountFile, LoadError> {
        let bytes = Zeroizing::new(files::read_private(file, "expected `user:password` on each line")?);
        let mut by_name = HashMap::new();
        let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            // The line contains a secret, so it is not part of an error.
            let wrong = |what: &str| LoadError::new(file, format!("line {number} {what}"));
            if line.contains(&0) {
                return Err(wrong("has a NUL; expected text, `user:password`, not in UTF-16"));
            }
            let colon = line.iter().position(|byte| *byte == b':');
            let (user, rest) = line.split_at_checked(colon.unwrap_or(line.len())).unwrap_or((line, b""));
            let Some(password) = rest.strip_prefix(b":") else {
                return Err(wrong("has no colon; expected `user:password`"));
            };
            if user.is_empty() || user.len() > LONGEST_NAME_BYTES {
                return Err(wrong("has no user name of 1 to 32 characters; expected `user:password`"));
            }
            let password = Password::new(password)
                .ok_or_else(|| wrong(&format!("has a password of more than {LONGEST_BYTES} bytes")))?;
            if by_name.insert(Box::from(user), password).is_some() {
                return Err(wrong("has a user who stands before; expected one line for each"));
            }
        }
        let digest = Password::digest_of(&bytes);
        Ok(AccountFile { by_name, digest })
    }

    /// The password of `user`; `None` if the file does not have it.
    pub fn find(&self, user: &[u8]) -> Option<&Password> {
        self.by_name.get(user)
    }

    /// Whether both have the same content.
    pub fn is_same(&self, other: &AccountFile) -> bool {
        self.digest == other.digest
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn of(contents: &[u8], mode: u32) -> Result<AccountFile, String> {
        let name = format!("weir-accounts-{}-{:x}-{mode:o}", std::process::id(), contents.len());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, contents).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let read = AccountFile::load(&file);
        std::fs::remove_file(&file).unwrap();
        read.map_err(|error| error.reason)
    }

    #[test]
    fn a_line_is_a_name_up_to_the_first_colon_and_a_password() {
        let file = of(b"# ours\napp:ses:ame\r\n\nempty:\nlast:word", 0o600).unwrap();
        let password = |user: &[u8]| file.find(user).map(|password| password.bytes().to_vec());
        assert_eq!(password(b"app").as_deref(), Some(&b"ses:ame"[..]));
        assert_eq!(password(b"empty").as_deref(), Some(&b""[..]));
        assert_eq!(password(b"last").as_deref(), Some(&b"word"[..]));
        assert_eq!(password(b"# ours"), None);
        assert!(file.is_same(&of(b"# ours\napp:ses:ame\r\n\nempty:\nlast:word", 0o400).unwrap()));
        assert!(!file.is_same(&of(b"app:other", 0o600).unwrap()));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_name() {
        let file = of(b"\xef\xbb\xbfapp:sesame\r\n", 0o600).unwrap();
        assert_eq!(file.find(b"app").map(Password::bytes), Some(&b"sesame"[..]));
        assert!(of(b"\xef\xbb\xbf# ours\napp:sesame", 0o600).unwrap().find(b"app").is_some());
    }

    #[test]
    fn what_is_no_file_of_accounts_is_told_and_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("weir-account-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let reason = |name: &str| AccountFile::load(&folder.join(name)).err().unwrap().reason;
        let fifo = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(folder.join("fifo")).status();
        assert!(fifo.unwrap().success());
        assert!(reason("fifo").contains("no regular file"));
        assert!(reason(".").contains("no regular file"));
        let private = std::fs::Permissions::from_mode(0o600);
        let large = std::fs::File::create(folder.join("large")).unwrap();
        large.set_permissions(private).unwrap();
        large.set_len(1 << 30).unwrap();
        let large = reason("large");
        std::fs::write(folder.join("open"), "a:b").unwrap();
        std::fs::set_permissions(folder.join("open"), std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("open", folder.join("link")).unwrap();
        let link = reason("link");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(large.contains("longer than") && large.contains("user:password"), "{large}");
        assert!(link.contains("may be read by others"), "{link}");
    }

    #[test]
    fn an_error_says_the_line_and_not_what_stands_there() {
        for (contents, expected) in [
            (&b"a:b\nsesame\n"[..], "line 2 has no colon"),
            (b":sesame", "line 1 has no user name"),
            (b"a:sesame\na:sesame1", "line 2 has a user who stands before"),
            (b"a:sesame\nb:ses\0ame", "line 2 has a NUL"),
            (b"\xff\xfea\0:\0s\0e\0s\0a\0m\0e\0", "line 1 has a NUL"),
        ] {
            let reason = of(contents, 0o600).err().unwrap();
            assert!(reason.starts_with(expected) && !reason.contains("sesame"), "{reason}");
        }
        assert!(of(b"a:b", 0o644).err().unwrap().contains("may be read by others"));
        assert!(of(&[b"a:".as_slice(), &[b'x'; 300]].concat(), 0o600).err().unwrap().contains("256"));
    }
}
