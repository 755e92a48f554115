//! Status codes and classes by which answers are selected.

use std::fmt;

/// A status, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// This status.
    One(u16),
    /// All statuses with this first digit: 1 to 5.
    Class(u16),
}

impl AnswerStatus {
    /// Parses `"404"` and `"4xx"`; `None` for anything else.
    pub fn parse(text: &str) -> Option<AnswerStatus> {
        let digit = |text: &str| text.parse().ok().filter(|class| (1..=5).contains(class));
        match text.strip_suffix("xx") {
            Some(class) => digit(class).map(AnswerStatus::Class),
            None => text.parse().ok().filter(|it| (100..=599).contains(it)).map(AnswerStatus::One),
        }
    }

    /// Whether `status` is this one, or in this class.
    pub fn takes(self, status: u16) -> bool {
        match self {
            AnswerStatus::One(one) => one == status,
            AnswerStatus::Class(class) => class == status / 100,
        }
    }
}

impl fmt::Display for AnswerStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerStatus::One(status) => write!(out, "{status}"),
            AnswerStatus::Class(class) => write!(out, "{class}xx"),
        }
    }
}
