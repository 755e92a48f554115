//! The identity of a socket's file, to tell it from whatever else stands at its path later.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::str::FromStr;

use super::Refusal;
use super::accounts::{Accounts, Handle, Permissions};

/// The device and inode of a socket's file. The kernel does not reuse the inode as long as the socket is
/// open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(found: &Metadata) -> FileId {
        FileId { device: found.dev(), inode: found.ino() }
    }
}

/// `2049:1234`, device and inode.
impl fmt::Display for FileId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.device, self.inode)
    }
}

impl FromStr for FileId {
    type Err = ();

    fn from_str(text: &str) -> Result<FileId, ()> {
        let (device, inode) = text.split_once(':').ok_or(())?;
        let number = |text: &str| text.parse().map_err(|_| ());
        Ok(FileId { device: number(device)?, inode: number(inode)? })
    }
}

/// The file of a socket that this process created, or took over from its predecessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    path: String,
    id: FileId,
    /// The permissions it was last given; `None` if an earlier process gave them.
    permissions: Option<Permissions>,
    given_to: GivenTo,
}

/// Whether a file was given to another owner or group than a new file would have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GivenTo {
    pub(super) owner: bool,
    pub(super) group: bool,
}

impl GivenTo {
    fn by(permissions: &Permissions) -> GivenTo {
        GivenTo { owner: permissions.owner.is_some(), group: permissions.group.is_some() }
    }

    /// All values, each with its word.
    const WORDS: [(GivenTo, &'static str); 4] = [
        (GivenTo { owner: false, group: false }, "nobody"),
        (GivenTo { owner: true, group: false }, "owner"),
        (GivenTo { owner: false, group: true }, "group"),
        (GivenTo { owner: true, group: true }, "both"),
    ];
}

impl SocketFile {
    /// For a file that was just made with these permissions.
    pub(super) fn made(path: String, id: FileId, permissions: &Permissions) -> SocketFile {
        SocketFile { path, id, permissions: Some(permissions.clone()), given_to: GivenTo::by(permissions) }
    }

    /// The socket that stands at a path now; `None` if there is none.
    pub fn standing_at(path: &str) -> Option<SocketFile> {
        let (id, given_to) = (id_of(path)?, GivenTo::default());
        Some(SocketFile { path: path.to_owned(), id, permissions: None, given_to })
    }

    /// What another process needs to know besides the path: `2049:1234 nobody`, which is device and inode,
    /// and whether the file was given to an `owner`, a `group`, `both` or `nobody`.
    pub fn words(&self) -> String {
        let word =
            GivenTo::WORDS.iter().find(|(given_to, _)| *given_to == self.given_to).map_or("", |it| it.1);
        format!("{} {word}", self.id)
    }

    /// The file at a path for which an earlier process wrote these [`Self::words`].
    pub fn of_words(path: &str, words: &str) -> Option<SocketFile> {
        let (numbers, word) = words.split_once(' ')?;
        let (given_to, _) = *GivenTo::WORDS.iter().find(|(_, other)| *other == word)?;
        Some(SocketFile { path: path.to_owned(), id: numbers.parse().ok()?, permissions: None, given_to })
    }

    /// Its device and inode.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether it still stands at its path.
    pub fn stands(&self) -> bool {
        id_of(&self.path) == Some(self.id)
    }

    /// Whether [`Self::allow`] would succeed.
    ///
    /// # Errors
    /// Those of [`Self::allow`].
    pub fn may_allow(&self, permissions: &Permissions) -> io::Result<()> {
        let accounts = self.accounts(permissions)?;
        self.handle(permissions)?.map_or(Ok(()), |file| accounts.may_give(&file))
    }

    /// Changes who may connect. If the file is gone or another's stands there, and the permissions are not
    /// being changed, does nothing: nobody can connect.
    ///
    /// # Errors
    /// The file is gone and had other permissions; the user or group does not exist; or a right is missing.
    pub fn allow(&mut self, permissions: &Permissions) -> io::Result<()> {
        let accounts = self.accounts(permissions)?;
        self.handle(permissions)?.map_or(Ok(()), |file| accounts.give(&file))?;
        (self.permissions, self.given_to) = (Some(permissions.clone()), GivenTo::by(permissions));
        Ok(())
    }

    /// Removes it, if it still stands there.
    pub fn remove(&self) {
        if self.stands() {
            let _ = rustix::fs::unlink(&self.path);
        }
    }

    fn accounts(&self, permissions: &Permissions) -> io::Result<Accounts> {
        Accounts::in_place_of(self.given_to, Path::new(&self.path), permissions)
    }

    /// `None` if the file does not stand there, and need not.
    fn handle(&self, permissions: &Permissions) -> io::Result<Option<Handle>> {
        let file = Handle::of(Path::new(&self.path)).ok().filter(|file| file.id() == self.id);
        let is_changed = self.permissions.as_ref().is_some_and(|given| given != permissions);
        if file.is_none() && is_changed {
            return Err(Refusal::Taken("what stands there is not the socket that Weir made").into());
        }
        Ok(file)
    }
}

/// The socket that stands at a path; `None` if there is none.
pub fn id_of(path: &str) -> Option<FileId> {
    let found = std::fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket())?;
    Some(FileId::of(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_file_can_be_read_again() {
        for (_, word) in GivenTo::WORDS {
            let words = format!("2049:18446744073709551615 {word}");
            let file = SocketFile::of_words("/a b.sock", &words).unwrap();
            assert_eq!((file.words(), file.path), (words, "/a b.sock".to_owned()));
        }
        for words in
            ["", "none -", "1", "1:2", "1: nobody", ":1 nobody", "1:2:3 nobody", "-1:2 both", "1:2 x"]
        {
            assert_eq!(SocketFile::of_words("/a", words), None, "{words}");
        }
    }
}
