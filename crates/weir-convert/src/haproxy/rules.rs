//! Rules of a proxy that are looked at for each request, as steps one after the other.

use super::acls::{Lost, Read, Reader, When};
use super::bandwidth::Filters;
use super::headers::{Edit, Side};
use super::ledger::Ledger;
use super::output::Keys;
use super::routes::listed;
use super::sections::Line;
use super::{actions, answers, monitors, tracks};

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
    /// Leads to the server with this name, of the backend whose rule it is.
    Server(String),
    /// Leads to this pool.
    Pool(String),
    /// Leads to the backend that a map names: the map, and the backends, each under its condition.
    Mapped(String, Vec<(String, When)>),
    /// Leads to one of these backends, each under its condition, and else to the default.
    Chosen(Vec<(String, When)>),
    /// Goes to a server whatever its cookie says.
    Unstuck,
    /// Tells who watches the service that it is not well.
    Unwell(Answer),
    /// Goes on to the backend's choice.
    Allow,
    /// Keeps what backends respond from clients, and says this in its place.
    HoldBack(Answer),
    /// Changes a field.
    Edit(Side, Edit),
    /// Says a key of the routes behind it.
    Key(&'static str, String),
    /// Changes path and query of what the backend is asked.
    Rewrite(Rewrite),
    /// Says timers of the routes behind it: their names and times.
    Timeout(Vec<(&'static str, String)>),
    /// Says error pages of the routes behind it, before those of others.
    Pages(Vec<String>),
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
    /// Keys of its table about the content.
    pub body: Keys,
    /// Fields that it has.
    pub fields: Vec<Edit>,
    /// Whether it has the content of its status's page, where there is one.
    pub takes_page: bool,
}

impl Answer {
    /// The table of an error page for these statuses that says the same, in place of what backends say too if
    /// it intercepts.
    pub fn page(&self, statuses: &[String], intercepts: bool) -> String {
        let mut page = Keys::default();
        page.set("status", listed(statuses));
        for (key, value) in self.body.entries() {
            page.set(key, value);
        }
        if intercepts {
            page.set("intercept", "true");
        }
        page.inline()
    }
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
    /// `rewrite.add_query`
    pub add_query: Option<String>,
}

/// The rules of a proxy, and the names of the ACLs that they use.
#[derive(Debug, Default)]
pub struct Rules {
    /// In the order in which they are followed.
    pub steps: Vec<RuleStep>,
    /// Names of ACLs.
    pub used: Vec<String>,
    filters: Filters,
}

/// Reads the rules in the lines of a proxy, and gives each its verdict.
pub fn rules(lines: &[&Line], reader: &mut Reader<'_>, ledger: &mut Ledger) -> Rules {
    let mut rules = Rules { filters: Filters::of(lines), ..Rules::default() };
    let watched = monitors::watched(lines);
    let held = watched.map(|line| line.number);
    let is = |words: &'static [&'static str]| {
        move |line: &&&Line| {
            words.contains(&line.word(0)) && (line.word(0) != "monitor-uri" || Some(line.number) == held)
        }
    };
    // Whatever their order in the file, HAProxy follows them by kind. What is done to responses stands before
    // the rest, since no rule of requests keeps it from being done.
    let kinds: [(usize, &[&str]); 8] = [
        (0, &["monitor"]),
        (0, &["monitor-uri"]),
        (1, &["http-response", "http-after-response", "rspadd"]),
        (2, &["http-request", "reqadd", "block"]),
        (3, &["redirect"]),
        (4, &["use_backend"]),
        (5, &["use-server"]),
        (6, &["ignore-persist"]),
    ];
    for (phase, kind) in kinds {
        for line in lines.iter().filter(is(kind)) {
            if line.word(0) == "monitor" && watched.is_none() {
                ledger.exact(line.number, "no effect: there is no `monitor-uri`");
            } else if !reader.is_tcp || matches!(line.word(0), "use_backend" | "use-server") {
                rules.read((phase, watched), line, reader, ledger);
            }
        }
        if kind == ["monitor"] {
            // A route that asks whether servers are up takes all that are left.
            rules.steps.sort_by_key(|step| step.when.asks_servers());
        }
    }
    rules
}

impl Rules {
    fn read(
        &mut self,
        (phase, watched): (usize, Option<&Line>),
        line: &Line,
        reader: &mut Reader<'_>,
        ledger: &mut Ledger,
    ) {
        let first = match line.word(0) {
            "http-request" | "http-response" | "http-after-response" => 2,
            _ => 1,
        };
        let condition = (first..line.words.len()).find(|at| matches!(line.word(*at), "if" | "unless"));
        let end = condition.unwrap_or(line.words.len());
        let mut read = Read::default();
        reader.of_response = matches!(line.word(0), "http-response" | "http-after-response");
        let when = reader.when(line.from(end), &mut read);
        reader.of_response = false;
        let mut when = when.and_then(|when| tracks::counted(when, &reader.tracks));
        if let Some(watched) = watched.filter(|_| line.word(0) == "monitor") {
            when = monitors::of_those(when, watched);
        }
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
        if super::destinations::is_set(line) {
            return;
        }
        let acts = match line.word(0) {
            "monitor-uri" => answers::well(line),
            "monitor" => Ok(answers::unwell()),
            "ignore-persist" => Ok(actions::ignored()),
            "redirect" => answers::redirect(&words[1..], reader.maps).map(actions::Became::answer),
            "block" => Ok(actions::Became::answer((answers::refusal(403), Vec::new()))),
            "use_backend" => actions::use_backend(line.word(1), reader),
            "use-server" => actions::use_server(line.word(1)),
            "reqadd" | "rspadd" => actions::added(line),
            _ if line.word(1) == "set-bandwidth-limit" => {
                self.filters.set(words).map(|(table, notes)| actions::Became {
                    acts: vec![StepAct::Key("bandwidth", table)],
                    what: "`bandwidth` of routes".to_owned(),
                    notes,
                    when: None,
                })
            }
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
            Err(_) if holds_back(line) => vec![StepAct::HoldBack(answers::refusal(502))],
            Err(_) if refuses(line) => vec![StepAct::Answer(answers::refusal(403))],
            Err(_) => return,
        };
        // A backend may serve nobody, which the routes know.
        if refuses(line) || holds_back(line) || line.word(0) == "use_backend" {
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

/// Whether a rule holds responses back.
fn holds_back(line: &Line) -> bool {
    let status = super::tables::after(&line.words, "status").and_then(|status| status.parse::<u16>().ok());
    match (line.word(0), line.word(1)) {
        ("http-response", "deny") => true,
        ("http-response", "return") => status.is_some_and(|status| status >= 400),
        _ => false,
    }
}

/// What it means that a limit is not there.
pub const NO_LIMIT: &str = "NOT CONVERTED: there is NO LIMIT here in Weir";
/// What it means that a response is not refused.
pub const HELD_BACK: &str = "NOT CONVERTED: what HAProxy holds back here PASSES in Weir";
/// What it means that it is not asked whole which responses are held back.
const ALL_HELD_BACK: &str = "CLOSED: Weir answers ALL requests itself whose response this rule might hold back, and asks no backend, until you say which may pass";
/// What it means that a condition is not asked whole.
pub const CLOSED: &str =
    "CLOSED: Weir refuses ALL that this rule might concern, more than HAProxy, until you say whom to let in";

/// What it means that a rule is not there.
pub fn effect(line: &Line) -> &'static str {
    match (line.word(0), line.word(1)) {
        _ if refuses(line) => CLOSED,
        ("tcp-request", _) if matches!(line.word(2), "reject" | "silent-drop") => CLOSED,
        ("tcp-request", _) => "not converted: the rules behind it hold for these, too",
        ("tcp-response", _) => ALL_HELD_BACK,
        ("monitor", _) => "NOT CONVERTED: `monitor-uri` answers 200 also where this holds",
        ("ignore-persist", _) => "not converted: these requests go to the server of their cookie, too",
        _ if holds_back(line) => ALL_HELD_BACK,
        ("use-server", _) => "not converted: these requests go where the balance says",
        ("http-request", "allow") => "not converted: the rules behind it hold for these requests, too",
        ("http-request", "redirect" | "return") | ("redirect", _) => {
            "not converted: these requests are not answered here, but go on"
        }
        ("use_backend", _) => "not converted: these requests go on to the next rules and the default",
        _ => "not converted: it has no effect",
    }
}
