//! Explains a choice: what `weir explain` and `weir status` print about a pool.

use crate::agent::AgentSays;
use crate::choice::DryRun;
use crate::pick::{NoPick, Pick, PickInput, PickReason};
use crate::picker::{Picker, choose};
use crate::pool::Pool;
use crate::role::{Role, WantedRole};
use crate::state::{State, TierKind};
use crate::view::{Tier, View};
use crate::{AdminState, Algorithm, Health};
use std::time::Duration;

/// One backend as `weir status` shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendStatus {
    /// Index into the pool's members.
    pub index: usize,
    /// The address as configured.
    pub address: String,
    /// [`Backend::id`](crate::Backend::id).
    pub id: u64,
    /// Its state in the current view.
    pub state: State,
    /// The operator's state.
    pub admin: AdminState,
    /// The verdict of the probes.
    pub health: Health,
    /// Whether it serves only while no ordinary backend is eligible.
    pub backup: bool,
    /// Its role; `None` if it has none or the role is unknown.
    pub role: Option<Role>,
    /// Configured weight.
    pub weight: u32,
    /// Share of weight and limit in force (percent, below 100 during slow start).
    pub ramp_percent: u32,
    /// In flight now (count).
    pub in_flight: u32,
    /// The limit in force (count), slow start included; `None`: no limit.
    pub limit: Option<u32>,
    /// Picks ever made (count).
    pub picks: u64,
    /// Peak EWMA of response times; `None` before the first, or where the algorithm is not least-time.
    pub latency: Option<Duration>,
    /// When an ejection ends.
    pub ejected_until: Option<Duration>,
    /// What its agent reports; the default if it has no agent.
    pub agent: AgentSays,
}

impl BackendStatus {
    /// Why backends that are not healthy may be chosen alongside healthy ones.
    pub const PANIC_WORDS: &'static str =
        "fewer backends are healthy than `panic_below` asks for: all are used";

    /// Whether probes, agent and ejection all allow it, whatever the operator's state.
    pub fn is_healthy(&self) -> bool {
        self.health != Health::Down && !self.agent.is_down && self.ejected_until.is_none()
    }

    /// Why it is only a last resort, if it was chosen as one.
    pub const fn last_resort_words(&self) -> &'static str {
        match self.state {
            State::Down => "down by its probes, but nothing else is left",
            _ => "ejected, but nothing else is left",
        }
    }
}

/// Why a backend could not have been chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Its state keeps it from new work.
    State(State),
    /// It is a backup, and an ordinary backend is eligible.
    BackupNotNeeded,
    /// It does not have the requested role.
    NotInRole(WantedRole),
    /// It is the primary, and a secondary takes new work.
    PrimaryNotNeeded,
    /// Already tried in this exchange.
    Excluded,
    /// At its limit.
    Full,
    /// It is down, and already has as many trial exchanges as allowed.
    OnTrial,
}

impl Refusal {
    /// The refusal in words.
    pub const fn words(self) -> &'static str {
        match self {
            Refusal::State(State::Ready) => "ready",
            Refusal::State(State::WeightZero) => "weight 0, sticky sessions only",
            Refusal::State(State::Draining) => "draining, sticky sessions only",
            Refusal::State(State::Leaving) => "its name stands for it no more",
            Refusal::State(State::Ejected) => "ejected after failures",
            Refusal::State(State::Down) => "down",
            Refusal::State(State::Maintenance) => "in maintenance",
            Refusal::BackupNotNeeded => "backup, and an ordinary backend is eligible",
            Refusal::NotInRole(WantedRole::Primary) => "not the primary",
            Refusal::NotInRole(WantedRole::Read) => "neither primary nor secondary",
            Refusal::PrimaryNotNeeded => "the primary, and a secondary takes new work",
            Refusal::Excluded => "already tried",
            Refusal::Full => "at its limit",
            Refusal::OnTrial => "down, and enough are trying it",
        }
    }
}

