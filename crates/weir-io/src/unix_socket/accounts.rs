//! Who may connect to a socket file: users and groups by name, and the rights it takes to change them.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::thread::CapabilitySet;

use super::Refusal;
use super::file::{FileId, GivenTo};

/// Who may connect to a socket file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Mode of the file.
    pub mode: u32,
    /// Name or number of the owning user; `None` for the user the process runs as.
    pub owner: Option<String>,
    /// Name or number of the owning group; `None` for the default.
    pub group: Option<String>,
}

/// The permission bits of a mode.
const MODE_BITS: u32 = 0o777;

/// A handle to a socket's file, which stays the same file whatever replaces it at its path.
pub(super) struct Handle {
    file: File,
    found: Metadata,
}

impl Handle {
    /// Opens what stands at a path, without following a link.
    pub(super) fn of(path: &Path) -> io::Result<Handle> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let found = file.metadata()?;
        if !found.file_type().is_socket() {
            return Err(Refusal::Taken("another file has come in its place").into());
        }
        Ok(Handle { file, found })
    }

    pub(super) fn id(&self) -> FileId {
        FileId::of(&self.found)
    }

    fn change_mode(&self, mode: u32) -> io::Result<()> {
        // Before Linux 6.6 there is no chmod by a handle of this kind, only through its entry in /proc.
        let by_handle = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::chmod(by_handle, Mode::from_raw_mode(mode))?)
    }

    fn change_owner(&self, owner: Option<u32>, group: Option<u32>) -> io::Result<()> {
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        Ok(rustix::fs::chownat(self.file.as_fd(), "", owner, group, AtFlags::EMPTY_PATH)?)
    }
}

/// Permissions as numbers; `None` leaves the owner or group as it is.
pub(super) struct Accounts {
    pub(super) mode: u32,
    pub(super) owner: Option<u32>,
    pub(super) group: Option<u32>,
}

impl Accounts {
    /// For a new file.
    pub(super) fn of(permissions: &Permissions) -> io::Result<Accounts> {
        let owner = permissions.owner.as_deref().map(user_number);
        let group = permissions.group.as_deref().map(group_number);
        Ok(Accounts { mode: permissions.mode, owner: owner.transpose()?, group: group.transpose()? })
    }

    /// For the file at `path`, which had been given to somebody: an owner or group that is no longer
    /// configured is replaced by the one a new file would have.
    pub(super) fn in_place_of(
        given_to: GivenTo,
        path: &Path,
        permissions: &Permissions,
    ) -> io::Result<Accounts> {
        let mut accounts = Accounts::of(permissions)?;
        if accounts.owner.is_none() && given_to.owner {
            accounts.owner = Some(rustix::process::geteuid().as_raw());
        }
        if accounts.group.is_none() && given_to.group {
            let folder = std::fs::metadata(super::folder_of(path))?;
            // New files in such a folder get its group (inode(7), the set-group-ID bit).
            let is_inherited = folder.mode() & 0o2000 != 0;
            let own = rustix::process::getegid().as_raw();
            accounts.group = Some(if is_inherited { folder.gid() } else { own });
        }
        Ok(accounts)
    }

    /// Sets owner, group and mode of a socket file, as far as they differ.
    ///
    /// At no moment may anybody connect who may connect neither before nor afterwards: meanwhile a group gets
    /// only what both modes grant. A change to another owner comes last, because only the owner can change
    /// the mode from then on; for the same reason a change to this process's own user comes first.
    pub(super) fn give(&self, file: &Handle) -> io::Result<()> {
        let (owner, group) = self.changed(file);
        let is_coming_back = owner == Some(rustix::process::geteuid().as_raw());
        if is_coming_back {
            file.change_owner(owner, None)?;
        }
        let mut mode = file.found.mode() & MODE_BITS;
        if group.is_some() && mode & self.mode != mode {
            mode &= self.mode;
            file.change_mode(mode)?;
        }
        if group.is_some() {
            file.change_owner(None, group)?;
        }
        if mode != self.mode {
            file.change_mode(self.mode)?;
        }
        if owner.is_some() && !is_coming_back {
            file.change_owner(owner, None)?;
        }
        Ok(())
    }

    /// Whether this process has the rights that [`Self::give`] takes (capabilities(7)).
    pub(super) fn may_give(&self, file: &Handle) -> io::Result<()> {
        // If capabilities can't be read, the kernel decides when the change is made.
        let held = rustix::thread::capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective);
        let own = rustix::process::geteuid().as_raw();
        let is_own = file.found.uid() == own;
        let (owner, group) = self.changed(file);
        let changes_mode = file.found.mode() & MODE_BITS != self.mode;
        if changes_mode && !is_own && owner != Some(own) && !held.contains(CapabilitySet::FOWNER) {
            return Err(Refusal::Right("the file belongs to another user: its mode takes CAP_FOWNER").into());
        }
        if held.contains(CapabilitySet::CHOWN) {
            return Ok(());
        }
        if owner.is_some() {
            return Err(Refusal::Right("another `owner` takes CAP_CHOWN").into());
        }
        match group {
            Some(group) if !(is_own && is_in(group)) => {
                Err(Refusal::Right("a `group` that Weir is not in takes CAP_CHOWN").into())
            }
            _ => Ok(()),
        }
    }

    /// Owner and group, if they differ from what the file has.
    fn changed(&self, file: &Handle) -> (Option<u32>, Option<u32>) {
        let owner = self.owner.filter(|owner| *owner != file.found.uid());
        (owner, self.group.filter(|group| *group != file.found.gid()))
    }
}

/// Whether this process is in a group.
fn is_in(group: u32) -> bool {
    let others = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || others.iter().any(|other| other.as_raw() == group)
}

/// The number of a user, given by name (from /etc/passwd) or by number.
///
/// # Errors
/// There is no user of that name.
pub fn user_number(name: &str) -> io::Result<u32> {
    number_of("user", "/etc/passwd", name)
}

/// The number of a group, given by name (from /etc/group) or by number.
///
/// # Errors
/// There is no group of that name.
pub fn group_number(name: &str) -> io::Result<u32> {
    number_of("group", "/etc/group", name)
}

fn number_of(kind: &'static str, file: &str, name: &str) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let known = std::fs::read_to_string(file).unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    known.lines().find_map(of_line).ok_or_else(|| Refusal::Nobody { kind, name: name.to_owned() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_by_number() {
        assert_eq!(user_number("root").unwrap(), 0);
        assert_eq!(group_number("4711").unwrap(), 4711);
        let missing = group_number("no-such-group").unwrap_err();
        assert!(missing.to_string().starts_with("no group is called `no-such-group`"));
    }
}
