//! Reads a TOML table by the table of keys: every value is checked by itself, every mistake is reported, and
//! none is reported twice.
//!
//! A value that cannot be read becomes [`Value::Bad`], so that later steps know that the operator did set it,
//! and stay silent.

use std::time::Duration;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::config::ROOT;
use crate::fields::{Fields, KeyValue, Value};
use crate::given;
use crate::keys::{Each, Key, Kind, Limit, Shape, Table, Word};
use crate::listener::Listener;
use crate::pool::Pool;
use crate::report::{Findings, Span, quote};
use crate::route::Route;
use crate::setting::Section as _;
use crate::suggest::{nearest, one_of};
use crate::units::{self, Refused, refuse};
use crate::values;
use crate::write::{example, quoted};

/// The position of a table, for messages: `[listener.web]`.
#[derive(Clone)]
pub(crate) struct Context {
    /// `listener.web`
    path: String,
}

impl Context {
    pub fn root() -> Self {
        Self { path: String::new() }
    }

    fn below(&self, name: &str) -> Self {
        Self { path: if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) } }
    }

    /// The last part of the path.
    fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or("")
    }

    fn show(&self) -> String {
        if self.path.is_empty() { "the file".to_owned() } else { format!("`[{}]`", self.path) }
    }
}

/// Reads `table` by `schema`. `complete` is false when the file has syntax errors, so that a missing key may
/// be on a line that could not be read.
pub(crate) fn bind(
    table: &DeTable<'_>,
    at: Span,
    schema: &'static Table,
    context: &Context,
    complete: bool,
    findings: &mut Findings<'_>,
) -> Fields {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut fields = Fields::new(schema, at);
    for (key, value) in entries {
        let span = Span::from(key.span());
        let Some(known) = schema.key(key.get_ref()) else {
            fields.meant.extend(unknown_key(key.get_ref(), span, schema, context, findings));
            continue;
        };
        let at = value_span(value, span);
        let mut reader = Reader { context: context.below(known.name), complete, findings };
        let value = match known.built {
            true => reader.value(&known.kind, value, at, known),
            false => {
                let message = format!("`{}` is not built yet in this version", known.name);
                reader.findings.error(span, message, "leave it out");
                Value::Bad
            }
        };
        fields.entries.push(KeyValue::new(known.name, span, at, value));
    }
    if complete {
        let missing =
            |key: &Key| key.required && fields.get(key.name).is_none() && !fields.meant.contains(&key.name);
        for key in schema.keys().iter().filter(|key| missing(key)) {
            let hint = format!("expected `{} = {}`, for example", key.name, example(&key.kind));
            let inline = findings.source.slice(at).starts_with('{');
            let owner = if inline { format!("`{}`", context.name()) } else { context.show() };
            findings.error(at, format!("{owner} has no `{}`", key.name), hint);
        }
    }
    fields
}

/// The parser leaves an empty span for a missing value; the key's span replaces it.
fn value_span(value: &Spanned<DeValue<'_>>, key: Span) -> Span {
    match Span::from(value.span()) {
        span if span.end == 0 => key,
        span => span,
    }
}

/// Returns the key of the table that was probably meant.
fn unknown_key(
    name: &str,
    at: Span,
    schema: &'static Table,
    context: &Context,
    findings: &mut Findings<'_>,
) -> Option<&'static str> {
    let message = format!("{} is not a key of {}", quote(name), context.show());
    let keys = schema.keys();
    let known = || keys.iter().filter(|key| key.built).map(|key| key.name);
    let other = name.to_ascii_lowercase().replace('-', "_");
    let alias = keys.iter().find(|key| key.also.contains(&other.as_str()));
    let meant = alias.map(|key| key.name).or_else(|| nearest(name, keys.iter().map(|key| key.name)));
    let others: Vec<_> = tables_with(name).filter(|path| *path != schema.path).collect();
    let mains: Vec<_> = main_tables().into_iter().filter(|path| others.contains(path)).collect();
    let tables = || keys.iter().filter_map(|key| key.kind.table()).filter(|table| table.key(name).is_some());
    let needs_it = |table: &&Table| table.key(name).is_some_and(|key| key.required);
    let below = || tables().map(|table| table.path);
    let hint = match (meant, &others[..]) {
        // A key that exactly one nested table requires belongs there, even if a key of this table has a
        // similar name.
        _ if tables().filter(needs_it).count() == 1 => {
            format!("`{name}` belongs in {}", one_of(tables().filter(needs_it).map(|table| table.path)))
        }
        (Some(meant), _) => format!("did you mean `{meant}`?"),
        (None, [other]) => format!("`{name}` belongs in `{other}`"),
        // A listener key that belongs to routes or pools means that the operator has confused the two tables.
        (None, _) if main_tables().contains(&schema.path) && !mains.is_empty() => {
            let mut places: Vec<_> = below().filter(|path| !mains.contains(path)).collect();
            places.extend(mains);
            format!("`{name}` belongs in {}", one_of(places))
        }
        // If several tables have the key, it means something different in each.
        _ => format!("expected {}", one_of(known())),
    };
    findings.error(at, message, hint);
    meant
}

