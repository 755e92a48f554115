//! What one peer is to be told, and how far it has heard everything.
//!
//! After a connection is made, the peer is told all debts, cell by cell; counts of a cell are told once its
//! debts have been. If it reads too slowly, what waits is dropped, and once it has read the rest it is told
//! all debts again. So the memory for a peer is bounded, and nobody waits for one.

use std::ops::Range;
use std::sync::Mutex;

use tokio::sync::Notify;
use weir_proxy::compiled::{KeyDebt, LimitId, SharedLimit, TokenCount};

use super::wire;
use crate::lock;

/// Most bytes that wait for one peer.
const WAITING_BYTES: usize = 1 << 20;
/// No further debts are looked up for a peer for which this many bytes wait.
const ENOUGH_BYTES: usize = 256 << 10;
/// Cells that are looked at under one lock (count): some microseconds.
const CELLS_AT_ONCE: usize = 2_048;

/// The next cells whose debts a peer is told: the limit's index, the part, the cell.
pub type ScanPlace = (usize, usize, usize);

/// What waits for one peer.
#[derive(Default)]
pub struct Outbox {
    state: Mutex<Waiting>,
    /// Woken when something waits.
    pub filled: Notify,
}

#[derive(Default)]
struct Waiting {
    /// Whether there is a connection.
    is_open: bool,
    bytes: Vec<u8>,
    /// `None` once the peer was told all debts.
    next: Option<ScanPlace>,
    /// Nothing is put in until what is being sent has been sent.
    is_behind: bool,
    is_being_sent: bool,
}

/// What a peer may be told of counts in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of them.
    All,
    /// Those of cells before this one.
    Before(usize),
    /// None: they are part of debts that it will be told, or it is not there.
    Nothing,
}

impl Outbox {
    /// A connection was made: everything is to be told.
    pub fn open(&self) {
        *lock(&self.state) = Waiting { is_open: true, next: Some((0, 0, 0)), ..Waiting::default() };
    }

    /// The connection has ended.
    pub fn close(&self) {
        *lock(&self.state) = Waiting::default();
    }

    /// Everything is to be told again: the limits are other ones, or the peer has asked for it.
    pub fn tell_again(&self) {
        let mut waiting = lock(&self.state);
        if waiting.is_open {
            waiting.next = Some((0, 0, 0));
        }
    }

    /// Whether the peer was told all debts of the limits.
    pub fn is_complete(&self) -> bool {
        let waiting = lock(&self.state);
        waiting.is_open && waiting.next.is_none() && !waiting.is_behind
    }

    /// What it may be told of counts in this part of the limit with this index.
    pub fn share(&self, limit: usize, part: usize) -> Share {
        let waiting = lock(&self.state);
        match waiting.next {
            _ if !waiting.is_open || waiting.is_behind => Share::Nothing,
            None => Share::All,
            Some((at_limit, at_part, cell)) => match (limit, part).cmp(&(at_limit, at_part)) {
                std::cmp::Ordering::Less => Share::All,
                std::cmp::Ordering::Equal => Share::Before(cell),
                std::cmp::Ordering::Greater => Share::Nothing,
            },
        }
    }

    /// Puts frames in. `false` if the peer has fallen behind by that.
    pub fn put(&self, frames: &[u8]) -> bool {
        let mut waiting = lock(&self.state);
        if !waiting.is_open || waiting.is_behind {
            return true;
        }
        if waiting.bytes.len() + frames.len() > WAITING_BYTES {
            let is_being_sent = waiting.is_being_sent;
            *waiting = Waiting { is_open: true, is_behind: true, is_being_sent, ..Waiting::default() };
            self.filled.notify_one();
            return false;
        }
        waiting.bytes.extend_from_slice(frames);
        self.filled.notify_one();
        true
    }

    /// What waits; called when everything before has been sent.
    pub fn take(&self) -> Vec<u8> {
        let mut waiting = lock(&self.state);
        if std::mem::take(&mut waiting.is_behind) {
            waiting.next = Some((0, 0, 0));
        }
        waiting.is_being_sent = !waiting.bytes.is_empty();
        std::mem::take(&mut waiting.bytes)
    }

    /// Whether all that the peer is to be told has been sent; `None` if it is not there.
    pub fn is_settled(&self) -> Option<bool> {
        let waiting = lock(&self.state);
        let is_told = waiting.next.is_none() && !waiting.is_behind;
        waiting.is_open.then(|| is_told && waiting.bytes.is_empty() && !waiting.is_being_sent)
    }

