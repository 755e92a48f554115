//! Problems: what is wrong, where, and what to do. They are collected in one pass and shown with their lines.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::ops::Range;

use crate::given::Given;
use crate::source::{Source, shown};

/// Most problems listed (count); a file with more is not a config file.
const PROBLEM_COUNT: usize = 1000;

/// The bytes of the text that something came from. The end is exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The same span, shifted by this many bytes.
    pub fn moved(self, by: usize) -> Span {
        Span { start: self.start + by, end: self.end + by }
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// Whether a problem refuses the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file is accepted, but something in it has no effect or is probably a mistake.
    Warning,
}

/// One problem, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether it refuses the file.
    pub severity: Severity,
    /// File name as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong: one line, lower case, no full stop.
    pub message: String,
    /// What was expected, or what to write instead; empty when the message says it all.
    pub hint: String,
    /// The line with carets under the mistake, followed by the hint. Several lines, no line end after the
    /// last.
    pub excerpt: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.severity == Severity::Warning { "warning: " } else { "" };
        write!(f, "{}:{}:{}: {kind}{}\n{}", self.file, self.line, self.column, self.message, self.excerpt)
    }
}

/// All problems of the files of one config, sorted by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Sorted by file, in the order in which the files are combined, then line, then column.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Number of problems that refuse the file.
    pub fn error_count(&self) -> usize {
        self.problems.iter().filter(|problem| problem.severity == Severity::Error).count()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

/// Text from the file for use in a message: quoted, and cut off if very long.
pub(crate) fn quote(text: &str) -> String {
    const MOST: usize = 60;
    let start: String = text.chars().take(MOST).collect();
    let more = if text.chars().count() > MOST { "…" } else { "" };
    format!("`{start}{more}`")
}

/// A message without characters that control a terminal, which may come from the file.
fn harmless(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\t' || shown(c).0.starts_with('\u{fffd}') && c != '\u{fffd}' {
            harmless.extend(c.escape_default());
        } else {
            harmless.push(c);
        }
    }
    harmless
}

/// A problem as found, before it is formatted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub span: Span,
    pub severity: Severity,
    pub message: String,
    pub hint: String,
}

impl Found {
    /// The same problem, shifted by this many bytes.
    pub fn moved(mut self, by: usize) -> Found {
        self.span = self.span.moved(by);
        self
    }
}

/// Collects problems.
pub(crate) struct Findings<'a> {
    pub source: &'a Source<'a>,
    /// Values from the environment and from files, which no message may show.
    given: Option<&'a Given>,
    problems: Vec<Found>,
}

impl<'a> Findings<'a> {
    pub fn new(source: &'a Source<'a>) -> Self {
        Self { source, given: None, problems: Vec::new() }
    }

    /// Starts with problems that were found already, and values that must not be shown.
    pub fn with(source: &'a Source<'a>, given: &'a Given, problems: Vec<Found>) -> Self {
        Self { source, given: Some(given), problems }
    }

    /// Adds a mistake. `hint` is shown after the carets.
    pub fn error(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.note(span, Severity::Error, message.into(), hint.into());
    }

    /// Adds a warning.
    pub fn warning(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.note(span, Severity::Warning, message.into(), hint.into());
    }

    fn note(&mut self, span: Span, severity: Severity, message: String, hint: String) {
        let (message, hint) = match self.given {
            Some(given) => given.unseen(span, message, hint),
            None => (message, hint),
        };
        self.problems.push(Found { span, severity, message, hint });
    }

    /// Adds a mistake in a value that must not be shown: `message` and `hint` must not depend on the value.
    pub fn error_of_given(&mut self, span: Span, message: String, hint: String) {
        self.problems.push(Found { span, severity: Severity::Error, message, hint });
    }

    /// The origin of the value at this position; `None` if it is written in the file.
    pub fn given(&self, at: Span) -> Option<&'a crate::given::Text> {
        self.given.and_then(|given| given.at(at))
    }

    /// `file:line:col` of a span.
    pub fn place(&self, span: Span) -> String {
        self.source.place(span)
    }

    /// Whether there is a mistake.
    pub fn refused(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Whether there is a mistake with this message.
    pub fn already(&self, message: &str) -> bool {
        self.problems.iter().any(|problem| problem.message == message)
    }

    /// The positions of all problems so far.
    pub fn spans(&self) -> BTreeSet<Span> {
        self.problems.iter().map(|problem| problem.span).collect()
    }

    /// Drops the problems in these stretches of text, except the first `count` problems.
    pub fn forget_in(&mut self, stretches: &[Span], count: usize) {
        let mut index = 0;
        self.problems.retain(|Found { span, .. }| {
            index += 1;
            index <= count
                || !stretches.iter().any(|stretch| stretch.start <= span.start && span.start <= stretch.end)
        });
    }

    /// Keeps only the first problem at each of these positions, which are read once for each table that takes
    /// them over.
    pub fn once_at(&mut self, places: &HashSet<Span>) {
        let mut seen = HashSet::new();
        self.problems.retain(|Found { span, .. }| !places.contains(span) || seen.insert(*span));
    }

    /// The problems as found.
    pub fn into_found(self) -> Vec<Found> {
        self.problems
    }

    /// All problems, sorted. Warnings about a refused file are dropped: half of them would be consequences of
    /// the mistakes.
    pub fn into_report(self) -> Report {
        let refused = self.refused();
        let mut found = self.problems;
        found.retain(|problem| !refused || problem.severity == Severity::Error);
        found.sort_by(|a, b| (a.span, &a.message).cmp(&(b.span, &b.message)));
        found.dedup();
        let more = found.len().saturating_sub(PROBLEM_COUNT);
        found.truncate(PROBLEM_COUNT);
        if let (Some(span), true) = (found.last().map(|problem| problem.span), more > 0) {
            let message = format!("{more} more problems are not listed");
            found.push(Found { span, severity: Severity::Error, message, hint: String::new() });
        }
        let problem = |found: Found| {
            let Found { span, severity, .. } = found;
            let (message, hint) = (harmless(&found.message), harmless(&found.hint));
            let (line, column) = self.source.position(span.start);
            let file = self.source.file_name(span.start).to_owned();
            let excerpt = self.source.excerpt(span, &hint);
            Problem { severity, file, line, column, message, hint, excerpt }
        };
        Report { problems: found.into_iter().map(problem).collect() }
    }
}
