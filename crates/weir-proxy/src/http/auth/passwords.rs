//! Names and passwords (RFC 7617): held against hashes that take long to compute, on threads of their own.
//!
//! Passwords that were right are remembered for some time by a keyed hash, so that a page with a hundred
//! images computes one. How many are computed at once, and how many wait for it, is bounded: a flood of wrong
//! ones takes no worker, and those who are remembered do not notice it.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use argon2::{Argon2, PasswordHash, PasswordVerifier as _};
use aws_lc_rs::hmac;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use weir_config::{Alphabet, decode_base64};
use weir_http::{AddedField, KnownHeader};
use weir_io::clock;
use weir_io::stream::Sight;
use weir_io::system;
use zeroize::Zeroizing;

use crate::http::exchange::Exchange;
use crate::http::failure::{Denied, Failure};
use crate::http::session::Session;

/// Passwords remembered at once: bcrypt takes any text behind the 72nd byte, so that there are more right
/// ones than users.
const REMEMBERED_MOST: usize = 10_000;
/// Longest wait for a place among those that are computed, and for the computation.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest `authorization` that is looked at, bytes.
const CREDENTIALS_BYTES: usize = 4096;

/// The users of a listener or a route, for all workers.
pub struct Passwords {
    config: weir_config::BasicAuth,
    /// By name.
    hashes: HashMap<Box<str>, Arc<str>>,
    /// For names that nobody has: so that the answer takes as long.
    nobody: Arc<str>,
    challenge: Option<AddedField>,
    key: hmac::Key,
    /// Until when, by keyed hash of name, password and hash.
    remembered: Mutex<HashMap<[u8; 32], Duration>>,
    places: Arc<Semaphore>,
    waiting: AtomicU32,
}

impl Passwords {
    /// Compiles; what `known` one remembers goes on where nothing has changed.
    pub fn compile(config: &weir_config::BasicAuth, known: &[Arc<Passwords>]) -> Arc<Passwords> {
        if let Some(same) = known.iter().find(|known| known.config == *config) {
            return same.clone();
        }
        let accounts = config.accounts();
        let hashes: HashMap<Box<str>, Arc<str>> =
            accounts.iter().map(|account| (account.name.into(), account.hash.into())).collect();
        let mut secret = Zeroizing::new([0; 32]);
        // Without randomness nobody can be remembered by a key that others don't know: the process could make
        // no TLS either, and has ended long before.
        let is_random = aws_lc_rs::rand::fill(&mut secret[..]).is_ok();
        let challenge = format!("Basic realm=\"{}\", charset=\"UTF-8\"", config.realm);
        Arc::new(Passwords {
            nobody: accounts.first().map_or_else(|| "".into(), |account| account.hash.into()),
            hashes: if is_random { hashes } else { HashMap::new() },
            challenge: AddedField::new(b"www-authenticate", challenge.as_bytes()).ok(),
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret[..]),
            remembered: Mutex::default(),
            places: Arc::new(Semaphore::new(config.checks as usize)),
            waiting: AtomicU32::new(0),
            config: config.clone(),
        })
    }

    /// The field that backends are told the name by.
    pub fn user_header(&self) -> Option<&str> {
        self.config.user_header.as_deref()
    }

    /// In words.
    pub fn words(&self) -> String {
        let realm = &self.config.realm;
        let count = self.hashes.len();
        format!("a name and a password of {count} users are asked for, realm {realm:?}")
    }

    /// Asks for the exchange. `Ok` lets it pass; who it is is in `exchange.user` then.
    ///
    /// # Errors
    /// It may not, or too many are waiting.
    pub(super) async fn ask(
        self: &Arc<Self>,
        session: &mut Session,
        exchange: &mut Exchange,
    ) -> Result<(), Failure> {
        let Some(shown) = shown(session, exchange) else { return Err(self.denied()) };
        let (user, password) = &*shown;
        let hash = self.hashes.get(user.as_str()).unwrap_or(&self.nobody).clone();
        let is_known = self.hashes.contains_key(user.as_str());
        let tag = self.tag(user, password, &hash);
        if !is_known || !self.remembers(&tag) {
            let is_good = self.compute(session, &tag, password.clone(), hash).await?;
            if !is_known || !is_good {
                return Err(self.denied());
            }
            self.remember(tag);
        }
        exchange.user.name.extend_from_slice(user.as_bytes());
        if let Some(name) = self.user_header() {
            super::put_line(&mut exchange.user.to_backend, name, user.as_bytes());
        }
        Ok(())
    }

    fn denied(&self) -> Failure {
        let fields = self.challenge.iter().cloned().collect();
        Failure::AuthDenied(Box::new(Denied { status: 401, fields }))
    }

    /// What is remembered of a password: nothing that it can be told from without the key.
    fn tag(&self, user: &str, password: &[u8], hash: &str) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [user.as_bytes(), password, hash.as_bytes()] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut tag = [0; 32];
        tag.copy_from_slice(&context.sign().as_ref()[..32]);
        tag
    }

    fn remembers(&self, tag: &[u8; 32]) -> bool {
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

    fn remember(&self, tag: [u8; 32]) {
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

    /// Whether the password is the one of the hash: computed on a thread, once there is a place.
    async fn compute(
        self: &Arc<Self>,
        session: &mut Session,
        tag: &[u8; 32],
        password: Zeroizing<Vec<u8>>,
        hash: Arc<str>,
    ) -> Result<bool, Failure> {
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let _waiting = Waiting::begin(self).ok_or(Failure::AuthUnavailable)?;
                let place = self.places.clone().acquire_owned();
                while_present(session, place).await?.map_err(|_| Failure::AuthUnavailable)?
            }
        };
        // Browsers ask for several things at once: who was before it may have had the same.
        if self.remembers(tag) {
            return Ok(true);
        }
        let (tell, told) = oneshot::channel();
        let check = Check { place, password, hash };
        let thread = std::thread::Builder::new().name("password".to_owned());
        let begun = thread.spawn(move || {
            // Workers are pinned, and what they spawn would be too.
            system::run_beside_workers();
            let _ = tell.send(check.run());
        });
        begun.map_err(|_| Failure::AuthUnavailable)?;
        while_present(session, told).await?.map_err(|_| Failure::AuthUnavailable)
    }
}

