//! From a file to a config in force, and the record of how the last attempt went.
//!
//! Reading, checking and binding come first; nothing changes until all of that has succeeded. Errors are
//! remembered until the next attempt, so that an operator who was not looking still finds them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_config::{Checked, NamedFiles, Report, Root};

use crate::config_files::{Disk, OnlyRead, read_file};
use crate::publish::PublishError;
use crate::slow_files::WatchedDisk;
use crate::timestamp::Timestamp;

/// Most bytes of a config file that are read; the check refuses files longer than its own, lower limit.
const FILE_BYTES: u64 = 64 << 20;

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files that are read again at each reload, in this order, with those that they include.
    Files(Vec<PathBuf>),
    /// A text that the program made itself (`weir demo`, `weir proxy`); it can't be reloaded.
    Text {
        /// Shown in place of a file name.
        name: String,
        /// TOML.
        text: String,
    },
}

/// Separator between the names of several files.
const BETWEEN: &str = ", ";

impl Source {
    /// The files' absolute paths, which can be compared with paths from another directory; or the name that
    /// is shown in place of a file.
    pub fn full_name(&self) -> String {
        match self {
            Source::Files(paths) => {
                let full = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let names: Vec<String> = paths.iter().map(|path| full(path).display().to_string()).collect();
                names.join(BETWEEN)
            }
            Source::Text { name, .. } => name.clone(),
        }
    }

    /// The files in a [`Source::full_name`].
    pub fn paths_in(full_name: &str) -> Vec<PathBuf> {
        full_name.split(BETWEEN).map(PathBuf::from).collect()
    }

    /// Reads and checks.
    pub fn read(&self) -> Result<Checked, ReadError> {
        self.read_in(&Disk, read_root)
    }

    /// As [`Self::read`]; meanwhile `tell` gets, on another thread, what to say of files that are waited for.
    pub fn read_telling(&self, tell: impl Fn(String) + Send + 'static) -> Result<Checked, ReadError> {
        let disk = WatchedDisk::telling(tell);
        let read = |path: &Path| disk.within(&path.display().to_string(), || read_file(path, FILE_BYTES));
        self.read_in(&disk, read)
    }

    /// As [`Self::read`], for code that only looks: files that only Weir itself needs are not checked.
    pub fn look(&self) -> Result<Checked, ReadError> {
        self.read_in(&OnlyRead, read_root)
    }

    fn read_in(
        &self,
        world: &dyn NamedFiles,
        read: impl Fn(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Checked, ReadError> {
        match self {
            Source::Files(paths) => {
                let named = read_all(paths, read)?;
                let mut roots = Vec::with_capacity(named.len());
                for (name, bytes) in &named {
                    let text = weir_config::decode(name, bytes).map_err(ReadError::Refused)?;
                    roots.push(Root { name, text });
                }
                weir_config::check_files(&roots, world).map_err(ReadError::Refused)
            }
            Source::Text { name, text } => weir_config::check_text(name, text).map_err(ReadError::Refused),
        }
    }

    /// The texts of all files, including included ones, as far as they can be read: for searches in a config
    /// with mistakes.
    pub fn texts(&self) -> Result<Vec<String>, ReadError> {
        let Source::Files(paths) = self else { return Ok(Vec::new()) };
        let named: Vec<(String, String)> = read_all(paths, read_root)?
            .into_iter()
            .map(|(name, bytes)| (name, String::from_utf8_lossy(&bytes).into_owned()))
            .collect();
        let roots: Vec<Root<'_>> = named.iter().map(|(name, text)| Root { name, text }).collect();
        Ok(weir_config::all_texts(&roots, &Disk))
    }
}

/// The named files, with their names as they are shown.
fn read_all(
    paths: &[PathBuf],
    read: impl Fn(&Path) -> io::Result<Vec<u8>>,
) -> Result<Vec<(String, Vec<u8>)>, ReadError> {
    let read = |path: &PathBuf| match read(path) {
        Ok(bytes) => Ok((path.display().to_string(), bytes)),
        Err(error) => Err(ReadError::Unreadable { path: path.clone(), error }),
    };
    paths.iter().map(read).collect()
}

fn read_root(path: &Path) -> io::Result<Vec<u8>> {
    read_file(path, FILE_BYTES)
}

/// A config that could not be used.
#[derive(Debug)]
pub enum ReadError {
    /// The file could not be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        error: std::io::Error,
    },
    /// The file has mistakes.
    Refused(Report),
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Unreadable { path, error } => write!(out, "{} can't be read: {error}", path.display()),
            ReadError::Refused(report) => write!(out, "{}", report.to_string().trim_end()),
        }
    }
}

impl std::error::Error for ReadError {}

/// The result of a reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReloadVerdict {
    /// The file is in force.
    Applied,
    /// The content of the file is already in force.
    #[default]
    Unchanged,
    /// The file has mistakes, or names files that can't be used; nothing changed.
    Refused,
    /// The file could not be read, or a socket could not be bound; nothing changed.
    Failed,
}

impl ReloadVerdict {
    /// All verdicts, for metrics.
    pub const ALL: [ReloadVerdict; 4] =
        [ReloadVerdict::Applied, ReloadVerdict::Unchanged, ReloadVerdict::Refused, ReloadVerdict::Failed];

