//! Load that checks every answer, for `reload_storm` and `kill_one`, which change or kill things under it.
//!
//! A failure is anything a client sees: a refused or broken connection, a wait over
//! [`crate::dialogue::PATIENCE`], a status the backend did not send, a body that is not the one asked for, a
//! request executed twice.

mod backends;
mod kill;
mod load;
mod long_lived;
mod multiplexed;
mod reloads;

pub use backends::{Executed, body_of, serve_process, serving};
pub(crate) use backends::{receipt, serve_process_with};
pub use kill::{KillPlan, KillReport, kill_and_restart};
pub(crate) use kill::{Process, check_ledger};
pub use load::{Load, LoadReport, Targets, Traffic};
pub use reloads::{StormPlan, StormReport, reload_storm};

/// Prints `rows` as two aligned columns.
pub fn table(title: &str, rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = format!("{title}\n");
    for (name, value) in rows {
        text += &format!("  {name:<width$}  {value}\n");
    }
    text
}

/// Reads `--name value` pairs into numbers; panics with the usage text on anything else.
pub fn numbers_from_arguments(usage: &str, mut take: impl FnMut(&str, u64) -> bool) {
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|text| text.replace('_', "").parse().ok());
        let taken = value.is_some_and(|value| take(name.trim_start_matches("--"), value));
        if !taken {
            eprintln!("{usage}");
            std::process::exit(2);
        }
    }
}

/// Where failures are kept: all are counted, the first ones remembered.
#[derive(Debug, Default)]
pub struct Failures {
    count: u64,
    first: Vec<String>,
}

impl Failures {
    /// Failures remembered with their text.
    const KEPT: usize = 20;

    /// Counts one.
    pub fn add(&mut self, what: String) {
        self.count += 1;
        if self.first.len() < Failures::KEPT {
            self.first.push(what);
        }
    }

    /// Takes over all of `other`.
    pub fn merge(&mut self, other: Failures) {
        self.count += other.count;
        self.first.extend(other.first);
        self.first.truncate(Failures::KEPT);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first ones.
    pub fn first(&self) -> &[String] {
        &self.first
    }
}
