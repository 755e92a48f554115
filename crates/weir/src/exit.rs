//! Exit codes: scripts rely on them, so they stand in one place.

use std::fmt::Display;
use std::process::ExitCode;

use weir_control::reload::ReadError;

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

impl Exit {
    /// Itself, after saying why.
    pub fn saying(self, why: impl Display) -> Exit {
        eprintln!("weir: {why}");
        self
    }

    /// Prints why a config was not taken.
    pub fn refusing(error: &ReadError) -> Exit {
        let ReadError::Refused(report) = error else { return Exit::Refused.saying(error) };
        eprint!("{report}");
        let count = report.error_count();
        eprintln!("\nweir: the config has {count} {}", if count == 1 { "mistake" } else { "mistakes" });
        Exit::Refused
    }
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
