//! Watches the interfaces that listeners' sockets are bound to. The kernel binds a socket to the interface,
//! not to its name: if the interface is removed and created again, the socket stays with the removed one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_state::sockets::InterfaceState;

use super::Control;
use super::life::Phase;
use crate::events::What;
use crate::lock;

/// Interval between two looks. A look takes a few system calls for each endpoint bound to an interface.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The state of each interface, by name.
pub(super) type States = BTreeMap<Arc<str>, InterfaceState>;

/// Looks repeatedly, until the process ends.
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

    /// Those of the named interfaces whose listeners get nothing now, according to the last look.
    pub fn lost_interfaces<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
        let states = lock(&self.interfaces);
        let is_lost = |name: &&str| states.get(*name).is_some_and(|state| *state != InterfaceState::Here);
        names.filter(is_lost).collect()
    }
}