/// The headers of all tables that have a key of this name.
fn tables_with(name: &str) -> impl Iterator<Item = &'static str> {
    ROOT.with_all_below().into_iter().filter(move |table| table.key(name).is_some()).map(|table| table.path)
}

/// The headers of the most common tables.
fn main_tables() -> [&'static str; 3] {
    [Listener::TABLE.path, Route::TABLE.path, Pool::TABLE.path]
}

struct Reader<'f, 's> {
    context: Context,
    complete: bool,
    findings: &'f mut Findings<'s>,
}

/// The kind of a value, with an article.
fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "`true` or `false`",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

impl Reader<'_, '_> {
    /// The value, or [`Value::Bad`] after reporting why it was refused.
    fn taken(&mut self, at: Span, read: Result<Value, Refused>) -> Value {
        read.unwrap_or_else(|refused| {
            self.findings.error(at, refused.message, refused.hint);
            Value::Bad
        })
    }

    fn value(&mut self, kind: &Kind, value: &Spanned<DeValue<'_>>, at: Span, key: &'static Key) -> Value {
        // The parser puts a placeholder with an empty span where it found no value, and has reported that.
        if value.span().end == 0 {
            return Value::Bad;
        }
        if let Some(given) = self.findings.given(at) {
            let whole = given.whole();
            let read = self.read(kind, &stands_for(kind, value, given, &whole), at, key);
            return read.unwrap_or_else(|_| self.refused_given(at, key, given, expected(kind)));
        }
        let read = self.read(kind, value, at, key);
        self.taken(at, read.map_err(|refused| environment_hint(value.get_ref(), refused)))
    }

    /// Reports that a value from the environment or a file cannot be read, without showing the value.
    fn refused_given(&mut self, at: Span, key: &Key, given: &given::Text, hint: String) -> Value {
        let is_list = matches!(&key.kind, Kind::OneOrMany(Each::Text(shape), _) | Kind::Many(Each::Text(shape)) if shape.from_files);
        let hint = match is_list && given.holds_several() {
            true => format!(
                "{hint}; it holds several, of which each is an element of its own, or a line of a file that `\"@file:PATH\"` names"
            ),
            false => hint,
        };
        let message = format!("`{}` cannot be what comes from {}", key.name, given.origin());
        self.findings.error_of_given(at, message, hint);
        Value::Bad
    }

