//! Rules of a proxy that are looked at for each request, as steps one after the other.

use super::acls::{Lost, Read, Reader, When};
use super::headers::{Edit, Side};
use super::ledger::Ledger;
use super::sections::Line;
use super::{actions, answers, tracks};

/// One rule.
#[derive(Clone, Debug)]
pub struct RuleStep {
    /// Its line.
    pub line: usize,
    /// Of which kind: those of one kind are followed before those of the next.
    pub phase: usize,
    /// When it is followed.
    pub when: When,
    /// What it does.
    pub act: StepAct,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq)]
pub enum StepAct {
    /// Answers; nothing after it is looked at.
    Answer(Answer),
    /// Leads to a backend, by the name that HAProxy's file has for it.
    Backend(String),
    /// Leads to the backend that a map names.
    Mapped(String),
    /// Goes on to the backend's choice.
    Allow,
    /// Changes a field.
    Edit(Side, Edit),
    /// Says a key of the routes behind it.
    Key(&'static str, String),
    /// Changes path and query of what the backend is asked.
    Rewrite(Rewrite),
    /// Asks for a name and a password of this list.
    Auth(String, String),
}

/// An answer from the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// `respond` or `redirect`.
    pub key: &'static str,
    /// Its table.
    pub table: String,
    /// Its status.
    pub status: u16,
    /// Fields that it has.
    pub fields: Vec<Edit>,
}

/// A changed path or query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The expression that the path must match, whose groups are filled in.
    pub pinned: Option<String>,
    /// `rewrite.path`
    pub path: Option<String>,
    /// `rewrite.query`
    pub query: Option<String>,
}

/// The rules of a proxy, and the names of the ACLs that they use.
#[derive(Debug, Default)]
pub struct Rules {
    /// In the order in which they are followed.
    pub steps: Vec<RuleStep>,
    /// Names of ACLs.
    pub used: Vec<String>,
}

/// Reads the rules in the lines of a proxy, and gives each its verdict.
pub fn rules(lines: &[&Line], reader: &mut Reader<'_>, ledger: &mut Ledger) -> Rules {
    let mut rules = Rules::default();
    let is = |words: &'static [&'static str]| move |line: &&&Line| words.contains(&line.word(0));
    // Whatever their order in the file, HAProxy follows them by kind. What is done to responses stands before
    // the rest, since no rule of requests keeps it from being done.
    let kinds: [&[&str]; 5] = [
        &["monitor-uri"],
        &["http-response", "http-after-response", "rspadd"],
        &["http-request", "reqadd", "block"],
        &["redirect"],
        &["use_backend"],
    ];
    for (phase, kind) in kinds.into_iter().enumerate() {
        for line in lines.iter().filter(is(kind)) {
            if !reader.is_tcp || line.word(0) == "use_backend" {
                rules.read(phase, line, reader, ledger);
            }
        }
    }
    rules
}

