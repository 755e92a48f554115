//! Which QUIC frames are charged to the flood budget of a connection (threat C5).
//!
//! QUIC limits what a frame can make us store, but not the number of frames: `PING`, `PATH_CHALLENGE`,
//! `RETIRE_CONNECTION_ID`, window updates and others are answered without limit, up to a thousand of them in
//! a datagram. `quinn-proto` counts frames anyway, so its counters are checked once per some number of
//! datagrams.

use std::time::{Duration, Instant};

use quinn_proto::ConnectionStats;
use weir_io::flood::Budget;

/// Datagrams between two checks.
const DATAGRAMS: u32 = 64;
/// Received bytes that justify one stream frame, besides one for each datagram and one for each piece of an
/// answer: as little as a small message.
const BYTES_PER_PIECE: u64 = 64;

/// The frames without content that one connection may still receive.
pub struct FloodBudget {
    budget: Budget,
    start: Instant,
    /// Datagrams since the last check.
    datagrams: u32,
    /// Charged so far: frames, and bytes of content.
    charged: f64,
    moved_bytes: u64,
    /// As of the last check: stream frames received, and how many were justified.
    pieces: u64,
    allowed_pieces: u64,
    /// Pieces of answers sent.
    given_pieces: u64,
}

impl FloodBudget {
    /// For a new connection whose client may send `most` frames without content before it has earned any.
    pub fn new(most: u32, now: Instant) -> FloodBudget {
        FloodBudget {
            budget: Budget::new(most, Duration::ZERO),
            start: now,
            datagrams: 0,
            charged: 0.0,
            moved_bytes: 0,
            pieces: 0,
            allowed_pieces: 0,
            given_pieces: 0,
        }
    }

    /// Counts a received datagram; true when it is time to check the counters.
    pub fn is_due(&mut self) -> bool {
        self.datagrams += 1;
        self.datagrams >= DATAGRAMS
    }

    /// Call this when a request has ended.
    pub fn request_ended(&mut self) {
        self.budget.request_answered();
    }

    /// Call this when a piece of an answer was sent whole, not cut to fit a window.
    pub fn sent_piece(&mut self) {
        self.given_pieces += 1;
    }

    /// Charges what was received since the last check. False once the budget is used up.
    pub fn charge(&mut self, stats: &ConnectionStats, now: Instant) -> bool {
        self.datagrams = 0;
        let moved_bytes = stats.udp_rx.bytes + stats.udp_tx.bytes;
        self.budget.moved(moved_bytes - std::mem::replace(&mut self.moved_bytes, moved_bytes));
        let cost = cost(stats);
        // The cost falls when packets that we sent are counted after the acknowledgements for them.
        let owed = (cost - self.charged).max(0.0) + self.surplus_pieces(stats) as f64;
        self.charged = cost.max(self.charged);
        self.budget.charge(owed, || now.saturating_duration_since(self.start))
    }

    /// How many more stream frames were received since the last check than its bytes justify. A surplus of
    /// one check can't be used in another.
    fn surplus_pieces(&mut self, stats: &ConnectionStats) -> u64 {
        let received = stats.udp_rx;
        let allowed_pieces = received.datagrams + received.bytes / BYTES_PER_PIECE + self.given_pieces;
        let allowed = allowed_pieces - std::mem::replace(&mut self.allowed_pieces, allowed_pieces);
        let pieces = stats.frame_rx.stream - std::mem::replace(&mut self.pieces, stats.frame_rx.stream);
        pieces.saturating_sub(allowed)
    }
}

