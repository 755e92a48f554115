//! Converts tables of the file to structs and back, and defines the two macros that declare both at once.
//!
//! [`table!`] declares a struct with one field per key: the field's type determines how the value is read and
//! written, its doc comment is the text in the reference, and the expression after the `=` describes the
//! accepted values and the default. [`words!`] declares an enum whose variants are words of the file.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::fields::{Fields, KeyValue, Value};
use crate::keys::{Row, Table};
use crate::report::Span;
use crate::timeout;
use crate::values::address::{UNIX_PEERS, UNIX_PEERS_WORD};

/// A type that represents one value of the file.
pub(crate) trait One: Sized {
    /// `None` for a value of another kind, which the key's kind rules out.
    fn of(value: &Value) -> Option<Self>;
    /// The value that reads back as this.
    fn value(&self) -> Value;
    /// The placeholder for a value that is absent or could not be read. The file is then refused, unless
    /// absence means this value.
    fn blank() -> Self;
}

/// The type of a key's field.
pub(crate) trait Setting: Sized {
    /// Converts the effective value of the key; `None` if there is none.
    fn read(value: Option<&Value>) -> Self;
    /// `None` if the key is to be left out.
    fn write(&self) -> Option<Value>;
}

impl<T: One> Setting for T {
    fn read(value: Option<&Value>) -> T {
        value.and_then(T::of).unwrap_or_else(T::blank)
    }

    fn write(&self) -> Option<Value> {
        Some(self.value())
    }
}

impl<T: One> Setting for Option<T> {
    fn read(value: Option<&Value>) -> Option<T> {
        value.and_then(T::of)
    }

    fn write(&self) -> Option<Value> {
        self.as_ref().map(T::value)
    }
}

impl<T: One> Setting for Vec<T> {
    fn read(value: Option<&Value>) -> Vec<T> {
        match value {
            Some(Value::List(list)) => list.iter().filter_map(|(_, value)| T::of(value)).collect(),
            _ => Vec::new(),
        }
    }

    fn write(&self) -> Option<Value> {
        let list = || self.iter().map(|one| (Span::default(), one.value())).collect();
        (!self.is_empty()).then(|| Value::List(list()))
    }
}

impl Setting for BTreeMap<String, String> {
    fn read(value: Option<&Value>) -> BTreeMap<String, String> {
        let Some(Value::Map(entries)) = value else { return BTreeMap::new() };
        let texts = entries.iter().filter_map(|entry| match &entry.value {
            Value::Text(text) => Some((entry.name.clone(), text.clone())),
            _ => None,
        });
        texts.collect()
    }

    fn write(&self) -> Option<Value> {
        let entry = |(name, text): (&String, &String)| {
            KeyValue::new(name, Span::default(), Span::default(), Value::Text(text.clone()))
        };
        (!self.is_empty()).then(|| Value::Map(self.iter().map(entry).collect()))
    }
}

/// A struct with keys of a table: all of them, or a part that several tables share.
pub(crate) trait Part: Sized {
    /// The purpose of the keys.
    const DOC: &'static str = "";
    const ROWS: &'static [Row];
    fn of(fields: &Fields) -> Self;
    fn put(&self, fields: &mut Fields);
}

/// A struct for a whole table.
pub(crate) trait Section: Part {
    const TABLE: &'static Table;

    /// The table with every key that has an effect.
    fn fields(&self) -> Fields {
        let mut fields = Fields::new(Self::TABLE, Span::default());
        self.put(&mut fields);
        fields
    }
}

impl<T: Section> One for T {
    fn of(value: &Value) -> Option<T> {
        match value {
            Value::Table(fields) => Some(<T as Part>::of(fields)),
            _ => None,
        }
    }

    fn value(&self) -> Value {
        Value::Table(self.fields())
    }

    fn blank() -> T {
        <T as Part>::of(&Fields::new(T::TABLE, Span::default()))
    }
}

/// Declares how values of a type are read and written.
macro_rules! one {
    ($Type:ty, $pattern:pat => $of:expr, |$it:ident| $value:expr, $blank:expr) => {
        impl $crate::setting::One for $Type {
            fn of(value: &$crate::fields::Value) -> Option<Self> {
                match value {
                    $pattern => $of,
                    _ => None,
                }
            }

            fn value(&self) -> $crate::fields::Value {
                let $it = self;
                $value
            }

            fn blank() -> Self {
                $blank
            }
        }
    };
}
pub(crate) use one;

one!(bool, Value::Bool(value) => Some(*value), |it| Value::Bool(*it), false);
one!(
    Duration,
    value @ (Value::Duration(_) | Value::Off) => timeout::read(value),
    |it| timeout::written(*it),
    Duration::ZERO
);
one!(u64, Value::Number(value) => Some(*value), |it| Value::Number(*it), 0);
one!(u32, Value::Number(value) => u32::try_from(*value).ok(), |it| Value::Number(u64::from(*it)), 0);
one!(u16, Value::Number(value) => u16::try_from(*value).ok(), |it| Value::Number(u64::from(*it)), 0);
one!(u8, Value::Number(value) => u8::try_from(*value).ok(), |it| Value::Number(u64::from(*it)), 0);
one!(usize, Value::Number(value) => usize::try_from(*value).ok(), |it| Value::Number(*it as u64), 0);
one!(f64, Value::Factor(value) => Some(*value), |it| Value::Factor(*it), 0.0);
one!(String, Value::Text(text) => Some(text.clone()), |it| Value::Text(it.clone()), String::new());
one!(
    PathBuf,
    Value::Text(text) => Some(PathBuf::from(text)),
    |it| Value::Text(it.to_string_lossy().into_owned()),
    PathBuf::new()
);
one!(
    SocketAddr,
    Value::Text(text) => text.parse().ok(),
    |it| Value::Text(it.to_string()),
    SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
);
one!(
    IpNet,
    Value::Text(text) => if text == UNIX_PEERS_WORD { Some(UNIX_PEERS) } else { text.parse().ok() },
    |it| Value::Text(if *it == UNIX_PEERS { UNIX_PEERS_WORD.to_owned() } else { it.to_string() }),
    IpNet::from(std::net::IpAddr::from(Ipv4Addr::UNSPECIFIED))
);

