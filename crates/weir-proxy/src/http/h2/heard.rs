//! What was received from a backend on one connection: whether its settings have come, and whether anything
//! has come since a request was sent.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use weir_io::clock;

use super::frames::{FrameHeader, HEADER_BYTES};

/// See the module.
#[derive(Default)]
pub struct Heard {
    /// Bytes received so far.
    bytes: Cell<u64>,
    /// The beginning of the first frame, which has its settings (RFC 9113 §3.4).
    first: RefCell<Vec<u8>>,
    /// Where the first frame ends, once that is known.
    settings_end: Cell<Option<u64>>,
    /// Since when nothing has come although a request was sent.
    silent_since: Cell<Option<Duration>>,
    /// Requests that wait for their answer.
    unanswered: Cell<u32>,
    pings: Cell<usize>,
}

impl Heard {
    /// Notes received bytes.
    #[inline]
    pub fn note(&self, bytes: &[u8]) {
        self.silent_since.set((self.unanswered.get() > 0).then(clock::now));
        self.bytes.set(self.bytes.get() + bytes.len() as u64);
        if self.settings_end.get().is_none() {
            self.read_first(bytes);
        }
    }

    #[cold]
    fn read_first(&self, bytes: &[u8]) {
        let mut first = self.first.borrow_mut();
        let missing = HEADER_BYTES - first.len();
        first.extend(bytes.iter().take(missing));
        if let Some(header) = first.first_chunk::<HEADER_BYTES>() {
            let end = HEADER_BYTES + FrameHeader::of(header).payload_bytes;
            self.settings_end.set(Some(end as u64));
        }
    }

    /// Whether the backend's settings have come.
    pub fn has_settings(&self) -> bool {
        self.settings_end.get().is_some_and(|end| self.bytes.get() >= end)
    }

    /// Notes that a request was sent.
    pub fn note_asked(&self) {
        self.unanswered.set(self.unanswered.get() + 1);
        self.silent_since.set(self.silent_since.get().or_else(|| Some(clock::now())));
    }

    /// Notes that a request is no longer waited for, answered or not. Whether anything is received still
    /// matters to the next one.
    pub fn note_over(&self) {
        self.unanswered.set(self.unanswered.get() - 1);
    }

    /// Notes that a request was answered: the backend may be pinged again.
    pub fn note_answered(&self) {
        self.pings.set(0);
    }

    /// Since when nothing has come although a request was sent; `None` while none was.
    pub fn silent_since(&self) -> Option<Duration> {
        self.silent_since.get()
    }

    /// Bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// How often it was pinged since it last answered a request. Some backends end the connection at the
    /// third ping (gRPC's `ENHANCE_YOUR_CALM`, `too_many_pings`).
    pub fn pings(&self) -> usize {
        self.pings.get()
    }

    /// Notes a ping.
    pub fn note_ping(&self) {
        self.pings.set(self.pings.get() + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_there_with_their_last_byte_however_they_are_cut() {
        let sent = [&[0, 0, 6, 4, 0, 0, 0, 0, 0][..], &[0, 3, 0, 0, 0, 8], &[0, 0, 0, 4, 1]].concat();
        for most in 1..20 {
            let heard = Heard::default();
            let mut passed = 0;
            for piece in sent.chunks(most) {
                heard.note(piece);
                passed += piece.len();
                assert_eq!(heard.has_settings(), passed >= 15, "{passed} bytes in pieces of {most}");
            }
        }
    }
}