    fn read(
        &mut self,
        kind: &Kind,
        value: &Spanned<DeValue<'_>>,
        at: Span,
        key: &'static Key,
    ) -> Result<Value, Refused> {
        let inner = value.get_ref();
        Ok(match (kind, inner) {
            (Kind::Bool(_) | Kind::YesOrNo | Kind::BoolOrWord(..), DeValue::Boolean(value)) => {
                Value::Bool(*value)
            }
            (Kind::BoolOrWord(_, words), DeValue::String(_)) => Value::Word(word(kind, words, inner, key)?),
            (Kind::Duration(limit), DeValue::String(text)) => {
                Value::Duration(in_bounds(key, units::duration(text)?, limit, units::show_duration)?)
            }
            (Kind::DurationOrOff(limit, _), DeValue::String(text)) => timer(key, text, limit)?,
            (Kind::Size(limit), DeValue::String(text)) => {
                Value::Number(in_bounds(key, units::size(text)?, limit, units::show_size)?)
            }
            (Kind::Rate(limit), DeValue::String(text)) => {
                Value::Number(in_bounds(key, units::byte_rate(text)?, limit, units::show_byte_rate)?)
            }
            (_, DeValue::Integer(number)) if is_quantity(kind) => {
                return unitless(kind, &number.to_string(), key);
            }
            (Kind::Count(limit), _) => Value::Number(count(kind, limit, inner, key)?),
            (Kind::Factor(limit), _) => Value::Factor(factor(kind, limit, inner, key)?),
            (Kind::Choice(numbers, _), DeValue::Integer(number)) => match number.as_str().parse::<u16>() {
                Ok(number) if numbers.contains(&number) => Value::Number(u64::from(number)),
                _ => return refuse(format!("`{}` cannot be {number}", key.name), expected(kind)),
            },
            (Kind::Word(words, _), _) => Value::Word(word(kind, words, inner, key)?),
            (Kind::Text(shape, _), DeValue::String(text)) => Value::Text((shape.read)(text)?),
            (Kind::Text(shape, _), DeValue::Integer(number)) if shape.takes_numbers => {
                Value::Text((shape.read)(&number.to_string())?)
            }
            (Kind::OneOrMany(each, _) | Kind::Many(each), DeValue::Array(list)) => {
                if list.is_empty() && self.complete {
                    let rest = if key.required { "" } else { ", or leave the key out" };
                    let hint = format!("expected at least one: {}{rest}", each.kind().expected());
                    return refuse(format!("`{}` is empty", key.name), hint);
                }
                let kind = each.kind();
                Value::List(self.each(list, at, |reader, value, at| reader.value(&kind, value, at, key)))
            }
            (Kind::OneOrMany(each, _), _) => {
                Value::List(vec![(at, self.value(&each.kind(), value, at, key))])
            }
            (Kind::Map(names, shape), DeValue::Table(table)) => self.map(names, shape, table, key),
            (Kind::TableOrOff(_), DeValue::String(text)) if text == "off" => Value::Off,
            (Kind::TableOrTrue(schema), DeValue::Boolean(true)) => Value::Table(Fields::new(schema, at)),
            (Kind::TableOrTrue(_), DeValue::Boolean(false)) => Value::Off,
            (
                Kind::Table(schema)
                | Kind::TableOrOff(schema)
                | Kind::TableOrTrue(schema)
                | Kind::TableOrText(schema, _),
                DeValue::Table(table),
            ) => self.table(schema, table, at),
            (Kind::TableOrText(schema, name), DeValue::String(text)) => {
                let Some(Kind::Text(shape, _)) = schema.key(name).map(|key| &key.kind) else {
                    return Ok(Value::Bad);
                };
                let read = (shape.read)(text).map(Value::Text);
                let value = self.taken(at, read.map_err(|refused| environment_hint(inner, refused)));
                Value::Table(Fields::of_one(schema, KeyValue::new(*name, at, at, value)))
            }
            (Kind::Tables(schema), DeValue::Array(list)) => {
                Value::List(self.each(list, at, |reader, value, at| match value.get_ref() {
                    DeValue::Table(table) => reader.table(schema, table, at),
                    other => reader.taken(at, wrong_kind(kind, other, key)),
                }))
            }
            (Kind::Tables(_), DeValue::Table(_)) => {
                let path = &self.context.path;
                return refuse(
                    format!("`{path}` stands in double brackets"),
                    format!("did you mean `[[{path}]]`?"),
                );
            }
            (Kind::NamedTables(schema), DeValue::Table(table)) => self.named(schema, table, key),
            _ => return wrong_kind(kind, inner, key),
        })
    }

