//! The secrets behind connection IDs, stateless resets and address tokens: one set for all workers, kept over
//! reloads and handed to the next process on an upgrade, so that what one has given out the others understand
//! (RFC 9000 §10.3.2; row C9).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::{hkdf, hmac, rand};
use quinn_proto::ValidationTokenConfig;

use crate::proofs::{self, Proofs};

/// Bytes of the secret from which all keys are derived.
const SECRET_BYTES: usize = 32;

/// Time between two stateless resets of a worker, at least: who draws them out of it learns and costs little
/// (RFC 9000 §21.11, row C9).
pub const RESET_INTERVAL: Duration = Duration::from_millis(20);

/// The keys of a process.
pub struct Keys {
    secret: [u8; SECRET_BYTES],
    /// Counts processes, modulo 256: tells the connections of this process from those of the one before.
    process: u8,
    steering: [u32; 4],
    tag: hmac::Key,
    proofs: Arc<Proofs>,
}

impl fmt::Debug for Keys {
    /// Shows no secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Keys {{ process: {} }}", self.process)
    }
}

impl Keys {
    /// Keys that nobody else has. Err when the kernel has no randomness to give.
    pub fn random() -> std::io::Result<Keys> {
        let mut secret = [0; SECRET_BYTES + 1];
        rand::fill(&mut secret).map_err(|_| std::io::Error::other("the kernel gave no random bytes"))?;
        let [process, secret @ ..] = secret;
        Ok(Keys::derive(secret, process))
    }

    fn derive(secret: [u8; SECRET_BYTES], process: u8) -> Keys {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let steering = hmac::sign(&key, b"weir quic steering");
        let mut words = steering.as_ref().chunks_exact(4).map(|word| {
            // Odd, so that multiplying by it loses nothing.
            u32::from_be_bytes([word[0], word[1], word[2], word[3]]) | 1
        });
        let steering = std::array::from_fn(|_| words.next().unwrap_or(1));
        let tag = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, b"weir quic tag").as_ref());
        Keys { secret, process, steering, tag, proofs: Arc::new(Proofs::new(SystemTime::now())) }
    }

    /// The same keys for the process that follows this one.
    pub fn of_successor(&self) -> Keys {
        Keys::derive(self.secret, self.process.wrapping_add(1))
    }

    /// The number of this process.
    pub fn process(&self) -> u8 {
        self.process
    }

    /// Keys of the mask in connection IDs; see [`crate::cid`].
    pub(crate) fn steering(&self) -> &[u32; 4] {
        &self.steering
    }

    /// Key of the tag that tells our connection IDs from others'.
    pub(crate) fn tag(&self) -> &hmac::Key {
        &self.tag
    }

    /// The key of stateless resets.
    pub fn reset(&self) -> Arc<dyn quinn_proto::crypto::HmacKey> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        Arc::new(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, b"weir quic reset").as_ref()))
    }

    /// The key of the tokens that prove an address.
    pub fn token(&self) -> Arc<dyn quinn_proto::crypto::HandshakeTokenKey> {
        Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"weir quic token").extract(&self.secret))
    }

    /// Settings by which clients prove their address when they come back.
    pub fn proofs(&self) -> ValidationTokenConfig {
        let mut config = ValidationTokenConfig::default();
        config.lifetime(proofs::LIFETIME).sent(proofs::TOKENS).log(self.proofs.clone());
        config
    }

    /// As text for the next process, without a line end. Secret: to be sent over a private channel only.
    pub fn to_text(&self) -> String {
        let mut text = format!("{} ", self.process);
        self.secret.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        text
    }

    /// Reads [`Self::to_text`]; `None` when it is something else.
    pub fn of_text(text: &str) -> Option<Keys> {
        let (process, digits) = text.trim_end().split_once(' ')?;
        if digits.len() != 2 * SECRET_BYTES || !digits.is_ascii() {
            return None;
        }
        let mut secret = [0; SECRET_BYTES];
        for (index, byte) in secret.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Keys::derive(secret, process.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_pass_to_the_next_process_as_text() {
        let keys = Keys::random().unwrap();
        let successor = Keys::of_text(&keys.of_successor().to_text()).unwrap();
        assert_eq!(successor.process(), keys.process().wrapping_add(1));
        assert_eq!(successor.steering(), keys.steering());
        let sign = |keys: &Keys| {
            let mut signature = [0; 32];
            keys.reset().sign(b"id", &mut signature);
            signature
        };
        assert_eq!(sign(&successor), sign(&keys));
        for text in ["", "1 ab", "x ", "300 00"] {
            assert!(Keys::of_text(text).is_none(), "{text:?}");
        }
    }
}
