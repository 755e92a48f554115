//! Lists from files: an element `"@file:PATH"` of a list of networks stands for the lines of that file.

use std::borrow::Cow;
use std::collections::HashMap;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::{Composed, Level};
use crate::keys::{Each, Kind, Table};
use crate::report::Span;
use crate::world::{World, below, folder_of};

/// The prefix of such an element.
const PREFIX: &str = "@file:";
/// Longest file, in bytes.
const FILE_BYTES: usize = 16 << 20;
/// Most lines with an element, in one file (count).
const MOST_LINES: usize = 1_000_000;

/// An element of a file, and its position.
type Line = (Span, String);

/// Replaces the elements by the lines of their files.
pub(super) fn fill_in<'g>(
    table: &mut DeTable<'g>,
    schema: &'static Table,
    files: &dyn World,
    composed: &mut Composed<'g>,
) {
    let mut filling = Filling { files, composed, read: HashMap::new() };
    filling.table(table, Level::Keys(schema));
}

struct Filling<'f, 'g> {
    files: &'f dyn World,
    composed: &'f mut Composed<'g>,
    /// The lines by path; `None` for a file that could not be read, which has been reported.
    read: HashMap<String, Option<Vec<Line>>>,
}

impl<'g> Filling<'_, 'g> {
    fn table(&mut self, table: &mut DeTable<'g>, level: Level) {
        let mut empty = Vec::new();
        for (key, value) in table.iter_mut() {
            let name = key.get_ref();
            let is_list = matches!(
                level.kind(name),
                Some(Kind::OneOrMany(Each::Text(shape), _) | Kind::Many(Each::Text(shape))) if shape.from_files
            );
            if is_list {
                self.list(value);
                let may_be_empty = matches!(level, Level::Keys(table) if table.key(name).is_some_and(|key| key.may_be_empty));
                if matches!(value.get_ref(), DeValue::Array(list) if list.is_empty()) && may_be_empty {
                    empty.push(name.to_string());
                }
                continue;
            }
            self.below(value, level.below(name));
        }
        for name in empty {
            table.remove(name.as_str());
        }
    }

    fn below(&mut self, value: &mut Spanned<DeValue<'g>>, level: Level) {
        match value.get_mut() {
            DeValue::Table(table) => self.table(table, level),
            DeValue::Array(list) => list.iter_mut().for_each(|element| self.below(element, level)),
            _ => {}
        }
    }

    /// Expands a list, or a single element that may stand for a list.
    fn list(&mut self, value: &mut Spanned<DeValue<'g>>) {
        let is_named = |value: &DeValue<'_>| value.as_str().is_some_and(|text| text.starts_with(PREFIX));
        let elements = match value.get_ref() {
            DeValue::Array(list) if list.iter().any(|element| is_named(element.get_ref())) => list.clone(),
            one if is_named(one) => {
                let mut list = DeArray::new();
                list.push(value.clone());
                list
            }
            _ => return,
        };
        let mut filled = DeArray::new();
        for element in elements {
            let path = element.get_ref().as_str().and_then(|text| text.strip_prefix(PREFIX));
            let Some(path) = path else {
                filled.push(element);
                continue;
            };
            let at = Span::from(element.span());
            let path = below(folder_of(self.composed.source.file_name(at.start)), path);
            let Some(lines) = self.lines(&path, at) else {
                // A placeholder, about which nothing more is reported.
                filled.push(Spanned::new(0..0, DeValue::String(Cow::Borrowed(""))));
                continue;
            };
            for (span, text) in lines {
                let text = DeValue::String(Cow::Owned(text.clone()));
                filled.push(Spanned::new(span.start..span.end, text));
            }
        }
        *value.get_mut() = DeValue::Array(filled);
    }

    /// The non-empty lines of a file, without comments.
    fn lines(&mut self, path: &str, at: Span) -> Option<&[Line]> {
        if !self.read.contains_key(path) {
            let lines = match self.read(path) {
                Ok(lines) => Some(lines),
                Err((message, hint)) => {
                    self.composed.error(at, message, hint);
                    None
                }
            };
            self.read.insert(path.to_owned(), lines);
        }
        self.read.get(path)?.as_deref()
    }

    fn read(&mut self, path: &str) -> Result<Vec<Line>, (String, String)> {
        let bytes = self.files.read(path, FILE_BYTES + 1).map_err(|why| {
            let hint = "a path is seen from the folder of the file that says it";
            (format!("`{path}` can't be read: {why}"), hint.to_owned())
        })?;
        if bytes.len() > FILE_BYTES {
            return Err((format!("`{path}` is too long"), format!("expected at most {FILE_BYTES} bytes")));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| (format!("`{path}` is not UTF-8 text"), "expected one element a line".to_owned()))?;
        let base = self.composed.source.add(path.to_owned(), text.clone());
        let mut lines = Vec::new();
        let mut start = base;
        for line in text.split_inclusive('\n') {
            let said = line.split(['#', ';']).next().unwrap_or("");
            let element = said.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
            if !element.is_empty() {
                let inside = start
                    + (said.len()
                        - said.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}').len());
                lines.push((Span { start: inside, end: inside + element.len() }, element.to_owned()));
            }
            start += line.len();
        }
        if lines.len() > MOST_LINES {
            let message = format!("`{path}` has {} elements", lines.len());
            return Err((message, format!("expected at most {MOST_LINES}")));
        }
        Ok(lines)
    }
}
