//! What became of each directive: exactly one verdict, the worst of those that were given.

use std::rc::Rc;

use super::known;
use super::scope::NginxScope;
use super::tree::NginxDirective;
use crate::{Directive, DirectiveVerdict};

/// Collects the verdicts of directives. One that holds for several servers or locations is judged for each of
/// them, and keeps the first of the worst.
#[derive(Debug, Default)]
pub struct NginxLedger {
    entries: Vec<LedgerEntry>,
    defaults: Vec<Directive>,
}

#[derive(Clone, Debug, Default)]
struct LedgerEntry {
    file: Rc<str>,
    line: usize,
    name: String,
    shown: String,
    verdict: Option<(DirectiveVerdict, String)>,
}

impl NginxLedger {
    /// Adds a directive that needs a verdict.
    pub fn add(&mut self, directive: &NginxDirective) {
        let entry = self.entry(directive);
        entry.file = directive.file.clone();
        entry.line = directive.line;
        entry.name.clone_from(&directive.name);
        entry.shown = directive.shown();
    }

    fn entry(&mut self, directive: &NginxDirective) -> &mut LedgerEntry {
        if self.entries.len() <= directive.id {
            self.entries.resize(directive.id + 1, LedgerEntry::default());
        }
        &mut self.entries[directive.id]
    }

    /// Weir does the same.
    pub fn exact(&mut self, directive: &NginxDirective, note: impl Into<String>) {
        self.judge(directive, DirectiveVerdict::Exact, note.into());
    }

    /// Weir does something close.
    pub fn approximate(&mut self, directive: &NginxDirective, note: impl Into<String>) {
        self.judge(directive, DirectiveVerdict::Approximate, note.into());
    }

    /// Weir has nothing like it.
    pub fn unsupported(&mut self, directive: &NginxDirective, note: impl Into<String>) {
        self.judge(directive, DirectiveVerdict::Unsupported, note.into());
    }

    /// Gives a verdict, unless the directive has one that is as bad.
    pub fn judge(&mut self, directive: &NginxDirective, verdict: DirectiveVerdict, note: String) {
        let entry = self.entry(directive);
        if entry.verdict.as_ref().is_none_or(|(given, _)| *given < verdict) {
            entry.verdict = Some((verdict, note));
        }
    }

    /// Gives every directive of a block that has no verdict yet, and those of the blocks within, this one.
    pub fn judge_below(&mut self, directives: &[NginxDirective], verdict: DirectiveVerdict, note: &str) {
        for directive in directives {
            if self.entry(directive).verdict.is_none() {
                self.judge(directive, verdict, note.to_owned());
            }
            self.judge_below(directive.inner(), verdict, note);
        }
    }

    /// Makes every directive of a block unsupported, but for those of other locations within.
    pub fn void(&mut self, directives: &[NginxDirective], note: &str) {
        for directive in directives.iter().filter(|directive| directive.name != "location") {
            self.judge(directive, DirectiveVerdict::Unsupported, note.to_owned());
            self.void(directive.inner(), note);
        }
    }

    /// Notes that refusals have no level of their own.
    pub fn judge_log_level(&mut self, scope: &NginxScope<'_>, name: &str) {
        if let Some(directive) = scope.one(name) {
            self.approximate(directive, "refusals are counted, and in the access log");
        }
    }

    /// Whether a directive has a verdict.
    pub fn is_judged(&self, directive: &NginxDirective) -> bool {
        self.entries.get(directive.id).is_some_and(|entry| entry.verdict.is_some())
    }

    /// Notes a default of nginx that the file does not mention. The same one is noted once.
    pub fn unsaid(&mut self, name: &str, verdict: DirectiveVerdict, note: impl Into<String>) {
        let note = note.into();
        let said = self.defaults.iter().any(|other| other.name == name && other.note == note);
        if !said {
            let file = String::new();
            self.defaults.push(Directive { file, line: 0, name: name.to_owned(), verdict, note });
        }
    }

    /// All verdicts in the order of the files, those of defaults last.
    pub fn into_directives(self) -> Vec<Directive> {
        let named = self.entries.into_iter().filter(|entry| entry.line > 0);
        let with_verdict = named.map(|entry| {
            let (verdict, note) = entry.verdict.unwrap_or_else(|| known::verdict(&entry.name));
            Directive { file: entry.file.to_string(), line: entry.line, name: entry.shown, verdict, note }
        });
        with_verdict.chain(self.defaults).collect()
    }
}
