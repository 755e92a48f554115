//! `monitor-uri` and `monitor fail`: what those are told who watch whether the service is well.
//!
//! They come before every rule. HAProxy looks at the whole URI, and writes no line of such requests.

use super::acls::{Lost, When};
use super::actions::Became;
use super::answers::refusal;
use super::asks::Ask;
use super::matching::{Atom, Test};
use super::output::{Keys, said};
use super::rules::{Answer, StepAct};
use super::sections::Line;

/// The line that says which requests are meant: the last.
pub fn watched<'l>(lines: &[&'l Line]) -> Option<&'l Line> {
    lines.iter().copied().rfind(|line| line.word(0) == "monitor-uri" && !line.negated)
}

/// `monitor-uri`: 200.
pub fn well(line: &Line) -> Result<Became, String> {
    let when = Some(asked(line).ok_or("it names no path")?);
    let mut table = Keys::default();
    table.set("status", "200");
    table.set("body", said("<html><body><h1>200 OK</h1>\nService ready.\n</body></html>\n"));
    table.set("content_type", said("text/html"));
    let (body, fields) = (Keys::default(), Vec::new());
    let answer =
        Answer { key: "respond", table: table.inline(), status: 200, body, fields, takes_page: false };
    Ok(Became {
        acts: vec![StepAct::Answer(answer)],
        what: "the first route, which answers 200".to_owned(),
        notes: vec!["also with a query behind the path; such requests are in the log".to_owned()],
        when,
    })
}

/// `monitor fail`: 503, before the other one.
pub fn unwell() -> Became {
    Became {
        acts: vec![StepAct::Unwell(refusal(503))],
        what: "a route that answers 503 before that of `monitor-uri`".to_owned(),
        ..Became::default()
    }
}

/// When `monitor fail` holds: of all requests for those alone that the line before it means.
pub fn of_those(when: Result<When, Lost>, line: &Line) -> Result<When, Lost> {
    let when = when?;
    let both = asked(line).and_then(|asked| asked.and(&when));
    both.ok_or_else(|| Lost { why: "it is too long".to_owned(), when, counts: false })
}

fn asked(line: &Line) -> Option<When> {
    let path = line.word(1);
    let atom = Atom::Ask(Ask::Path(vec![path.to_owned()]));
    path.starts_with('/').then(|| When::of(Test::of(atom)))
}
