//! Creating and removing listening Unix domain sockets (unix(7)).
//!
//! Others may be able to write to the folder of a socket file, so no operation on its path follows a symbolic
//! link. A socket is created under another name in the same folder, gets its owner and permissions, and
//! listens; only then is it renamed to its path. So whoever finds it there can connect and is served.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::at::UnixName;

mod accounts;
mod file;
mod listed;

use self::accounts::{Accounts, Handle};
pub use self::accounts::{Permissions, group_number, user_number};
pub use self::file::{FileId, SocketFile, id_of};

/// A listening socket.
#[derive(Debug)]
pub struct Listening {
    /// The socket.
    pub socket: OwnedFd,
    /// Its file; `None` for a socket in the abstract namespace, or one whose file is known to be gone.
    pub file: Option<SocketFile>,
}

/// Why the socket could not be created.
#[derive(Debug)]
enum Refusal {
    /// Something stands at the path that we must not replace.
    Taken(&'static str),
    /// No such user or group.
    Nobody { kind: &'static str, name: String },
    /// This process lacks a right.
    Right(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Taken(what) | Refusal::Right(what) => write!(out, "{what}"),
            Refusal::Nobody { kind, name } => {
                write!(out, "no {kind} is called `{name}` on this machine; a number is taken as well")
            }
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        let kind = match refusal {
            Refusal::Taken(_) => io::ErrorKind::AlreadyExists,
            Refusal::Nobody { .. } => io::ErrorKind::NotFound,
            Refusal::Right(_) => io::ErrorKind::PermissionDenied,
        };
        io::Error::new(kind, refusal)
    }
}

/// How often locking the folder is tried, and the wait between tries: other processes hold the lock for as
/// long as it takes to create a socket.
const TURN_TRIES: u32 = 100;
const TURN_PAUSE: Duration = Duration::from_millis(5);

static MADE: AtomicU32 = AtomicU32::new(0);

/// Opens a listening socket under this name. A file that a dead process left behind is replaced.
///
/// # Errors
/// Another program listens there; something else stands at the path, such as a symbolic link; the folder,
/// user or group does not exist; or this process lacks the right to use them.
pub fn listen(name: &UnixName, permissions: &Permissions, backlog: i32) -> io::Result<Listening> {
    let Some(path) = name.path() else {
        let socket = open()?;
        rustix::net::bind(&socket, &name.address()?)?;
        rustix::net::listen(&socket, backlog)?;
        return Ok(Listening { socket, file: None });
    };
    let path = Path::new(path);
    let accounts = Accounts::of(permissions)?;
    // Without the lock, two processes that start at once over a dead process's file would both find nobody
    // listening, and the second would replace the first one's socket.
    let _turn = turn_in(path);
    let stale = what_stands(path, &accounts)?;
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let beside = PathBuf::from(format!("{}.{}.{number}", path.display(), std::process::id()));
    let socket = open()?;
    // An earlier process with the same number may have left it.
    let _ = rustix::fs::unlink(&beside);
    rustix::net::bind(&socket, &SocketAddrUnix::new(&beside)?)?;
    let placed = Handle::of(&beside).and_then(|file| {
        accounts.give(&file)?;
        rustix::net::listen(&socket, backlog)?;
        put(&beside, path, stale)?;
        Ok(file.id())
    });
    match placed {
        Ok(id) => {
            let file = SocketFile::made(path.display().to_string(), id, permissions);
            Ok(Listening { socket, file: Some(file) })
        }
        Err(error) => {
            let _ = rustix::fs::unlink(&beside);
            Err(error)
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Locks the folder, so that other processes which open sockets in it wait until this is dropped. `None` if
/// the folder can't be locked, or somebody who may read it keeps it locked: then the socket is created
/// without the lock, and only the order of processes that start at once is lost.
fn turn_in(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder_of(path), flags, Mode::empty()).ok()?;
    for _ in 0..TURN_TRIES {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(TURN_PAUSE),
            Err(_) => return None,
        }
    }
    None
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Renames a socket to its path. If nothing stood there, nothing that has appeared meanwhile is replaced.
fn put(beside: &Path, path: &Path, stale: bool) -> io::Result<()> {
    let flags = if stale { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(CWD, beside, CWD, path, flags) {
        // The file system does not know this flag.
        Err(Errno::INVAL | Errno::NOSYS) => Ok(rustix::fs::rename(beside, path)?),
        Err(Errno::EXIST) => Err(Refusal::Taken("another program has just made a file there").into()),
        put => Ok(put?),
    }
}

/// True if a socket stands at the path that nobody listens on, false if nothing does; an error for anything
/// else.
fn what_stands(path: &Path, accounts: &Accounts) -> io::Result<bool> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if found.file_type().is_symlink() {
        return Err(Refusal::Taken("a symbolic link stands there; expected a socket, or nothing").into());
    }
    if !found.file_type().is_socket() {
        return Err(Refusal::Taken("a file stands there that is no socket").into());
    }
    let own = rustix::process::geteuid().as_raw();
    if own != 0 && found.uid() != own && Some(found.uid()) != accounts.owner {
        return Err(Refusal::Taken("a socket stands there that belongs to another user").into());
    }
    let probe = open()?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Ok(()) | Err(Errno::AGAIN) => Err(Refusal::Taken("another program listens there").into()),
        // The file was given to another owner; who may not connect can't tell from the error whether anybody
        // listens.
        Err(Errno::ACCESS) if listed::is_listener_listed(path)? => {
            Err(Refusal::Taken("another program listens there").into())
        }
        Err(Errno::ACCESS) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Refuses further connections to a socket, in whichever processes it listens. Connections in its queue stay.
///
/// # Errors
/// It is not listening.
pub fn withdraw(socket: &OwnedFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Read)?)
}

/// Whether [`withdraw`] was called for a socket, by this process or another.
pub fn is_withdrawn(socket: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    let answered = poll(&mut asked, Some(&Timespec::default()));
    answered.is_ok() && asked[0].revents().contains(PollFlags::RDHUP)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::listener::{Listener, is_end};

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("weir-io-{}-{number}", std::process::id()));
            std::fs::create_dir(&folder).unwrap();
            Folder(folder)
        }

        fn path(&self) -> String {
            self.0.join("a.sock").display().to_string()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn with_mode(mode: u32) -> Permissions {
        Permissions { mode, owner: None, group: None }
    }

    fn opened(path: &str) -> io::Result<Listening> {
        listen(&UnixName::new(path), &with_mode(0o600), 8)
    }

    fn files(folder: &Folder) -> usize {
        std::fs::read_dir(&folder.0).unwrap().count()
    }

    #[test]
    fn a_socket_has_its_permissions_before_anybody_finds_it_and_leaves_nothing_beside() {
        let folder = Folder::new();
        let path = folder.path();
        for mode in [0o600, 0o660, 0o666, 0o777] {
            let socket = listen(&UnixName::new(&path), &with_mode(mode), 8).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
            UnixStream::connect(&path).unwrap();
            assert_eq!(files(&folder), 1);
            drop(socket);
        }
    }

    #[test]
    fn what_a_dead_process_left_is_replaced_and_a_living_one_is_not() {
        let folder = Folder::new();
        let path = folder.path();
        drop(UnixListener::bind(&path).unwrap());
        let socket = opened(&path).unwrap();
        let refused = opened(&path).unwrap_err();
        assert_eq!(refused.to_string(), "another program listens there");
        drop(socket);
        opened(&path).unwrap();
    }

    #[test]
    fn of_those_that_begin_at_once_over_what_a_dead_process_left_one_gets_the_place_and_keeps_it() {
        let folder = Folder::new();
        let path = folder.path();
        for _ in 0..200 {
            drop(UnixListener::bind(&path).unwrap());
            let barrier = std::sync::Barrier::new(3);
            let begin = || {
                barrier.wait();
                opened(&path)
            };
            let all: Vec<io::Result<Listening>> = std::thread::scope(|scope| {
                let begun = [(); 3].map(|()| scope.spawn(begin));
                begun.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let got: Vec<&OwnedFd> = all.iter().flatten().map(|it| &it.socket).collect();
            assert_eq!(got.len(), 1, "{all:?}");
            let _client = UnixStream::connect(&path).unwrap();
            let listener = UnixListener::from(got[0].try_clone().unwrap());
            listener.accept().expect("the client came to the one that got the place");
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!(files(&folder), 0);
    }

    #[test]
    fn a_folder_that_somebody_keeps_locked_holds_nobody_up_for_long() {
        let folder = Folder::new();
        let path = folder.path();
        let _locked = turn_in(Path::new(&path)).unwrap();
        assert!(turn_in(Path::new(&path)).is_none());
        opened(&path).unwrap();
    }

    #[test]
    fn a_link_or_a_file_in_its_place_is_refused_and_left_as_it_is() {
        let folder = Folder::new();
        let path = folder.path();
        let victim = folder.0.join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(opened(&path).unwrap_err().to_string().contains("a symbolic link stands there"));
        std::fs::remove_file(&path).unwrap();
        // One that leads to a socket is none either.
        let other = folder.0.join("other.sock");
        drop(UnixListener::bind(&other).unwrap());
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(opened(&path).unwrap_err().to_string().contains("a symbolic link stands there"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert!(opened(&path).unwrap_err().to_string().contains("no socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(files(&folder), 3);
    }

    #[test]
    fn a_link_in_place_of_the_socket_does_not_lead_its_permissions_elsewhere() {
        let folder = Folder::new();
        let victim = folder.0.join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert!(Handle::of(&link).is_err());
        assert!(Handle::of(&victim).is_err());
        assert_eq!(std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn only_the_very_file_is_changed_or_removed() {
        let folder = Folder::new();
        let path = folder.path();
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        // The number of its file is nobody else's for as long as the socket is open.
        let Listening { socket: _first, file } = opened(&path).unwrap();
        let mut first = file.unwrap();
        first.allow(&with_mode(0o640)).unwrap();
        assert_eq!((first.stands(), mode()), (true, 0o640));
        std::fs::remove_file(&path).unwrap();
        let gone = first.may_allow(&with_mode(0o666)).unwrap_err();
        assert_eq!(gone.to_string(), "what stands there is not the socket that Weir made");
        let Listening { socket: _second, file } = opened(&path).unwrap();
        let second = file.unwrap();
        assert!(first.allow(&with_mode(0o666)).is_err());
        first.allow(&with_mode(0o640)).expect("nothing else was asked for before");
        first.remove();
        assert_eq!((first.stands(), second.stands(), mode()), (false, true, 0o600), "another's stays");
        second.remove();
        assert_eq!(files(&folder), 0);
    }

    #[tokio::test]
    async fn a_socket_that_is_withdrawn_refuses_and_serves_what_waits() {
        let folder = Folder::new();
        let path = folder.path();
        let socket = opened(&path).unwrap().socket;
        let listener = Listener::new(socket.try_clone().unwrap()).unwrap();
        assert!(listener.accept_now().unwrap().is_none());
        let _waits = UnixStream::connect(&path).unwrap();
        withdraw(&socket).unwrap();
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(listener.accept_now().unwrap().is_some());
        assert!(is_end(&listener.accept_now().unwrap_err()));
    }
}
