//! What a bad line does to packets: it loses some, delays the others, and has a bounded queue.
//!
//! Pure: the time is an argument and the random draws come from a seed, so a test can predict what becomes of
//! every packet. The order of the decisions is netem's: first a packet is lost or not; one that is not lost
//! needs room in the queue; one that has room leaves a fixed time after it arrived, in the order of arrival.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::statistics::SplitMix64;

/// What one direction of a line does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impairment {
    /// How long every packet is held.
    pub delay: Duration,
    /// Share of packets lost, 0 to 1, each drawn by itself.
    pub loss: f64,
    /// Most packets held at once (at least 1). A packet that finds no room is lost, as at the end of a
    /// router's queue.
    pub queue_packets: usize,
}

impl Impairment {
    /// A line that does nothing to its packets.
    pub const NONE: Self = Self { delay: Duration::ZERO, loss: 0.0, queue_packets: 10_000 };
}

/// What became of the packets of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets that left.
    pub carried: u64,
    /// Packets drawn to be lost.
    pub lost: u64,
    /// Packets for which the queue had no room. They raise the loss above what was asked for.
    pub overflowed: u64,
    /// Packets the kernel dropped before the emulator could read them: it was too slow.
    pub overrun: u64,
    /// Longest packet (bytes). More than the MTU would mean that several segments were lost or kept together.
    pub longest_bytes: u64,
    /// Greatest delay of a packet after it was due (microseconds).
    pub latest_us: u64,
}

/// One direction of a line, with the packets it holds.
#[derive(Debug)]
pub struct Line {
    impairment: Impairment,
    /// A draw below this loses the packet.
    loss_threshold: u64,
    draws: SplitMix64,
    /// Each packet with the time at which it leaves.
    waiting: VecDeque<(Duration, Vec<u8>)>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    counters: Counters,
}

impl Line {
    /// A line whose losses are drawn from `seed`.
    pub fn new(impairment: Impairment, seed: u64) -> Self {
        // The resolution is 2^32, as in netem: fine enough for any loss.
        let loss_threshold = (impairment.loss.clamp(0.0, 1.0) * 4_294_967_296.0).round() as u64;
        let (waiting, spare) = (VecDeque::new(), Vec::new());
        let draws = SplitMix64::new(seed);
        Self { impairment, loss_threshold, draws, waiting, spare, counters: Counters::default() }
    }

    /// Accepts `packet` at `now`. Amortised, it does not allocate.
    pub fn enter(&mut self, now: Duration, packet: &[u8]) {
        self.counters.longest_bytes = self.counters.longest_bytes.max(packet.len() as u64);
        if self.draws.next() >> 32 < self.loss_threshold {
            self.counters.lost += 1;
            return;
        }
        if self.waiting.len() >= self.impairment.queue_packets.max(1) {
            self.counters.overflowed += 1;
            return;
        }
        let mut held = self.spare.pop().unwrap_or_default();
        held.clear();
        held.extend_from_slice(packet);
        self.waiting.push_back((now + self.impairment.delay, held));
    }

    /// When the next packet is due to leave; `None` when none is held.
    pub fn next_departure(&self) -> Option<Duration> {
        self.waiting.front().map(|(departure, _)| *departure)
    }

    /// Passes the next packet that is due at `now` to `send`; returns whether there was one.
    pub fn leave(&mut self, now: Duration, send: impl FnOnce(&[u8])) -> bool {
        let Some((departure, packet)) = self.waiting.pop_front_if(|(departure, _)| *departure <= now) else {
            return false;
        };
        send(&packet);
        self.counters.carried += 1;
        let late_us = (now - departure).as_micros() as u64;
        self.counters.latest_us = self.counters.latest_us.max(late_us);
        self.spare.push(packet);
        true
    }

