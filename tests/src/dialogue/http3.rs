//! HTTP/3 frame by frame over [`Quic`], for what no proper client would send.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;

use super::http2::huffman_status;
use super::quic::wire::{Reader, put};
use super::quic::{Quic, frame as quic_frame};

/// Frame types (RFC 9114 §7.2).
#[allow(missing_docs, reason = "the names are the law's own")]
pub mod kind {
    pub const DATA: u64 = 0;
    pub const HEADERS: u64 = 1;
    pub const CANCEL_PUSH: u64 = 3;
    pub const SETTINGS: u64 = 4;
    pub const GOAWAY: u64 = 7;
    pub const MAX_PUSH_ID: u64 = 13;
}

/// Error codes (RFC 9114 §8.1, RFC 9204 §6).
#[allow(missing_docs, reason = "the names are the law's own")]
pub mod code {
    pub const CLOSED_CRITICAL_STREAM: u64 = 0x104;
    pub const FRAME_UNEXPECTED: u64 = 0x105;
    pub const EXCESSIVE_LOAD: u64 = 0x107;
    pub const SETTINGS_ERROR: u64 = 0x109;
    pub const MISSING_SETTINGS: u64 = 0x10a;
    pub const REQUEST_CANCELLED: u64 = 0x10c;
    pub const MESSAGE_ERROR: u64 = 0x10e;
    pub const DECOMPRESSION_FAILED: u64 = 0x200;
}

/// The client's control stream.
pub const CONTROL: u64 = 2;
/// The stream of the client's QPACK encoder.
pub const ENCODER: u64 = 6;
/// The stream of the client's QPACK decoder.
pub const DECODER: u64 = 10;

/// A frame's bytes.
pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, kind);
    put(&mut bytes, payload.len() as u64);
    bytes.extend(payload);
    bytes
}

/// A field section of literals that refer to no table (RFC 9204 §4.5.6).
pub fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    for (name, value) in fields {
        prefixed(&mut bytes, 0x20, 3, name.len());
        bytes.extend(name.as_bytes());
        prefixed(&mut bytes, 0, 7, value.len());
        bytes.extend(value.as_bytes());
    }
    bytes
}

/// Appends an integer behind the upper bits of its first byte (RFC 7541 §5.1).
pub fn prefixed(bytes: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        return bytes.push(first | value as u8);
    }
    bytes.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// An instruction that puts a field into the table (RFC 9204 §4.3.3).
pub fn insertion(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prefixed(&mut bytes, 0x40, 5, name.len());
    bytes.extend(name);
    prefixed(&mut bytes, 0, 7, value.len());
    bytes.extend(value);
    bytes
}

/// An instruction that sets the table's size (RFC 9204 §4.3.1).
pub fn capacity(bytes: usize) -> Vec<u8> {
    let mut instruction = Vec::new();
    prefixed(&mut instruction, 0x20, 5, bytes);
    instruction
}

/// `HEADERS` with these fields.
pub fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(kind::HEADERS, &section(fields))
}

/// The pseudo-headers of a request.
pub fn request<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
    [(":method", method), (":scheme", "https"), (":authority", "shop.example"), (":path", path)]
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response with this status and content.
    Answered(u16, Vec<u8>),
    /// `RESET_STREAM` with this code.
    Reset(u64),
    /// The connection was closed with this code.
    Closed(u64),
}

/// A client's connection in a test's hands.
pub struct Http3 {
    /// The QUIC connection.
    pub quic: Quic,
    /// Bytes sent on the control and QPACK streams.
    sent: [u64; 3],
    /// Whether its owner has finished with it.
    pub gives_up: bool,
}

impl Http3 {
    /// Connects, and opens the control stream and the two QPACK streams.
    pub fn connect(address: SocketAddr, name: &'static str, config: &Arc<ClientConfig>) -> Http3 {
        Http3::over(Quic::connect(address, name, config))
    }