/// Declares an enum whose variants are words of the file; the first is the default placeholder.
macro_rules! words {
    (
        $(#[doc = $doc:literal])+
        pub enum $Name:ident { $($variant:ident = $word:literal: $meaning:literal,)+ }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $Name {
            $(#[doc = $meaning] $variant,)+
        }

        impl $Name {
            /// All words, in the order of the reference page.
            pub const ALL: [$Name; [$($word),+].len()] = [$($Name::$variant),+];

            pub(crate) const WORDS: &[$crate::keys::Word] = &[
                $($crate::keys::Word::new($word, $meaning),)+
            ];

            /// As written in the file.
            pub const fn word(self) -> &'static str {
                match self {
                    $($Name::$variant => $word,)+
                }
            }

            /// The variant with this word.
            pub fn from_word(word: &str) -> Option<$Name> {
                $Name::ALL.into_iter().find(|one| one.word() == word)
            }
        }

        impl Default for $Name {
            fn default() -> $Name {
                $Name::ALL[0]
            }
        }

        $crate::setting::one!(
            $Name,
            $crate::fields::Value::Word(word) => $Name::from_word(word),
            |it| $crate::fields::Value::Word(it.word()),
            $Name::default()
        );
    };
}
pub(crate) use words;

/// The name of a key: that of its field, unless another is given.
macro_rules! key_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}
pub(crate) use key_name;

/// The row of a field: its key, or for a field without one the keys of its part.
macro_rules! field_row {
    ($Type:ty, $name:expr, $doc:expr, $key:expr) => {
        $crate::keys::Row::Key(($key).named($name, $doc))
    };
    ($Type:ty, $name:expr, $doc:expr,) => {
        $crate::keys::Row::Part(<$Type as $crate::setting::Part>::ROWS)
    };
}
pub(crate) use field_row;

/// Reads a field from a table.
macro_rules! read_field {
    ($fields:expr, $Type:ty, $name:expr, $key:expr) => {
        <$Type as $crate::setting::Setting>::read($fields.holds($name).as_deref())
    };
    ($fields:expr, $Type:ty, $name:expr,) => {
        <$Type as $crate::setting::Part>::of($fields)
    };
}
pub(crate) use read_field;

/// Writes a field into a table.
macro_rules! put_field {
    ($value:expr, $fields:expr, $name:expr, $key:expr) => {
        $fields.put($name, $crate::setting::Setting::write(&$value))
    };
    ($value:expr, $fields:expr, $name:expr,) => {
        $crate::setting::Part::put(&$value, $fields)
    };
}
pub(crate) use put_field;

/// Declares a struct and its table in the file, or without a path a part that several tables share. A field
/// without a key is a part. `(name)` after the struct's name adds a field for the NAME of the table; `settled
/// by` names a function that is applied to a struct after reading.
macro_rules! table {
    (
        $(#[doc = $doc:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $Name:ident $(($named:ident))? $(at $path:literal)? $(settled by $settle:path)? {
            $(
                $(#[doc = $field_doc:literal])+
                $field:ident $(as $key_name:literal)?: $Type:ty $(= $key:expr)?;
            )*
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq $($(, $derive)+)?)]
        pub struct $Name {
            $(
                /// The NAME of the table.
                pub $named: String,
            )?
            $($(#[doc = $field_doc])+ pub $field: $Type,)*
        }

        impl $crate::setting::Part for $Name {
            const DOC: &'static str = concat!($($doc),+).trim_ascii();
            const ROWS: &'static [$crate::keys::Row] = &[
                $($crate::setting::field_row!(
                    $Type,
                    $crate::setting::key_name!($field $($key_name)?),
                    concat!($($field_doc),+).trim_ascii(),
                    $($key)?
                ),)*
            ];

            fn of(fields: &$crate::fields::Fields) -> Self {
                let it = Self {
                    $($named: fields.name.clone(),)?
                    $($field: $crate::setting::read_field!(
                        fields,
                        $Type,
                        $crate::setting::key_name!($field $($key_name)?),
                        $($key)?
                    ),)*
                };
                $(let it = $settle(it);)?
                it
            }

            fn put(&self, fields: &mut $crate::fields::Fields) {
                $(fields.name.clone_from(&self.$named);)?
                $($crate::setting::put_field!(
                    self.$field,
                    fields,
                    $crate::setting::key_name!($field $($key_name)?),
                    $($key)?
                );)*
            }
        }

        $(
            impl $crate::setting::Section for $Name {
                const TABLE: &'static $crate::keys::Table = {
                    static TABLE: $crate::keys::Table = $crate::keys::Table {
                        path: $path,
                        doc: <$Name as $crate::setting::Part>::DOC,
                        rows: <$Name as $crate::setting::Part>::ROWS,
                    };
                    &TABLE
                };
            }

            impl Default for $Name {
                /// The values of an empty table.
                fn default() -> Self {
                    <Self as $crate::setting::One>::blank()
                }
            }
        )?
    };
}
pub(crate) use table;
