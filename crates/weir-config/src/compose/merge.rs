//! Merges the tables of all files. A key set in two files is a mistake in the second, except for tables in
//! double brackets, which are appended.

use std::borrow::Cow;
use std::collections::HashSet;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::{Composed, Gathered, Level};
use crate::config::ROOT;
use crate::given::{Given, Text};
use crate::report::Span;
use crate::source::Source;
use crate::world::World;

/// One table from all files, with expressions replaced by their values from the environment and from files.
pub(super) fn merge<'g>(gathered: &'g Gathered, files: &dyn World) -> Composed<'g> {
    let first = &gathered.files[0];
    let mut composed = Composed {
        table: DeTable::new(),
        at: Span::default(),
        source: Source::new(first.name.as_str(), first.text.as_str()),
        problems: Vec::new(),
        blind: Vec::new(),
        is_complete: !gathered.is_short,
        given: Given::default(),
        shared: HashSet::new(),
    };
    for (number, member) in gathered.files.iter().enumerate() {
        let base = match number {
            0 => 0,
            _ => composed.source.add(member.name.as_str(), member.text.as_str()),
        };
        if number == gathered.first {
            composed.at = Span { start: base, end: base };
        }
        composed.is_complete &= member.problems.is_empty();
        composed.problems.extend(member.problems.iter().cloned().map(|found| found.moved(base)));
        composed.blind.extend(member.blind.iter().map(|stretch| stretch.moved(base)));
        let (table, _) = DeTable::parse_recoverable(&member.mended);
        let mut moving = Moving { base, folder: member.folder(), files, composed: &mut composed };
        let mut table = moving.table(table.into_inner());
        table.remove("include");
        let mut all = std::mem::take(&mut composed.table);
        add(&mut all, table, Level::Keys(&ROOT), &mut composed);
        composed.table = all;
    }
    composed
}

/// Merges the content of a further file.
fn add<'g>(all: &mut DeTable<'g>, more: DeTable<'g>, level: Level, composed: &mut Composed<'g>) {
    for (key, value) in more {
        let name = key.get_ref().to_string();
        let Some((first, said)) = entry(all, &name) else {
            all.insert(key, value);
            continue;
        };
        match (said.get_mut(), value.into_inner()) {
            (DeValue::Table(said), DeValue::Table(more)) => add(said, more, level.below(&name), composed),
            (DeValue::Array(said), DeValue::Array(more)) if level.is_appended(&name) => {
                more.into_iter().for_each(|element| said.push(element));
            }
            _ => {
                let hint = format!("the first is at {}", composed.source.place(first));
                composed.error(Span::from(key.span()), format!("`{name}` is said twice"), hint);
            }
        }
    }
}

/// The value of a key, and the position of the key.
fn entry<'t, 'g>(table: &'t mut DeTable<'g>, name: &str) -> Option<(Span, &'t mut Spanned<DeValue<'g>>)> {
    let (key, _) = table.get_key_value(name)?;
    let at = Span::from(key.span());
    Some((at, table.get_mut(name)?))
}

/// Converts the positions in one file to positions among all files.
struct Moving<'m, 'g> {
    base: usize,
    folder: &'m str,
    files: &'m dyn World,
    composed: &'m mut Composed<'g>,
}

impl<'g> Moving<'_, 'g> {
    fn table(&mut self, table: DeTable<'g>) -> DeTable<'g> {
        let entry = |(key, value): (Spanned<Cow<'g, str>>, _)| {
            let span = self.span(&key);
            (Spanned::new(span.start..span.end, key.into_inner()), self.value(value))
        };
        table.into_iter().map(entry).collect()
    }

    fn value(&mut self, value: Spanned<DeValue<'g>>) -> Spanned<DeValue<'g>> {
        let span = self.span(&value);
        let range = span.start..span.end;
        match value.into_inner() {
            DeValue::Table(table) => Spanned::new(range, DeValue::Table(self.table(table))),
            DeValue::Array(list) => {
                let mut moved = DeArray::new();
                list.into_iter().for_each(|element| moved.push(self.value(element)));
                Spanned::new(range, DeValue::Array(moved))
            }
            DeValue::String(text) => self.text(text, span),
            other => Spanned::new(range, other),
        }
    }

    /// The position among all files. A placeholder for a missing value stays a placeholder.
    fn span<T>(&self, of: &Spanned<T>) -> Span {
        let span = Span::from(of.span());
        if span.end == 0 { span } else { span.moved(self.base) }
    }

    fn text(&mut self, text: Cow<'g, str>, span: Span) -> Spanned<DeValue<'g>> {
        let range = span.start..span.end;
        match Text::resolve(&text, self.folder, self.files) {
            Ok(None) => Spanned::new(range, DeValue::String(text)),
            Ok(Some(resolved)) => {
                let whole = resolved.whole();
                if resolved.is_given() {
                    self.composed.given.add(span, resolved);
                }
                Spanned::new(range, DeValue::String(Cow::Owned(whole)))
            }
            Err(missing) => {
                for missing in missing {
                    // In a text without escapes the expression appears literally.
                    let inside = self.composed.source.slice(span).find(&missing.expression);
                    let at = inside.map_or(span, |at| Span {
                        start: span.start + at,
                        end: span.start + at + missing.expression.len(),
                    });
                    self.composed.error(at, missing.message, missing.hint);
                }
                Spanned::new(0..0, DeValue::String(Cow::Borrowed("")))
            }
        }
    }
}
