//! ACLs of a proxy, and the conditions that rules have: `if a !b or { path /c }`.

use std::collections::BTreeMap;

use super::asks::{All, Ask};
use super::criteria::{Unseen, counts, criterion};
use super::ledger::Ledger;
use super::maps::Maps;
use super::matching::{Atom, Special, Test, test};
use super::samples::Sample;
use super::sections::Line;
use super::tracks::Tracks;
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
    counts: bool,
    of_request: bool,
    sample: Option<Sample>,
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
    /// Whether the rule that is read is for responses, which what a request has is gone for.
    pub of_response: bool,
    /// What of the response is not there yet.
    pub unseen: Unseen,
    /// The backends that rules may lead to.
    pub backends: Vec<String>,
    /// Those of the other mode.
    pub other_backends: Vec<String>,
    /// Which requests its counters are told of.
    pub tracks: Tracks,
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
            let criterion = criterion(line.from(2), source);
            let of_request = criterion.as_ref().is_ok_and(|criterion| criterion.of_request);
            let sample = criterion.as_ref().ok().map(|criterion| criterion.sample.clone());
            let test = criterion.and_then(|criterion| test(&criterion, maps, is_tcp));
            let counts = counts(line.from(2));
            let own = Named { line: line.number, test, counts, of_request, sample };
            named.entry(line.word(1).to_owned()).or_default().push(own);
        }
        Acls { named }
    }

    /// Gives each its verdict.
    pub fn judge(&self, used: &[String], ledger: &mut Ledger) {
        for (name, all) in &self.named {
            for Named { line, test, .. } in all {
                match test {
                    _ if !used.contains(name) => {
                        if !ledger.has(*line) {
                            ledger.exact(*line, "used by no rule");
                        }
                    }
                    Err(why) => {
                        ledger.unsupported(*line, format!("{why}: no rule that uses it holds for the same"))
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

    /// Whether all of it is about what a request has.
    fn is_of_request(&self, name: &str) -> bool {
        self.named.get(name).is_some_and(|all| all.iter().all(|own| own.of_request))
    }

    /// Whether all of it is about what of a response is not there yet.
    fn is_unseen(&self, name: &str, unseen: Unseen) -> bool {
        let has = |own: &Named| own.sample.as_ref().is_some_and(|sample| unseen.has(sample));
        self.named.get(name).is_some_and(|all| all.iter().all(has))
    }

    /// Whether it asks how much somebody does.
    fn counts(&self, name: &str) -> bool {
        self.named.get(name).is_some_and(|all| all.iter().any(|own| own.counts))
    }

    /// What a name stands for: its own lines, or what HAProxy defines itself.
    fn test(&self, name: &str) -> Result<Test, String> {
        let Some(all) = self.named.get(name) else {
            return predefined(name).ok_or_else(|| format!("there is no ACL `{name}`"))?;
        };
        let mut whole = Test::default();
        for Named { line, test, .. } in all {
            match test {
                Ok(test) => whole.atoms.extend(test.atoms.iter().cloned()),
                Err(why) => return Err(format!("ACL `{name}` (line {line}): {why}")),
            }
        }
        Ok(whole)
    }
}

/// What a rule for responses finds of a request.
fn never() -> Test {
    let note = "what it asks of the request never holds here in HAProxy, which warns of it: a variable (`set-var`) keeps it for the response";
    Test { notes: vec![note.to_owned()], ..Test::always(false) }
}

/// What a rule for responses finds of one that is not there yet.
fn too_early() -> Test {
    let note = "what it asks of the response is not there yet when HAProxy asks it, so that it never holds";
    Test { notes: vec![note.to_owned()], ..Test::always(false) }
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
        "HTTP_CONTENT" => Test { atoms: vec![Atom::Special(Special::Larger(0))], notes: Vec::new() },
        "HTTP_1.0" | "HTTP_1.1" | "HTTP_2.0" | "RDP_COOKIE" | "REQ_CONTENT" => {
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

/// A condition of which something can't be asked.
#[derive(Debug)]
pub struct Lost {
    /// What there is nothing like.
    pub why: String,
    /// The condition, of which [`When::wider_terms`] leaves out what can't be asked.
    pub when: When,
    /// Whether that is how much somebody does, so that a rule which refuses is a limit.
    pub counts: bool,
}

impl Lost {
    fn whole(why: impl Into<String>) -> Lost {
        let why = why.into();
        Lost { when: When::of(Test::of(Atom::Unasked(why.clone()))), why, counts: false }
    }
}

impl Reader<'_> {
    /// Reads the condition that words end with, from `if` or `unless` on; without one it always holds.
    ///
    /// `Err` says what there is nothing like.
    pub fn when(&mut self, words: &[String], read: &mut Read) -> Result<When, Lost> {
        let unless = match words.first().map(String::as_str) {
            None => return Ok(When::always()),
            Some("if") => false,
            Some("unless") => true,
            Some(other) => return Err(Lost::whole(format!("`{other}` is not known here"))),
        };
        let mut terms = vec![Vec::new()];
        let mut left = words[1..].iter();
        let mut negated = false;
        let mut lost: Option<(String, bool)> = None;
        while let Some(word) = left.next() {
            let (bang, word) = match word.strip_prefix('!') {
                Some(rest) => (true, rest),
                None => (false, word.as_str()),
            };
            negated ^= bang;
            let (test, counted) = match word {
                "" => continue,
                "or" | "||" | "OR" => {
                    terms.push(Vec::new());
                    continue;
                }
                "and" | "&&" | "AND" => continue,
                "{" => {
                    let inner: Vec<String> = left.by_ref().take_while(|word| *word != "}").cloned().collect();
                    let criterion = criterion(&inner, self.source);
                    let test = match criterion {
                        Ok(criterion) if self.of_response && criterion.of_request => Ok(never()),
                        Ok(criterion) if self.unseen.has(&criterion.sample) => Ok(too_early()),
                        Ok(criterion) => test(&criterion, self.maps, self.is_tcp),
                        Err(why) => Err(why),
                    };
                    read.notes.extend(test.iter().flat_map(|test| test.notes.clone()));
                    (test, counts(&inner))
                }
                name => {
                    read.used.push(name.to_owned());
                    let gone = match self.of_response {
                        true if self.acls.is_of_request(name) => Some(never()),
                        true if self.acls.is_unseen(name, self.unseen) => Some(too_early()),
                        _ => None,
                    };
                    match gone {
                        Some(test) => {
                            read.notes.extend(test.notes.clone());
                            (Ok(test), false)
                        }
                        None => (self.acls.test(name), self.acls.counts(name)),
                    }
                }
            };
            let negated = std::mem::take(&mut negated);
            let test = test.unwrap_or_else(|why| {
                let (_, counts) = lost.get_or_insert((why.clone(), false));
                *counts |= counted;
                Test::of(Atom::Unasked(why))
            });
            if let Some(term) = terms.last_mut() {
                term.push(Literal { negated, test });
            }
        }
        if terms.iter().any(Vec::is_empty) {
            return Err(Lost::whole("a condition is empty"));
        }
        let when = When { terms };
        let when = if unless { when.negated().map_err(Lost::whole)? } else { when };
        match lost {
            None => Ok(when),
            Some((why, counts)) => Err(Lost { why, when, counts }),
        }
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

    /// Both together; `None` if that would be too long.
    pub fn and(&self, other: &When) -> Option<When> {
        let both = |term: &Vec<Literal>| {
            let longer = |more: &Vec<Literal>| term.iter().chain(more).cloned().collect();
            other.terms.iter().map(longer).collect::<Vec<Vec<Literal>>>()
        };
        let terms: Vec<Vec<Literal>> = self.terms.iter().flat_map(both).collect();
        (terms.len() <= MOST_TERMS).then_some(When { terms })
    }

    /// It, where another one does not hold; `None` if that would be too long.
    pub fn except(&self, other: &When) -> Option<When> {
        other.negated().ok().and_then(|not| self.and(&not))
    }

    /// Whether it asks if servers are up.
    pub fn asks_servers(&self) -> bool {
        let mut atoms = self.terms.iter().flatten().flat_map(|literal| &literal.test.atoms);
        atoms.any(|atom| matches!(atom, Atom::Special(Special::NoServer(_))))
    }

    /// The numbers of the counters that it asks.
    pub fn tracked(&self) -> Vec<String> {
        let atoms = self.terms.iter().flatten().flat_map(|literal| &literal.test.atoms);
        let numbers = atoms.filter_map(|atom| match atom {
            Atom::Special(Special::Above(counter, _)) => counter.tracked.clone(),
            _ => None,
        });
        let mut numbers: Vec<String> = numbers.collect();
        numbers.sort();
        numbers.dedup();
        numbers
    }

    /// The condition for those alone who are in none of these networks.
    pub fn outside(&self, networks: &[String]) -> When {
        let mut outside = self.clone();
        if !networks.is_empty() {
            let test = Test::of(Atom::Ask(Ask::ClientIp(networks.to_vec())));
            outside
                .terms
                .iter_mut()
                .for_each(|term| term.push(Literal { negated: true, test: test.clone() }));
        }
        outside
    }

    /// Whether it holds at some listeners alone, whoever the client is.
    pub fn differs_by_listener(&self) -> bool {
        let mut atoms = self.terms.iter().flatten().flat_map(|literal| &literal.test.atoms);
        atoms.any(|atom| matches!(atom, Atom::Tls | Atom::AskByTls(_) | Atom::Port(..)))
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

impl When {
    /// [`When::terms`] without what can't be asked: they hold for everything that the condition holds for,
    /// and for more.
    pub fn wider_terms(&self, here: &Here) -> Vec<Term> {
        let mut terms: Vec<Term> = Vec::new();
        for literals in &self.terms {
            let can_be_asked = |literal: &&Literal| term(std::slice::from_ref(*literal), here).is_ok();
            let asked: Vec<Literal> = literals.iter().filter(can_be_asked).cloned().collect();
            let Some(term) = term(&asked, here).unwrap_or_else(|_| Some(Term::default())) else { continue };
            if term.is_always() {
                return vec![term];
            }
            if !terms.contains(&term) {
                terms.push(term);
            }
        }
        united(terms)
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
        Atom::Unasked(why) => return Err(why.clone()),
        other => other.clone(),
    })
}
