//! Session tickets: a server's session state, kept by the client (RFC 8446 section 2.2, RFC 5077).
//!
//! All workers and listeners share one set of keys, which is rotated every [`ROTATION`] and handed over to
//! the next process at an upgrade. A ticket is sealed for one listener with one client-certificate policy and
//! can be opened nowhere else, so that a resumed session can't get around what a full handshake would ask for
//! (threat D6).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;

use crate::sessions::Sessions;
use crate::shared_tickets::SharedKeys;

/// How long a key seals tickets.
pub const ROTATION: Duration = Duration::from_secs(6 * 3600);
/// How long after that it still opens them.
pub const GRACE: Duration = Duration::from_secs(12 * 3600);

/// Length in bytes of a key's name, with which its tickets begin.
pub(crate) const NAME_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
const SECRET_BYTES: usize = 32;

/// The first word of a line that hands over a key.
pub const WORD: &str = "ticket";

/// The keys of a process.
pub struct TicketKeys {
    /// Newest first; never empty.
    keys: ArcSwap<Vec<Arc<Key>>>,
    rotating: Mutex<()>,
    /// Sessions for which the tickets are only names.
    sessions: Arc<Sessions>,
}

/// One key. Its name tells which key a ticket was sealed with.
pub(crate) struct Key {
    name: [u8; NAME_BYTES],
    secret: [u8; SECRET_BYTES],
    sealing: LessSafeKey,
    /// How old it was when this process got it, and when that was. The wall clock is not used, since it may
    /// be set, and that must not extend a key's lifetime.
    age_then: Duration,
    since: Instant,
}

impl Key {
    /// A key that was just made.
    pub(crate) fn new(name: [u8; NAME_BYTES], secret: [u8; SECRET_BYTES]) -> Option<Key> {
        let sealing = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &secret).ok()?);
        Some(Key { name, secret, sealing, age_then: Duration::ZERO, since: Instant::now() })
    }

    fn random() -> Option<Key> {
        let (mut name, mut secret) = ([0; NAME_BYTES], [0; SECRET_BYTES]);
        rand::fill(&mut name).ok()?;
        rand::fill(&mut secret).ok()?;
        Key::new(name, secret)
    }

    /// Whether a ticket names this key.
    pub(crate) fn is_named(&self, ticket: &[u8]) -> bool {
        ticket.starts_with(&self.name)
    }

    /// Whether both have the same name.
    pub(crate) fn has_name_of(&self, other: &Key) -> bool {
        self.name == other.name
    }

    /// Seals a ticket for `bound_to`.
    pub(crate) fn seal(&self, plain: &[u8], bound_to: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_BYTES];
        rand::fill(&mut nonce).ok()?;
        let mut ticket = Vec::with_capacity(NAME_BYTES + NONCE_BYTES + plain.len() + AES_256_GCM.tag_len());
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(&nonce);
        let mut sealed = plain.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.sealing.seal_in_place_append_tag(nonce, Aad::from(bound_to), &mut sealed).ok()?;
        ticket.append(&mut sealed);
        Some(ticket)
    }

    /// Opens a ticket; `None` if this key did not seal it, or not for `bound_to`.
    pub(crate) fn open(&self, ticket: &[u8], bound_to: &[u8]) -> Option<Vec<u8>> {
        let (_, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_BYTES)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let plain_bytes = self.sealing.open_in_place(nonce, Aad::from(bound_to), &mut sealed).ok()?.len();
        sealed.truncate(plain_bytes);
        Some(sealed)
    }

    fn age(&self, now: Instant) -> Duration {
        self.age_then + now.saturating_duration_since(self.since)
    }
}

