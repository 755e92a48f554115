//! Templates for the lines and fields of an access log.

use std::collections::BTreeMap;

use weir_template::Template;

use crate::fields::{KeyValue, Value};
use crate::keys::Shape;
use crate::report::{Span, quote};
use crate::setting::{One, Setting};
use crate::units::{Refused, refuse};
use crate::values::template::compiled_line;

/// A template that is rendered at the end of an exchange, session or flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineTemplate(pub Template);

pub(super) static LINE: Shape =
    Shape::new("a line with variables", "$client_ip [$time] \\\"$method $target\\\" $status", line)
        .with_variables();
pub(super) static FIELD_NAME: Shape = Shape::new("the name of a field", "tenant", field_name);
pub(super) static FIELD_VALUE: Shape = Shape::new("a value with variables", "$header.x-tenant", |text| {
    compiled_line(text, "a field of a log")?;
    Ok(text.to_owned())
})
.with_variables();

/// Longest name of a field, in bytes.
const FIELD_NAME_BYTES: usize = 64;

impl One for LineTemplate {
    fn of(value: &Value) -> Option<LineTemplate> {
        match value {
            Value::Text(text) => Template::parse_line(text).ok().map(LineTemplate),
            _ => None,
        }
    }

    fn value(&self) -> Value {
        Value::Text(self.0.as_written().to_owned())
    }

    fn blank() -> LineTemplate {
        LineTemplate(Template::constant(""))
    }
}

impl Setting for BTreeMap<String, LineTemplate> {
    fn read(value: Option<&Value>) -> BTreeMap<String, LineTemplate> {
        let Some(Value::Map(entries)) = value else { return BTreeMap::new() };
        let read = |entry: &KeyValue| Some((entry.name.clone(), LineTemplate::of(&entry.value)?));
        entries.iter().filter_map(read).collect()
    }

    fn write(&self) -> Option<Value> {
        let entry = |(name, template): (&String, &LineTemplate)| {
            KeyValue::new(name, Span::default(), Span::default(), template.value())
        };
        (!self.is_empty()).then(|| Value::Map(self.iter().map(entry).collect()))
    }
}

/// A line must contain no line ends, since the log adds them.
fn line(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a line", quote(text));
    if text.is_empty() {
        return refuse(message, "expected something like \"$client_ip $status $total\"");
    }
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return refuse(message, "a line holds no line end and no other control character but a tab");
    }
    compiled_line(text, "a line of a log")?;
    Ok(text.to_owned())
}

fn field_name(text: &str) -> Result<String, Refused> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
    if text.is_empty() || text.len() > FIELD_NAME_BYTES || !text.chars().all(is_good) {
        return refuse(
            format!("{} is not the name of a field", quote(text)),
            format!("expected 1 to {FIELD_NAME_BYTES} characters of a-z, A-Z, 0-9, `_`, `-`, `.` and `@`"),
        );
    }
    Ok(text.to_owned())
}
