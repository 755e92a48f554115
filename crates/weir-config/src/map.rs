//! `[map.NAME]`: keys and values from a file, looked up for requests.

pub(crate) mod content;
mod edit;
mod patterns;
mod sorted;

use weir_template::{Piece, Template, Variable};

use self::content::{FILE_BYTES, MapContent, Mistake};
pub use self::edit::{EditedMap, LineEdit};
use crate::error_page::PageFile;
use crate::fields::{Fields, KeyValue, Value};
use crate::keys::{Each, Kind, Shape, flag, list, text, word};
use crate::named_pool;
use crate::protocol::{Protocol, spoken};
use crate::report::{Findings, Span, quote};
use crate::setting::{One as _, table, words};
use crate::suggest::{nearest, one_of};
use crate::units::{Refused, refuse};
use crate::values::NAME;
use crate::values::address::FILE;
use crate::values::http::field_value;
use crate::values::template::{key_template, of_anybody};

/// The text that is looked up in a map.
static MAP_KEY: Shape =
    Shape::new("what a map is asked for", "$host", |text| map_key(text).map(|_| text.to_owned()));
/// The default value of a map.
static MAP_VALUE: Shape = Shape::new("a map's value", "app", field_value);
/// The name of a map whose value is compared.
pub(crate) static MAP_NAME: Shape = Shape::new("the name of a map", "m", |text| (NAME.read)(text));

words! {
    /// How a map is asked.
    pub enum MapKind {
        Exact = "exact": "the line whose key is the text",
        Prefix = "prefix": "the line with the longest key that the text begins with",
        Suffix = "suffix": "the line with the longest key that the text ends with",
        Domain = "domain": "the line with the longest key that is the name, or a domain above it",
        Contains = "contains": "the first line whose key is somewhere in the text",
        Expression = "expression": "the first line whose key, a regular expression, matches somewhere in the text",
        Network = "network": "the line with the smallest network that the address is in",
    }
}

table! {
    /// Keys and values of a file, which `$map.NAME` looks up for a request. A changed file is taken over by
    /// itself, within a few seconds; one with a mistake is not, and the lines before stay. Read the
    /// [guide](../guide/maps.md).
    pub struct MapFile(name) at "[map.NAME]" {
        /// The file: lines of a key, spaces and a value; empty lines and those that begin with `#` say
        /// nothing. At most 16MiB and 1,000,000 lines; 1,000 of expressions and of what is contained.
        file: Option<PageFile> = text(&FILE).required().also(&["path", "map_file", "source"]);
        /// How the key of a line is compared.
        kind: MapKind = word(MapKind::WORDS, "exact").also(&["type", "match", "method"]);
        /// What is looked up, a text with variables; it has no `$1` and no `$map`.
        key: Option<Template> = text(&MAP_KEY).required().also(&["by", "input", "lookup"]);
        /// The value where no line has the key.
        default: Option<String> = text(&MAP_VALUE).default("none: it is empty").also(&["else", "fallback"]);
        /// Whether `A` and `a` are one in keys (ASCII).
        ignore_case: bool =
            flag(false).default("`true` where `key` is `$host` or `$server_name` alone, else `false`").also(&["case_insensitive", "nocase"]);
    }
}

table! {
    /// Has a map say which pool takes a request.
    #[derive(Eq)]
    pub struct PoolMap at "pool_map = { … }" {
        /// The map, whose values are names of pools.
        map: String = text(&NAME).required().also(&["name", "by"]);
        /// The pools that it may name. Any other value, and none, goes to the route's own `pool`.
        pools: Vec<String> = list(Each::Text(&NAME)).required().also(&["to", "backends", "upstreams"]);
    }
}

impl MapKind {
    /// Whether keys may match anywhere in a text, which limits their number to [`content::MOST_PATTERNS`].
    fn is_by_patterns(self) -> bool {
        matches!(self, MapKind::Contains | MapKind::Expression)
    }
}