impl TicketKeys {
    /// Keys for a new process: those handed over in `lines`, or a new one.
    ///
    /// Without randomness neither TLS nor anything else can be served; then there are no keys, and no tickets
    /// are issued.
    pub fn new<'l>(lines: impl IntoIterator<Item = &'l str>) -> Arc<TicketKeys> {
        let mut keys: Vec<Arc<Key>> =
            lines.into_iter().filter_map(|line| of_line(line, SystemTime::now())).map(Arc::new).collect();
        keys.sort_by_key(|key| key.age_then);
        let all = TicketKeys {
            keys: ArcSwap::from_pointee(keys),
            rotating: Mutex::default(),
            sessions: Arc::default(),
        };
        all.rotate(Instant::now());
        Arc::new(all)
    }

    /// Lines that hand over the keys, each with its line end. Secret: they are passed from process to
    /// process, never written to disk.
    pub fn lines(&self) -> Vec<String> {
        self.keys.load().iter().map(|key| line(key, Instant::now(), SystemTime::now())).collect()
    }

    /// The stored sessions that may begin with early data. They are not handed over.
    pub(crate) fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// Makes a new key when the newest is old, and drops those that open no more tickets.
    fn rotate(&self, now: Instant) {
        let _alone = self.rotating.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = self.keys.load();
        if keys.first().is_some_and(|newest| newest.age(now) < ROTATION) {
            return;
        }
        let kept = keys.iter().filter(|key| key.age(now) < ROTATION + GRACE).cloned();
        self.keys.store(Arc::new(Key::random().map(Arc::new).into_iter().chain(kept).collect()));
    }

    fn seal(&self, plain: &[u8], bound_to: &[u8], now: Instant) -> Option<Vec<u8>> {
        if self.keys.load().first().is_none_or(|newest| newest.age(now) >= ROTATION) {
            self.rotate(now);
        }
        self.keys.load().first()?.seal(plain, bound_to)
    }

    fn open(&self, ticket: &[u8], bound_to: &[u8], now: Instant) -> Option<Vec<u8>> {
        let keys = self.keys.load();
        let key = keys.iter().find(|key| key.is_named(ticket) && key.age(now) < ROTATION + GRACE)?;
        key.open(ticket, bound_to)
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ticket keys", self.keys.load().len())
    }
}

/// Where the keys for tickets come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The process's own, which its successors inherit.
    Own(Arc<TicketKeys>),
    /// Those in a file.
    Shared(Arc<SharedKeys>),
}

/// The tickets of one listener.
#[derive(Debug)]
pub(crate) struct BoundTickets {
    pub keys: Source,
    /// A digest of the listener's name and of everything that a handshake would require of a client.
    pub bound_to: [u8; 32],
}

