//! The texts that are read, all in one space of bytes: a [`Span`] says the file and the place in it.

use std::borrow::Cow;

use crate::report::Span;

/// Widest excerpt of a line, in terminal cells; a longer line is shown as a window around the mistake.
const EXCERPT_CELLS: usize = 100;

/// The texts being read, and where their lines begin.
pub(crate) struct Source<'a> {
    /// In the order of their bytes; never empty.
    files: Vec<File<'a>>,
}

struct File<'a> {
    /// As it is shown.
    name: Cow<'a, str>,
    text: Cow<'a, str>,
    /// Where its first byte stands among those of all files. Between two files there is one byte that no text
    /// has, so that the end of one is not the beginning of the next.
    base: usize,
    /// Of this text alone.
    line_starts: Vec<usize>,
}

impl<'a> Source<'a> {
    /// One text.
    pub fn new(name: impl Into<Cow<'a, str>>, text: impl Into<Cow<'a, str>>) -> Self {
        let mut source = Self { files: Vec::new() };
        source.add(name, text);
        source
    }

    /// One text more, behind the others. Gives where its first byte stands.
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

    /// The file that holds a byte.
    fn file(&self, offset: usize) -> &File<'a> {
        let behind = self.files.partition_point(|file| file.base <= offset);
        &self.files[behind.saturating_sub(1)]
    }

    /// The name of the file that holds a byte, as it is shown.
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

    /// The bytes of the line below that of a byte, without its line end; `None` below the last line.
    pub fn line_below(&self, offset: usize) -> Option<Span> {
        let file = self.file(offset);
        file.whole_line(file.line(offset) + 1)
    }

    /// The bytes of the line above that of a byte, without its line end; `None` above the first line.
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

    /// The bytes of a span; empty when it does not fall on characters of one file.
    pub fn slice(&self, span: Span) -> &str {
        let file = self.file(span.start);
        file.text.get(span.start - file.base..span.end.max(span.start) - file.base).unwrap_or("")
    }

    /// The line of a span with carets under it, and a hint behind them.
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
    /// Line (from 1) that holds a byte of the space of all files; the last for what is behind the text.
    fn line(&self, offset: usize) -> usize {
        let inside = offset.saturating_sub(self.base).min(self.text.len());
        self.line_starts.partition_point(|start| *start <= inside)
    }

    /// Start in this text, and text, of a line (from 1), without its line end and without a byte order mark.
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

    /// Of an offset in this text.
    fn char_boundary(&self, offset: usize) -> usize {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
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
pub(crate) fn shown(c: char) -> (String, usize) {
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
