//! Checks names and passwords (RFC 7617) against hashes that are slow to compute, on threads of their own.
//!
//! Correct passwords are remembered for some time by a keyed hash, so that a page with a hundred images
//! computes one hash. The number of concurrent computations and the number of requests that wait for one are
//! bounded, and clients take turns. So a flood of wrong passwords blocks no worker, remembered users do not
//! notice it, and other users wait for only a few computations of anybody else.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use argon2::{Argon2, PasswordHash, PasswordVerifier as _};
use aws_lc_rs::hmac;
use tokio::sync::oneshot;
use weir_http::AddedField;
use weir_io::clock;
use weir_io::system;
use zeroize::Zeroizing;

use super::line::{Bounds, HeldPlace, Line};

/// Most passwords remembered at once. There can be more correct ones than users, because bcrypt ignores what
/// comes after the 72nd byte.
const REMEMBERED_MOST: usize = 10_000;
/// The users of a listener or a route, shared by all workers.
pub struct Passwords {
    config: weir_config::BasicAuth,
    /// The hash of each user, by name.
    hashes: HashMap<Box<str>, Arc<str>>,
    /// All hashes in the order of the file; an unknown name is checked against one of these.
    in_order: Box<[Arc<str>]>,
    challenge: Option<AddedField>,
    key: hmac::Key,
    /// When each remembered password expires, by keyed hash of name, password and hash.
    remembered: Mutex<HashMap<[u8; 32], Duration>>,
    line: Arc<Line>,
}

impl Passwords {
    /// Compiles the config; if one of `known` has the same config, it is reused with what it remembers.
    pub fn compile(config: &weir_config::BasicAuth, known: &[Arc<Passwords>]) -> Arc<Passwords> {
        if let Some(same) = known.iter().find(|known| known.config == *config) {
            return same.clone();
        }
        let accounts = config.accounts();
        let in_order: Box<[Arc<str>]> = accounts.iter().map(|account| account.hash.into()).collect();
        let names = accounts.iter().map(|account| Box::<str>::from(account.name));
        let hashes: HashMap<Box<str>, Arc<str>> = names.zip(in_order.iter().cloned()).collect();
        let mut secret = Zeroizing::new([0; 32]);
        // Without randomness no key is secret, so nobody may pass. The process could not use TLS then either,
        // and would have ended long before.
        let is_random = aws_lc_rs::rand::fill(&mut secret[..]).is_ok();
        let challenge = format!("Basic realm=\"{}\", charset=\"UTF-8\"", config.realm);
        Arc::new(Passwords {
            in_order,
            hashes: if is_random { hashes } else { HashMap::new() },
            challenge: AddedField::new(b"www-authenticate", challenge.as_bytes()).ok(),
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret[..]),
            remembered: Mutex::default(),
            line: Line::new(Bounds {
                places: config.checks as usize,
                waiting: config.waiting as usize,
                waiting_of_client: config.waiting_of_client() as usize,
            }),
            config: config.clone(),
        })
    }

    /// The field that tells backends the user's name.
    pub fn user_header(&self) -> Option<&str> {
        self.config.user_header.as_deref()
    }

    /// The settings in words.
    pub fn words(&self) -> String {
        let realm = &self.config.realm;
        let count = self.hashes.len();
        format!("a name and a password of {count} users are asked for, realm {realm:?}")
    }

    /// The hash for a name's password; for an unknown name the hash of another user, and `false`.
    ///
    /// If a file has hashes of different costs and all unknown names were checked against one and the same
    /// hash, the time it takes would reveal which names exist with another cost. So each unknown name gets
    /// one of the hashes, always the same, with each cost as frequent as in the file: no response time shows
    /// that a name exists.
    pub(super) fn hash_of(&self, user: &str) -> (Arc<str>, bool) {
        if let Some(hash) = self.hashes.get(user) {
            return (hash.clone(), true);
        }
        let tag = self.tag(user, b"", "");
        let drawn = tag.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let place = drawn.checked_rem(self.in_order.len() as u64).unwrap_or(0) as usize;
        (self.in_order.get(place).cloned().unwrap_or_else(|| "".into()), false)
    }

    /// The `www-authenticate` field that asks clients for a password.
    pub(super) fn challenge(&self) -> Option<&AddedField> {
        self.challenge.as_ref()
    }

    /// The places for computations, and the line of requests that wait for one.
    pub(super) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// The key by which a correct password is remembered: without the secret, the password can't be derived
    /// from it.
    pub(super) fn tag(&self, user: &str, password: &[u8], hash: &str) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [user.as_bytes(), password, hash.as_bytes()] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut tag = [0; 32];
        tag.copy_from_slice(&context.sign().as_ref()[..32]);
        tag
    }

    pub(super) fn remembers(&self, tag: &[u8; 32]) -> bool {
        let now = clock::now();
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        match remembered.get(tag) {
            Some(until) if *until > now => true,
            Some(_) => {
                remembered.remove(tag);
                false
            }
            None => false,
        }
    }

    pub(super) fn remember(&self, tag: [u8; 32]) {
        let now = clock::now();
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MOST {
            remembered.retain(|_, until| *until > now);
            if remembered.len() >= REMEMBERED_MOST {
                remembered.clear();
            }
        }
        remembered.insert(tag, now + self.config.remember);
    }
}

