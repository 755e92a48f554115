//! What became of each directive, as the converters find it out.

use crate::{Directive, DirectiveVerdict};

/// Collects the verdicts of one conversion. A line of 0 is for a default that the file does not mention.
#[derive(Debug, Default)]
pub struct Verdicts {
    directives: Vec<Directive>,
}

impl Verdicts {
    /// Weir does the same; the note says what it is called there.
    pub fn exact(&mut self, line: usize, name: &str, note: impl Into<String>) {
        self.say(line, name, DirectiveVerdict::Exact, note.into());
    }

    /// Weir does something close; the note says what differs.
    pub fn approximate(&mut self, line: usize, name: &str, note: impl Into<String>) {
        self.say(line, name, DirectiveVerdict::Approximate, note.into());
    }

    /// Weir has nothing like it; the note says what is missing.
    pub fn unsupported(&mut self, line: usize, name: &str, note: impl Into<String>) {
        self.say(line, name, DirectiveVerdict::Unsupported, note.into());
    }

    /// Says it with a verdict that was found elsewhere.
    pub fn say(&mut self, line: usize, name: &str, verdict: DirectiveVerdict, note: String) {
        let file = String::new();
        self.directives.push(Directive { file, line, name: name.to_owned(), verdict, note });
    }

    /// Adds those that another part found.
    pub fn append(&mut self, mut others: Verdicts) {
        self.directives.append(&mut others.directives);
    }

    /// All of them in the order of their lines, those of defaults last.
    pub fn in_order(self) -> Vec<Directive> {
        let mut directives = self.directives;
        directives.sort_by_key(|directive| if directive.line == 0 { usize::MAX } else { directive.line });
        directives
    }
}
