//! The access log, off the data path: a worker renders a line into its own batch; batches go through a
//! bounded queue to one writer thread; a line that finds the queue full is dropped and counted.
//!
//! A worker never waits for the log: not for a full disk, a stuck pipe or a slow terminal. Only the writer
//! thread does. Everything a peer sent is escaped (D11), so that a line is always exactly one line.

mod escape;
mod render;
mod timestamp;
mod writer;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use weir_io::handshake::Secure;
use weir_stats::table::{End, ListenerCells, Rejected};

use render::Renderer;
use writer::Shared;

/// A batch of this many bytes goes to the writer at once.
const BATCH_BYTES: usize = 32 << 10;
/// A smaller batch goes to the writer after this long, so that `tail -f` shows what happens.
const BATCH_AGE: Duration = Duration::from_millis(100);

/// What one exchange, session or flow looked like. Whatever is `None` does not apply or never came about.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Wall-clock time at the end; the beginning is `total` earlier.
    pub time: SystemTime,
    /// Name of the listener.
    pub listener: &'a str,
    /// Name of the route that took the request.
    pub route: Option<&'a str>,
    /// Name of the pool.
    pub pool: Option<&'a str>,
    /// The backend that was used last, as configured.
    pub backend: Option<&'a str>,
    /// The client: the TCP peer, or whom a believed PROXY header names.
    pub client: SocketAddr,
    /// What was spoken.
    pub protocol: Spoken,
    /// Request method, as sent.
    pub method: Option<&'a [u8]>,
    /// Host the request was for, as sent.
    pub host: Option<&'a [u8]>,
    /// Request target: path and query, as sent.
    pub path: Option<&'a [u8]>,
    /// Status sent to the client.
    pub status: Option<u16>,
    /// Bytes from the client.
    pub bytes_received: u64,
    /// Bytes to the client.
    pub bytes_sent: u64,
    /// `x-request-id`, as passed on or made.
    pub request_id: Option<&'a [u8]>,
    /// What the cache said, in one word.
    pub cache: Option<&'a str>,
    /// Attempts after the first (count).
    pub retries: u32,
    /// How long each phase took.
    pub timers: Timers,
    /// Why it ended.
    pub end: End,
    /// What would have refused it, but for a dry run.
    pub would_reject: Reasons,
    /// Where in the request SQL injection was found, and of what kind.
    pub sqli: Option<&'a str>,
    /// Who the client has shown to be.
    pub user: Option<&'a [u8]>,
    /// `user-agent`, as sent.
    pub user_agent: Option<&'a [u8]>,
    /// What the connection is encrypted with; `None` without TLS.
    pub tls: Option<&'a Secure>,
    /// `referer`, as sent.
    pub referer: Option<&'a [u8]>,
}

/// A set of reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasons(u64);

impl Reasons {
    /// Adds one; gives whether it was not there yet.
    pub fn add(&mut self, reason: Rejected) -> bool {
        let before = self.0;
        self.0 |= 1 << reason as u8;
        self.0 != before
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are there.
    pub fn iter(self) -> impl Iterator<Item = Rejected> {
        Rejected::ALL.iter().copied().filter(move |reason| self.0 & (1 << *reason as u8) != 0)
    }
}

const _: () = assert!(Rejected::ALL.len() <= 64, "a set of reasons is one number");

/// How long the phases took. `None`: the phase was never reached, or does not exist in this protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    /// From the first byte of the request to the end of its head.
    pub client_header: Option<Duration>,
    /// Waiting because every backend was at `max_connections`.
    pub queue: Option<Duration>,
    /// Until a backend had accepted, all attempts together; zero on a reused connection.
    pub connect: Option<Duration>,
    /// From the request sent to the head of the response received.
    pub backend_header: Option<Duration>,
    /// Until it was known whether the client may ask.
    pub auth: Option<Duration>,
    /// Everything.
    pub total: Duration,
}

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Spoken {
    Http10,
    Http11,
    Http2,
    Http3,
    Tcp,
    Udp,
    Mysql,
}

impl Spoken {
    /// Whether it has requests.
    pub const fn is_http(self) -> bool {
        matches!(self, Spoken::Http10 | Spoken::Http11 | Spoken::Http2 | Spoken::Http3)
    }

