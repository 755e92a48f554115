//! ACLs of a proxy, and the conditions that rules have: `if a !b or { path /c }`.

use std::collections::BTreeMap;

use super::asks::{All, Ask};
use super::criteria::criterion;
use super::ledger::Ledger;
use super::maps::Maps;
use super::matching::{Atom, Special, Test, test};
use super::sections::Line;
use crate::SourceFiles;

/// The ACLs that have a name.
#[derive(Debug, Default)]
pub struct Acls {
    named: BTreeMap<String, Vec<Named>>,
}

#[derive(Debug)]
struct Named {
    line: usize,
    test: Result<Test, String>,
}

/// What reading conditions takes besides their words.
pub struct Reader<'r> {
    /// The ACLs of the proxy.
    pub acls: &'r Acls,
    /// The maps of all.
    pub maps: &'r mut Maps,
    /// Files of patterns.
    pub source: &'r dyn SourceFiles,
    /// Whether the proxy relays TCP.
    pub is_tcp: bool,
}

/// An OR of ANDs.
#[derive(Clone, Debug, PartialEq)]
pub struct When {
    terms: Vec<Vec<Literal>>,
}

/// An ACL that must hold, or must not.
#[derive(Clone, Debug, PartialEq)]
struct Literal {
    negated: bool,
    test: Test,
}

/// Most ANDs that a condition is written as.
const MOST_TERMS: usize = 64;

impl Acls {
    /// Those of the lines of a proxy.
    pub fn of(lines: &[&Line], maps: &mut Maps, source: &dyn SourceFiles, is_tcp: bool) -> Acls {
        let mut named: BTreeMap<String, Vec<Named>> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.word(0) == "acl") {
            let test = criterion(line.from(2), source).and_then(|criterion| test(&criterion, maps, is_tcp));
            named.entry(line.word(1).to_owned()).or_default().push(Named { line: line.number, test });
        }
        Acls { named }
    }

    /// Gives each its verdict.
    pub fn judge(&self, used: &[String], ledger: &mut Ledger) {
        for (name, all) in &self.named {
            for Named { line, test } in all {
                match test {
                    _ if !used.contains(name) => {
                        if !ledger.has(*line) {
                            ledger.exact(*line, "used by no rule");
                        }
                    }
                    Err(why) => {
                        ledger.unsupported(*line, format!("{why}: rules that use it are not converted"))
                    }
                    Ok(test) if test.notes.is_empty() => ledger.exact(*line, "a condition of routes"),
                    Ok(test) => {
                        ledger
                            .approximate(*line, format!("a condition of routes; {}", test.notes.join("; ")));
                    }
                }
            }
        }
    }

    /// What a name stands for: its own lines, or what HAProxy defines itself.
    fn test(&self, name: &str) -> Result<Test, String> {
        let Some(all) = self.named.get(name) else {
            return predefined(name).ok_or_else(|| format!("there is no ACL `{name}`"))?;
        };
        let mut whole = Test::default();
        for Named { line, test } in all {
            match test {
                Ok(test) => whole.atoms.extend(test.atoms.iter().cloned()),
                Err(why) => return Err(format!("ACL `{name}` (line {line}): {why}")),
            }
        }
        Ok(whole)
    }
}

fn predefined(name: &str) -> Option<Result<Test, String>> {
    let methods = |methods: &[&str]| {
        let methods = methods.iter().map(|method| (*method).to_owned()).collect();
        Test { atoms: vec![Atom::Ask(Ask::Method(methods))], notes: Vec::new() }
    };
    Some(Ok(match name {
        "TRUE" | "HTTP" | "WAIT_END" | "HTTP_URL_SLASH" => Test::always(true),
        "FALSE" | "HTTP_URL_STAR" | "HTTP_URL_ABS" => Test::always(false),
        "METH_GET" => methods(&["GET", "HEAD"]),
        "METH_CONNECT" | "METH_DELETE" | "METH_HEAD" | "METH_OPTIONS" | "METH_POST" | "METH_PUT"
        | "METH_TRACE" => methods(&[&name[5..]]),
        "LOCALHOST" => {
            let networks = vec!["127.0.0.0/8".to_owned(), "::1".to_owned()];
            Test { atoms: vec![Atom::Ask(Ask::ClientIp(networks))], notes: Vec::new() }
        }
        "HTTP_1.0" | "HTTP_1.1" | "HTTP_2.0" | "HTTP_CONTENT" | "RDP_COOKIE" | "REQ_CONTENT" => {
            return Some(Err(format!("no route can ask for `{name}`")));
        }
        _ => return None,
    }))
}

