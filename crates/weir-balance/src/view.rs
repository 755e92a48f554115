//! The pickers' view: an immutable picture of which backends may be chosen, with the tables of the pool's
//! algorithm.

use crate::agent::FULL_WEIGHT;
use crate::alias_table::AliasTable;
use crate::backend::{Backend, MAX_WEIGHT};
use crate::maglev::MaglevTable;
use crate::ring::Ring;
use crate::role::{Readers, Role, WantedRole};
use crate::settings::Settings;
use crate::state::{State, TierKind};
use crate::{AdminState, Algorithm, sequence, slow_start};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// One backend as the view sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) state: State,
    pub(crate) backup: bool,
    /// Always `None` in a pool whose backends have no roles.
    pub(crate) role: Option<Role>,
    /// Down, but to be tried when nothing else is left.
    pub(crate) doubted: bool,
    /// Takes work in a panic: nothing but its probes or failed traffic speaks against it.
    pub(crate) usable: bool,
    /// The configured weight.
    pub(crate) weight: u32,
    /// Share of the weight in force (percent).
    pub(crate) ramp_percent: u32,
    /// Share of the weight that the agent sets (percent).
    pub(crate) agent_percent: u32,
}

impl Standing {
    pub(crate) fn of(backend: &Backend, settings: &Settings, now: Duration) -> Standing {
        let (weight, agent) = (backend.weight(), backend.agent());
        let admin = backend.admin_in_force();
        let state = match admin {
            AdminState::Maintenance => State::Maintenance,
            _ if backend.is_leaving() => State::Leaving,
            _ if !backend.is_up() => State::Down,
            AdminState::Drain => State::Draining,
            _ if backend.ejected_until().is_some_and(|until| until > now) => State::Ejected,
            _ if weight == 0 || agent.weight_percent == 0 => State::WeightZero,
            AdminState::Ready => State::Ready,
        };
        // A panic does not override the agent, nor a name that resolves to no address.
        let usable = admin == AdminState::Ready
            && weight > 0
            && agent.weight_percent > 0
            && !agent.is_down
            && backend.is_assumed_up();
        let doubted = state == State::Down
            && admin == AdminState::Ready
            && weight > 0
            && !agent.is_down
            && settings.last_resort_in_force().admits(backend.is_late());
        let ramp_percent = match (backend.slow_start_began(), settings.slow_start) {
            (Some(began), Some(length)) => slow_start::percent(began, now, length),
            _ => slow_start::FULL_PERCENT,
        };
        let role = settings.readers.and_then(|_| backend.role());
        let (backup, agent_percent) = (backend.is_backup(), agent.weight_percent);
        Standing { state, backup, role, doubted, usable, weight, ramp_percent, agent_percent }
    }

    /// Effective weight, in hundredths.
    pub(crate) fn effective_weight(&self) -> u32 {
        let weight = self.weight * self.ramp_percent;
        if self.agent_percent == FULL_WEIGHT || weight == 0 {
            return weight;
        }
        let most = u64::from(MAX_WEIGHT * slow_start::FULL_PERCENT);
        let scaled = u64::from(weight) * u64::from(self.agent_percent) / u64::from(FULL_WEIGHT);
        scaled.clamp(1, most) as u32
    }
}

#[derive(Debug)]
pub(crate) struct View {
    pub(crate) generation: u64,
    pub(crate) standings: Box<[Standing]>,
    /// In the order in which they are tried; empty when no backend is up.
    pub(crate) tiers: Box<[Tier]>,
    /// The same for choices that ask for a role; `None` if backends have no roles.
    pub(crate) by_role: Option<Box<RoleTiers>>,
}

/// The tiers of choices that ask for a role; each is empty if no backend that is up has the role.
#[derive(Debug)]
pub(crate) struct RoleTiers {
    primary: Box<[Tier]>,
    read: Box<[Tier]>,
}

