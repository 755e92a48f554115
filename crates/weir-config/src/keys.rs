//! What a key of `weir.toml` is. The reader, the writer, the suggestions for misspelt names, the marks of a
//! reload and the reference page all go by [`Table`]s of [`Key`]s; a key that is in none of them does not
//! exist.
//!
//! The tables themselves stand with their subjects: `[runtime]` in `runtime.rs`, `[pool.NAME]` in `pool.rs`.

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
    /// As written in a header, such as `[pool.NAME.health]`, or in line: `queue = { … }`.
    pub path: &'static str,
    /// What it is for, in a sentence or two.
    pub doc: &'static str,
    /// Its keys, in the order in which the reference page and the effective config list them.
    pub rows: &'static [Row],
}

/// A key of a table, or those of a part that several tables have.
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
    /// As written.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What it does, in a sentence.
    pub doc: &'static str,
    /// The default in words, where the fixed one of the kind does not say it.
    pub default: &'static str,
    /// A file without it is refused.
    pub required: bool,
    /// A change takes force only after a restart (or USR2).
    pub restart: bool,
    /// Which listeners it means something to.
    pub only: Only,
    /// On which planes it means something.
    pub planes: Planes,
    /// Whether this version does it; a key that it does not do is refused.
    pub built: bool,
    /// What other programs call it.
    pub also: &'static [&'static str],
    /// Words that are right elsewhere, and what to say to whoever writes them here.
    pub instead: &'static [(&'static [&'static str], &'static str)],
    /// Stands before those that are not, as people write it.
    pub first: bool,
    /// Values may prove who somebody is, so they are shown to nobody.
    pub secret: bool,
    /// Where a route does not have it, it is as its listener has it; the effective config has it where it is
    /// not.
    pub inherited: bool,
    /// The effective config has it only where it differs from what would hold without it.
    pub brief: bool,
    /// A list from a file without an element says the same as no list.
    pub may_be_empty: bool,
}

/// A word that a key takes.
#[derive(Debug)]
pub struct Word {
    /// As written.
    pub word: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// What other programs call it.
    pub also: &'static [&'static str],
}

/// Default and inclusive bounds of a value.
#[derive(Clone, Copy, Debug)]
pub struct Limit<T> {
    /// What holds when the key is absent; `None` when absence itself means something (no limit, or computed).
    pub default: Option<T>,
    /// Smallest value that is taken.
    pub least: T,
    /// Largest value that is taken.
    pub most: T,
    /// Why these bounds.
    pub reason: &'static str,
}

/// A text with a form of its own: an address, a pattern, a header value.
pub struct Shape {
    /// What it is, with its article: "a network".
    pub name: &'static str,
    /// One that is right.
    pub example: &'static str,
    /// A bare number is read as its digits: a port, a status.
    pub takes_numbers: bool,
    /// A `$` begins a variable, or is written twice.
    pub has_variables: bool,
    /// Signs at its ends have it stand for more than itself (`*`, `~`, `!`).
    pub is_pattern: bool,
    /// In a list, `"@file:PATH"` stands for the lines of a file.
    pub from_files: bool,
    /// Checks a text and gives its normal form.
    pub read: fn(&str) -> Result<String, Refused>,
    /// The normal form as the file has it: what [`Self::read`] takes.
    pub written: fn(&str) -> String,
}

