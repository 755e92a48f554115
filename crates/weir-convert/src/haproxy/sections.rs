//! Sections of a file, and what each proxy takes over from the `defaults` before it.

use super::ledger::Ledger;
use super::words::{Given, filled_in, words};
use crate::NotConverted;

/// One directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Line in the file, from 1.
    pub number: usize,
    /// Whether `no` stands before it.
    pub negated: bool,
    /// Its words, without `no` or `default`.
    pub words: Vec<String>,
}

impl Line {
    /// The word at a place; empty where there is none.
    pub fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// The words from a place on.
    pub fn from(&self, at: usize) -> &[String] {
        self.words.get(at..).unwrap_or_default()
    }

    /// By what a verdict calls it.
    fn name(&self) -> String {
        let first = self.word(0);
        let count = match first {
            "tcp-request" | "tcp-response" | "stick" | "capture" | "filter" => 3,
            "option"
            | "timeout"
            | "http-request"
            | "http-response"
            | "http-after-response"
            | "http-check"
            | "tcp-check"
            | "stats"
            | "acl"
            | "server"
            | "server-template"
            | "use_backend"
            | "default_backend"
            | "compression"
            | "user"
            | "group"
            | "nameserver"
            | "peer"
            | "table"
            | "errorfile"
            | "use-server"
            | "hold"
            | "bind"
            | "log" => 2,
            _ => 1,
        };
        let words = self.words.iter().take(count).map(String::as_str);
        let words: Vec<&str> =
            if self.negated { std::iter::once("no").chain(words).collect() } else { words.collect() };
        super::words::with_variables(&words.join(" "))
    }
}

/// What kind of section it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionKind {
    /// `global`
    Global,
    /// `defaults`
    Defaults,
    /// `frontend`
    Frontend,
    /// `backend`
    Backend,
    /// `listen`
    Listen,
    /// `userlist`
    Userlist,
    /// `resolvers`
    Resolvers,
    /// `cache`
    Cache,
    /// `http-errors`
    HttpErrors,
    /// `peers`
    Peers,
    /// Any other, of which nothing is converted.
    Other,
}

/// A section.
#[derive(Clone, Debug)]
pub struct Section {
    /// What it is.
    pub kind: SectionKind,
    /// The word that it begins with.
    pub keyword: String,
    /// Its name; empty if it has none.
    pub name: String,
    /// The named `defaults` that it is `from`.
    pub from: Option<String>,
    /// Line in the file, from 1.
    pub number: usize,
    /// Its directives.
    pub lines: Vec<Line>,
}

const OTHERS: &[&str] = &[
    "mailers",
    "program",
    "ring",
    "crt-store",
    "log-forward",
    "fcgi-app",
    "acme",
    "traces",
    "log-profile",
    "dynamic-update",
    "crt-list",
    "http-client",
];

fn kind(word: &str) -> Option<SectionKind> {
    Some(match word {
        "global" => SectionKind::Global,
        "defaults" => SectionKind::Defaults,
        "frontend" => SectionKind::Frontend,
        "backend" => SectionKind::Backend,
        "listen" => SectionKind::Listen,
        "userlist" => SectionKind::Userlist,
        "resolvers" => SectionKind::Resolvers,
        "cache" => SectionKind::Cache,
        "http-errors" => SectionKind::HttpErrors,
        "peers" => SectionKind::Peers,
        word if OTHERS.contains(&word) => SectionKind::Other,
        _ => return None,
    })
}

/// Whether a file begins a section of HAProxy's in some line.
pub fn looks_like(text: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        // In nginx these words are followed by a brace or end with a semicolon.
        let plain = !line.contains('{') && !line.trim_end().ends_with(';') && !line.contains('=');
        plain
            && matches!(first, "frontend" | "backend" | "defaults" | "listen" | "global")
            && words.count() <= 3
    })
}

