//! The secrets for connection IDs, stateless resets and address tokens. All workers share one set, which is
//! kept across reloads and handed to the next process on an upgrade, so that each understands what the others
//! have issued (RFC 9000 §10.3.2; row C9).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::{hkdf, hmac, rand};
use quinn_proto::ValidationTokenConfig;

use crate::proofs::{self, Proofs};

/// Length of the secret from which all keys are derived.
const SECRET_BYTES: usize = 32;

/// Least time between two stateless resets of a worker, so that provoking them yields little information and
/// costs little (RFC 9000 §21.11, row C9).
pub const RESET_INTERVAL: Duration = Duration::from_millis(20);

/// The keys of a process.
pub struct Keys {
    secret: [u8; SECRET_BYTES],
    /// Number of the process, modulo 256, which distinguishes its connections from its predecessor's.
    process: u8,
    steering: [u32; 4],
    tag: hmac::Key,
    proofs: Arc<Proofs>,
}

impl fmt::Debug for Keys {
    /// Does not print secrets.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Keys {{ process: {} }}", self.process)
    }
}

impl Keys {
    /// New random keys. `Err` when the kernel has no randomness.
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
            // Odd, so that multiplication by it is invertible.
            u32::from_be_bytes([word[0], word[1], word[2], word[3]]) | 1
        });
        let steering = std::array::from_fn(|_| words.next().unwrap_or(1));
        let tag = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, b"weir quic tag").as_ref());
        Keys { secret, process, steering, tag, proofs: Arc::new(Proofs::new(SystemTime::now())) }
    }

    /// The same keys for the next process.
    pub fn of_successor(&self) -> Keys {
        Keys::derive(self.secret, self.process.wrapping_add(1))
    }

    /// The number of this process.
    pub fn process(&self) -> u8 {
        self.process
    }

    /// Keys for the mask in connection IDs; see [`crate::cid`].
    pub(crate) fn steering(&self) -> &[u32; 4] {
        &self.steering
    }

    /// Key for the tag that authenticates our connection IDs.
    pub(crate) fn tag(&self) -> &hmac::Key {
        &self.tag
    }

    /// The key for stateless resets.
    pub fn reset(&self) -> Arc<dyn quinn_proto::crypto::HmacKey> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        Arc::new(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, b"weir quic reset").as_ref()))
    }

    /// The key for the tokens that prove an address.
    pub fn token(&self) -> Arc<dyn quinn_proto::crypto::HandshakeTokenKey> {
        Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"weir quic token").extract(&self.secret))
    }

    /// Settings for the tokens by which returning clients prove their address.
    pub fn proofs(&self) -> ValidationTokenConfig {
        let mut config = ValidationTokenConfig::default();
        config.lifetime(proofs::LIFETIME).sent(proofs::TOKENS).log(self.proofs.clone());
        config
    }

    /// Encodes the keys as text for the next process, without a line end. Secret: send it only over a private
    /// channel.
    pub fn to_text(&self) -> String {
        let mut text = format!("{} ", self.process);
        self.secret.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        text
    }

    /// Decodes [`Self::to_text`]; `None` for anything else.
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
