//! Writes the lines of the program's own log to standard error.
//!
//! Logging must not block on the reader: a pipe that is not emptied would stop the control thread and, after
//! another line, each worker. So lines go through a queue to a thread that may block; lines that do not fit
//! into the queue are dropped and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::lock;

/// Most memory for queued lines, in bytes.
const QUEUE_BYTES: usize = 1 << 20;

/// Lines dropped since the start; a process has only one log.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Lines of this process's log that were dropped, because they were not read in time or never will be.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Accepts lines. Each write is a line, or several that belong together; a write never blocks or fails.
#[derive(Clone)]
pub struct Lines(Arc<Meeting>);

#[derive(Default)]
struct Meeting {
    state: Mutex<LineQueue>,
    work: Condvar,
    idle: Condvar,
}

#[derive(Default)]
struct LineQueue {
    queue: VecDeque<Vec<u8>>,
    queue_bytes: usize,
    is_writing: bool,
    /// Lines dropped since this was last reported.
    untold: u64,
}

impl Lines {
    /// Writes lines to `target`, in order, each with a separate write: lines of another process with the same
    /// target may come between them, but not within them.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn to(target: impl AsFd + Send + 'static) -> io::Result<Lines> {
        let lines = Lines(Arc::default());
        let meeting = lines.0.clone();
        let thread = std::thread::Builder::new().name("weir-log".to_owned());
        thread.spawn(move || meeting.write_on(&target))?;
        Ok(lines)
    }

    /// Waits until all earlier lines are written; `false` if that takes longer than `limit`.
    pub fn finish(&self, limit: Duration) -> bool {
        let is_behind = |state: &mut LineQueue| !state.queue.is_empty() || state.is_writing;
        let waited = self.0.idle.wait_timeout_while(lock(&self.0.state), limit, is_behind);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = lock(&self.0.state);
        if state.queue_bytes + line.len() > QUEUE_BYTES {
            state.drop_one();
        } else {
            state.queue_bytes += line.len();
            state.queue.push_back(line.to_vec());
            drop(state);
            self.0.work.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LineQueue {
    fn drop_one(&mut self) {
        self.untold += 1;
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

impl Meeting {
    /// The thread's main function.
    fn write_on(&self, target: &impl AsFd) {
        let mut state = lock(&self.state);
        loop {
            let Some(line) = state.queue.pop_front() else {
                state.is_writing = false;
                self.idle.notify_all();
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.queue_bytes -= line.len();
            state.is_writing = true;
            drop(state);
            let written = write_whole(target, &line);
            state = lock(&self.state);
            if written.is_err() {
                state.drop_one();
            } else if state.untold > 0 && state.queue.is_empty() {
                let lines = std::mem::take(&mut state.untold);
                drop(state);
                tracing::warn!(
                    lines,
                    "lines of this log were dropped: standard error did not take them in time"
                );
                state = lock(&self.state);
            }
        }
    }
}

/// Waits for the target as long as it takes. It does not use the standard library's handle, since other
/// threads need its lock.
fn write_whole(target: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(target, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                rustix::event::poll(&mut [PollFd::new(target, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read as _;

    const SOON: Duration = Duration::from_secs(10);

    fn pipe() -> (File, File) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        (read.into(), write.into())
    }

    #[test]
    fn lines_that_nobody_reads_keep_nobody_waiting_and_are_counted() {
        let (mut read, write) = pipe();
        let mut lines = Lines::to(write).unwrap();
        let (before, line) = (dropped(), [b"x".repeat(1023), b"\n".to_vec()].concat());
        let count = 2 * QUEUE_BYTES / line.len();
        for _ in 0..count {
            lines.write_all(&line).unwrap();
        }
        assert!(!lines.finish(Duration::from_millis(10)), "a pipe holds less");
        let lost = (dropped() - before) as usize;
        assert!(lost > 0 && lost < count, "{lost}");
        let mut came = vec![0; (count - lost) * line.len()];
        read.read_exact(&mut came).unwrap();
        assert!(came.chunks(line.len()).all(|each| each == line), "those that came are whole");
        assert!(lines.finish(SOON));
        lines.write_all(b"again\n").unwrap();
        let mut came = [0; 6];
        read.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"again\n");
    }
}
