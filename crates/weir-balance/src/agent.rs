//! The state that a backend's agent reports, kept apart from what the operator and the probes say.
//!
//! Operator, agent and probes each have their own state, and none overwrites another's. The stricter of
//! operator and agent decides whether the backend takes work. The backend is up if neither the probes nor the
//! agent say that it is down.

use crate::AdminState;
use crate::backend::UNLIMITED;
use crate::moment::{NEVER, nanoseconds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The full weight, in percent.
pub const FULL_WEIGHT: u32 = 100;

/// What the agent has reported so far, as it holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentSays {
    /// Whether the backend takes work, in the operator's terms.
    pub admin: AdminState,
    /// The agent says that the backend is down, whatever probes say.
    pub is_down: bool,
    /// The share of the configured weight, in percent; at most [`AgentSays::MOST_PERCENT`].
    pub weight_percent: u32,
    /// Limit of requests in flight (count) in place of the configured one; `None` keeps the configured one.
    pub max_connections: Option<u32>,
}

impl AgentSays {
    /// The largest share accepted: with it, the smallest weight becomes the largest weight.
    pub const MOST_PERCENT: u32 = FULL_WEIGHT * crate::MAX_WEIGHT;
}

impl Default for AgentSays {
    /// The state that applies while the agent has reported nothing.
    fn default() -> AgentSays {
        AgentSays {
            admin: AdminState::Ready,
            is_down: false,
            weight_percent: FULL_WEIGHT,
            max_connections: None,
        }
    }
}

impl std::fmt::Display for AgentSays {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}, {}", if self.is_down { "down" } else { "up" }, self.admin.word())?;
        if self.weight_percent != FULL_WEIGHT {
            write!(out, ", {} % of its weight", self.weight_percent)?;
        }
        match self.max_connections {
            Some(limit) => write!(out, ", at most {limit} connections"),
            None => Ok(()),
        }
    }
}

/// A backend's cell for its agent's state: the control side writes it, anybody may read it.
#[derive(Debug)]
pub(crate) struct AgentCell {
    /// From the low bits: limit (32, [`UNLIMITED`] for none), percent (24), admin (4), down (1).
    packed: AtomicU64,
    /// When the agent took the backend out of service, in nanoseconds; [`NEVER`] while it has not.
    taken_out_at: AtomicU64,
}

impl Default for AgentCell {
    fn default() -> AgentCell {
        AgentCell { packed: AtomicU64::new(pack(&AgentSays::default())), taken_out_at: AtomicU64::new(NEVER) }
    }
}

fn pack(says: &AgentSays) -> u64 {
    u64::from(says.max_connections.unwrap_or(UNLIMITED))
        | u64::from(says.weight_percent.min(AgentSays::MOST_PERCENT)) << 32
        | (says.admin as u64) << 56
        | u64::from(says.is_down) << 60
}

impl AgentCell {
    pub(crate) fn says(&self) -> AgentSays {
        let packed = self.packed.load(Ordering::Relaxed);
        AgentSays {
            admin: AdminState::of_code((packed >> 56) as u8 & 0xf),
            is_down: packed >> 60 & 1 == 1,
            weight_percent: (packed >> 32) as u32 & 0xff_ffff,
            max_connections: Some(packed as u32).filter(|limit| *limit != UNLIMITED),
        }
    }

    /// Stores what the agent says now; returns what it said before.
    pub(crate) fn set(&self, says: &AgentSays, now: Duration) -> AgentSays {
        let before = self.says();
        self.packed.store(pack(says), Ordering::Relaxed);
        if says.admin == AdminState::Ready {
            self.taken_out_at.store(NEVER, Ordering::Relaxed);
        } else if before.admin == AdminState::Ready {
            self.taken_out_at.store(nanoseconds(now), Ordering::Relaxed);
        }
        before
    }

    /// In nanoseconds; [`NEVER`] while the agent lets the backend take work.
    pub(crate) fn taken_out_at(&self) -> u64 {
        self.taken_out_at.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, BackendSettings, Health, Pool, Settings, State};
    use std::sync::Arc;

    fn says(change: impl FnOnce(&mut AgentSays)) -> AgentSays {
        let mut says = AgentSays::default();
        change(&mut says);
        says
    }

    #[test]
    fn what_was_said_comes_back_out_of_the_cell() {
        let cell = AgentCell::default();
        assert_eq!(cell.says(), AgentSays::default());
        for said in [
            says(|it| it.is_down = true),
            AgentSays {
                admin: AdminState::Maintenance,
                is_down: false,
                weight_percent: AgentSays::MOST_PERCENT,
                max_connections: Some(0),
            },
            says(|it| it.admin = AdminState::Drain),
        ] {
            cell.set(&said, Duration::ZERO);
            assert_eq!(cell.says(), said);
        }
    }

    #[test]
    fn the_stricter_of_operator_and_agent_holds_and_a_good_probe_does_not_outvote_it() {
        let member = Arc::new(Backend::new("a:1", BackendSettings { weight: 4, ..Default::default() }));
        let pool = Pool::new(Settings::default(), vec![member.clone()], Duration::ZERO);
        let state = |said: AgentSays, operator: AdminState| {
            member.set_agent(&said, Duration::ZERO);
            member.set_admin_state(operator, Duration::ZERO);
            pool.refresh(Duration::ZERO);
            pool.state(0)
        };
        member.set_health(Health::Up, Duration::ZERO);
        let (ready, drain) = (AdminState::Ready, AdminState::Drain);
        assert_eq!(state(AgentSays::default(), ready), State::Ready);
        assert_eq!(state(says(|it| it.is_down = true), ready), State::Down);
        assert_eq!(state(says(|it| it.admin = drain), ready), State::Draining);
        assert_eq!(state(AgentSays::default(), drain), State::Draining);
        assert_eq!(state(says(|it| it.admin = AdminState::Maintenance), drain), State::Maintenance);
        assert_eq!(state(says(|it| it.weight_percent = 0), ready), State::WeightZero);
    }

    #[test]
    fn an_agents_limit_stands_in_for_the_configured_one_until_it_is_taken_back() {
        let settings = BackendSettings { max_connections: Some(100), ..Default::default() };
        let backend = Backend::new("a:1", settings);
        backend.set_agent(&says(|it| it.max_connections = Some(30)), Duration::ZERO);
        assert_eq!(backend.max_connections(), Some(30));
        assert_eq!(backend.settings(), settings, "the config's word is not forgotten");
        backend.set_max_connections(Some(50));
        assert_eq!(backend.max_connections(), Some(30));
        backend.set_agent(&AgentSays::default(), Duration::ZERO);
        assert_eq!(backend.max_connections(), Some(50));
    }

    #[test]
    fn a_share_of_the_weight_changes_the_share_of_the_work() {
        let members: Vec<_> =
            ["a:1", "b:1"].map(|at| Arc::new(Backend::new(at, BackendSettings::default()))).to_vec();
        members[0].set_agent(&says(|it| it.weight_percent = 50), Duration::ZERO);
        let pool = Pool::new(Settings::default(), members, Duration::ZERO);
        let weights: Vec<u32> = pool.eligible().iter().map(|one| one.weight).collect();
        assert_eq!(weights, [50, 100]);
    }
}
