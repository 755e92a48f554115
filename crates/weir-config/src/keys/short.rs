//! Short constructors of keys for the tables of keys.

use std::time::Duration;

use super::{Each, Key, Kind, Limit, Shape, Table, Word};

/// `true` or `false`.
pub const fn flag(default: bool) -> Key {
    Key::new(Kind::Bool(default))
}

/// `true` or `false`; absence has a meaning of its own.
pub const fn yes_or_no() -> Key {
    Key::new(Kind::YesOrNo)
}

/// A duration.
pub const fn duration(limit: Limit<Duration>) -> Key {
    Key::new(Kind::Duration(limit))
}

/// A duration, or `"off"`.
pub const fn timer(limit: Limit<Duration>) -> Key {
    Key::new(Kind::DurationOrOff(limit, false))
}

/// A duration that is off by default.
pub const fn timer_off(limit: Limit<Duration>) -> Key {
    Key::new(Kind::DurationOrOff(limit, true))
}

/// A size in bytes.
pub const fn size(limit: Limit<u64>) -> Key {
    Key::new(Kind::Size(limit))
}

/// Bytes per second.
pub const fn byte_rate(limit: Limit<u64>) -> Key {
    Key::new(Kind::Rate(limit))
}

/// A whole number.
pub const fn count(limit: Limit<u64>) -> Key {
    Key::new(Kind::Count(limit))
}

/// A decimal number.
pub const fn factor(limit: Limit<f64>) -> Key {
    Key::new(Kind::Factor(limit))
}

/// One of a closed set, with a default.
pub const fn word(words: &'static [Word], default: &'static str) -> Key {
    Key::new(Kind::Word(words, Some(default)))
}

/// A text with a syntax of its own.
pub const fn text(shape: &'static Shape) -> Key {
    Key::new(Kind::Text(shape, None))
}

/// A text with a syntax of its own, and its default.
pub const fn text_or(shape: &'static Shape, default: &'static str) -> Key {
    Key::new(Kind::Text(shape, Some(default)))
}

/// One element, or a list of them.
pub const fn list(of: Each) -> Key {
    Key::new(Kind::OneOrMany(of, &[]))
}

/// One element, or a list of them, and the default.
pub const fn list_or(of: Each, default: &'static [&'static str]) -> Key {
    Key::new(Kind::OneOrMany(of, default))
}

/// `{ name = "value" }`
pub const fn map(names: &'static Shape, values: &'static Shape) -> Key {
    Key::new(Kind::Map(names, values))
}

/// A table, or `true` for one with every default; `false` means the same as absence.
pub const fn table_or_true(table: &'static Table) -> Key {
    Key::new(Kind::TableOrTrue(table)).brief()
}

/// A table.
pub const fn table(table: &'static Table) -> Key {
    Key::new(Kind::Table(table))
}
