//! The listeners of one worker across reloads: what its sessions refer to, and which sessions may stay.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_config::Protocol;
use weir_state::Listener;
use weir_state::counterparts::Counterparts;
use weir_state::sockets::{self, Endpoint};
use weir_tls::ServerTls;

use crate::backends::WorkerPool;
use crate::compiled::{CompiledListener, CompiledSnapshot};

/// A listener on one worker, across reloads. Sessions hold the slot and look up the current listener in it.
pub struct ListenerSlot {
    name: String,
    current: RefCell<Rc<WorkerListener>>,
    draining_until: Cell<Option<Duration>>,
}

/// A listener as of one snapshot.
pub struct WorkerListener {
    pub shared: Arc<Listener>,
    pub compiled: Arc<CompiledListener>,
    /// In the order of the snapshot's pools; a route's pool index refers to this list.
    pub pools: Rc<[Rc<WorkerPool>]>,
}

impl ListenerSlot {
    /// The listener as it is configured now. Sessions ask anew for each request.
    #[inline]
    pub fn current(&self) -> Rc<WorkerListener> {
        self.current.borrow().clone()
    }

    /// As [`Self::current`], for a look at it before anything else is done.
    #[inline]
    pub fn look(&self) -> Ref<'_, WorkerListener> {
        Ref::map(self.current.borrow(), |current| &**current)
    }

    /// Whether `listener` is still the current one, with its pools.
    #[inline]
    pub fn is_current(&self, listener: &Rc<WorkerListener>) -> bool {
        Rc::ptr_eq(&self.current.borrow(), listener)
    }

    /// When the sessions of this listener are cut off; `None` while it is in service.
    #[inline]
    pub fn draining_until(&self) -> Option<Duration> {
        self.draining_until.get()
    }

    /// Whether connections accepted at `endpoint` belong to this listener.
    pub fn accepts_at(&self, endpoint: &Endpoint) -> bool {
        sockets::endpoints_of(&self.current().shared.config).any(|accepted| accepted == *endpoint)
    }

    /// Replaces the pools, and nothing else.
    pub fn has_pools(&self, pools: &Rc<[Rc<WorkerPool>]>) {
        let before = self.current();
        let (shared, compiled) = (before.shared.clone(), before.compiled.clone());
        *self.current.borrow_mut() = Rc::new(WorkerListener { shared, compiled, pools: pools.clone() });
    }
}

/// The slots for the compiled listeners, in their order; those of `old` are reused if their sessions may
/// stay.
pub fn followers(
    old: &[Rc<ListenerSlot>],
    compiled: &CompiledSnapshot,
    pools: &Rc<[Rc<WorkerPool>]>,
) -> Vec<Rc<ListenerSlot>> {
    let mut known = Counterparts::new(old, |slot| slot.name.as_str());
    let mut slots = Vec::with_capacity(compiled.snapshot.listeners.len());
    for (listener, compiled) in compiled.listeners() {
        let (shared, compiled) = (listener.clone(), compiled.clone());
        let current = Rc::new(WorkerListener { shared, compiled, pools: pools.clone() });
        let name = listener.config.name.as_str();
        let protocol = listener.config.protocol();
        let before = known.find(name);
        let before = before.filter(|slot| slot.current().shared.config.protocol() == protocol);
        let lets_in_others = before.is_some_and(|slot| lets_in_others(&slot.current().shared, listener));
        if let Some(slot) = before {
            // Sessions that must end also serve their last requests with the new config.
            *slot.current.borrow_mut() = current.clone();
        }
        slots.push(match before.filter(|_| !lets_in_others) {
            Some(slot) => slot.clone(),
            None => Rc::new(ListenerSlot {
                name: name.to_owned(),
                current: RefCell::new(current),
                draining_until: Cell::new(None),
            }),
        });
    }
    slots
}

/// Makes the sessions of slots that are in `slots` and not in `kept` end, at the latest at `until`.
pub fn let_go(slots: &[Rc<ListenerSlot>], kept: &[Rc<ListenerSlot>], until: Duration) {
    for gone in slots.iter().filter(|slot| !kept.iter().any(|kept| Rc::ptr_eq(slot, kept))) {
        gone.draining_until.set(Some(until));
    }
}

/// Whether other rules, or other authorities' lists, now decide which client certificates are accepted:
/// connected clients were checked by the old ones. Only for HTTP, where a client reconnects by itself and
/// loses nothing.
fn lets_in_others(before: &Listener, now: &Listener) -> bool {
    let of = |listener: &Listener| listener.tls.as_deref().and_then(ServerTls::clients).copied();
    now.config.protocol() == Protocol::Http && of(before) != of(now)
}