impl MapFile {
    /// The compiled content of the file. Empty if the file was not read.
    ///
    /// # Errors
    /// The mistakes in it, one line each: `FILE:LINE: …`.
    pub fn content(&self) -> Result<MapContent, Vec<String>> {
        let Some(file) = &self.file else { return Ok(MapContent::default()) };
        self.content_of(&file.content)
    }

    /// The same, for new content of the file.
    ///
    /// # Errors
    /// As [`Self::content`].
    pub fn content_of(&self, bytes: &std::sync::Arc<[u8]>) -> Result<MapContent, Vec<String>> {
        let path = self.path();
        MapContent::read(self.kind, self.ignore_case, bytes)
            .map_err(|mistakes| mistakes.iter().map(|it| format!("{path}:{it}")).collect())
    }

    /// The file's name, as in the config.
    pub fn path(&self) -> &str {
        self.file.as_ref().map_or("", |file| &file.path)
    }
}

fn map_key(text: &str) -> Result<Template, Refused> {
    let template = key_template(text, "what a map is asked for")?;
    of_anybody(&template, "what a map is asked for")?;
    for variable in template.variables() {
        let hint = match variable {
            Variable::Map(_) => "one map is asked for what a request has, and not for what another says",
            Variable::Capture(_) => "a map is no route's, and only routes have groups",
            _ => continue,
        };
        return refuse(format!("`${}` cannot be looked up in a map", variable.name()), hint);
    }
    Ok(template)
}

/// Fills in values that follow from the key.
pub(crate) fn assume(map: &mut Fields) {
    let is_name = map
        .value("key")
        .and_then(Template::of)
        .is_some_and(|key| matches!(key.pieces(), [Piece::Value(Variable::Host | Variable::ServerName)]));
    if is_name {
        map.assume("ignore_case", Value::Bool(true));
    }
}

/// The pools that the map of a route may choose.
pub(crate) fn pools(route: &Fields) -> impl Iterator<Item = &str> {
    let by_map = route.get("pool_map").and_then(|_| route.table("pool_map"));
    by_map.into_iter().flat_map(|by_map| by_map.list("pools")).filter_map(|(_, pool)| match pool {
        Value::Text(name) => Some(name.as_str()),
        _ => None,
    })
}

/// The variables in a map's key; none if the map does not exist.
pub(crate) fn key_of(root: &Fields, name: &str) -> Vec<Variable> {
    let map = root.named("map").find(|map| map.name == name);
    let key = map.and_then(|map| map.value("key")).and_then(Template::of);
    key.map(|key| key.variables().cloned().collect()).unwrap_or_default()
}

/// Reports lines that can't be read, maps that don't exist, and keys that contradict a choice by map.
pub(crate) fn check(root: &Fields, findings: &mut Findings<'_>) {
    for map in root.named("map") {
        if map.name.contains('.') {
            let hint = format!(
                "expected `[map.{}]`: a `.` ends the name in `$map.NAME`",
                map.name.replace('.', "_")
            );
            findings.error(map.at, format!("the name of the map `{}` has a dot", map.name), hint);
        }
        lines(map, findings);
    }
    named_in(root, root, findings);
    for listener in root.named("listener") {
        if spoken(listener).is_none_or(|protocol| protocol == Protocol::Http) {
            for (_, route) in listener.tables("route") {
                of_route(root, route, findings);
            }
        }
    }
}

/// Most mistakes reported for one file (count); a file in another format would have one in each line.
const MOST_TOLD: usize = 20;

fn lines(map: &Fields, findings: &mut Findings<'_>) {
    let Some(entry) = map.get("file") else { return };
    let Value::Read(path, content) = &entry.value else { return };
    let Some(kind) = MapKind::from_word(map.word("kind")).filter(|_| !map.is_bad("kind")) else { return };
    let Err(mistakes) = MapContent::read(kind, map.flag("ignore_case"), content) else { return };
    for Mistake { line, message, hint } in mistakes.iter().take(MOST_TOLD) {
        findings.error(entry.at, format!("{path}:{line}: {message}"), hint.clone());
    }
    if mistakes.len() > MOST_TOLD {
        let hint = "mend those that are shown first";
        findings.error(entry.at, format!("{path} has {} more mistakes", mistakes.len() - MOST_TOLD), hint);
    }
}

