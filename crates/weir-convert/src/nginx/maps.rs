//! `map`, `geo` and `split_clients`: tables whose value is a variable.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use weir_config::quoted;

use super::expression::{Compared, literal, translate};
use super::ledger::NginxLedger;
use super::request_test::toml_key;
use super::tree::NginxDirective;
use super::variables::{NginxPart, NginxPlace, parts};
use crate::write::line;
use crate::{ConvertedFile, DirectiveVerdict};

/// Most lines of a map with expressions.
const MOST_EXPRESSIONS: usize = 1000;

/// The variables that tables of the file give a value to.
#[derive(Debug, Default)]
pub struct NginxMaps<'c> {
    tables: BTreeMap<String, &'c NginxDirective>,
    made: BTreeMap<String, MadeMap>,
}

/// A map that was written.
#[derive(Clone, Debug)]
struct MadeMap {
    name: String,
    toml: String,
    file: ConvertedFile,
}

/// A line of a map: how its key is compared, the key, the value.
struct MapEntry<'c> {
    directive: &'c NginxDirective,
    /// As it stands, without the escape of a word that has a meaning.
    key: String,
    value: String,
}

impl<'c> NginxMaps<'c> {
    /// The tables among these directives.
    pub fn of(directives: impl Iterator<Item = &'c NginxDirective>) -> NginxMaps<'c> {
        let mut maps = NginxMaps::default();
        for directive in directives {
            let is_table = matches!(directive.name.as_str(), "map" | "geo" | "split_clients");
            if let (true, Some(variable)) = (is_table, directive.words.last()) {
                maps.tables.insert(variable.trim_start_matches('$').to_owned(), directive);
            }
        }
        maps
    }

    /// The directive that gives a variable its value.
    pub fn table(&self, variable: &str) -> Option<&'c NginxDirective> {
        self.tables.get(variable).copied()
    }

    /// The lines of a table, with the default as the last of them under an empty key.
    pub fn lines(&self, variable: &str) -> Vec<(String, String)> {
        let Some(table) = self.table(variable) else { return Vec::new() };
        table.inner().iter().map(|line| (line.name.clone(), line.word(0).to_owned())).collect()
    }

    /// Has a map written for a variable, and gives its name in Weir. `None` if it is no map, or one that Weir
    /// cannot have; then the verdict says so.
    pub fn need(&mut self, variable: &str, folder: &str, ledger: &mut NginxLedger) -> Option<String> {
        if let Some(made) = self.made.get(variable) {
            return Some(made.name.clone());
        }
        let table = self.table(variable)?;
        match self.tried(variable, table, folder, ledger) {
            Ok(made) => {
                let note = format!("`[map.{}]`, whose lines are in {}", made.name, made.file.path);
                ledger.exact(table, note);
                ledger.judge_below(table.inner(), DirectiveVerdict::Exact, "a line of that file");
                let name = made.name.clone();
                self.made.insert(variable.to_owned(), made);
                Some(name)
            }
            Err(why) => {
                ledger.unsupported(table, format!("cannot be a map of Weir: {why}"));
                ledger.judge_below(table.inner(), DirectiveVerdict::Unsupported, "left out with its table");
                None
            }
        }
    }

    /// Whether a variable's table can be a map of Weir's.
    pub fn is_possible(&self, variable: &str, folder: &str) -> bool {
        let mut unsaid = NginxLedger::default();
        self.table(variable).is_some_and(|table| self.tried(variable, table, folder, &mut unsaid).is_ok())
    }

    fn tried(
        &self,
        variable: &str,
        table: &'c NginxDirective,
        folder: &str,
        ledger: &mut NginxLedger,
    ) -> Result<MadeMap, String> {
        let made = match table.name.as_str() {
            "map" => self.map(variable, table, folder, ledger)?,
            "geo" => self.geo(variable, table, folder, ledger)?,
            _ => return Err("only as the pool of a `proxy_pass`".to_owned()),
        };
        let text = format!("[listener.x]\nbind = \"127.0.0.1:1\"\n{}", made.toml);
        match weir_config::check_text("", &text) {
            Ok(_) => Ok(made),
            Err(report) => Err(report.problems.first().map_or_else(String::new, |it| it.message.clone())),
        }
    }

    /// Has every table that can be a map written for which a text asks, and gives their names in Weir.
    pub fn needed_by(
        &mut self,
        text: &str,
        folder: &str,
        ledger: &mut NginxLedger,
    ) -> BTreeMap<String, String> {
        let variables = parts(text).into_iter().filter_map(|part| match part {
            NginxPart::Variable(name) => Some(name),
            NginxPart::Text(_) => None,
        });
        let mut found = BTreeMap::new();
        for variable in variables {
            if let Some(name) = self.need(&variable, folder, ledger) {
                found.insert(variable, name);
            }
        }
        found
    }

