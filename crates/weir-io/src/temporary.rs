//! Nameless files for what must not stay in memory, and the threads that read and write them: a worker never
//! waits for a disk.
//!
//! Each task for a thread is a job: write a block, read a block, or close a file. A file has at most one read
//! or write under way, so that the number of jobs waiting for a hung disk is bounded by the number of files.

mod file;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::sync::oneshot;
use weir_stats::table::FileRefusal;

pub use self::file::{Lost, TemporaryFile};
use crate::clock;
use crate::system;

/// Bytes read or written at once.
pub const BLOCK: usize = 128 << 10;
/// How long a thread waits for the next job before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// Disk failures are logged at most this often.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Limits for all files together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The directory in which they are made.
    pub directory: PathBuf,
    /// Bytes in all files.
    pub bytes: u64,
    /// Files at once; never more than a quarter of the process's descriptor limit.
    pub files: u64,
    /// Threads that read and write the files, at least 1.
    pub threads: usize,
}

/// The temporary files of a process, shared by all workers.
pub struct TemporaryFiles {
    directory: Mutex<PathBuf>,
    most_bytes: AtomicU64,
    most_files: AtomicU64,
    most_threads: AtomicUsize,
    bytes: AtomicU64,
    files: AtomicU64,
    made: AtomicU64,
    refusals: [AtomicU64; FileRefusal::ALL.len()],
    /// When a disk failure was last logged, in nanoseconds of the clock; 0: never.
    said_at: AtomicU64,
    queue: Mutex<Queue>,
    ready: Condvar,
}

/// Jobs waiting for a thread.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl TemporaryFiles {
    /// With no files and no threads yet.
    pub fn new(limits: Limits) -> Arc<TemporaryFiles> {
        Arc::new(TemporaryFiles {
            most_bytes: AtomicU64::new(limits.bytes),
            most_files: AtomicU64::new(limits.files.min(system::quarter_of_descriptors())),
            most_threads: AtomicUsize::new(limits.threads),
            directory: Mutex::new(limits.directory),
            bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
            made: AtomicU64::new(0),
            refusals: Default::default(),
            said_at: AtomicU64::new(0),
            queue: Mutex::default(),
            ready: Condvar::new(),
        })
    }

    /// Applies these limits from now on. Existing files stay where they are.
    pub fn limit(&self, limits: Limits) {
        self.most_bytes.store(limits.bytes, Ordering::Relaxed);
        let most_files = limits.files.min(system::quarter_of_descriptors());
        self.most_files.store(most_files, Ordering::Relaxed);
        self.most_threads.store(limits.threads, Ordering::Relaxed);
        *self.directory.lock().unwrap_or_else(PoisonError::into_inner) = limits.directory;
    }

    /// Bytes in all files.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Most bytes in all files.
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes.load(Ordering::Relaxed)
    }

    /// Files that exist now.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Files made so far.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// How often bytes could not be put into a file or read back, by reason.
    pub fn refusals(&self, reason: FileRefusal) -> u64 {
        self.refusals[reason as usize].load(Ordering::Relaxed)
    }

    /// Counts one.
    fn refuse(&self, reason: FileRefusal) {
        self.refusals[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Room for one more file; `None` when the limit is reached.
    fn place(self: &Arc<Self>) -> Option<Arc<Shared>> {
        let most = self.most_files.load(Ordering::Relaxed);
        let more = |files: u64| (files < most).then(|| files + 1);
        if self.files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            self.refuse(FileRefusal::Count);
            return None;
        }
        let (file, reserved) = (OnceLock::new(), AtomicU64::new(0));
        Some(Arc::new(Shared { files: self.clone(), file, reserved }))
    }

    /// Hands the job to a thread; returns it if there is no thread and none can be started.
    fn submit(self: &Arc<Self>, job: Job) -> Result<(), Job> {
        let most = self.most_threads.load(Ordering::Relaxed).max(1);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.jobs.len() >= queue.idle && queue.threads < most {
            let files = self.clone();
            let thread = std::thread::Builder::new().name("weir-files".to_owned());
            match thread.spawn(move || files.work()) {
                Ok(_) => queue.threads += 1,
                Err(_) if queue.threads == 0 => return Err(job),
                Err(_) => {}
            }
        }
        queue.jobs.push_back(job);
        self.ready.notify_one();
        Ok(())
    }

    /// Works off jobs, until there has been none for [`IDLE`].
    fn work(&self) {
        // Workers are pinned to CPUs, and the threads that they spawn inherit that.
        system::run_beside_workers();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job.run();
                queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue.idle += 1;
            let (woken, waited) =
                self.ready.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }

    /// Logs a disk failure, unless one was logged a moment ago.
    fn say(&self, what: &str, error: &io::Error) {
        let now = clock::now().as_nanos() as u64;
        let said = self.said_at.load(Ordering::Relaxed);
        if said == 0 || now.saturating_sub(said) >= REPORT_INTERVAL.as_nanos() as u64 {
            self.said_at.store(now.max(1), Ordering::Relaxed);
            tracing::warn!(%error, "a file of a buffered body could not be {what}");
        }
    }
}