impl Rules {
    fn read(&mut self, phase: usize, line: &Line, reader: &mut Reader<'_>, ledger: &mut Ledger) {
        let first = match line.word(0) {
            "http-request" | "http-response" | "http-after-response" => 2,
            _ => 1,
        };
        let condition = (first..line.words.len()).find(|at| matches!(line.word(*at), "if" | "unless"));
        let end = condition.unwrap_or(line.words.len());
        let mut read = Read::default();
        let when = reader.when(line.from(end), &mut read);
        let when = when.and_then(|when| tracks::counted(when, &reader.tracks));
        self.used.extend(read.used);
        let words = &line.words[..end];
        if words.get(1).is_some_and(|action| action == "set-var" || action.starts_with("set-var(")) {
            if !ledger.has(line.number) {
                let note = "there are no variables of a request; what uses it is told by itself";
                ledger.unsupported(line.number, note);
            }
            return;
        }
        if words.get(1).is_some_and(|action| action == "set-src") && ledger.has(line.number) {
            return;
        }
        let acts = match line.word(0) {
            "monitor-uri" => answers::monitor(line),
            "redirect" => answers::redirect(&words[1..], reader.maps).map(actions::Became::answer),
            "block" => Ok(actions::Became::answer((answers::refusal(403), Vec::new()))),
            "use_backend" => actions::use_backend(line.word(1), reader.maps),
            "reqadd" | "rspadd" => actions::added(line),
            _ => actions::action(words, reader.maps),
        };
        let (when, became) = match (when, acts) {
            (Ok(when), Ok(became)) => (became.when.clone().unwrap_or(when), became),
            (when, acts) => return self.lost(phase, line, when, acts, ledger),
        };
        let mut notes: Vec<String> = became.notes.into_iter().chain(read.notes).collect();
        if line.word(0) == "http-response" && became.acts.iter().any(|act| matches!(act, StepAct::Edit(..))) {
            notes.push("errors that Weir answers itself have it, too".to_owned());
        }
        match notes.is_empty() {
            true => ledger.exact(line.number, became.what),
            false => ledger.approximate(line.number, format!("{}; {}", became.what, notes.join("; "))),
        }
        self.steps.extend(became.acts.into_iter().map(|act| RuleStep {
            line: line.number,
            phase,
            when: when.clone(),
            act,
        }));
    }
}

impl Rules {
    /// Takes up a rule of which something has no counterpart: one that refuses clients refuses all that it
    /// might concern, and all others are left out.
    fn lost(
        &mut self,
        phase: usize,
        line: &Line,
        when: Result<When, Lost>,
        acts: Result<actions::Became, String>,
        ledger: &mut Ledger,
    ) {
        let (when, why, counts) = match (when, &acts) {
            (Err(lost), _) => (lost.when, lost.why, lost.counts),
            (Ok(when), Err(why)) => (when, why.clone(), false),
            (Ok(when), Ok(_)) => (when, String::new(), false),
        };
        if counts && refuses(line) {
            return ledger.unsupported(line.number, format!("{why}: {NO_LIMIT}"));
        }
        ledger.unsupported(line.number, format!("{why}: {}", effect(line)));
        let acts = match acts {
            Ok(became) => became.acts,
            Err(_) if refuses(line) => vec![StepAct::Answer(answers::refusal(403))],
            Err(_) => return,
        };
        // A backend may serve nobody, which the routes know.
        if refuses(line) || line.word(0) == "use_backend" {
            let step = |act| RuleStep { line: line.number, phase, when: when.clone(), act };
            self.steps.extend(acts.into_iter().map(step));
        }
    }
}

/// Whether a rule refuses clients.
fn refuses(line: &Line) -> bool {
    match line.word(0) {
        "http-request" => {
            matches!(line.word(1), "deny" | "tarpit" | "reject" | "silent-drop" | "auth")
        }
        word => word == "block",
    }
}

/// What it means that a limit is not there.
pub const NO_LIMIT: &str = "NOT CONVERTED: there is NO LIMIT here in Weir";
/// What it means that a response is not refused.
pub const HELD_BACK: &str = "NOT CONVERTED: what HAProxy holds back here PASSES in Weir";
/// What it means that a condition is not asked whole.
pub const CLOSED: &str =
    "CLOSED: Weir refuses ALL that this rule might concern, more than HAProxy, until you say whom to let in";

/// What it means that a rule is not there.
pub fn effect(line: &Line) -> &'static str {
    match (line.word(0), line.word(1)) {
        _ if refuses(line) => CLOSED,
        ("tcp-request", _) if matches!(line.word(2), "reject" | "silent-drop") => CLOSED,
        ("tcp-request", _) => "not converted: the rules behind it hold for these, too",
        ("http-response", "deny") => HELD_BACK,
        ("http-request", "allow") => "not converted: the rules behind it hold for these requests, too",
        ("http-request", "redirect" | "return") | ("redirect", _) => {
            "not converted: these requests are not answered here, but go on"
        }
        ("use_backend", _) => "not converted: these requests go on to the next rules and the default",
        _ => "not converted: it has no effect",
    }
}