/// Reads all sections, and enters each line into the ledger.
///
/// `Err` names the line of the first mistake.
pub fn sections(text: &str, ledger: &mut Ledger) -> Result<Vec<Section>, NotConverted> {
    let mut sections: Vec<Section> = Vec::new();
    let mut given = Given::new();
    let mut skipping = Skipping::default();
    for (index, raw) in text.lines().enumerate() {
        let number = index + 1;
        let mut words = words(raw, &given).map_err(|problem| mistake(number, &problem))?;
        if words.is_empty() {
            continue;
        }
        // Of an address, HAProxy fills in variables that stand outside of quotes, too.
        let address = match words[0].as_str() {
            "bind" | "log" | "source" => 1,
            "server" | "peer" => 2,
            "server-template" => 3,
            _ => usize::MAX,
        };
        if let Some(word) = words.get_mut(address) {
            *word = filled_in(word, &given).map_err(|problem| mistake(number, &problem))?;
        }
        if words[0].starts_with('.') {
            ledger.enter(number, words[0].clone());
            skipping.directive(number, &words, ledger);
            continue;
        }
        if skipping.is_on() {
            ledger.enter(number, words[0].clone());
            ledger.unsupported(number, "left out: it stands in a branch (`.else`) that is not taken here");
            continue;
        }
        let negated = match words[0].as_str() {
            "no" | "default" if words.len() > 1 => words.remove(0) == "no",
            _ => false,
        };
        if let Some(kind) = kind(&words[0]).filter(|_| !negated && is_header(&words, sections.last())) {
            ledger.enter(number, words.iter().take(2).cloned().collect::<Vec<_>>().join(" "));
            sections.push(header(kind, &words, number)?);
            continue;
        }
        let Some(section) = sections.last_mut() else {
            let problem = format!(
                "`{}` stands in no section, expected `global`, `defaults`, `frontend`, `backend` or `listen` first",
                words[0]
            );
            return Err(mistake(number, &problem));
        };
        let line = Line { number, negated, words: super::old::present(renamed(words)) };
        ledger.enter(number, line.name());
        if section.kind == SectionKind::Global && matches!(line.word(0), "setenv" | "presetenv") {
            given.insert(line.word(1).to_owned(), line.word(2).to_owned());
        }
        section.lines.push(line);
    }
    named_once(&sections)?;
    Ok(sections)
}

/// Whether a line begins a section, and is no directive of the same name: `cache` and `acme` are both.
fn is_header(words: &[String], before: Option<&Section>) -> bool {
    match words[0].as_str() {
        "acme" => before.is_none_or(|section| section.kind != SectionKind::Global) || words.len() == 2,
        _ => true,
    }
}

fn header(kind: SectionKind, words: &[String], number: usize) -> Result<Section, NotConverted> {
    let mut name = words.get(1).cloned().unwrap_or_default();
    let mut rest = words.get(2..).unwrap_or_default();
    if kind == SectionKind::Defaults && name == "from" {
        name = String::new();
        rest = &words[1..];
    }
    let named = matches!(
        kind,
        SectionKind::Frontend | SectionKind::Backend | SectionKind::Listen | SectionKind::Userlist
    );
    if named && name.is_empty() {
        return Err(mistake(number, &format!("`{}` has no name, expected `{0} NAME`", words[0])));
    }
    let from = match rest {
        [from, name, ..] if from == "from" => Some(name.clone()),
        _ => None,
    };
    // Old files have the address in this line.
    let mut lines = Vec::new();
    if let (SectionKind::Frontend | SectionKind::Listen, Some(address)) =
        (kind, rest.first().filter(|word| word.contains(':')))
    {
        let words = vec!["bind".to_owned(), address.clone()];
        lines.push(Line { number, negated: false, words });
    }
    Ok(Section { kind, keyword: words[0].clone(), name, from, number, lines })
}

/// Directives of old versions by their present names.
fn renamed(mut words: Vec<String>) -> Vec<String> {
    let now: &[&str] = match words[0].as_str() {
        "contimeout" => &["timeout", "connect"],
        "clitimeout" => &["timeout", "client"],
        "srvtimeout" => &["timeout", "server"],
        "redisp" | "redispatch" => &["option", "redispatch"],
        _ => return words,
    };
    words.splice(0..1, now.iter().map(|word| (*word).to_owned()));
    words
}

/// Refuses two frontends, or two backends, of one name, as HAProxy does.
fn named_once(sections: &[Section]) -> Result<(), NotConverted> {
    let takes = |section: &Section, front: bool| match section.kind {
        SectionKind::Listen => true,
        SectionKind::Frontend => front,
        SectionKind::Backend => !front,
        _ => false,
    };
    for (at, section) in sections.iter().enumerate() {
        let same = |other: &&Section| {
            other.name == section.name
                && [true, false].iter().any(|front| takes(section, *front) && takes(other, *front))
        };
        if let Some(first) = sections[..at].iter().find(same) {
            let problem = format!(
                "`{} {}` is there already, in line {}; give one of them another name",
                section.keyword, section.name, first.number
            );
            return Err(mistake(section.number, &problem));
        }
    }
    Ok(())
}

