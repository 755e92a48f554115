//! The part of a WebSocket handshake that Weir does itself. HTTP/1.1 proves an upgrade with a key; HTTP/2 and
//! HTTP/3 have no key (RFC 8441 §5). So between the two, Weir has to make the key, or answer it.

use weir_http::websocket::{self, ACCEPT_BYTES, KEY_BYTES};
use weir_http::{KnownHeader, RequestHead, ResponseHead};

/// Who has to prove the handshake to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Client and backend use the same form; Weir has nothing to do.
    Theirs,
    /// The client used extended CONNECT: the backend has to answer this key, which Weir made.
    Asked([u8; KEY_BYTES]),
    /// The backend was asked by extended CONNECT: the client waits for this answer to its key.
    Owed([u8; ACCEPT_BYTES]),
}

impl Handshake {
    /// For an upgrade to `protocol` that goes to a backend which is spoken to in HTTP/2, or is not.
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

    /// The key for the backend; empty if Weir makes none.
    pub fn key(&self) -> &[u8] {
        if let Handshake::Asked(key) = self { key } else { b"" }
    }

    /// The answer that the client waits for; empty if Weir owes none.
    pub fn accept(&self) -> &[u8] {
        if let Handshake::Owed(accept) = self { accept } else { b"" }
    }

    /// Whether the backend's 101 proves that it accepted Weir's key.
    pub fn is_proven_by(&self, response: &ResponseHead, received: &[u8]) -> bool {
        match self {
            Handshake::Asked(key) => websocket::is_accepted(response, received, key),
            Handshake::Theirs | Handshake::Owed(_) => true,
        }
    }
}
