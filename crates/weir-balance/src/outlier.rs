//! Passive ejection: failing traffic takes a backend out before the next probe would.
//!
//! `errors` failures within `within` eject for `eject`; the k-th ejection in a row lasts k times as long, at
//! most ten times. At most `max_ejected` of the backends that could serve are out at once, since failures
//! everywhere mean that something else is wrong; but all ordinary backends may be out while a backup stands
//! by. A backend returns when its time is over, through slow start if that is set.
//!
//! Source: Envoy's outlier detection (multiplied ejection time, ejection limit); the limit here is exact and
//! has no "at least one".

use crate::backend::Backend;
use crate::pool::Pool;
use crate::{Algorithm, Passive};
use std::net::IpAddr;
use std::sync::PoisonError;
use std::time::Duration;

/// How an exchange with a backend went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It answered. `latency` is the time from sending the request (or connecting, for TCP) to the first byte
    /// of the answer.
    Success {
        /// See the variant.
        latency: Duration,
    },
    /// It could not be reached, broke off, timed out, or answered with a status that counts as its failure.
    Failure,
}

/// How a failure that may be one client's fault was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blamed {
    /// Not counted: one for the same client counts already.
    Once,
    /// Counted; holds the ejection it caused, if any, as [`Pool::observe`] returns it.
    Counted(Option<Ejection>),
}

/// A backend was taken out; the caller refreshes the pool and logs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ejection {
    /// Index into the pool's members.
    pub index: usize,
    /// When the ejection ends.
    pub until: Duration,
    /// How many ejections in a row this is (1 = the first).
    pub in_a_row: u32,
}

impl Pool {
    /// Records the result of an exchange with the backend at `index`. `Some` when this failure ejected it:
    /// the caller then calls [`Pool::refresh`] so that pickers see it.
    ///
    /// A success costs nothing unless the algorithm is least-time (then one lock-free update of the latency
    /// estimate); a failure takes a short mutex of that backend.
    pub fn observe(&self, index: usize, now: Duration, outcome: Outcome) -> Option<Ejection> {
        let backend = &self.members()[index];
        match outcome {
            Outcome::Success { latency } => {
                if self.settings().algorithm == Algorithm::LeastTime {
                    backend.observe_latency(now, latency);
                }
                None
            }
            Outcome::Failure => match self.note_failure(index, now, None) {
                Blamed::Counted(ejection) => ejection,
                Blamed::Once => None,
            },
        }
    }

    /// Records that the backend at `index` did not accept a connection made from the address of `client`.
    /// That may be the client's fault alone, so only one such failure per client counts within the window. A
    /// backend that nobody can reach is still found, and no single client can eject one that others reach.
    pub fn observe_for(&self, index: usize, now: Duration, client: IpAddr) -> Blamed {
        self.note_failure(index, now, Some(client))
    }

    fn note_failure(&self, index: usize, now: Duration, client: Option<IpAddr>) -> Blamed {
        let backend = &self.members()[index];
        let Some(passive) = &self.settings().passive else { return Blamed::Counted(None) };
        if backend.ejected_until().is_some_and(|until| until > now) {
            // Sent before the backend was ejected: says nothing new.
            return Blamed::Counted(None);
        }
        // The lock must be released before ejecting, which takes it again.
        let noted = backend.failures().record(now, backend.picks(), client, passive);
        match noted {
            None => Blamed::Once,
            Some(enough) => Blamed::Counted(enough.then(|| self.try_eject(index, now, passive)).flatten()),
        }
    }