/// One file, shared by the worker that uses it and the job that is under way.
struct Shared {
    files: Arc<TemporaryFiles>,
    /// Created when the first block is written.
    file: OnceLock<File>,
    /// Bytes of it that count towards the total.
    reserved: AtomicU64,
}

impl Shared {
    /// Counts the file with this length; false if all files together would exceed their limit.
    fn reserve(&self, length: u64) -> bool {
        let more = length.saturating_sub(self.reserved.load(Ordering::Relaxed));
        let most = self.files.most_bytes();
        let add = |bytes: u64| bytes.checked_add(more).filter(|bytes| *bytes <= most);
        let added = self.files.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        if added {
            self.reserved.fetch_add(more, Ordering::Relaxed);
        }
        added
    }

    fn write(&self, block: &[u8], at: u64) -> io::Result<()> {
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                let directory = self.files.directory.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let file = unnamed(&directory)?;
                self.files.made.fetch_add(1, Ordering::Relaxed);
                self.file.get_or_init(|| file)
            }
        };
        file.write_all_at(block, at)
    }

    fn read(&self, block: &mut [u8], at: u64) -> io::Result<()> {
        let file = self.file.get().ok_or(io::ErrorKind::NotFound)?;
        file.read_exact_at(block, at)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Freeing the blocks of a large file takes a while; its bytes count until that is done.
        drop(self.file.take());
        self.files.bytes.fetch_sub(*self.reserved.get_mut(), Ordering::Relaxed);
        self.files.files.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A task for a thread.
struct Job {
    file: Arc<Shared>,
    work: Work,
}

enum Work {
    /// Write the block at this offset, and return it.
    Write { block: Vec<u8>, at: u64, tell: oneshot::Sender<Done> },
    /// Fill the block from this offset.
    Read { block: Vec<u8>, at: u64, tell: oneshot::Sender<Done> },
    /// Close the file, if this is the last reference.
    Close,
}

/// Result of a job.
struct Done {
    block: Vec<u8>,
    is_good: bool,
}

impl Job {
    fn run(self) {
        let Job { file, work } = self;
        let (done, tell) = match work {
            Work::Write { block, at, tell } => {
                let written = file.write(&block, at);
                if let Err(error) = &written {
                    file.files.say("written", error);
                    file.files.refuse(FileRefusal::Disk);
                }
                (Done { block, is_good: written.is_ok() }, tell)
            }
            Work::Read { mut block, at, tell } => {
                let read = file.read(&mut block, at);
                if let Err(error) = &read {
                    file.files.say("read", error);
                }
                (Done { block, is_good: read.is_ok() }, tell)
            }
            Work::Close => return,
        };
        drop(file);
        let _ = tell.send(done);
    }
}

/// Creates a file without a name, readable by this user only, which vanishes when its last descriptor is
/// closed.
///
/// Source: open(2), `O_TMPFILE`. On file systems without that flag the file has a name for a moment.
pub fn unnamed(directory: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL;
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        Ok(file) => return Ok(file.into()),
        // Kernels and file systems that do not know the flag return EISDIR or EINVAL.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!(".weir-{}-{number}", std::process::id()));
    let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::NOFOLLOW, mode)?;
    rustix::fs::unlink(&path)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests;
