//! How much content a backend lets us send on one connection (RFC 9113 §5.2).
//!
//! All streams of the connection share this window. Many backends open it again only when a handler has read
//! what came, so one handler that reads nothing can keep the content of all other requests waiting (threat
//! B27).

use std::cell::{Cell, RefCell};

use super::frames::{Frames, Part, kind};
use super::small_frames::SmallFrames;

/// The window of a new connection, in bytes (RFC 9113 §6.9.2).
const FIRST_BYTES: i64 = 65_535;
/// If less than this part of the largest window so far is open, further content may have to wait.
const NARROW_PART: i64 = 4;

/// See the module. It follows the frames in both directions, because the `h2` crate does not tell.
pub struct SendWindow {
    /// Bytes of content that may be sent now.
    open: Cell<i64>,
    /// The largest that it was.
    largest: Cell<i64>,
    sent: RefCell<Frames>,
    received: RefCell<Received>,
    small_frames: SmallFrames,
}

/// The position in what a backend sends.
struct Received {
    frames: Frames,
    /// The part of an update of a window that was received: its stream (0 is the connection), its number so
    /// far, and how many bytes that is.
    update: Option<(u32, u32, u8)>,
}

impl Default for SendWindow {
    fn default() -> SendWindow {
        SendWindow {
            open: Cell::new(FIRST_BYTES),
            largest: Cell::new(FIRST_BYTES),
            sent: RefCell::default(),
            received: RefCell::new(Received { frames: Frames::of_server(), update: None }),
            small_frames: SmallFrames::default(),
        }
    }
}

impl SendWindow {
    /// Notes bytes that were sent.
    pub fn note_sent(&self, mut bytes: &[u8]) {
        let frames = &mut *self.sent.borrow_mut();
        while let Some(part) = frames.next(&mut bytes) {
            if let Part::Header(header) = part
                && header.kind == kind::DATA
            {
                self.open.set(self.open.get() - header.payload_bytes as i64);
            }
        }
    }

    /// Notes bytes that were received.
    pub fn note_received(&self, mut bytes: &[u8]) {
        let Received { frames, update } = &mut *self.received.borrow_mut();
        while let Some(part) = frames.next(&mut bytes) {
            match part {
                Part::Header(header) => {
                    *update = (header.kind == kind::WINDOW_UPDATE).then_some((header.stream, 0, 0));
                }
                Part::Payload(payload) => {
                    for byte in payload.iter().take(4) {
                        let Some((stream, number, count)) = update else { break };
                        (*number, *count) = (*number << 8 | u32::from(*byte), *count + 1);
                        if *count == 4 {
                            // The highest bit is reserved.
                            match (*stream, *number & 0x7fff_ffff) {
                                (0, bytes) => self.widen(bytes),
                                (stream, bytes) => self.small_frames.note_read(stream, bytes),
                            }
                            *update = None;
                        }
                    }
                }
            }
        }
    }

    /// The small frames that were sent.
    pub fn small_frames(&self) -> &SmallFrames {
        &self.small_frames
    }

    /// The largest window that there was, in bytes.
    pub fn largest(&self) -> u64 {
        self.largest.get().unsigned_abs()
    }

    fn widen(&self, bytes: u32) {
        self.open.set(self.open.get() + i64::from(bytes));
        self.largest.set(self.largest.get().max(self.open.get()));
    }

    /// Whether so little of it is open that further content may have to wait until the backend has read what
    /// was sent for other requests.
    pub fn is_narrow(&self) -> bool {
        self.open.get() < self.largest.get() / NARROW_PART
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::PREFACE;
    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, 0, 0, 0, 0, stream]);
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn it_is_what_updates_add_and_content_takes_however_frames_are_cut() {
        let content = frame(kind::DATA, 1, &[0; 10_000]);
        let sent =
            [PREFACE, &frame(4, 0, b""), &frame(kind::HEADERS, 1, &[0; 300]), &content, &content].concat();
        // The reserved bit does not count, nor do windows of streams.
        let received = [
            frame(4, 0, &[0; 6]),
            frame(kind::WINDOW_UPDATE, 1, &[0, 1, 0, 0]),
            frame(kind::WINDOW_UPDATE, 0, &[0x80, 0, 0x03, 0xe8]),
            frame(kind::DATA, 1, &[0, 0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 1, 0, 0]),
            frame(kind::WINDOW_UPDATE, 0, &[0, 0, 0, 1]),
        ];
        for most in (1..40).chain([100_000]) {
            let window = SendWindow::default();
            sent.chunks(most).for_each(|piece| window.note_sent(piece));
            assert_eq!(window.open.get(), 45_535, "in pieces of {most}");
            received.concat().chunks(most).for_each(|piece| window.note_received(piece));
            assert_eq!(window.open.get(), 46_536, "in pieces of {most}");
            assert_eq!(window.largest.get(), 65_535, "in pieces of {most}");
        }
    }

    #[test]
    fn it_is_narrow_while_less_than_a_quarter_is_open() {
        let window = SendWindow::default();
        window.note_sent(PREFACE);
        window.note_sent(&frame(kind::DATA, 1, &[0; 49_000]));
        assert!(!window.is_narrow());
        window.note_sent(&frame(kind::DATA, 3, &[0; 1000]));
        assert!(window.is_narrow());
        window.note_received(&frame(kind::WINDOW_UPDATE, 0, &[0, 0x10, 0, 0]));
        assert!(!window.is_narrow());
        window.note_sent(&frame(kind::DATA, 5, &[0; 900_000]));
        assert!(window.is_narrow(), "of the larger one");
    }
}