    pub(crate) fn try_eject(&self, index: usize, now: Duration, passive: &Passive) -> Option<Ejection> {
        // One at a time, so that two workers can't both take the last place under the limit.
        let _one_at_a_time = self.ejecting().lock().unwrap_or_else(PoisonError::into_inner);
        let backend = &self.members()[index];
        if is_out(backend, now) {
            return None;
        }
        let rivals = || {
            let same_tier = |other: &&std::sync::Arc<Backend>| other.is_backup() == backend.is_backup();
            self.members().iter().filter(same_tier).filter(|other| other.could_serve())
        };
        let out = rivals().filter(|other| is_out(other, now)).count();
        let limit = (passive.max_ejected * rivals().count() as f64 + 1.0e-9).floor();
        if (out + 1) as f64 > limit && (passive.max_ejected == 0.0 || !self.backup_is_ready(backend, now)) {
            return None;
        }
        let (until, in_a_row) = backend.failures().eject(now, passive);
        backend.set_ejected_until(Some(until));
        Some(Ejection { index, until, in_a_row })
    }
}

impl Pool {
    /// Whether backups will serve once the ordinary `backend` is out. If so even the last ordinary one may be
    /// ejected; otherwise all requests would keep failing while backups sit idle.
    ///
    /// The limit exists so that failures everywhere don't empty a pool. Backups that fail too are protected
    /// by a limit of their own.
    fn backup_is_ready(&self, backend: &Backend, now: Duration) -> bool {
        !backend.is_backup()
            && self
                .members()
                .iter()
                .any(|other| other.is_backup() && other.could_serve() && !is_out(other, now))
    }
}

