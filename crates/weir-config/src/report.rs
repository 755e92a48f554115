//! What is wrong, where, and what to do: mistakes collected in one pass and shown with the line they are on.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// Problems that are listed (count); a file with more is not a config file.
const PROBLEM_COUNT: usize = 1000;

/// Widest excerpt of a line, in terminal cells; a longer line is shown as a window around the mistake.
const EXCERPT_CELLS: usize = 100;

/// Bytes of the text that something came from. Ends are exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
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

/// All problems of one file, sorted by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Sorted by line, then column.
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

/// The text being read, and where its lines begin.
pub(crate) struct Source<'a> {
    file_name: &'a str,
    pub text: &'a str,
    line_starts: Vec<usize>,
}

impl<'a> Source<'a> {
    pub fn new(file_name: &'a str, text: &'a str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { file_name, text, line_starts }
    }

    /// Line (from 1) that holds a byte.
    pub fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// Start and text of a line (from 1), without its line end and without a byte order mark.
    fn line_text(&self, line: usize) -> (usize, &'a str) {
        let start = self.line_starts[line - 1];
        let end = self.line_starts.get(line).map_or(self.text.len(), |next| next - 1);
        let text = &self.text[start..end];
        let text = text.strip_suffix('\r').unwrap_or(text);
        match text.strip_prefix('\u{feff}') {
            Some(rest) if start == 0 => (start + '\u{feff}'.len_utf8(), rest),
            _ => (start, text),
        }
    }

    /// The line of a byte, without its line end.
    pub fn line_at(&self, offset: usize) -> &'a str {
        self.line_text(self.line(offset.min(self.text.len()))).1
    }

    /// The bytes of the line of a byte, without its line end.
    pub fn line_span(&self, offset: usize) -> Span {
        let (start, text) = self.line_text(self.line(offset.min(self.text.len())));
        Span { start, end: start + text.len() }
    }

    /// The bytes of the line below that of a byte, without its line end; `None` below the last line.
    pub fn line_below(&self, offset: usize) -> Option<Span> {
        self.whole_line(self.line(offset.min(self.text.len())) + 1)
    }

    /// The bytes of the line above that of a byte, without its line end; `None` above the first line.
    pub fn line_above(&self, offset: usize) -> Option<Span> {
        self.whole_line(self.line(offset.min(self.text.len())) - 1)
    }

    fn whole_line(&self, line: usize) -> Option<Span> {
        if line == 0 || line > self.line_starts.len() {
            return None;
        }
        let (start, text) = self.line_text(line);
        Some(Span { start, end: start + text.len() })
    }

    /// Line and column (in characters), both from 1.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let offset = self.char_boundary(offset);
        let line = self.line(offset);
        let (start, text) = self.line_text(line);
        let inside = offset.saturating_sub(start).min(text.len());
        (line, text[..inside].chars().count() + 1)
    }

    /// `file:line:col`.
    pub fn place(&self, span: Span) -> String {
        let (line, column) = self.position(span.start);
        format!("{}:{line}:{column}", self.file_name)
    }

    /// The bytes of a span; empty when it does not fall on characters.
    pub fn slice(&self, span: Span) -> &'a str {
        self.text.get(span.start..span.end).unwrap_or("")
    }

    fn char_boundary(&self, offset: usize) -> usize {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    }

    fn excerpt(&self, span: Span, hint: &str) -> String {
        let start = self.char_boundary(span.start);
        let end = self.char_boundary(span.end).max(start);
        let line = self.line(start);
        let (line_start, text) = self.line_text(line);
        let from = start.saturating_sub(line_start).min(text.len());
        let to = end.saturating_sub(line_start).clamp(from, text.len());
        let (shown, before, width) = window(text, from, to);
        let number = line.to_string();
        let gutter = " ".repeat(number.len());
        let carets = "^".repeat(width.max(1));
        let pad = " ".repeat(before);
        let line = format!("{gutter} |\n{number} | {shown}\n{gutter} | {pad}{carets} {hint}");
        line.trim_end().to_owned()
    }
}

