//! Turns a series of probe results into up and down.
//!
//! There is one machine per checked address, however many pools use it. The control side feeds it and passes
//! each [`Transition`] on to every [`Backend`](crate::Backend) of that address.

use crate::Health;
use crate::stable_hash::mix64;
use std::time::Duration;

/// Counts rise and fall for one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthMachine {
    rise: u32,
    fall: u32,
    state: Health,
    /// Consecutive results that contradict `state`.
    against: u32,
}

/// A verdict that differs from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The verdict before.
    pub from: Health,
    /// The verdict now: up or down.
    pub to: Health,
}

impl HealthMachine {
    /// A machine without a verdict. `rise` and `fall` count consecutive results; 0 is taken as 1.
    pub fn new(rise: u32, fall: u32) -> HealthMachine {
        HealthMachine { rise: rise.max(1), fall: fall.max(1), state: Health::Unknown, against: 0 }
    }

    /// The current verdict.
    pub fn state(&self) -> Health {
        self.state
    }

    /// Takes the result of one probe; `Some` when the verdict changes.
    ///
    /// The very first result decides alone, either way: until then the state was an assumption, and waiting
    /// for `fall` more probes would send traffic to a backend that has already failed one.
    pub fn observe(&mut self, ok: bool) -> Option<Transition> {
        let (agrees, threshold, other) = match self.state {
            Health::Unknown => (false, 1, if ok { Health::Up } else { Health::Down }),
            Health::Up => (ok, self.fall, Health::Down),
            Health::Down => (!ok, self.rise, Health::Up),
        };
        if agrees {
            self.against = 0;
            return None;
        }
        self.against += 1;
        if self.against < threshold {
            return None;
        }
        self.against = 0;
        let from = std::mem::replace(&mut self.state, other);
        Some(Transition { from, to: other })
    }
}

/// The offset of an address's first probe within the first `interval`.
///
/// It depends on the address alone ([`Backend::id`](crate::Backend::id)), so probes of many addresses spread
/// evenly and a new address shifts no other.
pub fn start_offset(id: u64, interval: Duration) -> Duration {
    let share = mix64(id) >> 32;
    let nanoseconds = (interval.as_nanos() * u128::from(share)) >> 32;
    Duration::from_nanos(nanoseconds.min(u128::from(u64::MAX)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(2);

    fn up() -> HealthMachine {
        let mut machine = HealthMachine::new(2, 3);
        machine.observe(true);
        machine
    }

    #[test]
    fn the_first_answer_decides_alone() {
        let mut good = HealthMachine::new(2, 3);
        assert_eq!(good.observe(true), Some(Transition { from: Health::Unknown, to: Health::Up }));
        let mut bad = HealthMachine::new(2, 3);
        assert_eq!(bad.observe(false), Some(Transition { from: Health::Unknown, to: Health::Down }));
    }

    #[test]
    fn it_takes_fall_failures_in_a_row_to_go_down() {
        let mut machine = up();
        for ok in [false, false, true, false, false] {
            assert_eq!(machine.observe(ok), None);
        }
        assert_eq!(machine.observe(false), Some(Transition { from: Health::Up, to: Health::Down }));
        assert_eq!(machine.observe(false), None);
    }

    #[test]
    fn it_takes_rise_successes_in_a_row_to_come_up() {
        let mut machine = HealthMachine::new(2, 3);
        machine.observe(false);
        for ok in [true, false, true] {
            assert_eq!(machine.observe(ok), None);
        }
        assert_eq!(machine.observe(true), Some(Transition { from: Health::Down, to: Health::Up }));
    }

    #[test]
    fn thresholds_of_zero_count_as_one() {
        let mut machine = HealthMachine::new(0, 0);
        machine.observe(true);
        assert_eq!(machine.observe(false).map(|change| change.to), Some(Health::Down));
    }

    #[test]
    fn first_probes_of_a_thousand_addresses_spread_over_the_interval() {
        let mut tenths = [0u32; 10];
        for host in 0..1000 {
            let id = crate::stable_hash(format!("10.0.{}.{}:80", host / 250, host % 250).as_bytes());
            let offset = start_offset(id, INTERVAL);
            assert!(offset < INTERVAL);
            tenths[(offset.as_millis() / 200) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }
}
