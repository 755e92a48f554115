//! Adds and removes backends as the addresses of a name change.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, mpsc};
use weir_balance::{AdminState, Health, State};
use weir_config::Check;
use weir_io::clock;
use weir_state::{Backend, Pool, Snapshot};

use super::change::pool_of;
use super::{ChangeError, Control, Phase};
use crate::dns::members::{Change, Present, Wanted};
use crate::dns::{self, Group};
use crate::events::What;
use crate::publish::PublishError;

/// Interval between two checks of backends that are leaving.
const LOOK: Duration = Duration::from_millis(250);

/// Makes the changes that answers for names require, one after the other, until the process ends.
pub(super) async fn keep(control: Arc<Control>, mut heard: OwnedMutexGuard<mpsc::UnboundedReceiver<Group>>) {
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let group = tokio::select! {
            group = heard.recv() => match group {
                Some(group) => Some(group),
                None => return,
            },
            _ = look.tick() => None,
        };
        // A draining process adds none, and its successor resolves names itself.
        if control.phase() != Phase::Serving {
            continue;
        }
        match group {
            Some(group) => control.follow_name(&group).await,
            None => control.let_go().await,
        }
    }
}

impl Control {
    /// Makes the changes that an answer for a name requires, also when the pool has been replaced since.
    async fn follow_name(&self, group: &Group) {
        let snapshot = self.snapshot();
        let Some(pool) = snapshot.pool(&group.pool) else { return };
        let mut present = self.present(pool, group);
        // Over TLS a backend has to prove the name that it belongs to, so there it leaves one name and joins
        // by the other.
        if pool.config.tls.is_none() {
            let names: Vec<Group> = dns::groups_of(pool).filter(|it| it != group).collect();
            let has = |group: &Group, it: &Present| self.names().has(group, it.wanted.address);
            // A backend that another name still has is not missing.
            present.retain(|it| has(group, it) || !names.iter().any(|other| has(other, it)));
            for owner in &names {
                let members = self.present(pool, owner);
                for member in members.iter().filter(|it| it.is_leaving && has(group, it)) {
                    self.do_and_tell(owner, &Change::Return(member.wanted.address)).await;
                }
            }
        }
        let others = pool.backends.iter().filter(|it| !dns::is_of(it, group));
        let others: Vec<_> = others.filter_map(|it| it.address.parse().ok()).collect();
        for change in self.names().compare(group, &present, &others, clock::now()) {
            self.do_and_tell(group, &change).await;
        }
    }

    /// Removes backends that have left and have nothing more to do.
    async fn let_go(&self) {
        let snapshot = self.snapshot();
        let is_leaving = |pool: &Arc<Pool>| pool.backends.iter().any(|it| it.balance.is_leaving());
        let patience = snapshot.config.runtime.drain;
        for pool in snapshot.pools.iter().filter(|pool| is_leaving(pool)) {
            for group in dns::groups_of(pool) {
                let present = self.present(pool, &group);
                for change in self.names().gone(&group, &present, patience, clock::now()) {
                    self.do_and_tell(&group, &change).await;
                }
            }
        }
    }

    /// The backends of a name in their current state.
    fn present(&self, pool: &Pool, group: &Group) -> Vec<Present> {
        let of_group = pool.config.backends.iter().zip(&pool.backends);
        let of_group = of_group.filter(|(_, backend)| dns::is_of(backend, group));
        let present = of_group.filter_map(|(config, backend)| {
            let address = backend.resolved.address()?;
            let in_kernel = self.kernel.open_flows_of(&pool.config.name, address);
            Some(Present {
                wanted: Wanted { address, weight: config.weight, is_backup: config.backup },
                in_flight: backend.balance.in_flight().saturating_add(in_kernel),
                is_leaving: backend.balance.is_leaving(),
                is_untried: is_untried(backend),
                in_maintenance: backend.balance.admin_state() == AdminState::Maintenance,
            })
        });
        let mut present: Vec<Present> = present.collect();
        if !weir_config::is_service(&group.name) {
            // The config sets these for all of them; an answer can't change that.
            present.iter_mut().for_each(|it| (it.wanted.weight, it.wanted.is_backup) = (1, false));
        }
        present
    }

