//! Bound on the work without content that a client may make on one QUIC connection (threat C5).
//!
//! QUIC bounds what a frame can make us hold, and not how many come: `PING`, `PATH_CHALLENGE`,
//! `RETIRE_CONNECTION_ID`, windows and the rest are answered for ever, up to a thousand of them in a
//! datagram. So each is charged to a budget, which time, requests and bytes that move fill up again. The
//! protocol counts frames anyway; its counters are looked at once in some datagrams.

use std::time::Instant;

use quinn_proto::ConnectionStats;

/// Datagrams between two looks.
const DATAGRAMS: u32 = 64;
/// Frames that a request earns: its client may need some windows.
const FRAMES_PER_REQUEST: f64 = 12.0;
/// Bytes received for which there may be a piece of a stream, besides one in each datagram and one for each
/// piece of an answer: as little as a small message.
const BYTES_PER_PIECE: u64 = 64;
/// Bytes, either way, that earn one frame.
const BYTES_PER_FRAME: f64 = 1024.0;
/// The part of the whole budget that comes back per second.
const REFILL: f64 = 0.1;

/// Frames without content that one connection may still receive.
pub struct FloodBudget {
    /// Datagrams since the last look.
    datagrams: u32,
    most: f64,
    left: f64,
    at: Instant,
    /// Charged so far: frames, and bytes that moved.
    charged: f64,
    moved_bytes: u64,
    /// Counted at the last look: pieces of streams, and those that there may have been.
    pieces: u64,
    allowed_pieces: u64,
    /// Pieces of answers.
    given_pieces: u64,
}

impl FloodBudget {
    /// For a new connection whose client may send `most` frames without content ahead of what earns more.
    pub fn new(most: u32, now: Instant) -> FloodBudget {
        let most = f64::from(most);
        FloodBudget {
            datagrams: 0,
            most,
            left: most,
            at: now,
            charged: 0.0,
            moved_bytes: 0,
            pieces: 0,
            allowed_pieces: 0,
            given_pieces: 0,
        }
    }

    /// A datagram was taken; true when it is time to look at what was counted.
    pub fn is_due(&mut self) -> bool {
        self.datagrams += 1;
        self.datagrams >= DATAGRAMS
    }

    /// A request has ended.
    pub fn request_ended(&mut self) {
        self.left = (self.left + FRAMES_PER_REQUEST).min(self.most);
    }

    /// A piece of an answer was given to be sent, all that there was of it.
    pub fn sent_piece(&mut self) {
        self.given_pieces += 1;
    }

    /// Charges what came since the last look. False once the budget is used up.
    pub fn charge(&mut self, stats: &ConnectionStats, now: Instant) -> bool {
        self.datagrams = 0;
        let moved_bytes = stats.udp_rx.bytes + stats.udp_tx.bytes;
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let earned = (moved_bytes - self.moved_bytes) as f64 / BYTES_PER_FRAME + passed * self.most * REFILL;
        let cost = cost(stats);
        // The cost falls when acknowledged packets follow on acknowledgements.
        let owed = (cost - self.charged).max(0.0) + self.surplus_pieces(stats) as f64;
        (self.at, self.moved_bytes, self.charged) = (now, moved_bytes, cost.max(self.charged));
        self.left = (self.left + earned - owed).min(self.most);
        self.left >= 0.0
    }

    /// How many more pieces of streams came since the last look than its bytes were worth. Those of one look
    /// pay for no other's.
    fn surplus_pieces(&mut self, stats: &ConnectionStats) -> u64 {
        let received = stats.udp_rx;
        let allowed_pieces = received.datagrams + received.bytes / BYTES_PER_PIECE + self.given_pieces;
        let allowed = allowed_pieces - std::mem::replace(&mut self.allowed_pieces, allowed_pieces);
        let pieces = stats.frame_rx.stream - std::mem::replace(&mut self.pieces, stats.frame_rx.stream);
        pieces.saturating_sub(allowed)
    }
}

/// Cost of all frames so far, but for pieces of streams.
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
    // Every packet of ours may be acknowledged once.
    let acks = frames.acks.saturating_sub(stats.udp_tx.datagrams);
    (control + acks) as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
