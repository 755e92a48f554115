//! Requests that are malformed in ways that the `h2` crate does not report: it drops what is wrong with them
//! and hands out the rest.
//!
//! They are found in the bytes before the crate gets them, and refused when it hands them out.

use weir_http::Violation;
use weir_http::hpack::FieldBlocks;

use super::frames::{FrameHeader, Part, flag, kind};

/// Most requests that were found but not handed out yet. Well-behaved clients have none.
const MOST_FOUND: usize = 100;

/// Looks for malformed requests in what one client sends.
#[derive(Default)]
pub struct MalformedRequests {
    blocks: FieldBlocks,
    /// The header of the current frame, if it is part of a field block.
    frame: Option<FrameHeader>,
    /// Bytes of its payload before the field block, and bytes of the field block, that are still to come.
    lead_left: usize,
    block_left: usize,
    payload_left: usize,
    /// The highest stream that the client has opened.
    last_stream: u32,
    /// Whether the current field block has trailers.
    is_trailers: bool,
    found: Vec<(u32, Violation)>,
}

impl MalformedRequests {
    /// Takes the next received part. False once there are more findings than can be handed out.
    pub fn see(&mut self, part: Part<'_>) -> bool {
        match part {
            Part::Header(header) => self.begin_frame(header),
            Part::Payload(payload) if self.frame.is_some() => self.read(payload),
            Part::Payload(_) => {}
        }
        self.found.len() <= MOST_FOUND
    }

    /// What is wrong with the request on `stream`, if anything was found; given only once.
    pub fn take(&mut self, stream: u32) -> Option<Violation> {
        let at = self.found.iter().position(|(found, _)| *found == stream)?;
        Some(self.found.swap_remove(at).1)
    }

    fn begin_frame(&mut self, header: FrameHeader) {
        self.frame = matches!(header.kind, kind::HEADERS | kind::CONTINUATION).then_some(header);
        if self.frame.is_none() {
            return;
        }
        self.lead_left = 0;
        if header.kind == kind::HEADERS {
            self.is_trailers = header.stream <= self.last_stream;
            self.last_stream = self.last_stream.max(header.stream);
            let padding_length = usize::from(header.has(flag::PADDED));
            let priority = if header.has(flag::PRIORITY) { 5 } else { 0 };
            self.lead_left = padding_length + priority;
        }
        self.payload_left = header.payload_bytes;
        self.block_left = header.payload_bytes.saturating_sub(self.lead_left);
        if self.payload_left == 0 {
            self.end_frame();
        }
    }

    fn read(&mut self, payload: &[u8]) {
        let Some(frame) = self.frame else { return };
        let is_first = self.payload_left == frame.payload_bytes;
        if is_first && frame.kind == kind::HEADERS && frame.has(flag::PADDED) {
            self.block_left = self.block_left.saturating_sub(usize::from(payload[0]));
        }
        let lead = self.lead_left.min(payload.len());
        let block = self.block_left.min(payload.len() - lead);
        self.blocks.read(&payload[lead..lead + block]);
        self.lead_left -= lead;
        self.block_left -= block;
        self.payload_left -= payload.len();
        if self.payload_left == 0 {
            self.end_frame();
        }
    }

    fn end_frame(&mut self) {
        let Some(frame) = self.frame.take().filter(|frame| frame.has(flag::END_HEADERS)) else { return };
        let findings = self.blocks.end();
        // RFC 9113 §8.1 and §8.3.1.
        let violation = match self.is_trailers {
            true if findings.has_pseudo_header => Violation::PseudoFieldLate,
            false if findings.has_fragment => Violation::TargetSyntax,
            _ => return,
        };
        self.found.push((frame.stream, violation));
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::{Frames, PREFACE};
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, stream]);
        bytes.extend(payload);
        bytes
    }

    /// What is found in these frames, if they come in pieces of `most` bytes.
    fn found(sent: &[u8], most: usize) -> Vec<(u32, Violation)> {
        let (mut frames, mut malformed) = (Frames::default(), MalformedRequests::default());
        for mut piece in [PREFACE, sent].concat().chunks(most) {
            while let Some(part) = frames.next(&mut piece) {
                assert!(malformed.see(part));
            }
        }
        malformed.found
    }

    const END: u8 = flag::END_HEADERS;
    /// `:path` with the name from the static table.
    const FRAGMENT: &[u8] = b"\x04\x04/a#b";
    const GOOD: &[u8] = b"\x04\x04/a_b";

    #[test]
    fn requests_are_told_from_trailers_and_blocks_from_what_stands_around_them() {
        let padded = [&[3][..], FRAGMENT, &[0xff; 3]].concat();
        let weighed = [&[0, 0, 0, 0, 9][..], FRAGMENT].concat();
        let both = [&[2][..], &[0, 0, 0, 0, 9], FRAGMENT, &[0x84; 2]].concat();
        let sent = [
            frame(kind::HEADERS, END, 1, FRAGMENT),
            frame(kind::HEADERS, END, 3, GOOD),
            frame(kind::DATA, 0, 3, b"\x84/a#b"),
            frame(kind::HEADERS, END | flag::END_STREAM, 3, b"\x84"),
            frame(kind::HEADERS, END | flag::PADDED, 5, &padded),
            frame(kind::HEADERS, END | flag::PRIORITY, 7, &weighed),
            frame(kind::HEADERS, END | flag::PADDED | flag::PRIORITY, 9, &both),
            frame(kind::HEADERS, 0, 11, &FRAGMENT[..3]),
            frame(kind::CONTINUATION, 0, 11, &FRAGMENT[3..]),
            frame(kind::CONTINUATION, END, 11, b""),
            frame(kind::HEADERS, END, 13, b""),
            frame(kind::HEADERS, END, 13, b"\x0f\x2b\x01v"),
        ]
        .concat();
        let malformed = Violation::TargetSyntax;
        let expected = [1, 3, 5, 7, 9, 11].map(|stream| match stream {
            3 => (stream, Violation::PseudoFieldLate),
            _ => (stream, malformed),
        });
        for most in (1..40).chain([1000]) {
            assert_eq!(found(&sent, most), expected, "in pieces of {most}");
        }
    }

    #[test]
    fn frames_whose_lengths_cannot_be_harm_nobody() {
        let sent = [
            frame(kind::HEADERS, END | flag::PADDED, 1, b""),
            frame(kind::HEADERS, END | flag::PADDED, 3, b"\xff"),
            frame(kind::HEADERS, END | flag::PADDED | flag::PRIORITY, 5, b"\x09\x00"),
            frame(kind::CONTINUATION, END, 7, b"\xff\xff\xff\xff\xff\xff\xff"),
        ]
        .concat();
        for most in 1..40 {
            assert_eq!(found(&sent, most), []);
        }
    }

    #[test]
    fn no_more_are_kept_than_can_be_handed_out() {
        let (mut frames, mut malformed) = (Frames::default(), MalformedRequests::default());
        let mut preface = PREFACE;
        assert_eq!(frames.next(&mut preface), None);
        let kept = (1..).step_by(2).take_while(|stream| {
            let mut bytes = &frame(kind::HEADERS, END, *stream, FRAGMENT)[..];
            std::iter::from_fn(|| frames.next(&mut bytes)).all(|part| malformed.see(part))
        });
        assert_eq!(kept.count(), MOST_FOUND);
        assert_eq!(malformed.take(1), Some(Violation::TargetSyntax));
        assert_eq!(malformed.take(1), None);
    }
}
