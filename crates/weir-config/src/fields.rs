//! A table that was read: its values by name, with the defaults of the table of keys where the file says nothing.

use std::time::Duration;

use crate::keys::{Kind, Table};
use crate::report::Span;
use crate::values::Value;

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The key; for maps as it is meant (header fields in lower case).
    pub name: String,
    pub key: Span,
    pub at: Span,
    pub value: Value,
}

/// A table that was read.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    /// What was read by.
    pub schema: &'static Table,
    /// The header, or the inline table.
    pub at: Span,
    /// What is there, in file order.
    pub entries: Vec<Entry>,
    /// Keys that unknown ones were probably meant to be. That these are missing has been said in another way.
    pub meant: Vec<&'static str>,
}

impl Fields {
    /// The entry of a key, where the file has it.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The value of a key, where the file has it and it could be read.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.get(name).map(|entry| &entry.value).filter(|value| !matches!(value, Value::Bad))
    }

    /// Whether the file says nothing about a key, not even misspelt.
    pub fn lacks(&self, name: &str) -> bool {
        self.get(name).is_none() && !self.meant.contains(&name)
    }

    /// Whether the file has the key but it could not be read.
    pub fn is_bad(&self, name: &str) -> bool {
        self.get(name).is_some_and(|entry| matches!(entry.value, Value::Bad))
    }

    /// Where the value of a key is; the whole table where the file does not have it.
    pub fn at(&self, name: &str) -> Span {
        self.get(name).map_or(self.at, |entry| entry.at)
    }

    fn kind(&self, name: &str) -> Option<&'static Kind> {
        self.schema.key(name).map(|key| &key.kind)
    }

    /// A duration, or its default; zero for a key without one.
    pub fn duration(&self, name: &str) -> Duration {
        match (self.value(name), self.kind(name)) {
            (Some(Value::Duration(value)), _) => *value,
            (_, Some(Kind::Duration(limit))) => limit.default.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// A duration that may be absent.
    pub fn optional_duration(&self, name: &str) -> Option<Duration> {
        self.get(name).map(|_| self.duration(name))
    }

    /// A count, size or rate, or its default; zero for a key without one.
    pub fn number(&self, name: &str) -> u64 {
        match (self.value(name), self.kind(name)) {
            (Some(Value::Count(value) | Value::Bytes(value)), _) => *value,
            (_, Some(Kind::Count(limit) | Kind::Size(limit) | Kind::Rate(limit))) => {
                limit.default.unwrap_or_default()
            }
            (_, Some(Kind::Choice(_, default))) => u64::from(*default),
            _ => 0,
        }
    }

    /// A count, size or rate that may be absent.
    pub fn optional_number(&self, name: &str) -> Option<u64> {
        self.get(name).map(|_| self.number(name))
    }

    /// A count or its default. The bounds of every count that is asked for in this way are far below `u32::MAX`.
    pub fn count(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).unwrap_or(u32::MAX)
    }

    /// A count that may be absent.
    pub fn optional_count(&self, name: &str) -> Option<u32> {
        self.get(name).map(|_| self.count(name))
    }

    /// A number, or its default; zero for a key without one.
    pub fn factor(&self, name: &str) -> f64 {
        match (self.value(name), self.kind(name)) {
            (Some(Value::Factor(value)), _) => *value,
            (_, Some(Kind::Factor(limit))) => limit.default.unwrap_or_default(),
            _ => 0.0,
        }
    }

    /// `true` or `false`, or the default.
    pub fn flag(&self, name: &str) -> bool {
        match (self.value(name), self.kind(name)) {
            (Some(Value::Bool(value)), _) => *value,
            (_, Some(Kind::Bool(default))) => *default,
            _ => false,
        }
    }

    /// A word, or the default; empty for a key without one.
    pub fn word(&self, name: &str) -> &'static str {
        match (self.value(name), self.kind(name)) {
            (Some(Value::Word(word)), _) => word,
            (_, Some(Kind::Word(_, default))) => default.unwrap_or_default(),
            _ => "",
        }
    }

    /// Checked text, where the file has it.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A table below; an empty one where the file does not have it.
    pub fn table(&self, name: &str) -> Fields {
        match (self.value(name), self.kind(name)) {
            (Some(Value::Table(fields)), _) => fields.clone(),
            (_, Some(Kind::Table(schema) | Kind::TableOrOff(schema) | Kind::TableOrTrue(schema))) => {
                Fields { schema, at: self.at(name), entries: Vec::new(), meant: Vec::new() }
            }
            _ => Fields { schema: self.schema, at: self.at, entries: Vec::new(), meant: Vec::new() },
        }
    }

    /// The elements of a list with their places; empty where the file does not have it.
    pub fn list(&self, name: &str) -> &[(Span, Value)] {
        match self.value(name) {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }

    /// The entries of a map or of named tables.
    pub fn map(&self, name: &str) -> &[Entry] {
        match self.value(name) {
            Some(Value::Map(entries)) => entries,
            _ => &[],
        }
    }
}
