//! What rules change on the way to a route, and the keys that say it there.

use super::headers::{Edits, Side};
use super::output::{Keys, inline, said};
use super::routes::listed;
use super::rules::{Answer, Rewrite, StepAct};

/// What has been changed on the way to a route.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Fields of requests.
    pub request: Edits,
    /// Fields of responses that a frontend changes, which is done after those of the backend.
    pub response: Edits,
    /// Fields of responses that a backend changes.
    pub behind_response: Edits,
    /// Keys of the route.
    pub keys: Keys,
    /// Tables of `rate_limit`.
    pub limits: Vec<String>,
    /// Keys of `rewrite`.
    pub rewrite: Keys,
    /// The expression that the path must match.
    pub pinned: Option<String>,
    /// Whether backends get another path than the one that routes ask for.
    pub path_is_changed: bool,
    /// Keys of `timeout`.
    pub timeout: Keys,
    /// Tables of `error_page`.
    pub pages: Vec<String>,
    /// What is said in place of the responses of backends, which are held back, and whether a backend says
    /// it.
    pub held_back: Option<(Answer, bool)>,
    /// Pools with their shares.
    pub splits: Vec<(String, f64)>,
    /// Whether the rules are those of a backend.
    pub is_behind: bool,
    /// The backend that it is, by HAProxy's name.
    pub backend: String,
}

impl StepAct {
    /// Whether it changes something and goes on.
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            StepAct::Edit(..)
                | StepAct::Key(..)
                | StepAct::Rewrite(_)
                | StepAct::Timeout(_)
                | StepAct::Pages(_)
        )
    }

    /// Whether it changes nothing but how responses look.
    pub fn is_look(&self) -> bool {
        matches!(self, StepAct::Pages(_) | StepAct::Key("compress", _))
    }
}

impl Changes {
    /// Makes a change.
    pub fn make(&mut self, act: &StepAct) {
        match act {
            StepAct::Edit(Side::Request, edit) => self.request.push(edit.clone()),
            StepAct::Edit(Side::Response, edit) if self.is_behind => self.behind_response.push(edit.clone()),
            StepAct::Edit(Side::Response, edit) => self.response.push(edit.clone()),
            StepAct::Key(key, value) => self.keys.set(key, value.clone()),
            StepAct::Timeout(timers) => {
                timers.iter().for_each(|(key, value)| self.timeout.set(key, said(value)));
            }
            StepAct::Pages(pages) => self.add_pages(pages, false),
            StepAct::Rewrite(Rewrite { pinned, path, query, add_query }) => {
                if pinned.is_some() {
                    self.pinned.clone_from(pinned);
                }
                if let Some(path) = path {
                    self.rewrite.set("path", said(path));
                    self.path_is_changed = true;
                }
                if let Some(query) = query {
                    self.rewrite.set("query", said(query));
                }
                if let Some(more) = add_query {
                    self.rewrite.set("add_query", said(more));
                }
            }
            _ => {}
        }
    }

    /// Adds error pages before or behind those that are there; one for statuses that have a page is left out.
    pub fn add_pages(&mut self, pages: &[String], first: bool) {
        for page in pages {
            let statuses = |page: &str| {
                page.split(" }").next().and_then(|page| page.split(", ").next()).map(str::to_owned)
            };
            if self.pages.iter().any(|known| statuses(known) == statuses(page)) {
                continue;
            }
            let at = if first { 0 } else { self.pages.len() };
            self.pages.insert(at, page.clone());
        }
    }

    /// The keys of a route with this action, and what of the changes they can't say.
    pub fn keys(&self, action: &[(String, String)]) -> (Keys, Vec<String>) {
        let mut keys = self.keys.clone();
        let mut lost = self.request.say(Side::Request, &mut keys);
        let mut response = self.behind_response.clone();
        response.extend(&self.response);
        lost.extend(response.say(Side::Response, &mut keys));
        if !self.limits.is_empty() {
            keys.set("rate_limit", listed(&self.limits));
        }
        if !self.timeout.is_empty() {
            keys.set("timeout", self.timeout.inline());
        }
        if !self.pages.is_empty() {
            keys.set("error_page", format!("[{}]", self.pages.join(", ")));
        }
        if !self.rewrite.is_empty() {
            keys.set("rewrite", self.rewrite.inline());
        }
        let is_mapped = action.iter().any(|(key, _)| key == "pool_map");
        let own = action.iter().find(|(key, _)| key == "pool").map(|(_, pool)| pool.as_str());
        let splits: Vec<String> = self
            .splits
            .iter()
            .filter(|(pool, _)| own != Some(said(pool).as_str()))
            .map(|(pool, share)| {
                inline(&[("pool".to_owned(), said(pool)), ("share".to_owned(), format!("{share:?}"))])
            })
            .collect();
        match (splits.is_empty(), is_mapped) {
            (true, _) => {}
            (false, false) => {
                keys.set("split", inline(&[("to".to_owned(), format!("[{}]", splits.join(", ")))]))
            }
            (false, true) => lost.push("a route has no `split` beside `pool_map`".to_owned()),
        }
        let differs = self.request.have_any(&["$header.", "$cookie.", "$query", "$path"]);
        if keys.has("cache") && (!splits.is_empty() || is_mapped || differs) {
            keys.remove("cache");
            lost.push(
                "nothing is kept of a route that splits, or tells backends more of each request".to_owned(),
            );
        }
        (keys, lost)
    }
}
