//! The writer thread: the only one that waits for the log's target.
//!
//! Workers hand batches to the writer through a queue behind a mutex, which is held for a push or a pop: once
//! per 32 KiB of lines.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use weir_config::{AccessFormat, AccessTarget, Log, LogLines, MAIN_LOG, Syslog};

use super::rules::Rules;
use super::target::{Target, Unopened, Written};

/// Memory for batches that wait for the writer, over all workers, in bytes. Batches count by their capacity:
/// a batch of long lines has more, and one that was handed over early holds no less than a full one.
const QUEUE_BYTES: usize = 8 << 20;
/// Empty batches that are kept for reuse (count).
const SPARE_BATCHES: usize = 8;
/// Largest capacity of an empty batch that is kept, in bytes.
const SPARE_BYTES: usize = 64 << 10;
/// A batch that a target does not take is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);
/// Lost lines are reported at most this often.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// An open log: the state that workers, the writer and the control side share.
pub struct OpenLog {
    enabled: AtomicBool,
    format: AtomicU8,
    rules: ArcSwap<Rules>,
    /// Whether the config no longer has it: sessions that began with it still write to it.
    is_retired: AtomicBool,
    counts: Arc<Counts>,
    meeting: Arc<Meeting>,
}

/// Lines that a log did not get since the start, summed over all logs of the same name.
#[derive(Debug, Default)]
pub struct Counts {
    /// They did not meet its conditions.
    pub filtered: AtomicU64,
    /// They were not in its sample.
    pub unsampled: AtomicU64,
    /// The writer was too far behind.
    pub dropped: AtomicU64,
    /// The target did not take them.
    pub lost: AtomicU64,
    /// They were longer than the target takes at once, and are there in part.
    pub cut: AtomicU64,
    /// Why lines are held in memory: the target can't be opened, or accepts none now. `None` if they are not
    /// held.
    waits_for: Mutex<Option<String>>,
}

