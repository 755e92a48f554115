//! The one table of keys. The reader, the suggestions for misspelt names, the restart marks of a reload and the reference
//! page all come from here; a key that is not here does not exist.
//!
//! [`ROOT`] is the file; the tables themselves are in [`tables`].

mod bounds;
mod cache;
mod compress;
mod screen;
pub mod tables;
mod tls;

use std::time::Duration;

use crate::limits::Limit;
use crate::suggest::either;
use crate::units;
use crate::values::Shape;

pub use tables::ROOT;

/// A table of the file.
#[derive(Debug)]
pub struct Table {
    /// As written in a header, such as `[pool.NAME.health]`.
    pub path: &'static str,
    /// What it is for, in a sentence or two.
    pub doc: &'static str,
    /// Its keys, in the order in which the reference page and the effective config list them.
    pub keys: &'static [Key],
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// As written.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What it does, in a sentence.
    pub doc: &'static str,
    /// The default in words, where it is not a fixed value of the kind.
    pub default: &'static str,
    /// A file without it is refused.
    pub required: bool,
    /// A change takes force only after a restart (or USR2).
    pub restart: bool,
    /// Which listeners it means something to.
    pub only: Only,
    /// Whether this version does it.
    pub built: Built,
    /// What other programs call it.
    pub also: &'static [&'static str],
}

/// Which listeners a key means something to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// All.
    Any,
    /// `protocol = "http"`.
    Http,
    /// `protocol = "http"` and `"tcp"`.
    Stream,
    /// `protocol = "tcp"`.
    Tcp,
}

/// Whether this version does what a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// It does.
    Yes,
    /// It does not. The words are values that ask for what happens anyway, and are therefore taken.
    Not(&'static [&'static str]),
}

/// A word that a key takes.
#[derive(Debug)]
pub struct Word {
    /// As written.
    pub word: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// Whether this version does it.
    pub built: bool,
}

