//! Where the ways end that rules make: the routes themselves.

use super::super::answers::refusal;
use super::super::asks::{All, askable, conditions_of};
use super::super::changes::Changes;
use super::super::headers::{Edits, Side};
use super::super::output::{Keys, said};
use super::super::pages::HaproxyPage;
use super::super::rules::Answer;
use super::{End, MOST_ROUTES, Routes, listed};

impl Routes<'_> {
    pub(super) fn answer(&mut self, answer: &Answer, all: &All, changes: &Changes, line: usize) {
        let mut keys = Keys::default();
        let mut fields = Edits::default();
        answer.fields.iter().for_each(|edit| fields.push(edit.clone()));
        for lost in fields.say(Side::Response, &mut keys) {
            self.fail(line, lost);
        }
        for key in ["auth", "access_log"] {
            if let Some(value) = changes.keys.get(key) {
                keys.set(key, value);
            }
        }
        if !changes.limits.is_empty() {
            keys.set("rate_limit", listed(&changes.limits));
        }
        let table = self.paged(answer, changes).unwrap_or_else(|| answer.table.clone());
        let mut entries = vec![(answer.key.to_owned(), table)];
        entries.extend(keys.entries().iter().cloned());
        let (is_tcp, mut all) = (self.known.is_tcp, all.clone());
        if answer.key == "respond"
            && answer.status >= 400
            && let Err(why) = conditions_of(&all, changes.pinned.as_deref(), is_tcp)
        {
            self.fail(line, why);
            all = askable(&all, changes.pinned.as_deref(), is_tcp);
        }
        self.push(&all, &Changes { pinned: changes.pinned.clone(), ..Changes::default() }, entries, line);
    }

    /// The table of an answer with the content of its status's page, as the backend or else the proxy has it.
    fn paged(&self, answer: &Answer, changes: &Changes) -> Option<String> {
        let of = |pages: &[HaproxyPage]| pages.iter().find(|page| page.status == answer.status).cloned();
        let behind = self.known.backends.get(&changes.backend).and_then(|behind| of(&behind.pages));
        let page = behind.or_else(|| of(self.known.pages)).filter(|_| answer.takes_page)?;
        let mut table = Keys::default();
        table.set("status", answer.status.to_string());
        page.content.entries().iter().for_each(|(key, value)| table.set(key, value.clone()));
        Some(table.inline())
    }

    /// Goes on to a backend, with its own rules.
    pub(super) fn enter(&mut self, name: &str, at: &All, mut changes: Changes) {
        let known = self.known;
        if let Some(behind) = known.backends.get(name) {
            changes.is_behind = true;
            name.clone_into(&mut changes.backend);
            self.follow(&behind.steps, at, changes, &End::Pool(behind.pool.clone()));
        }
    }

    pub(super) fn end(&mut self, end: &End, at: &All, changes: &Changes) {
        let pool = match end {
            End::Backend(Some(name)) => return self.enter(name, at, changes.clone()),
            End::Backend(None) => None,
            End::Pool(pool) => pool.clone(),
        };
        let line = self.under.last().copied().unwrap_or(0);
        match pool {
            Some(pool) => self.push(at, changes, vec![("pool".to_owned(), said(&pool))], line),
            None => self.answer(&refusal(503), at, changes, line),
        }
    }

    /// Adds the routes that together hold under a condition.
    pub(super) fn push(&mut self, all: &All, changes: &Changes, action: Vec<(String, String)>, line: usize) {
        if let Some((answer, _)) =
            changes.held_back.clone().filter(|_| action.iter().any(|(key, _)| key == "pool"))
        {
            return self.answer(&answer, all, changes, line);
        }
        let conditions = match conditions_of(all, changes.pinned.as_deref(), self.known.is_tcp) {
            Ok(conditions) => conditions,
            Err(why) => return self.fail(line, why),
        };
        let (keys, lost) = changes.keys(&action);
        for why in lost {
            self.fail(line, why);
        }
        if self.routes.len() + conditions.len() > MOST_ROUTES {
            return self.fail(line, format!("a listener has {MOST_ROUTES} routes already"));
        }
        for condition in conditions {
            let mut entries = condition.entries();
            entries.extend(action.iter().cloned());
            entries.extend(keys.entries().iter().cloned());
            self.routes.push(entries);
        }
    }
}
