//! A worker's access to a pool.

use crate::choice::{Choice, LiveSlots, Slots};
use crate::pick::{NoPick, Pick, PickInput, PickReason};
use crate::pool::Pool;
use crate::state::TierKind;
use crate::view::View;
use std::cell::{Cell, Ref, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Chooses backends for one worker thread (it is not `Sync`; make one per worker and pool).
///
/// It keeps the pool's current view, so a pick costs one atomic load to see that it is still current and
/// takes no lock. After a change ([`Pool::refresh`]) the next pick fetches the new view through a mutex,
/// once.
#[derive(Debug)]
pub struct Picker {
    pool: Arc<Pool>,
    generation: Cell<u64>,
    view: RefCell<Arc<View>>,
}

impl Picker {
    /// A picker that sees the pool as it is now and follows its changes.
    pub fn new(pool: Arc<Pool>) -> Picker {
        let view = pool.view();
        Picker { generation: Cell::new(view.generation), view: RefCell::new(view), pool }
    }

    /// The pool it chooses from.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Chooses a backend and takes one slot in flight of it, never beyond its `max_connections`.
    ///
    /// A sticky backend that is up, even if draining or of weight 0, is chosen first unless it is full or
    /// excluded. Then come ordinary backends, then backups (if no ordinary one is eligible, or all were tried
    /// in this exchange), then the last resort. If a role is requested, only backends with that role count.
    /// Does not allocate or lock. O(1) for round-robin, random-two, least-time, hashes and maglev, see
    /// [`Algorithm`](crate::Algorithm) for the others; O(n) when most backends are full.
    pub fn pick(&self, input: &PickInput<'_>) -> Result<Pick, NoPick> {
        let view = self.view();
        let pick = choose(&self.pool, &view, input, LiveSlots)?;
        self.pool.note_picked(pick.index, input.now);
        Ok(pick)
    }

    /// The view in force.
    pub(crate) fn view(&self) -> Ref<'_, Arc<View>> {
        self.follow();
        self.view.borrow()
    }

    fn follow(&self) {
        if self.pool.generation() != self.generation.get() {
            let view = self.pool.view();
            self.generation.set(view.generation);
            self.view.replace(view);
        }
    }
}

/// The one place where a backend is chosen.
pub(crate) fn choose<S: Slots + Copy>(
    pool: &Pool,
    view: &View,
    input: &PickInput<'_>,
    slots: S,
) -> Result<Pick, NoPick> {
    if let Some(id) = input.sticky
        && let Some(pick) = choose_sticky(pool, view, input, id, slots)
    {
        return Ok(pick);
    }
    let pool_in_flight = pool.bounded_in_flight().map_or(0, |total| total.load(Ordering::Relaxed));
    let tiers = view.tiers_for(input.role);
    for tier in tiers {
        let choice = Choice {
            members: pool.members(),
            rotation: pool.rotation(),
            pool_in_flight,
            hash_bound: pool.settings().hash_bound,
            tier,
            input,
            slots,
        };
        if is_tried_through(&choice) {
            continue;
        }
        // Backups don't take the overflow: as long as an ordinary backend is left to try, the caller waits
        // for it.
        let (index, reason) = choice.run(pool.settings().algorithm).ok_or(NoPick::AllBusy)?;
        return Ok(Pick { index, reason, tier: tier.kind, on_trial: tier.on_trial });
    }
    Err(match (tiers.is_empty(), input.role) {
        (false, _) => NoPick::AllExcluded,
        (true, Some(_)) if view.by_role.is_some() => NoPick::NoneInRole,
        (true, _) => NoPick::NoneUp,
    })
}

/// Whether this exchange has tried every backend of the tier. Checked before choosing, so that no turn of the
/// rotation is wasted.
fn is_tried_through<S: Slots>(choice: &Choice<'_, S>) -> bool {
    let count = choice.tier.entries.len();
    choice.input.exclude.len() >= count && (0..count).all(|position| choice.is_excluded(position))
}

fn choose_sticky<S: Slots>(
    pool: &Pool,
    view: &View,
    input: &PickInput<'_>,
    id: u64,
    slots: S,
) -> Option<Pick> {
    let index = pool.index_of(id)?;
    if input.exclude.contains(&index) || !view.serves(index, input.role) {
        return None;
    }
    let (standing, backend) = (&view.standings[index], &pool.members()[index]);
    let reason = PickReason::Sticky;
    if standing.state.keeps_sticky() {
        let tier = if standing.backup { TierKind::Backup } else { TierKind::Ordinary };
        let taken = slots.take(backend, u32::MAX);
        return taken.then_some(Pick { index, reason, tier, on_trial: false });
    }
    // When a tier of backends that are out is in use anyway, such a backend still gets its own sticky clients
    // first: their sessions are there.
    let tier = view.tier_of(index, input.role)?;
    let taken = match tier.on_trial {
        true => slots.take_on_trial(backend, u32::MAX),
        false => slots.take(backend, u32::MAX),
    };
    taken.then_some(Pick { index, reason, tier: tier.kind, on_trial: tier.on_trial })
}