/// What a key takes.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool(bool),
    /// A duration.
    Duration(&'static Limit<Duration>),
    /// A size in bytes.
    Size(&'static Limit<u64>),
    /// Bytes per second.
    Rate(&'static Limit<u64>),
    /// A whole number.
    Count(&'static Limit<u64>),
    /// A number.
    Factor(&'static Limit<f64>),
    /// One of a closed set; and the default.
    Word(&'static [Word], Option<&'static str>),
    /// One of a few whole numbers; and the default.
    Choice(&'static [u16], u16),
    /// The name of a load balancing algorithm.
    Algorithm,
    /// A text with a form of its own.
    Text(&'static Shape),
    /// One, or a list of them.
    OneOrMany(&'static Kind),
    /// A list.
    Many(&'static Kind),
    /// `{ name = "value" }`, any names.
    Map(&'static Shape, &'static Shape),
    /// A table.
    Table(&'static Table),
    /// A table, or `"off"`.
    TableOrOff(&'static Table),
    /// A table, or `true` for one with every default; `false` says the same as nothing.
    TableOrTrue(&'static Table),
    /// A table, or a text that stands for the table with only this key.
    TableOrText(&'static Table, &'static str),
    /// `[[…]]`
    Tables(&'static Table),
    /// `[….NAME]`
    NamedTables(&'static Table),
    /// Never read, because it is not built.
    Unread(&'static str),
}

impl Table {
    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

impl Key {
    const fn new(name: &'static str, kind: Kind, doc: &'static str) -> Self {
        Self {
            name,
            kind,
            doc,
            default: "",
            required: false,
            restart: false,
            only: Only::Any,
            built: Built::Yes,
            also: &[],
        }
    }

    const fn default(mut self, words: &'static str) -> Self {
        self.default = words;
        self
    }

    const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    const fn restart(mut self) -> Self {
        self.restart = true;
        self
    }

    const fn http(mut self) -> Self {
        self.only = Only::Http;
        self
    }

    const fn stream(mut self) -> Self {
        self.only = Only::Stream;
        self
    }

    const fn tcp(mut self) -> Self {
        self.only = Only::Tcp;
        self
    }

    const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }

    const fn not_built(mut self, fine: &'static [&'static str]) -> Self {
        self.built = Built::Not(fine);
        self
    }
}

impl Kind {
    /// What it takes, for people: "a duration such as `"30s"`".
    pub fn expected(&self) -> String {
        match self {
            Kind::Bool(_) => "`true` or `false`".to_owned(),
            Kind::Duration(_) => "a duration such as `\"30s\"`".to_owned(),
            Kind::Size(_) => "a size such as `\"64KiB\"`".to_owned(),
            Kind::Rate(_) => "bytes per second such as `\"100B/s\"`".to_owned(),
            Kind::Count(_) => "a whole number".to_owned(),
            Kind::Factor(_) => "a number".to_owned(),
            Kind::Word(words, _) => {
                let words = words.iter().filter(|word| word.built);
                either(&words.map(|word| format!("`\"{}\"`", word.word)).collect::<Vec<_>>())
            }
            Kind::Choice(numbers, _) => {
                either(&numbers.iter().map(|number| format!("`{number}`")).collect::<Vec<_>>())
            }
            Kind::Algorithm => "the name of an algorithm such as `\"round-robin\"`".to_owned(),
            Kind::Text(shape) => format!("{} such as `\"{}\"`", shape.name, shape.example),
            Kind::OneOrMany(kind) => format!("{}, or a list of them", kind.expected()),
            Kind::Many(kind) => format!("a list; each {}", kind.expected()),
            Kind::Map(names, values) => {
                format!("a table such as `{{ {} = \"{}\" }}`", names.example, values.example)
            }
            Kind::Table(table) => format!("a table with {}", table.key_names()),
            Kind::TableOrOff(table) => format!("a table with {}, or `\"off\"`", table.key_names()),
            Kind::TableOrTrue(table) => format!("`true`, or a table with {}", table.key_names()),
            Kind::TableOrText(table, key) => {
                let text = table.key(key).map_or_else(String::new, |key| key.kind.expected());
                format!("{text}, or a table with {}", table.key_names())
            }
            Kind::Tables(table) | Kind::NamedTables(table) => format!("a table, written `{}`", table.path),
            Kind::Unread(what) => (*what).to_owned(),
        }
    }

    /// A value that would be taken, as written in the file.
    pub fn example(&self) -> String {
        match self {
            Kind::Text(shape) => format!("\"{}\"", shape.example),
            Kind::OneOrMany(kind) => kind.example(),
            Kind::Many(kind) => format!("[{}]", kind.example()),
            Kind::TableOrText(table, key) => {
                table.key(key).map_or_else(String::new, |key| key.kind.example())
            }
            other => other.default_text().unwrap_or_else(|| "…".to_owned()),
        }
    }

    /// The default as written in the file; `None` when there is no fixed one.
    pub fn default_text(&self) -> Option<String> {
        match self {
            Kind::Bool(default) => Some(default.to_string()),
            Kind::Duration(limit) => {
                limit.default.map(|value| format!("\"{}\"", units::show_duration(value)))
            }
            Kind::Size(limit) => limit.default.map(|value| format!("\"{}\"", units::show_size(value))),
            Kind::Rate(limit) => limit.default.map(|value| format!("\"{}\"", units::show_byte_rate(value))),
            Kind::Count(limit) => limit.default.map(|value| value.to_string()),
            Kind::Factor(limit) => limit.default.map(|value| format!("{value:?}")),
            Kind::Word(_, default) => default.map(|word| format!("\"{word}\"")),
            Kind::Choice(_, default) => Some(default.to_string()),
            _ => None,
        }
    }

    /// Bounds and their reason, for the reference page.
    pub fn bounds(&self) -> Option<(String, String, &'static str)> {
        match self {
            Kind::Duration(l) => {
                Some((units::show_duration(l.least), units::show_duration(l.most), l.reason))
            }
            Kind::Size(l) => Some((units::show_size(l.least), units::show_size(l.most), l.reason)),
            Kind::Rate(l) => Some((units::show_byte_rate(l.least), units::show_byte_rate(l.most), l.reason)),
            Kind::Count(l) => Some((l.least.to_string(), l.most.to_string(), l.reason)),
            Kind::Factor(l) => Some((format!("{:?}", l.least), format!("{:?}", l.most), l.reason)),
            _ => None,
        }
    }
}

impl Table {
    fn key_names(&self) -> String {
        let names =
            self.keys.iter().filter(|key| key.built == Built::Yes).map(|key| format!("`{}`", key.name));
        names.collect::<Vec<_>>().join(", ")
    }
}

/// The headers of all tables that have a key of this name.
pub fn tables_with(name: &str) -> Vec<&'static str> {
    all_tables().into_iter().filter(|table| table.key(name).is_some()).map(|table| table.path).collect()
}

/// Every table, each before those below it.
pub fn all_tables() -> Vec<&'static Table> {
    fn visit(table: &'static Table, found: &mut Vec<&'static Table>) {
        found.push(table);
        for key in table.keys {
            if let Some(below) = key.kind.table() {
                visit(below, found);
            }
        }
    }
    let mut found = Vec::new();
    visit(&ROOT, &mut found);
    found
}

impl Kind {
    /// The table that a value of this kind is or may be.
    pub fn table(&self) -> Option<&'static Table> {
        match self {
            Kind::Table(table)
            | Kind::TableOrOff(table)
            | Kind::TableOrTrue(table)
            | Kind::TableOrText(table, _)
            | Kind::Tables(table)
            | Kind::NamedTables(table) => Some(table),
            Kind::Many(kind) | Kind::OneOrMany(kind) => kind.table(),
            _ => None,
        }
    }
}
