//! Rules that are followed one after the other, as routes of which the first that matches holds.
//!
//! A rule that answers, or leads to a backend, becomes a route. A rule that changes something and goes on
//! divides everything behind it: once with the change, where its condition holds, and then once without.

mod ends;
mod leads;

use std::collections::BTreeMap;

use super::acls::{Here, Term};
use super::answers::refusal;
use super::asks::All;
use super::changes::Changes;
use super::matching::Special;
use super::output::{Keys, inline, said};
use super::pages::HaproxyPage;
use super::rules::{Answer, RuleStep, StepAct};
use super::tables::{COUNTED_APART, Tables};

/// Most routes of a listener.
const MOST_ROUTES: usize = 400;
/// Most ways that are followed, also those that no route comes of.
const MOST_WAYS: usize = 2 * MOST_ROUTES;
/// Most changes with conditions that are followed within each other.
const MOST_CHANGES: usize = 6;

/// Why a rule can't ask for a path.
const PATH_IS_CHANGED: &str =
    "it asks for the path that a rule before it has changed, and routes know the first alone";

/// A backend, as routes lead to it.
#[derive(Debug, Default)]
pub struct Behind {
    /// The name of its pool; none where nothing serves.
    pub pool: Option<String>,
    /// What is done before it gets a request and can't be said by its pool.
    pub steps: Vec<RuleStep>,
    /// Its error pages.
    pub pages: Vec<HaproxyPage>,
    /// What probes ask its servers for: the path, and the host if they say one, as they stand in the config.
    pub asked: Option<(String, Option<String>)>,
}

/// Where requests go that no rule has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// To a backend, by HAProxy's name, with its own rules; or to nobody.
    Backend(Option<String>),
    /// To this pool.
    Pool(Option<String>),
}

/// What is known beforehand of all that routes may lead to.
pub struct Known<'k> {
    /// Backends by their names.
    pub backends: &'k BTreeMap<String, Behind>,
    /// Whether TCP is relayed.
    pub is_tcp: bool,
    /// Counters and their keys.
    pub tables: &'k Tables,
    /// Where the files of users are to be.
    pub folder: &'k str,
    /// The error pages of the proxy.
    pub pages: &'k [HaproxyPage],
    /// How many listeners the proxy becomes.
    pub listener_count: usize,
}

/// The routes of one listener.
pub struct Routes<'k> {
    known: &'k Known<'k>,
    here: Here,
    /// Each as its entries.
    pub routes: Vec<Vec<(String, String)>>,
    /// Keys of the listener itself.
    pub keys: Keys,
    /// Limits of the listener itself.
    pub limits: Vec<String>,
    /// Whether Weirs count one of its limits together.
    pub shares: bool,
    /// Rules that could not be converted, and why.
    pub failed: Vec<(usize, String)>,
    /// Limits that could not be converted, and why.
    pub unlimited: Vec<(usize, String)>,
    /// What differs of rules.
    pub notes: Vec<(usize, String)>,
    /// Pools that stand in for others.
    pub fallbacks: Vec<(String, String)>,
    /// Lines of the changes that are being followed.
    under: Vec<usize>,
    /// Ways that were followed because of a condition (count).
    ways: usize,
    /// Whether a route asks if servers are up.
    watches: bool,
}

/// Where a rule stands.
struct Spot<'s> {
    step: &'s RuleStep,
    rest: &'s [RuleStep],
    end: &'s End,
    /// Under which condition it is followed, with its own.
    all: All,
    /// Whether its own condition holds for all that come here.
    whole: bool,
}

/// Whether anything behind a rule is followed.
#[derive(PartialEq)]
enum After {
    GoesOn,
    IsOver,
}

impl Behind {
    /// Whether rules of its own must be followed on the way to it.
    fn has_rules(&self) -> bool {
        !self.steps.iter().all(|step| step.act.is_look())
    }
}

