//! The description of every key of `weir.toml`. The reader, the writer, the suggestions for misspelt names,
//! the restart marks of a reload and the reference page are all driven by [`Table`]s of [`Key`]s; a key that
//! is in none of them does not exist.
//!
//! The tables themselves are next to their subjects: `[runtime]` in `runtime.rs`, `[pool.NAME]` in `pool.rs`.

mod audience;
mod short;

use std::time::Duration;

pub use self::audience::{Only, Planes};
pub use self::short::*;
use crate::suggest::either;
use crate::units::Refused;

/// A table of the file.
#[derive(Debug)]
pub struct Table {
    /// As written in a header, such as `[pool.NAME.health]`, or inline: `queue = { … }`.
    pub path: &'static str,
    /// What it is for, in a sentence or two.
    pub doc: &'static str,
    /// Its keys, in the order in which the reference page and the effective config list them.
    pub rows: &'static [Row],
}

/// A key of a table, or the keys of a part that several tables share.
#[derive(Debug)]
pub enum Row {
    /// One key.
    Key(Key),
    /// The keys of a part.
    Part(&'static [Row]),
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// The name, as written.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// What it does, in a sentence.
    pub doc: &'static str,
    /// The default in words, if the kind has no fixed one.
    pub default: &'static str,
    /// Whether a file without it is refused.
    pub required: bool,
    /// Whether a change takes effect only after a restart (or USR2).
    pub restart: bool,
    /// The listeners for which it has an effect.
    pub only: Only,
    /// The planes on which it has an effect.
    pub planes: Planes,
    /// Whether this version implements it; otherwise the key is refused.
    pub built: bool,
    /// Its names in other programs.
    pub also: &'static [&'static str],
    /// Names that are right elsewhere, and the hint for an operator who writes them here.
    pub instead: &'static [(&'static [&'static str], &'static str)],
    /// Comes before keys without this mark, as people write it.
    pub first: bool,
    /// Values may be credentials, so they are never shown.
    pub secret: bool,
    /// A route without it inherits it from its listener; the effective config shows it only where they
    /// differ.
    pub inherited: bool,
    /// The effective config shows it only if it differs from what would apply without it.
    pub brief: bool,
    /// A list that is empty after reading its file means the same as no list.
    pub may_be_empty: bool,
}

/// A word that a key accepts.
#[derive(Debug)]
pub struct Word {
    /// As written.
    pub word: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// Its names in other programs.
    pub also: &'static [&'static str],
}

/// Default and inclusive bounds of a value.
#[derive(Clone, Copy, Debug)]
pub struct Limit<T> {
    /// The value if the key is absent; `None` if absence has a meaning of its own (no limit, or computed).
    pub default: Option<T>,
    /// Smallest accepted value.
    pub least: T,
    /// Largest accepted value.
    pub most: T,
    /// The reason for these bounds.
    pub reason: &'static str,
}

/// A kind of text with a syntax of its own: an address, a pattern, a header value.
pub struct Shape {
    /// Its name, with an article: "a network".
    pub name: &'static str,
    /// A valid example.
    pub example: &'static str,
    /// A bare number is accepted and read as its digits: a port, a status.
    pub takes_numbers: bool,
    /// `$` begins a variable, and a literal one is doubled.
    pub has_variables: bool,
    /// Special characters at its ends make it a pattern (`*`, `~`, `!`).
    pub is_pattern: bool,
    /// In a list, `"@file:PATH"` stands for the lines of a file.
    pub from_files: bool,
    /// Checks a text and returns its normal form.
    pub read: fn(&str) -> Result<String, Refused>,
    /// Converts the normal form to the form in a file, which [`Self::read`] accepts.
    pub written: fn(&str) -> String,
}

