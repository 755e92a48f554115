//! HTTP/2 frame by frame, for what no proper client or server would send. Written apart from the product's on
//! purpose.

use super::message::Broken;
use super::wire::Wire;

/// What a client sends first (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types (RFC 9113 §6).
#[allow(missing_docs, reason = "the names are the law's own")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// `END_STREAM`; in `SETTINGS` and `PING` the same bit is `ACK`.
pub const END_STREAM: u8 = 1;
/// `END_HEADERS`.
pub const END_HEADERS: u8 = 4;

/// Error codes (RFC 9113 §7).
#[allow(missing_docs, reason = "the names are the law's own")]
pub mod code {
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    pub const STREAM_CLOSED: u32 = 5;
    pub const FRAME_SIZE_ERROR: u32 = 6;
    pub const REFUSED_STREAM: u32 = 7;
    pub const CANCEL: u32 = 8;
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// One of [`kind`].
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream; 0 is the connection.
    pub stream: u32,
    /// What follows its header.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The number at the end of the payload: the error code of `RST_STREAM`, and of a `GOAWAY` without debug
    /// data.
    fn number_at(&self, at: usize) -> Option<u32> {
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }
}

/// The bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).expect("short").to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A setting as the payload of `SETTINGS` holds it.
pub fn setting(identifier: u16, value: u32) -> Vec<u8> {
    [&identifier.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// A field block of these fields: literals that enter no table, not Huffman coded (RFC 7541 §6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    fields.flat_map(|(name, value)| literal(0, name, value)).collect()
}

/// One literal field. `prefix` 0x40 puts it into the dynamic table, 0 does not.
pub fn literal(prefix: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![prefix];
    for text in [name, value] {
        let mut rest = text.len();
        if rest < 127 {
            bytes.push(rest as u8);
        } else {
            bytes.push(127);
            rest -= 127;
            while rest >= 128 {
                bytes.push(rest as u8 | 128);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
        bytes.extend(text);
    }
    bytes
}

/// `HEADERS` with a whole field block.
pub fn headers(stream: u32, fields: &[(&str, &str)], is_last: bool) -> Vec<u8> {
    frame(kind::HEADERS, END_HEADERS | u8::from(is_last), stream, &block(fields))
}

/// A request without content.
pub fn get(stream: u32, path: &str) -> Vec<u8> {
    headers(stream, &request("GET", path), true)
}

/// The pseudo-headers of a request.
pub fn request<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
    [(":method", method), (":scheme", "http"), (":authority", "a.test"), (":path", path)]
}

/// `RST_STREAM`.
pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// `WINDOW_UPDATE`.
pub fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

/// How a stream, or the connection under it, ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response with this status and content.
    Answered(u16, Vec<u8>),
    /// `RST_STREAM` with this code; the status if a head came before it.
    Reset(u32, Option<u16>),
    /// `GOAWAY` with this code, then the end of the connection.
    GoneAway(u32),
    /// The end of the connection.
    Closed,
}

/// One end of an HTTP/2 connection in a test's hands.
#[derive(Debug)]
pub struct Http2 {
    /// The bytes under it.
    pub wire: Wire,
}

impl Http2 {
    /// A client that has sent its preface and these settings.
    pub fn client(wire: Wire, settings: &[u8]) -> Http2 {
        Http2::client_with(wire, settings, b"")
    }

    /// A client that has sent these frames together with its preface and settings.
    pub fn client_with(wire: Wire, settings: &[u8], frames: &[u8]) -> Http2 {
        let mut wire = wire;
        wire.sends([PREFACE, &frame(kind::SETTINGS, 0, 0, settings), frames].concat());
        Http2 { wire }
    }

    /// A server that has received the preface and sent its settings.
    pub fn server(wire: Wire, settings: &[u8]) -> Http2 {
        let mut wire = wire;
        wire.receives_exactly(PREFACE);
        wire.sends(frame(kind::SETTINGS, 0, 0, settings));
        Http2 { wire }
    }

    /// Sends these bytes.
    pub fn sends(&mut self, bytes: impl AsRef<[u8]>) {
        self.wire.sends(bytes);
    }

    /// The next frame of any kind, or how the connection ended. `SETTINGS` and `PING` are acknowledged.
    pub fn receives_frame(&mut self) -> Result<Frame, Broken> {
        let found = self.takes_frame()?;
        if matches!(found.kind, kind::SETTINGS | kind::PING) && found.flags & 1 == 0 {
            let echo: &[u8] = if found.kind == kind::PING { &found.payload } else { b"" };
            // The other side may have closed already; what it sent before is still to be read.
            let _ = self.wire.tries_to_send(frame(found.kind, 1, 0, echo));
        }
        Ok(found)
    }

    /// As [`Http2::receives_frame`], without acknowledging anything.
    pub fn takes_frame(&mut self) -> Result<Frame, Broken> {
        let length = |bytes: &[u8]| {
            let [high, middle, low] = bytes.get(..3)?.try_into().ok()?;
            let payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            (bytes.len() >= 9 + payload).then_some(9 + payload)
        };
        let count = self.wire.wait(length)?;
        let bytes = self.wire.take(count);
        let stream = u32::from_be_bytes(bytes[5..9].try_into().expect("four bytes")) & 0x7fff_ffff;
        Ok(Frame { kind: bytes[3], flags: bytes[4], stream, payload: bytes[9..].to_vec() })
    }

    /// Receives until a frame of this type comes on a stream (0: the connection).
    pub fn receives(&mut self, kind: u8, stream: u32) -> Frame {
        loop {
            match self.receives_frame() {
                Ok(found) if found.kind == kind && found.stream == stream => return found,
                Ok(_) => {}
                Err(broken) => panic!("expected a frame of type {kind} on stream {stream}, but {broken}"),
            }
        }
    }

    /// The next request that a server receives: its stream.
    pub fn receives_request(&mut self) -> u32 {
        loop {
            match self.receives_frame() {
                Ok(found) if found.kind == kind::HEADERS => return found.stream,
                Ok(_) => {}
                Err(broken) => panic!("expected a request, but {broken}"),
            }
        }
    }

    /// Receives until the stream or the connection is over.
    pub fn outcome_of(&mut self, stream: u32) -> Outcome {
        let mut status = None;
        let mut content = Vec::new();
        loop {
            let found = match self.receives_frame() {
                Ok(found) => found,
                Err(Broken::Ended | Broken::Reset) => return Outcome::Closed,
                Err(broken) => panic!("stream {stream} did not end: {broken}; status {status:?}"),
            };
            match found.kind {
                kind::GOAWAY if found.number_at(4) != Some(0) => {
                    return Outcome::GoneAway(found.number_at(4).unwrap_or(0));
                }
                _ if found.stream != stream => continue,
                kind::RST_STREAM => return Outcome::Reset(found.number_at(0).unwrap_or(0), status),
                kind::HEADERS => status = status_in(&found.payload).filter(|new| *new >= 200).or(status),
                kind::DATA => content.extend(&found.payload),
                _ => {}
            }
            if matches!(found.kind, kind::HEADERS | kind::DATA) && found.flags & END_STREAM != 0 {
                return Outcome::Answered(status.unwrap_or(0), content);
            }
        }
    }

    /// Sends a request without content and returns its outcome.
    pub fn asks(&mut self, stream: u32, path: &str) -> Outcome {
        self.sends(get(stream, path));
        self.outcome_of(stream)
    }

    /// Receives to the end of the connection: the code of its `GOAWAY`, and the codes of the streams that
    /// were reset.
    pub fn receives_the_end(&mut self) -> (Option<u32>, Vec<u32>) {
        let (mut goaway, mut resets) = (None, Vec::new());
        loop {
            match self.receives_frame() {
                Ok(found) if found.kind == kind::GOAWAY => goaway = found.number_at(4),
                Ok(found) if found.kind == kind::RST_STREAM => resets.extend(found.number_at(0)),
                Ok(_) => {}
                Err(Broken::Ended | Broken::Reset) => return (goaway, resets),
                Err(broken) => panic!("the connection did not end: {broken}; {goaway:?} {resets:?}"),
            }
        }
    }
}

/// The status at the front of a field block; `None` when the encoder took it from its dynamic table, of which
/// this knows nothing.
fn status_in(block: &[u8]) -> Option<u16> {
    const COMMON: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    // An update of the table's size may come first (RFC 7541 §6.3).
    let mut block = block;
    while block.first().is_some_and(|byte| byte & 0xe0 == 0x20) {
        let long = block[0] & 0x1f == 0x1f;
        let rest = block[1..].iter().take_while(|byte| **byte & 0x80 != 0).count();
        block = &block[if long { rest + 2 } else { 1 }..];
    }
    match *block {
        [indexed @ 0x88..=0x8e, ..] => Some(COMMON[usize::from(indexed - 0x88)]),
        [0x48 | 0x08 | 0x18, 3, a, b, c, ..] => std::str::from_utf8(&[a, b, c]).ok()?.parse().ok(),
        [0x48 | 0x08 | 0x18, ref value @ ..] => huffman_status(value),
        _ => None,
    }
}

/// A status in Huffman codes, behind its length (RFC 7541 §5.2). Of the digits, 0 to 2 have five bits and 3
/// to 9 six (appendix B).
pub(super) fn huffman_status(value: &[u8]) -> Option<u16> {
    let [length @ (0x82 | 0x83), a, b, ..] = *value else { return None };
    let third = if length & 0x7f == 3 { *value.get(3)? } else { 0xff };
    let bits = u32::from(a) << 16 | u32::from(b) << 8 | u32::from(third);
    let mut left = 24;
    let mut status = 0;
    for _ in 0..3 {
        let five = bits >> (left - 5) & 0x1f;
        let digit = if five < 3 {
            left -= 5;
            five
        } else {
            left -= 6;
            (bits >> left & 0x3f).checked_sub(0x16)?
        };
        status = status * 10 + digit;
    }
    u16::try_from(status).ok()
}
