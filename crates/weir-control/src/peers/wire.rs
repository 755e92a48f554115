//! What Weirs say to each other, as bytes.
//!
//! A frame is its length (four bytes), its kind (one), and what the kind says; numbers are big-endian. Within
//! the limits below everything that arrives is a frame or a mistake, and a frame of an unknown kind is passed
//! over, so that a later version can say more.

use std::fmt;
use std::time::Duration;

use weir_proxy::compiled::{KeyDebt, LimitId, SharedKey, TokenCount};

/// Longest frame, in bytes after its length.
pub const FRAME_BYTES: usize = 64 << 10;
/// Most counts or debts of a frame.
pub const ENTRIES: usize = 2_000;
/// The version that both sides must have.
pub const VERSION: u16 = 1;

/// Distinguishes processes: drawn at start.
pub type ProcessId = [u8; 16];

/// One thing said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Who speaks. The first frame in each direction.
    Hello { version: u16, process: ProcessId },
    /// What keys took from the one who speaks. `sent_ms` is when, by any clock that does not jump.
    Counts { limit: LimitId, sent_ms: u64, counts: Vec<TokenCount> },
    /// What keys owe, whoever counted it.
    Debts { limit: LimitId, debts: Vec<KeyDebt> },
    /// An operator has cleared the debt of a key, or all debts.
    Cleared { limit: LimitId, key: Option<SharedKey> },
    /// Nothing but that the one who speaks is there.
    Beat { sent_ms: u64 },
    /// The one who speaks wants to hear all debts again: it has other limits now.
    Again,
}

/// A frame that can't be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Its length is this many bytes.
    Length(usize),
    /// Its content does not have the form of its kind.
    Form(u8),
}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mistake::Length(bytes) => write!(out, "a frame of {bytes} bytes, expected 1 to {FRAME_BYTES}"),
            Mistake::Form(kind) => write!(out, "a frame of kind {kind} without the form of its kind"),
        }
    }
}

const HELLO: u8 = 1;
const COUNTS: u8 = 2;
const DEBTS: u8 = 3;
const CLEARED: u8 = 4;
const BEAT: u8 = 5;
const AGAIN: u8 = 6;

/// The number of bytes that follow a frame's length.
pub fn length(bytes: [u8; 4]) -> Result<usize, Mistake> {
    let length = usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX);
    if (1..=FRAME_BYTES).contains(&length) { Ok(length) } else { Err(Mistake::Length(length)) }
}

/// What a frame says, without its length; `None` if its kind is unknown.
pub fn decode(frame: &[u8]) -> Result<Option<Frame>, Mistake> {
    let Some((kind, content)) = frame.split_first() else { return Err(Mistake::Length(0)) };
    let mut rest = Rest(content);
    let found = match *kind {
        HELLO => rest.hello(),
        COUNTS => rest.counts(),
        DEBTS => rest.debts(),
        CLEARED => rest.cleared(),
        BEAT => rest.number().map(|sent_ms| Frame::Beat { sent_ms }),
        AGAIN => Some(Frame::Again),
        _ => return Ok(None),
    };
    found.map(Some).ok_or(Mistake::Form(*kind))
}

/// What is left to read of a frame.
struct Rest<'f>(&'f [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn pair(&mut self) -> Option<[u64; 2]> {
        Some([self.number()?, self.number()?])
    }

    fn hello(&mut self) -> Option<Frame> {
        // Whatever follows is of a later version.
        let version = self.take().map(u16::from_be_bytes)?;
        Some(Frame::Hello { version, process: self.take()? })
    }

    fn counts(&mut self) -> Option<Frame> {
        let (limit, sent_ms) = (self.pair()?, self.number()?);
        let one = |rest: &mut Self| {
            Some(TokenCount { key: rest.pair()?, tokens: rest.take().map(i32::from_be_bytes)? })
        };
        Some(Frame::Counts { limit, sent_ms, counts: self.each(one)? })
    }

    fn debts(&mut self) -> Option<Frame> {
        let limit = self.pair()?;
        let one =
            |rest: &mut Self| Some(KeyDebt { key: rest.pair()?, owed: Duration::from_nanos(rest.number()?) });
        Some(Frame::Debts { limit, debts: self.each(one)? })
    }

    fn cleared(&mut self) -> Option<Frame> {
        let limit = self.pair()?;
        let key = if self.0.is_empty() { None } else { Some(self.pair()?) };
        Some(Frame::Cleared { limit, key })
    }

    /// All that is left, one after the other.
    fn each<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut all = Vec::new();
        while !self.0.is_empty() {
            all.push(one(self)?);
        }
        Some(all)
    }
}

/// Appends a frame. Counts and debts are divided into as many frames as they need.
pub fn put(out: &mut Vec<u8>, frame: &Frame) {
    match frame {
        Frame::Hello { version, process } => put_one(out, HELLO, |out| {
            out.extend(version.to_be_bytes());
            out.extend(process);
        }),
        Frame::Counts { limit, sent_ms, counts } => put_counts(out, *limit, *sent_ms, counts),
        Frame::Debts { limit, debts } => put_debts(out, *limit, debts),
        Frame::Cleared { limit, key } => put_one(out, CLEARED, |out| {
            put_pair(out, *limit);
            key.iter().for_each(|key| put_pair(out, *key));
        }),
        Frame::Beat { sent_ms } => put_one(out, BEAT, |out| out.extend(sent_ms.to_be_bytes())),
        Frame::Again => put_one(out, AGAIN, |_| ()),
    }
}