    /// Reads the elements of a list, with their positions.
    fn each(
        &mut self,
        list: &DeArray<'_>,
        at: Span,
        read: impl Fn(&mut Self, &Spanned<DeValue<'_>>, Span) -> Value,
    ) -> Vec<(Span, Value)> {
        let element = |element| {
            let at = value_span(element, at);
            (at, read(self, element, at))
        };
        list.iter().map(element).collect()
    }

    fn map(&mut self, names: &Shape, shape: &Shape, table: &DeTable<'_>, key: &Key) -> Value {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut map: Vec<KeyValue> = Vec::new();
        for (name, value) in entries {
            let span = Span::from(name.span());
            let at = value_span(value, span);
            let name = written_out(name.get_ref()).and_then(|name| (names.read)(name)).map(Value::Text);
            let Value::Text(name) = self.taken(span, name) else { continue };
            let hint = format!("expected {} such as \"{}\"", shape.name, shape.example);
            let value = match (value.get_ref(), self.findings.given(at)) {
                (DeValue::String(_), Some(given)) if shape.is_pattern && given.lacks_any() => {
                    let hint = "it is empty, which would be met by what nobody meant; expected a text";
                    self.refused_given(at, key, given, hint.to_owned())
                }
                (DeValue::String(_), Some(given)) => {
                    let read = (shape.read)(&text_for(shape, given)).map(Value::Text);
                    read.unwrap_or_else(|_| self.refused_given(at, key, given, hint))
                }
                (DeValue::String(text), None) => {
                    let read = (shape.read)(text).map(Value::Text);
                    self.taken(at, read.map_err(|refused| environment_hint(value.get_ref(), refused)))
                }
                (other, _) => {
                    let message = format!("`{}.{name}` cannot be {}", key.name, kind_of(other));
                    self.taken(at, refuse(message, hint))
                }
            };
            if let Some(first) = map.iter().find(|entry| entry.name == name) {
                let hint = format!(
                    "it is the same field as at {}; field names have no case",
                    self.findings.place(first.key)
                );
                self.findings.error(span, format!("`{name}` is said twice"), hint);
                continue;
            }
            map.push(KeyValue::new(name, span, at, value));
        }
        Value::Map(map)
    }

    fn table(&mut self, schema: &'static Table, table: &DeTable<'_>, at: Span) -> Value {
        Value::Table(bind(table, at, schema, &self.context, self.complete, self.findings))
    }

    fn named(&mut self, schema: &'static Table, table: &DeTable<'_>, key: &Key) -> Value {
        let mut entries: Vec<_> = table.iter().collect();
        entries
            .sort_by_key(|(name, value)| name.span().start.min(value_span(value, name.span().into()).start));
        let mut map = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            let span = Span::from(name.span());
            let at = value_span(value, span);
            let DeValue::Table(table) = value.get_ref() else {
                // An operator who writes `[listener]` with keys below it forgot the name: report that once,
                // not for every key.
                let message = match schema.key(name.get_ref()) {
                    Some(_) => format!("`[{}]` needs a name", key.name),
                    None => {
                        format!("`{}.{}` cannot be {}", key.name, name.get_ref(), kind_of(value.get_ref()))
                    }
                };
                let hint = format!("expected a table with a name of your choice: `[{}.web]`", key.name);
                if !self.findings.already(&message) {
                    self.findings.error(span, message, hint);
                }
                map.push(KeyValue::new(name.get_ref().to_string(), span, at, Value::Bad));
                continue;
            };
            self.taken(span, (values::NAME.read)(name.get_ref()).map(Value::Text));
            let context = self.context.below(name.get_ref());
            let mut fields = bind(table, at, schema, &context, self.complete, self.findings);
            fields.name = name.get_ref().to_string();
            map.push(KeyValue::new(fields.name.clone(), span, at, Value::Table(fields)));
        }
        Value::Map(map)
    }
}

/// Converts a text from the environment or a file for a key of this kind: such a value is always a text, and
/// stands for a number or `true` where the key expects these.
fn stands_for<'v>(
    kind: &Kind,
    value: &Spanned<DeValue<'v>>,
    given: &given::Text,
    whole: &'v str,
) -> Spanned<DeValue<'v>> {
    let takes_bare = matches!(
        kind,
        Kind::Bool(_) | Kind::BoolOrWord(..) | Kind::Count(_) | Kind::Factor(_) | Kind::Choice(..)
    );
    let bare = DeValue::parse(whole).ok().filter(|_| takes_bare).map(Spanned::into_inner);
    let stands_for = match (bare, kind) {
        (Some(bare @ (DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_))), _) => bare,
        (_, Kind::Text(shape, _)) => DeValue::String(text_for(shape, given).into()),
        _ => return value.clone(),
    };
    Spanned::new(value.span(), stands_for)
}

