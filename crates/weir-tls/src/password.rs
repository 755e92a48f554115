//! Passwords of MySQL accounts, and how knowing one is shown without saying it.
//!
//! A password and what is made of it is wiped from memory when it is dropped, and has no `Debug`: it is in no
//! log and no status because it cannot be printed.
//!
//! `caching_sha2_password`, the short way: the client sends
//! `SHA256(password) XOR SHA256(SHA256(SHA256(password)) || nonce)`, MySQL manual, "Caching_sha2_password
//! information". Whoever knows the inner digest and sees a good answer learns `SHA256(password)`, so that a
//! nonce must be drawn anew for each login, and an answer is for nobody else to see.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use weir_mysql::greeting::Nonce;
use zeroize::Zeroizing;

/// Longest password that is taken, in bytes: what mysqld takes of one that comes encrypted with a key of
/// 2,048 bits (214 bytes with OAEP and SHA-1) or over TLS (`MAX_PASSWORD_LENGTH` of
/// `caching_sha2_password`).
pub const LONGEST_BYTES: usize = 256;

/// The password of an account.
#[derive(Clone)]
pub struct Password(Zeroizing<Box<[u8]>>);

impl Password {
    /// Of these bytes; `None` when they are more than [`LONGEST_BYTES`].
    pub fn new(bytes: &[u8]) -> Option<Password> {
        (bytes.len() <= LONGEST_BYTES).then(|| Password(Zeroizing::new(bytes.into())))
    }

    /// As it is.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// With the NUL that ends it, as it is said over a connection that nobody listens to.
    pub fn ended(&self) -> Zeroizing<Vec<u8>> {
        let mut ended = Zeroizing::new(Vec::with_capacity(self.0.len() + 1));
        ended.extend_from_slice(&self.0);
        ended.push(0);
        ended
    }

    /// Whether there is none: such an account answers every challenge with nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether both are the same, in a time that tells nothing of where they differ.
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

    /// Whether `answer` is [`Password::answer_sha2`] to `nonce`, in a time that tells nothing of where it
    /// differs.
    pub fn is_shown_by(&self, answer: &[u8], nonce: &Nonce) -> bool {
        verify_slices_are_equal(answer, &self.answer_sha2(nonce)).is_ok()
    }

    /// With the NUL that ends it, each byte XOR the nonce, which is repeated: what is encrypted with an RSA
    /// key.
    pub(crate) fn masked(&self, nonce: &Nonce) -> Zeroizing<Vec<u8>> {
        let ended = self.0.iter().chain(&[0]);
        Zeroizing::new(ended.zip(nonce.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect())
    }

    /// Takes off what [`Password::masked`] put on; `None` when it does not end with a NUL, or is too long.
    pub(crate) fn unmasked(masked: &[u8], nonce: &Nonce) -> Option<Password> {
        let bytes: Zeroizing<Vec<u8>> =
            Zeroizing::new(masked.iter().zip(nonce.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect());
        Password::new(bytes.strip_suffix(&[0])?)
    }

    /// A digest that two passwords share only if they are the same, for keys of tables: without the password
    /// it is as good as random.
    pub fn digest(&self) -> [u8; 32] {
        Password::digest_of(&self.0)
    }

    /// The same of any bytes that are a secret.
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