impl ProducesTickets for BoundTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        GRACE.as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        match &self.keys {
            Source::Own(keys) => keys.seal(plain, &self.bound_to, Instant::now()),
            Source::Shared(keys) => keys.seal(plain, &self.bound_to),
        }
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        match &self.keys {
            Source::Own(keys) => keys.open(ticket, &self.bound_to, Instant::now()),
            Source::Shared(keys) => keys.open(ticket, &self.bound_to),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// `ticket NAME SECRET MADE`; the last is in seconds since 1970.
fn line(key: &Key, now: Instant, wall: SystemTime) -> String {
    let made = wall.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(key.age(now)).as_secs();
    format!("{WORD} {} {} {made}\n", hex(&key.name), hex(&key.secret))
}

/// The key in a line that was read at `wall`. A time in the future means that the clock was set back, and the
/// key may be of any age: it seals no more, and opens for as long as one that was just replaced.
fn of_line(line: &str, wall: SystemTime) -> Option<Key> {
    let mut words = line.split_whitespace();
    if words.next()? != WORD {
        return None;
    }
    let (name, secret) = (unhex(words.next()?)?, unhex(words.next()?)?);
    let made = UNIX_EPOCH.checked_add(Duration::from_secs(words.next()?.parse().ok()?))?;
    Some(Key { age_then: wall.duration_since(made).unwrap_or(ROTATION), ..Key::new(name, secret)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &[u8] = b"web, nobody is asked";

    fn later(hours: u64) -> Instant {
        Instant::now() + Duration::from_secs(hours * 3600)
    }

    #[test]
    fn a_ticket_opens_only_where_it_was_sealed_for() {
        let keys = TicketKeys::new([]);
        let ticket = keys.seal(b"session", HERE, Instant::now()).unwrap();
        assert_eq!(keys.open(&ticket, HERE, Instant::now()).as_deref(), Some(&b"session"[..]));
        assert_eq!(keys.open(&ticket, b"web, everyone is asked", Instant::now()), None);
        assert_eq!(TicketKeys::new([]).open(&ticket, HERE, Instant::now()), None, "keys of another process");
    }

    #[test]
    fn no_byte_of_a_ticket_can_be_changed() {
        let keys = TicketKeys::new([]);
        let ticket = keys.seal(b"session", HERE, Instant::now()).unwrap();
        for index in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[index] ^= 1;
            assert_eq!(keys.open(&changed, HERE, Instant::now()), None, "byte {index}");
            assert_eq!(keys.open(&ticket[..index], HERE, Instant::now()), None, "cut at {index}");
        }
    }

    #[test]
    fn tickets_outlive_the_next_key_and_die_with_their_own() {
        let keys = TicketKeys::new([]);
        let ticket = keys.seal(b"session", HERE, Instant::now()).unwrap();
        let newer = keys.seal(b"newer", HERE, later(7)).unwrap();
        assert_ne!(ticket[..NAME_BYTES], newer[..NAME_BYTES], "a key seals for six hours");
        assert!(keys.open(&ticket, HERE, later(17)).is_some());
        assert!(keys.open(&ticket, HERE, later(19)).is_none());
        keys.seal(b"last", HERE, later(40)).unwrap();
        assert_eq!(keys.keys.load().len(), 1, "keys that open nothing are forgotten");
    }

    #[test]
    fn a_process_that_is_handed_the_keys_opens_the_tickets() {
        let old = TicketKeys::new([]);
        let ticket = old.seal(b"session", HERE, Instant::now()).unwrap();
        let lines = old.lines();
        let new = TicketKeys::new(lines.iter().map(String::as_str));
        assert_eq!(new.open(&ticket, HERE, Instant::now()).as_deref(), Some(&b"session"[..]));
        let back = new.seal(b"back", HERE, Instant::now()).unwrap();
        assert!(old.open(&back, HERE, Instant::now()).is_some(), "both processes serve for a while");
    }

    #[test]
    fn lines_that_are_no_keys_are_left_out() {
        for text in ["", "ticket", "ticket 00 11 22", "state app 10.0.0.1:80 ready up 0 -", "ticket é é 1"]
        {
            assert!(of_line(text, UNIX_EPOCH).is_none(), "{text}");
        }
        assert!(Key::random().is_some());
    }

    /// What a process says that hands over one key, which was made so many hours before or, by its clock,
    /// after.
    fn handed_over(hours: i64) -> Arc<TicketKeys> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let made = now.saturating_add_signed(hours * 3600);
        let line = format!("{WORD} {} {} {made}\n", "11".repeat(NAME_BYTES), "22".repeat(SECRET_BYTES));
        TicketKeys::new([line.as_str()])
    }

    fn sealed_by(keys: &TicketKeys, now: Instant) -> Vec<u8> {
        keys.seal(b"session", HERE, now).unwrap()[..NAME_BYTES].to_vec()
    }

    /// By a clock that was ahead when the key was made it would have had its six hours only once the clock
    /// came there again.
    #[test]
    fn a_key_of_the_future_seals_no_more_and_opens_for_its_grace() {
        let keys = handed_over(24 * 365);
        assert_eq!(keys.keys.load().len(), 2, "it is followed by another at once");
        assert_ne!(sealed_by(&keys, Instant::now()), [0x11; NAME_BYTES]);
        let old = keys.keys.load()[1].seal(b"session", HERE).unwrap();
        assert!(keys.open(&old, HERE, later(11)).is_some() && keys.open(&old, HERE, later(13)).is_none());
    }

    #[test]
    fn a_key_keeps_its_age_when_it_is_handed_over() {
        let keys = handed_over(-5);
        assert_eq!(sealed_by(&keys, Instant::now()), [0x11; NAME_BYTES]);
        let again = TicketKeys::new(keys.lines().iter().map(String::as_str));
        assert_eq!(sealed_by(&again, Instant::now()), [0x11; NAME_BYTES]);
        assert_ne!(sealed_by(&again, later(2)), [0x11; NAME_BYTES]);
    }
}
