//! Rules that lead to a pool by more than its name: shares, maps, values of the request, servers that are
//! down.

use super::super::acls::When;
use super::super::changes::Changes;
use super::super::output::{inline, said, said_all};
use super::{Behind, End, PATH_IS_CHANGED, Routes, Spot};

impl Routes<'_> {
    pub(super) fn split(&mut self, spot: &Spot<'_>, name: &str, share: f64, changes: &mut Changes) {
        let line = spot.step.line;
        if self.known.is_tcp {
            return self.fail(line, "routes of tcp have no shares");
        }
        let Some(pool) = self.pool_alone(line, name) else { return };
        self.note(
            line,
            "`split`: while that pool is down, its share goes to the other one, where HAProxy answers 503",
        );
        self.changed(spot, spot.rest, changes, |changes| {
            // Each draw is made of what those before it have left.
            let left = 1.0 - changes.splits.iter().map(|(_, share)| share).sum::<f64>();
            let share = (share * left * 1e6).round() / 1e6;
            match changes.splits.iter_mut().find(|(known, _)| *known == pool) {
                Some((_, known)) => *known += share,
                None => changes.splits.push((pool.clone(), share)),
            }
        });
    }

    pub(super) fn fallback(&mut self, line: usize, of: &str, name: &str) {
        let (Some(first), Some(second)) = (self.pool_alone(line, of), self.pool_alone(line, name)) else {
            return;
        };
        self.note(line, format!("`fallback_pool` of pool `{first}`"));
        self.fallbacks.push((first, second));
    }

    /// The pool of a backend whose rules are all said by its pool.
    fn pool_alone(&mut self, line: usize, name: &str) -> Option<String> {
        match self.known.backends.get(name) {
            Some(behind @ Behind { pool: Some(pool), .. }) if !behind.has_rules() => Some(pool.clone()),
            Some(Behind { pool: Some(_), .. }) => {
                self.fail(
                    line,
                    format!(
                        "backend `{name}` has rules of its own, which would not hold for what comes this way"
                    ),
                );
                None
            }
            _ => {
                self.fail(line, format!("there is no backend `{name}` that serves"));
                None
            }
        }
    }

    /// Leads to the pools that a map names by themselves; where some of the backends have rules of their own,
    /// to each backend under its condition.
    pub(super) fn mapped(
        &mut self,
        map: &str,
        choices: &[(String, When)],
        spot: &Spot<'_>,
        changes: &Changes,
    ) {
        let known = self.known;
        let is_plain = |behind: &&Behind| !behind.has_rules();
        let pools: Vec<String> = known.backends.values().filter_map(|behind| behind.pool.clone()).collect();
        let default = match spot.end {
            End::Backend(Some(name)) => {
                known.backends.get(name).filter(is_plain).and_then(|behind| behind.pool.clone())
            }
            End::Pool(pool) => pool.clone(),
            End::Backend(None) => None,
        };
        let has_rules = known.backends.values().any(Behind::has_rules);
        let Some(default) = default.filter(|_| !has_rules && !known.is_tcp && !pools.is_empty()) else {
            return self.choose(choices, spot, changes);
        };
        let entries = vec![
            ("pool".to_owned(), said(&default)),
            (
                "pool_map".to_owned(),
                inline(&[("map".to_owned(), said(map)), ("pools".to_owned(), said_all(&pools))]),
            ),
        ];
        self.push(&spot.all, changes, entries, spot.step.line);
    }

    /// Leads to the backends that a value of the request names, and to the end where it names none: then no
    /// more rules of this kind are followed.
    pub(super) fn choose(&mut self, choices: &[(String, When)], spot: &Spot<'_>, changes: &Changes) {
        let (line, known) = (spot.step.line, self.known);
        self.under.push(line);
        for (name, when) in choices.iter().filter(|(name, _)| known.backends.contains_key(name)) {
            let terms = match when.terms(&self.here) {
                Ok(terms) => terms,
                Err(why) => {
                    self.fail(line, why);
                    continue;
                }
            };
            for term in terms {
                if changes.path_is_changed && term.all.asks_path() {
                    self.fail(line, PATH_IS_CHANGED);
                } else if let Some(all) = spot.all.and(&term.all) {
                    self.enter(name, &all, changes.clone());
                }
            }
        }
        let from = spot.rest.iter().position(|step| step.phase > spot.step.phase);
        let rest = spot.rest.get(from.unwrap_or(spot.rest.len())..).unwrap_or_default();
        self.follow(rest, &spot.all, changes.clone(), spot.end);
        self.under.pop();
    }

    /// Tells who watches that no server of a backend is up: while one is, it is asked what probes ask.
    pub(super) fn watch(&mut self, of: &str, spot: &Spot<'_>) {
        let line = spot.step.line;
        let known = self.known;
        let behind = known.backends.get(of);
        let asked = behind.and_then(|behind| behind.pool.as_ref().zip(behind.asked.as_ref()));
        let Some((pool, (path, host))) = asked else {
            let why = format!(
                "no route answers by whether a server of `{of}` is up, and its probes do not ask for a path by GET, which a route could ask for"
            );
            return self.fail(line, why);
        };
        if self.watches {
            return self.fail(line, "a route asks one pool alone whether a server is up");
        }
        self.watches = true;
        self.note(line, format!("a route to pool `{pool}` that asks for {path}, as probes do: the answer is that of a backend, or 503 while none is up"));
        let mut entries = vec![
            ("pool".to_owned(), said(pool)),
            ("rewrite".to_owned(), inline(&[("path".to_owned(), path.clone())])),
        ];
        entries.extend(host.iter().map(|host| ("backend_host".to_owned(), host.clone())));
        self.push(&spot.all, &Changes::default(), entries, line);
    }
}
