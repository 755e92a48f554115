//! The writer thread: the only one that waits for the log's target.
//!
//! Workers and writer meet at a queue of batches behind a mutex that is held for a push or a pop: once per 32
//! KiB of lines.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_config::{AccessFormat, AccessTarget};

/// Batches that wait for the writer, over all workers; 8 MiB when full.
const QUEUE_BATCHES: usize = 256;
/// Empty batches kept for use again.
const SPARE_BATCHES: usize = 8;
/// A target that takes nothing for this long loses the batch, so that a new target can come into force.
const STALL: Duration = Duration::from_secs(1);
/// Lost lines are reported at most this often.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// What workers, writer and control side share.
pub struct Shared {
    enabled: AtomicBool,
    format: AtomicU8,
    meeting: Arc<Meeting>,
}

#[derive(Default)]
struct Meeting {
    state: Mutex<WriterState>,
    /// Something for the writer to do.
    work: Condvar,
    /// The writer has caught up.
    idle: Condvar,
    /// Lines that the target did not take, since the start.
    lost: AtomicU64,
}

#[derive(Default)]
struct WriterState {
    queue: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// What the config says now; `None` before the first config.
    wanted: Option<AccessTarget>,
    /// The target to use from now on, to be taken by the writer; the inner `None` closes it.
    next: Option<Option<Target>>,
    reopen: bool,
    started: bool,
    writing: bool,
    closed: bool,
}

impl Meeting {
    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub fn new() -> Shared {
        Shared {
            enabled: AtomicBool::new(false),
            format: AtomicU8::new(AccessFormat::Json as u8),
            meeting: Arc::default(),
        }
    }

    #[inline]
    pub fn enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    pub fn format(&self) -> AccessFormat {
        let formats = [AccessFormat::Json, AccessFormat::Combined, AccessFormat::Haproxy];
        let number = self.format.load(Ordering::Relaxed);
        formats.into_iter().find(|&format| format as u8 == number).unwrap_or(AccessFormat::Json)
    }

    pub fn reconfigure(&self, config: &weir_config::Log) -> io::Result<()> {
        let mut state = self.meeting.lock();
        if state.wanted.as_ref() != Some(&config.access) {
            let target = Target::open(&config.access)?;
            if target.is_some() && !state.started {
                let meeting = self.meeting.clone();
                std::thread::Builder::new()
                    .name("weir-access-log".into())
                    .spawn(move || write_until_closed(&meeting))?;
                state.started = true;
            }
            state.next = Some(target);
            state.wanted = Some(config.access.clone());
        }
        drop(state);
        self.format.store(config.format as u8, Ordering::Relaxed);
        self.enabled.store(config.access != AccessTarget::Off, Ordering::Relaxed);
        self.meeting.work.notify_one();
        Ok(())
    }

    pub fn lost(&self) -> u64 {
        self.meeting.lost.load(Ordering::Relaxed)
    }

    pub fn reopen(&self) {
        self.meeting.lock().reopen = true;
        self.meeting.work.notify_one();
    }

    /// Gives `batch` to the writer and leaves an empty one in its place; `false`, and nothing changed, when
    /// the queue is full.
    pub fn hand_over(&self, batch: &mut Vec<u8>) -> bool {
        let mut state = self.meeting.lock();
        if state.queue.len() >= QUEUE_BATCHES {
            return false;
        }
        let empty = state.spare.pop().unwrap_or_default();
        state.queue.push_back(std::mem::replace(batch, empty));
        drop(state);
        self.meeting.work.notify_one();
        true
    }

    pub fn finish(&self, limit: Duration) -> bool {
        let behind = |state: &mut WriterState| state.started && (!state.queue.is_empty() || state.writing);
        let state = self.meeting.lock();
        let waited = self.meeting.idle.wait_timeout_while(state, limit, behind);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.meeting.lock().closed = true;
        self.meeting.work.notify_one();
    }
}

