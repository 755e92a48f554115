//! How fast the bytes of one connection or flow may pass in one direction: limited by a meter of its own, and
//! by one that all connections of its listener share (`bandwidth`).

use std::sync::Arc;
use std::time::Duration;

use weir_io::meter::Meter;
use weir_state::Listener;

/// The longest wait before the next check is the first one doubled this often. A connection that finds no
/// room in the shared meter waits longer each time, so that a thousand waiting ones do not all compete for
/// each piece.
const MOST_DOUBLINGS: u32 = 4;
/// The first wait for the shared meter.
const FIRST_WAIT: Duration = Duration::from_millis(5);

/// A direction, seen from Weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the backend to the client.
    ToClient,
    /// From the client to the backend.
    FromClient,
}

/// One direction of one connection or flow.
pub struct Pace {
    own: Option<Meter>,
    shared: Option<Arc<Meter>>,
    listener: Arc<Listener>,
    worker: usize,
    way: Way,
    /// How often in a row there was no room.
    misses: u32,
}

impl Pace {
    /// The pace of a new connection or flow of a listener; `None` if its speed is not limited.
    pub fn of(listener: &Arc<Listener>, worker: usize, way: Way) -> Option<Box<Pace>> {
        let config = listener.config.bandwidth.as_ref()?;
        let (own, shared) = match way {
            Way::ToClient => (config.to_client, &listener.bandwidth.to_client),
            Way::FromClient => (config.from_client, &listener.bandwidth.from_client),
        };
        let own = own.map(|rate| Meter::new(rate, config.burst));
        let (shared, listener) = (shared.clone(), listener.clone());
        let is_limited = own.is_some() || shared.is_some();
        is_limited.then(|| Box::new(Pace { own, shared, listener, worker, way, misses: 0 }))
    }

    /// How many bytes may pass now, at least one.
    ///
    /// # Errors
    /// No byte may pass, which is counted; gives when to ask again.
    pub fn room(&mut self, now: Duration) -> Result<u64, Duration> {
        let own = self.own.as_ref().map_or(Ok(u64::MAX), |meter| meter.room(now));
        let shared = self.shared.as_ref().map_or(Ok(u64::MAX), |meter| meter.room(now));
        match (own, shared) {
            (Ok(own), Ok(shared)) => {
                self.misses = 0;
                Ok(own.min(shared))
            }
            (own, shared) => {
                let cells = self.listener.cells.of(self.worker);
                cells.throttled[self.way as usize].increment();
                let doubled = shared.err().map(|until| {
                    let wait = FIRST_WAIT * (1 << self.misses.min(MOST_DOUBLINGS));
                    self.misses += 1;
                    until.max(now + wait)
                });
                Err(own.err().max(doubled).unwrap_or(now + FIRST_WAIT))
            }
        }
    }

    /// Reports that bytes have passed.
    pub fn take(&self, now: Duration, bytes: u64) {
        for meter in self.own.iter().chain(self.shared.as_deref()) {
            meter.take(now, bytes);
        }
    }
}