/// A condition with what differs, and the names of the ACLs that it uses.
#[derive(Debug, Default)]
pub struct Read {
    /// What differs, of anonymous ACLs.
    pub notes: Vec<String>,
    /// Names of ACLs.
    pub used: Vec<String>,
}

impl Reader<'_> {
    /// Reads the condition that words end with, from `if` or `unless` on; without one it always holds.
    ///
    /// `Err` says what there is nothing like.
    pub fn when(&mut self, words: &[String], read: &mut Read) -> Result<When, String> {
        let unless = match words.first().map(String::as_str) {
            None => return Ok(When::always()),
            Some("if") => false,
            Some("unless") => true,
            Some(other) => return Err(format!("`{other}` is not known here")),
        };
        let mut terms = vec![Vec::new()];
        let mut left = words[1..].iter();
        let mut negated = false;
        let mut failed = None;
        while let Some(word) = left.next() {
            let (bang, word) = match word.strip_prefix('!') {
                Some(rest) => (true, rest),
                None => (false, word.as_str()),
            };
            negated ^= bang;
            let test = match word {
                "" => continue,
                "or" | "||" | "OR" => {
                    terms.push(Vec::new());
                    continue;
                }
                "and" | "&&" | "AND" => continue,
                "{" => {
                    let inner: Vec<String> = left.by_ref().take_while(|word| *word != "}").cloned().collect();
                    let test = criterion(&inner, self.source)
                        .and_then(|criterion| test(&criterion, self.maps, self.is_tcp));
                    read.notes.extend(test.iter().flat_map(|test| test.notes.clone()));
                    test
                }
                name => {
                    read.used.push(name.to_owned());
                    self.acls.test(name)
                }
            };
            let negated = std::mem::take(&mut negated);
            match (test, terms.last_mut()) {
                (Ok(test), Some(term)) => term.push(Literal { negated, test }),
                (Err(why), _) => failed = failed.or(Some(why)),
                (Ok(_), None) => {}
            }
        }
        if let Some(why) = failed {
            return Err(why);
        }
        if terms.iter().any(Vec::is_empty) {
            return Err("a condition is empty".to_owned());
        }
        let when = When { terms };
        if unless { when.negated() } else { Ok(when) }
    }
}

/// What is known of the listener that a condition is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// Whether its clients come by TLS.
    pub tls: bool,
    /// Its ports; none where they are not known.
    pub ports: Vec<u16>,
}

/// One AND of a condition, for one listener.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Term {
    /// What routes can ask.
    pub all: All,
    /// What becomes of something else, and whether it must not hold.
    pub specials: Vec<(bool, Special)>,
}

impl Term {
    /// Whether it holds for everything.
    pub fn is_always(&self) -> bool {
        self.all.is_always() && self.specials.is_empty()
    }
}

impl When {
    /// One that always holds.
    pub fn always() -> When {
        When { terms: vec![Vec::new()] }
    }

    /// One that holds where a test does.
    pub fn of(test: Test) -> When {
        When { terms: vec![vec![Literal { negated: false, test }]] }
    }

    /// The opposite.
    fn negated(&self) -> Result<When, String> {
        let mut terms: Vec<Vec<Literal>> = vec![Vec::new()];
        for term in &self.terms {
            let mut next = Vec::new();
            for before in &terms {
                for literal in term {
                    let mut longer = before.clone();
                    longer.push(Literal { negated: !literal.negated, test: literal.test.clone() });
                    next.push(longer);
                }
            }
            if next.len() > MOST_TERMS {
                return Err(format!("it is too long: more than {MOST_TERMS} alternatives"));
            }
            terms = next;
        }
        Ok(When { terms })
    }