/// Converts a text from the environment or a file for this shape.
fn text_for(shape: &Shape, given: &given::Text) -> String {
    match shape {
        Shape { has_variables: true, .. } => given.with_plain_dollars(),
        Shape { is_pattern: true, .. } => given.with_plain_signs(),
        _ => given.whole(),
    }
}

/// Returns the key unless it contains `${env:…}`. Keys are not expanded, so the expression would be taken
/// literally.
fn written_out(key: &str) -> Result<&str, Refused> {
    let Some(expression) = given::expression_in(key) else { return Ok(key) };
    let hint = "keys are written out; values may come from elsewhere";
    refuse(format!("`{expression}` cannot stand in a key"), hint)
}

/// What to say to `${NAME}`, as shells and Compose have it.
fn environment_hint(value: &DeValue<'_>, refused: Refused) -> Refused {
    let name = value.as_str().and_then(|text| text.split_once("${")?.1.split_once('}')).map(|(name, _)| name);
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match name.filter(is_name) {
        Some(name) => {
            Refused { hint: format!("did you mean the environment's `${{env:{name}}}`?"), ..refused }
        }
        None => refused,
    }
}

fn expected(kind: &Kind) -> String {
    format!("expected {}", kind.expected())
}

fn wrong_kind<T>(kind: &Kind, value: &DeValue<'_>, key: &Key) -> Result<T, Refused> {
    let message = format!("`{}` cannot be {}", key.name, kind_of(value));
    let is_one = |words: &[&str]| {
        words.contains(&kind_of(value)) || value.as_str().is_some_and(|text| words.contains(&text))
    };
    let instead = key.instead.iter().find(|(words, _)| is_one(words)).map(|(_, hint)| *hint);
    match (instead, in_its_table(kind, value)) {
        (Some(hint), _) => refuse(message, hint),
        (None, Some((table, true))) => refuse(message, format!("did you mean `{} = {table}`?", key.name)),
        (None, Some((table, false))) => {
            refuse(message, format!("expected `{} = {table}`, for example", key.name))
        }
        (None, None) => refuse(message, expected(kind)),
    }
}

/// Suggests a table for a text value that was given in place of a table with exactly one required key. The
/// second value says whether the suggestion uses the given text (`true`) or the key's example (`false`).
fn in_its_table(kind: &Kind, value: &DeValue<'_>) -> Option<(String, bool)> {
    let table = kind.table().filter(|_| !matches!(kind, Kind::Tables(_) | Kind::NamedTables(_)))?;
    let text = value.as_str()?;
    let required: Vec<_> = table.keys().into_iter().filter(|key| key.required).collect();
    let [Key { name, kind: Kind::Text(shape, _), .. }] = required[..] else { return None };
    let is_taken = (shape.read)(text).is_ok();
    let value = if is_taken { text } else { shape.example };
    Some((format!("{{ {name} = {} }}", quoted(value)), is_taken))
}

/// A bare number in place of a duration, a size or a rate.
fn unitless(kind: &Kind, number: &str, key: &Key) -> Result<Value, Refused> {
    let whole = |bytes: &u64| *bytes >= 1024 && bytes.is_multiple_of(1024);
    let hint = match (kind, number.parse().ok().filter(whole)) {
        (Kind::DurationOrOff(..), _) if number == "0" => "say \"off\" for none".to_owned(),
        (Kind::Duration(_) | Kind::DurationOrOff(..), _) => format!("say \"{number}s\" or \"{number}ms\""),
        (Kind::Size(_), Some(bytes)) => format!("say \"{}\"", units::show_size(bytes)),
        (Kind::Size(_), None) => format!("say \"{number}B\", \"{number}KiB\" or \"{number}MiB\""),
        _ => format!("say \"{number}B/s\" or \"{number}KiB/s\""),
    };
    refuse(format!("`{}` needs a unit", key.name), hint)
}

