//! `monitor-uri` and `monitor fail`: what those are told who watch whether the service is well.
//!
//! They come before every rule. HAProxy looks at the whole URI, and writes no line of such requests.

use super::acls::{Lost, When};
use super::asks::Ask;
use super::matching::{Atom, Test};
use super::sections::Line;

/// The line that says which requests are meant: the last.
pub fn watched<'l>(lines: &[&'l Line]) -> Option<&'l Line> {
    lines.iter().copied().rfind(|line| line.word(0) == "monitor-uri" && !line.negated)
}

/// When `monitor fail` holds: of all requests for those alone that the line before it means.
pub fn of_those(when: Result<When, Lost>, line: &Line) -> Result<When, Lost> {
    let when = when?;
    let both = asked(line).and_then(|asked| asked.and(&when));
    both.ok_or_else(|| Lost { why: "it is too long".to_owned(), when, counts: false })
}

/// When a request asks for what the line means; `None` if it names no path.
pub fn asked(line: &Line) -> Option<When> {
    let path = line.word(1);
    let atom = Atom::Ask(Ask::Path(vec![path.to_owned()]));
    path.starts_with('/').then(|| When::of(Test::of(atom)))
}