    /// What has become of the packets so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Everything that leaves at `now`.
    fn leaving(line: &mut Line, now: Duration) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while line.leave(now, |packet| packets.push(packet.to_vec())) {}
        packets
    }

    #[test]
    fn a_packet_leaves_when_the_delay_is_over_and_not_before() {
        let mut line = Line::new(Impairment { delay: ms(25), ..Impairment::NONE }, 1);
        line.enter(ms(100), b"one");
        line.enter(ms(110), b"two");
        assert_eq!(line.next_departure(), Some(ms(125)));
        assert!(leaving(&mut line, ms(125) - Duration::from_nanos(1)).is_empty());
        assert_eq!(leaving(&mut line, ms(125)), [b"one"]);
        assert_eq!(line.next_departure(), Some(ms(135)));
        assert_eq!(leaving(&mut line, ms(140)), [b"two"]);
        assert_eq!(line.next_departure(), None);
        let expected = Counters { carried: 2, longest_bytes: 3, latest_us: 5000, ..Counters::default() };
        assert_eq!(line.counters(), expected);
    }

    #[test]
    fn packets_leave_in_the_order_in_which_they_came() {
        let mut line = Line::new(Impairment { delay: ms(1), ..Impairment::NONE }, 1);
        for number in 0..200_u8 {
            line.enter(ms(0), &[number]);
        }
        let expected: Vec<Vec<u8>> = (0..200_u8).map(|number| vec![number]).collect();
        assert_eq!(leaving(&mut line, ms(1)), expected);
    }

    #[test]
    fn the_share_lost_is_the_share_asked_for() {
        // Over a million independent draws the standard deviation is 0.014 % at 2 % and 0.020 % at 4 %.
        for (loss, deviation) in [(0.02, 0.000_14), (0.04, 0.000_2)] {
            let mut line = Line::new(Impairment { loss, ..Impairment::NONE }, 7);
            for _ in 0..1_000_000 {
                line.enter(ms(0), b"x");
                leaving(&mut line, ms(0));
            }
            let counters = line.counters();
            assert_eq!(counters.carried + counters.lost, 1_000_000);
            let lost = counters.lost as f64 / 1e6;
            assert!((lost - loss).abs() < 4.0 * deviation, "{lost} of {loss}");
        }
    }

    #[test]
    fn losses_do_not_come_in_bursts() {
        // For independent draws the chance of a loss right after a loss is the loss itself. 40,000 pairs:
        // 0.098 %.
        let mut line = Line::new(Impairment { loss: 0.04, ..Impairment::NONE }, 11);
        let fates: Vec<bool> = (0..1_000_000)
            .map(|_| {
                line.enter(ms(0), b"x");
                leaving(&mut line, ms(0)).is_empty()
            })
            .collect();
        let after_loss: Vec<bool> = fates.windows(2).filter(|pair| pair[0]).map(|pair| pair[1]).collect();
        let again = after_loss.iter().filter(|lost| **lost).count() as f64 / after_loss.len() as f64;
        assert!((again - 0.04).abs() < 0.004, "{again}");
    }

    #[test]
    fn no_loss_loses_nothing_and_full_loss_everything() {
        for (loss, carried) in [(0.0, 5000), (1.0, 0)] {
            let mut line = Line::new(Impairment { loss, ..Impairment::NONE }, 3);
            for _ in 0..5000 {
                line.enter(ms(0), b"x");
            }
            assert_eq!(leaving(&mut line, ms(0)).len(), carried);
        }
    }

    #[test]
    fn the_queue_has_room_for_so_many_and_counts_the_rest() {
        let mut line = Line::new(Impairment { delay: ms(50), loss: 0.0, queue_packets: 3 }, 1);
        for number in 0..5_u8 {
            line.enter(ms(0), &[number]);
        }
        assert_eq!(line.counters().overflowed, 2);
        assert_eq!(leaving(&mut line, ms(50)), [[0], [1], [2]]);
        line.enter(ms(50), &[9]);
        assert_eq!(leaving(&mut line, ms(100)), [[9]]);
    }

    #[test]
    fn the_same_seed_loses_the_same_packets() {
        let fates = |seed| -> Vec<bool> {
            let mut line = Line::new(Impairment { loss: 0.5, ..Impairment::NONE }, seed);
            (0..64)
                .map(|_| {
                    line.enter(ms(0), b"x");
                    leaving(&mut line, ms(0)).is_empty()
                })
                .collect()
        };
        assert_eq!(fates(5), fates(5));
        assert_ne!(fates(5), fates(6));
    }
}
