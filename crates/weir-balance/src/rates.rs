//! Ejection by comparison: takes out a backend whose success rate is far below that of the others, even if
//! its failures are too rare, or too common in the whole pool, for a count to single it out.
//!
//! Source: Envoy's success rate outlier detection: mean minus a factor times the standard deviation of all
//! that had enough requests.

use crate::outlier::{Ejection, is_out};
use crate::pool::Pool;
use std::time::Duration;

/// A backend's results in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Attempts that ended (count).
    pub finished: u64,
    /// Failed attempts among them (count).
    pub failed: u64,
}

impl Counted {
    /// The success rate, from 0.0 to 1.0; 1.0 if nothing finished.
    pub fn rate(&self) -> f64 {
        match self.finished {
            0 => 1.0,
            finished => finished.saturating_sub(self.failed) as f64 / finished as f64,
        }
    }
}

/// A backend that was ejected for its success rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlier {
    /// The ejection, like any other.
    pub ejection: Ejection,
    /// The backend's results.
    pub counted: Counted,
    /// The mean of the compared rates.
    pub mean: f64,
    /// The threshold that its rate was below.
    pub least: f64,
}

impl std::fmt::Display for Outlier {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counted { finished, failed } = self.counted;
        write!(
            out,
            "{failed} of {finished} failed: {:.1} % succeeded, the pool's mean is {:.1} % and {:.1} % the least",
            self.counted.rate() * 100.0,
            self.mean * 100.0,
            self.least * 100.0
        )
    }
}

impl Pool {
    /// Compares the backends' results of one interval, by index, and ejects those too far below the others,
    /// within `max_ejected`. The caller then calls [`Pool::refresh`]. Does nothing without
    /// [`SuccessRate`](crate::SuccessRate). O(n).
    pub fn judge_rates(&self, counted: &[Counted], now: Duration) -> Vec<Outlier> {
        let Some(passive) = &self.settings().passive else { return Vec::new() };
        let Some(rule) = &passive.success_rate else { return Vec::new() };
        let compared: Vec<(usize, Counted)> = (self.members().iter().zip(counted).enumerate())
            .filter(|(_, (backend, counted))| {
                backend.could_serve() && !is_out(backend, now) && counted.finished >= rule.min_requests.max(1)
            })
            .map(|(index, (_, counted))| (index, *counted))
            .collect();
        if compared.len() < rule.min_backends.max(2) as usize {
            return Vec::new();
        }
        let count = compared.len() as f64;
        let mean = compared.iter().map(|(_, counted)| counted.rate()).sum::<f64>() / count;
        let variance =
            compared.iter().map(|(_, counted)| (counted.rate() - mean).powi(2)).sum::<f64>() / count;
        let least = mean - rule.factor * variance.sqrt();
        let mut below: Vec<_> = compared.into_iter().filter(|(_, counted)| counted.rate() < least).collect();
        // The worst first, since `max_ejected` may not let all of them go.
        below.sort_by(|(_, one), (_, other)| one.rate().total_cmp(&other.rate()));
        let eject = |(index, counted): (usize, Counted)| {
            let ejection = self.try_eject(index, now, passive)?;
            self.members()[index].failures().outliers += 1;
            Some(Outlier { ejection, counted, mean, least })
        };
        below.into_iter().filter_map(eject).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, BackendSettings, Passive, Settings, State, SuccessRate};
    use std::sync::Arc;

    fn pool(count: usize, max_ejected: f64) -> Pool {
        let members = (0..count)
            .map(|at| Arc::new(Backend::new(format!("10.0.0.{at}:80"), BackendSettings::default())))
            .collect();
        let rule = SuccessRate {
            interval: Duration::from_secs(10),
            factor: 1.9,
            min_backends: 5,
            min_requests: 100,
        };
        let passive = Passive { success_rate: Some(rule), max_ejected, ..Passive::default() };
        Pool::new(Settings { passive: Some(passive), ..Settings::default() }, members, Duration::ZERO)
    }

    fn rates(failed: &[u64]) -> Vec<Counted> {
        failed.iter().map(|failed| Counted { finished: 1000, failed: *failed }).collect()
    }

    fn out(pool: &Pool, counted: &[Counted]) -> Vec<usize> {
        let outliers = pool.judge_rates(counted, Duration::from_secs(1));
        outliers.iter().map(|outlier| outlier.ejection.index).collect()
    }

    #[test]
    fn one_that_fails_much_more_often_than_the_others_is_ejected_and_says_why() {
        let pool = pool(6, 0.5);
        let outliers = pool.judge_rates(&rates(&[5, 4, 80, 6, 5, 4]), Duration::from_secs(1));
        assert_eq!(outliers.len(), 1);
        assert_eq!(
            outliers[0].to_string(),
            "80 of 1000 failed: 92.0 % succeeded, the pool's mean is 98.3 % and 92.9 % the least"
        );
        pool.refresh(Duration::from_secs(1));
        assert_eq!(pool.state(2), State::Ejected);
    }

    #[test]
    fn where_all_fail_alike_nobody_is_ejected() {
        assert_eq!(out(&pool(6, 1.0), &rates(&[500; 6])), [0; 0]);
        assert_eq!(out(&pool(6, 1.0), &rates(&[0; 6])), [0; 0]);
        assert_eq!(out(&pool(6, 1.0), &rates(&[480, 520, 500, 510, 490, 505])), [0; 0]);
    }

    #[test]
    fn few_requests_and_few_backends_are_not_compared() {
        let mut counted = rates(&[0, 0, 900, 0, 0, 0]);
        counted[2].finished = 99;
        assert_eq!(out(&pool(6, 1.0), &counted), [0; 0]);
        assert_eq!(out(&pool(4, 1.0), &rates(&[0, 900, 0, 0])), [0; 0]);
    }

    #[test]
    fn no_more_than_the_allowed_share_goes_and_the_worst_goes_first() {
        let mut failed = [0; 20];
        (failed[3], failed[7]) = (400, 500);
        assert_eq!(out(&pool(20, 1.0), &rates(&failed)), [7, 3]);
        assert_eq!(out(&pool(20, 0.05), &rates(&failed)), [7]);
        assert_eq!(out(&pool(20, 0.0), &rates(&failed)), [0; 0]);
    }

    #[test]
    fn more_failures_than_attempts_are_no_panic() {
        assert_eq!(Counted { finished: 3, failed: 9 }.rate(), 0.0);
    }
}