impl View {
    pub(crate) fn build(
        generation: u64,
        settings: &Settings,
        members: &[Arc<Backend>],
        standings: Box<[Standing]>,
    ) -> View {
        let build = |roles: &[&dyn Fn(Option<Role>) -> bool]| tiers_of(settings, members, &standings, roles);
        let is_primary = |role| role == Some(Role::Primary);
        let is_secondary = |role| role == Some(Role::Secondary);
        let mut tiers = build(&[&|_| true]);
        if let Some(all) = Tier::of_panic(settings, members, &standings) {
            // Replaces the tier of ordinary backends that are up.
            tiers = std::iter::once(all).chain(tiers.into_iter().skip(1)).collect();
        }
        let by_role = settings.readers.map(|readers| {
            let read = match readers {
                Readers::Secondaries => build(&[&is_secondary, &is_primary]),
                Readers::All => build(&[&|role| role.is_some()]),
            };
            Box::new(RoleTiers { primary: build(&[&is_primary]), read })
        });
        View { generation, standings, tiers, by_role }
    }

    /// The tiers of a choice, in the order in which they are tried.
    pub(crate) fn tiers_for(&self, role: Option<WantedRole>) -> &[Tier] {
        match (role, &self.by_role) {
            (None, _) | (_, None) => &self.tiers,
            (Some(WantedRole::Primary), Some(by_role)) => &by_role.primary,
            (Some(WantedRole::Read), Some(by_role)) => &by_role.read,
        }
    }

    /// The tier from which a backend would be chosen.
    pub(crate) fn tier_of(&self, index: usize, role: Option<WantedRole>) -> Option<&Tier> {
        self.tiers_for(role).iter().find(|tier| tier.holds(index))
    }

    /// Whether a backend has a role that serves the wanted one.
    pub(crate) fn serves(&self, index: usize, wanted: Option<WantedRole>) -> bool {
        let role = self.standings[index].role;
        match wanted {
            _ if self.by_role.is_none() => true,
            None => true,
            Some(WantedRole::Primary) => role == Some(Role::Primary),
            Some(WantedRole::Read) => role.is_some(),
        }
    }
}

/// The tiers of backends with the roles that `roles` accept, those of the first one before the others: the
/// backends that are up, otherwise the last resort.
fn tiers_of(
    settings: &Settings,
    members: &[Arc<Backend>],
    standings: &[Standing],
    roles: &[&dyn Fn(Option<Role>) -> bool],
) -> Box<[Tier]> {
    let up = |has_role: &&dyn Fn(Option<Role>) -> bool| {
        Tier::of_those_up(settings, members, standings, &|standing| has_role(standing.role))
    };
    let mut tiers: Vec<Tier> = roles.iter().flat_map(up).collect();
    if tiers.is_empty() {
        let last = |has_role: &&dyn Fn(Option<Role>) -> bool| {
            Tier::of_last_resort(settings, members, standings, &|standing| has_role(standing.role))
        };
        tiers = roles.iter().flat_map(last).collect();
    }
    tiers.into_boxed_slice()
}

/// Backends that are chosen among together, in file order, with what the algorithm needs precomputed.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) kind: TierKind,
    /// Whether each exchange given to this tier is a trial, and so bounded.
    pub(crate) on_trial: bool,
    pub(crate) entries: Box<[WeightedBackend]>,
    pub(crate) total_weight: u64,
    /// See [`Tier::sequence`].
    sequence: OnceLock<Box<[u32]>>,
    pub(crate) tables: Tables,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightedBackend {
    /// Index into the pool's members.
    pub(crate) index: u32,
    /// Effective weight, in hundredths; above 0.
    pub(crate) weight: u32,
}

/// The lookup tables of the pool's algorithm, besides the sequence.
#[derive(Debug)]
pub(crate) enum Tables {
    None,
    Alias(AliasTable),
    Ring(Ring),
    Maglev(MaglevTable),
}

impl Tier {
    /// The tiers of ordinary backends and of backups that take new work.
    fn of_those_up(
        settings: &Settings,
        members: &[Arc<Backend>],
        standings: &[Standing],
        wanted: &dyn Fn(&Standing) -> bool,
    ) -> Vec<Tier> {
        let kinds = [(TierKind::Ordinary, false), (TierKind::Backup, true)].into_iter();
        let tier = |(kind, backup)| {
            let wanted = |standing: &Standing| {
                standing.state == State::Ready && standing.backup == backup && wanted(standing)
            };
            Tier::build(kind, settings, members, standings, &wanted)
        };
        kinds.filter_map(tier).collect()
    }

