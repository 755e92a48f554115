//! Exit codes: scripts rely on them, so they stand in one place.

use std::process::ExitCode;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked; for `run`, it drained.
    Done,
    /// It could not.
    Failed,
    /// The config has mistakes, or the arguments do.
    Refused,
    /// No Weir answers at the admin address.
    NotRunning,
    /// `--wait` took longer than `--timeout`.
    TimedOut,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Refused => 2,
            Exit::NotRunning => 3,
            Exit::TimedOut => 4,
        })
    }
}