/// What of a line is shown, the cells before the span, and the cells of the span. Looks only at what is
/// shown, because a line may be megabytes long and hold a thousand mistakes.
fn window(text: &str, from: usize, to: usize) -> (String, usize, usize) {
    // A third of the window stays in front of the span, so that the reader sees which key it belongs to; what
    // one side does not need goes to the other.
    let (_, lead) = fitting(text[..from].chars().rev(), EXCERPT_CELLS / 3);
    let (ahead_bytes, ahead) = fitting(text[from..].chars(), EXCERPT_CELLS - lead);
    let (behind_bytes, before) = fitting(text[..from].chars().rev(), EXCERPT_CELLS - ahead);
    let (first, last) = (from - behind_bytes, from + ahead_bytes);
    let (cut_left, cut_right) = (first > 0, last < text.len());
    let mut line = if cut_left { "…".to_owned() } else { String::new() };
    line.extend(text[first..last].chars().map(|c| shown(c).0));
    if cut_right {
        line.push('…');
    } else {
        line.truncate(line.trim_end().len());
    }
    let span = text[from..to.min(last)].chars().map(|c| shown(c).1).sum();
    (line, before + usize::from(cut_left), span)
}

/// The bytes and cells of as many characters as fit into `most` cells.
fn fitting(text: impl Iterator<Item = char>, most: usize) -> (usize, usize) {
    let (mut bytes, mut cells) = (0, 0);
    for c in text {
        let (_, width) = shown(c);
        if cells + width > most {
            break;
        }
        bytes += c.len_utf8();
        cells += width;
    }
    (bytes, cells)
}

/// A character as a terminal can show it without being steered by it, and the cells it takes.
fn shown(c: char) -> (String, usize) {
    match c {
        '\t' => ("    ".to_owned(), 4),
        // Bidirectional controls and invisible joiners could make a line read differently from what it says.
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
            ("\u{fffd}".to_owned(), 1)
        }
        c if c.is_control() => ("\u{fffd}".to_owned(), 1),
        '\u{300}'..='\u{36f}' | '\u{fe00}'..='\u{fe0f}' => (c.to_string(), 0),
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{303e}'
        | '\u{3041}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => (c.to_string(), 2),
        c => (c.to_string(), 1),
    }
}

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

/// Problems while they are being found.
pub(crate) struct Findings<'a> {
    pub source: &'a Source<'a>,
    problems: Vec<(Span, Severity, String, String)>,
}

impl<'a> Findings<'a> {
    pub fn new(source: &'a Source<'a>) -> Self {
        Self { source, problems: Vec::new() }
    }

    /// Adds a mistake. `hint` stands behind the carets.
    pub fn error(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.problems.push((span, Severity::Error, message.into(), hint.into()));
    }

    /// Adds a warning.
    pub fn warning(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.problems.push((span, Severity::Warning, message.into(), hint.into()));
    }

    /// `file:line:col` of a span.
    pub fn place(&self, span: Span) -> String {
        self.source.place(span)
    }

    /// Whether a mistake was found.
    pub fn refused(&self) -> bool {
        self.problems.iter().any(|problem| problem.1 == Severity::Error)
    }

    /// Whether a mistake with this message was already found.
    pub fn already(&self, message: &str) -> bool {
        self.problems.iter().any(|problem| problem.2 == message)
    }

    /// The places of everything that was found so far.
    pub fn spans(&self) -> BTreeSet<Span> {
        self.problems.iter().map(|problem| problem.0).collect()
    }

    /// How many problems were found so far (count).
    pub fn count(&self) -> usize {
        self.problems.len()
    }

    /// Forgets what was found in these stretches of text, except for the first `count` problems.
    pub fn forget_in(&mut self, stretches: &[Span], count: usize) {
        let mut index = 0;
        self.problems.retain(|(span, ..)| {
            index += 1;
            index <= count
                || !stretches.iter().any(|stretch| stretch.start <= span.start && span.start <= stretch.end)
        });
    }

    /// Everything found, sorted. Warnings are left out of a refused file: half of them would be about what
    /// the mistakes broke.
    pub fn into_report(self) -> Report {
        let refused = self.refused();
        let mut found = self.problems;
        found.retain(|problem| !refused || problem.1 == Severity::Error);
        found.sort_by(|a, b| (a.0, &a.2).cmp(&(b.0, &b.2)));
        found.dedup();
        let more = found.len().saturating_sub(PROBLEM_COUNT);
        found.truncate(PROBLEM_COUNT);
        if let (Some(last), true) = (found.last().map(|problem| problem.0), more > 0) {
            found.push((
                last,
                Severity::Error,
                format!("{more} more problems are not listed"),
                String::new(),
            ));
        }
        let problems = found
            .into_iter()
            .map(|(span, severity, message, hint)| {
                let (message, hint) = (harmless(&message), harmless(&hint));
                let (line, column) = self.source.position(span.start);
                let excerpt = self.source.excerpt(span, &hint);
                Problem {
                    severity,
                    file: self.source.file_name.to_owned(),
                    line,
                    column,
                    message,
                    hint,
                    excerpt,
                }
            })
            .collect();
        Report { problems }
    }
}