impl<'k> Routes<'k> {
    /// Follows the rules of a listener.
    pub fn of(steps: &[RuleStep], end: &End, here: Here, known: &'k Known<'k>) -> Routes<'k> {
        let mut routes = Routes {
            known,
            here,
            routes: Vec::new(),
            keys: Keys::default(),
            limits: Vec::new(),
            shares: false,
            failed: Vec::new(),
            unlimited: Vec::new(),
            notes: Vec::new(),
            fallbacks: Vec::new(),
            under: Vec::new(),
            ways: 0,
            watches: false,
        };
        routes.follow(steps, &All::default(), Changes::default(), end);
        routes
    }

    fn fail(&mut self, line: usize, why: impl Into<String>) {
        self.failed.push((line, why.into()));
    }

    fn note(&mut self, line: usize, note: impl Into<String>) {
        self.notes.push((line, note.into()));
    }

    fn follow(&mut self, steps: &[RuleStep], at: &All, mut changes: Changes, end: &End) {
        for (index, step) in steps.iter().enumerate() {
            // Changes with one condition are made together by the first of them.
            if index > 0
                && step.act.is_change()
                && steps[index - 1].when == step.when
                && steps[index - 1].act.is_change()
            {
                continue;
            }
            for term in self.terms_of(step, &changes) {
                let rest = (&steps[index + 1..], at);
                let Some(term) = self.names_first(step, term, rest, (&changes, end)) else { continue };
                let Some(all) = at.and(&term.all) else { continue };
                let rest = &steps[index + 1..];
                let spot = Spot { step, rest, end, whole: term.all.is_always(), all };
                if self.act(&spot, &term, &mut changes) == After::IsOver {
                    return;
                }
            }
        }
        self.end(end, at, &changes);
    }

    /// The ANDs under which a rule is followed, as far as routes can ask them: none of a rule that can't be
    /// asked, but all that might be meant of one that refuses.
    fn terms_of(&mut self, step: &RuleStep, changes: &Changes) -> Vec<Term> {
        let refuses = self.refuses(&step.act);
        let mut terms = match step.when.terms(&self.here) {
            Ok(terms) => terms,
            Err(why) => {
                self.fail(step.line, why);
                if refuses { step.when.wider_terms(&self.here) } else { Vec::new() }
            }
        };
        if changes.path_is_changed && terms.iter().any(|term| term.all.asks_path()) {
            self.fail(step.line, PATH_IS_CHANGED);
            match refuses {
                true => terms.iter_mut().for_each(|term| term.all = term.all.without_paths()),
                false => terms.retain(|term| !term.all.asks_path()),
            }
        }
        if matches!(step.act, StepAct::Unwell(_)) {
            // A route that asks whether servers are up takes all that are left.
            terms.sort_by_key(|term| !term.specials.is_empty());
        }
        terms
    }

    /// Whether a rule lets nobody through whom it holds for.
    fn refuses(&self, act: &StepAct) -> bool {
        match act {
            StepAct::Answer(answer) => answer.key == "respond" && answer.status >= 400,
            StepAct::Auth(..) => true,
            StepAct::HoldBack(answer) => answer.status >= 400,
            StepAct::Backend(name) => {
                self.known.backends.get(name).is_some_and(|behind| behind.pool.is_none())
            }
            _ => false,
        }
    }

    /// The term as routes of TCP can ask it, which have no `not`: those that it does not hold for go first.
    fn names_first(
        &mut self,
        step: &RuleStep,
        term: Term,
        (rest, at): (&[RuleStep], &All),
        (changes, end): (&Changes, &End),
    ) -> Option<Term> {
        let names = term.all.excluded_names().filter(|_| self.known.is_tcp && term.specials.is_empty());
        let Some(names) = names else { return Some(term) };
        for name in names {
            let others = at.and(&All { groups: vec![vec![name]], nots: Vec::new() })?;
            if self.under.len() >= MOST_CHANGES {
                self.fail(step.line, "too many rules ask what a server name is not");
                return None;
            }
            self.under.push(step.line);
            self.follow(rest, &others, changes.clone(), end);
            self.under.pop();
        }
        Some(Term::default())
    }

    fn act(&mut self, spot: &Spot<'_>, term: &Term, changes: &mut Changes) -> After {
        let line = spot.step.line;
        let over = if spot.whole { After::IsOver } else { After::GoesOn };
        match (&spot.step.act, term.specials.as_slice()) {
            (StepAct::Answer(answer) | StepAct::Unwell(answer), []) => {
                self.answer(answer, &spot.all, changes, line);
                return over;
            }
            (StepAct::Unwell(_), [(false, Special::NoServer(of))]) => self.watch(of, spot),
            (StepAct::Answer(answer), [(false, Special::NoServer(of))])
                if answer.key == "respond" && answer.status >= 400 =>
            {
                self.while_down(spot, answer, of, changes);
            }
            (StepAct::Answer(answer), [(false, Special::Above(counter, most))])
                if answer.key == "respond" =>
            {
                self.limit(spot, answer, (counter, *most), changes);
            }
            (StepAct::Answer(answer), [(false, Special::Larger(most))]) if answer.key == "respond" => {
                self.note(line, format!("`body_limit`: 413 in place of {}", answer.status));
                let most = said(&format!("{most}B"));
                self.changed(spot, spot.rest, changes, |changes| {
                    changes.keys.set("body_limit", most.clone())
                });
            }
            (StepAct::Answer(answer), [(true, Special::Auth(list, groups))]) if answer.key == "respond" => {
                self.note(line, format!("401 in place of {}", answer.status));
                self.auth(spot, (list.as_str(), groups.as_slice(), "restricted"), changes);
            }
            (StepAct::Auth(_, realm), [(true, Special::Auth(list, groups))]) => {
                self.auth(spot, (list.as_str(), groups.as_slice(), realm.as_str()), changes);
            }
            (StepAct::Auth(..), []) => {
                self.note(line, "nobody gets through: it is followed whoever asks");
                self.answer(&refusal(401), &spot.all, changes, line);
                return over;
            }
            (StepAct::Backend(name), []) if !self.known.backends.contains_key(name) => {
                self.fail(line, format!("there is no backend `{name}` of this mode"));
            }
            (StepAct::Backend(name), []) => {
                self.under.push(line);
                self.enter(name, &spot.all, changes.clone());
                self.under.pop();
                return over;
            }
            (StepAct::Backend(name), [(false, Special::Share(share))]) => {
                self.split(spot, name, *share, changes)
            }
            (StepAct::Backend(name), [(false, Special::NoServer(of))]) if spot.whole => {
                self.fallback(line, of, name)
            }
            (StepAct::Chosen(choices), []) => {
                self.choose(choices, spot, changes);
                return over;
            }
            (StepAct::Mapped(map, choices), []) => {
                self.mapped(map, choices, spot, changes);
                return over;
            }
            (StepAct::Allow, []) => {
                let from =
                    spot.rest.iter().position(|step| step.phase > spot.step.phase).unwrap_or(spot.rest.len());
                self.deeper(spot, &spot.rest[from..], changes.clone());
                return over;
            }
            (StepAct::Pool(pool), []) => {
                self.push(&spot.all, changes, vec![("pool".to_owned(), said(pool))], line);
                return over;
            }
            (StepAct::HoldBack(answer), []) => self.hold_back(answer, spot, changes),
            (StepAct::HoldBack(answer), [(false, Special::Status(statuses))]) => {
                self.intercept(answer, statuses, spot, changes);
            }
            (act, []) if act.is_change() => self.change(spot, changes),
            _ => {
                self.together(spot, term, changes);
                return if self.refuses(&spot.step.act) { over } else { After::GoesOn };
            }
        }
        After::GoesOn
    }

    /// A rule that asks for something special beside something else.
    fn together(&mut self, spot: &Spot<'_>, term: &Term, changes: &mut Changes) {
        let by_status = term.specials.iter().any(|(_, special)| matches!(special, Special::Status(_)));
        let why = if by_status { "no route can ask for `status`" } else { "no route can ask this together" };
        let line = spot.step.line;
        let passwords = term.specials.iter().find_map(|special| match special {
            (true, Special::Auth(list, groups)) => Some((list.as_str(), groups.as_slice())),
            _ => None,
        });
        match &spot.step.act {
            act if !self.refuses(act) => self.fail(line, why),
            _ if term.specials.iter().any(|(_, special)| special.is_limit()) => {
                self.unlimited.push((line, why.to_owned()));
            }
            StepAct::Auth(_, realm) if passwords.is_some() => {
                self.fail(line, why);
                let (list, groups) = passwords.unwrap_or_default();
                self.auth(spot, (list, groups, realm.as_str()), changes);
            }
            StepAct::Answer(answer) => {
                self.fail(line, why);
                self.answer(answer, &spot.all, changes, line);
            }
            StepAct::HoldBack(answer) => {
                self.fail(line, why);
                self.hold_back(answer, spot, changes);
            }
            _ => {
                self.fail(line, why);
                self.answer(&refusal(403), &spot.all, changes, line);
            }
        }
    }

    /// A refusal while no server of a backend is up, which Weir makes by itself where it leads there.
    fn while_down(&mut self, spot: &Spot<'_>, answer: &Answer, of: &str, changes: &mut Changes) {
        let line = spot.step.line;
        if !matches!(spot.end, End::Backend(Some(name)) if name == of && spot.whole) {
            return self.unlimited.push((line, "no route can ask whether servers are up".to_owned()));
        }
        self.note(line, format!("503 by itself, while no backend of `{of}` is up"));
        if !answer.body.is_empty() {
            changes.add_pages(&[answer.page(&["503".to_owned()], false)], false);
        }
    }

    /// Keeps responses from clients: those whom the rule concerns are answered in place of being led to a
    /// backend.
    fn hold_back(&mut self, answer: &Answer, spot: &Spot<'_>, changes: &mut Changes) {
        let hold = |changes: &mut Changes| {
            // The rules of the backend come first, then those of the frontend.
            let is_before =
                changes.held_back.as_ref().is_some_and(|(_, before)| *before || !changes.is_behind);
            if !is_before {
                changes.held_back = Some((answer.clone(), changes.is_behind));
            }
        };
        if !self.changed(spot, spot.rest, changes, hold) {
            self.answer(answer, &spot.all, changes, spot.step.line);
        }
    }

    /// Keeps responses with these statuses from clients: a page takes their place.
    fn intercept(&mut self, answer: &Answer, statuses: &[String], spot: &Spot<'_>, changes: &mut Changes) {
        let note = "`error_page` with `intercept`: the content is replaced, the status stays that of the backend, and other rules of responses hold";
        self.note(spot.step.line, note);
        let page = answer.page(statuses, true);
        let add = |changes: &mut Changes| changes.add_pages(std::slice::from_ref(&page), true);
        if !self.changed(spot, spot.rest, changes, add) {
            self.answer(answer, &spot.all, changes, spot.step.line);
        }
    }

    /// Follows what is behind a rule, where its condition holds.
    ///
    /// Says whether that was possible.
    fn deeper(&mut self, spot: &Spot<'_>, rest: &[RuleStep], changes: Changes) -> bool {
        self.ways += 1;
        if self.under.len() >= MOST_CHANGES || self.routes.len() >= MOST_ROUTES || self.ways > MOST_WAYS {
            self.fail(
                spot.step.line,
                "too many rules change something under conditions: each doubles the routes",
            );
            return false;
        }
        self.under.push(spot.step.line);
        self.follow(rest, &spot.all, changes, spot.end);
        self.under.pop();
        true
    }

    /// Makes a change: for all that is behind the rule, or on a way of its own where its condition holds.
    /// Says whether that was possible.
    fn changed(
        &mut self,
        spot: &Spot<'_>,
        rest: &[RuleStep],
        changes: &mut Changes,
        make: impl Fn(&mut Changes),
    ) -> bool {
        if spot.whole {
            make(changes);
            return true;
        }
        let mut own = changes.clone();
        make(&mut own);
        self.deeper(spot, rest, own)
    }

    fn change(&mut self, spot: &Spot<'_>, changes: &mut Changes) {
        let together =
            spot.rest.iter().take_while(|step| step.act.is_change() && step.when == spot.step.when);
        let steps: Vec<&RuleStep> = std::iter::once(spot.step).chain(together).collect();
        let rest = &spot.rest[steps.len() - 1..];
        let pinned = steps.iter().find_map(|step| match &step.act {
            StepAct::Rewrite(rewrite) => rewrite.pinned.clone(),
            _ => None,
        });
        if pinned.is_some() && (changes.pinned.is_some() || changes.path_is_changed) {
            self.fail(spot.step.line, "the path is changed already, and a route changes it once");
            return;
        }
        let make = |changes: &mut Changes| steps.iter().for_each(|step| changes.make(&step.act));
        match pinned {
            None => {
                self.changed(spot, rest, changes, make);
            }
            Some(_) => {
                // Only where the expression matches; elsewhere the other changes alone are made.
                let mut own = changes.clone();
                make(&mut own);
                self.deeper(spot, rest, own);
                let others = |changes: &mut Changes| {
                    let others = steps.iter().filter(|step| !matches!(step.act, StepAct::Rewrite(_)));
                    others.for_each(|step| changes.make(&step.act));
                };
                if steps.len() > 1 {
                    self.changed(spot, rest, changes, others);
                }
            }
        }
    }

    fn auth(
        &mut self,
        spot: &Spot<'_>,
        (list, groups, realm): (&str, &[String], &str),
        changes: &mut Changes,
    ) {
        let mut file = format!("{}/{list}", self.known.folder.trim_end_matches('/'));
        let before = changes.keys.get("auth").or(self.keys.get("auth"));
        if before.is_some_and(|auth| !auth.contains(&format!("{file}."))) {
            self.fail(spot.step.line, "a request is asked for a password of one list");
            return self.answer(&refusal(403), &spot.all, changes, spot.step.line);
        }
        for group in groups {
            file = format!("{file}.{group}");
        }
        if !groups.is_empty() {
            self.note(spot.step.line, format!("only users of these groups stand in {file}.users"));
        }
        let users = inline(&[
            ("users".to_owned(), said(&format!("{file}.users"))),
            ("realm".to_owned(), said(realm)),
            ("pass_authorization".to_owned(), "true".to_owned()),
        ]);
        let auth = inline(&[("basic".to_owned(), users)]);
        if spot.whole && self.under.is_empty() && self.routes.is_empty() && !changes.is_behind {
            self.keys.set("auth", auth);
            return;
        }
        if !self.changed(spot, spot.rest, changes, |changes| changes.keys.set("auth", auth.clone())) {
            self.answer(&refusal(403), &spot.all, changes, spot.step.line);
        }
    }

    fn limit(
        &mut self,
        spot: &Spot<'_>,
        answer: &Answer,
        (counter, most): (&super::matching::Counter, u64),
        changes: &mut Changes,
    ) {
        let line = spot.step.line;
        let limit = match self.known.tables.limit(counter, most, answer.status) {
            Ok(limit) => limit,
            Err(why) => return self.unlimited.push((line, why)),
        };
        for note in limit.notes {
            self.note(line, note);
        }
        if self.known.listener_count > 1 {
            self.note(line, COUNTED_APART);
        }
        self.shares |= limit.is_shared;
        let is_first = spot.whole && self.under.is_empty() && !changes.is_behind;
        match limit.per_client {
            Some(most) if is_first => self.keys.set("max_connections_per_client", most.to_string()),
            Some(_) => {
                let why = "connections at once are limited for a whole listener alone";
                self.unlimited.push((line, why.to_owned()));
            }
            None if is_first => self.limits.push(limit.table),
            None => {
                self.note(line, "each of its routes counts for itself");
                self.changed(spot, spot.rest, changes, |changes| changes.limits.push(limit.table.clone()));
            }
        }
    }
}

/// One table, or a list of them.
pub fn listed(tables: &[String]) -> String {
    match tables {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}
