//! What was received on a connection and its streams.

use std::collections::BTreeMap;

/// `CONNECTION_CLOSE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// Its error code.
    pub code: u64,
    /// Whether the code is HTTP/3's and not QUIC's.
    pub is_application: bool,
    /// Its reason phrase.
    pub reason: String,
}

/// Error codes of QUIC (RFC 9000 §20.1).
#[allow(missing_docs, reason = "the names are the law's own")]
pub mod code {
    pub const FLOW_CONTROL_ERROR: u64 = 3;
    pub const STREAM_LIMIT_ERROR: u64 = 4;
    pub const CONNECTION_ID_LIMIT_ERROR: u64 = 9;
    pub const PROTOCOL_VIOLATION: u64 = 10;
    pub const CRYPTO_BUFFER_EXCEEDED: u64 = 13;
    /// Not a code of QUIC: the server no longer knows the connection, and its close was lost.
    pub const STATELESS_RESET: u64 = u64::MAX;
}

/// What was received of one stream, in order.
#[derive(Clone, Debug, Default)]
pub struct Incoming {
    /// Its bytes from the first on, as far as there is no gap.
    pub bytes: Vec<u8>,
    /// Bytes after a gap, by offset.
    later: BTreeMap<u64, Vec<u8>>,
    size: Option<u64>,
    /// The code of `RESET_STREAM`.
    pub reset: Option<u64>,
    /// The code of `STOP_SENDING`.
    pub stopped: Option<u64>,
}

impl Close {
    /// Whether it was for this reason, as far as can be seen.
    pub fn is_for(&self, code: u64, is_application: bool) -> bool {
        (self.code, self.is_application) == (code, is_application) || self.code == code::STATELESS_RESET
    }
}

impl Incoming {
    /// Takes a piece.
    pub fn take(&mut self, offset: u64, data: &[u8], is_last: bool) {
        if is_last {
            self.size = Some(offset + data.len() as u64);
        }
        self.later.insert(offset, data.to_vec());
        while let Some((&offset, _)) = self.later.first_key_value() {
            let Some(known) = (self.bytes.len() as u64).checked_sub(offset) else { return };
            let data = self.later.remove(&offset).expect("just found");
            if (known as usize) < data.len() {
                self.bytes.extend(&data[known as usize..]);
            }
        }
    }

    /// Whether all of it was received.
    pub fn is_whole(&self) -> bool {
        self.size == Some(self.bytes.len() as u64)
    }

    /// Whether nothing more will come.
    pub fn is_over(&self) -> bool {
        self.is_whole() || self.reset.is_some()
    }
}

/// Counts of what the other side sent besides streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Datagrams, and their bytes.
    pub datagrams: u64,
    /// Bytes of all datagrams.
    pub bytes: u64,
    /// `NEW_CONNECTION_ID`.
    pub new_connection_ids: u64,
    /// `RETIRE_CONNECTION_ID`.
    pub retired_connection_ids: u64,
    /// `PATH_RESPONSE`.
    pub path_responses: u64,
    /// The highest limit on the client's bidirectional streams.
    pub max_streams: u64,
}