    /// The next cells whose debts it is to be told, if there is room.
    pub fn next(&self, limits: &[SharedLimit]) -> Option<(usize, usize, Range<usize>)> {
        let mut waiting = lock(&self.state);
        if !waiting.is_open || waiting.is_behind || waiting.bytes.len() >= ENOUGH_BYTES {
            return None;
        }
        let (mut at, mut part, mut cell) = waiting.next?;
        let found = loop {
            let Some(limit) = limits.get(at) else { break None };
            match (part < limit.parts(), cell < limit.cells()) {
                (false, _) => (at, part, cell) = (at + 1, 0, 0),
                (true, false) => (part, cell) = (part + 1, 0),
                (true, true) => break Some((at, part, cell..limit.cells().min(cell + CELLS_AT_ONCE))),
            }
        };
        waiting.next = found.as_ref().map(|(at, part, cells)| (*at, *part, cells.start));
        found
    }

    /// The debts of these cells were looked up; counts from now on are told beside them. `false` if the peer
    /// has fallen behind.
    pub fn scanned(&self, (at, part, end): ScanPlace, limit: LimitId, debts: &[KeyDebt]) -> bool {
        {
            let mut waiting = lock(&self.state);
            if waiting.next.is_none() {
                return true;
            }
            waiting.next = Some((at, part, end));
        }
        let mut frames = Vec::new();
        wire::put_debts(&mut frames, limit, debts);
        frames.is_empty() || self.put(&frames)
    }
}

/// Counts as frames, in the part that a peer may be told. `whole` is all of them.
pub fn frames_of(
    share: Share,
    (limit, sent_ms): (LimitId, u64),
    counts: &[(usize, TokenCount)],
    whole: &mut Option<Vec<u8>>,
) -> Vec<u8> {
    let encode = |is_told: &dyn Fn(usize) -> bool| {
        let told: Vec<TokenCount> =
            counts.iter().filter(|(cell, _)| is_told(*cell)).map(|(_, count)| *count).collect();
        let mut frames = Vec::new();
        wire::put_counts(&mut frames, limit, sent_ms, &told);
        frames
    };
    match share {
        Share::Nothing => Vec::new(),
        Share::Before(end) => encode(&|cell| cell < end),
        Share::All => whole.get_or_insert_with(|| encode(&|_| true)).clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_reads_slowly_has_bounded_memory_and_is_told_everything_again() {
        let outbox = Outbox::default();
        assert!(outbox.put(&[0; 100]) && outbox.take().is_empty(), "it is not there");
        outbox.open();
        assert!(outbox.next(&[]).is_none() && outbox.is_complete());
        let piece = [7; 60_000];
        let fitting = WAITING_BYTES / piece.len();
        assert!((0..fitting).all(|_| outbox.put(&piece)));
        assert!(!outbox.put(&piece) && !outbox.is_complete());
        assert!(outbox.put(&piece), "it is behind already");
        assert_eq!(outbox.share(0, 0), Share::Nothing);
        assert!(outbox.take().is_empty());
        assert_eq!(lock(&outbox.state).next, Some((0, 0, 0)));
        assert!(outbox.put(&piece) && outbox.take() == piece);
        assert_eq!(outbox.is_settled(), Some(false), "it is being sent");
        assert!(outbox.next(&[]).is_none() && outbox.take().is_empty());
        assert_eq!(outbox.is_settled(), Some(true));
    }

    #[test]
    fn counts_are_told_of_cells_whose_debts_were_and_of_no_others() {
        let outbox = Outbox::default();
        assert_eq!(outbox.share(0, 0), Share::Nothing);
        outbox.open();
        assert_eq!(outbox.share(0, 0), Share::Before(0));
        assert!(outbox.scanned((1, 2, 30), [0; 2], &[]));
        let shares = [(0, 9), (1, 1), (1, 2), (1, 3), (2, 0)].map(|(limit, part)| outbox.share(limit, part));
        assert_eq!(shares, [Share::All, Share::All, Share::Before(30), Share::Nothing, Share::Nothing]);
        let count = |cell| (cell, TokenCount { key: [1, 2], tokens: 3 });
        let counts = [count(29), count(30)];
        let mut whole = None;
        let length = |share, whole: &mut _| frames_of(share, ([0; 2], 0), &counts, whole).len();
        let lengths = [Share::Nothing, Share::Before(30), Share::All].map(|share| length(share, &mut whole));
        assert_eq!(lengths, [0, 5 + 24 + 20, 5 + 24 + 40]);
    }
}
