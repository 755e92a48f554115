//! Who is told what was found out about a backend.

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

/// Between two times that it is said that probes can't be sent.
const SAY_UNSENT: Duration = Duration::from_secs(60);

/// A backend that went down in a pool whose sessions are to end then.
pub type Fallen = Arc<weir_balance::Backend>;

/// Where findings go.
pub(super) struct Tidings {
    pub bus: Arc<Bus>,
    in_force: InForce,
    fallen: mpsc::UnboundedSender<Fallen>,
    reports: mpsc::UnboundedSender<Event>,
    /// When it was last said that probes could not be sent.
    said_unsent: Mutex<Option<Duration>>,
}

impl Tidings {
    /// `in_force` is where the pools are looked up that a finding concerns; who is to lose its sessions comes
    /// out of the receiver.
    pub fn new(
        bus: Arc<Bus>,
        in_force: InForce,
        reports: mpsc::UnboundedSender<Event>,
    ) -> (Tidings, mpsc::UnboundedReceiver<Fallen>) {
        let (fallen, receiver) = mpsc::unbounded_channel();
        (Tidings { bus, in_force, fallen, reports, said_unsent: Mutex::default() }, receiver)
    }

    /// The address `first`, in use of a name, did not accept, and `address` did.
    pub fn other_address(&self, name: &str, first: SocketAddr, address: SocketAddr) {
        let _ = self.reports.send(Event::OtherAddress { name: name.to_owned(), first, address });
    }

    /// A probe could not be sent. Said at first and then at most once a minute: what is in the way of one is
    /// mostly in the way of all.
    pub fn unsent(&self, why: &Failure, now: Duration) {
        let mut said = lock(&self.said_unsent);
        if said.is_none_or(|last| now.saturating_sub(last) >= SAY_UNSENT) {
            *said = Some(now);
            tracing::warn!(why = why.to_string(), "probes can't be sent: what is known of backends stays");
        }
    }

    /// Shows the pool as it is now what has become of its backend.
    pub fn refresh(&self, member: &Member, now: Duration) -> Option<Arc<Pool>> {
        let pool = self.in_force.snapshot().as_ref().and_then(|it| it.pool(&member.pool).cloned())?;
        pool.refresh(now);
        Some(pool)
    }

    /// The same, for one that is down now and was not: where its pool wants it, its sessions end. Its pool
    /// chooses others first, so that what is tried again goes there.
    pub fn fell(&self, member: &Member, now: Duration) {
        let pool = self.refresh(member, now);
        if pool.is_some_and(|pool| pool.config.health.on_down == OnDown::EndSessions) {
            let _ = self.fallen.send(member.backend.balance.clone());
        }
    }

    /// Says in the log and as an event that a backend is up or down.
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