/// What a pick would do and why, without doing it.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The pool's algorithm.
    pub algorithm: Algorithm,
    /// Number of the view it describes.
    pub generation: u64,
    /// What [`Picker::pick`](crate::Picker::pick) would have answered.
    pub outcome: Result<Pick, NoPick>,
    /// Every backend in file order, with the reason it could not be chosen (`None`: it could have been).
    pub backends: Vec<(BackendStatus, Option<Refusal>)>,
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: ", self.algorithm)?;
        match &self.outcome {
            Ok(pick) => {
                let (chosen, _) = &self.backends[pick.index];
                write!(out, "{}, {}", chosen.address, pick.reason.words())?;
                match pick.tier {
                    TierKind::Ordinary => {}
                    TierKind::Panic => write!(out, " ({})", BackendStatus::PANIC_WORDS)?,
                    TierKind::Backup => write!(out, " (backup)")?,
                    TierKind::LastResort => write!(out, " ({})", chosen.last_resort_words())?,
                }
            }
            Err(none) => write!(out, "{none}")?,
        }
        for (backend, refusal) in &self.backends {
            write!(out, "\n  {} {}", backend.address, backend.state.word())?;
            if let Some(role) = backend.role {
                write!(out, " {}", role.word())?;
            }
            write!(out, ", {} in flight", backend.in_flight)?;
            if let Some(limit) = backend.limit {
                write!(out, " of {limit}")?;
            }
            write!(out, ", weight {}", backend.weight)?;
            if backend.ramp_percent < 100 {
                write!(out, " at {} %", backend.ramp_percent)?;
            }
            if let Some(latency) = backend.latency {
                write!(out, ", about {latency:.1?}")?;
            }
            if let Some(refusal) = refusal {
                write!(out, ": not chosen, {}", refusal.words())?;
            }
        }
        Ok(())
    }
}

impl Picker {
    /// What [`Picker::pick`] would return for the same input right now, and the state of every backend. Takes
    /// no slot and changes no counter.
    pub fn explain(&self, input: &PickInput<'_>) -> Explanation {
        explain(self.pool(), &self.view(), input)
    }
}

fn explain(pool: &Pool, view: &View, input: &PickInput<'_>) -> Explanation {
    let outcome = choose(pool, view, input, DryRun);
    let used = match &outcome {
        Ok(pick) if pick.reason != PickReason::Sticky => view.tier_of(pick.index, input.role),
        _ => view.tiers_for(input.role).first(),
    };
    let backends = (0..pool.members().len())
        .map(|index| {
            let chosen = outcome.as_ref().is_ok_and(|pick| pick.index == index);
            let refusal = if chosen { None } else { refusal(pool, view, input, index, used) };
            (status(pool, view, index), refusal)
        })
        .collect();
    Explanation { algorithm: pool.settings().algorithm, generation: view.generation, outcome, backends }
}

fn refusal(
    pool: &Pool,
    view: &View,
    input: &PickInput<'_>,
    index: usize,
    used: Option<&Tier>,
) -> Option<Refusal> {
    let standing = &view.standings[index];
    let all_the_same =
        used.filter(|tier| matches!(tier.kind, TierKind::LastResort | TierKind::Panic) && tier.holds(index));
    if standing.state != State::Ready && all_the_same.is_none() {
        return Some(Refusal::State(standing.state));
    }
    if let Some(wanted) = input.role.filter(|wanted| !view.serves(index, Some(*wanted))) {
        return Some(Refusal::NotInRole(wanted));
    }
    if input.exclude.contains(&index) {
        return Some(Refusal::Excluded);
    }
    let is_spared = input.role == Some(WantedRole::Read) && standing.role == Some(Role::Primary);
    if is_spared && used.is_some_and(|tier| !tier.holds(index)) {
        return Some(Refusal::PrimaryNotNeeded);
    }
    if standing.backup && used.is_some_and(|tier| matches!(tier.kind, TierKind::Ordinary | TierKind::Panic)) {
        return Some(Refusal::BackupNotNeeded);
    }
    let backend = &pool.members()[index];
    if all_the_same.is_some_and(|tier| tier.on_trial) && !backend.trials().has_room() {
        return Some(Refusal::OnTrial);
    }
    (!backend.has_room()).then_some(Refusal::Full)
}

fn status(pool: &Pool, view: &View, index: usize) -> BackendStatus {
    let backend = &pool.members()[index];
    let standing = &view.standings[index];
    BackendStatus {
        index,
        address: backend.address().to_owned(),
        id: backend.id(),
        state: standing.state,
        admin: backend.admin_state(),
        health: backend.health(),
        backup: standing.backup,
        role: standing.role,
        weight: standing.weight,
        ramp_percent: standing.ramp_percent,
        in_flight: backend.in_flight(),
        limit: backend.max_connections().map(|_| backend.limit()),
        picks: backend.picks(),
        latency: backend.latency(),
        ejected_until: backend.ejected_until(),
        agent: backend.agent(),
    }
}

impl Pool {
    /// Every backend as it stands now, in file order, for `weir status` and the admin API.
    pub fn status(&self) -> Vec<BackendStatus> {
        let view = self.view();
        (0..self.members().len()).map(|index| status(self, &view, index)).collect()
    }

    /// One backend as it stands now.
    pub fn status_of(&self, index: usize) -> BackendStatus {
        status(self, &self.view(), index)
    }
}
