//! Kinds of text that several tables share.

pub(crate) mod address;
pub(crate) mod bind;
pub(crate) mod host;
pub(crate) mod http;
pub(crate) mod interface;
pub(crate) mod path;
pub(crate) mod probe;
pub(crate) mod status;
pub(crate) mod template;
pub(crate) mod unix;

use crate::fields::{Fields, Value};
use crate::keys::Shape;
use crate::report::{Findings, Span, quote};
use crate::units::{Refused, refuse};

/// Longest name of a listener, pool or route, in bytes: names are metric labels and parts of admin paths.
pub(crate) const NAME_BYTES: usize = 64;

/// The name of a listener, pool or route. It is used in metric labels, log lines, admin paths and cookies.
pub(crate) static NAME: Shape = Shape::new("a name", "app", name);

/// Any text without NUL.
pub(crate) static TEXT: Shape = Shape::new("a text", "ok\\n", |text| Ok(text.to_owned()));

fn name(text: &str) -> Result<String, Refused> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > NAME_BYTES {
        return refuse(
            format!("{} is not a name", quote(text)),
            format!("expected 1 to {NAME_BYTES} characters of a-z, A-Z, 0-9, `-`, `_` and `.`"),
        );
    }
    if !text.chars().all(good) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return refuse(
            format!("{} is not a name", quote(text)),
            "expected a letter or digit, then letters, digits, `-`, `_` and `.` (it becomes a metric label)",
        );
    }
    Ok(text.to_owned())
}

/// Reports repeated elements in a list of a table.
pub(crate) fn said_once(fields: &Fields, name: &str, findings: &mut Findings<'_>) {
    let mut seen: Vec<(&str, Span)> = Vec::new();
    for (at, value) in fields.list(name) {
        let text = match value {
            Value::Text(text) => text.as_str(),
            Value::Word(word) => word,
            _ => continue,
        };
        match seen.iter().find(|(other, _)| *other == text) {
            Some((_, first)) => {
                let hint = format!("the first is at {}", findings.place(*first));
                findings.error(*at, format!("`{text}` is said twice"), hint);
            }
            None => seen.push((text, *at)),
        }
    }
}
