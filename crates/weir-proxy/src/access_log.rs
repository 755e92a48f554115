//! Access logs, off the data path. A worker renders a line into its own batch; batches go through a bounded
//! queue to the log's writer thread; a line that finds the queue full is dropped and counted.
//!
//! A worker never waits for a log: not for a full disk, a stuck pipe, a slow terminal or a daemon that is
//! down. Only the writer thread does. Everything that a peer sent is escaped (D11), so that a line is always
//! exactly one line.
//!
//! The log of `[log]` with nothing but a target and a format is the *usual* one; [`WorkerLog::write`] writes
//! its lines. Any further settings make [`Logs`] for a listener.

mod captured;
mod escape;
mod form;
mod logs;
mod record;
mod render;
mod rules;
mod socket;
mod target;
mod timestamp;
mod writer;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use weir_config::{AccessTarget, Config, Log, MAIN_LOG, Syslog, all_logs};
use weir_stats::table::ListenerCells;

pub use captured::Captured;
pub use logs::Logs;
pub use record::{Reasons, Record, Spoken, Timers};
#[cfg(test)]
pub use rules::number_of;

use form::Said;
use render::Renderer;
use rules::{LineVerdict, Rules};
use target::Unopened;
use writer::{Counts, Meeting, OpenLog};

/// A batch that has reached this many bytes is handed to the writer at once.
const BATCH_BYTES: usize = 32 << 10;
/// A smaller batch is handed to the writer after this time, so that `tail -f` shows what happens.
const BATCH_AGE: Duration = Duration::from_millis(100);

/// The access logs of the process; clones are handles to the same ones.
#[derive(Clone)]
pub struct AccessLog {
    /// The log of `[log]`, as long as it is the usual one.
    usual: Arc<OpenLog>,
    book: Arc<Mutex<Book>>,
}

/// All other logs.
#[derive(Default)]
struct Book {
    /// Whether the log of `[log]` is the usual one.
    is_usual: bool,
    /// Logs in the current config.
    open: Vec<(LogIdentity, Arc<OpenLog>)>,
    /// Logs of earlier configs: sessions that began with one still write to it.
    left: Vec<(LogIdentity, Weak<OpenLog>, Arc<Meeting>)>,
    /// The counts of missing lines, by the log's name.
    counts: BTreeMap<String, Arc<Counts>>,
}

/// What identifies a log.
#[derive(Clone, PartialEq, Eq)]
struct LogIdentity {
    name: String,
    target: AccessTarget,
    syslog: Syslog,
}

/// Why lines are missing in a log, or incomplete, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// `filter`, `share`, `queue`, `target`, or `cut` for lines that are there in part.
    pub reason: &'static str,
    /// Lines since the start (count).
    pub lines: u64,
}

impl Book {
    fn counts_of(&mut self, name: &str) -> Arc<Counts> {
        self.counts.entry(name.to_owned()).or_default().clone()
    }

    /// A log that is open, or that somebody still writes to.
    fn find(&self, place: &LogIdentity) -> Option<Arc<OpenLog>> {
        let open = self.open.iter().find(|(other, _)| other == place).map(|(_, shared)| shared.clone());
        let left = || self.left.iter().find_map(|(other, it, _)| it.upgrade().filter(|_| other == place));
        open.or_else(left)
    }
}

impl AccessLog {
    /// Opens the targets that the config names. Nothing is opened, and no thread started, while there is
    /// none. A file that can't be opened is reported and tried again (decision 0052).
    ///
    /// # Errors
    /// No thread can be started, or no file descriptor is left.
    pub fn start(main: &Log, others: &[Arc<weir_config::AccessLog>]) -> io::Result<AccessLog> {
        let mut book = Book::default();
        let usual = Arc::new(OpenLog::off(book.counts_of(MAIN_LOG)));
        let log = AccessLog { usual, book: Arc::new(Mutex::new(book)) };
        log.take_over(main, others, Unopened::Awaited)?;
        Ok(log)
    }