fn count(kind: &Kind, limit: &Limit<u64>, value: &DeValue<'_>, key: &Key) -> Result<u64, Refused> {
    let number = match value {
        DeValue::Integer(number) => number,
        DeValue::String(text) if text.parse::<u64>().is_ok() => {
            let message = format!("`{}` is a number, not a text", key.name);
            return refuse(message, format!("leave out the quotes: {text}"));
        }
        other => return wrong_kind(kind, other, key),
    };
    let hint = match i128::from_str_radix(number.as_str(), number.radix()).map(u64::try_from) {
        Ok(Ok(value)) => match in_bounds(key, value, limit, |value| value.to_string()) {
            Ok(value) => return Ok(value),
            Err(refused) => refused.hint,
        },
        Ok(Err(_)) if number.as_str().starts_with('-') => {
            format!("expected a whole number from {} to {}", limit.least, limit.most)
        }
        _ => format!("expected at most {}", limit.most),
    };
    refuse(format!("`{}` cannot be {number}", key.name), hint)
}

fn factor(kind: &Kind, limit: &Limit<f64>, value: &DeValue<'_>, key: &Key) -> Result<f64, Refused> {
    let number = match value {
        DeValue::Float(number) => number.as_str().replace('_', "").parse::<f64>().ok(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse::<f64>().ok(),
        DeValue::String(text) if text.ends_with('%') => {
            let share = text.trim_end_matches('%').trim().parse::<f64>().unwrap_or(50.0) / 100.0;
            return refuse(format!("`{}` is a number, not a text", key.name), format!("say {share:?}"));
        }
        other => return wrong_kind(kind, other, key),
    };
    number.filter(|number| (limit.least..=limit.most).contains(number)).ok_or_else(|| Refused {
        message: format!("`{}` is out of bounds", key.name),
        hint: format!("expected {:?} to {:?} ({})", limit.least, limit.most, limit.reason),
    })
}

fn word(
    kind: &Kind,
    words: &'static [Word],
    value: &DeValue<'_>,
    key: &Key,
) -> Result<&'static str, Refused> {
    let text = match value {
        DeValue::String(text) => text.to_string(),
        // `on = [502]` means the same as `on = ["502"]`.
        DeValue::Integer(number) if number.radix() == 10 => number.to_string(),
        other => return wrong_kind(kind, other, key),
    };
    if let Some(word) = words.iter().find(|word| word.word == text) {
        return Ok(word.word);
    }
    let other = text.to_ascii_lowercase().replace('_', "-");
    let also = words.iter().find(|word| word.also.contains(&other.as_str())).map(|word| word.word);
    // Don't suggest one number for another: 500 is not a typing error for 502.
    let near = || nearest(&text, words.iter().map(|word| word.word));
    let near = also.or_else(near).filter(|_| !text.bytes().all(|byte| byte.is_ascii_digit()));
    let instead = key.instead.iter().find(|(words, _)| words.contains(&other.as_str()));
    let hint = match (instead, near) {
        (Some((_, hint)), _) => (*hint).to_owned(),
        (_, Some(word)) => format!("did you mean \"{word}\"?"),
        (None, None) => expected(kind),
    };
    refuse(format!("`{}` cannot be {}", key.name, quote(&text)), hint)
}

/// Whether a number of this kind needs a unit.
fn is_quantity(kind: &Kind) -> bool {
    matches!(kind, Kind::Duration(_) | Kind::DurationOrOff(..) | Kind::Size(_) | Kind::Rate(_))
}

/// A duration within its bounds, or `"off"`.
fn timer(key: &Key, text: &str, limit: &Limit<Duration>) -> Result<Value, Refused> {
    if text == "off" {
        return Ok(Value::Off);
    }
    let read = units::duration(text).and_then(|value| in_bounds(key, value, limit, units::show_duration));
    read.map(Value::Duration).map_err(|refused| match refused.hint.starts_with("expected") {
        true => Refused { hint: format!("{}, or \"off\"", refused.hint), ..refused },
        false => refused,
    })
}

fn in_bounds<T: Copy + PartialOrd>(
    key: &Key,
    value: T,
    limit: &Limit<T>,
    show: fn(T) -> String,
) -> Result<T, Refused> {
    if value >= limit.least && value <= limit.most {
        return Ok(value);
    }
    refuse(
        format!("`{}` cannot be {}", key.name, show(value)),
        format!("expected {} to {} ({})", show(limit.least), show(limit.most), limit.reason),
    )
}
