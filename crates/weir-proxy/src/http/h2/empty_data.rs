//! Removes meaningless frames from what a peer sends: `DATA` without content and without an end (RFC 9113
//! §6.1).
//!
//! The `h2` crate tolerates a hundred of them in the life of a connection, and then ends the connection with
//! all that it carries. Some peers send one with each message.

use super::frames::{FrameHeader, HEADER_BYTES, PREFACE, kind};

/// How many are passed on in the life of a connection, so that the `h2` crate notices one on a stream that
/// allows none.
const PASSED: u32 = 50;

/// The position in the frames of one connection.
pub struct EmptyDataFilter {
    /// Bytes of the current frame's payload, or of the preface, that are still to come.
    payload_bytes: usize,
    /// The received part of a frame's header: it is not known yet whether the frame is removed.
    held: Vec<u8>,
    passed: u32,
}

impl EmptyDataFilter {
    /// For a connection to a backend.
    pub fn of_backend() -> EmptyDataFilter {
        EmptyDataFilter { payload_bytes: 0, held: Vec::new(), passed: 0 }
    }

    /// For a client's connection, which begins with its preface.
    pub fn of_client() -> EmptyDataFilter {
        EmptyDataFilter { payload_bytes: PREFACE.len(), ..EmptyDataFilter::of_backend() }
    }

    /// Bytes received already that belong before what comes next.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Removes meaningless frames from `received`, which begins with the held bytes, and holds an incomplete
    /// frame header at its end. Gives how many bytes are left, at its front.
    pub fn strip(&mut self, received: &mut [u8]) -> usize {
        self.held.clear();
        // Bytes up to `kept` are to be passed on; bytes from `at` on are not checked yet.
        let (mut kept, mut at) = (0, 0);
        while at < received.len() {
            let payload = self.payload_bytes.min(received.len() - at);
            self.payload_bytes -= payload;
            let Some(header) = received[at + payload..].first_chunk::<HEADER_BYTES>() else {
                self.held.extend_from_slice(&received[at + payload..]);
                received.copy_within(at..at + payload, kept);
                return kept + payload;
            };
            let header = FrameHeader::of(header);
            self.payload_bytes = header.payload_bytes;
            let passes = if self.says_nothing(header) { payload } else { payload + HEADER_BYTES };
            if kept != at {
                received.copy_within(at..at + passes, kept);
            }
            kept += passes;
            at += payload + HEADER_BYTES;
        }
        kept
    }

    fn says_nothing(&mut self, header: FrameHeader) -> bool {
        // Flags may mean that the frame ends the stream, or that it is padded.
        if header.kind != kind::DATA || header.flags != 0 || header.payload_bytes > 0 || header.stream == 0 {
            return false;
        }
        let passes = self.passed < PASSED;
        self.passed += u32::from(passes);
        !passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        bytes.extend_from_slice(payload);
        bytes
    }

    /// The bytes of `sent` that pass, if they come in pieces of `most` bytes.
    fn passed(mut filter: EmptyDataFilter, sent: &[u8], most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in sent.chunks(most) {
            let mut received = [filter.held(), piece].concat();
            let kept = filter.strip(&mut received);
            all.extend_from_slice(&received[..kept]);
        }
        assert!(filter.held().len() < HEADER_BYTES);
        all.extend_from_slice(filter.held());
        all
    }

    #[test]
    fn what_says_nothing_is_taken_out_however_it_is_cut() {
        let nothing = frame(0, 0, 1, b"");
        let meant = [
            frame(4, 0, 0, &[0; 6]),
            frame(0, 0, 1, b"content that looks like \0\0\0\0\0\0\0\0\x01"),
            frame(0, 1, 1, b""),
            frame(0, 8, 3, b"\0"),
            frame(0, 0, 0, b""),
            frame(6, 0, 0, &[0; 8]),
        ];
        let first = nothing.repeat(PASSED as usize);
        let mut sent = first.clone();
        for each in &meant {
            sent.extend_from_slice(&nothing.repeat(3));
            sent.extend_from_slice(each);
        }
        sent.extend_from_slice(&nothing[..4]);
        let expected = [&first[..], &meant.concat(), &nothing[..4]].concat();
        for most in (1..40).chain([500, 10_000]) {
            assert_eq!(passed(EmptyDataFilter::of_backend(), &sent, most), expected, "in pieces of {most}");
        }
    }

    #[test]
    fn the_preface_of_a_client_passes() {
        let sent = [PREFACE, &frame(4, 0, 0, b"")[..], &frame(0, 0, 1, b"").repeat(60)].concat();
        for most in [1, 9, 24, 25, 1000] {
            let passed = passed(EmptyDataFilter::of_client(), &sent, most);
            assert_eq!(
                passed,
                sent[..PREFACE.len() + HEADER_BYTES * (1 + PASSED as usize)],
                "in pieces of {most}"
            );
        }
    }
}