/// Cost of all frames so far, except stream frames.
fn cost(stats: &ConnectionStats) -> f64 {
    let frames = &stats.frame_rx;
    let control: u64 = [
        frames.ack_frequency,
        frames.crypto,
        frames.data_blocked,
        frames.immediate_ack,
        frames.max_data,
        frames.max_stream_data,
        frames.max_streams_bidi,
        frames.max_streams_uni,
        frames.new_connection_id,
        frames.path_challenge,
        frames.path_response,
        frames.ping,
        frames.reset_stream,
        frames.retire_connection_id,
        frames.stop_sending,
        frames.stream_data_blocked,
        frames.streams_blocked_bidi,
        frames.streams_blocked_uni,
    ]
    .iter()
    .sum();
    // Each of our packets may be acknowledged once for free.
    let acks = frames.acks.saturating_sub(stats.udp_tx.datagrams);
    (control + acks) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks after each of `rounds` rounds of `round`, a second apart each `per_second`; whether the budget
    /// lasted.
    fn lasts(
        rounds: u64,
        per_second: u64,
        mut round: impl FnMut(&mut ConnectionStats, &mut FloodBudget),
    ) -> bool {
        let start = Instant::now();
        let mut budget = FloodBudget::new(1000, start);
        let mut stats = ConnectionStats::default();
        (0..rounds).all(|number| {
            round(&mut stats, &mut budget);
            budget.charge(&stats, start + Duration::from_secs(1) * (number / per_second) as u32)
        })
    }

    #[test]
    fn floods_use_it_up() {
        assert!(!lasts(100, 10, |stats, _| {
            stats.frame_rx.ping += 64;
            stats.udp_rx.bytes += 64 * 40;
            stats.udp_tx.bytes += 32 * 40;
            stats.udp_tx.datagrams += 32;
        }));
        assert!(!lasts(100, 10, |stats, _| stats.frame_rx.path_challenge += 100));
        assert!(!lasts(100, 10, |stats, _| stats.frame_rx.retire_connection_id += 100));
        assert!(!lasts(100, 10, |stats, _| stats.frame_rx.acks += 64), "of nothing new");
        assert!(!lasts(100, 10, |stats, _| {
            stats.udp_rx.datagrams += 64;
            stats.frame_rx.stream += 64 * 300;
            stats.udp_rx.bytes += 64 * 1200;
        }));
        let mut round = 0;
        assert!(
            !lasts(200, 10, |stats, _| {
                round += 1;
                stats.udp_rx.datagrams += 64;
                stats.udp_rx.bytes += 64 * 1200;
                stats.frame_rx.stream += if round < 100 { 64 } else { 64 * 300 };
            }),
            "after an upload"
        );
    }

    #[test]
    fn downloads_uploads_and_requests_do_not() {
        assert!(lasts(10_000, 1000, |stats, _| {
            stats.frame_rx.acks += 64;
            stats.frame_rx.max_stream_data += 20;
            stats.frame_rx.max_data += 20;
            stats.udp_rx.bytes += 64 * 40;
            stats.udp_tx.datagrams += 128;
            stats.udp_tx.bytes += 128 * 1200;
        }));
        assert!(lasts(10_000, 1000, |stats, _| {
            stats.frame_rx.stream += 64;
            stats.frame_rx.acks += 64;
            stats.frame_rx.stream_data_blocked += 10;
            stats.udp_rx.datagrams += 64;
            stats.udp_rx.bytes += 64 * 1200;
            stats.udp_tx.datagrams += 16;
        }));
        // A client that returns both windows in steps of a kibibyte.
        assert!(lasts(10_000, 1000, |stats, _| {
            stats.frame_rx.max_stream_data += 64;
            stats.frame_rx.max_data += 64;
            stats.udp_tx.datagrams += 64;
            stats.udp_tx.bytes += 64 * 1024;
        }));
        // Requests in crowds, and a client that says it is still there.
        assert!(lasts(10_000, 1000, |stats, budget| {
            stats.frame_rx.stream += 640;
            stats.udp_rx.datagrams += 64;
            (0..640).for_each(|_| budget.request_ended());
        }));
        assert!(lasts(100, 1, |stats, _| stats.frame_rx.ping += 64));
        // Small messages of many streams, which are not answered, and tiny ones, which are.
        assert!(lasts(10_000, 1000, |stats, _| {
            stats.frame_rx.stream += 64 * 10;
            stats.udp_rx.datagrams += 64;
            stats.udp_rx.bytes += 64 * 1000;
        }));
        assert!(lasts(10_000, 1000, |stats, budget| {
            stats.frame_rx.stream += 64 * 50;
            stats.udp_rx.datagrams += 64;
            stats.udp_rx.bytes += 64 * 1000;
            (0..64 * 50).for_each(|_| budget.sent_piece());
        }));
    }
}