    /// Writes a map that no directive has, for a condition: one line, and `default`. Gives its name.
    pub fn invented(&mut self, name: &str, key: &str, only: (&str, &str), folder: &str) -> String {
        let variable = format!("*{name}");
        let path = format!("{folder}/{name}.map");
        let mut toml = format!("\n[map.{name}]\n");
        line(&mut toml, "file", quoted(&path));
        line(&mut toml, "kind", quoted("expression"));
        line(&mut toml, "key", quoted(key));
        let file = ConvertedFile { path, text: format!("{} {}\n", only.0, only.1) };
        self.made.insert(variable, MadeMap { name: name.to_owned(), toml, file });
        name.to_owned()
    }

    /// Tables that stand for the maps that were written, where a route is tried.
    pub fn stubs(&self) -> String {
        self.made.values().map(|made| made.toml.as_str()).collect()
    }

    /// The tables of all maps that were written, and their files.
    pub fn finish(self, ledger: &mut NginxLedger) -> (String, Vec<ConvertedFile>) {
        for table in self.tables.values() {
            if !ledger.is_judged(table) {
                ledger.exact(table, "nothing that was converted asks for it");
            }
            ledger.judge_below(
                table.inner(),
                DirectiveVerdict::Exact,
                "nothing that was converted asks for it",
            );
        }
        let toml = self.made.values().map(|made| made.toml.as_str()).collect();
        (toml, self.made.into_values().map(|made| made.file).collect())
    }

    fn name_for(&self, variable: &str) -> String {
        let mut name: String = variable.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            name.insert_str(0, "map");
        }
        name.truncate(60);
        name
    }

    fn map(
        &self,
        variable: &str,
        table: &'c NginxDirective,
        folder: &str,
        ledger: &mut NginxLedger,
    ) -> Result<MadeMap, String> {
        let place = NginxPlace::default();
        let key = place.template(table.word(0)).map_err(|bad| format!("Weir has no `${bad}`"))?;
        if !key.contains('$') {
            return Err("its key is the same for every request".to_owned());
        }
        let mut default = String::new();
        let (mut plain, mut wild, mut expressions) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_hostnames = false;
        for each in table.inner() {
            match each.name.as_str() {
                "default" => default = each.word(0).to_owned(),
                "hostnames" => is_hostnames = true,
                "volatile" => ledger.exact(each, "always so"),
                "include" => {}
                key => {
                    let key = key.strip_prefix('\\').unwrap_or(key).to_owned();
                    let entry = MapEntry { directive: each, key, value: each.word(0).to_owned() };
                    let is_expression = each.name.starts_with('~');
                    let is_wild = is_hostnames && (entry.key.contains('*') || entry.key.starts_with('.'));
                    match (is_expression, is_wild) {
                        (true, _) => expressions.push(entry),
                        (false, true) => wild.push(entry),
                        (false, false) => plain.push(entry),
                    }
                }
            }
        }
        // nginx asks for exact names, then for the longest wildcard, then for expressions in their order.
        wild.sort_by_key(|entry| std::cmp::Reverse(entry.key.len()));
        let only_plain = wild.is_empty() && expressions.is_empty();
        let all: Vec<&MapEntry<'_>> = plain.iter().chain(&wild).chain(&expressions).collect();
        if !only_plain && all.len() > MOST_EXPRESSIONS {
            return Err(format!("it has more than {MOST_EXPRESSIONS} lines, and expressions among them"));
        }
        let default = value_of(&default, &[])?;
        let mut text = String::new();
        for entry in all {
            let (key, groups) = match only_plain {
                true => (entry.key.clone(), Vec::new()),
                false => expression_of(&entry.key, is_hostnames)?,
            };
            if key.is_empty() {
                // What is empty gives the default: there is no line for it.
                if entry.value != default {
                    ledger.approximate(
                        entry.directive,
                        "a map has no line for what is empty: it gives the default",
                    );
                }
                continue;
            }
            let value = value_of(&entry.value, &groups)?;
            if value.is_empty() {
                if default.is_empty() && only_plain {
                    continue;
                }
                ledger.approximate(
                    entry.directive,
                    "a line of a map has a value: `0` stands for the empty one",
                );
            }
            add_line(&mut text, &key, if value.is_empty() { "0" } else { &value })?;
        }
        let kind = if only_plain { "exact" } else { "expression" };
        Ok(self.made(variable, folder, (kind, &key, &default), text))
    }

    fn geo(
        &self,
        variable: &str,
        table: &'c NginxDirective,
        folder: &str,
        ledger: &mut NginxLedger,
    ) -> Result<MadeMap, String> {
        let place = NginxPlace::default();
        let key = match table.words.as_slice() {
            [address, _] => place.template(address).map_err(|bad| format!("Weir has no `${bad}`"))?,
            _ => "$client_ip".to_owned(),
        };
        let mut default = String::new();
        let mut text = String::new();
        for each in table.inner() {
            let value = each.word(0);
            match each.name.as_str() {
                "default" => default = value.to_owned(),
                "ranges" => return Err("it has ranges of addresses: write them as networks".to_owned()),
                "proxy" | "proxy_recursive" => {
                    ledger.approximate(
                        each,
                        "`trusted_proxies` of the listener says whom the client's address is believed of",
                    );
                }
                "delete" | "include" => {}
                network => {
                    let value = value_of(value, &[])?;
                    add_line(&mut text, network, if value.is_empty() { "0" } else { &value })?;
                }
            }
        }
        let default = value_of(&default, &[])?;
        Ok(self.made(variable, folder, ("network", &key, &default), text))
    }

    fn made(
        &self,
        variable: &str,
        folder: &str,
        (kind, key, default): (&str, &str, &str),
        lines: String,
    ) -> MadeMap {
        let name = self.name_for(variable);
        let path = format!("{folder}/{name}.map");
        let mut toml = String::new();
        let _ = write!(toml, "\n[map.{}]\n", toml_key(&name));
        line(&mut toml, "file", quoted(&path));
        line(&mut toml, "kind", quoted(kind));
        line(&mut toml, "key", quoted(key));
        if !default.is_empty() {
            line(&mut toml, "default", quoted(default));
        }
        if kind == "exact" && key != "$host" && key != "$server_name" {
            line(&mut toml, "ignore_case", "true");
        }
        MadeMap { name, toml, file: ConvertedFile { path, text: lines } }
    }
}

