//! ARC2 Proxy's configuration: a TOML file with one `[[proxy_rules]]` for each domain.
//!
//! A feature of ARC2 is active only if both the global switch and that of the domain are on. Where ARC2's
//! documentation is unclear, the notes say how it was read, and what differs if it was meant otherwise.

mod bag;
mod globals;
mod locations;
mod paths;
mod rules;

use std::fmt::Write as _;

use toml::de::DeTable;

use self::bag::{Bag, Left, Taken};
use crate::{Converted, Directive, DirectiveVerdict, NotConverted};
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
        notes.directives.push(Directive {
            line: 0,
            name: "proxy_rules".to_owned(),
            verdict: DirectiveVerdict::Exact,
            note: "there is none: every request is answered with 404".to_owned(),
        });
    }
    let mut body = String::new();
    globals::write(&globals, &rules, &mut body, &mut notes);
    rules::write(&globals, &rules, &mut body);
    locations::write(&globals, &rules, &mut body);
    let mut directives = notes.directives;
    directives.sort_by_key(|directive| if directive.line == 0 { usize::MAX } else { directive.line });
    Ok(Converted { from: "ARC2 Proxy", body, directives })
}

/// Collects verdicts.
#[derive(Default)]
struct Notes {
    directives: Vec<Directive>,
}

impl Notes {
    fn say<T>(&mut self, taken: &Taken<T>, verdict: DirectiveVerdict, note: impl Into<String>) {
        self.directives.push(Directive {
            line: taken.line,
            name: taken.name.clone(),
            verdict,
            note: note.into(),
        });
    }

    fn exact<T>(&mut self, taken: &Taken<T>, note: impl Into<String>) {
        self.say(taken, DirectiveVerdict::Exact, note);
    }

    fn approximate<T>(&mut self, taken: &Taken<T>, note: impl Into<String>) {
        self.say(taken, DirectiveVerdict::Approximate, note);
    }

    fn unsupported<T>(&mut self, taken: &Taken<T>, note: impl Into<String>) {
        self.say(taken, DirectiveVerdict::Unsupported, note);
    }

    /// Notes a default of ARC2 that the file does not mention.
    fn unsaid(&mut self, name: &str, note: impl Into<String>) {
        let name = name.to_owned();
        self.directives.push(Directive {
            line: 0,
            name,
            verdict: DirectiveVerdict::Approximate,
            note: note.into(),
        });
    }

    fn leftover(&mut self, bag: Bag) {
        for Left { name, line, note } in bag.rest() {
            self.directives.push(Directive { line, name, verdict: DirectiveVerdict::Unsupported, note });
        }
    }
}

/// Writes a line `key = value`.
fn line(body: &mut String, key: &str, value: impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = writeln!(body, "{key} = {value}");
}

/// Formats texts as a TOML list, or a single one as a string.
fn texts(values: &[String]) -> String {
    match values {
        [one] => quoted(one),
        _ => format!("[{}]", values.iter().map(|value| quoted(value)).collect::<Vec<_>>().join(", ")),
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
