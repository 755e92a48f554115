//! The keys of sticky cookies, which only Weir can read and write.
//!
//! The cookie is the backend's id, encrypted with AES key wrap with padding (RFC 5649), which for eight bytes
//! is one block. A backend has the same cookie on every worker, after a reload, an upgrade or a restart, and
//! on every node with the same secret, without any stored state. Without the secret a cookie reveals neither
//! which address it stands for nor whether a guess is right.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrapPadded as _};
use aws_lc_rs::{hmac, rand};

use crate::files::{self, LEAST_SECRET_BYTES, LoadError};

/// Separates this use of a secret from others.
const PURPOSE: &[u8] = b"weir sticky cookie 1";
/// Length of a cookie in bytes before it is written in hexadecimal.
const SEALED_BYTES: usize = 16;
/// Buffer space that wrapping needs.
const ROOM_BYTES: usize = 24;

/// Files that identify this machine without any configuration. The manual page of the first, machine-id(5),
/// says that it must not be disclosed, but should be used as a key.
const OF_MACHINE: [&str; 2] = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"];

/// The key of one pool's cookies.
#[derive(PartialEq, Eq)]
pub struct StickyKey {
    key: [u8; 32],
}

impl StickyKey {
    /// Derives the key from a secret.
    pub fn of(secret: &[u8]) -> StickyKey {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
        let mut key = [0; 32];
        key.copy_from_slice(tag.as_ref());
        StickyKey { key }
    }

    /// Derives the key from a file's content, without surrounding whitespace; or, if no file is named, from
    /// this machine's id, which all of its processes share.
    ///
    /// # Errors
    /// The file can't be read, or its content is too short.
    pub fn load(file: Option<&Path>) -> Result<StickyKey, LoadError> {
        let Some(file) = file else { return Ok(StickyKey::of(&of_machine())) };
        Ok(StickyKey::of(&files::secret(file)?))
    }

    /// The cookie for the backend with this id: 32 hexadecimal digits.
    pub fn seal(&self, id: u64) -> String {
        let mut room = [0; ROOM_BYTES];
        let sealed = AesKek::new(&AES_256, &self.key)
            .and_then(|key| key.wrap_with_padding(&id.to_be_bytes(), &mut room).map(|sealed| &*sealed));
        // Sealing can't fail for eight bytes; an empty cookie would name no backend.
        let digit = |digit: u8| char::from(b"0123456789abcdef"[usize::from(digit & 15)]);
        sealed.unwrap_or_default().iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
    }

    /// The id of the backend that a cookie names; `None` if it was not sealed with this key.
    pub fn open(&self, cookie: &[u8]) -> Option<u64> {
        let mut sealed = [0; SEALED_BYTES];
        let (pairs, rest) = cookie.as_chunks::<2>();
        if pairs.len() != sealed.len() || !rest.is_empty() {
            return None;
        }
        let digit = |digit: u8| char::from(digit).to_digit(16);
        for (byte, [high, low]) in sealed.iter_mut().zip(pairs) {
            *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
        }
        let mut room = [0; ROOM_BYTES];
        let id = AesKek::new(&AES_256, &self.key).ok()?.unwrap_with_padding(&sealed, &mut room).ok()?;
        Some(u64::from_be_bytes(<[u8; 8]>::try_from(&*id).ok()?))
    }
}

impl fmt::Debug for StickyKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("StickyKey")
    }
}

/// The machine's id. If there is none, a random secret that lasts as long as the process.
fn of_machine() -> Vec<u8> {
    static DRAWN: OnceLock<[u8; 32]> = OnceLock::new();
    let read = |file: &&str| files::read(Path::new(file)).ok();
    let is_known = |content: &Vec<u8>| content.trim_ascii().len() >= LEAST_SECRET_BYTES;
    let drawn = || {
        let mut secret = [0; 32];
        // Without randomness neither TLS nor anything else can be served.
        let _ = rand::fill(&mut secret);
        secret
    };
    let found = OF_MACHINE.iter().filter_map(read).find(is_known);
    found.map_or_else(|| DRAWN.get_or_init(drawn).to_vec(), |content| content.trim_ascii().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_read_by_whoever_has_the_secret_and_by_nobody_else() {
        let (one, same, other) = (
            StickyKey::of(b"a secret of ours"),
            StickyKey::of(b"a secret of ours"),
            StickyKey::of(b"another one"),
        );
        for id in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let cookie = one.seal(id);
            assert_eq!((cookie.len(), same.seal(id)), (32, cookie.clone()));
            assert_eq!(same.open(cookie.as_bytes()), Some(id));
            assert_eq!(same.open(cookie.to_uppercase().as_bytes()), Some(id));
            assert_eq!(other.open(cookie.as_bytes()), None);
            assert!(!cookie.contains(&format!("{id:016x}")), "{cookie} shows {id:x}");
        }
    }

    #[test]
    fn what_is_no_cookie_of_ours_names_nobody() {
        let key = StickyKey::of(b"a secret of ours");
        let cookie = key.seal(7);
        for position in 0..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[position] = if changed[position] == b'0' { b'1' } else { b'0' };
            assert_eq!(key.open(&changed), None, "{position}");
        }
        let long = cookie.clone() + "00";
        for text in ["", "7", "0000000000000007", &cookie[..30], &long, &"zz".repeat(16), &"é".repeat(16)] {
            assert_eq!(key.open(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn without_a_file_the_key_is_that_of_the_machine() {
        let cookie = StickyKey::load(None).unwrap().seal(7);
        assert_eq!(StickyKey::load(None).unwrap().open(cookie.as_bytes()), Some(7));
    }
}