/// The expression that stands for a key, and the names of its groups.
fn expression_of(key: &str, is_hostnames: bool) -> Result<(String, Vec<String>), String> {
    if let Some(expression) = key.strip_prefix('~') {
        let (any_case, expression) = match expression.strip_prefix('*') {
            Some(rest) => (true, rest),
            None => (false, expression),
        };
        let translated = translate(expression, any_case, Compared::Text)?;
        return match translated.is_same {
            true => Ok((translated.text.replace(' ', "\\x20"), translated.groups)),
            false => Err(format!("`{expression}` takes more than linear time")),
        };
    }
    let literal = |text: &str| literal(text).replace(' ', "\\x20");
    let text = match (is_hostnames, key.strip_prefix("*."), key.strip_suffix(".*"), key.strip_prefix('.')) {
        (true, Some(below), ..) => format!("(?i)\\.{}$", literal(below)),
        (true, _, Some(front), _) => format!("(?i)^{}\\.", literal(front)),
        (true, _, _, Some(name)) => format!("(?i)(?:^|\\.){}$", literal(name)),
        _ => format!("(?i)^{}$", literal(key)),
    };
    Ok((text, Vec::new()))
}

/// A value as a map has it: text, and `$1` of its expression.
fn value_of(value: &str, groups: &[String]) -> Result<String, String> {
    let mut out = String::new();
    for part in parts(value) {
        match part {
            NginxPart::Text(text) => {
                out.push_str(&if groups.is_empty() { text } else { text.replace('$', "$$") })
            }
            NginxPart::Variable(name) => {
                let number = name
                    .parse()
                    .ok()
                    .or_else(|| groups.iter().position(|group| *group == name).map(|at| at + 1));
                match number {
                    Some(number) if number <= groups.len() => {
                        let _ = write!(out, "${number}");
                    }
                    _ => {
                        return Err(format!(
                            "a value has `${name}`, and values of Weir's maps have no variables"
                        ));
                    }
                }
            }
        }
    }
    Ok(out)
}

fn add_line(text: &mut String, key: &str, value: &str) -> Result<(), String> {
    if key.contains(char::is_whitespace) || key.starts_with('#') || value.chars().any(char::is_control) {
        return Err(format!("the key `{key}` cannot stand in a file of Weir's"));
    }
    let _ = writeln!(text, "{key} {value}");
    Ok(())
}
