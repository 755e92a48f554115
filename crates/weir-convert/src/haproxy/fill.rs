//! Variables of a request and captured fields, filled in where they are used.
//!
//! Weir has no variables that rules set. A variable that one rule alone sets, for every request, is the same
//! as what it is set to, so `var(txn.name)` gives way to that. `capture.req.hdr(0)` is the field that the
//! first `capture request header` names.

use std::collections::BTreeMap;

use super::ledger::Ledger;
use super::sections::{Line, Section};

/// Most variables that are filled in within each other.
const MOST_TURNS: usize = 4;

/// Fills in what is known, and gives the rules that set it their verdicts.
pub fn fill_in(sections: &mut [Section], ledger: &mut Ledger) {
    let variables = variables(sections);
    for name in variables.keys() {
        let needle = format!("var({name})");
        let is_used = |line: &Line| line.words.iter().any(|word| word.contains(&needle));
        let used = sections.iter().flat_map(|section| &section.lines).any(is_used);
        let note = if used { "filled in where it is used" } else { "used by no rule" };
        for line in sections.iter().flat_map(|section| &section.lines) {
            if set_by(line).is_some_and(|(set, _)| set == *name) {
                ledger.exact(line.number, note);
            }
        }
    }
    for line in sections.iter_mut().flat_map(|section| &mut section.lines) {
        super::criteria::mark(line);
    }
    for section in sections {
        let captured = captured(&section.lines);
        for word in section.lines.iter_mut().flat_map(|line| &mut line.words) {
            for _ in 0..MOST_TURNS {
                let Some(next) = filled(word, &variables, &captured) else { break };
                *word = next;
            }
        }
    }
}

/// Variables that one rule alone sets, for every request, with what they are set to.
fn variables(sections: &[Section]) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, Vec<(&Line, String)>> = BTreeMap::new();
    for line in sections.iter().flat_map(|section| &section.lines) {
        if let Some((name, value)) = set_by(line) {
            all.entry(name).or_default().push((line, value));
        }
    }
    let once = all.into_iter().filter_map(|(name, set)| match set.as_slice() {
        [(line, value)] if is_plain(line, value) => Some((name, value.clone())),
        _ => None,
    });
    once.collect()
}

/// Whether a rule sets its variable for every request, to what routes may ask for where it is used.
fn is_plain(line: &Line, value: &str) -> bool {
    let condition = line.words.iter().any(|word| matches!(word.as_str(), "if" | "unless"));
    line.word(0) == "http-request" && !line.negated && !condition && !value.is_empty()
}

/// The variable that a line sets, and what to; the text is empty where it is no sample.
fn set_by(line: &Line) -> Option<(String, String)> {
    let at = match line.word(0) {
        "http-request" | "http-response" | "http-after-response" => 1,
        "tcp-request" | "tcp-response" => 2,
        _ => return None,
    };
    let (action, rest) = line.word(at).split_once('(')?;
    let name = rest.strip_suffix(')')?.to_owned();
    match action {
        "set-var" => {
            Some((name, line.from(at + 1).iter().take_while(|word| *word != "if").cloned().collect()))
        }
        "set-var-fmt" | "unset-var" => Some((name, String::new())),
        _ => None,
    }
}

/// The fields that a proxy captures of requests, by their numbers.
fn captured(lines: &[Line]) -> Vec<String> {
    let field = |line: &Line| match (line.word(0), line.word(1), line.word(2)) {
        ("capture", "request", "header") => Some(format!("req.hdr({})", line.word(3))),
        ("http-request", "capture", sample) if line.from(3).iter().any(|word| word == "len") => {
            Some(sample.to_owned())
        }
        _ => None,
    };
    lines.iter().filter_map(field).collect()
}

/// The word with the first of what is known filled in; `None` if there is nothing of it.
fn filled(word: &str, variables: &BTreeMap<String, String>, captured: &[String]) -> Option<String> {
    let call = |name: &str| {
        let at = word.find(name)?;
        // The name of another fetch may end like this one.
        let before = word[..at].chars().next_back();
        if before.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')) {
            return None;
        }
        let rest = &word[at + name.len()..];
        let end = rest.find(')')?;
        Some((at, rest[..end].split(',').next().unwrap_or_default().trim(), &rest[end + 1..]))
    };
    let (at, value, rest) = if let Some((at, name, rest)) = call("var(") {
        (at, variables.get(name)?, rest)
    } else {
        let (at, number, rest) = call("capture.req.hdr(")?;
        (at, captured.get(number.parse::<usize>().ok()?)?, rest)
    };
    Some(format!("{}{value}{rest}", &word[..at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled_in(text: &str) -> Vec<String> {
        let mut ledger = Ledger::default();
        let mut sections = super::super::sections::sections(text, &mut ledger).expect("sections");
        fill_in(&mut sections, &mut ledger);
        sections[0].lines.iter().map(|line| line.words.join(" ")).collect()
    }

    #[test]
    fn a_variable_that_is_set_once_and_always_is_filled_in() {
        let lines = filled_in(
            "frontend a\n http-request set-var(txn.host) req.hdr(host),lower\n \
             http-request set-header X-A %[var(txn.host),field(1,:)]\n acl b var(txn.host) -m str x\n",
        );
        assert_eq!(lines[1], "http-request set-header X-A %[req.hdr(host),lower,field(1,:)]");
        assert_eq!(lines[2], "acl b req.hdr(host),lower -m str x");
    }

    #[test]
    fn a_variable_with_a_condition_or_two_values_is_left() {
        for rule in [
            "http-request set-var(txn.x) path if { path /a }",
            "http-request set-var(txn.x) path\n http-request set-var(txn.x) method",
            "http-response set-var(txn.x) status",
        ] {
            let lines = filled_in(&format!("frontend a\n {rule}\n acl b var(txn.x) x\n"));
            assert_eq!(lines.last().map(String::as_str), Some("acl b var(txn.x) x"), "{rule}");
        }
    }

    #[test]
    fn a_captured_field_is_filled_in_by_its_number() {
        let lines = filled_in(
            "frontend a\n capture request header Origin len 64\n http-request capture req.cook(a) len 9\n \
             http-response set-header X %[capture.req.hdr(0)]-%[capture.req.hdr(1)]\n",
        );
        assert_eq!(lines[2], "http-response set-header X %[req.hdr(Origin)]-%[req.cook(a)]");
    }
}