pub(crate) fn is_out(backend: &Backend, now: Duration) -> bool {
    backend.ejected_until().is_some_and(|until| until > now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdminState, BackendSettings, Settings};
    use std::sync::Arc;

    const PASSIVE: Passive = Passive {
        errors: 3,
        within: Duration::from_secs(10),
        eject: Duration::from_secs(10),
        max_ejected: 0.5,
        success_rate: None,
    };

    fn pool(count: usize, passive: Passive) -> Pool {
        let members = (0..count)
            .map(|at| Arc::new(Backend::new(format!("10.0.0.{at}:80"), BackendSettings::default())))
            .collect();
        Pool::new(Settings { passive: Some(passive), ..Settings::default() }, members, Duration::ZERO)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fail(pool: &Pool, index: usize, now: Duration, times: usize) -> Option<Ejection> {
        (0..times).filter_map(|_| pool.observe(index, now, Outcome::Failure)).last()
    }

    #[test]
    fn enough_failures_within_the_window_eject_and_fewer_do_not() {
        let pool = pool(4, PASSIVE);
        assert_eq!(fail(&pool, 0, at(1), 2), None);
        assert_eq!(fail(&pool, 0, at(12), 2), None, "the first two are too old");
        assert_eq!(fail(&pool, 0, at(13), 1), Some(Ejection { index: 0, until: at(23), in_a_row: 1 }));
    }

    #[test]
    fn failures_that_straddle_a_boundary_of_the_window_still_count() {
        let pool = pool(4, PASSIVE);
        assert_eq!(fail(&pool, 1, at(9), 1), None);
        assert_eq!(fail(&pool, 1, at(10), 1), None);
        assert!(fail(&pool, 1, at(18), 1).is_some());
    }

    #[test]
    fn what_may_be_one_clients_fault_counts_once_within_the_window_and_anothers_again() {
        let pool = pool(4, PASSIVE);
        let fail_for =
            |last: u8, now: Duration| match pool.observe_for(0, now, IpAddr::from([192, 0, 2, last])) {
                Blamed::Counted(ejection) => ejection.is_some(),
                Blamed::Once => false,
            };
        assert!(!(1..=9).any(|second| fail_for(1, at(second))));
        assert!(!fail_for(2, at(9)), "two of them");
        assert!(!fail_for(1, at(10)));
        assert!(fail_for(3, at(10)), "the third");
        let now = at(100);
        pool.refresh(now);
        assert!(!fail_for(1, now) && !fail_for(1, now + at(11)) && !fail_for(1, now + at(22)));
        assert_eq!(fail(&pool, 0, now + at(22), 1), None);
        assert!(fail(&pool, 0, now + at(22), 1).is_some(), "with failures of the backend itself");
    }

    #[test]
    fn relapses_last_longer_up_to_ten_times_and_good_conduct_resets() {
        let pool = pool(4, PASSIVE);
        let mut now = at(1);
        for expected in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10] {
            let ejection = fail(&pool, 0, now, 3).expect("ejected again");
            assert_eq!(ejection.until, now + PASSIVE.eject * expected);
            now = ejection.until + at(1);
            assert_eq!(pool.refresh(now).readmitted, [0]);
        }
        now += PASSIVE.eject * 10;
        assert_eq!(fail(&pool, 0, now, 3).map(|ejection| ejection.in_a_row), Some(1));
    }

    #[test]
    fn never_more_than_the_limit_is_out_and_a_lone_backend_never_is() {
        let four = pool(4, PASSIVE);
        let out = (0..4).filter(|index| fail(&four, *index, at(1), 9).is_some()).count();
        assert_eq!(out, 2);
        assert_eq!(fail(&pool(1, PASSIVE), 0, at(1), 9), None);
        assert!(fail(&pool(1, Passive { max_ejected: 1.0, ..PASSIVE }), 0, at(1), 3).is_some());
        assert_eq!(fail(&pool(9, Passive { max_ejected: 0.0, ..PASSIVE }), 0, at(1), 9), None);
    }

    #[test]
    fn a_lone_primary_is_ejected_when_a_backup_stands_by_and_only_then() {
        let members = [false, true, true].map(|is_backup| {
            let settings = BackendSettings { backup: is_backup, ..BackendSettings::default() };
            Arc::new(Backend::new(format!("10.0.1.{}:80", u8::from(is_backup)), settings))
        });
        let settings = Settings { passive: Some(PASSIVE), ..Settings::default() };
        let pool = Pool::new(settings, members.to_vec(), Duration::ZERO);
        assert!(fail(&pool, 1, at(1), 9).is_some(), "one of two backups");
        assert_eq!(fail(&pool, 2, at(1), 9), None, "backups keep to the limit among themselves");
        assert!(fail(&pool, 0, at(2), 3).is_some(), "the other backup stands by");
        pool.refresh(at(2));
        assert_eq!(pool.tier(), Some(crate::TierKind::Backup));
        pool.refresh(at(20));
        pool.members()[1].set_health(crate::Health::Down, at(20));
        pool.members()[2].set_admin_state(AdminState::Drain, at(20));
        assert_eq!(fail(&pool, 0, at(40), 9), None, "nobody would serve in its place");
    }

    #[test]
    fn backends_that_are_down_anyway_lower_the_limit() {
        let pool = pool(4, PASSIVE);
        for index in [2, 3] {
            pool.members()[index].set_health(crate::Health::Down, at(1));
        }
        assert!(fail(&pool, 0, at(1), 3).is_some());
        assert_eq!(fail(&pool, 1, at(1), 9), None, "it is the last one serving");
    }

    #[test]
    fn rare_failures_among_many_successes_do_not_eject() {
        let pool = pool(2, PASSIVE);
        let backend = &pool.members()[0];
        for _ in 0..20 {
            for _ in 0..1000 {
                assert!(backend.try_acquire(u32::MAX));
                backend.release();
            }
            assert_eq!(fail(&pool, 0, at(1), 1), None);
        }
    }

    #[test]
    fn late_failures_of_an_ejected_backend_do_not_lengthen_its_ejection() {
        let pool = pool(4, PASSIVE);
        let ejection = fail(&pool, 0, at(1), 3).unwrap();
        assert_eq!(fail(&pool, 0, at(2), 50), None);
        assert_eq!(pool.members()[0].ejected_until(), Some(ejection.until));
    }

    #[test]
    fn without_passive_settings_failures_are_not_even_counted() {
        let members = vec![Arc::new(Backend::new("a:1", BackendSettings::default()))];
        let pool = Pool::new(Settings::default(), members, Duration::ZERO);
        assert_eq!(fail(&pool, 0, at(1), 1000), None);
        assert!(pool.members()[0].failures().recent.is_empty());
    }
}
