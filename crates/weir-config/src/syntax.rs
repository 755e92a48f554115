//! Mistakes in the TOML itself, in our words.

use toml::de::Error;

use crate::report::{Findings, Span, quote};

/// Notes every syntax error.
pub(crate) fn report(errors: &[Error], findings: &mut Findings<'_>) {
    for error in errors {
        let span = error.span().map_or(Span { start: findings.source.text.len(), end: findings.source.text.len() }, Span::from);
        let (message, hint) = explain(error.message(), span, findings);
        findings.error(span, message, hint);
    }
}

fn explain(message: &str, span: Span, findings: &Findings<'_>) -> (String, String) {
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    (what.to_owned(), if expected.is_empty() { String::new() } else { format!("expected {expected}") })
}
