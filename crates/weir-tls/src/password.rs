//! Passwords of MySQL accounts, and how to prove one without sending it.
//!
//! A password and values derived from it are wiped from memory when dropped. They have no `Debug`, so they
//! can't be printed to a log or a status.
//!
//! The fast path of `caching_sha2_password`: the client sends `SHA256(password) XOR
//! SHA256(SHA256(SHA256(password)) || nonce)`, MySQL manual, "Caching_sha2_password information". Whoever
//! knows the inner digest and sees a correct answer learns `SHA256(password)`. So each login needs a new
//! nonce, and nobody else may see the answer.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use weir_mysql::greeting::Nonce;
use zeroize::Zeroizing;

/// Longest password that is accepted, in bytes: what mysqld accepts encrypted with a 2,048-bit key (214 bytes
/// with OAEP and SHA-1) or over TLS (`MAX_PASSWORD_LENGTH` of `caching_sha2_password`).
pub const LONGEST_BYTES: usize = 256;

/// The password of an account.
#[derive(Clone)]
pub struct Password(Zeroizing<Box<[u8]>>);

impl Password {
    /// A password with these bytes; `None` when they are more than [`LONGEST_BYTES`].
    pub fn new(bytes: &[u8]) -> Option<Password> {
        (bytes.len() <= LONGEST_BYTES).then(|| Password(Zeroizing::new(bytes.into())))
    }

    /// The bytes of the password.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The password with a terminating NUL, as it is sent over a secure connection.
    pub fn ended(&self) -> Zeroizing<Vec<u8>> {
        let mut ended = Zeroizing::new(Vec::with_capacity(self.0.len() + 1));
        ended.extend_from_slice(&self.0);
        ended.push(0);
        ended
    }

    /// Whether it is empty: such an account answers every challenge with nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether both are equal, compared in constant time.
    pub fn is_same(&self, other: &Password) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }

    /// The answer to a challenge of `caching_sha2_password`; empty for an empty password.
    pub fn answer_sha2(&self, nonce: &Nonce) -> Zeroizing<Vec<u8>> {
        if self.is_empty() {
            return Zeroizing::default();
        }
        let once = sha256(&[&self.0]);
        let twice = sha256(&[&*once]);
        let mask = sha256(&[&*twice, nonce]);
        Zeroizing::new(once.iter().zip(&*mask).map(|(once, mask)| once ^ mask).collect())
    }

    /// The answer to a challenge of `mysql_native_password`:
    /// `SHA1(password) XOR SHA1(nonce || SHA1(SHA1(password)))`; empty for an empty password.
    pub fn answer_native(&self, nonce: &Nonce) -> Zeroizing<Vec<u8>> {
        if self.is_empty() {
            return Zeroizing::default();
        }
        let once = sha1(&[&self.0]);
        let twice = sha1(&[&*once]);
        let mask = sha1(&[nonce, &*twice]);
        Zeroizing::new(once.iter().zip(&*mask).map(|(once, mask)| once ^ mask).collect())
    }

    /// Whether `answer` is [`Password::answer_sha2`] for `nonce`, compared in constant time.
    pub fn is_shown_by(&self, answer: &[u8], nonce: &Nonce) -> bool {
        verify_slices_are_equal(answer, &self.answer_sha2(nonce)).is_ok()
    }

    /// The password with a terminating NUL, XORed with the repeated nonce: the input of RSA encryption.
    pub(crate) fn masked(&self, nonce: &Nonce) -> Zeroizing<Vec<u8>> {
        let ended = self.0.iter().chain(&[0]);
        Zeroizing::new(ended.zip(nonce.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect())
    }

    /// Reverses [`Password::masked`]; `None` when the result does not end with a NUL, or is too long.
    pub(crate) fn unmasked(masked: &[u8], nonce: &Nonce) -> Option<Password> {
        let bytes: Zeroizing<Vec<u8>> =
            Zeroizing::new(masked.iter().zip(nonce.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect());
        Password::new(bytes.strip_suffix(&[0])?)
    }

    /// A digest for keys of tables: equal only for equal passwords, and indistinguishable from random without
    /// the password.
    pub fn digest(&self) -> [u8; 32] {
        Password::digest_of(&self.0)
    }

    /// The same for any secret bytes.
    pub(crate) fn digest_of(bytes: &[u8]) -> [u8; 32] {
        *sha256(&[b"weir account 1", bytes])
    }
}

fn sha256(parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut digest = Zeroizing::new([0; 32]);
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

fn sha1(parts: &[&[u8]]) -> Zeroizing<[u8; 20]> {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    parts.iter().for_each(|part| context.update(part));
    let mut digest = Zeroizing::new([0; 20]);
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = *b"\x0a\x1b\x2c\x3d\x4e\x5f\x60\x71\x12\x23\x34\x45\x56\x67\x78\x09\x1a\x2b\x3c\x4d";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn answers_are_those_that_python_computes_by_the_formulas_of_the_manual() {
        let password = Password::new(b"sesame").unwrap();
        assert_eq!(
            hex(&password.answer_sha2(&NONCE)),
            "9810947cdbd580099aaad10b0f3d01b0d02aafa2076af886a3df6d9ad41ab951"
        );
        assert_eq!(hex(&password.answer_native(&NONCE)), "7e4aeaea1bf9d1fcf48593ab677e953684004cb8");
    }

    #[test]
    fn an_answer_shows_its_password_for_its_nonce_only() {
        let password = Password::new(b"sesame").unwrap();
        let answer = password.answer_sha2(&NONCE);
        let mut other = NONCE;
        other[19] ^= 1;
        assert!(password.is_shown_by(&answer, &NONCE));
        assert!(!password.is_shown_by(&answer, &other));
        assert!(!password.is_shown_by(&answer[..31], &NONCE));
        assert!(!password.is_shown_by(b"", &NONCE));
        assert!(!Password::new(b"sesamf").unwrap().is_shown_by(&answer, &NONCE));
    }

    #[test]
    fn only_nothing_shows_an_empty_password() {
        let empty = Password::new(b"").unwrap();
        assert!(empty.is_shown_by(b"", &NONCE));
        assert!(!empty.is_shown_by(&[0; 32], &NONCE));
        assert!(!Password::new(b"x").unwrap().is_shown_by(b"", &NONCE));
    }

    #[test]
    fn a_mask_comes_off_again_also_from_a_password_longer_than_the_nonce() {
        for length in [0, 1, 19, 20, 21, LONGEST_BYTES] {
            let password = Password::new(&vec![b'p'; length]).unwrap();
            let masked = password.masked(&NONCE);
            assert_eq!(masked.len(), length + 1);
            assert!(Password::unmasked(&masked, &NONCE).unwrap().is_same(&password));
        }
        assert!(Password::unmasked(b"", &NONCE).is_none());
        assert!(Password::unmasked(b"no NUL at the end", &NONCE).is_none());
        assert!(Password::new(&[b'p'; LONGEST_BYTES + 1]).is_none());
    }
}