    /// Opens the control stream and the two QPACK streams on a new connection.
    pub fn over(quic: Quic) -> Http3 {
        let mut http = Http3 { quic, sent: [0; 3], gives_up: false };
        http.steers(CONTROL, &[&[0][..], &frame(kind::SETTINGS, &[])].concat());
        http.steers(ENCODER, &[2]);
        http.steers(DECODER, &[3]);
        http
    }

    /// Sends bytes on the control stream or a QPACK stream.
    pub fn steers(&mut self, stream: u64, bytes: &[u8]) {
        let sent = &mut self.sent[(stream / 4) as usize];
        let frame = quic_frame::stream(stream, *sent, bytes, false);
        *sent += bytes.len() as u64;
        let _ = self.quic.tries_to_send(frame);
    }

    /// Ends the control stream or a QPACK stream.
    pub fn ends(&mut self, stream: u64) {
        let frame = quic_frame::stream(stream, self.sent[(stream / 4) as usize], b"", true);
        let _ = self.quic.tries_to_send(frame);
    }

    /// Sends all of a request's stream, in as many packets as it takes.
    pub fn requests(&mut self, stream: u64, bytes: &[u8]) {
        self.begins(stream, 0, bytes, true);
    }

    /// Sends a part of a request's stream.
    pub fn begins(&mut self, stream: u64, offset: u64, bytes: &[u8], is_last: bool) {
        let count = bytes.chunks(1100).count();
        if count == 0 {
            let _ = self.quic.tries_to_send(quic_frame::stream(stream, offset, b"", is_last));
        }
        for (index, piece) in bytes.chunks(1100).enumerate() {
            let offset = offset + 1100 * index as u64;
            let frame = quic_frame::stream(stream, offset, piece, is_last && index + 1 == count);
            let _ = self.quic.tries_to_send(frame);
        }
    }

    /// Waits until a request's stream or the connection is over.
    pub fn outcome_of(&mut self, stream: u64) -> Outcome {
        let got = self.quic.receives_stream(stream);
        match (got.reset, self.quic.closed()) {
            (Some(code), _) => Outcome::Reset(code),
            (None, Some(close)) if !got.is_whole() => Outcome::Closed(close.code),
            _ => {
                let (status, content) = response(&got.bytes);
                Outcome::Answered(status, content)
            }
        }
    }

    /// Sends a request without content and returns its outcome.
    pub fn asks(&mut self, stream: u64, path: &str) -> Outcome {
        self.requests(stream, &headers(&request("GET", path)));
        self.outcome_of(stream)
    }
}

/// The final status and the content in the bytes of a stream. The status is 0 if it is encoded in a way that
/// Weir does not use.
pub fn response(bytes: &[u8]) -> (u16, Vec<u8>) {
    let (mut status, mut content) = (0, Vec::new());
    let mut reader = Reader(bytes);
    while let (Some(kind), Some(count)) = (reader.number(), reader.number()) {
        let Some(payload) = reader.bytes(count as usize) else { break };
        match kind {
            kind::HEADERS => status = status_in(payload).filter(|new| *new >= 200).unwrap_or(status),
            kind::DATA => content.extend(payload),
            _ => {}
        }
    }
    (status, content)
}

/// The status at the front of a field section.
fn status_in(section: &[u8]) -> Option<u16> {
    const COMMON: [(u8, u16); 14] = [
        (24, 103),
        (25, 200),
        (26, 304),
        (27, 404),
        (28, 503),
        (63, 100),
        (64, 204),
        (65, 206),
        (66, 302),
        (67, 400),
        (68, 403),
        (69, 421),
        (70, 425),
        (71, 500),
    ];
    let known = |index: u8| COMMON.iter().find(|(known, _)| *known == index).map(|(_, status)| *status);
    match *section.get(2..)? {
        [0xff, more, ..] => known(63 + more),
        [indexed @ 0xc0..=0xfe, ..] => known(indexed & 0x3f),
        // A literal whose name is taken from the static table.
        [0x5f | 0x7f, _, ref value @ ..] => match value {
            [3, a, b, c, ..] => std::str::from_utf8(&[*a, *b, *c]).ok()?.parse().ok(),
            _ => huffman_status(value),
        },
        _ => None,
    }
}