    /// Whether the log of `[log]` writes all lines, in a fixed format, to a file or nowhere.
    fn is_usual(main: &Log) -> bool {
        let is_file = !matches!(main.access, AccessTarget::Syslog(_) | AccessTarget::Journal);
        main.access == AccessTarget::Off || (is_file && main.lines.is_plain())
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over targets and formats. Lines on their way still go to their old target; but if `[log]` only
    /// names another file, they go to that.
    ///
    /// # Errors
    /// A new file can't be opened; the old targets stay in force.
    pub fn reconfigure(&self, main: &Log, others: &[Arc<weir_config::AccessLog>]) -> io::Result<()> {
        self.take_over(main, others, Unopened::Refused)
    }

    /// Like [`Self::reconfigure`], but for the targets that were in force before a reload that failed. A file
    /// that can no longer be opened is tried again.
    ///
    /// # Errors
    /// The same as those of [`Self::start`].
    pub fn put_back(&self, main: &Log, others: &[Arc<weir_config::AccessLog>]) -> io::Result<()> {
        self.take_over(main, others, Unopened::Awaited)
    }

    fn take_over(
        &self,
        main: &Log,
        others: &[Arc<weir_config::AccessLog>],
        unopened: Unopened,
    ) -> io::Result<()> {
        let is_usual = AccessLog::is_usual(main);
        let mut book = self.book();
        let mut open = Vec::new();
        let own = all_logs(main, others)
            .filter(|(name, target, _)| **target != AccessTarget::Off && !(is_usual && *name == MAIN_LOG));
        for (name, target, lines) in own {
            let (name, syslog) = (name.to_owned(), lines.syslog.clone());
            let place = LogIdentity { name, target: target.clone(), syslog };
            let shared = match book.find(&place) {
                Some(known) => known,
                None => {
                    let counts = book.counts_of(&place.name);
                    let opened = OpenLog::open(&place.name, target, lines, counts, unopened);
                    Arc::new(opened.map_err(|error| {
                        io::Error::new(error.kind(), format!("`{}`, {target}: {error}", place.name))
                    })?)
                }
            };
            open.push((place, shared, Rules::of(target, lines)));
        }
        // While the log of `[log]` is not the usual one, sessions that began with the usual one still write
        // to it.
        if is_usual {
            self.usual.reconfigure(main, unopened).map_err(|error| {
                io::Error::new(error.kind(), format!("`{MAIN_LOG}`, {}: {error}", main.access))
            })?;
            if !book.is_usual {
                // Log rotation may have moved its file while it was not reopened.
                self.usual.reopen();
            }
        }
        book.is_usual = is_usual;
        let open = open.into_iter().map(|(place, shared, rules)| {
            shared.set_rules(rules);
            if shared.is_retired() {
                shared.set_retired(false);
                shared.reopen();
            }
            (place, shared)
        });
        let before = std::mem::replace(&mut book.open, open.collect());
        for (place, shared) in before {
            if !book.open.iter().any(|(other, _)| *other == place) {
                shared.set_retired(true);
                book.left.push((place, Arc::downgrade(&shared), shared.meeting().clone()));
            }
        }
        book.left.retain(|(.., meeting)| !meeting.has_ended());
        let is_known = |name: &str| name == MAIN_LOG || others.iter().any(|log| log.name == name);
        book.counts.retain(|name, _| is_known(name));
        Ok(())
    }

    /// The logs of `config`, which was already taken over, by name.
    fn sinks(&self, config: &Config) -> Vec<(String, Arc<OpenLog>)> {
        let is_usual = AccessLog::is_usual(&config.log) && config.log.access != AccessTarget::Off;
        let usual = is_usual.then(|| (MAIN_LOG.to_owned(), self.usual.clone()));
        let book = self.book();
        let others = book.open.iter().map(|(place, shared)| (place.name.clone(), shared.clone()));
        usual.into_iter().chain(others).collect()
    }

    /// Reopens the files, because log rotation has moved the old ones away. The writer threads do this; if a
    /// new file can't be opened, they keep the old one and warn.
    pub fn reopen(&self) {
        let book = self.book();
        let usual = book.is_usual.then_some(&self.usual);
        usual.into_iter().chain(book.open.iter().map(|(_, shared)| shared)).for_each(|log| log.reopen());
    }

    /// Lines that targets did not take since the process started, because the disk is full or nobody reads.
    /// Lines that were dropped because the writer was behind do not count.
    pub fn lost_lines(&self) -> u64 {
        self.book().counts.values().map(|counts| counts.lost.load(Ordering::Relaxed)).sum()
    }

    /// The name of each log and why its lines are held in memory: the file can't be opened, or the daemon
    /// accepts none. `None` if they are not held.
    pub fn waiting(&self) -> Vec<(String, Option<String>)> {
        let book = self.book();
        book.counts.iter().map(|(name, counts)| (name.clone(), counts.waits_for())).collect()
    }

    /// The logs by name, and what is not in them, and why.
    pub fn missing(&self) -> Vec<(String, [Missing; 5])> {
        let book = self.book();
        let count = |reason, lines: &AtomicU64| Missing { reason, lines: lines.load(Ordering::Relaxed) };
        let of = |counts: &Counts| {
            [
                count("filter", &counts.filtered),
                count("share", &counts.unsampled),
                count("queue", &counts.dropped),
                count("target", &counts.lost),
                count("cut", &counts.cut),
            ]
        };
        book.counts.iter().map(|(name, counts)| (name.clone(), of(counts))).collect()
    }

    /// Waits until all lines that were handed over are written, at most for `limit`; used at the end of the
    /// process. `false` if time ran out.
    pub fn finish(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut meetings = vec![self.usual.meeting().clone()];
        {
            let book = self.book();
            meetings.extend(book.open.iter().map(|(_, shared)| shared.meeting().clone()));
            meetings.extend(book.left.iter().map(|(.., meeting)| meeting.clone()));
        }
        meetings.iter().all(|meeting| meeting.finish(until.saturating_duration_since(Instant::now())))
    }

    /// The access logs for one worker.
    pub fn for_worker(&self) -> WorkerLog {
        WorkerLog {
            inner: Rc::new(Inner {
                shared: self.usual.clone(),
                batch: RefCell::default(),
                others: RefCell::default(),
                begun: Notify::new(),
            }),
        }
    }
}

/// The access logs from the view of one worker; clones are handles to the same batches.
#[derive(Clone)]
pub struct WorkerLog {
    inner: Rc<Inner>,
}

struct Inner {
    /// The usual log.
    shared: Arc<OpenLog>,
    batch: RefCell<Batch>,
    /// Other logs that lines were written to.
    others: RefCell<Vec<(Arc<OpenLog>, Batch)>>,
    /// Notified when the first line comes into an empty batch.
    begun: Notify,
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    renderer: Renderer,
}

impl WorkerLog {
    /// Whether the usual log wants lines at all; one relaxed load.
    #[inline]
    pub fn enabled(&self) -> bool {
        self.inner.shared.enabled()
    }