/// The writer thread's main function.
fn write_until_closed(meeting: &Meeting) {
    let mut writer = Writer { target: None, is_torn: false, losses: Losses::default() };
    let mut state = meeting.lock();
    loop {
        if let Some(target) = state.next.take() {
            writer.target = target;
            writer.is_torn = false;
        }
        if std::mem::take(&mut state.reopen) {
            // A file system that hangs must hang only this thread, not a worker that wants to hand over.
            drop(state);
            writer.reopen();
            state = meeting.lock();
            continue;
        }
        match state.queue.pop_front() {
            Some(mut batch) => {
                state.writing = true;
                drop(state);
                let lost = writer.write(&batch, Instant::now());
                meeting.lost.fetch_add(lost, Ordering::Relaxed);
                batch.clear();
                state = meeting.lock();
                state.writing = false;
                if state.spare.len() < SPARE_BATCHES {
                    state.spare.push(batch);
                }
            }
            None if state.closed => return,
            None => {
                meeting.idle.notify_all();
                state = meeting.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Where lines go.
struct Target {
    file: File,
    /// For opening it anew; `None` for standard output and error.
    path: Option<PathBuf>,
}

impl Target {
    fn open(target: &AccessTarget) -> io::Result<Option<Target>> {
        Ok(match target {
            AccessTarget::Off => None,
            // A duplicate, unbuffered: the writer must see every error, and a batch is a buffer already.
            AccessTarget::Stdout => Some(Target { file: rustix::io::dup(io::stdout())?.into(), path: None }),
            AccessTarget::Stderr => Some(Target { file: rustix::io::dup(io::stderr())?.into(), path: None }),
            AccessTarget::File(path) => Some(Target { file: append(path)?, path: Some(path.clone()) }),
        })
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

struct Writer {
    target: Option<Target>,
    /// A line was cut off by an error: the next one must not be glued to it.
    is_torn: bool,
    losses: Losses,
}

/// What could not be written since the last report.
#[derive(Default)]
struct Losses {
    lines: u64,
    reported: Option<Instant>,
}

impl Writer {
    fn reopen(&mut self) {
        let Some(target) = &mut self.target else { return };
        let Some(path) = &target.path else { return };
        match append(path) {
            Ok(file) => {
                target.file = file;
                self.is_torn = false;
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "access log could not be reopened, writing on to the old file");
            }
        }
    }

    /// Writes a batch; gives the number of lines that did not get through. The next batch is tried afresh: a
    /// disk that was full recovers.
    fn write(&mut self, batch: &[u8], now: Instant) -> u64 {
        let Some(target) = &mut self.target else { return 0 };
        let mut written = 0;
        let result =
            mend(&target.file, &mut self.is_torn).and_then(|()| write_all(&target.file, batch, &mut written));
        match result {
            Ok(()) => {
                self.losses.report_if_due(now, None);
                0
            }
            Err(error) => {
                self.is_torn |= written > 0 && batch[written - 1] != b'\n';
                let lost = batch[written..].iter().filter(|&&byte| byte == b'\n').count() as u64;
                self.losses.lines += lost;
                self.losses.report_if_due(now, Some(&error));
                lost
            }
        }
    }
}

/// Ends a line that was cut off earlier.
fn mend(file: &File, is_torn: &mut bool) -> io::Result<()> {
    if *is_torn {
        write_all(file, b"\n", &mut 0)?;
        *is_torn = false;
    }
    Ok(())
}

fn write_all(mut file: &File, bytes: &[u8], written: &mut usize) -> io::Result<()> {
    while *written < bytes.len() {
        match file.write(&bytes[*written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => *written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Whoever gave us standard output may have made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_writable(file)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_writable(file: &File) -> io::Result<()> {
    let limit = Timespec { tv_sec: STALL.as_secs() as i64, tv_nsec: 0 };
    let mut watched = [PollFd::new(file, PollFlags::OUT)];
    match poll(&mut watched, Some(&limit)) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing reads it")),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Losses {
    /// Says how many lines were lost: at the first loss, then at most once a minute.
    fn report_if_due(&mut self, now: Instant, error: Option<&io::Error>) {
        let due = self.reported.is_none_or(|last| now.duration_since(last) >= REPORT_INTERVAL);
        if self.lines == 0 || !due {
            return;
        }
        match error {
            Some(error) => tracing::warn!(lines = self.lines, %error, "access log lines were lost"),
            None => tracing::warn!(lines = self.lines, "access log lines were lost; writing works again"),
        }
        *self = Losses { lines: 0, reported: Some(now) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::fd::OwnedFd;

    use super::*;

    fn pipe() -> (File, File) {
        let (read, write): (OwnedFd, OwnedFd) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)
                .unwrap();
        (read.into(), write.into())
    }

    fn writer(file: File) -> Writer {
        Writer { target: Some(Target { file, path: None }), is_torn: false, losses: Losses::default() }
    }

    #[test]
    fn a_full_device_loses_lines_counts_them_and_kills_nothing() {
        let mut writer = writer(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let start = Instant::now();
        assert_eq!(writer.write(b"a\nb\n", start), 2);
        assert_eq!(writer.losses.lines, 0, "the first loss is reported at once");
        writer.write(b"c\nd\ne\n", start);
        assert_eq!(writer.losses.lines, 3);
        writer.write(b"f\n", start + REPORT_INTERVAL);
        assert_eq!(writer.losses.lines, 0);
    }

    #[test]
    fn a_reader_that_went_away_is_an_error_and_not_a_signal() {
        let (read, write) = pipe();
        drop(read);
        let mut writer = writer(write);
        writer.losses.reported = Some(Instant::now());
        writer.write(b"a\n", Instant::now());
        assert_eq!(writer.losses.lines, 1);
    }

    #[test]
    fn a_line_that_was_cut_off_is_ended_before_the_next_begins() {
        let (mut read, write) = pipe();
        let mut writer = writer(write);
        writer.losses.reported = Some(Instant::now());
        // More than the pipe holds, and nobody reads: the stall limit gives the batch up in the middle of its
        // one line.
        let long = [b"x".repeat(1 << 20), b"\n".to_vec()].concat();
        writer.write(&long, Instant::now());
        assert!(writer.is_torn);
        assert_eq!(writer.losses.lines, 1);
        let mut drained = vec![0; 1 << 20];
        let count = read.read(&mut drained).unwrap();
        writer.write(b"whole\n", Instant::now());
        drop(writer);
        let mut lines = BufReader::new(read);
        let mut torn = String::new();
        lines.read_line(&mut torn).unwrap();
        assert!(count > 0 && torn.trim_end_matches('\n').bytes().all(|byte| byte == b'x'));
        let mut whole = String::new();
        lines.read_line(&mut whole).unwrap();
        assert_eq!(whole, "whole\n");
    }
}
