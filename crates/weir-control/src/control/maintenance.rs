//! Parts of the service that an operator switches off and on.

use weir_config::Protocol;
use weir_state::Snapshot;
use weir_state::maintenance::Scope;

use super::Control;
use super::change::ChangeError;
use crate::events::What;

impl Control {
    /// What is in maintenance.
    pub fn maintenance(&self) -> Vec<Scope> {
        self.snapshot().maintenance.scopes()
    }

    /// Puts a part of the service into maintenance, or takes it out; in force at once, and until it is
    /// switched again, over reloads and upgrades. To take [`Scope::All`] out takes out everything.
    ///
    /// # Errors
    /// Nothing that speaks HTTP has that name. What is gone can still be taken out.
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
    let is_http = |listener: &weir_config::Listener| listener.protocol() == Protocol::Http;
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
                true => Ok(()),
                false => invalid(format!("no HTTP listener has a route that is named `{route}`")),
            }
        }
        Scope::Pool(name) => {
            snapshot.pool(name).map(|_| ()).ok_or_else(|| ChangeError::no_pool(name, snapshot))
        }
    }
}