/// Reports maps that a table, or a subtable, names and that don't exist.
fn named_in(root: &Fields, fields: &Fields, findings: &mut Findings<'_>) {
    for entry in &fields.entries {
        let Some(key) = fields.schema.key(&entry.name) else { continue };
        match (&key.kind, &entry.value) {
            (Kind::Text(shape, _), Value::Text(text)) => in_text(root, entry.at, shape, text, findings),
            (Kind::Map(names, shape), Value::Map(entries)) => {
                for KeyValue { name, key, at, value, .. } in entries {
                    if std::ptr::eq(*names, &raw const MAP_NAME) {
                        exists(root, *key, name, findings);
                    } else if let Value::Text(text) = value {
                        in_text(root, *at, shape, text, findings);
                    }
                }
            }
            (_, value) => {
                value.tables().into_iter().for_each(|below| named_in(root, below, findings));
            }
        }
    }
}

/// Shapes of texts with variables that are not marked as such, because they also accept words.
const WITH_WORDS: [&str; 4] =
    ["what to split by", "what to count by", "a hash key", "what a map is asked for"];

fn in_text(root: &Fields, at: Span, shape: &Shape, text: &str, findings: &mut Findings<'_>) {
    if !shape.has_variables && !shape.name.contains("with variables") && !WITH_WORDS.contains(&shape.name) {
        return;
    }
    let Ok(template) = Template::parse(text, 9).or_else(|_| Template::parse_line(text)) else { return };
    for variable in template.variables() {
        if let Variable::Map(name) = variable {
            exists(root, at, name, findings);
        }
    }
}

fn exists(root: &Fields, at: Span, name: &str, findings: &mut Findings<'_>) {
    let defined = root.map("map");
    if defined.iter().any(|map| map.name == name) || root.is_bad("map") || root.meant.contains(&"map") {
        return;
    }
    let names = || defined.iter().map(|map| map.name.as_str());
    let hint = match nearest(name, names()).and_then(|near| defined.iter().find(|map| map.name == near)) {
        Some(near) => format!("did you mean `{}` ({})?", near.name, findings.place(near.at)),
        None if defined.is_empty() => {
            format!("no map is defined at all; expected `[map.{name}]` with `file` and `key`")
        }
        None => format!("expected {}, or a new `[map.{name}]`", one_of(names())),
    };
    findings.error(at, format!("no map is named {}", quote(name)), hint);
}

fn of_route(root: &Fields, route: &Fields, findings: &mut Findings<'_>) {
    let Some((entry, by_map)) = route.get("pool_map").zip(route.table("pool_map")) else { return };
    if let Some(name) = by_map.text("map") {
        exists(root, by_map.at("map"), name, findings);
    }
    if route.lacks("pool") {
        let hint = "requests of which the map says nothing need a `pool`";
        findings.error(entry.key, "`pool_map` needs `pool`", hint);
    }
    if let Some(split) = route.get("split") {
        let hint = format!("one of them says the pool ({}); make two routes", findings.place(entry.key));
        findings.error(split.key, "`split` cannot stand beside `pool_map`", hint);
    }
    if let Some(cache) = route.get("cache").filter(|cache| !matches!(cache.value, Value::Off)) {
        let hint = format!(
            "an answer of one pool would be given to who is another's ({}); take one of the two out",
            findings.place(entry.key)
        );
        findings.error(cache.key, "`cache` cannot stand beside `pool_map`", hint);
    }
    for (at, pool) in by_map.list("pools") {
        if let Value::Text(pool) = pool {
            named_pool::is_there(root, *at, pool, findings);
        }
    }
}

/// Most bytes of a map's file that are read.
pub const MAP_FILE_BYTES: usize = FILE_BYTES;
