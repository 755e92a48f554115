//! Tables that take over the settings of `[shared.NAME]`: `use = "NAME"`, or a list of names. A table's own
//! settings take precedence, and then those of the names in their order.

use std::borrow::Cow;
use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Composed, Level};
use crate::config::ROOT;
use crate::report::{Severity, Span};
use crate::suggest::{nearest, one_of};

/// The key by which a table takes over others.
const USE: &str = "use";

/// A table that others take over.
struct Shared<'g> {
    at: Span,
    table: DeTable<'g>,
    state: Progress,
    is_used: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Progress {
    /// It has only its own settings.
    Plain,
    /// It is being completed; a reference back to it is a cycle.
    Open,
    /// It is complete.
    Whole,
}

/// The shared tables by name.
type ByName<'g> = BTreeMap<String, Shared<'g>>;

/// Adds to every listener, route and pool the settings that it takes over.
pub(super) fn take_over(composed: &mut Composed<'_>) {
    let mut root = std::mem::take(&mut composed.table);
    let mut shared = shared_tables(&mut root, composed);
    for name in shared.keys().cloned().collect::<Vec<_>>() {
        make_whole(&name, &mut shared, composed);
    }
    for kind in ["listener", "pool"] {
        let level = Level::Keys(&ROOT).below(kind);
        for (name, value) in tables_of(&mut root, kind) {
            let level = level.below(&name);
            if let DeValue::Table(table) = value.get_mut() {
                fill(table, level, &mut shared, composed);
                fill_below(table, level, &mut shared, composed);
            }
        }
    }
    for (name, shared) in shared.iter().filter(|(_, shared)| !shared.is_used) {
        let hint =
            format!("expected `use = \"{name}\"` in a listener, a route or a pool; nothing checks it so");
        composed.note(shared.at, Severity::Warning, format!("nobody uses `[shared.{name}]`"), hint);
    }
    composed.table = root;
}

/// Removes the shared tables from the file's table, and records their positions.
fn shared_tables<'g>(root: &mut DeTable<'g>, composed: &mut Composed<'g>) -> ByName<'g> {
    let mut shared = ByName::new();
    let Some((key, value)) = root.remove_entry("shared") else { return shared };
    let at = Span::from(key.span());
    let hint = "expected a table with a name of your choice: `[shared.web]`";
    let DeValue::Table(tables) = value.into_inner() else {
        composed.error(at, "`shared` holds tables", hint);
        return shared;
    };
    for (name, value) in tables {
        let at = Span::from(name.span());
        let DeValue::Table(table) = value.into_inner() else {
            composed.error(at, format!("`shared.{}` is no table", name.get_ref()), hint);
            continue;
        };
        note_places(&table, composed);
        let one = Shared { at, table, state: Progress::Plain, is_used: false };
        shared.insert(name.into_inner().into_owned(), one);
    }
    shared
}

/// Records the positions of everything in a shared table.
fn note_places(table: &DeTable<'_>, composed: &mut Composed<'_>) {
    for (key, value) in table {
        composed.shared.insert(Span::from(key.span()));
        note_value(value, composed);
    }
}

fn note_value(value: &Spanned<DeValue<'_>>, composed: &mut Composed<'_>) {
    composed.shared.insert(Span::from(value.span()));
    match value.get_ref() {
        DeValue::Table(table) => note_places(table, composed),
        DeValue::Array(list) => list.iter().for_each(|element| note_value(element, composed)),
        _ => {}
    }
}

/// The named tables of a key.
fn tables_of<'t, 'g>(
    root: &'t mut DeTable<'g>,
    kind: &str,
) -> impl Iterator<Item = (String, &'t mut Spanned<DeValue<'g>>)> {
    let named = match root.get_mut(kind).map(Spanned::get_mut) {
        Some(DeValue::Table(table)) => Some(table),
        _ => None,
    };
    named.into_iter().flatten().map(|(name, value)| (name.get_ref().to_string(), value))
}