    /// As it stands in a log line.
    pub const fn word(self) -> &'static str {
        match self {
            Spoken::Http10 => "HTTP/1.0",
            Spoken::Http11 => "HTTP/1.1",
            Spoken::Http2 => "HTTP/2.0",
            Spoken::Http3 => "HTTP/3.0",
            Spoken::Tcp => "TCP",
            Spoken::Udp => "UDP",
            Spoken::Mysql => "MySQL",
        }
    }
}

/// The access log of the process; clones are handles to the same one.
#[derive(Clone)]
pub struct AccessLog {
    shared: Arc<Shared>,
}

impl AccessLog {
    /// Opens the target that `config` names. Nothing is opened, and no thread started, while it is `off`.
    ///
    /// # Errors
    /// The file can't be opened for appending.
    pub fn start(config: &weir_config::Log) -> io::Result<AccessLog> {
        let log = AccessLog { shared: Arc::new(Shared::new()) };
        log.reconfigure(config)?;
        Ok(log)
    }

    /// Takes over target and format from `config`. Lines on their way go to the new target, in the form they
    /// have.
    ///
    /// # Errors
    /// The new file can't be opened; the old target stays in force.
    pub fn reconfigure(&self, config: &weir_config::Log) -> io::Result<()> {
        self.shared.reconfigure(config)
    }

    /// Opens the file anew, because log rotation has moved the old one away; nothing else has that need. Done
    /// by the writer thread, which keeps the old file and warns when the new one can't be opened.
    pub fn reopen(&self) {
        self.shared.reopen();
    }

    /// Lines that the target did not take since the process started: the disk is full, or nobody reads. Those
    /// dropped because the writer was behind are not among them.
    pub fn lost_lines(&self) -> u64 {
        self.shared.lost()
    }

    /// Waits until all lines handed over before are written, at most `limit`; for the end of the process.
    /// `false` when time ran out.
    pub fn finish(&self, limit: Duration) -> bool {
        self.shared.finish(limit)
    }

    /// The side of one worker.
    pub fn for_worker(&self) -> WorkerLog {
        WorkerLog {
            inner: Rc::new(Inner {
                shared: self.shared.clone(),
                batch: RefCell::default(),
                begun: Notify::new(),
            }),
        }
    }
}

/// The access log as one worker sees it; clones are handles to the same batch.
#[derive(Clone)]
pub struct WorkerLog {
    inner: Rc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    batch: RefCell<Batch>,
    /// Told when the first line comes into an empty batch.
    begun: Notify,
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    renderer: Renderer,
}

impl WorkerLog {
    /// Whether lines are wanted at all; one relaxed load.
    #[inline]
    pub fn enabled(&self) -> bool {
        self.inner.shared.enabled()
    }

    /// Renders one line into the batch. When the writer is too far behind the line is dropped and counted in
    /// `cells`.
    pub fn write(&self, record: &Record<'_>, cells: &ListenerCells) {
        if !self.enabled() {
            return;
        }
        let batch = &mut *self.inner.batch.borrow_mut();
        if batch.bytes.len() >= BATCH_BYTES && !self.inner.shared.hand_over(&mut batch.bytes) {
            cells.log_dropped.increment();
            return;
        }
        if batch.bytes.is_empty() {
            batch.bytes.reserve(BATCH_BYTES + BATCH_BYTES / 8);
            self.inner.begun.notify_one();
        }
        batch.renderer.line(&mut batch.bytes, self.inner.shared.format(), record);
        if batch.bytes.len() >= BATCH_BYTES {
            // When this fails the batch waits, and is tried again with the next line and at the next tick.
            self.inner.shared.hand_over(&mut batch.bytes);
        }
    }

    /// Hands over what is in the batch, unless the queue is full.
    pub fn flush(&self) {
        let batch = &mut *self.inner.batch.borrow_mut();
        if !batch.bytes.is_empty() {
            self.inner.shared.hand_over(&mut batch.bytes);
        }
    }

    /// Flushes batches that are not full in time, for ever. Sleeps without a timer while nothing is logged.
    pub async fn run(self) {
        loop {
            self.inner.begun.notified().await;
            while !self.inner.batch.borrow().bytes.is_empty() {
                tokio::time::sleep(BATCH_AGE).await;
                self.flush();
            }
        }
    }
}

#[cfg(test)]
mod tests;
