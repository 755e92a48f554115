//! The part of a WebSocket handshake that is Weir's own: HTTP/1.1 proves an upgrade with a key, HTTP/2 and
//! HTTP/3 do without (RFC 8441 §5), so between the two somebody has to make the key, or answer it.

use weir_http::websocket::{self, ACCEPT_BYTES, KEY_BYTES};
use weir_http::{KnownHeader, RequestHead, ResponseHead};

/// Who proves what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Client and backend speak the same; nothing of it is ours.
    Theirs,
    /// The client came by extended CONNECT: the backend has to answer this key of ours.
    Asked([u8; KEY_BYTES]),
    /// The backend was asked by extended CONNECT: the client waits for this answer to its key.
    Owed([u8; ACCEPT_BYTES]),
}

impl Handshake {
    /// For an upgrade to `protocol` on its way to a backend that is spoken to in HTTP/2, or is not.
    pub fn of(
        request: &RequestHead,
        received: &[u8],
        protocol: &[u8],
        over_h2: bool,
        mut draw: impl FnMut() -> u64,
    ) -> Handshake {
        if !protocol.eq_ignore_ascii_case(b"websocket") {
            return Handshake::Theirs;
        }
        match (request.is_extended_connect(), over_h2) {
            (true, false) => {
                let bits = (u128::from(draw()) << 64) | u128::from(draw());
                Handshake::Asked(websocket::key(bits.to_be_bytes()))
            }
            (false, true) => match request.value(KnownHeader::SecWebsocketKey, received) {
                Some(key) => Handshake::Owed(websocket::accept(key)),
                None => Handshake::Theirs,
            },
            _ => Handshake::Theirs,
        }
    }

    /// What the backend has to answer; empty when we ask nothing.
    pub fn key(&self) -> &[u8] {
        if let Handshake::Asked(key) = self { key } else { b"" }
    }

    /// What the client waits for; empty when we owe nothing.
    pub fn accept(&self) -> &[u8] {
        if let Handshake::Owed(accept) = self { accept } else { b"" }
    }

    /// Whether the backend's 101 proves what we asked it to.
    pub fn is_proven_by(&self, response: &ResponseHead, received: &[u8]) -> bool {
        match self {
            Handshake::Asked(key) => websocket::is_accepted(response, received, key),
            Handshake::Theirs | Handshake::Owed(_) => true,
        }
    }
}