    /// The word in logs, metrics and the API.
    pub fn word(self) -> &'static str {
        match self {
            ReloadVerdict::Applied => "applied",
            ReloadVerdict::Unchanged => "unchanged",
            ReloadVerdict::Refused => "refused",
            ReloadVerdict::Failed => "failed",
        }
    }

    /// Whether the file is in force now.
    pub fn is_good(self) -> bool {
        matches!(self, ReloadVerdict::Applied | ReloadVerdict::Unchanged)
    }
}

/// The outcome of one reload.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The result.
    pub result: ReloadVerdict,
    /// The generation in force afterwards.
    pub generation: u64,
    /// When it ended.
    pub time: Timestamp,
    /// How long it took.
    pub seconds: f64,
    /// `signal`, `api` or `start`.
    pub trigger: String,
    /// All mistakes with their places, or what failed; empty if it succeeded.
    pub error: String,
    /// Warnings about a file that was accepted.
    pub warnings: String,
    /// What changed, one line per object.
    pub changes: Vec<String>,
    /// Changes in the file that take effect only after a restart (or USR2).
    pub needs_restart: Vec<String>,
}

/// Counts reloads and remembers the last one.
#[derive(Debug, Default)]
pub struct ReloadLedger {
    /// The last one; `None` before the first.
    pub last: Option<Outcome>,
    counts: [u64; ReloadVerdict::ALL.len()],
}

impl ReloadLedger {
    /// Records the outcome of a reload.
    pub fn note(&mut self, outcome: &Outcome) {
        self.counts[outcome.result as usize] += 1;
        self.last = Some(outcome.clone());
    }

    /// Number of reloads with this result.
    pub fn count(&self, verdict: ReloadVerdict) -> u64 {
        self.counts[verdict as usize]
    }
}

/// Files for parts other than the planes, which a reload reads again.
pub trait Reread: Send + Sync {
    /// Reads them, without changing anything yet. `Err` says which can't be used and why: the reload is then
    /// refused.
    fn read(self: Arc<Self>) -> Result<TakeUp, String>;
}

/// Puts what was read in force.
pub type TakeUp = Box<dyn FnOnce() + Send>;

/// Why a reload did not take effect.
#[derive(Debug)]
pub enum ReloadError {
    /// The config could not be read.
    Read(ReadError),
    /// A file hangs.
    Files(std::io::Error),
    /// It could not be put in force.
    Publish(PublishError),
    /// The access log's new target can't be opened.
    Log(std::io::Error),
    /// A file of the admin API can't be used.
    Admin(String),
    /// There is no file.
    NoFile,
    /// The process drains.
    Leaving,
}

impl From<PublishError> for ReloadError {
    fn from(error: PublishError) -> ReloadError {
        ReloadError::Publish(error)
    }
}

impl ReloadError {
    /// Whether the content of the file, or of a file that it names, is at fault.
    pub fn verdict(&self) -> ReloadVerdict {
        match self {
            ReloadError::Read(ReadError::Refused(_))
            | ReloadError::Publish(PublishError::Tls(_))
            | ReloadError::Admin(_) => ReloadVerdict::Refused,
            _ => ReloadVerdict::Failed,
        }
    }
}

impl fmt::Display for ReloadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadError::Read(error) => write!(out, "{error}"),
            ReloadError::Files(error) => write!(out, "{error}"),
            ReloadError::Publish(error) => write!(out, "{error}"),
            ReloadError::Log(error) => write!(out, "the access log's target can't be opened: {error}"),
            ReloadError::Admin(error) => write!(out, "{error}"),
            ReloadError::Leaving => write!(out, "the process is on its way out; nothing is reloaded"),
            ReloadError::NoFile => {
                write!(out, "this process was started without a config file; there is nothing to reload")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_and_a_file_with_mistakes_are_told_apart() {
        let missing = Source::Files(vec!["/nonexistent/weir.toml".into()]).read().map(|_| ()).unwrap_err();
        assert_eq!(ReloadError::Read(missing).verdict(), ReloadVerdict::Failed);
        let bad = Source::Text { name: "bad.toml".into(), text: "[listener.web]\nbnd = 'x'\n".into() };
        let refused = bad.read().map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("bad.toml:"), "{refused}");
        assert_eq!(ReloadError::Read(refused).verdict(), ReloadVerdict::Refused);
    }

    #[test]
    fn the_ledger_counts_each_verdict_and_remembers_the_last() {
        let mut ledger = ReloadLedger::default();
        for result in [ReloadVerdict::Applied, ReloadVerdict::Refused, ReloadVerdict::Refused] {
            let time = Timestamp::now();
            let (trigger, error, warnings) = ("api".into(), String::new(), String::new());
            let (changes, needs_restart) = (Vec::new(), Vec::new());
            ledger.note(&Outcome {
                result,
                generation: 1,
                time,
                seconds: 0.0,
                trigger,
                error,
                warnings,
                changes,
                needs_restart,
            });
        }
        assert_eq!((ledger.count(ReloadVerdict::Applied), ledger.count(ReloadVerdict::Refused)), (1, 2));
        assert_eq!(ledger.last.map(|last| last.result), Some(ReloadVerdict::Refused));
    }
}
