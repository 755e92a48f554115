//! One table of several files: those that are named, those that they include, and what comes from elsewhere.
//!
//! First every file is read and its syntax noted ([`gather`]). Then the tables are put together, file by file
//! ([`merge`]), with values from the environment and from files in their places; then tables take over what
//! is shared ([`shared`]); last, lists from files are filled in ([`lists`]). What is then read by the table
//! of keys looks as if one file had said it, and every part of it remembers where it stands.

pub(crate) mod gather;
mod glob;
mod lists;
mod merge;
mod shared;

use std::collections::HashSet;

use toml::de::DeTable;

pub(crate) use self::gather::{Gathered, Root, gather};
use crate::config::ROOT;
use crate::given::Given;
use crate::keys::{Kind, Table};
use crate::report::{Found, Severity, Span};
use crate::source::Source;
use crate::world::World;

/// What several files say together.
pub(crate) struct Composed<'g> {
    pub table: DeTable<'g>,
    /// The beginning of the first file that was named, for what is missing in all of them.
    pub at: Span,
    /// Every text, also those of lists.
    pub source: Source<'g>,
    /// Mistakes of the syntax and of putting together.
    pub problems: Vec<Found>,
    /// Stretches that were probably read wrongly.
    pub blind: Vec<Span>,
    /// Whether all could be read, so that what is missing is missing.
    pub is_complete: bool,
    /// What came from elsewhere.
    pub given: Given,
    /// The places of what is shared, which are read once for each table that takes them over.
    pub shared: HashSet<Span>,
}

/// Puts the files together that were read.
pub(crate) fn compose<'g>(gathered: &'g Gathered, files: &dyn World) -> Composed<'g> {
    let mut composed = merge::merge(gathered, files);
    shared::take_over(&mut composed);
    let mut table = std::mem::take(&mut composed.table);
    lists::fill_in(&mut table, &ROOT, files, &mut composed);
    composed.table = table;
    composed
}

impl Composed<'_> {
    fn error(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.note(span, Severity::Error, message.into(), hint.into());
    }

    fn note(&mut self, span: Span, severity: Severity, message: String, hint: String) {
        let (message, hint) = self.given.unseen(span, message, hint);
        self.problems.push(Found { span, severity, message, hint });
    }
}

/// What the keys of a table are.
#[derive(Clone, Copy)]
enum Level {
    /// Those of a table of keys.
    Keys(&'static Table),
    /// Names of the reader's choice, each of a table with these keys.
    Names(&'static Table),
    /// Anything.
    Unknown,
}

impl Level {
    /// What a key takes; `None` for one that is not known, and for names.
    fn kind(self, name: &str) -> Option<&'static Kind> {
        match self {
            Level::Keys(table) => table.key(name).map(|key| &key.kind),
            _ => None,
        }
    }

    /// What the keys of the table below are that stands, or whose elements stand, behind a key.
    fn below(self, name: &str) -> Level {
        match (self, self.kind(name)) {
            (Level::Names(table), _) => Level::Keys(table),
            (_, Some(Kind::NamedTables(table))) => Level::Names(table),
            (_, Some(kind)) => kind.table().map_or(Level::Unknown, Level::Keys),
            _ => Level::Unknown,
        }
    }

    /// Whether a key is of tables in double brackets, of which several files may each have some.
    fn is_appended(self, name: &str) -> bool {
        matches!(self.kind(name), Some(Kind::Tables(_)))
    }
}
