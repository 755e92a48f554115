//! Exit codes. Scripts rely on them, so they are defined in one place.

use std::fmt::{Arguments, Display};
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;

use weir_control::reload::ReadError;

/// The error that kept standard output from taking all that was printed.
static NOT_PRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints on standard output. A closed pipe (`weir status | head`) is not an error of ours. A full disk is,
/// because it would leave half a file behind.
pub fn print(text: Arguments<'_>) {
    if let Err(error) = io::stdout().write_fmt(text)
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = NOT_PRINTED.set(error);
    }
}

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked; `run` drained.
    Done,
    /// It could not do what was asked.
    Failed,
    /// The config or the arguments have mistakes.
    Refused,
    /// No Weir answers at the admin address.
    NotRunning,
    /// `--wait` took longer than `--timeout`.
    TimedOut,
}

impl Exit {
    /// Prints why, and returns itself.
    pub fn saying(self, why: impl Display) -> Exit {
        tell!("weir: {why}");
        self
    }

    /// Returns itself, or [`Exit::Failed`] instead of [`Exit::Done`] if the output could not be printed.
    pub fn of_output(self) -> Exit {
        match NOT_PRINTED.get() {
            Some(error) if self == Exit::Done => {
                Exit::Failed.saying(format_args!("can't write to standard output: {error}"))
            }
            _ => self,
        }
    }

    /// Prints why a config was refused, and returns the exit code.
    pub fn refusing(error: &ReadError) -> Exit {
        let ReadError::Refused(report) = error else { return Exit::Refused.saying(error) };
        let count = report.error_count();
        tell!("{report}\nweir: the config has {count} {}", if count == 1 { "mistake" } else { "mistakes" });
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
