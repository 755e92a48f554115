//! A table as values by name: read from a file, or made from a config that is to be written. Both directions
//! go through here, so that defaults and keys without effect are decided once.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::keys::{Each, Kind, Table};
use crate::report::Span;

/// A value that was read, or a placeholder for one that could not be.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Could not be read and has been reported; later checks stay silent.
    Bad,
    /// `"off"` or `false`, where a table or a duration is allowed.
    Off,
    Bool(bool),
    Duration(Duration),
    /// A count, a size or a rate.
    Number(u64),
    Factor(f64),
    Word(&'static str),
    /// Checked text in its normal form: a name, an address, a header value …
    Text(String),
    /// The name of a file, and its content.
    Read(String, Arc<[u8]>),
    List(Vec<(Span, Value)>),
    Map(Vec<KeyValue>),
    Table(Fields),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct KeyValue {
    /// The key; in maps in its normal form (header fields in lower case).
    pub name: String,
    pub key: Span,
    pub at: Span,
    pub value: Value,
    /// The value came from the environment or a file, and is never shown.
    pub is_hidden: bool,
}

impl KeyValue {
    pub fn new(name: impl Into<String>, key: Span, at: Span, value: Value) -> KeyValue {
        KeyValue { name: name.into(), key, at, value, is_hidden: false }
    }
}

/// A table, by its keys.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub schema: &'static Table,
    /// The NAME of a table that has one.
    pub name: String,
    /// The position of the header, or of the inline table.
    pub at: Span,
    /// The entries, in file order.
    pub entries: Vec<KeyValue>,
    /// Keys that unknown keys were probably meant to be. So these are not reported as missing, too.
    pub meant: Vec<&'static str>,
    /// Values of absent keys whose default follows from something else.
    assumed: Vec<(&'static str, Value)>,
}

impl Fields {
    /// An empty table.
    pub fn new(schema: &'static Table, at: Span) -> Fields {
        Fields {
            schema,
            name: String::new(),
            at,
            entries: Vec::new(),
            meant: Vec::new(),
            assumed: Vec::new(),
        }
    }

    /// A table with one key, at the key's position.
    pub fn of_one(schema: &'static Table, entry: KeyValue) -> Fields {
        let mut fields = Fields::new(schema, entry.at);
        fields.entries.push(entry);
        fields
    }

    /// The entry of a key, if the file has it.
    pub fn get(&self, name: &str) -> Option<&KeyValue> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Adds a key. `None` is written out if absence would mean something else: `passive = "off"`.
    pub fn put(&mut self, name: &str, value: Option<Value>) {
        let off = || match self.schema.key(name).map(|key| &key.kind) {
            Some(Kind::TableOrOff(_) | Kind::TableOrTrue(_)) => Some(Value::Off),
            _ => None,
        };
        if let Some(value) = value.or_else(off) {
            self.entries.push(KeyValue::new(name, Span::default(), Span::default(), value));
        }
    }

    /// Sets the value that a key has if the file does not set it.
    pub fn assume(&mut self, name: &'static str, value: Value) {
        self.assumed.push((name, value));
    }

    /// The value of a key in the file, otherwise the assumed one; `None` also for a value that could not be
    /// read.
    pub fn value(&self, name: &str) -> Option<&Value> {
        match self.get(name) {
            Some(entry) => Some(&entry.value).filter(|value| !matches!(value, Value::Bad)),
            None => self.assumed(name),
        }
    }

    fn assumed(&self, name: &str) -> Option<&Value> {
        self.assumed.iter().find(|(assumed, _)| *assumed == name).map(|(_, value)| value)
    }

    /// Whether the default of a key follows from something else.
    pub fn is_assumed(&self, name: &str) -> bool {
        self.assumed(name).is_some()
    }

    /// The value that a key would have if the file did not set it.
    pub fn unsaid(&self, name: &str) -> Option<Value> {
        self.assumed(name).cloned().or_else(|| default_of(&self.schema.key(name)?.kind))
    }

    /// The effective value: set, assumed, or the default of the kind.
    pub fn holds(&self, name: &str) -> Option<Cow<'_, Value>> {
        self.value(name)
            .map(Cow::Borrowed)
            .or_else(|| default_of(&self.schema.key(name)?.kind).map(Cow::Owned))
    }

    /// Whether the file does not have a key, not even misspelt.
    pub fn lacks(&self, name: &str) -> bool {
        self.get(name).is_none() && !self.meant.contains(&name)
    }

    /// Whether the file has the key but it could not be read.
    pub fn is_bad(&self, name: &str) -> bool {
        self.get(name).is_some_and(|entry| matches!(entry.value, Value::Bad))
    }

    /// The position of a key's value; that of the whole table if the file does not have the key.
    pub fn at(&self, name: &str) -> Span {
        self.get(name).map_or(self.at, |entry| entry.at)
    }

    /// `true` or `false`, or the default.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.holds(name).as_deref(), Some(Value::Bool(true)))
    }

    /// A count, size or rate, or its default; zero for a key without one.
    pub fn number(&self, name: &str) -> u64 {
        match self.holds(name).as_deref() {
            Some(Value::Number(value)) => *value,
            _ => 0,
        }
    }

    /// A word, or the default; empty for a key without one.
    pub fn word(&self, name: &str) -> &'static str {
        match self.holds(name).as_deref() {
            Some(Value::Word(word)) => word,
            _ => "",
        }
    }

    /// Checked text, if the file has it.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Some(Value::Text(text) | Value::Read(text, _)) => Some(text),
            _ => None,
        }
    }

    /// A subtable, if the file has it.
    pub fn table(&self, name: &str) -> Option<&Fields> {
        match self.value(name) {
            Some(Value::Table(fields)) => Some(fields),
            _ => None,
        }
    }

    /// The elements of a list with their positions; empty if the file does not have it.
    pub fn list(&self, name: &str) -> &[(Span, Value)] {
        match self.value(name) {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }

    /// The tables of a list; empty if the file does not have it.
    pub fn tables(&self, name: &str) -> impl Iterator<Item = (Span, &Fields)> {
        self.list(name).iter().filter_map(|(at, value)| match value {
            Value::Table(fields) => Some((*at, fields)),
            _ => None,
        })
    }

    /// The entries of a map or of named tables.
    pub fn map(&self, name: &str) -> &[KeyValue] {
        match self.value(name) {
            Some(Value::Map(entries)) => entries,
            _ => &[],
        }
    }

    /// The named tables of a key that could be read, in file order.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Fields> {
        self.map(name).iter().filter_map(|entry| match &entry.value {
            Value::Table(fields) => Some(fields),
            _ => None,
        })
    }

    /// A subtable: the one in the file, or an assumed one if the file has none. `None` for a value that is
    /// not a table.
    pub fn below_or_assumed(&mut self, name: &'static str, schema: &'static Table) -> Option<&mut Fields> {
        let said = self.entries.iter().position(|entry| entry.name == name);
        if said.is_none() && self.assumed(name).is_none() {
            self.assume(name, Value::Table(Fields::new(schema, self.at)));
        }
        let value = match said {
            Some(position) => &mut self.entries[position].value,
            None => self.assumed.iter_mut().find(|(assumed, _)| *assumed == name).map(|(_, value)| value)?,
        };
        if let Value::Table(fields) = value { Some(fields) } else { None }
    }

    /// Every table of a key in the file: the single one, those of a list, or the named ones.
    pub fn below_mut(&mut self, name: &str) -> Vec<&mut Fields> {
        let entry = self.entries.iter_mut().find(|entry| entry.name == name);
        entry.map_or_else(Vec::new, |entry| entry.value.tables_mut())
    }
}

