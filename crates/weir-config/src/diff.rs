//! What a reload would change, object by object: for the log, the reload's answer and `weir reload`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::admin;
use crate::config::Config;
use crate::fields::{Fields, Value};
use crate::hidden::Hidden;
use crate::setting::Setting;
use crate::write::{Secrets, effective, shown};

/// How an object changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Only the new config has it.
    Added,
    /// Only the old config has it.
    Removed,
    /// Both have it, with different settings.
    Changed,
}

/// An object that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `runtime`, `admin`, `log`, `cache`, `kernel`, `dns`, `listener.NAME` or `pool.NAME`.
    pub object: String,
    /// How it changed.
    pub kind: ChangeKind,
    /// The settings that differ; empty for objects that were added or removed.
    pub keys: Vec<KeyChange>,
}

/// A setting that differs. Values are effective values as TOML, defaults included, secrets left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// `timeout`, `health.interval`, `route shop/0.host`, …
    pub key: String,
    /// The value before; `None` if it was not set and has no default.
    pub from: Option<String>,
    /// The value now.
    pub to: Option<String>,
    /// Takes effect only after a restart (or USR2).
    pub restart: bool,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ChangeKind::Added => write!(f, "{} added", self.object),
            ChangeKind::Removed => write!(f, "{} removed", self.object),
            ChangeKind::Changed => {
                write!(f, "{} changed: ", self.object)?;
                for (index, key) in self.keys.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{key}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.key, brief(self.from.as_deref()), brief(self.to.as_deref()))?;
        if self.restart { write!(f, " (needs a restart)") } else { Ok(()) }
    }
}

/// Longest value in a line, in characters: a list may be thousands of addresses.
const MOST_SHOWN: usize = 120;

fn brief(value: Option<&str>) -> String {
    let value = value.unwrap_or("nothing");
    let mut shown: String = value.chars().take(MOST_SHOWN).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    shown
}

/// One setting: the value that is compared, the value that is shown, and whether a change needs a restart.
#[derive(PartialEq)]
struct Shown {
    value: String,
    shown: String,
    restart: bool,
}

/// Settings of one object by key.
type Settings = BTreeMap<String, Shown>;

/// The differences between two configs, in the order of the new one; removed objects come last. Empty when
/// they are equal.
///
/// The order of routes matters: the first match wins.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let (old, new) = (objects(&effective(old)), objects(&effective(new)));
    let mut left: HashMap<&String, &Settings> =
        old.iter().map(|(object, settings)| (object, settings)).collect();
    let mut changes = Vec::new();
    for (object, now) in &new {
        let (kind, keys) = match left.remove(object) {
            None => (ChangeKind::Added, Vec::new()),
            Some(before) if before != now => (ChangeKind::Changed, key_changes(before, now)),
            Some(_) => continue,
        };
        changes.push(Change { object: object.clone(), kind, keys });
    }
    for (object, _) in old.iter().filter(|(object, _)| left.contains_key(object)) {
        changes.push(Change { object: object.clone(), kind: ChangeKind::Removed, keys: Vec::new() });
    }
    changes
}

/// `wanted`, limited to what a process that runs with `running` can change: keys that need a restart (or
/// USR2) stay as they are. Also returns the keys that differ, such as `runtime.workers`.
pub fn until_restart(wanted: &Config, running: &Config) -> (Config, Vec<String>) {
    let (mut fields, old) = (wanted.fields(), running.fields());
    let mut differing = Vec::new();
    for name in ["runtime", "admin", "kernel"] {
        let (Some(old), Some(now)) = (old.table(name), fields.below_mut(name).pop()) else { continue };
        for key in now.schema.keys().into_iter().filter(|key| key.restart) {
            let said =
                |fields: &Fields| fields.get(key.name).map(|entry| shown(key, entry, Secrets::Written));
            if said(now) != said(old) {
                differing.push(format!("{name}.{}", key.name));
            }
            now.entries.retain(|entry| entry.name != key.name);
            now.entries.extend(old.get(key.name).cloned());
        }
    }
    let runtime = Setting::read(fields.value("runtime"));
    let admin = fields.table("admin").and_then(admin::read);
    let kernel = Setting::read(fields.value("kernel"));
    let of = |hidden: Hidden, table| hidden.and(&running.hidden, table);
    let hidden = ["runtime", "admin", "kernel"].into_iter().fold(wanted.hidden.clone(), of);
    (Config { runtime, admin, kernel, hidden, ..wanted.clone() }, differing)
}

/// What is needed to change a key that [`until_restart`] returns, as text to follow the key. Tables of the
/// kernel plane outlive the process, and the next process takes them over unchanged.
pub fn how_to_change(key: &str) -> &'static str {
    match key.starts_with("kernel.") {
        true => "needs a restart to change; USR2 is not enough",
        false => "needs a restart, or USR2, to change",
    }
}

/// Every object of a file with its settings, in file order.
fn objects(root: &Fields) -> Vec<(String, Settings)> {
    let mut objects = Vec::new();
    for entry in &root.entries {
        match &entry.value {
            Value::Map(tables) => {
                for table in tables {
                    let settings = table.value.tables().into_iter().map(settings_of).next();
                    objects.push((format!("{}.{}", entry.name, table.name), settings.unwrap_or_default()));
                }
            }
            Value::Table(fields) => objects.push((entry.name.clone(), settings_of(fields))),
            _ => {}
        }
    }
    objects
}

fn settings_of(fields: &Fields) -> Settings {
    let mut settings = Settings::new();
    collect("", fields, &mut settings);
    settings
}

/// Adds the settings of a table and of its subtables, by path: `timeout.connect`, `route canary.pool`.
fn collect(prefix: &str, fields: &Fields, settings: &mut Settings) {
    for entry in &fields.entries {
        let Some(key) = fields.schema.key(&entry.name) else { continue };
        let path = format!("{prefix}{}", key.name);
        match &entry.value {
            Value::Table(below) => collect(&format!("{path}."), below, settings),
            Value::List(_) if key.kind.table().is_some_and(|table| table.has_header()) => {
                let routes = entry.value.tables();
                let named = |(position, route): (usize, &&Fields)| match route.text("name") {
                    Some(name) => name.to_owned(),
                    None => position.to_string(),
                };
                let names: Vec<String> = routes.iter().enumerate().map(named).collect();
                let order = names.join(", ");
                let value = Shown { value: order.clone(), shown: order, restart: false };
                settings.insert(format!("{path} order"), value);
                for (name, route) in names.iter().zip(&routes) {
                    collect(&format!("{path} {name}."), route, settings);
                }
            }
            _ => {
                let value = Shown {
                    value: shown(key, entry, Secrets::Written),
                    shown: shown(key, entry, Secrets::LeftOut),
                    restart: key.restart,
                };
                settings.insert(path, value);
            }
        }
    }
}

fn key_changes(before: &Settings, now: &Settings) -> Vec<KeyChange> {
    let mut names: Vec<&String> = before.keys().chain(now.keys()).collect();
    names.sort();
    names.dedup();
    let changed = names.into_iter().filter(|name| before.get(*name) != now.get(*name));
    let changes = changed.map(|name| {
        let shown = |settings: &Settings| settings.get(name).map(|setting| setting.shown.clone());
        let restart = now.get(name).or(before.get(name)).is_some_and(|setting| setting.restart);
        KeyChange { key: name.clone(), from: shown(before), to: shown(now), restart }
    });
    changes.collect()
}
