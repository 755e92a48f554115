//! Which parts of the service an operator has put into maintenance. Parts are identified by name, so that the
//! state outlives reloads. While nothing is in maintenance a check costs one atomic load.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

/// A part of the service that can be in maintenance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Every HTTP listener.
    All,
    /// One listener.
    Listener(String),
    /// Routes of that name, on one listener or on all.
    Route {
        /// The listener's name; `None` for all.
        listener: Option<String>,
        /// The route's name.
        route: String,
    },
    /// Everything that goes to one pool.
    Pool(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::All => write!(f, "all"),
            Scope::Listener(name) => write!(f, "listener {name}"),
            Scope::Route { listener: None, route } => write!(f, "route {route}"),
            Scope::Route { listener: Some(listener), route } => write!(f, "route {route} of {listener}"),
            Scope::Pool(name) => write!(f, "pool {name}"),
        }
    }
}

/// The parts that are in maintenance now.
#[derive(Debug, Default)]
pub struct Maintenance {
    is_any: AtomicBool,
    scopes: RwLock<BTreeSet<Scope>>,
}

/// The parts that a request belongs to, by name.
#[derive(Clone, Copy, Debug)]
pub struct Whereto<'a> {
    /// The listener.
    pub listener: &'a str,
    /// The route that matched, if any.
    pub route: Option<&'a str>,
    /// The pool of the route or of the listener, if any.
    pub pool: Option<&'a str>,
}

impl Maintenance {
    /// Whether anything is in maintenance. One relaxed load.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// Puts a part into maintenance, or ends it. Returns whether that changed anything.
    pub fn switch(&self, scope: Scope, on: bool) -> bool {
        let mut scopes = self.scopes.write().unwrap_or_else(PoisonError::into_inner);
        let changed = if on { scopes.insert(scope) } else { scopes.remove(&scope) };
        self.is_any.store(!scopes.is_empty(), Ordering::Relaxed);
        changed
    }

    /// Ends all maintenance. Returns whether that changed anything.
    pub fn end_all(&self) -> bool {
        let mut scopes = self.scopes.write().unwrap_or_else(PoisonError::into_inner);
        let changed = !scopes.is_empty();
        scopes.clear();
        self.is_any.store(false, Ordering::Relaxed);
        changed
    }

    /// All parts that are in maintenance, in order.
    pub fn scopes(&self) -> Vec<Scope> {
        self.scopes.read().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The largest part in maintenance that a request belongs to; `None` if the request is to be served.
    #[inline]
    pub fn of(&self, whereto: &Whereto<'_>) -> Option<Scope> {
        if !self.is_any() {
            return None;
        }
        let scopes = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
        let belongs = |scope: &&Scope| match scope {
            Scope::All => true,
            Scope::Listener(name) => name == whereto.listener,
            Scope::Route { listener, route } => {
                whereto.route == Some(route) && listener.as_deref().is_none_or(|it| it == whereto.listener)
            }
            Scope::Pool(name) => whereto.pool == Some(name),
        };
        scopes.iter().find(belongs).cloned()
    }

    /// One line for each part, without a line end, which [`Self::take_line`] reads in the next process. Names
    /// have no spaces.
    pub fn lines(&self) -> Vec<String> {
        let line = |scope: Scope| match scope {
            Scope::All => format!("{WORD} all"),
            Scope::Listener(name) => format!("{WORD} listener {name}"),
            Scope::Route { listener: None, route } => format!("{WORD} route {route}"),
            Scope::Route { listener: Some(listener), route } => format!("{WORD} route {route} {listener}"),
            Scope::Pool(name) => format!("{WORD} pool {name}"),
        };
        self.scopes().into_iter().map(line).collect()
    }

    /// Takes over a line from another process; ignores lines that it does not understand.
    pub fn take_line(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let scope = match words[..] {
            [WORD, "all"] => Scope::All,
            [WORD, "listener", name] => Scope::Listener(name.to_owned()),
            [WORD, "route", route] => Scope::Route { listener: None, route: route.to_owned() },
            [WORD, "route", route, listener] => {
                Scope::Route { listener: Some(listener.to_owned()), route: route.to_owned() }
            }
            [WORD, "pool", name] => Scope::Pool(name.to_owned()),
            _ => return,
        };
        self.switch(scope, true);
    }
}

/// The first word of each line.
const WORD: &str = "maintenance";

#[cfg(test)]
mod tests {
    use super::*;

    fn route(listener: Option<&str>, route: &str) -> Scope {
        Scope::Route { listener: listener.map(str::to_owned), route: route.to_owned() }
    }

    #[test]
    fn a_request_meets_the_part_that_it_belongs_to() {
        let maintenance = Maintenance::default();
        let to = Whereto { listener: "web", route: Some("shop"), pool: Some("app") };
        assert!(maintenance.of(&to).is_none() && !maintenance.is_any());
        for (scope, other) in [
            (Scope::Pool("app".into()), Scope::Pool("api".into())),
            (route(None, "shop"), route(None, "web")),
            (route(Some("web"), "shop"), route(Some("other"), "shop")),
            (Scope::Listener("web".into()), Scope::Listener("shop".into())),
        ] {
            assert!(maintenance.switch(other.clone(), true));
            assert_eq!(maintenance.of(&to), None, "{other}");
            assert!(maintenance.switch(scope.clone(), true) && !maintenance.switch(scope.clone(), true));
            assert_eq!(maintenance.of(&to), Some(scope.clone()));
            assert!(maintenance.switch(scope, false) && maintenance.switch(other, false));
            assert!(!maintenance.is_any());
        }
        maintenance.switch(Scope::All, true);
        maintenance.switch(Scope::Pool("app".into()), true);
        assert_eq!(maintenance.of(&Whereto { route: None, pool: None, ..to }), Some(Scope::All));
        assert!(maintenance.end_all() && !maintenance.end_all() && maintenance.of(&to).is_none());
    }

    #[test]
    fn the_next_process_takes_it_over() {
        let old = Maintenance::default();
        let scopes = [
            Scope::All,
            Scope::Listener("web".into()),
            route(None, "web/0"),
            route(Some("web"), "x"),
            Scope::Pool("app".into()),
        ];
        for scope in scopes.clone() {
            old.switch(scope, true);
        }
        let new = Maintenance::default();
        old.lines().iter().for_each(|line| new.take_line(line));
        for odd in [
            "",
            "maintenance",
            "maintenance nothing",
            "maintenance pool",
            "state app 10.0.0.1:80 ready up 0 -",
        ] {
            new.take_line(odd);
        }
        assert_eq!(new.scopes(), scopes);
    }
}
