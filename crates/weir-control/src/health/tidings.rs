//! Reports what was found out about backends.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use weir_balance::Health;
use weir_config::OnDown;
use weir_proxy::events::Event;
use weir_state::Pool;

use crate::dns::Member;
use crate::events::{Bus, What};
use crate::lock;
use crate::publish::InForce;

use super::probe::Failure;

/// Least time between two log messages that probes can't be sent.
const SAY_UNSENT: Duration = Duration::from_secs(60);

/// A backend that went down in a pool whose sessions should end then.
pub type Fallen = Arc<weir_balance::Backend>;

/// Where findings are reported.
pub(super) struct Tidings {
    pub bus: Arc<Bus>,
    in_force: InForce,
    fallen: mpsc::UnboundedSender<Fallen>,
    reports: mpsc::UnboundedSender<Event>,
    /// When it was last logged that probes could not be sent.
    said_unsent: Mutex<Option<Duration>>,
}

impl Tidings {
    /// `in_force` has the pools that a finding concerns; the receiver gets the backends whose sessions should
    /// end.
    pub fn new(
        bus: Arc<Bus>,
        in_force: InForce,
        reports: mpsc::UnboundedSender<Event>,
    ) -> (Tidings, mpsc::UnboundedReceiver<Fallen>) {
        let (fallen, receiver) = mpsc::unbounded_channel();
        (Tidings { bus, in_force, fallen, reports, said_unsent: Mutex::default() }, receiver)
    }

    /// The current address `first` of a name did not accept a connection, and `address` did.
    pub fn other_address(&self, name: &str, first: SocketAddr, address: SocketAddr) {
        let _ = self.reports.send(Event::OtherAddress { name: name.to_owned(), first, address });
    }

    /// A probe could not be sent. Logged at once, and then at most once a minute: the cause mostly concerns
    /// all probes.
    pub fn unsent(&self, why: &Failure, now: Duration) {
        let mut said = lock(&self.said_unsent);
        if said.is_none_or(|last| now.saturating_sub(last) >= SAY_UNSENT) {
            *said = Some(now);
            tracing::warn!(why = why.to_string(), "probes can't be sent: what is known of backends stays");
        }
    }

    /// Refreshes the current pool after its backend's state has changed.
    pub fn refresh(&self, member: &Member, now: Duration) -> Option<Arc<Pool>> {
        let pool = self.in_force.snapshot().as_ref().and_then(|it| it.pool(&member.pool).cloned())?;
        pool.refresh(now);
        Some(pool)
    }

    /// The same for a backend that went down: its sessions end if its pool is configured so. The pool first
    /// chooses other backends, so that retries go there.
    pub fn fell(&self, member: &Member, now: Duration) {
        let pool = self.refresh(member, now);
        if pool.is_some_and(|pool| pool.config.health.on_down == OnDown::EndSessions) {
            let _ = self.fallen.send(member.backend.balance.clone());
        }
    }

    /// Logs and reports as an event that a backend is up or down.
    pub fn tell(&self, member: &Member, health: Health, reason: &str) {
        let (pool, backend) = (member.pool.clone(), member.backend.address.clone());
        let state = if health == Health::Up { "up" } else { "down" };
        if health == Health::Up {
            tracing::info!(pool, backend, reason, "backend is up");
        } else {
            tracing::warn!(pool, backend, reason, "backend is down");
        }
        self.bus.tell(What::Health { pool, backend, state, reason: reason.to_owned() });
    }
}
