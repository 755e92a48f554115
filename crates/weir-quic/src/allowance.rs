//! How much a server lets us send on all streams of a connection together (RFC 9000 §4.1).
//!
//! Many servers allow more only once somebody has read what came, so that one of their handlers which reads
//! nothing can keep all other requests waiting (threat B27): in HTTP/3 heads count too. `quinn-proto` does
//! not tell how much is allowed, so this reads it from what the server sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ClientConfig, TransportConfig, crypto};

use crate::crypto::Followed;
use crate::frames::{Rest, frame_length, leading_padding};

/// If less than this part of the largest allowance so far is left, what else is sent may have to wait.
const NARROW_PART: u64 = 4;
/// The transport parameter that has the first allowance (RFC 9000 §18.2).
const INITIAL_MAX_DATA: u64 = 0x04;
/// The frame that has the next ones (RFC 9000 §19.9).
const MAX_DATA: u64 = 0x10;

/// The settings of one outgoing connection.
pub struct OwnSettings {
    pub(crate) config: ClientConfig,
    pub(crate) allowance: Arc<Allowance>,
}

impl OwnSettings {
    /// Settings with this cryptography and transport.
    pub fn new(crypto: Arc<dyn crypto::ClientConfig>, transport: TransportConfig) -> OwnSettings {
        let allowance = Arc::new(Allowance::default());
        let mut config = ClientConfig::new(Arc::new(Followed::new(crypto, &allowance)));
        config.transport_config(Arc::new(transport));
        OwnSettings { config, allowance }
    }
}

/// See the module; in bytes since the connection began.
#[derive(Default)]
pub(crate) struct Allowance {
    /// How much may be sent.
    most: AtomicU64,
    /// How much was sent.
    sent: AtomicU64,
    /// The most that ever could be sent at once.
    widest: AtomicU64,
}

impl Allowance {
    /// Notes what the server's transport parameters allow.
    pub fn note_parameters(&self, parameters: &TransportParameters) {
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        if let Some(most) = parameter(&bytes, INITIAL_MAX_DATA) {
            self.allow(most);
        }
    }

    /// Notes what the frames of a decrypted packet allow.
    pub fn note_received(&self, payload: &[u8]) {
        let (_, mut rest) = leading_padding(payload);
        while let Some(length) = frame_length(rest) {
            let mut frame = Rest(rest);
            if frame.number() == Some(MAX_DATA)
                && let Some(most) = frame.number()
            {
                self.allow(most);
            }
            (_, rest) = leading_padding(&rest[length..]);
        }
    }

    /// Notes bytes that were sent, or are about to be.
    pub fn note_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    fn allow(&self, most: u64) {
        if self.most.fetch_max(most, Ordering::Relaxed) < most {
            self.widest.fetch_max(self.left(), Ordering::Relaxed);
        }
    }

    fn left(&self) -> u64 {
        self.most.load(Ordering::Relaxed).saturating_sub(self.sent.load(Ordering::Relaxed))
    }

    /// Whether so little is left that what else is sent may have to wait until the server has read what was
    /// sent before.
    pub fn is_narrow(&self) -> bool {
        self.left() < self.widest.load(Ordering::Relaxed) / NARROW_PART
    }
}

/// The number that is the value of a transport parameter (RFC 9000 §18).
fn parameter(bytes: &[u8], wanted: u64) -> Option<u64> {
    let mut rest = Rest(bytes);
    loop {
        let id = rest.number()?;
        let before = rest.0;
        rest.counted()?;
        if id == wanted {
            let mut value = Rest(before);
            value.number()?;
            return value.number();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_server_says_less_what_was_sent() {
        let allowance = Allowance::default();
        assert!(!allowance.is_narrow(), "nothing is known");
        let parameters = b"\x01\x02\x40\x64\x04\x04\x80\x00\x10\x00\x05\x01\x07";
        allowance.allow(parameter(parameters, INITIAL_MAX_DATA).expect("it is there"));
        assert_eq!(allowance.left(), 0x1000);
        allowance.note_sent(0xc00);
        assert!(!allowance.is_narrow());
        allowance.note_sent(1);
        assert!(allowance.is_narrow());
        // Behind an acknowledgement, padding and the content of a stream that looks like the frame.
        let more = b"\0\0\x02\x10\x00\x00\x03\0\x0a\x04\x03\x10\x7f\xff\x10\x60\x00\0\x01";
        allowance.note_received(more);
        assert_eq!(allowance.left(), 0x2000 - 0xc01);
        assert!(!allowance.is_narrow());
        // An older one that was overtaken.
        allowance.note_received(b"\x10\x50\x00");
        assert_eq!(allowance.left(), 0x2000 - 0xc01);
    }

    #[test]
    fn parameters_that_are_cut_or_missing_allow_nothing() {
        assert_eq!(parameter(b"\x01\x02\x40\x64", 4), None);
        assert_eq!(parameter(b"\x04\x04\x80\x00\x10", 4), None);
        assert_eq!(parameter(b"\x04\x00", 4), None);
    }
}
