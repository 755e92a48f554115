//! Writes a [`Config`] as text: every key, defaults included, so that nobody has to know them by heart.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::config::{self, Config};
use crate::fields::{Fields, KeyValue, Value, default_of};
use crate::given;
use crate::keys::{Key, Kind};
use crate::report::{Findings, Span};
use crate::source::Source;
use crate::units::{show_byte_rate, show_duration, show_size};

/// Stands in place of a secret.
pub const SECRET: &str = "(secret)";

/// The effective config as TOML. [`parse`](crate::parse) reads it back to an equal [`Config`].
///
/// Secrets are written as they are; [`to_toml_without_secrets`] leaves them out.
pub fn to_toml(config: &Config) -> String {
    let mut text = String::new();
    write_table("", &effective(config), Secrets::Written, &mut text);
    text
}

/// [`to_toml`] for display, with [`SECRET`] in place of each secret: the value of a header field that a route
/// compares, and of one that it sets towards backends, since either may be a credential; and whatever came
/// from the environment or a file (`${env:NAME}`). Most keys, tokens and passwords are in files of their own;
/// those that are in the config are left out.
pub fn to_toml_without_secrets(config: &Config) -> String {
    let mut text = String::new();
    write_table("", &effective(config), Secrets::LeftOut, &mut text);
    text
}

/// Whether secrets are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Secrets {
    Written,
    LeftOut,
}

/// The content of the shortest file that leaves no default implicit: every key except those without effect
/// where they are, which is for the check to decide, and those marked as brief that equal their default.
pub(crate) fn effective(config: &Config) -> Fields {
    let mut root = config.fields();
    let mut count = 0;
    number(&mut root, &mut count);
    let uses = config::assume(&mut root);
    let source = Source::new("", "");
    let mut findings = Findings::new(&source);
    config.check(&root, &uses, &mut findings);
    leave_out(&mut root, &findings.spans());
    config.hidden.mark(&mut root);
    root
}

/// Numbers every key by the order of the reference page, and gives each a position of its own by which the
/// check can refer to it. Drops keys that are not built, which would be refused.
fn number(fields: &mut Fields, count: &mut usize) {
    let keys = fields.schema.keys();
    fields.entries.retain(|entry| keys.iter().any(|key| key.name == entry.name && key.built));
    fields.entries.sort_by_key(|entry| keys.iter().position(|key| key.name == entry.name));
    for entry in &mut fields.entries {
        *count += 1;
        let place = Span { start: *count, end: *count };
        (entry.key, entry.at) = (place, place);
        if let Value::List(list) = &mut entry.value {
            for (at, _) in list.iter_mut().filter(|(_, value)| !matches!(value, Value::Table(_))) {
                *at = place;
            }
        }
        for below in entry.value.tables_mut() {
            number(below, count);
        }
    }
}

/// Removes keys that equal their default, if they were reported as having no effect there or are brief.
fn leave_out(fields: &mut Fields, noted: &BTreeSet<Span>) {
    for below in fields.entries.iter_mut().flat_map(|entry| entry.value.tables_mut()) {
        leave_out(below, noted);
    }
    let stays = |entry: &KeyValue| {
        let Some(key) = fields.schema.key(&entry.name) else { return true };
        if matches!((&key.kind, &entry.value), (Kind::Table(_), Value::Table(below)) if below.entries.is_empty())
        {
            return false;
        }
        let may_go = key.brief || key.inherited && fields.is_assumed(key.name) || noted.contains(&entry.key);
        !may_go || !says_nothing(key, &entry.value, fields.unsaid(key.name))
    };
    fields.entries = fields.entries.iter().filter(|entry| stays(entry)).cloned().collect();
}

/// Whether a value equals what applies when the key is absent.
fn says_nothing(key: &Key, value: &Value, unsaid: Option<Value>) -> bool {
    match (&key.kind, value, unsaid) {
        (Kind::Table(_), Value::Table(below), Some(Value::Table(assumed))) => {
            below.schema.keys().into_iter().all(|key| {
                let [here, there] = [below, &assumed].map(|fields| fields.holds(key.name));
                let shown = |value: Cow<'_, Value>| show(&key.kind, &value, Secrets::Written);
                here.map(shown) == there.map(shown)
            })
        }
        (Kind::Table(_) | Kind::TableOrOff(_), Value::Table(below), _) => below.entries.iter().all(|entry| {
            let key = below.schema.key(&entry.name);
            key.is_some_and(|key| says_nothing(key, &entry.value, below.unsaid(&entry.name)))
        }),
        (_, _, unsaid) => unsaid.is_some_and(|unsaid| {
            let shown = |value| show(&key.kind, value, Secrets::Written);
            shown(value) == shown(&unsaid)
        }),
    }
}

/// Writes the keys of a table under its header, and then the tables with headers of their own.
fn write_table(header: &str, fields: &Fields, secrets: Secrets, text: &mut String) {
    let mut below = Vec::new();
    for entry in &fields.entries {
        let Some(key) = fields.schema.key(&entry.name) else { continue };
        if key.kind.table().is_some_and(|table| table.has_header()) && !matches!(entry.value, Value::Off) {
            below.push((key, entry));
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} = {}", key.name, shown(key, entry, secrets));
    }
    below.sort_by_key(|(key, _)| matches!(key.kind, Kind::Tables(_)));
    for (key, entry) in below {
        let path = if header.is_empty() { key.name.to_owned() } else { format!("{header}.{}", key.name) };
        match &entry.value {
            Value::Map(tables) => {
                for table in tables {
                    let path = format!("{path}.{}", bare(&table.name));
                    for fields in table.value.tables() {
                        write_header(&path, "[]", text);
                        write_table(&path, fields, secrets, text);
                    }
                }
            }
            Value::List(_) => {
                for fields in entry.value.tables() {
                    write_header(&path, "[[]]", text);
                    write_table(&path, fields, secrets, text);
                }
            }
            value => {
                for fields in value.tables() {
                    write_header(&path, "[]", text);
                    write_table(&path, fields, secrets, text);
                }
            }
        }
    }
}

