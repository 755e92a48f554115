//! A table of the source, from which directives are taken one by one. What is left at the end was not
//! understood.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys of a table that have not been taken yet.
#[derive(Clone, Debug)]
pub struct Bag {
    /// Prefix of its keys' names: `proxy_rules[0].`, or empty at the top.
    prefix: String,
    entries: Vec<KeyValue>,
}

#[derive(Clone, Debug)]
struct KeyValue {
    key: String,
    line: usize,
    value: Value,
    /// The type that was expected if the value has another.
    expected: Option<&'static str>,
}

/// A key that was not taken.
pub struct Left {
    /// Its full name, with the prefix.
    pub name: String,
    /// Its line, from 1.
    pub line: usize,
    /// Why it was left.
    pub note: String,
}

#[derive(Clone, Debug)]
enum Value {
    Text(String),
    Number(u64),
    Flag(bool),
    List(Vec<(usize, Value)>),
    Table(Bag),
    Other,
}

/// A value that was taken, and its place.
#[derive(Clone, Debug)]
pub struct Taken<T> {
    /// The value.
    pub value: T,
    /// The full name of its key, with the prefix.
    pub name: String,
    /// Line of the key, from 1.
    pub line: usize,
}

impl Bag {
    /// All keys of `table`, which was parsed from `text`.
    pub fn of(table: &DeTable<'_>, text: &str) -> Bag {
        Bag::below(table, &Lines::of(text), String::new())
    }

    fn below(table: &DeTable<'_>, text: &Lines, prefix: String) -> Bag {
        let mut entries: Vec<KeyValue> = table
            .iter()
            .map(|(key, value)| {
                let name = format!("{prefix}{}", key.get_ref());
                KeyValue {
                    key: key.get_ref().to_string(),
                    line: text.line_of(key.span().start),
                    value: Value::of(value, text, &name),
                    expected: None,
                }
            })
            .collect();
        entries.sort_by_key(|entry| entry.line);
        Bag { prefix, entries }
    }

    fn take<T>(
        &mut self,
        key: &str,
        kind: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<Taken<T>> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        let Some(value) = read(&self.entries[at].value) else {
            self.entries[at].expected = Some(kind);
            return None;
        };
        let entry = self.entries.remove(at);
        Some(Taken { value, name: format!("{}{key}", self.prefix), line: entry.line })
    }

    /// Takes a text.
    pub fn text(&mut self, key: &str) -> Option<Taken<String>> {
        self.take(key, "a text", |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Takes a whole number that is not negative.
    pub fn number(&mut self, key: &str) -> Option<Taken<u64>> {
        self.take(key, "a whole number that is not negative", |value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        })
    }

    /// Takes `true` or `false`.
    pub fn flag(&mut self, key: &str) -> Option<Taken<bool>> {
        self.take(key, "`true` or `false`", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Takes a list of texts.
    pub fn texts(&mut self, key: &str) -> Option<Taken<Vec<String>>> {
        self.take(key, "a list of texts", |value| {
            let Value::List(list) = value else { return None };
            let texts = list.iter().map(|(_, value)| match value {
                Value::Text(text) => Some(text.clone()),
                _ => None,
            });
            texts.collect()
        })
    }

    /// Takes a table.
    pub fn table(&mut self, key: &str) -> Option<Taken<Bag>> {
        self.take(key, "a table", |value| match value {
            Value::Table(bag) => Some(bag.clone()),
            _ => None,
        })
    }

    /// Takes a list of tables, each with its line.
    pub fn tables(&mut self, key: &str) -> Option<Taken<Vec<(usize, Bag)>>> {
        self.take(key, "a list of tables", |value| {
            let Value::List(list) = value else { return None };
            let tables = list.iter().map(|(line, value)| match value {
                Value::Table(bag) => Some((*line, bag.clone())),
                _ => None,
            });
            tables.collect()
        })
    }

    /// The keys that were not taken.
    pub fn rest(self) -> impl Iterator<Item = Left> {
        let Bag { prefix, entries } = self;
        entries.into_iter().map(move |entry| {
            let note = match entry.expected {
                Some(expected) => format!(
                    "this is {}, expected {expected}: left out, as if the file did not have the key",
                    entry.value.kind()
                ),
                None => "no key of ARC2's: left out".to_owned(),
            };
            Left { name: format!("{prefix}{}", entry.key), line: entry.line, note }
        })
    }
}

impl Value {
    /// The name of its type.
    fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "a text",
            Value::Number(_) => "a number",
            Value::Flag(_) => "`true` or `false`",
            Value::List(_) => "a list, or one with something else in it",
            Value::Table(_) => "a table",
            Value::Other => "a negative number, a fraction, a date, or a number that is not decimal",
        }
    }

    fn of(value: &Spanned<DeValue<'_>>, text: &Lines, name: &str) -> Value {
        match value.get_ref() {
            DeValue::String(string) => Value::Text(string.to_string()),
            DeValue::Integer(number) => number
                .to_string()
                .parse()
                .ok()
                .filter(|_| number.radix() == 10)
                .map_or(Value::Other, Value::Number),
            DeValue::Boolean(flag) => Value::Flag(*flag),
            DeValue::Array(list) => {
                let numbered = list.iter().enumerate();
                let values = numbered.map(|(index, value)| {
                    (text.line_of(value.span().start), Value::of(value, text, &format!("{name}[{index}]")))
                });
                Value::List(values.collect())
            }
            DeValue::Table(table) => Value::Table(Bag::below(table, text, format!("{name}."))),
            DeValue::Float(_) | DeValue::Datetime(_) => Value::Other,
        }
    }
}

/// The ends of lines, so that a file with many keys is scanned once and not once for each key.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        Lines(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    /// The line that holds the byte at `offset`, from 1.
    fn line_of(&self, offset: usize) -> usize {
        self.0.partition_point(|end| *end < offset) + 1
    }
}