    /// Renders one line into the batch of the usual log. If the writer is too far behind, the line is dropped
    /// and counted in `cells`.
    pub fn write(&self, record: &Record<'_>, cells: &ListenerCells) {
        if !self.enabled() {
            return;
        }
        let Inner { shared, batch, .. } = &*self.inner;
        let put = |renderer: &mut Renderer, out: &mut Vec<u8>| renderer.line(out, shared.format(), record);
        self.append(shared, &mut batch.borrow_mut(), cells, put);
    }

    /// Renders one line for each log that takes the listener's lines of this route, or of no route.
    pub fn write_to(
        &self,
        logs: &Logs,
        route: Option<usize>,
        record: &Record<'_>,
        captured: &Captured,
        cells: &ListenerCells,
    ) {
        for shared in logs.of(route).filter(|shared| shared.enabled()) {
            let rules = shared.rules();
            let left_out = match rules.judge(record) {
                LineVerdict::Written => None,
                LineVerdict::Filtered => Some(&shared.counts().filtered),
                LineVerdict::Unsampled => Some(&shared.counts().unsampled),
            };
            if let Some(counter) = left_out {
                counter.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let put = |renderer: &mut Renderer, out: &mut Vec<u8>| {
                rules.line(renderer, out, Said { record, captured });
            };
            if Arc::ptr_eq(shared, &self.inner.shared) {
                self.append(shared, &mut self.inner.batch.borrow_mut(), cells, put);
                continue;
            }
            let others = &mut *self.inner.others.borrow_mut();
            let known = others.iter().position(|(other, _)| Arc::ptr_eq(other, shared));
            let place = known.unwrap_or_else(|| {
                others.push((shared.clone(), Batch::default()));
                others.len() - 1
            });
            self.append(shared, &mut others[place].1, cells, put);
        }
    }

    fn append(
        &self,
        shared: &OpenLog,
        batch: &mut Batch,
        cells: &ListenerCells,
        put: impl FnOnce(&mut Renderer, &mut Vec<u8>),
    ) {
        if batch.bytes.len() >= BATCH_BYTES && !shared.hand_over(&mut batch.bytes) {
            cells.log_dropped.increment();
            shared.counts().dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if batch.bytes.is_empty() {
            batch.bytes.reserve(BATCH_BYTES + BATCH_BYTES / 8);
            self.inner.begun.notify_one();
        }
        put(&mut batch.renderer, &mut batch.bytes);
        if batch.bytes.len() >= BATCH_BYTES {
            // If this fails the batch is kept, and tried again with the next line and at the next tick.
            shared.hand_over(&mut batch.bytes);
        }
    }

    /// Hands over the contents of the batches, unless their queue is full, and drops logs that are gone.
    pub fn flush(&self) {
        let hand_over = |shared: &OpenLog, batch: &mut Batch| {
            if !batch.bytes.is_empty() {
                shared.hand_over(&mut batch.bytes);
            }
        };
        hand_over(&self.inner.shared, &mut self.inner.batch.borrow_mut());
        self.inner.others.borrow_mut().retain_mut(|(shared, batch)| {
            hand_over(shared, batch);
            !batch.bytes.is_empty() || !shared.is_retired()
        });
    }

    fn is_empty(&self) -> bool {
        let others = self.inner.others.borrow();
        self.inner.batch.borrow().bytes.is_empty() && others.iter().all(|(_, batch)| batch.bytes.is_empty())
    }

    /// Flushes batches that do not fill up in time, for ever. Sleeps without a timer while nothing is logged.
    pub async fn run(self) {
        loop {
            self.inner.begun.notified().await;
            while !self.is_empty() {
                tokio::time::sleep(BATCH_AGE).await;
                self.flush();
            }
        }
    }
}

#[cfg(test)]
mod tests;
