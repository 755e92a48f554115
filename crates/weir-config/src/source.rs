//! The texts being read, in one address space of bytes: a [`Span`] identifies the file and the position in
//! it.

use std::borrow::Cow;

use crate::report::Span;

/// Widest excerpt of a line, in terminal cells; a longer line is shown as a window around the mistake.
const EXCERPT_CELLS: usize = 100;

/// The texts being read, and their line starts.
pub(crate) struct Source<'a> {
    /// In the order of their bytes; never empty.
    files: Vec<File<'a>>,
}

struct File<'a> {
    /// The name for display.
    name: Cow<'a, str>,
    text: Cow<'a, str>,
    /// The offset of its first byte in the space of all files. Between two files there is one byte that
    /// belongs to no text, so that the end of one is not the beginning of the next.
    base: usize,
    /// Offsets within this text.
    line_starts: Vec<usize>,
}

impl<'a> Source<'a> {
    /// A source with one text.
    pub fn new(name: impl Into<Cow<'a, str>>, text: impl Into<Cow<'a, str>>) -> Self {
        let mut source = Self { files: Vec::new() };
        source.add(name, text);
        source
    }

    /// Adds a text after the others. Returns the offset of its first byte.
    pub fn add(&mut self, name: impl Into<Cow<'a, str>>, text: impl Into<Cow<'a, str>>) -> usize {
        let base = self.files.last().map_or(0, |file| file.base + file.text.len() + 1);
        let (name, text) = (name.into(), text.into());
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        self.files.push(File { name, text, base, line_starts });
        base
    }

    /// The text of a source that has only one.
    pub fn text(&self) -> &str {
        &self.files[0].text
    }

    /// The file that contains a byte.
    fn file(&self, offset: usize) -> &File<'a> {
        let behind = self.files.partition_point(|file| file.base <= offset);
        &self.files[behind.saturating_sub(1)]
    }

    /// The display name of the file that contains a byte.
    pub fn file_name(&self, offset: usize) -> &str {
        &self.file(offset).name
    }

    /// The line of a byte, without its line end.
    pub fn line_at(&self, offset: usize) -> &str {
        self.slice(self.line_span(offset))
    }

    /// The bytes of the line of a byte, without its line end.
    pub fn line_span(&self, offset: usize) -> Span {
        let file = self.file(offset);
        let (start, text) = file.line_text(file.line(offset));
        Span { start: file.base + start, end: file.base + start + text.len() }
    }

    /// The bytes of the line after that of a byte, without its line end; `None` after the last line.
    pub fn line_below(&self, offset: usize) -> Option<Span> {
        let file = self.file(offset);
        file.whole_line(file.line(offset) + 1)
    }

    /// The bytes of the line before that of a byte, without its line end; `None` before the first line.
    pub fn line_above(&self, offset: usize) -> Option<Span> {
        let file = self.file(offset);
        file.whole_line(file.line(offset) - 1)
    }

    /// Line and column (in characters), both from 1.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let file = self.file(offset);
        let inside = file.char_boundary(offset.saturating_sub(file.base));
        let line = file.line(file.base + inside);
        let (start, text) = file.line_text(line);
        let inside = inside.saturating_sub(start).min(text.len());
        (line, text[..inside].chars().count() + 1)
    }

    /// `file:line:col`.
    pub fn place(&self, span: Span) -> String {
        let (line, column) = self.position(span.start);
        format!("{}:{line}:{column}", self.file_name(span.start))
    }

    /// The text of a span; empty if it is not on character boundaries of one file.
    pub fn slice(&self, span: Span) -> &str {
        let file = self.file(span.start);
        file.text.get(span.start - file.base..span.end.max(span.start) - file.base).unwrap_or("")
    }

    /// The line of a span with carets under the span, followed by a hint.
    pub fn excerpt(&self, span: Span, hint: &str) -> String {
        let file = self.file(span.start);
        let start = file.char_boundary(span.start - file.base);
        let end = file.char_boundary(span.end.saturating_sub(file.base)).max(start);
        let line = file.line(file.base + start);
        let (line_start, text) = file.line_text(line);
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

impl File<'_> {
    /// The line (from 1) that contains a byte of the space of all files; the last line for offsets after the
    /// text.
    fn line(&self, offset: usize) -> usize {
        let inside = offset.saturating_sub(self.base).min(self.text.len());
        self.line_starts.partition_point(|start| *start <= inside)
    }

    /// The offset in this text, and the text, of a line (from 1), without its line end and without a byte
    /// order mark.
    fn line_text(&self, line: usize) -> (usize, &str) {
        let start = self.line_starts[line - 1];
        let end = self.line_starts.get(line).map_or(self.text.len(), |next| next - 1);
        let text = &self.text[start..end];
        let text = text.strip_suffix('\r').unwrap_or(text);
        match text.strip_prefix('\u{feff}') {
            Some(rest) if start == 0 => (start + '\u{feff}'.len_utf8(), rest),
            _ => (start, text),
        }
    }

    fn whole_line(&self, line: usize) -> Option<Span> {
        if line == 0 || line > self.line_starts.len() {
            return None;
        }
        let (start, text) = self.line_text(line);
        Some(Span { start: self.base + start, end: self.base + start + text.len() })
    }

    /// The nearest character boundary for an offset in this text.
    fn char_boundary(&self, offset: usize) -> usize {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    }
}

/// The part of a line to show, the cells before the span, and the cells of the span. Looks only at that part,
/// because a line may be megabytes long and contain a thousand mistakes.
fn window(text: &str, from: usize, to: usize) -> (String, usize, usize) {
    // A third of the window is for the text before the span, so that the reader sees which key it belongs to;
    // what one side does not need goes to the other.
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

/// A printable form of a character that cannot control a terminal, and its width in cells.
pub(crate) fn shown(c: char) -> (String, usize) {
    match c {
        '\t' => ("    ".to_owned(), 4),
        // Bidirectional controls and invisible joiners could change how a line reads.
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
