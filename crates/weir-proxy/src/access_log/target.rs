//! Where the writer thread writes lines: a file, or a socket.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use weir_config::{AccessTarget, Syslog};

use super::socket::Socket;
use super::writer::lines_in;

/// A target that takes nothing for this long is given up for now: a file loses the batch, so that a new
/// target can come into force.
const STALL: Duration = Duration::from_secs(1);
/// How long a file may take to be opened before it counts as one that can't be: its disk may hang.
const OPENS: Duration = Duration::from_secs(2);
/// How often reopening a file is tried again, while lines go to the old one.
const ANEW: Duration = Duration::from_secs(1);

/// The warning for a file that can't be opened.
const SERVING_ON: &str = "an access log can't be opened: serving all the same; its lines wait in memory, 8 MiB of them at most, until it can";

/// Where lines go.
pub enum Target {
    File(LogFile),
    Socket(Box<Socket>),
}

/// The result of writing a batch.
#[derive(Debug, Default)]
pub struct Written {
    /// Bytes at its beginning that are done; only used if the rest is to be tried again.
    pub taken: usize,
    /// Lines that were lost (count).
    pub lost: u64,
    /// Lines that were only written in part (count).
    pub cut: u64,
    /// Whether the rest is to be tried again.
    pub is_later: bool,
    /// The error, if there was one.
    pub error: Option<io::Error>,
    /// Why the rest was not written yet, as a message for people.
    pub waits_for: Option<String>,
}

/// What to do with a log whose file can't be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// Refuse it: at a reload there is a log that works.
    Refused,
    /// Keep lines in memory until it can be opened: otherwise Weir would serve nobody.
    Awaited,
}

/// A file, or standard output or error.
pub struct LogFile {
    /// `None` until it has been opened.
    file: Option<File>,
    /// Why the last attempt to open it failed; `None` if it succeeded.
    unopened: Option<String>,
    /// For opening it anew; `None` for standard output and error.
    path: Option<PathBuf>,
    /// Whether a line was cut off by an error: the next one must not be appended to it.
    is_torn: bool,
    /// When reopening failed. The open file may since be one that was moved away.
    stale_since: Option<Instant>,
}

impl Target {
    /// Opens it; `None` for nowhere. A socket is only connected when there is something to send.
    ///
    /// # Errors
    /// The file can't be opened for appending, and `unopened` says to refuse it. The error says what helps.
    pub fn open(target: &AccessTarget, syslog: &Syslog, unopened: Unopened) -> io::Result<Option<Target>> {
        let standard = |file: File| Some(Target::File(LogFile::of(Some(file), None)));
        Ok(match target {
            AccessTarget::Off => None,
            // A duplicate, unbuffered: the writer must see every error, and a batch is a buffer already.
            AccessTarget::Stdout => standard(rustix::io::dup(io::stdout())?.into()),
            AccessTarget::Stderr => standard(rustix::io::dup(io::stderr())?.into()),
            AccessTarget::File(path) => {
                let (file, opened) = LogFile::open_in_time(path);
                match (opened, unopened) {
                    (Err(error), Unopened::Refused) => return Err(error),
                    (Err(error), Unopened::Awaited) => {
                        tracing::error!(path = %path.display(), %error, "{SERVING_ON}");
                    }
                    (Ok(()), _) => {}
                }
                Some(Target::File(file))
            }
            AccessTarget::Syslog(address) => Some(Target::Socket(Box::new(Socket::syslog(address)))),
            AccessTarget::Journal => Some(Target::Socket(Box::new(Socket::journal(syslog)))),
        })
    }

    /// Why lines can't be written now; `None` if they can.
    pub fn why_shut(&self) -> Option<&str> {
        match self {
            Target::File(file) => file.unopened.as_deref(),
            Target::Socket(_) => None,
        }
    }

    /// One for a file that cannot be opened anew.
    #[cfg(test)]
    pub fn unnamed(file: File) -> Target {
        Target::File(LogFile::of(Some(file), None))
    }

    /// Reopens a file, which log rotation has moved away, and reconnects a socket, at which another daemon
    /// may listen now. If a file can't be reopened, the old one stays in use and reopening is tried again.
    pub fn reopen(&mut self) {
        match self {
            Target::File(file) => file.reopen(),
            Target::Socket(socket) => socket.reconnect(),
        }
    }

    /// Writes whole lines; waits if it must.
    pub fn write(&mut self, batch: &[u8]) -> Written {
        match self {
            Target::File(file) => file.write(batch),
            Target::Socket(socket) => socket.send(batch),
        }
    }
}

impl LogFile {
    fn of(file: Option<File>, path: Option<PathBuf>) -> LogFile {
        LogFile { file, unopened: None, path, is_torn: false, stale_since: None }
    }

    /// Opens a file, on a thread of its own: whoever starts or reloads must not wait for a disk that hangs.
    fn open_in_time(path: &Path) -> (LogFile, io::Result<()>) {
        let open = |path: PathBuf| {
            let mut file = LogFile::of(None, Some(path));
            let opened = file.open();
            (file, opened)
        };
        let (told, tells) = mpsc::channel();
        let on_thread = {
            let path = path.to_owned();
            // A file that is opened too late is closed again.
            move || drop(told.send(open(path)))
        };
        if std::thread::Builder::new().name("weir-log-open".to_owned()).spawn(on_thread).is_err() {
            return open(path.to_owned());
        }
        tells.recv_timeout(OPENS).unwrap_or_else(|_| {
            let why =
                format!("{}: its disk, or server of files, does not answer within {OPENS:?}", path.display());
            let file = LogFile { unopened: Some(why.clone()), ..LogFile::of(None, Some(path.to_owned())) };
            (file, Err(io::Error::new(io::ErrorKind::TimedOut, why)))
        })
    }

