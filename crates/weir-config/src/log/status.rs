//! Statuses that lines of an access log are chosen by.

use crate::fields::Value;
use crate::keys::Shape;
use crate::report::quote;
use crate::setting::One;
use crate::units::{Refused, refuse};

/// A status, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedStatus {
    /// This one.
    One(u16),
    /// All with this first digit: 1 to 5.
    Class(u16),
}

impl LoggedStatus {
    /// Whether it is this status, or in this class.
    pub fn takes(self, status: u16) -> bool {
        match self {
            LoggedStatus::One(one) => one == status,
            LoggedStatus::Class(class) => class == status / 100,
        }
    }

    fn of_text(text: &str) -> Option<LoggedStatus> {
        let digit = |text: &str| text.parse().ok().filter(|class| (1..=5).contains(class));
        match text.strip_suffix("xx") {
            Some(class) => digit(class).map(LoggedStatus::Class),
            None => text.parse().ok().filter(|it| (100..=599).contains(it)).map(LoggedStatus::One),
        }
    }
}

impl std::fmt::Display for LoggedStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoggedStatus::One(status) => write!(f, "{status}"),
            LoggedStatus::Class(class) => write!(f, "{class}xx"),
        }
    }
}

impl One for LoggedStatus {
    fn of(value: &Value) -> Option<LoggedStatus> {
        match value {
            Value::Text(text) => LoggedStatus::of_text(text),
            _ => None,
        }
    }

    fn value(&self) -> Value {
        Value::Text(self.to_string())
    }

    fn blank() -> LoggedStatus {
        LoggedStatus::Class(5)
    }
}

pub(super) static STATUS: Shape = Shape::new("a status or a class of them", "5xx", status).or_number();

fn status(text: &str) -> Result<String, Refused> {
    let lower = text.to_ascii_lowercase();
    match LoggedStatus::of_text(&lower) {
        Some(status) if lower.len() == 3 => Ok(status.to_string()),
        _ => refuse(format!("{} is not a status", quote(text)), "expected 100 to 599, or \"1xx\" to \"5xx\""),
    }
}