/// One computation. It keeps its place until its end, even if nobody waits for it any more.
pub(super) struct Check {
    pub place: HeldPlace,
    pub password: Zeroizing<Vec<u8>>,
    pub hash: Arc<str>,
}

impl Check {
    /// Computes on a thread of its own, and sends the result.
    pub(super) fn spawn(self) -> io::Result<oneshot::Receiver<bool>> {
        let (tell, told) = oneshot::channel();
        let thread = std::thread::Builder::new().name("password".to_owned());
        thread.spawn(move || {
            // Workers are pinned to CPUs, and threads that they spawn would be too.
            system::run_beside_workers();
            let Check { place, password, hash } = self;
            let is_good = is_hash_of(&hash, &password);
            drop(place);
            let _ = tell.send(is_good);
        })?;
        Ok(told)
    }
}

/// Compares in constant time.
fn is_hash_of(hash: &str, password: &[u8]) -> bool {
    if hash.starts_with("$argon2") {
        let parsed = PasswordHash::new(hash);
        // The hash itself states its costs.
        return parsed.is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok());
    }
    // bcrypt ignores what comes after the 72nd byte, as it did when the hash was made.
    bcrypt::verify(password, hash).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_has_costs_what_one_of_the_names_does_and_always_the_same() {
        let cheap = "$2y$04$7aIzu6Rjrs2LKtwzFt0Ij.bKywsrI1jOw6Mu/ySZUsHvDh9ISFtE2";
        let dear = cheap.replace("$04$", "$14$");
        let content = format!("ann:{cheap}\nbob:{dear}\n");
        let users = weir_config::PageFile { path: "users".to_owned(), content: content.into_bytes().into() };
        let config = weir_config::BasicAuth { users: Some(users), ..Default::default() };
        let passwords = Passwords::compile(&config, &[]);
        assert_eq!(passwords.hash_of("bob"), (dear.as_str().into(), true));
        let of = |number: u32| passwords.hash_of(&format!("nobody{number}"));
        let dear_ones = (0..1000).filter(|number| &*of(*number).0 == dear.as_str()).count();
        assert!((0..1000).all(|number| !of(number).1 && of(number) == of(number)));
        assert!((300..700).contains(&dear_ones), "{dear_ones} of 1000 cost as much as one of two does");
    }

    #[test]
    fn hashes_of_other_programs_are_read() {
        // `htpasswd -nbBC 4` of Apache, crypt(3) of glibc, and argon2-cffi.
        let hashes = [
            "$2y$04$7aIzu6Rjrs2LKtwzFt0Ij.bKywsrI1jOw6Mu/ySZUsHvDh9ISFtE2",
            "$argon2id$v=19$m=256,t=1,p=2$3WTn/jdZatJib6UZQKlk4w$cTR7V0+Dg+ojNTX66ZRQZRN3V524xU6EHiS0kQOWeoc",
            "$argon2i$v=19$m=64,t=2,p=1$JuFgRu1tu4gaNG4KpniBwA$ULYFjo0Wpy1PpIEJII7P3bm0D24HwNzy8tUk8YUtUKA",
        ];
        for hash in hashes {
            assert!(is_hash_of(hash, b"secret") && !is_hash_of(hash, b"secret2"), "{hash}");
        }
        assert!(is_hash_of("$2b$04$abcdefghijklmnopqrstuuPp7HPfoAs8I2dCQCQ/fW7zEJv8I8C8e", b"x"));
        assert!(!is_hash_of("", b"") && !is_hash_of("$argon2id$v=19$broken", b""));
    }
}