/// Adds to a shared table the settings that it takes over itself.
fn make_whole<'g>(name: &str, shared: &mut ByName<'g>, composed: &mut Composed<'g>) {
    let Some(one) = shared.get_mut(name).filter(|one| one.state == Progress::Plain) else { return };
    one.state = Progress::Open;
    let mut table = std::mem::take(&mut one.table);
    fill(&mut table, Level::Unknown, shared, composed);
    if let Some(one) = shared.get_mut(name) {
        (one.table, one.state) = (table, Progress::Whole);
    }
}

/// Completes the routes of a listener, which take over settings of their own.
fn fill_below<'g>(
    table: &mut DeTable<'g>,
    level: Level,
    shared: &mut ByName<'g>,
    composed: &mut Composed<'g>,
) {
    for (name, value) in table.iter_mut() {
        let (is_appended, level) = (level.is_appended(name.get_ref()), level.below(name.get_ref()));
        let DeValue::Array(list) = value.get_mut() else { continue };
        for element in list.iter_mut().filter(|_| is_appended) {
            if let DeValue::Table(table) = element.get_mut() {
                fill(table, level, shared, composed);
            }
        }
    }
}

/// Adds to a table the settings that it takes over.
fn fill<'g>(table: &mut DeTable<'g>, level: Level, shared: &mut ByName<'g>, composed: &mut Composed<'g>) {
    for (at, name) in names_of(table, composed) {
        match shared.get(&name).map(|one| one.state) {
            None => {
                let near = nearest(&name, shared.keys().map(String::as_str));
                let hint = match (near, shared.is_empty()) {
                    (Some(near), _) => format!("did you mean `{near}`?"),
                    (None, true) => format!("expected a table `[shared.{name}]`"),
                    (None, false) => format!("expected {}", one_of(shared.keys().map(String::as_str))),
                };
                composed.error(at, format!("no shared table is named `{name}`"), hint);
                continue;
            }
            Some(Progress::Open) => {
                let hint = "a shared table cannot take over itself, not even by way of others";
                composed.error(at, format!("`{name}` leads back to itself"), hint);
                continue;
            }
            Some(Progress::Plain) => make_whole(&name, shared, composed),
            Some(Progress::Whole) => {}
        }
        if let Some(one) = shared.get_mut(&name) {
            one.is_used = true;
            add_missing(table, &one.table, level);
        }
    }
}

/// Removes `use` from a table, and returns its names in order.
fn names_of(table: &mut DeTable<'_>, composed: &mut Composed<'_>) -> Vec<(Span, String)> {
    let Some((key, value)) = table.remove_entry(USE) else { return Vec::new() };
    let elements = match value.into_inner() {
        DeValue::Array(list) => list.into_iter().collect(),
        other => vec![Spanned::new(value_span(&key), other)],
    };
    let mut names = Vec::new();
    for element in elements {
        let at = Span::from(element.span());
        match element.into_inner() {
            _ if at.end == 0 => {}
            DeValue::String(name) => names.push((at, name.into_owned())),
            _ => composed.error(at, "`use` takes names", "expected the NAME of a `[shared.NAME]`, or a list"),
        }
    }
    names
}

fn value_span(key: &Spanned<Cow<'_, str>>) -> std::ops::Range<usize> {
    key.span()
}

/// Adds the keys that a table lacks. If both have a subtable, its keys are merged; tables in double brackets
/// are appended to the table's own.
fn add_missing<'g>(table: &mut DeTable<'g>, from: &DeTable<'g>, level: Level) {
    for (key, value) in from {
        let name = key.get_ref();
        match (table.get_mut(name.as_ref()).map(Spanned::get_mut), value.get_ref()) {
            (None, _) => {
                table.insert(key.clone(), value.clone());
            }
            (Some(DeValue::Table(own)), DeValue::Table(from)) => add_missing(own, from, level.below(name)),
            (Some(DeValue::Array(own)), DeValue::Array(from)) if level.is_appended(name) => {
                from.iter().for_each(|element| own.push(element.clone()));
            }
            _ => {}
        }
    }
}