impl Counts {
    /// Why lines are held in memory; `None` if they are not.
    pub fn waits_for(&self) -> Option<String> {
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_wait(&self, why: Option<String>) {
        *self.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// Where workers hand batches to the writer.
pub struct Meeting {
    name: String,
    state: Mutex<WriterState>,
    /// Notified when there is something for the writer to do.
    work: Condvar,
    /// Notified when the writer has caught up.
    idle: Condvar,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct WriterState {
    queue: VecDeque<Vec<u8>>,
    /// Capacity of the batches in the queue, bytes.
    queue_bytes: usize,
    spare: Vec<Vec<u8>>,
    /// The target in the config; `None` before the first config.
    wanted: Option<AccessTarget>,
    /// The new target, which the writer has yet to take; the inner `None` closes it.
    next: Option<Option<Target>>,
    reopen: bool,
    started: bool,
    writing: bool,
    closed: bool,
    /// Whether the writer thread has returned.
    ended: bool,
}

impl Meeting {
    fn new(name: &str, counts: Arc<Counts>) -> Arc<Meeting> {
        let (state, work, idle) = Default::default();
        Arc::new(Meeting { name: name.to_owned(), state, work, idle, counts })
    }

    /// Waits until everything that was handed over is written; `false` if time ran out.
    pub fn finish(&self, limit: Duration) -> bool {
        let behind = |state: &mut WriterState| {
            state.started && !state.ended && (!state.queue.is_empty() || state.writing)
        };
        let waited = self.idle.wait_timeout_while(self.lock(), limit, behind);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn opened(
        &self,
        target: &AccessTarget,
        syslog: &Syslog,
        unopened: Unopened,
    ) -> io::Result<Option<Target>> {
        let opened = Target::open(target, syslog, unopened)?;
        self.counts.note_wait(opened.as_ref().and_then(Target::why_shut).map(str::to_owned));
        Ok(opened)
    }

    /// Whether nothing will be written any more.
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    fn start(self: &Arc<Self>, state: &mut WriterState) -> io::Result<()> {
        if !state.started {
            let meeting = self.clone();
            std::thread::Builder::new()
                .name("weir-access-log".into())
                .spawn(move || write_until_closed(&meeting))?;
            state.started = true;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenLog {
    /// The log of `[log]`, which is off until it is configured.
    pub fn off(counts: Arc<Counts>) -> OpenLog {
        OpenLog {
            enabled: AtomicBool::new(false),
            format: AtomicU8::new(AccessFormat::Json as u8),
            rules: ArcSwap::from_pointee(Rules::of(&AccessTarget::Off, &Log::default().lines)),
            is_retired: AtomicBool::new(false),
            meeting: Meeting::new(MAIN_LOG, counts.clone()),
            counts,
        }
    }

    /// Opens a log of this name, whose target never changes.
    ///
    /// # Errors
    /// The file can't be opened and `unopened` says to refuse it, or no thread can be started.
    pub fn open(
        name: &str,
        target: &AccessTarget,
        lines: &LogLines,
        counts: Arc<Counts>,
        unopened: Unopened,
    ) -> io::Result<OpenLog> {
        let meeting = Meeting::new(name, counts.clone());
        let mut state = meeting.lock();
        state.next = Some(meeting.opened(target, &lines.syslog, unopened)?);
        meeting.start(&mut state)?;
        drop(state);
        Ok(OpenLog {
            enabled: AtomicBool::new(true),
            format: AtomicU8::new(lines.format as u8),
            rules: ArcSwap::from_pointee(Rules::of(target, lines)),
            is_retired: AtomicBool::new(false),
            meeting,
            counts,
        })
    }

    /// Whether it takes lines. One relaxed load: each session and exchange asks before it makes a line.
    #[inline]
    pub fn enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// The format of its lines.
    pub fn format(&self) -> AccessFormat {
        let formats = [AccessFormat::Json, AccessFormat::Combined, AccessFormat::Haproxy];
        let number = self.format.load(Ordering::Relaxed);
        formats.into_iter().find(|&format| format as u8 == number).unwrap_or(AccessFormat::Json)
    }

    /// The rules for its lines.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// Sets the rules for its lines, from the next line of each worker on.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
    }

    /// Whether the config no longer has it. Sessions that began with it still write to it.
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// Notes that the config no longer has it, or has it again.
    pub fn set_retired(&self, is_retired: bool) {
        self.is_retired.store(is_retired, Ordering::Relaxed);
    }

    /// Lines that it did not get, shared with all logs of the same name.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The queue to its writer, which outlives this until everything is written.
    pub fn meeting(&self) -> &Arc<Meeting> {
        &self.meeting
    }

    /// Takes over target and format from `[log]`.
    pub fn reconfigure(&self, config: &Log, unopened: Unopened) -> io::Result<()> {
        let mut state = self.meeting.lock();
        if state.wanted.as_ref() != Some(&config.access) {
            let target = self.meeting.opened(&config.access, &config.lines.syslog, unopened)?;
            if target.is_some() {
                self.meeting.start(&mut state)?;
            }
            state.next = Some(target);
            state.wanted = Some(config.access.clone());
        }
        drop(state);
        self.set_rules(Rules::of(&config.access, &config.lines));
        self.format.store(config.lines.format as u8, Ordering::Relaxed);
        self.enabled.store(config.access != AccessTarget::Off, Ordering::Relaxed);
        self.meeting.work.notify_one();
        Ok(())
    }

    /// Makes the writer reopen its file, which has been renamed; does not wait for that.
    pub fn reopen(&self) {
        self.meeting.lock().reopen = true;
        self.meeting.work.notify_one();
    }

    /// Hands `batch` to the writer and leaves an empty one in its place; `false`, without a change, if the
    /// queue is full.
    pub fn hand_over(&self, batch: &mut Vec<u8>) -> bool {
        let mut state = self.meeting.lock();
        if state.queue_bytes + batch.capacity() > QUEUE_BYTES {
            return false;
        }
        state.queue_bytes += batch.capacity();
        let empty = state.spare.pop().unwrap_or_default();
        state.queue.push_back(std::mem::replace(batch, empty));
        drop(state);
        self.meeting.work.notify_one();
        true
    }
}

impl Drop for OpenLog {
    fn drop(&mut self) {
        self.meeting.lock().closed = true;
        self.meeting.work.notify_one();
    }
}

/// The writer thread's main function.
fn write_until_closed(meeting: &Meeting) {
    let mut writer = Writer { target: None, losses: Losses::default(), name: &meeting.name };
    let mut state = meeting.lock();
    loop {
        if let Some(target) = state.next.take() {
            writer.target = target;
        }
        if std::mem::take(&mut state.reopen) {
            // If a file system hangs, it must only block this thread, and not a worker that wants to hand
            // over a batch.
            drop(state);
            if let Some(target) = &mut writer.target {
                let was_shut = target.why_shut().is_some();
                target.reopen();
                if was_shut {
                    meeting.counts.note_wait(target.why_shut().map(str::to_owned));
                }
            }
            state = meeting.lock();
            continue;
        }
        match state.queue.pop_front() {
            Some(mut batch) => {
                state.writing = true;
                state.queue_bytes -= batch.capacity();
                let is_last_try = state.closed;
                drop(state);
                let mut written = writer.write(&batch, Instant::now());
                if written.is_later && is_last_try {
                    written = Written {
                        lost: written.lost + lines_in(&batch[written.taken..]),
                        ..Written::default()
                    };
                }
                meeting.counts.lost.fetch_add(written.lost, Ordering::Relaxed);
                meeting.counts.cut.fetch_add(written.cut, Ordering::Relaxed);
                meeting.counts.note_wait(written.waits_for.take());
                state = meeting.lock();
                state.writing = false;
                if written.is_later {
                    batch.drain(..written.taken);
                    state.queue_bytes += batch.capacity();
                    state.queue.push_front(batch);
                    state = meeting.pause(state);
                } else if state.spare.len() < SPARE_BATCHES && batch.capacity() <= SPARE_BYTES {
                    batch.clear();
                    state.spare.push(batch);
                }
            }
            None if state.closed => {
                state.ended = true;
                meeting.idle.notify_all();
                return;
            }
            // The target is tried even without a new line, so that an operator who has made room sees that it
            // helped.
            None if writer.target.as_ref().is_some_and(|target| target.why_shut().is_some()) => {
                meeting.idle.notify_all();
                state = meeting.pause(state);
                state.reopen = true;
            }
            None => {
                meeting.idle.notify_all();
                state = meeting.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Meeting {
    /// Waits before a target is tried again, unless there is something else to do.
    fn pause<'m>(&'m self, state: MutexGuard<'m, WriterState>) -> MutexGuard<'m, WriterState> {
        let is_idle = |state: &mut WriterState| !state.closed && !state.reopen && state.next.is_none();
        let waited = self.work.wait_timeout_while(state, RETRY, is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

struct Writer<'n> {
    target: Option<Target>,
    losses: Losses,
    name: &'n str,
}

/// Lines that could not be written since the last report.
#[derive(Default)]
struct Losses {
    lines: u64,
    reported: Option<Instant>,
    /// When it was last reported that lines wait.
    waiting: Option<Instant>,
}

impl Writer<'_> {
    /// Writes a batch; says how many lines did not get through, and whether there is more to be written of
    /// it. The next batch is tried afresh: a disk that was full recovers.
    fn write(&mut self, batch: &[u8], now: Instant) -> Written {
        let Some(target) = &mut self.target else { return Written::default() };
        let mut written = target.write(batch);
        let error = written.error.take();
        self.losses.lines += written.lost;
        if written.is_later {
            let why = || "it takes nothing now".to_owned();
            written.waits_for = Some(error.as_ref().map_or_else(why, ToString::to_string));
            self.losses.report_wait(now, self.name, error.as_ref());
        } else {
            self.losses.report_if_due(now, self.name, error.as_ref());
        }
        written
    }
}

/// How many lines end in `bytes`.
pub(super) fn lines_in(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

impl Losses {
    /// Reports how many lines were lost: at the first loss, then at most once a minute.
    fn report_if_due(&mut self, now: Instant, log: &str, error: Option<&io::Error>) {
        if self.waiting.take().is_some() {
            tracing::info!(log, "access log lines are taken again");
        }
        let due = self.reported.is_none_or(|last| now.duration_since(last) >= REPORT_INTERVAL);
        if self.lines == 0 || !due {
            return;
        }
        match error {
            Some(error) => tracing::warn!(log, lines = self.lines, %error, "access log lines were lost"),
            None => {
                tracing::warn!(log, lines = self.lines, "access log lines were lost; writing works again")
            }
        }
        (self.lines, self.reported) = (0, Some(now));
    }

    /// Reports that lines wait for their target: the first time, then at most once a minute.
    fn report_wait(&mut self, now: Instant, log: &str, error: Option<&io::Error>) {
        if self.waiting.is_some_and(|last| now.duration_since(last) < REPORT_INTERVAL) {
            return;
        }
        let error = error.map_or_else(String::new, ToString::to_string);
        tracing::warn!(log, error, "access log lines wait for their target");
        self.waiting = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::fd::OwnedFd;

    use super::*;

    fn pipe() -> (File, File) {
        let (read, write): (OwnedFd, OwnedFd) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)
                .unwrap();
        (read.into(), write.into())
    }

    fn writer(file: File) -> Writer<'static> {
        Writer { target: Some(Target::unnamed(file)), losses: Losses::default(), name: "main" }
    }

    #[test]
    fn a_full_device_loses_lines_counts_them_and_kills_nothing() {
        let mut writer = writer(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let start = Instant::now();
        assert_eq!(writer.write(b"a\nb\n", start).lost, 2);
        assert_eq!(writer.losses.lines, 0, "the first loss is reported at once");
        writer.write(b"c\nd\ne\n", start);
        assert_eq!(writer.losses.lines, 3);
        writer.write(b"f\n", start + REPORT_INTERVAL);
        assert_eq!(writer.losses.lines, 0);
    }

    /// Earlier, batches were counted, and those with long lines took many times the memory that the guide
    /// says.
    #[test]
    fn the_queue_is_full_when_its_memory_is_whatever_the_batches_hold() {
        for room in [1 << 10, 36 << 10, 1 << 20] {
            let shared = OpenLog::off(Arc::default());
            let mut count = 0;
            let full = || {
                let mut batch = Vec::with_capacity(room);
                batch.push(b'x');
                !shared.hand_over(&mut batch)
            };
            while !full() {
                count += 1;
            }
            assert!(count * room <= QUEUE_BYTES && (count + 1) * room > QUEUE_BYTES, "{count} of {room}");
        }
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
        // only line.
        let long = [b"x".repeat(1 << 20), b"\n".to_vec()].concat();
        writer.write(&long, Instant::now());
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