/// A mistake of the file.
pub fn mistake(line: usize, problem: &str) -> NotConverted {
    NotConverted { message: format!("line {line}: {problem}"), hint: String::new() }
}

/// Conditional blocks: what stands in their first branch is taken, since nobody knows here what holds there.
#[derive(Default)]
struct Skipping {
    /// For each open block whether its first branch is over.
    blocks: Vec<bool>,
}

impl Skipping {
    fn is_on(&self) -> bool {
        self.blocks.iter().any(|over| *over)
    }

    fn directive(&mut self, number: usize, words: &[String], ledger: &mut Ledger) {
        match words[0].as_str() {
            ".if" => {
                self.blocks.push(false);
                ledger.unsupported(number, "not looked at: what stands behind it is converted as if it held");
            }
            ".else" | ".elif" => {
                if let Some(over) = self.blocks.last_mut() {
                    *over = true;
                }
                ledger.unsupported(number, "not looked at: what stands behind it is left out");
            }
            ".endif" => {
                self.blocks.pop();
                ledger.exact(number, "the end of the block");
            }
            _ => ledger.exact(number, "a message while the file is read: it has no effect on traffic"),
        }
    }
}

/// The directives that hold for a section: those that it takes over, then its own.
///
/// A proxy takes over what the last `defaults` before it says, or those that it is `from`; named defaults may
/// be `from` others themselves.
pub fn effective(sections: &[Section], at: usize) -> Vec<&Line> {
    let mut chain = vec![at];
    while let Some(of) = chain.last().copied() {
        let section = &sections[of];
        let is_defaults = |index: &usize| sections[*index].kind == SectionKind::Defaults;
        let next = match &section.from {
            Some(name) => (0..of).rev().find(|index| is_defaults(index) && sections[*index].name == *name),
            None if section.kind == SectionKind::Defaults => None,
            None => (0..of).rev().find(is_defaults),
        };
        match next {
            Some(next) => chain.push(next),
            None => break,
        }
    }
    chain.iter().rev().flat_map(|index| &sections[*index].lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Section> {
        sections(text, &mut Ledger::default()).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn words_of(sections: &[Section], name: &str) -> Vec<String> {
        let at = sections.iter().position(|section| section.name == name).expect("it is there");
        effective(sections, at).iter().map(|line| line.words.join(" ")).collect()
    }

    #[test]
    fn a_proxy_takes_over_the_last_defaults_or_the_named_ones() {
        let all = read(
            "defaults first\n mode tcp\ndefaults second from first\n retries 2\nfrontend a\n bind :80\n\
             backend b from first\n balance first\ndefaults\n mode http\nlisten c\n no option httplog\n",
        );
        assert_eq!(words_of(&all, "a"), ["mode tcp", "retries 2", "bind :80"]);
        assert_eq!(words_of(&all, "b"), ["mode tcp", "balance first"]);
        assert_eq!(words_of(&all, "c"), ["mode http", "option httplog"]);
        assert!(all.last().expect("c").lines[0].negated);
        let old = read("listen web 0.0.0.0:80\n clitimeout 5000\n redispatch\n");
        assert_eq!(words_of(&old, "web"), ["bind 0.0.0.0:80", "timeout client 5000", "option redispatch"]);
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        for (text, told) in [
            ("bind :80\n", "line 1: `bind` stands in no section"),
            ("\nfrontend\n", "line 2: `frontend` has no name"),
            ("frontend a\n bind \":80\n", "line 2: a double quote is not closed"),
            ("backend a\nlisten a\n", "line 2: `listen a` is there already, in line 1"),
        ] {
            let problem = sections(text, &mut Ledger::default()).expect_err(text);
            assert!(problem.to_string().starts_with(told), "{problem}");
        }
    }

    #[test]
    fn its_files_are_told_from_those_of_others() {
        assert!(looks_like("# x\nfrontend web\n  bind :80\n"));
        assert!(looks_like("defaults\n  mode http\n"));
        assert!(!looks_like("http {\n  server {\n    listen 80;\n  }\n}\n"));
        assert!(!looks_like("[routing:a]\nbackend = x\n"));
        assert!(!looks_like("stream {\n upstream backend {\n listen 80;\n"));
    }
}