    async fn do_and_tell(&self, group: &Group, change: &Change) {
        let (address, told) = match change {
            Change::Join(wanted) => (wanted.address, format!("joins: `{}` stands for it", group.name)),
            Change::Alter(wanted) => (wanted.address, format!("has weight {} now", wanted.weight)),
            Change::Drain(address) => (*address, format!("leaves: `{}` stands for it no more", group.name)),
            Change::Return(address) => (*address, format!("returns: `{}` stands for it again", group.name)),
            Change::Leave(address) => (*address, "has left".to_owned()),
        };
        let (pool, backend) = (group.pool.clone(), address.to_string());
        match self.follow(group, change).await {
            Ok(true) => {
                tracing::info!(pool, backend, "names: {told}");
                self.bus.tell(What::Roster { pool, backend, change: told });
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(pool, backend, %error, "names: the pool stays as it is"),
        }
    }

    /// `Ok(false)` when there was nothing to do.
    async fn follow(&self, group: &Group, change: &Change) -> Result<bool, ChangeError> {
        match change {
            Change::Join(wanted) => self.join_by_name(group, wanted).await,
            Change::Alter(wanted) => self.alter(group, wanted).await,
            Change::Drain(address) => Ok(self.mark(group, &address.to_string(), true)),
            Change::Return(address) => Ok(self.mark(group, &address.to_string(), false)),
            Change::Leave(address) => self.leave_by_name(group, &address.to_string()).await,
        }
    }

    async fn join_by_name(&self, group: &Group, wanted: &Wanted) -> Result<bool, ChangeError> {
        let mut is_new = false;
        let changed = self.publisher.change_pool(|before| {
            let (index, pool) = pool_of(before, &group.pool)?;
            let config = dns::config_of(pool, group, wanted);
            let config = config.ok_or_else(|| ChangeError::Exists(wanted.address.to_string()))?;
            // The first backends of a pool serve at once, as those from a file do; later ones must first be
            // found up, if they are probed.
            let is_first = pool.backends.is_empty();
            is_new = !is_first;
            let is_assumed_up = is_first || pool.config.health.check == Check::Off;
            let change = before.with_member(index, config, &group.name, is_assumed_up);
            change.map_err(|error| ChangeError::Publish(PublishError::Tls(vec![error])))
        });
        let snapshot = match changed.await {
            Ok(snapshot) => snapshot,
            // Another name has it as well, or the file names it.
            Err(ChangeError::Exists(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        if let Some((pool, index)) = member_of(&snapshot, group, &wanted.address.to_string())
            && is_new
            && pool.config.health.check == Check::Off
        {
            pool.backends[index].balance.begin_slow_start(clock::now());
            pool.refresh(clock::now());
        }
        Ok(true)
    }

    async fn alter(&self, group: &Group, wanted: &Wanted) -> Result<bool, ChangeError> {
        let address = wanted.address.to_string();
        let changed = self.publisher.change_pool(|before| {
            let (index, pool) = pool_of(before, &group.pool)?;
            let member = member_of(before, group, &address);
            let (_, member) = member.ok_or_else(|| ChangeError::no_backend(&address, pool))?;
            Ok::<_, ChangeError>(before.with_altered(index, member, wanted.weight, wanted.is_backup))
        });
        let snapshot = changed.await?;
        if let Some((pool, index)) = member_of(&snapshot, group, &address) {
            let balance = &pool.backends[index].balance;
            let settings = balance.settings();
            let (weight, backup) = (wanted.weight, wanted.is_backup);
            balance.reconfigure(weir_balance::BackendSettings { weight, backup, ..settings });
            pool.refresh(clock::now());
        }
        Ok(true)
    }

    /// Stops giving a backend new work, or starts again. Does not stop the last one that gets work, nor one
    /// that is ready while no other is.
    fn mark(&self, group: &Group, address: &str, is_leaving: bool) -> bool {
        let snapshot = self.snapshot();
        let Some((pool, index)) = member_of(&snapshot, group, address) else { return false };
        let is_ready = |at: usize| pool.balance.state(at) == State::Ready;
        let takes_over = |at: usize| match is_ready(index) {
            true => is_ready(at),
            false => !pool.backends[at].balance.is_leaving(),
        };
        if is_leaving && !(0..pool.backends.len()).any(|at| at != index && takes_over(at)) {
            return false;
        }
        pool.backends[index].balance.set_leaving(is_leaving);
        pool.refresh(clock::now());
        true
    }

    async fn leave_by_name(&self, group: &Group, address: &str) -> Result<bool, ChangeError> {
        let changed = self.publisher.change_pool(|before| {
            let (index, pool) = pool_of(before, &group.pool)?;
            let member = member_of(before, group, address)
                // The name may have got it back meanwhile.
                .filter(|(pool, member)| pool.backends[*member].balance.is_leaving());
            let (_, member) = member.ok_or_else(|| ChangeError::no_backend(address, pool))?;
            Ok::<_, ChangeError>(before.without_backend(index, member))
        });
        match changed.await {
            Ok(_) => Ok(true),
            Err(ChangeError::NoBackend { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether a backend was added recently, and no probe has found yet whether it is up.
fn is_untried(backend: &Backend) -> bool {
    backend.balance.health() == Health::Unknown && !backend.balance.is_assumed_up()
}

/// A backend of a name: its pool, and its index there.
fn member_of<'s>(snapshot: &'s Snapshot, group: &Group, address: &str) -> Option<(&'s Arc<Pool>, usize)> {
    let pool = snapshot.pool(&group.pool)?;
    let index = pool.backends.iter().position(|it| it.address == address && dns::is_of(it, group))?;
    Some((pool, index))
}
