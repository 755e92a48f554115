//! Rate limits in bytes per second: how many bytes may pass now, or when there will be room again.
//!
//! A token bucket, represented by the time at which it will be full, so that its state is a single number:
//! threads can share a meter, at one atomic update per piece. Bytes are charged after they have passed. Two
//! threads that ask at the same time may both pass a piece; the excess is owed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Least burst: a smaller one would cost a call for every few bytes.
pub const PIECE_BYTES: u64 = 16 << 10;

/// Fewest bytes that pass in one piece of a stream.
pub const LEAST_BYTES: u64 = 4 << 10;

/// One bucket.
#[derive(Debug)]
pub struct Meter {
    bytes_per_second: u64,
    /// The burst that may pass after a pause, as the time it takes at the rate, in nanoseconds.
    burst: u64,
    /// When the bucket will be full again, in nanoseconds of the clock.
    full_at: AtomicU64,
}

impl Meter {
    /// A full bucket. `burst` is the time whose bytes may pass at once after a pause; at least
    /// [`PIECE_BYTES`] may. A rate of 0 is taken as 1.
    pub fn new(bytes_per_second: u64, burst: Duration) -> Meter {
        let bytes_per_second = bytes_per_second.max(1);
        let piece = nanoseconds_of(PIECE_BYTES, bytes_per_second);
        let burst = u64::try_from(burst.as_nanos()).unwrap_or(u64::MAX).max(piece);
        Meter { bytes_per_second, burst, full_at: AtomicU64::new(0) }
    }

    /// How many bytes may pass now, at least one.
    ///
    /// # Errors
    /// No bytes may pass; the time at which half of the burst can pass.
    pub fn room(&self, now: Duration) -> Result<u64, Duration> {
        let now = nanoseconds(now);
        let owed = self.full_at.load(Relaxed).saturating_sub(now);
        if owed >= self.burst {
            return Err(Duration::from_nanos(now.saturating_add(owed - self.burst / 2)));
        }
        let bytes = u128::from(self.burst - owed) * u128::from(self.bytes_per_second) / 1_000_000_000;
        Ok(u64::try_from(bytes).unwrap_or(u64::MAX).max(1))
    }

    /// As [`Self::room`], for bytes that can wait for more of them: fewer than [`LEAST_BYTES`] do not pass,
    /// or a sender that takes a while for each call would make one for every few bytes.
    ///
    /// # Errors
    /// See [`Self::room`].
    pub fn room_for_piece(&self, now: Duration) -> Result<u64, Duration> {
        match self.room(now) {
            Ok(room) if room < LEAST_BYTES => {
                let more = nanoseconds_of(PIECE_BYTES / 2 - room, self.bytes_per_second);
                Err(now + Duration::from_nanos(more.max(1)))
            }
            other => other,
        }
    }

    /// Charges bytes that have passed.
    pub fn take(&self, now: Duration, bytes: u64) {
        let (now, cost) = (nanoseconds(now), nanoseconds_of(bytes, self.bytes_per_second));
        let later = |full_at: u64| Some(full_at.max(now).saturating_add(cost));
        let _ = self.full_at.fetch_update(Relaxed, Relaxed, later);
    }

    /// How much of the burst is left, in percent.
    pub fn percent_left(&self, now: Duration) -> u64 {
        let owed = self.full_at.load(Relaxed).saturating_sub(nanoseconds(now)).min(self.burst);
        (u128::from(self.burst - owed) * 100 / u128::from(self.burst)) as u64
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn nanoseconds_of(bytes: u64, bytes_per_second: u64) -> u64 {
    let time = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
    u64::try_from(time).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Bytes that pass in `time` when all that may is taken at once, in pieces.
    fn passed(meter: &Meter, from: Duration, time: Duration) -> u64 {
        let (mut now, mut bytes) = (from, 0);
        while now < from + time {
            match meter.room(now) {
                Ok(room) => {
                    let piece = room.min(64 << 10);
                    meter.take(now, piece);
                    bytes += piece;
                }
                Err(until) => {
                    assert!(until > now, "a wait of nothing");
                    now = until;
                }
            }
        }
        bytes
    }

    #[test]
    fn what_passes_is_the_rate_and_once_the_burst() {
        for rate in [16 << 10, MIB, 100 * MIB] {
            let meter = Meter::new(rate, Duration::from_millis(100));
            let bytes = passed(&meter, Duration::from_secs(5), Duration::from_secs(10));
            let burst = (rate / 10).max(PIECE_BYTES);
            assert!(bytes >= rate * 10 && bytes <= rate * 10 + burst + (64 << 10), "{rate}: {bytes}");
        }
    }

    #[test]
    fn a_slow_caller_gets_pieces_and_not_every_byte_by_itself() {
        let meter = Meter::new(MIB, Duration::from_millis(100));
        let (mut now, mut calls, mut bytes) = (Duration::from_secs(5), 0, 0);
        while bytes < MIB {
            match meter.room_for_piece(now) {
                Ok(room) => {
                    assert!(room >= LEAST_BYTES, "{room}");
                    meter.take(now, room);
                    // Encryption and the kernel take their time.
                    now += Duration::from_micros(20);
                    (calls, bytes) = (calls + 1, bytes + room);
                }
                Err(until) => now = until,
            }
        }
        assert!(calls < 200, "{calls}");
        assert!(now >= Duration::from_millis(5_850), "{now:?}");
    }

    #[test]
    fn a_pause_gives_the_burst_and_no_more() {
        let meter = Meter::new(MIB, Duration::from_millis(500));
        passed(&meter, Duration::from_secs(1), Duration::from_secs(2));
        let hour = Duration::from_secs(3600);
        assert_eq!(meter.room(hour), Ok(MIB / 2));
        assert_eq!(meter.percent_left(hour), 100);
        meter.take(hour, MIB / 4);
        assert_eq!(meter.percent_left(hour), 50);
    }

    #[test]
    fn what_was_too_much_is_owed() {
        let meter = Meter::new(MIB, Duration::from_millis(100));
        let now = Duration::from_secs(9);
        meter.take(now, 10 * MIB);
        let until = meter.room(now).unwrap_err();
        assert_eq!(until, now + Duration::from_millis(9_950));
        assert!(meter.room(until).is_ok());
    }

    #[test]
    fn numbers_without_end_do_not_overflow() {
        let meter = Meter::new(0, Duration::MAX);
        meter.take(Duration::MAX, u64::MAX);
        assert!(meter.room(Duration::MAX).is_ok());
        let fast = Meter::new(u64::MAX, Duration::MAX);
        assert!(fast.room(Duration::ZERO).is_ok());
    }
}
