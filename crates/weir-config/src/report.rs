//! What is wrong, where, and what to do: mistakes collected in one pass and shown with the line they are on.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::ops::Range;

use crate::given::Given;
use crate::source::{Source, shown};

/// Problems that are listed (count); a file with more is not a config file.
const PROBLEM_COUNT: usize = 1000;

/// Bytes of the text that something came from. Ends are exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The same so many bytes further back.
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
    /// The file is taken, but says something that has no effect or is probably not meant.
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
    /// The line with carets under what is meant, and the hint behind them. Several lines, no line end after
    /// the last.
    pub excerpt: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.severity == Severity::Warning { "warning: " } else { "" };
        write!(f, "{}:{}:{}: {kind}{}\n{}", self.file, self.line, self.column, self.message, self.excerpt)
    }
}

/// All problems of the files that are one config, sorted by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Sorted by file, in the order in which they are put together, then line, then column.
    pub problems: Vec<Problem>,
}

impl Report {
    /// How many problems refuse the file (count).
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

/// Text from the file inside a message: quoted, and cut when very long.
pub(crate) fn quote(text: &str) -> String {
    const MOST: usize = 60;
    let start: String = text.chars().take(MOST).collect();
    let more = if text.chars().count() > MOST { "…" } else { "" };
    format!("`{start}{more}`")
}

/// A message without characters that steer a terminal: they may come from the file.
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

/// A problem as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub span: Span,
    pub severity: Severity,
    pub message: String,
    pub hint: String,
}

impl Found {
    /// The same, for bytes that stand so much further back.
    pub fn moved(mut self, by: usize) -> Found {
        self.span = self.span.moved(by);
        self
    }
}

/// Problems while they are being found.
pub(crate) struct Findings<'a> {
    pub source: &'a Source<'a>,
    /// What came from the environment and from files, which no message may show.
    given: Option<&'a Given>,
    problems: Vec<Found>,
}

impl<'a> Findings<'a> {
    pub fn new(source: &'a Source<'a>) -> Self {
        Self { source, given: None, problems: Vec::new() }
    }

    /// With what was found already, and what is not to be shown.
    pub fn with(source: &'a Source<'a>, given: &'a Given, problems: Vec<Found>) -> Self {
        Self { source, given: Some(given), problems }
    }

    /// Adds a mistake. `hint` stands behind the carets.
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

    /// Adds a mistake of a value that is not to be shown: `message` and `hint` must not follow from it.
    pub fn error_of_given(&mut self, span: Span, message: String, hint: String) {
        self.problems.push(Found { span, severity: Severity::Error, message, hint });
    }

    /// What the value at this place came from; `None` where it stands in the file.
    pub fn given(&self, at: Span) -> Option<&'a crate::given::Text> {
        self.given.and_then(|given| given.at(at))
    }

    /// `file:line:col` of a span.
    pub fn place(&self, span: Span) -> String {
        self.source.place(span)
    }

    /// Whether a mistake was found.
    pub fn refused(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Whether a mistake with this message was already found.
    pub fn already(&self, message: &str) -> bool {
        self.problems.iter().any(|problem| problem.message == message)
    }

    /// The places of everything that was found so far.
    pub fn spans(&self) -> BTreeSet<Span> {
        self.problems.iter().map(|problem| problem.span).collect()
    }

    /// Forgets what was found in these stretches of text, except for the first `count` problems.
    pub fn forget_in(&mut self, stretches: &[Span], count: usize) {
        let mut index = 0;
        self.problems.retain(|Found { span, .. }| {
            index += 1;
            index <= count
                || !stretches.iter().any(|stretch| stretch.start <= span.start && span.start <= stretch.end)
        });
    }

    /// Keeps only the first of the problems at each of these places, which are read once for each table that
    /// takes them over.
    pub fn once_at(&mut self, places: &HashSet<Span>) {
        let mut seen = HashSet::new();
        self.problems.retain(|Found { span, .. }| !places.contains(span) || seen.insert(*span));
    }

    /// What was found, as it was found.
    pub fn into_found(self) -> Vec<Found> {
        self.problems
    }

    /// Everything found, sorted. Warnings are left out of a refused file: half of them would be about what
    /// the mistakes broke.
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
