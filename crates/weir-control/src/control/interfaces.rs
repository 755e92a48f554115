//! Looks after interfaces that sockets of listeners are bound to. The kernel binds to the interface, not to
//! its name: when it goes away and comes back, a socket stays with the one that is no more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_state::sockets::InterfaceState;

use super::Control;
use super::life::Phase;
use crate::events::What;
use crate::lock;

/// Between two looks. A look costs a few system calls for each endpoint, and nothing where there is none.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How it stands with each interface, by name.
pub(super) type States = BTreeMap<Arc<str>, InterfaceState>;

/// Looks again and again, until the process ends.
pub(super) async fn keep(control: Arc<Control>) {
    let mut told = BTreeMap::new();
    loop {
        control.look_at_interfaces(&mut told).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Control {
    async fn look_at_interfaces(&self, told: &mut States) {
        let is_asked_for =
            self.snapshot().config.listeners.iter().any(|listener| !listener.interfaces.is_empty());
        if !is_asked_for && told.is_empty() || self.phase() != Phase::Serving {
            return;
        }
        let mut states = self.proxy.interfaces().await;
        if states.values().any(|state| *state == InterfaceState::Anew) {
            match self.publisher.rebind().await {
                Ok(()) => states = self.proxy.interfaces().await,
                Err(error) => tracing::error!("interfaces that are back can't be listened at: {error}"),
            }
        }
        for (name, now) in &states {
            let before = told.get(name).copied().unwrap_or(InterfaceState::Here);
            let change = match (before, now) {
                (InterfaceState::Here, InterfaceState::Gone | InterfaceState::Anew) => "gone",
                (InterfaceState::Gone | InterfaceState::Anew, InterfaceState::Here) => "back",
                _ => continue,
            };
            match *now {
                InterfaceState::Here => {
                    tracing::info!(interface = %name, "an interface is listened at again")
                }
                _ => tracing::error!(interface = %name, "an interface that is listened at is gone"),
            }
            self.bus.tell(What::Interface { change, interface: name.to_string() });
        }
        told.clone_from(&states);
        *lock(&self.interfaces) = states;
    }

    /// Interfaces of these names whose listeners get nothing now, as the last look found it.
    pub fn lost_interfaces<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
        let states = lock(&self.interfaces);
        let is_lost = |name: &&str| states.get(*name).is_some_and(|state| *state != InterfaceState::Here);
        names.filter(is_lost).collect()
    }
}
