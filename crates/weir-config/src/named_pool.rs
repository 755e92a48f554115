//! Keys that name a pool of the file.

use crate::fields::Fields;
use crate::report::{Findings, Span};
use crate::suggest::{nearest, one_of};

/// Reports a key such as `pool = "…"` whose pool does not exist.
pub(crate) fn exists(root: &Fields, fields: &Fields, key: &str, findings: &mut Findings<'_>) {
    if let Some(name) = fields.text(key) {
        is_there(root, fields.at(key), name, findings);
    }
}

/// Reports a name that is not the name of a pool.
pub(crate) fn is_there(root: &Fields, at: Span, name: &str, findings: &mut Findings<'_>) {
    let defined = root.map("pool");
    // `[pool]` itself could not be read: its pools are unknown.
    if defined.iter().any(|entry| entry.name == name) || root.is_bad("pool") || root.meant.contains(&"pool") {
        return;
    }
    let names = || defined.iter().map(|entry| entry.name.as_str());
    let hint = match nearest(name, names()).and_then(|near| defined.iter().find(|entry| entry.name == near)) {
        Some(near) => format!("did you mean `{}` ({})?", near.name, findings.place(near.at)),
        None if defined.is_empty() => {
            format!("no pool is defined at all; expected `[pool.{name}]` with `backends`")
        }
        None if defined.len() <= 8 => format!("expected {}, or a new `[pool.{name}]`", one_of(names())),
        None => format!("expected one of the {} pools of this file, or a new `[pool.{name}]`", defined.len()),
    };
    findings.error(at, format!("no pool is named `{name}`"), hint);
}