impl Value {
    /// The table or tables in a value.
    pub fn tables_mut(&mut self) -> Vec<&mut Fields> {
        match self {
            Value::Table(fields) => vec![fields],
            Value::List(list) => list.iter_mut().flat_map(|(_, value)| value.tables_mut()).collect(),
            Value::Map(entries) => entries.iter_mut().flat_map(|entry| entry.value.tables_mut()).collect(),
            _ => Vec::new(),
        }
    }

    /// The table or tables in a value.
    pub fn tables(&self) -> Vec<&Fields> {
        match self {
            Value::Table(fields) => vec![fields],
            Value::List(list) => list.iter().flat_map(|(_, value)| value.tables()).collect(),
            Value::Map(entries) => entries.iter().flat_map(|entry| entry.value.tables()).collect(),
            _ => Vec::new(),
        }
    }
}

/// The default of a kind; `None` if absence has a meaning of its own.
pub(crate) fn default_of(kind: &Kind) -> Option<Value> {
    match kind {
        Kind::Bool(default) | Kind::BoolOrWord(default, _) => Some(Value::Bool(*default)),
        Kind::Duration(limit) => limit.default.map(Value::Duration),
        Kind::DurationOrOff(_, true) => Some(Value::Off),
        Kind::DurationOrOff(limit, false) => limit.default.map(Value::Duration),
        Kind::Size(limit) | Kind::Rate(limit) | Kind::Count(limit) => limit.default.map(Value::Number),
        Kind::Factor(limit) => limit.default.map(Value::Factor),
        Kind::Word(_, default) => default.map(Value::Word),
        Kind::Choice(_, default) => Some(Value::Number(u64::from(*default))),
        Kind::Text(_, default) => default.map(|text| Value::Text(text.to_owned())),
        Kind::OneOrMany(Each::Word(_), default) if !default.is_empty() => {
            Some(Value::List(default.iter().map(|word| (Span::default(), Value::Word(word))).collect()))
        }
        Kind::OneOrMany(_, default) if !default.is_empty() => {
            let texts = default.iter().map(|text| (Span::default(), Value::Text((*text).to_owned())));
            Some(Value::List(texts.collect()))
        }
        Kind::TableOrOff(schema) => Some(Value::Table(Fields::new(schema, Span::default()))),
        Kind::TableOrTrue(_) => Some(Value::Off),
        _ => None,
    }
}