/// Appends counts, in as many frames as they need.
pub fn put_counts(out: &mut Vec<u8>, limit: LimitId, sent_ms: u64, counts: &[TokenCount]) {
    for counts in counts.chunks(ENTRIES) {
        put_one(out, COUNTS, |out| {
            put_pair(out, limit);
            out.extend(sent_ms.to_be_bytes());
            for TokenCount { key, tokens } in counts {
                put_pair(out, *key);
                out.extend(tokens.to_be_bytes());
            }
        });
    }
}

/// Appends debts, in as many frames as they need.
pub fn put_debts(out: &mut Vec<u8>, limit: LimitId, debts: &[KeyDebt]) {
    for debts in debts.chunks(ENTRIES) {
        put_one(out, DEBTS, |out| {
            put_pair(out, limit);
            for KeyDebt { key, owed } in debts {
                put_pair(out, *key);
                out.extend(u64::try_from(owed.as_nanos()).unwrap_or(u64::MAX).to_be_bytes());
            }
        });
    }
}

fn put_pair(out: &mut Vec<u8>, pair: [u64; 2]) {
    pair.iter().for_each(|number| out.extend(number.to_be_bytes()));
}

fn put_one(out: &mut Vec<u8>, kind: u8, content: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend([0, 0, 0, 0, kind]);
    content(out);
    let length = u32::try_from(out.len() - begin - 4).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(begin..begin + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames in `bytes`.
    fn frames(mut bytes: &[u8]) -> Vec<Frame> {
        let mut all = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk() {
            let (frame, rest) = rest.split_at(length(*head).unwrap());
            all.extend(decode(frame).unwrap());
            bytes = rest;
        }
        all
    }

    #[test]
    fn what_is_said_is_heard() {
        let limit = [1, u64::MAX];
        let said = [
            Frame::Hello { version: VERSION, process: [7; 16] },
            Frame::Counts {
                limit,
                sent_ms: 5,
                counts: vec![
                    TokenCount { key: [2, 3], tokens: -4 },
                    TokenCount { key: [5, 6], tokens: i32::MAX },
                ],
            },
            Frame::Debts { limit, debts: vec![KeyDebt { key: [8, 9], owed: Duration::from_nanos(77) }] },
            Frame::Cleared { limit, key: None },
            Frame::Cleared { limit, key: Some([4, 4]) },
            Frame::Beat { sent_ms: 6 },
            Frame::Again,
        ];
        let mut bytes = Vec::new();
        said.iter().for_each(|frame| put(&mut bytes, frame));
        assert_eq!(frames(&bytes), said);
    }

    #[test]
    fn a_beat_is_these_bytes() {
        let mut bytes = Vec::new();
        put(&mut bytes, &Frame::Beat { sent_ms: 258 });
        assert_eq!(bytes, [0, 0, 0, 9, 5, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn many_counts_are_several_frames_none_of_them_too_long() {
        let counts = vec![TokenCount { key: [1, 2], tokens: 3 }; 2 * ENTRIES + 1];
        let mut bytes = Vec::new();
        put_counts(&mut bytes, [0; 2], 0, &counts);
        put_debts(&mut bytes, [0; 2], &vec![KeyDebt { key: [1, 2], owed: Duration::MAX }; ENTRIES]);
        assert_eq!(frames(&bytes).len(), 4);
    }

    /// Threat D70.
    #[test]
    fn d70_whatever_arrives_is_a_frame_or_a_mistake_and_takes_no_more_memory_than_it_has() {
        for bytes in [[0; 4], [0, 1, 0, 1], [255; 4]] {
            assert!(length(bytes).is_err());
        }
        assert_eq!(decode(&[]), Err(Mistake::Length(0)));
        assert_eq!(decode(&[200, 1, 2]), Ok(None), "of a later version");
        assert_eq!(decode(&[BEAT, 1]), Err(Mistake::Form(BEAT)));
        let given = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
        let mut state: u64 = given.unwrap_or_else(|| u64::from(std::process::id()) | 1);
        println!("WEIR_SEED={state}");
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for _ in 0..100_000 {
            let kind = u8::try_from(draw() % 8).unwrap();
            let content = (0..draw() % 120).map(|_| draw().to_le_bytes()[0]);
            let frame: Vec<u8> = std::iter::once(kind).chain(content).collect();
            // What is understood says the same again; only the end of a greeting is passed over.
            if let Ok(Some(found)) = decode(&frame) {
                let mut again = Vec::new();
                put(&mut again, &found);
                assert!(again.len() <= frame.len() + 4, "{found:?}");
                let same = frames(&again);
                let is_empty = again.is_empty();
                assert!(is_empty || same == [found.clone()], "{found:?}");
            }
        }
    }
}
