//! Compression: what is said must mean something.

use crate::fields::Fields;
use crate::report::Findings;
use crate::values::Value;

/// Notes codings that are named twice and levels of codings that are not offered.
pub(super) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    let Some(Value::Table(compress)) = fields.value("compress") else { return };
    let mut offered: Vec<&str> = Vec::new();
    for (at, value) in compress.list("codings") {
        let Value::Word(word) = value else { continue };
        if offered.contains(word) {
            findings.warning(
                *at,
                format!("`{word}` is offered twice"),
                "the first place counts; leave this out",
            );
        }
        offered.push(word);
    }
    if offered.is_empty() {
        return;
    }
    for entry in &compress.table("level").entries {
        if !offered.contains(&entry.name.as_str()) {
            let hint = format!("`codings` ({}) does not offer it", findings.place(compress.at("codings")));
            findings.warning(entry.key, format!("the level of `{}` has no effect", entry.name), hint);
        }
    }
}
