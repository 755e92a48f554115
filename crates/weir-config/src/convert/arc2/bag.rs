//! A table of the source, from which directives are taken one by one; what is left at the end was not understood.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys of a table that were not taken yet.
#[derive(Clone, Debug)]
pub struct Bag {
    /// How its keys are called: `proxy_rules[0].`, empty at the top.
    prefix: String,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: String,
    line: usize,
    value: Value,
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

/// A value that was taken, and where it stood.
#[derive(Clone, Debug)]
pub struct Taken<T> {
    /// The value.
    pub value: T,
    /// Its key with everything before it.
    pub name: String,
    /// Line of the key, from 1.
    pub line: usize,
}

impl Bag {
    /// The whole of `text`, which `table` was read from.
    pub fn of(table: &DeTable<'_>, text: &str) -> Bag {
        Bag::below(table, text, String::new())
    }

    fn below(table: &DeTable<'_>, text: &str, prefix: String) -> Bag {
        let mut entries: Vec<Entry> = table
            .iter()
            .map(|(key, value)| {
                let name = format!("{prefix}{}", key.get_ref());
                Entry {
                    key: key.get_ref().to_string(),
                    line: line_of(text, key.span().start),
                    value: Value::of(value, text, &name),
                }
            })
            .collect();
        entries.sort_by_key(|entry| entry.line);
        Bag { prefix, entries }
    }

    fn take<T>(&mut self, key: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Taken<T>> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        let value = read(&self.entries[at].value)?;
        let entry = self.entries.remove(at);
        Some(Taken { value, name: format!("{}{key}", self.prefix), line: entry.line })
    }

    /// A text.
    pub fn text(&mut self, key: &str) -> Option<Taken<String>> {
        self.take(key, |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// A whole number that is not negative.
    pub fn number(&mut self, key: &str) -> Option<Taken<u64>> {
        self.take(key, |value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &str) -> Option<Taken<bool>> {
        self.take(key, |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A list of texts.
    pub fn texts(&mut self, key: &str) -> Option<Taken<Vec<String>>> {
        self.take(key, |value| {
            let Value::List(list) = value else { return None };
            let texts = list.iter().map(|(_, value)| match value {
                Value::Text(text) => Some(text.clone()),
                _ => None,
            });
            texts.collect()
        })
    }

    /// A table.
    pub fn table(&mut self, key: &str) -> Option<Taken<Bag>> {
        self.take(key, |value| match value {
            Value::Table(bag) => Some(bag.clone()),
            _ => None,
        })
    }

    /// A list of tables, each with its line.
    pub fn tables(&mut self, key: &str) -> Option<Taken<Vec<(usize, Bag)>>> {
        self.take(key, |value| {
            let Value::List(list) = value else { return None };
            let tables = list.iter().map(|(line, value)| match value {
                Value::Table(bag) => Some((*line, bag.clone())),
                _ => None,
            });
            tables.collect()
        })
    }

    /// Name and line of what nobody took.
    pub fn rest(self) -> impl Iterator<Item = (String, usize)> {
        let Bag { prefix, entries } = self;
        entries.into_iter().map(move |entry| (format!("{prefix}{}", entry.key), entry.line))
    }
}

impl Value {
    fn of(value: &Spanned<DeValue<'_>>, text: &str, name: &str) -> Value {
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
                    (line_of(text, value.span().start), Value::of(value, text, &format!("{name}[{index}]")))
                });
                Value::List(values.collect())
            }
            DeValue::Table(table) => Value::Table(Bag::below(table, text, format!("{name}."))),
            DeValue::Float(_) | DeValue::Datetime(_) => Value::Other,
        }
    }
}

/// The line of a byte, from 1.
fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
