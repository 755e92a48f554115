//! Combines several files into one table: the named files, those that they include, and values from
//! elsewhere.
//!
//! First, every file is read and its syntax errors are reported ([`gather`]). Then the tables are merged,
//! file by file ([`merge`]), with values from the environment and from files filled in. Then tables take over
//! shared settings ([`shared`]). Last, lists from files are filled in ([`lists`]). The result looks as if it
//! came from one file, and every part of it keeps its position.

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

/// The combined content of several files.
pub(crate) struct Composed<'g> {
    pub table: DeTable<'g>,
    /// The beginning of the first named file, as the position of what is missing in all files.
    pub at: Span,
    /// Every text, including those of lists.
    pub source: Source<'g>,
    /// Mistakes found so far: in the syntax and in combining the files.
    pub problems: Vec<Found>,
    /// Stretches that were probably misread.
    pub blind: Vec<Span>,
    /// Whether everything could be read, so that a missing key is really missing.
    pub is_complete: bool,
    /// Values that came from elsewhere.
    pub given: Given,
    /// The positions of shared settings, which are read once for each table that takes them over.
    pub shared: HashSet<Span>,
}

/// Combines the files that were read.
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

/// The keys of a table.
#[derive(Clone, Copy)]
enum Level {
    /// The keys in a table of keys.
    Keys(&'static Table),
    /// Names chosen by the operator, each of a table with these keys.
    Names(&'static Table),
    /// Anything.
    Unknown,
}

impl Level {
    /// The kind of a key; `None` for an unknown one, and for names.
    fn kind(self, name: &str) -> Option<&'static Kind> {
        match self {
            Level::Keys(table) => table.key(name).map(|key| &key.kind),
            _ => None,
        }
    }

    /// The keys of the table, or of the tables in the list, that is the value of a key.
    fn below(self, name: &str) -> Level {
        match (self, self.kind(name)) {
            (Level::Names(table), _) => Level::Keys(table),
            (_, Some(Kind::NamedTables(table))) => Level::Names(table),
            (_, Some(kind)) => kind.table().map_or(Level::Unknown, Level::Keys),
            _ => Level::Unknown,
        }
    }

    /// Whether a key holds tables in double brackets, which several files may extend.
    fn is_appended(self, name: &str) -> bool {
        matches!(self.kind(name), Some(Kind::Tables(_)))
    }
}
