//! Statuses by which answers are selected, each a number or a class.

use weir_screen::AnswerStatus;

use crate::fields::Value;
use crate::keys::Shape;
use crate::report::quote;
use crate::setting::one;
use crate::units::{Refused, refuse};

one!(
    AnswerStatus,
    Value::Text(text) => AnswerStatus::parse(text),
    |it| Value::Text(it.to_string()),
    AnswerStatus::Class(5)
);

/// Any status, or a class of them.
pub(crate) static STATUS: Shape = Shape::new("a status or a class of them", "5xx", status).or_number();

fn status(text: &str) -> Result<String, Refused> {
    let lower = text.to_ascii_lowercase();
    match AnswerStatus::parse(&lower) {
        Some(status) if lower.len() == 3 => Ok(status.to_string()),
        _ => refuse(format!("{} is not a status", quote(text)), "expected 100 to 599, or \"1xx\" to \"5xx\""),
    }
}
