//! Which keys of a config came from the environment or from files, so that they are never shown.

use std::collections::BTreeSet;

use crate::fields::{Fields, Value};
use crate::given::Given;

/// Stands in a path for every element of a list without names.
const EACH: &str = "*";

/// The paths of the hidden keys. Elements of a list share one path, since the API may insert others before
/// them; routes have their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hidden(BTreeSet<Vec<String>>);

impl Hidden {
    /// Adds the hidden keys of another config, for one table.
    pub(crate) fn and(mut self, other: &Hidden, table: &str) -> Hidden {
        let of_table = other.0.iter().filter(|path| path.first().is_some_and(|first| first == table));
        self.0.extend(of_table.cloned());
        self
    }

    /// Whether the value of `key` in a route of a listener, or a value within that key's table, is hidden. A
    /// route without a name is identified by its position among the listener's routes (from 0).
    pub fn holds_of_route(&self, listener: &str, (number, name): (usize, &str), key: &[&str]) -> bool {
        let of_route = |route: &str| self.holds(&[&["listener", listener, "route", route], key].concat());
        !self.0.is_empty() && (of_route(name) || of_route(&number.to_string()))
    }

    /// Whether the value at a path, or one below it, is hidden.
    pub fn holds(&self, path: &[&str]) -> bool {
        self.0.iter().any(|hidden| hidden.len() >= path.len() && hidden.iter().zip(path).all(|(a, b)| a == b))
    }

    /// Marks the hidden entries.
    pub(crate) fn mark(&self, root: &mut Fields) {
        if !self.0.is_empty() {
            self.mark_below(root, &mut Vec::new());
        }
    }

    fn mark_below(&self, fields: &mut Fields, path: &mut Vec<String>) {
        for entry in &mut fields.entries {
            path.push(entry.name.clone());
            entry.is_hidden = self.0.contains(path);
            match &mut entry.value {
                Value::Table(below) => self.mark_below(below, path),
                Value::List(list) => {
                    for (number, (_, value)) in list.iter_mut().enumerate() {
                        if let Value::Table(below) = value {
                            path.push(element_name(below, number));
                            self.mark_below(below, path);
                            path.pop();
                        }
                    }
                }
                Value::Map(entries) => {
                    for below in entries {
                        path.push(below.name.clone());
                        below.is_hidden = self.0.contains(path);
                        if let Value::Table(fields) = &mut below.value {
                            self.mark_below(fields, path);
                        }
                        path.pop();
                    }
                }
                _ => {}
            }
            path.pop();
        }
    }
}

/// The keys of a file that came from elsewhere.
pub(crate) fn of(root: &Fields, given: &Given) -> Hidden {
    let mut hidden = BTreeSet::new();
    collect(root, given, &mut Vec::new(), &mut hidden);
    Hidden(hidden)
}

fn collect(fields: &Fields, given: &Given, path: &mut Vec<String>, hidden: &mut BTreeSet<Vec<String>>) {
    for entry in &fields.entries {
        path.push(entry.name.clone());
        if given.holds(entry.at) && !matches!(entry.value, Value::Table(_)) {
            hidden.insert(path.clone());
        }
        match &entry.value {
            Value::Table(below) => collect(below, given, path, hidden),
            Value::List(list) => {
                for (number, (at, value)) in list.iter().enumerate() {
                    match value {
                        Value::Table(below) => {
                            path.push(element_name(below, number));
                            collect(below, given, path, hidden);
                            path.pop();
                        }
                        _ if given.holds(*at) => {
                            hidden.insert(path.clone());
                        }
                        _ => {}
                    }
                }
            }
            Value::Map(entries) => {
                for below in entries {
                    path.push(below.name.clone());
                    match &below.value {
                        Value::Table(fields) => collect(fields, given, path, hidden),
                        _ if given.holds(below.at) => {
                            hidden.insert(path.clone());
                        }
                        _ => {}
                    }
                    path.pop();
                }
            }
            _ => {}
        }
        path.pop();
    }
}

/// The path component of an element: for routes the name, or the position if they have none.
fn element_name(fields: &Fields, number: usize) -> String {
    if !fields.schema.has_header() {
        return EACH.to_owned();
    }
    fields.text("name").map_or_else(|| number.to_string(), str::to_owned)
}
