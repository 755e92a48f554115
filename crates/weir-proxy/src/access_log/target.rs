//! Where the writer thread writes lines: a file, or a socket.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use weir_config::{AccessTarget, Syslog};

use super::socket::Socket;
use super::writer::lines_in;

/// A target that takes nothing for this long is given up for now: a file loses the batch, so that a new
/// target can come into force.
const STALL: Duration = Duration::from_secs(1);

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
}

/// A file, or standard output or error.
pub struct LogFile {
    file: File,
    /// For reopening it; `None` for standard output and error.
    path: Option<PathBuf>,
    /// Whether a line was cut off by an error: the next one must not be appended to it.
    is_torn: bool,
}

impl Target {
    /// Opens it; `None` for nowhere. A socket is only connected when there is something to send.
    ///
    /// # Errors
    /// The file can't be opened for appending.
    pub fn open(target: &AccessTarget, syslog: &Syslog) -> io::Result<Option<Target>> {
        let file = |file, path: Option<PathBuf>| {
            let is_torn = path.as_deref().is_some_and(ends_in_a_line_cut_off);
            Some(Target::File(LogFile { file, path, is_torn }))
        };
        Ok(match target {
            AccessTarget::Off => None,
            // A duplicate, unbuffered: the writer must see every error, and a batch is a buffer already.
            AccessTarget::Stdout => file(rustix::io::dup(io::stdout())?.into(), None),
            AccessTarget::Stderr => file(rustix::io::dup(io::stderr())?.into(), None),
            AccessTarget::File(path) => file(append(path)?, Some(path.clone())),
            AccessTarget::Syslog(address) => Some(Target::Socket(Box::new(Socket::syslog(address)))),
            AccessTarget::Journal => Some(Target::Socket(Box::new(Socket::journal(syslog)))),
        })
    }

    /// A target for a file that can't be reopened.
    #[cfg(test)]
    pub fn unnamed(file: File) -> Target {
        Target::File(LogFile { file, path: None, is_torn: false })
    }

    /// Reopens a file, which log rotation has moved away, and reconnects a socket, where another daemon may
    /// listen now.
    ///
    /// # Errors
    /// It can't be opened; the old one stays in use.
    pub fn reopen(&mut self) -> Result<(), (&Path, io::Error)> {
        match self {
            Target::File(LogFile { file, path: Some(path), is_torn }) => match append(path) {
                Ok(opened) => {
                    (*file, *is_torn) = (opened, ends_in_a_line_cut_off(path));
                    Ok(())
                }
                Err(error) => Err((path, error)),
            },
            Target::File(LogFile { path: None, .. }) => Ok(()),
            Target::Socket(socket) => {
                socket.reconnect();
                Ok(())
            }
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
    fn write(&mut self, batch: &[u8]) -> Written {
        let mut done = 0;
        let result = self.mend().and_then(|()| write_all(&self.file, batch, &mut done));
        let Err(error) = result else { return Written::default() };
        self.is_torn |= done > 0 && batch[done - 1] != b'\n';
        Written { lost: lines_in(&batch[done..]), error: Some(error), ..Written::default() }
    }

    /// Ends a line that was cut off earlier.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            write_all(&self.file, b"\n", &mut 0)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// Opens a file for appending. For a pipe without a reader, a plain open(2) would wait for one and block the
/// start or the reload; with this flag it fails. For other files the flag has no effect.
fn append(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path);
    opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::new(error.kind(), "nobody reads the pipe"),
        _ => error,
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
        let refused = Target::open(&target, &Syslog::default()).err().expect("nobody reads");
        assert_eq!(refused.to_string(), "nobody reads the pipe");
        let reader =
            OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&path);
        let mut opened = Target::open(&target, &Syslog::default()).unwrap().expect("a target");
        assert_eq!(opened.write(b"line\n").lost, 0);
        let mut got = [0; 16];
        assert_eq!(std::io::Read::read(&mut reader.unwrap(), &mut got).unwrap(), 5);
        std::fs::remove_file(&path).unwrap();
    }
}
