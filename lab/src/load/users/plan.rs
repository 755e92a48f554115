//! The user model of k6's `ramping-vus` executor, as arithmetic: who begins when, and how many requests that
//! makes.
//!
//! Pure: a moment is the time since the load began.

use std::time::Duration;

/// Descriptors that a process needs besides one for each user: standard streams, timer, epoll, and some to
/// spare.
const OTHER_DESCRIPTORS: u64 = 64;

/// How many users come, how fast, how long they stay, and how long each rests between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Users once all have come; at least 1.
    pub users: u32,
    /// Time in which they arrive, at even intervals: the first at once, the last at its end.
    pub ramp: Duration,
    /// Time for which all of them stay.
    pub hold: Duration,
    /// Pause of each user after an answer, and after a failure.
    pub pause: Duration,
}

impl Plan {
    /// When user `user` (from 0) begins.
    ///
    /// As in k6, whose stages start from one user: `getRawExecutionSteps` in `lib/executor/ramping_vus.go`
    /// lets user number n of X begin `ramp * (X - n) / (X - 1)` before the stage ends.
    pub fn begin_of(&self, user: u32) -> Duration {
        let (after, steps) = (self.users - 1 - user.min(self.users - 1), self.users - 1);
        if steps == 0 {
            return Duration::ZERO;
        }
        let before_end = self.ramp.as_nanos() * u128::from(after) / u128::from(steps);
        self.ramp - Duration::from_nanos(u64::try_from(before_end).unwrap_or(u64::MAX))
    }

    /// When users stop beginning requests.
    pub fn end(&self) -> Duration {
        self.ramp + self.hold
    }

    /// How many requests all users together begin when each takes `answer_time`.
    pub fn requests(&self, answer_time: Duration) -> u64 {
        let period = (self.pause + answer_time).max(Duration::from_nanos(1)).as_nanos();
        let of_user = |user| (self.end() - self.begin_of(user)).as_nanos().div_ceil(period);
        let sum: u128 = (0..self.users).map(of_user).sum();
        u64::try_from(sum).unwrap_or(u64::MAX)
    }

    /// The beginnings of the users that process `part` (from 0) of `parts` plays: every `parts`-th one, so
    /// that each process has its share of the ramp at any time.
    pub fn begins(&self, part: u32, parts: u32) -> impl Iterator<Item = Duration> + '_ {
        (part..self.users).step_by(parts.max(1) as usize).map(|user| self.begin_of(user))
    }
}

/// Over how many processes `users` must be split where each may have `descriptors` open. At least 1.
pub fn processes(users: u32, descriptors: u64) -> u32 {
    let room = descriptors.saturating_sub(OTHER_DESCRIPTORS).max(1);
    u32::try_from(u64::from(users).div_ceil(room)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(users: u32) -> Plan {
        let seconds = Duration::from_secs;
        Plan { users, ramp: seconds(5), hold: seconds(30), pause: seconds(1) }
    }

    #[test]
    fn users_come_at_even_distances_the_first_at_once_and_the_last_when_the_ramp_ends() {
        let plan = published(6);
        let begins: Vec<Duration> = (0..6).map(|user| plan.begin_of(user)).collect();
        assert_eq!(begins, [0, 1, 2, 3, 4, 5].map(Duration::from_secs));
        assert_eq!(published(1).begin_of(0), Duration::ZERO);
    }

    #[test]
    fn a_user_begins_once_a_period_until_the_end_and_not_at_it() {
        let mut plan = published(1);
        assert_eq!(plan.requests(Duration::ZERO), 35);
        assert_eq!(plan.requests(Duration::from_nanos(1)), 35);
        assert_eq!(plan.requests(Duration::from_secs(34)), 1);
        plan.users = 2;
        // The second one begins 5 s later.
        assert_eq!(plan.requests(Duration::ZERO), 35 + 30);
    }

    #[test]
    fn the_model_makes_the_totals_that_were_published() {
        // ARC2 blog: users, requests with ARC2, requests with nginx. k6 adds about half a millisecond to each
        // iteration beside the answer's time; with it the totals come out within 0.06 % of those printed.
        let printed = [
            (100, 171, 3297, 3297),
            (1000, 141, 32_975, 32_970),
            (5000, 182, 164_887, 164_888),
            (10_000, 306, 329_709, 329_571),
            (15_000, 413, 494_374, 494_334),
        ];
        for (users, latency_us, arc2, nginx) in printed {
            let total = published(users).requests(Duration::from_micros(latency_us + 500)) as f64;
            for count in [arc2, nginx] {
                let error = total / f64::from(count) - 1.0;
                assert!(error.abs() < 0.0006, "{users} users: {total} for {count}, {error:+.5}");
            }
        }
    }

    #[test]
    fn the_parts_of_a_split_are_all_users_once() {
        let plan = published(11);
        let mut together: Vec<Duration> = (0..3).flat_map(|part| plan.begins(part, 3)).collect();
        together.sort_unstable();
        let all: Vec<Duration> = (0..11).map(|user| plan.begin_of(user)).collect();
        assert_eq!(together, all);
        let sizes: Vec<usize> = (0..3).map(|part| plan.begins(part, 3).count()).collect();
        assert_eq!(sizes, [4, 4, 3]);
    }

    #[test]
    fn users_are_split_where_one_process_may_not_hold_them() {
        assert_eq!(processes(1, 1024), 1);
        assert_eq!(processes(19_936, 20_000), 1);
        assert_eq!(processes(19_937, 20_000), 2);
        assert_eq!(processes(20_000, 20_000), 2);
        assert_eq!(processes(20_000, 1024), 21);
        assert_eq!(processes(5, 3), 5);
    }
}
