//! The local end of connections to a pool's backends, and the reason when nothing can be sent from there.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_io::local_end::LocalEnd;

/// Shortest time between two log lines that say that nothing can be sent.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The local address or interface from which a pool sends to its backends, as its config says.
#[derive(Debug)]
pub struct Departure {
    /// Name of the pool.
    pub pool: String,
    local_end: LocalEnd,
    hindrance: Mutex<Hindrance>,
}

/// What was noted about attempts that failed at the local end.
#[derive(Debug, Default)]
struct Hindrance {
    /// The last reason, and when it was found.
    last: Option<(Duration, String)>,
    /// When it was last logged.
    said: Option<Duration>,
}

impl Departure {
    pub(crate) fn new(pool: &str, local_end: LocalEnd) -> Departure {
        Departure { pool: pool.to_owned(), local_end, hindrance: Mutex::default() }
    }

    /// Notes that something could not be sent. Returns whether to log it: the first time, and then at most
    /// once a minute. Takes a short mutex, and allocates.
    pub fn note(&self, reason: String, now: Duration) -> bool {
        let mut hindrance = self.hindrance();
        hindrance.last = Some((now, reason));
        let is_due = hindrance.said.is_none_or(|said| now.saturating_sub(said) >= SAY_EVERY);
        if is_due {
            hindrance.said = Some(now);
        }
        is_due
    }

    /// The reason noted last; `None` if there is none, or if it is older than a minute.
    pub fn hindrance_at(&self, now: Duration) -> Option<String> {
        let (at, reason) = self.hindrance().last.clone()?;
        (now.saturating_sub(at) < SAY_EVERY).then_some(reason)
    }

    fn hindrance(&self) -> MutexGuard<'_, Hindrance> {
        self.hindrance.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Departure {
    type Target = LocalEnd;

    fn deref(&self) -> &LocalEnd {
        &self.local_end
    }
}

/// Two are equal if they use the same local end.
impl PartialEq for Departure {
    fn eq(&self, other: &Departure) -> bool {
        self.local_end == other.local_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_cannot_leave_is_said_once_a_minute_and_shown_for_as_long() {
        let departure = Departure::new("app", LocalEnd::default());
        assert_eq!(departure.hindrance_at(at(5)), None);
        assert!(departure.note("no route".to_owned(), at(5)));
        assert!(!departure.note("no device".to_owned(), at(64)));
        assert_eq!(departure.hindrance_at(at(123)).as_deref(), Some("no device"));
        assert_eq!(departure.hindrance_at(at(124)), None);
        assert!(departure.note("no route".to_owned(), at(65)));
    }
}