    /// All ordinary backends, if some are up but fewer than `panic_below` asks for: so few would be overrun,
    /// and so many down at once says more about the probes than about the backends.
    ///
    /// Source: Envoy's panic threshold. If none is up, backups or the last resort apply.
    fn of_panic(settings: &Settings, members: &[Arc<Backend>], standings: &[Standing]) -> Option<Tier> {
        let least = settings.panic_below.filter(|_| settings.readers.is_none())?;
        let counts = |standing: &&Standing| {
            !standing.backup
                && standing.weight > 0
                && matches!(standing.state, State::Ready | State::Ejected | State::Down)
        };
        let all = standings.iter().filter(counts).count();
        let healthy = standings.iter().filter(|one| !one.backup && one.state == State::Ready).count();
        if healthy == 0 || healthy as f64 >= least * all as f64 {
            return None;
        }
        let wanted = |standing: &Standing| !standing.backup && standing.usable;
        Tier::build(TierKind::Panic, settings, members, standings, &wanted)
    }

    /// Backends that are tried when none takes new work.
    fn of_last_resort(
        settings: &Settings,
        members: &[Arc<Backend>],
        standings: &[Standing],
        wanted: &dyn Fn(&Standing) -> bool,
    ) -> Vec<Tier> {
        let tier = |wanted: &dyn Fn(&Standing) -> bool| {
            Tier::build(TierKind::LastResort, settings, members, standings, wanted)
        };
        // Ejection alone never empties a pool: backends that only failed traffic speaks against come before
        // those that are down by their probes.
        let ejected =
            |standing: &Standing| standing.state == State::Ejected && standing.weight > 0 && wanted(standing);
        let doubted = [false, true].into_iter().filter_map(|backup| {
            let wanted =
                |standing: &Standing| standing.doubted && standing.backup == backup && wanted(standing);
            Some(Tier { on_trial: true, ..tier(&wanted)? })
        });
        tier(&ejected).into_iter().chain(doubted).collect()
    }

    /// Whether the tier contains this backend. O(n).
    pub(crate) fn holds(&self, index: usize) -> bool {
        self.entries.iter().any(|entry| entry.index as usize == index)
    }

    /// One round of turns, as positions into `entries`. Computed at first use: most algorithms use it only
    /// when they have no key or load to choose by.
    pub(crate) fn sequence(&self) -> &[u32] {
        self.sequence.get_or_init(|| {
            let weights: Vec<u32> = self.entries.iter().map(|entry| entry.weight).collect();
            sequence::smooth(&weights)
        })
    }

    fn build(
        kind: TierKind,
        settings: &Settings,
        members: &[Arc<Backend>],
        standings: &[Standing],
        wanted: &dyn Fn(&Standing) -> bool,
    ) -> Option<Tier> {
        let entries: Box<[WeightedBackend]> = standings
            .iter()
            .enumerate()
            .filter(|(_, standing)| wanted(standing))
            .map(|(index, standing)| WeightedBackend {
                index: index as u32,
                weight: standing.effective_weight(),
            })
            .collect();
        if entries.is_empty() {
            return None;
        }
        let weights: Vec<u32> = entries.iter().map(|entry| entry.weight).collect();
        let identified = || -> Vec<(u64, u32)> {
            entries.iter().map(|entry| (members[entry.index as usize].id(), entry.weight)).collect()
        };
        let tables = match settings.algorithm {
            Algorithm::RoundRobin | Algorithm::LeastConnections | Algorithm::First => Tables::None,
            Algorithm::RandomTwo | Algorithm::LeastTime => Tables::Alias(AliasTable::new(&weights)),
            Algorithm::Source | Algorithm::Hash => {
                // The weights of all members count, up or not, so that points stay in place when a backend
                // goes down.
                let configured = standings.iter().map(|standing| u64::from(standing.weight)).sum();
                Tables::Ring(Ring::new(&identified(), configured))
            }
            Algorithm::Maglev => Tables::Maglev(MaglevTable::new(&identified())),
        };
        let total_weight = weights.iter().map(|weight| u64::from(*weight)).sum();
        let tier = Tier { kind, on_trial: false, total_weight, sequence: OnceLock::new(), tables, entries };
        if let Algorithm::RoundRobin | Algorithm::LeastConnections = settings.algorithm {
            // Computed now, so that no request waits for it.
            tier.sequence();
        }
        Some(tier)
    }
}