/// Waits for `other`, unless the client leaves or it takes too long.
async fn while_present<T>(session: &mut Session, other: impl Future<Output = T>) -> Result<T, Failure> {
    let Session { requester, stream, .. } = session;
    let mut other = pin!(other);
    requester.wait(clock::now(), PATIENCE);
    let mut watched = true;
    poll_fn(|context| {
        if let Poll::Ready(done) = other.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        if watched {
            watched = requester.look_at(stream, context)? == Sight::Quiet;
        }
        match requester.is_late() {
            true if requester.is_drained() => Poll::Ready(Err(Failure::Drained)),
            true => Poll::Ready(Err(Failure::AuthUnavailable)),
            false => Poll::Pending,
        }
    })
    .await
}

/// Counts among those that wait, until dropped.
struct Waiting<'p>(&'p Passwords);

impl Waiting<'_> {
    fn begin(passwords: &Passwords) -> Option<Waiting<'_>> {
        let most = passwords.config.waiting;
        let more = |count: u32| (count < most).then(|| count + 1);
        let begun = passwords.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        begun.is_ok().then(|| Waiting(passwords))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One computation, which holds its place to its end, also where nobody waits for it any more.
struct Check {
    place: OwnedSemaphorePermit,
    password: Zeroizing<Vec<u8>>,
    hash: Arc<str>,
}

impl Check {
    fn run(self) -> bool {
        let Check { place, password, hash } = self;
        let is_good = is_hash_of(&hash, &password);
        drop(place);
        is_good
    }
}

/// Compares in constant time.
fn is_hash_of(hash: &str, password: &[u8]) -> bool {
    if hash.starts_with("$argon2") {
        let parsed = PasswordHash::new(hash);
        // The costs are those that the hash says.
        return parsed.is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok());
    }
    // What stands behind the 72nd byte counts for nothing, as for whoever made the hash.
    bcrypt::verify(password, hash).unwrap_or(false)
}

/// Name and password as the client shows them; `None` where it shows none that could be good.
fn shown(session: &Session, exchange: &Exchange) -> Option<Box<(String, Zeroizing<Vec<u8>>)>> {
    let mut lines = exchange.request.values(KnownHeader::Authorization, session.requester.received());
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    parsed(line).map(Box::new)
}

/// `Basic` and base64 of `NAME:PASSWORD` (RFC 7617 section 2), in UTF-8 and without control characters.
fn parsed(line: &[u8]) -> Option<(String, Zeroizing<Vec<u8>>)> {
    let (scheme, rest) = line.split_at_checked(6).filter(|_| line.len() <= CREDENTIALS_BYTES)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = Zeroizing::new(decode_base64(rest.trim_ascii(), Alphabet::Usual)?);
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let user = std::str::from_utf8(&decoded[..colon]).ok()?.to_owned();
    let password = Zeroizing::new(decoded[colon + 1..].to_vec());
    if decoded.iter().any(u8::is_ascii_control) || user.is_empty() {
        return None;
    }
    Some((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_a_name_and_a_password_without_control_characters() {
        let of = |line: &str| parsed(line.as_bytes()).map(|(user, password)| (user, password.to_vec()));
        let ann = Some(("ann".to_owned(), b"a:b".to_vec()));
        // ann:a:b
        assert_eq!(of("Basic YW5uOmE6Yg=="), ann);
        assert_eq!(of("bAsIc   YW5uOmE6Yg"), ann);
        // No scheme, another one, no colon, no name, NUL in the password, not UTF-8.
        for line in [
            "YW5uOmE6Yg==",
            "Bearer YW5uOmE6Yg==",
            "Basic YW5u",
            "Basic OmE=",
            "Basic YW5uOmEAYg==",
            "Basic /zphYg==",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
        assert_eq!(of(&format!("Basic {}", "YW5u".repeat(2000))), None);
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