/// The kind of a key's value.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool(bool),
    /// `true` or `false`; absence has a meaning of its own.
    YesOrNo,
    /// `true` or `false`, or one of a closed set of words; and the default, which is a boolean.
    BoolOrWord(bool, &'static [Word]),
    /// A duration.
    Duration(Limit<Duration>),
    /// A duration, or `"off"` for one that never ends; and whether it is off by default.
    DurationOrOff(Limit<Duration>, bool),
    /// A size in bytes.
    Size(Limit<u64>),
    /// Bytes per second.
    Rate(Limit<u64>),
    /// A whole number.
    Count(Limit<u64>),
    /// A decimal number.
    Factor(Limit<f64>),
    /// One of a closed set of words; and the default.
    Word(&'static [Word], Option<&'static str>),
    /// One of a few whole numbers; and the default.
    Choice(&'static [u16], u16),
    /// A text with a syntax of its own; and the default.
    Text(&'static Shape, Option<&'static str>),
    /// One element, or a list of them; and the default.
    OneOrMany(Each, &'static [&'static str]),
    /// A list.
    Many(Each),
    /// `{ name = "value" }`, with any names.
    Map(&'static Shape, &'static Shape),
    /// A table.
    Table(&'static Table),
    /// A table, or `"off"`; if absent, a table with every default.
    TableOrOff(&'static Table),
    /// A table, or `true` for one with every default; `false` means the same as absence.
    TableOrTrue(&'static Table),
    /// A table, or a text that means a table with only this key.
    TableOrText(&'static Table, &'static str),
    /// `[[…]]`
    Tables(&'static Table),
    /// `[….NAME]`
    NamedTables(&'static Table),
}

/// The kind of each element of a list.
#[derive(Clone, Copy, Debug)]
pub enum Each {
    /// One of a closed set of words.
    Word(&'static [Word]),
    /// A text with a syntax of its own.
    Text(&'static Shape),
    /// A table.
    Table(&'static Table),
    /// A table, or a text that means a table with only this key.
    TableOrText(&'static Table, &'static str),
}

impl Each {
    /// The kind of a key with such elements.
    pub const fn kind(self) -> Kind {
        match self {
            Each::Word(words) => Kind::Word(words, None),
            Each::Text(shape) => Kind::Text(shape, None),
            Each::Table(table) => Kind::Table(table),
            Each::TableOrText(table, key) => Kind::TableOrText(table, key),
        }
    }
}

/// Hours of a day and the like, for the bounds of the tables.
pub const HOUR: Duration = seconds(3600);
/// 24 hours.
pub const DAY: Duration = seconds(86_400);
/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 GiB.
pub const TIB: u64 = 1 << 40;

/// So many seconds.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// So many milliseconds.
pub const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl<T: Copy> Limit<T> {
    /// A default, and bounds from least to most.
    pub const fn new(default: T, least: T, most: T, reason: &'static str) -> Self {
        Self { default: Some(default), least, most, reason }
    }

    /// Bounds from least to most; absence has a meaning of its own.
    pub const fn optional(least: T, most: T, reason: &'static str) -> Self {
        Self { default: None, least, most, reason }
    }
}

impl Shape {
    /// A text whose written form is its normal form.
    pub const fn new(
        name: &'static str,
        example: &'static str,
        read: fn(&str) -> Result<String, Refused>,
    ) -> Self {
        Self {
            name,
            example,
            takes_numbers: false,
            has_variables: false,
            is_pattern: false,
            from_files: false,
            read,
            written: str::to_owned,
        }
    }

    /// Marks that `$` begins a variable.
    pub const fn with_variables(mut self) -> Self {
        self.has_variables = true;
        self
    }

    /// Marks a pattern, with special characters at the ends.
    pub const fn with_signs(mut self) -> Self {
        self.is_pattern = true;
        self
    }

    /// Marks that in a list, `"@file:PATH"` stands for the lines of a file.
    pub const fn from_files(mut self) -> Self {
        self.from_files = true;
        self
    }

    /// Marks that bare numbers are accepted, too.
    pub const fn or_number(mut self) -> Self {
        self.takes_numbers = true;
        self
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Word {
    /// A word and its meaning.
    pub const fn new(word: &'static str, doc: &'static str) -> Self {
        Self { word, doc, also: &[] }
    }

    /// Sets its names in other programs.
    pub const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }
}

impl Key {
    /// A key of this kind. [`Self::named`] adds its name and its text.
    pub const fn new(kind: Kind) -> Self {
        Self {
            name: "",
            kind,
            doc: "",
            default: "",
            required: false,
            restart: false,
            only: Only::Any,
            planes: Planes::All,
            built: true,
            also: &[],
            instead: &[],
            first: false,
            secret: false,
            inherited: false,
            brief: false,
            may_be_empty: false,
        }
    }

    /// Sets the name and the text.
    pub const fn named(mut self, name: &'static str, doc: &'static str) -> Self {
        self.name = name;
        self.doc = doc;
        self
    }

    /// Sets the default in words.
    pub const fn default(mut self, words: &'static str) -> Self {
        self.default = words;
        self
    }

    /// Marks that a file without it is refused.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Marks that a change needs a restart.
    pub const fn restart(mut self) -> Self {
        self.restart = true;
        self
    }

    /// Limits it to HTTP.
    pub const fn http(mut self) -> Self {
        self.only = Only::Http;
        self
    }

    /// Limits it to HTTP, TCP and MySQL: connections.
    pub const fn stream(mut self) -> Self {
        self.only = Only::Stream;
        self
    }

    /// Limits it to HTTP and TCP, which have routes.
    pub const fn routed(mut self) -> Self {
        self.only = Only::Routed;
        self
    }

    /// Limits it to HTTP and MySQL, whose connections to backends are reused.
    pub const fn kept(mut self) -> Self {
        self.only = Only::Kept;
        self
    }

    /// Limits it to MySQL.
    pub const fn mysql(mut self) -> Self {
        self.only = Only::Mysql;
        self
    }

    /// Marks it as known but refused: this version does not implement it yet.
    pub const fn not_built(mut self) -> Self {
        self.built = false;
        self
    }

    /// Limits it to TCP.
    pub const fn tcp(mut self) -> Self {
        self.only = Only::Tcp;
        self
    }

    /// Limits it to UDP.
    pub const fn udp(mut self) -> Self {
        self.only = Only::Udp;
        self
    }

    /// Limits it to TCP and UDP.
    pub const fn transport(mut self) -> Self {
        self.only = Only::Transport;
        self
    }

    /// Limits it to these planes.
    pub const fn on(mut self, planes: Planes) -> Self {
        self.planes = planes;
        self
    }

    /// Sets its names in other programs.
    pub const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }

    /// Sets names that are right elsewhere, and the hint for an operator who writes them here.
    pub const fn instead(mut self, words: &'static [(&'static [&'static str], &'static str)]) -> Self {
        self.instead = words;
        self
    }

    /// Marks that it comes before keys without this mark.
    pub const fn first(mut self) -> Self {
        self.first = true;
        self
    }

    /// Marks that its values are never shown.
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Marks that a route without it inherits it from its listener.
    pub const fn inherited(mut self) -> Self {
        self.inherited = true;
        self
    }

    /// Marks that a list that is empty after reading its file means the same as no list.
    pub const fn may_be_empty(mut self) -> Self {
        self.may_be_empty = true;
        self
    }

    /// Marks that the effective config shows it only if it differs from what would apply without it.
    pub const fn brief(mut self) -> Self {
        self.brief = true;
        self
    }
}

impl Table {
    /// Its keys, including those of its parts, in the order of the reference page.
    pub fn keys(&self) -> Vec<&'static Key> {
        fn collect(rows: &'static [Row], keys: &mut Vec<&'static Key>) {
            for row in rows {
                match row {
                    Row::Key(key) => keys.push(key),
                    Row::Part(rows) => collect(rows, keys),
                }
            }
        }
        let mut keys = Vec::new();
        collect(self.rows, &mut keys);
        keys.sort_by_key(|key| !key.first);
        keys
    }

    /// The key with this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        fn find(rows: &'static [Row], name: &str) -> Option<&'static Key> {
            rows.iter().find_map(|row| match row {
                Row::Key(key) => (key.name == name).then_some(key),
                Row::Part(rows) => find(rows, name),
            })
        }
        find(self.rows, name)
    }

    /// Whether it is written under a header of its own.
    pub fn has_header(&self) -> bool {
        self.path.starts_with('[')
    }

    fn key_names(&self) -> String {
        self.keys().iter().map(|key| format!("`{}`", key.name)).collect::<Vec<_>>().join(", ")
    }

    /// This table and all its subtables, each before its own subtables.
    pub fn with_all_below(&'static self) -> Vec<&'static Table> {
        fn visit(table: &'static Table, found: &mut Vec<&'static Table>) {
            found.push(table);
            for below in table.keys().into_iter().filter_map(|key| key.kind.table()) {
                visit(below, found);
            }
        }
        let mut found = Vec::new();
        visit(self, &mut found);
        found
    }
}

impl Kind {
    /// A description of the accepted values: "a duration such as `"30s"`".
    pub fn expected(&self) -> String {
        match self {
            Kind::Bool(_) | Kind::YesOrNo => "`true` or `false`".to_owned(),
            Kind::BoolOrWord(_, words) => {
                let words = words.iter().map(|word| format!("`\"{}\"`", word.word));
                either(
                    &["`true`".to_owned(), "`false`".to_owned()].into_iter().chain(words).collect::<Vec<_>>(),
                )
            }
            Kind::Duration(_) => "a duration such as `\"30s\"`".to_owned(),
            Kind::DurationOrOff(..) => "a duration such as `\"30s\"`, or `\"off\"`".to_owned(),
            Kind::Size(_) => "a size such as `\"64KiB\"`".to_owned(),
            Kind::Rate(_) => "bytes per second such as `\"100B/s\"`".to_owned(),
            Kind::Count(_) => "a whole number".to_owned(),
            Kind::Factor(_) => "a number".to_owned(),
            Kind::Word(words, _) => {
                either(&words.iter().map(|word| format!("`\"{}\"`", word.word)).collect::<Vec<_>>())
            }
            Kind::Choice(numbers, _) => {
                either(&numbers.iter().map(|number| format!("`{number}`")).collect::<Vec<_>>())
            }
            Kind::Text(shape, _) => format!("{} such as `\"{}\"`", shape.name, shape.example),
            Kind::OneOrMany(each, _) => format!("{}, or a list of them", each.kind().expected()),
            Kind::Many(each) => format!("a list; each {}", each.kind().expected()),
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
        }
    }

    /// The table that a value of this kind is or may be.
    pub fn table(&self) -> Option<&'static Table> {
        match self {
            Kind::Table(table)
            | Kind::TableOrOff(table)
            | Kind::TableOrTrue(table)
            | Kind::TableOrText(table, _)
            | Kind::Tables(table)
            | Kind::NamedTables(table) => Some(table),
            Kind::Many(each) | Kind::OneOrMany(each, _) => each.kind().table(),
            _ => None,
        }
    }
}