    /// Opens or reopens the file. On an error the open file, if any, stays in use.
    fn open(&mut self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let opened = append(path);
        if let (Err(error), None) = (&opened, &self.file) {
            self.unopened = Some(format!("{}: {error}", path.display()));
        }
        (self.file, self.unopened, self.stale_since) = (Some(opened?), None, None);
        self.is_torn = ends_in_a_line_cut_off(path);
        Ok(())
    }

    fn write(&mut self, batch: &[u8]) -> Written {
        if self.file.is_none() || self.is_stale() {
            self.reopen();
        }
        if let Some(why) = &self.unopened {
            return Written {
                is_later: true,
                error: Some(io::Error::other(why.clone())),
                ..Written::default()
            };
        }
        let mut done = 0;
        let result = self.mend().and_then(|()| self.write_all(batch, &mut done));
        let Err(error) = result else { return Written::default() };
        self.is_torn |= done > 0 && batch[done - 1] != b'\n';
        Written { lost: lines_in(&batch[done..]), error: Some(error), ..Written::default() }
    }

    /// Whether lines would go to a file that nobody finds: reopening has been failing for a while, or the
    /// file was deleted, whose disk space is freed only when it is closed.
    fn is_stale(&self) -> bool {
        let is_deleted = || {
            let found = self.file.as_ref().and_then(|file| file.metadata().ok());
            self.path.is_some() && found.is_some_and(|found| found.is_file() && found.nlink() == 0)
        };
        self.stale_since.map_or_else(is_deleted, |since| since.elapsed() >= ANEW)
    }

    /// Reopens the file. If that fails, keeps the old one and reports it once.
    fn reopen(&mut self) {
        let (was_open, was_stale) = (self.file.is_some(), self.stale_since.is_some());
        let opened = self.open();
        let Some(path) = self.path.as_deref().map(Path::display) else { return };
        match opened {
            Ok(()) if was_open && !was_stale => {}
            Ok(()) => tracing::info!(%path, "access log could be opened"),
            Err(_) if !was_open => {}
            Err(error) => {
                if !was_stale {
                    tracing::warn!(%path, %error, "access log could not be reopened, writing on to the old file until it can");
                }
                self.stale_since = Some(Instant::now());
            }
        }
    }

    /// Ends a line that was cut off earlier.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.write_all(b"\n", &mut 0)?;
            self.is_torn = false;
        }
        Ok(())
    }

    fn write_all(&self, bytes: &[u8], written: &mut usize) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| write_all(file, bytes, written))
    }
}

/// Opens a file for appending. For a pipe without a reader, a plain open(2) would wait for one and block the
/// start or the reload; with this flag it fails. For other files the flag has no effect.
fn append(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path);
    opened.map_err(|error| {
        let folder =
            path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new(".")).display();
        let help = match Errno::from_io_error(&error) {
            Some(Errno::NXIO) => return io::Error::new(error.kind(), "nobody reads the pipe"),
            Some(Errno::NOENT) => format!("make {folder}, which is not there"),
            Some(Errno::ACCESS | Errno::PERM) => format!("let the user that Weir runs as write in {folder}"),
            Some(Errno::NOSPC | Errno::DQUOT) => {
                format!("make room in {folder}, which has none for another file")
            }
            Some(Errno::ROFS) => {
                format!("name a file where this process may write: {folder} is read-only for it")
            }
            Some(Errno::ISDIR) => "name a file, not a directory".to_owned(),
            _ => return error,
        };
        io::Error::new(error.kind(), format!("{error}; {help}"))
    })
}

/// Whether the last line of a file has no line feed, because a full disk or the end of a process cut it off.
/// `false` if that can't be read.
fn ends_in_a_line_cut_off(path: &Path) -> bool {
    // Anything but a regular file, such as a pipe, has no readable end, and reading it could block.
    let size = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map_or(0, |found| found.len());
    let Some(last) = size.checked_sub(1) else { return false };
    let mut byte = [0];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut byte, last));
    read.is_ok() && byte != *b"\n"
}

fn write_all(mut file: &File, bytes: &[u8], written: &mut usize) -> io::Result<()> {
    while *written < bytes.len() {
        match file.write(&bytes[*written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => *written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Whoever provided standard output may have made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_writable(file)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until the descriptor takes something, for [`STALL`] at most.
pub(super) fn wait_writable(descriptor: impl AsFd) -> io::Result<()> {
    let limit = Timespec { tv_sec: STALL.as_secs() as i64, tv_nsec: 0 };
    let mut watched = [PollFd::new(&descriptor, PollFlags::OUT)];
    match poll(&mut watched, Some(&limit)) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing reads it")),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    /// Earlier this kept the program from starting and from handling signals; at a reload, it stopped its
    /// probes.
    #[test]
    fn a_pipe_without_a_reader_is_refused_at_once() {
        let path = std::env::temp_dir().join(format!("weir-log-pipe-{}", std::process::id()));
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let target = AccessTarget::File(path.clone());
        let refused =
            Target::open(&target, &Syslog::default(), Unopened::Refused).err().expect("nobody reads");
        assert_eq!(refused.to_string(), "nobody reads the pipe");
        let reader =
            OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&path);
        let mut opened =
            Target::open(&target, &Syslog::default(), Unopened::Refused).unwrap().expect("a target");
        assert_eq!(opened.write(b"line\n").lost, 0);
        let mut got = [0; 16];
        assert_eq!(std::io::Read::read(&mut reader.unwrap(), &mut got).unwrap(), 5);
        std::fs::remove_file(&path).unwrap();
    }
}
