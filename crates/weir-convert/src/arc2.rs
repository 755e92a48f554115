//! ARC2 Proxy's configuration: a TOML file with one `[[proxy_rules]]` for each domain.
//!
//! A feature of ARC2 is active only if both the global switch and that of the domain are on. Where ARC2's
//! documentation is unclear, the notes say how it was read, and what differs if it was meant otherwise.

mod bag;
mod globals;
mod locations;
mod paths;
mod rules;

use toml::de::DeTable;

use self::bag::{Bag, Left, Taken};
use crate::verdicts::Verdicts;
use crate::write::{line, texts};
use crate::{Converted, NotConverted};
use weir_config::quoted;

/// Whether a file looks like one of ARC2's, even if it has mistakes.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| {
        line.starts_with("[[proxy_rules]]")
            || line.starts_with("proxy_rules")
            || line.starts_with("listening_port_http")
    })
}

/// Converts a file.
pub(super) fn convert(text: &str) -> Result<Converted, NotConverted> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1);
        NotConverted { message: format!("line {line} is not TOML: {}", error.message()), hint: String::new() }
    })?;
    let mut bag = Bag::of(table.get_ref(), text);
    let mut notes = Notes::default();
    let rules = bag.tables("proxy_rules").map_or_else(Vec::new, |taken| taken.value);
    let globals = globals::read(&mut bag, &mut notes);
    notes.leftover(bag);
    let rules: Vec<rules::Rule> = rules
        .into_iter()
        .enumerate()
        .map(|(index, (line, bag))| rules::read(index, line, bag, &globals, &mut notes))
        .collect();
    if rules.is_empty() {
        notes.verdicts.exact(0, "proxy_rules", "there is none: every request is answered with 404");
    }
    let mut body = String::new();
    globals::write(&globals, &rules, &mut body, &mut notes);
    rules::write(&globals, &rules, &mut body);
    locations::write(&globals, &rules, &mut body);
    Ok(Converted { from: "ARC2 Proxy", body, files: Vec::new(), directives: notes.verdicts.in_order() })
}

/// Collects verdicts.
#[derive(Default)]
struct Notes {
    verdicts: Verdicts,
}

impl Notes {
    fn exact<T>(&mut self, taken: &Taken<T>, note: impl Into<String>) {
        self.verdicts.exact(taken.line, &taken.name, note);
    }

    fn approximate<T>(&mut self, taken: &Taken<T>, note: impl Into<String>) {
        self.verdicts.approximate(taken.line, &taken.name, note);
    }

    fn unsupported<T>(&mut self, taken: &Taken<T>, note: impl Into<String>) {
        self.verdicts.unsupported(taken.line, &taken.name, note);
    }

    /// Notes a default of ARC2 that the file does not mention.
    fn unsaid(&mut self, name: &str, note: impl Into<String>) {
        self.verdicts.approximate(0, name, note);
    }

    fn leftover(&mut self, bag: Bag) {
        for Left { name, line, note } in bag.rest() {
            self.verdicts.unsupported(line, &name, note);
        }
    }
}

/// How a text is compared with a path or a user agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    Equals,
    StartsWith,
    EndsWith,
    Contains,
    DoesNotEqual,
    DoesNotContain,
}

impl Match {
    fn of(word: &str) -> Option<Match> {
        Some(match word {
            "Equals" => Match::Equals,
            "StartsWith" => Match::StartsWith,
            "EndsWith" => Match::EndsWith,
            "Contains" => Match::Contains,
            "DoesNotEqual" => Match::DoesNotEqual,
            "DoesNotContain" => Match::DoesNotContain,
            _ => return None,
        })
    }

    /// The pattern as Weir writes it in lists of texts.
    fn pattern(self, text: &str) -> String {
        match self {
            Match::Equals => text.to_owned(),
            Match::StartsWith => format!("{text}*"),
            Match::EndsWith => format!("*{text}"),
            Match::Contains => format!("*{text}*"),
            Match::DoesNotEqual => format!("!{text}"),
            Match::DoesNotContain => format!("!*{text}*"),
        }
    }
}

#[cfg(test)]
mod tests;
