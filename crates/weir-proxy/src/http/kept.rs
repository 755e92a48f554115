//! Connections to one backend that HTTP keeps for further exchanges, on one worker: idle ones of HTTP/1.1,
//! shared ones of HTTP/2 and HTTP/3.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use weir_http::h1::connection::{Busy, Drained, Idle};

use crate::backends::{Chosen, Keep, WorkerBackend};
use crate::http::connection::Connection;
use crate::http::h2::BackendConnections;
use crate::http::h3::QuicConnections;
use crate::http::pump::Pump;

/// HTTP's connections to one backend.
#[derive(Default)]
pub struct Kept {
    idle: RefCell<Vec<IdleSince>>,
    /// Shared connections, for pools whose backends are spoken to in HTTP/2.
    pub h2: Rc<BackendConnections>,
    /// The same for HTTP/3.
    pub h3: Rc<QuicConnections>,
}

struct IdleSince {
    connection: Idle<Connection>,
    since: Duration,
}

impl Kept {
    /// Takes an idle connection that, as far as is known here, the backend still holds open and has sent
    /// nothing on.
    ///
    /// `max_idle` bounds how long it may have been idle: a request that can't be sent again must not use a
    /// connection that the backend may be closing.
    pub fn take_idle(
        &self,
        backend: &WorkerBackend,
        now: Duration,
        max_idle: Duration,
    ) -> Option<Idle<Connection>> {
        let moves = backend.shared.resolved.moves();
        let mut idle = self.idle.borrow_mut();
        while let Some(candidate) = idle.pop() {
            if now.saturating_sub(candidate.since) >= max_idle {
                // Last in, first out: all others are older.
                idle.push(candidate);
                return None;
            }
            if candidate.is_at(moves) && candidate.connection.connection().is_kept() {
                return Some(candidate.connection);
            }
        }
        None
    }

    /// Keeps a connection whose last exchange ended cleanly on both sides, as its type guarantees.
    pub fn keep_idle(&self, backend: &WorkerBackend, connection: Idle<Connection>, now: Duration, max: u32) {
        let kept = IdleSince { connection, since: now };
        let mut idle = self.idle.borrow_mut();
        if idle.len() < max as usize && kept.is_at(backend.shared.resolved.moves()) {
            idle.push(kept);
        }
    }
}

/// Keeps a connection for another exchange if its response allows that and this one ended cleanly in both
/// directions: all of the request was sent, and `download` received the whole response and nothing else.
pub fn keep(
    chosen: &Chosen,
    mut connection: Busy<Connection>,
    request: Drained,
    download: Pump,
    now: Duration,
) {
    let (unread, Some(response)) = download.into_rest() else { return };
    let config = &chosen.pool.shared.config;
    let keeps = !is_one_clients(config) && !connection.connection().is_muxed();
    let unread_bytes = unread.map_or(0, |rest| rest.filled().len());
    if let Ok(idle) = connection.finish(request, response, keeps, unread_bytes) {
        let backend = chosen.backend();
        backend.kept::<Kept>().keep_idle(backend, idle, now, config.keep_alive.max);
    }
}

/// Whether each connection to the pool's backends belongs to one client, whom the backend identifies by it.
pub fn is_one_clients(pool: &weir_config::Pool) -> bool {
    pool.send_proxy.is_some() || pool.source.contains(&weir_config::Source::Client)
}

impl IdleSince {
    /// Whether it goes to the current address of the backend's name.
    #[inline]
    fn is_at(&self, moves: u32) -> bool {
        self.connection.connection().moves() == moves
    }
}

impl Keep for Kept {
    fn hand_over(&self) -> Rc<dyn Keep> {
        Rc::new(Kept { idle: RefCell::new(self.idle.take()), h2: self.h2.clone(), h3: self.h3.clone() })
    }

    fn close_idle(&self, most: usize) -> usize {
        let mut idle = self.idle.borrow_mut();
        let count = idle.len().min(most);
        idle.drain(..count);
        count + self.h3.close_idle(most - count)
    }

    fn end_all(&self) -> usize {
        self.h3.end_all()
    }

    fn retire(&self, now: Duration, longest: Duration, moves: u32) {
        self.h2.retire(now, longest, moves);
        self.h3.retire(now, longest, moves);
        self.idle.borrow_mut().retain(|idle| {
            now.saturating_sub(idle.since) < longest
                && idle.is_at(moves)
                && idle.connection.connection().is_kept()
        });
    }
}
