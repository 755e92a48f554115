//! Sessions that a client may resume with early data (0-RTT), each only once (RFC 8446 section 8.1, threat
//! C7).
//!
//! For these a ticket is only a name. The session itself is kept here, for all workers, and removed when it
//! is used. So a replayed first flight finds no session, in this process or any other, and needs a full
//! handshake. Memory is limited; the oldest session is dropped first, and its client then makes a full
//! handshake, too.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::server::{ProducesTickets, StoresServerSessions};

/// Most bytes kept: some 40,000 sessions.
const MOST_BYTES: usize = 16 << 20;
/// Memory for a session besides its name (twice) and its content: entries in the map and the queue.
const OVERHEAD_BYTES: usize = 160;

/// The sessions of a process.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_name: HashMap<Vec<u8>, Session, foldhash::fast::RandomState>,
    /// Names, oldest first, including some of sessions that were already taken.
    ages: VecDeque<Vec<u8>>,
    bytes: usize,
}

struct Session {
    bound_to: [u8; 32],
    content: Vec<u8>,
}

fn cost(name: &[u8], content: &[u8]) -> usize {
    2 * name.len() + content.len() + OVERHEAD_BYTES
}

impl Kept {
    fn remove(&mut self, name: &[u8]) -> Option<Session> {
        let session = self.by_name.remove(name)?;
        self.bytes -= cost(name, &session.content);
        Some(session)
    }
}

impl Sessions {
    fn put(&self, name: Vec<u8>, session: Session) {
        let kept = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += cost(&name, &session.content);
        kept.ages.push_back(name.clone());
        kept.by_name.insert(name, session);
        while kept.bytes > MOST_BYTES {
            let Some(oldest) = kept.ages.pop_front() else { break };
            kept.remove(&oldest);
        }
        // Names of taken sessions must not accumulate.
        if kept.ages.len() > 2 * kept.by_name.len() + 64 {
            let Kept { by_name, ages, .. } = kept;
            ages.retain(|name| by_name.contains_key(name));
        }
    }

    /// Removes and returns the session with that name, if it was stored for `bound_to`.
    fn take(&self, name: &[u8], bound_to: &[u8; 32]) -> Option<Vec<u8>> {
        let kept = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.by_name.get(name)?.bound_to != *bound_to {
            return None;
        }
        Some(kept.remove(name)?.content)
    }
}

impl std::fmt::Debug for Sessions {
    /// Prints no secrets.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("sessions")
    }
}

/// The sessions for one listener.
#[derive(Debug)]
pub(crate) struct BoundSessions {
    pub sessions: Arc<Sessions>,
    /// A digest of everything that must be unchanged for a session to be valid.
    pub bound_to: [u8; 32],
}

impl StoresServerSessions for BoundSessions {
    fn put(&self, name: Vec<u8>, content: Vec<u8>) -> bool {
        self.sessions.put(name, Session { bound_to: self.bound_to, content });
        true
    }

    /// Always `None`: only TLS 1.2 calls it, which has no early data.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.sessions.take(name, &self.bound_to)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// A ticketer that makes rustls use [`BoundSessions`].
#[derive(Debug)]
pub(crate) struct NoTickets;

impl ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 32] = [1; 32];

    fn bound(sessions: &Arc<Sessions>, bound_to: [u8; 32]) -> BoundSessions {
        BoundSessions { sessions: sessions.clone(), bound_to }
    }

    #[test]
    fn c7_a_session_is_given_once_and_only_where_it_was_put() {
        let sessions = Arc::default();
        let (here, there) = (bound(&sessions, HERE), bound(&sessions, [2; 32]));
        assert!(here.put(b"name".to_vec(), b"secret".to_vec()));
        assert_eq!(there.take(b"name"), None);
        assert_eq!(here.take(b"other"), None);
        assert_eq!(here.take(b"name").as_deref(), Some(&b"secret"[..]));
        assert_eq!(here.take(b"name"), None);
        assert_eq!(sessions.0.lock().unwrap().bytes, 0);
    }

    #[test]
    fn the_oldest_sessions_make_room_for_new_ones() {
        let sessions = Arc::default();
        let here = bound(&sessions, HERE);
        let name = |number: u32| number.to_be_bytes().repeat(8);
        let count = 100_000;
        (0..count).for_each(|number| assert!(here.put(name(number), vec![0; 200])));
        assert!(sessions.0.lock().unwrap().bytes <= MOST_BYTES);
        assert_eq!(here.take(&name(0)), None);
        assert!(here.take(&name(count - 1)).is_some());
    }

    #[test]
    fn sessions_that_were_taken_leave_nothing_behind() {
        let sessions = Arc::default();
        let here = bound(&sessions, HERE);
        for number in 0..10_000_u32 {
            let name = number.to_be_bytes().to_vec();
            here.put(name.clone(), vec![0; 200]);
            assert!(here.take(&name).is_some());
        }
        let kept = sessions.0.lock().unwrap();
        assert!(kept.bytes == 0 && kept.by_name.is_empty() && kept.ages.len() < 100, "{}", kept.ages.len());
    }
}
