//! What a reload would change, object by object, for the log, the reload answer and `weir reload`.

use std::collections::BTreeMap;
use std::fmt;

use crate::keys::ROOT;
use crate::schema::Config;
use crate::write::{Section, sections, without_secrets};

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The new config has it, the old one has not.
    Added,
    /// The old config has it, the new one has not.
    Removed,
    /// Both have it, with different settings.
    Changed,
}

/// One object that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `runtime`, `admin`, `log`, `listener.NAME` or `pool.NAME`.
    pub object: String,
    /// What happened to it.
    pub kind: ChangeKind,
    /// The settings that differ; empty for objects that were added or removed.
    pub keys: Vec<KeyChange>,
}

impl Change {
    /// Whether part of it takes force only after a restart (or USR2).
    pub fn needs_restart(&self) -> bool {
        self.keys.iter().any(|key| key.restart)
    }
}

/// One setting that differs. Values are effective values as TOML, defaults included, secrets left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// `timeout`, `health.interval`, `route shop/0.host`, …
    pub key: String,
    /// What held before; `None` where nothing was said and nothing holds by default.
    pub from: Option<String>,
    /// What holds now.
    pub to: Option<String>,
    /// Takes force only after a restart (or USR2).
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
        let none = "nothing";
        write!(
            f,
            "{} from {} to {}",
            self.key,
            self.from.as_deref().unwrap_or(none),
            self.to.as_deref().unwrap_or(none)
        )?;
        if self.restart { write!(f, " (needs a restart)") } else { Ok(()) }
    }
}

/// Settings of one object: key to the value that is compared and the value that is shown.
type Settings = BTreeMap<String, (String, String)>;

/// What differs between two configs, in the order of the new one; what was removed comes last. Empty when they are equal.
///
/// The order of routes counts: the first match wins.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let (old_order, old) = objects(old);
    let (new_order, new) = objects(new);
    let mut changes = Vec::new();
    for object in new_order {
        let now = &new[&object];
        match old.get(&object) {
            None => changes.push(Change { object, kind: ChangeKind::Added, keys: Vec::new() }),
            Some(before) if before != now => {
                let keys = key_changes(&object, before, now);
                changes.push(Change { object, kind: ChangeKind::Changed, keys });
            }
            Some(_) => {}
        }
    }
    for object in old_order.into_iter().filter(|object| !new.contains_key(object)) {
        changes.push(Change { object, kind: ChangeKind::Removed, keys: Vec::new() });
    }
    changes
}

fn objects(config: &Config) -> (Vec<String>, BTreeMap<String, Settings>) {
    let mut order = Vec::new();
    let mut objects: BTreeMap<String, Settings> = BTreeMap::new();
    let shown = sections(&without_secrets(config));
    for (section, shown) in sections(config).into_iter().zip(shown) {
        if !objects.contains_key(&section.object) {
            order.push(section.object.clone());
        }
        let settings = objects.entry(section.object.clone()).or_default();
        let Section { prefix, keys, repeated, .. } = section;
        if repeated {
            let (value, _) = settings.entry("route order".to_owned()).or_default();
            value.push_str(&prefix);
            value.push('\n');
        }
        for ((name, value), (_, shown)) in keys.into_iter().zip(shown.keys) {
            let key = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
            settings.insert(key, (value, shown));
        }
    }
    for settings in objects.values_mut() {
        if let Some((value, shown)) = settings.get_mut("route order") {
            *shown =
                value.lines().map(|name| name.trim_start_matches("route ")).collect::<Vec<_>>().join(", ");
        }
    }
    (order, objects)
}

fn key_changes(object: &str, before: &Settings, now: &Settings) -> Vec<KeyChange> {
    let table = ROOT.key(object).and_then(|key| key.kind.table());
    let restart = |key: &str| table.and_then(|table| table.key(key)).is_some_and(|key| key.restart);
    let mut names: Vec<&String> = before.keys().chain(now.keys()).collect();
    names.sort();
    names.dedup();
    let changed =
        names.into_iter().filter(|name| before.get(*name).map(|v| &v.0) != now.get(*name).map(|v| &v.0));
    let changes = changed.map(|name| {
        let shown = |settings: &Settings| settings.get(name).map(|(_, shown)| shown.clone());
        KeyChange { key: name.clone(), from: shown(before), to: shown(now), restart: restart(name) }
    });
    changes.collect()
}