fn write_header(path: &str, brackets: &str, text: &mut String) {
    let (open, close) = brackets.split_at(brackets.len() / 2);
    let gap = if text.is_empty() { "" } else { "\n" };
    let _ = writeln!(text, "{gap}{open}{path}{close}");
}

/// The value of a key as TOML.
pub(crate) fn shown(key: &Key, entry: &KeyValue, secrets: Secrets) -> String {
    let is_left_out = secrets == Secrets::LeftOut;
    match &entry.value {
        _ if entry.is_hidden && is_left_out => quoted(SECRET),
        Value::Text(_) if key.secret && is_left_out => quoted(SECRET),
        Value::Map(entries) if is_left_out && matches!(key.kind, Kind::Map(..)) => {
            // `*` only checks for presence.
            let is_shown = |text: &str| text == "*" || !key.secret;
            let pair = |entry: &KeyValue| {
                let shows = !entry.is_hidden && matches!(&entry.value, Value::Text(text) if is_shown(text));
                let value = if shows { map_value(&key.kind, entry) } else { quoted(SECRET) };
                format!("{} = {value}", bare(&entry.name))
            };
            format!("{{ {} }}", join(entries.iter().map(pair)))
        }
        value => show(&key.kind, value, secrets),
    }
}

/// A text for the file, escaped so that it requests nothing from the environment or files.
fn said(text: &str) -> String {
    quoted(&given::escaped(text))
}

/// The value for one name of a map.
fn map_value(kind: &Kind, entry: &KeyValue) -> String {
    match (kind, &entry.value) {
        (Kind::Map(_, shape), Value::Text(text)) => said(&(shape.written)(text)),
        _ => quoted(""),
    }
}

fn show(kind: &Kind, value: &Value, secrets: Secrets) -> String {
    match (kind, value) {
        (_, Value::Bool(value)) => value.to_string(),
        (_, Value::Duration(value)) => quoted(&show_duration(*value)),
        (Kind::Size(_), Value::Number(bytes)) => quoted(&show_size(*bytes)),
        (Kind::Rate(_), Value::Number(bytes)) => quoted(&show_byte_rate(*bytes)),
        (_, Value::Number(value)) => value.to_string(),
        (_, Value::Factor(value)) => format!("{value:?}"),
        (_, Value::Word(word)) => quoted(word),
        (Kind::Text(shape, _), Value::Text(text)) => said(&(shape.written)(text)),
        (_, Value::Text(text) | Value::Read(text, _)) => said(text),
        (Kind::TableOrTrue(_), Value::Off) => "false".to_owned(),
        (_, Value::Off | Value::Bad) => quoted("off"),
        (Kind::OneOrMany(each, _) | Kind::Many(each), Value::List(list)) => {
            format!("[{}]", join(list.iter().map(|(_, value)| show(&each.kind(), value, secrets))))
        }
        (Kind::Map(..), Value::Map(entries)) => {
            let pair = |entry: &KeyValue| format!("{} = {}", bare(&entry.name), map_value(kind, entry));
            format!("{{ {} }}", join(entries.iter().map(pair)))
        }
        (Kind::TableOrText(_, name), Value::Table(fields)) => match short(fields, name) {
            Some(entry) if entry.is_hidden && secrets == Secrets::LeftOut => quoted(SECRET),
            Some(KeyValue { value: Value::Text(text), .. }) => said(text),
            _ => inline(fields, secrets),
        },
        (_, Value::Table(fields)) => inline(fields, secrets),
        (_, Value::List(_) | Value::Map(_)) => String::new(),
    }
}

/// The default as written in the file; `None` if there is no fixed one.
pub fn default_text(kind: &Kind) -> Option<String> {
    let fixed = default_of(kind).filter(|value| !matches!(value, Value::Table(_) | Value::Off));
    fixed.map(|value| show(kind, &value, Secrets::Written))
}

/// An accepted value, as written in the file.
pub(crate) fn example(kind: &Kind) -> String {
    match kind {
        Kind::Text(shape, _) => quoted(shape.example),
        Kind::OneOrMany(each, _) => example(&each.kind()),
        Kind::Many(each) => format!("[{}]", example(&each.kind())),
        Kind::TableOrText(table, key) => table.key(key).map_or_else(String::new, |key| example(&key.kind)),
        other => default_text(other).unwrap_or_else(|| "…".to_owned()),
    }
}

fn inline(fields: &Fields, secrets: Secrets) -> String {
    let keys = fields.entries.iter().filter_map(|entry| {
        let key = fields.schema.key(&entry.name)?;
        Some(format!("{} = {}", key.name, shown(key, entry, secrets)))
    });
    format!("{{ {} }}", join(keys))
}

/// The text that stands for a table, if the rest of it has no effect.
fn short<'f>(fields: &'f Fields, name: &str) -> Option<&'f KeyValue> {
    let rest = fields.entries.iter().filter(|entry| entry.name != name).all(|entry| {
        let key = fields.schema.key(&entry.name);
        key.is_some_and(|key| says_nothing(key, &entry.value, fields.unsaid(&entry.name)))
    });
    fields.get(name).filter(|_| rest)
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// A TOML key: without quotes if possible.
fn bare(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if bare { name.to_owned() } else { quoted(name) }
}

/// A text as a TOML basic string, with its quotes.
pub fn quoted(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for c in value.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;