    /// Whether an ACL of it is asked for by TLS or by port, which tells listeners apart.
    pub fn asks_ports(&self) -> bool {
        let atoms = self.terms.iter().flatten().flat_map(|literal| &literal.test.atoms);
        atoms.into_iter().any(|atom| matches!(atom, Atom::Port(..)))
    }

    /// The ANDs of which one must hold, for a listener; none where it can't hold there.
    pub fn terms(&self, here: &Here) -> Result<Vec<Term>, String> {
        let mut terms: Vec<Term> = Vec::new();
        for literals in &self.terms {
            let Some(term) = term(literals, here)? else { continue };
            if term.is_always() {
                return Ok(vec![term]);
            }
            if !terms.contains(&term) {
                terms.push(term);
            }
        }
        Ok(united(terms))
    }
}

/// The terms as one, where each asks for one thing alone.
fn united(terms: Vec<Term>) -> Vec<Term> {
    let single =
        |term: &Term| term.specials.is_empty() && term.all.nots.is_empty() && term.all.groups.len() == 1;
    if terms.len() < 2 || !terms.iter().all(single) {
        return terms;
    }
    let asks = terms.into_iter().flat_map(|term| term.all.groups.into_iter().flatten()).collect();
    let all = All { groups: vec![super::asks::merged(asks)], nots: Vec::new() };
    vec![Term { all, specials: Vec::new() }]
}

/// An AND for a listener; `None` where it can't hold there.
fn term(literals: &[Literal], here: &Here) -> Result<Option<Term>, String> {
    let mut term = Term::default();
    for Literal { negated, test } in literals {
        let mut group = Vec::new();
        let mut holds = false;
        for atom in &test.atoms {
            match settled(atom, here)? {
                Atom::Always(true) => holds = true,
                Atom::Always(false) => {}
                atom => group.push(atom),
            }
        }
        match (holds, negated, group.is_empty()) {
            (true, true, _) | (false, false, true) => return Ok(None),
            (true, false, _) | (false, true, true) => {}
            (false, _, false) => add(&mut term, group, *negated)?,
        }
    }
    // What asks for the opposite of itself never holds.
    Ok(All::default().and(&term.all).map(|all| Term { all, specials: term.specials }))
}

fn add(term: &mut Term, group: Vec<Atom>, negated: bool) -> Result<(), String> {
    let is_one = group.len() == 1;
    let mut alternatives = Vec::new();
    for atom in group {
        match (atom, negated) {
            (Atom::Ask(ask), false) => alternatives.push(ask),
            (Atom::Ask(ask), true) => term.all.nots.push(ask),
            (Atom::Unless(ask), true) => term.all.groups.push(vec![ask]),
            (Atom::Unless(ask), false) if is_one => term.all.nots.push(ask),
            (Atom::Special(special), _) if is_one => term.specials.push((negated, special)),
            (Atom::Special(special), true) => term.specials.push((true, special)),
            _ => return Err("its alternatives are of kinds that no route can ask together".to_owned()),
        }
    }
    if !alternatives.is_empty() {
        term.all.groups.push(super::asks::merged(alternatives));
    }
    Ok(())
}

/// An atom with what is known of the listener.
fn settled(atom: &Atom, here: &Here) -> Result<Atom, String> {
    Ok(match atom {
        Atom::Tls => Atom::Always(here.tls),
        Atom::AskByTls(ask) if here.tls => Atom::Ask(ask.clone()),
        Atom::AskByTls(_) => Atom::Always(false),
        Atom::Port(least, most) => {
            let inside = |port: &&u16| (*least..=*most).contains(&u64::from(**port));
            match here.ports.iter().filter(inside).count() {
                0 if !here.ports.is_empty() => Atom::Always(false),
                count if count == here.ports.len() && count > 0 => Atom::Always(true),
                _ => return Err("the ports of the listener are not known".to_owned()),
            }
        }
        other => other.clone(),
    })
}