/// What a key takes.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool(bool),
    /// `true` or `false`; absence means something of its own.
    YesOrNo,
    /// `true` or `false`, or one of a closed set; and the default, which is none of these.
    BoolOrWord(bool, &'static [Word]),
    /// A duration.
    Duration(Limit<Duration>),
    /// A duration, or `"off"` for one that never ends; and whether it is off where the file says nothing.
    DurationOrOff(Limit<Duration>, bool),
    /// A size in bytes.
    Size(Limit<u64>),
    /// Bytes per second.
    Rate(Limit<u64>),
    /// A whole number.
    Count(Limit<u64>),
    /// A number.
    Factor(Limit<f64>),
    /// One of a closed set; and the default.
    Word(&'static [Word], Option<&'static str>),
    /// One of a few whole numbers; and the default.
    Choice(&'static [u16], u16),
    /// A text with a form of its own; and the default.
    Text(&'static Shape, Option<&'static str>),
    /// One, or a list of them; and the default.
    OneOrMany(Each, &'static [&'static str]),
    /// A list.
    Many(Each),
    /// `{ name = "value" }`, any names.
    Map(&'static Shape, &'static Shape),
    /// A table.
    Table(&'static Table),
    /// A table, or `"off"`; a table with every default where it is absent.
    TableOrOff(&'static Table),
    /// A table, or `true` for one with every default; `false` says the same as nothing.
    TableOrTrue(&'static Table),
    /// A table, or a text that stands for the table with only this key.
    TableOrText(&'static Table, &'static str),
    /// `[[…]]`
    Tables(&'static Table),
    /// `[….NAME]`
    NamedTables(&'static Table),
}

/// What each element of a list is.
#[derive(Clone, Copy, Debug)]
pub enum Each {
    /// One of a closed set.
    Word(&'static [Word]),
    /// A text with a form of its own.
    Text(&'static Shape),
    /// A table.
    Table(&'static Table),
    /// A table, or a text that stands for the table with only this key.
    TableOrText(&'static Table, &'static str),
}

impl Each {
    /// What a key of that takes.
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
    /// A default, and from least to most.
    pub const fn new(default: T, least: T, most: T, reason: &'static str) -> Self {
        Self { default: Some(default), least, most, reason }
    }

    /// From least to most; absence means something of its own.
    pub const fn optional(least: T, most: T, reason: &'static str) -> Self {
        Self { default: None, least, most, reason }
    }
}

impl Shape {
    /// A text that is written as it is read.
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

    /// A `$` begins a variable.
    pub const fn with_variables(mut self) -> Self {
        self.has_variables = true;
        self
    }

    /// What is compared with, in which signs at the ends mean something.
    pub const fn with_signs(mut self) -> Self {
        self.is_pattern = true;
        self
    }

    /// In a list, `"@file:PATH"` stands for the lines of a file.
    pub const fn from_files(mut self) -> Self {
        self.from_files = true;
        self
    }

    /// Takes bare numbers, too.
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
    /// A word and what it means.
    pub const fn new(word: &'static str, doc: &'static str) -> Self {
        Self { word, doc, also: &[] }
    }

    /// What other programs call it.
    pub const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }
}

impl Key {
    /// A key that takes this. Its name and its text follow by [`Self::named`].
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

    /// The name and what it does.
    pub const fn named(mut self, name: &'static str, doc: &'static str) -> Self {
        self.name = name;
        self.doc = doc;
        self
    }

    /// The default in words.
    pub const fn default(mut self, words: &'static str) -> Self {
        self.default = words;
        self
    }

    /// A file without it is refused.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// A change waits for a restart.
    pub const fn restart(mut self) -> Self {
        self.restart = true;
        self
    }

    /// For HTTP only.
    pub const fn http(mut self) -> Self {
        self.only = Only::Http;
        self
    }

    /// For HTTP, TCP and MySQL: connections.
    pub const fn stream(mut self) -> Self {
        self.only = Only::Stream;
        self
    }

    /// For HTTP and TCP, which have routes.
    pub const fn routed(mut self) -> Self {
        self.only = Only::Routed;
        self
    }

    /// For HTTP and MySQL, whose connections to backends are kept for others.
    pub const fn kept(mut self) -> Self {
        self.only = Only::Kept;
        self
    }

    /// For MySQL only.
    pub const fn mysql(mut self) -> Self {
        self.only = Only::Mysql;
        self
    }

    /// Known, and refused: this version does not do it yet.
    pub const fn not_built(mut self) -> Self {
        self.built = false;
        self
    }

    /// For TCP only.
    pub const fn tcp(mut self) -> Self {
        self.only = Only::Tcp;
        self
    }

    /// For UDP only.
    pub const fn udp(mut self) -> Self {
        self.only = Only::Udp;
        self
    }

    /// For TCP and UDP.
    pub const fn transport(mut self) -> Self {
        self.only = Only::Transport;
        self
    }

    /// For this plane only.
    pub const fn on(mut self, planes: Planes) -> Self {
        self.planes = planes;
        self
    }

    /// What other programs call it.
    pub const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }

    /// Words that are right elsewhere, and what to say to whoever writes them here.
    pub const fn instead(mut self, words: &'static [(&'static [&'static str], &'static str)]) -> Self {
        self.instead = words;
        self
    }

    /// Stands before those that are not first.
    pub const fn first(mut self) -> Self {
        self.first = true;
        self
    }

    /// Its values are shown to nobody.
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Where a route does not have it, it is as its listener has it.
    pub const fn inherited(mut self) -> Self {
        self.inherited = true;
        self
    }

    /// A list from a file without an element says the same as no list.
    pub const fn may_be_empty(mut self) -> Self {
        self.may_be_empty = true;
        self
    }

    /// The effective config has it only where it differs from what would hold without it.
    pub const fn brief(mut self) -> Self {
        self.brief = true;
        self
    }
}

impl Table {
    /// Its keys, those of its parts among them, in the order of the reference page.
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

    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        fn find(rows: &'static [Row], name: &str) -> Option<&'static Key> {
            rows.iter().find_map(|row| match row {
                Row::Key(key) => (key.name == name).then_some(key),
                Row::Part(rows) => find(rows, name),
            })
        }
        find(self.rows, name)
    }

    /// Whether it is written below a header of its own.
    pub fn has_header(&self) -> bool {
        self.path.starts_with('[')
    }

    fn key_names(&self) -> String {
        self.keys().iter().map(|key| format!("`{}`", key.name)).collect::<Vec<_>>().join(", ")
    }

    /// Itself and every table below it, each before those below it.
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
    /// What it takes, for people: "a duration such as `"30s"`".
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
