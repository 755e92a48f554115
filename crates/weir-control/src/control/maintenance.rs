//! Parts of the service that an operator puts into maintenance.

use std::fmt;

use weir_config::Protocol;
use weir_state::Snapshot;
use weir_state::maintenance::Scope;

use super::Control;
use super::change::ChangeError;
use crate::events::What;

/// A listener that maintenance does not affect, although it uses what is in maintenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untouched {
    /// Its name.
    pub listener: String,
    /// Its protocol.
    pub protocol: &'static str,
}

impl fmt::Display for Untouched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener {}, which speaks {}", self.listener, self.protocol)
    }
}

impl Control {
    /// What is in maintenance.
    pub fn maintenance(&self) -> Vec<Scope> {
        self.snapshot().maintenance.scopes()
    }

    /// The listeners that use what is in maintenance but continue, as they do not use HTTP.
    pub fn untouched_by(&self, scope: &Scope) -> Vec<Untouched> {
        let Scope::Pool(pool) = scope else { return Vec::new() };
        let snapshot = self.snapshot();
        let users = snapshot.config.users_of(pool).into_iter().filter(|listener| !is_http(listener));
        let of = |listener: &weir_config::Listener| Untouched {
            listener: listener.name.clone(),
            protocol: listener.protocol().word(),
        };
        users.map(of).collect()
    }

    /// What is in maintenance, in words, and which listeners continue.
    pub fn maintenance_words(&self) -> Vec<String> {
        let words = |scope: Scope| {
            let untouched = self.untouched_by(&scope);
            let each = untouched.iter().map(Untouched::to_string).collect::<Vec<_>>().join(" and ");
            if each.is_empty() { scope.to_string() } else { format!("{scope} (not for {each})") }
        };
        self.maintenance().into_iter().map(words).collect()
    }

    /// Puts a part of the service into maintenance, or takes it out. Takes effect at once and lasts until it
    /// is changed again, across reloads and upgrades. Taking [`Scope::All`] out takes everything out.
    ///
    /// # Errors
    /// Nothing for HTTP has that name. A part that was removed can still be taken out.
    pub fn switch_maintenance(&self, scope: Scope, on: bool) -> Result<(), ChangeError> {
        let snapshot = self.snapshot();
        if on || !snapshot.maintenance.scopes().contains(&scope) {
            exists(&snapshot, &scope)?;
        }
        let what = scope.to_string();
        let changed = match on || scope != Scope::All {
            true => snapshot.maintenance.switch(scope, on),
            false => snapshot.maintenance.end_all(),
        };
        if changed {
            let state = if on { "on" } else { "off" };
            tracing::info!(of = what, "operator: maintenance {state}");
            self.bus.tell(What::Maintenance { of: what, state });
        }
        Ok(())
    }
}

fn exists(snapshot: &Snapshot, scope: &Scope) -> Result<(), ChangeError> {
    let listeners = || snapshot.config.listeners.iter();
    let invalid = |message: String| Err(ChangeError::Invalid(message));
    match scope {
        Scope::All => Ok(()),
        Scope::Listener(name) => match listeners().find(|listener| listener.name == *name) {
            Some(listener) if is_http(listener) => Ok(()),
            Some(listener) => {
                let spoken = listener.protocol().word();
                invalid(format!(
                    "listener `{name}` speaks {spoken}; maintenance is for those that speak http"
                ))
            }
            None => invalid(format!("no listener is named `{name}`")),
        },
        Scope::Route { listener, route } => {
            let mut of = listeners().filter(|it| listener.as_deref().is_none_or(|name| it.name == name));
            let has = |it: &weir_config::Listener| it.routes.iter().any(|other| other.name == *route);
            match of.any(|it| is_http(it) && has(it)) {
                // After the next reload this may be the position of another route.
                true if weir_config::is_position(route) => invalid(format!(
                    "route `{route}` has no name of its own, and would be another once routes are put before it; \
                     give it a `name`"
                )),
                true => Ok(()),
                false => invalid(format!("no HTTP listener has a route that is named `{route}`")),
            }
        }
        Scope::Pool(name) => {
            snapshot.pool(name).ok_or_else(|| ChangeError::no_pool(name, snapshot))?;
            let users = snapshot.config.users_of(name);
            if users.iter().any(|listener| is_http(listener)) {
                return Ok(());
            }
            let others =
                users.iter().map(|it| format!("`{}`, which speaks {}", it.name, it.protocol().word()));
            let others = others.collect::<Vec<_>>().join(" and ");
            let but = if others.is_empty() { String::new() } else { format!(", but {others}") };
            invalid(format!(
                "no listener that speaks http uses pool `{name}`{but}; maintenance is for those that speak http"
            ))
        }
    }
}

fn is_http(listener: &weir_config::Listener) -> bool {
    listener.protocol() == Protocol::Http
}
