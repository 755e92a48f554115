//! What became of a packet that the program was run on.

use weir_l4::layout::Verdict;

use crate::frames::ETHERNET;

/// What the program returns.
const NOT_OURS: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;

/// A packet that was run, and what became of it.
#[derive(Debug)]
#[must_use]
pub struct Outcome {
    pub sent: Vec<u8>,
    pub action: i32,
    pub frame: Vec<u8>,
    /// Listener, verdict, packets and bytes of what was counted.
    pub counted: Vec<(u32, Verdict, u64, u64)>,
}

impl Outcome {
    /// Counted once, as this, of listener 0.
    #[track_caller]
    fn counted_as(&self, verdict: Verdict) {
        self.counted_of(0, verdict);
    }

    /// Counted once, as this.
    #[track_caller]
    pub fn counted_of(&self, listener: u32, verdict: Verdict) {
        let expected = (listener, verdict, 1, self.sent.len() as u64);
        assert_eq!(self.counted, [expected], "what was counted; {self}");
    }

    /// Counted as so many packets, under one verdict.
    #[track_caller]
    pub fn counted_packets(&self, packets: u64) {
        let found: Vec<u64> = self.counted.iter().map(|(_, _, packets, _)| *packets).collect();
        assert_eq!(found, [packets], "{self}");
    }

    /// Left to the next program and the host: as it came, and not counted.
    #[track_caller]
    pub fn untouched(self) {
        assert_eq!(self.action, NOT_OURS, "{self}");
        assert_eq!(self.frame, self.sent, "it was changed");
        assert_eq!(self.counted, [], "it was counted");
    }

    /// Left to the host as it came, whose socket has its connection, and counted so.
    #[track_caller]
    pub fn left_to_host(self) {
        assert_eq!(self.action, NOT_OURS, "{self}");
        assert_eq!(self.frame, self.sent, "it was changed");
        self.counted_as(Verdict::ToHost);
    }

    /// Dropped for this reason.
    #[track_caller]
    pub fn dropped(self, verdict: Verdict) {
        assert_eq!(self.action, SHOT, "{self}");
        self.counted_as(verdict);
    }

    /// Sent on as the packet of this frame, MAC addresses aside.
    #[track_caller]
    pub fn forwarded(self, verdict: Verdict, expected: &[u8]) {
        self.forwarded_of(0, verdict, expected);
    }

    /// As [`Outcome::forwarded`], of another listener.
    #[track_caller]
    pub fn forwarded_of(self, listener: u32, verdict: Verdict, expected: &[u8]) {
        assert_eq!(self.action, REDIRECT, "{self}");
        let (found, expected) = (&self.frame[ETHERNET..], &expected[ETHERNET..]);
        assert_eq!(hex(found), hex(expected), "the packet (found, expected)");
        self.counted_of(listener, verdict);
    }

    /// Answered: what was sent back.
    #[track_caller]
    pub fn answered(self, verdict: Verdict) -> Vec<u8> {
        assert_eq!(self.action, REDIRECT, "{self}");
        self.counted_as(verdict);
        self.frame
    }

    /// Left alone or dropped, never sent anywhere.
    #[track_caller]
    pub fn not_forwarded(self) {
        match self.action {
            NOT_OURS => self.untouched(),
            SHOT => {
                let is_drop = |verdict: Verdict| verdict >= Verdict::DropBadHeader;
                let is_once = matches!(self.counted.as_slice(), [(_, verdict, 1, _)] if is_drop(*verdict));
                assert!(is_once, "{self}");
            }
            _ => panic!("{self}"),
        }
    }

    pub fn was_sent(&self) -> bool {
        self.action == REDIRECT
    }

    /// Addresses of the frame: whither and whence.
    pub fn macs(&self) -> [[u8; 6]; 2] {
        [self.frame[..6].try_into().unwrap(), self.frame[6..12].try_into().unwrap()]
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let action = match self.action {
            NOT_OURS => "left alone".to_owned(),
            SHOT => "dropped".to_owned(),
            REDIRECT => "sent on".to_owned(),
            other => format!("action {other}"),
        };
        write!(
            formatter,
            "{action}, counted {:?}; came as\n{}\nis\n{}",
            self.counted,
            hex(&self.sent),
            hex(&self.frame)
        )
    }
}

/// Four bytes a word, so that a difference is found by eye; the Ethernet header by itself where there is one.
pub fn hex(bytes: &[u8]) -> String {
    let words = bytes[..bytes.len().min(200)]
        .chunks(4)
        .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    words.collect::<Vec<_>>().join(" ")
}
