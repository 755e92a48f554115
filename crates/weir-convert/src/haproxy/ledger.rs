//! What became of each line, as the parts of the conversion find it out.

use std::collections::BTreeMap;

use crate::DirectiveVerdict;
use crate::verdicts::Verdicts;

/// One verdict for each line. What several parts say of one line is put together: the worst verdict holds,
/// and each note stands once.
#[derive(Debug, Default)]
pub struct Ledger {
    lines: BTreeMap<usize, Judgement>,
    unsaid: Vec<(String, String)>,
}

#[derive(Debug)]
struct Judgement {
    name: String,
    verdict: Option<DirectiveVerdict>,
    notes: Vec<(DirectiveVerdict, String)>,
}

impl Ledger {
    /// Enters a line that shall get a verdict.
    pub fn enter(&mut self, line: usize, name: String) {
        self.lines.insert(line, Judgement { name, verdict: None, notes: Vec::new() });
    }

    /// Weir does the same; the note says what it is called there.
    pub fn exact(&mut self, line: usize, note: impl Into<String>) {
        self.say(line, DirectiveVerdict::Exact, note.into());
    }

    /// Weir does something close; the note says what differs.
    pub fn approximate(&mut self, line: usize, note: impl Into<String>) {
        self.say(line, DirectiveVerdict::Approximate, note.into());
    }

    /// Weir has nothing like it, or it could not be converted; the note says what is then missing.
    pub fn unsupported(&mut self, line: usize, note: impl Into<String>) {
        self.say(line, DirectiveVerdict::Unsupported, note.into());
    }

    /// Says that a default differs which the file does not mention.
    pub fn unsaid(&mut self, name: &str, note: impl Into<String>) {
        let note = note.into();
        if !self.unsaid.iter().any(|(of, told)| of == name && *told == note) {
            self.unsaid.push((name.to_owned(), note));
        }
    }

    /// Says it with a verdict that was found elsewhere.
    pub fn say(&mut self, line: usize, verdict: DirectiveVerdict, note: String) {
        let Some(judgement) = self.lines.get_mut(&line) else { return };
        judgement.verdict = Some(judgement.verdict.map_or(verdict, |before| before.max(verdict)));
        if !note.is_empty() && !judgement.notes.iter().any(|(_, told)| *told == note) {
            judgement.notes.push((verdict, note));
        }
    }

    /// Whether a line has a verdict already.
    pub fn has(&self, line: usize) -> bool {
        self.lines.get(&line).is_some_and(|judgement| judgement.verdict.is_some())
    }

    /// The first line that is unsupported, and why.
    pub fn first_unsupported(&self) -> Option<String> {
        self.lines.iter().find_map(|(line, judgement)| {
            let worst =
                judgement.notes.iter().find(|(verdict, _)| *verdict == DirectiveVerdict::Unsupported)?;
            Some(format!("line {line}, {}: {}", judgement.name, worst.1))
        })
    }

    /// Everything, and `unsupported` for what nobody has said anything about.
    pub fn into_verdicts(self) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for (line, judgement) in self.lines {
            let Judgement { name, verdict, mut notes } = judgement;
            // What is worst is read first.
            notes.sort_by_key(|(verdict, _)| std::cmp::Reverse(*verdict));
            let note = notes.into_iter().map(|(_, note)| note).collect::<Vec<_>>().join("; ");
            match verdict {
                Some(DirectiveVerdict::Exact) => verdicts.exact(line, &name, note),
                Some(DirectiveVerdict::Approximate) => verdicts.approximate(line, &name, note),
                Some(DirectiveVerdict::Unsupported) => verdicts.unsupported(line, &name, note),
                None => verdicts.unsupported(line, &name, "not known here: it has no effect in Weir"),
            }
        }
        for (name, note) in self.unsaid {
            verdicts.approximate(0, &name, note);
        }
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gets_the_worst_of_its_verdicts_and_each_note_once() {
        let mut ledger = Ledger::default();
        ledger.enter(3, "server a".to_owned());
        ledger.enter(4, "spoe".to_owned());
        ledger.exact(3, "backend");
        ledger.unsupported(3, "no tcp-ut");
        ledger.exact(3, "backend");
        ledger.exact(99, "of no line");
        ledger.unsaid("retries", "3");
        ledger.unsaid("retries", "3");
        let told: Vec<String> = ledger.into_verdicts().in_order().iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "unsupported   line 3  server a: no tcp-ut; backend",
                "unsupported   line 4  spoe: not known here: it has no effect in Weir",
                "approximate  default  retries: 3",
            ]
        );
    }
}
