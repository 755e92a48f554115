//! HTTP/3 connections to one backend on one worker, which the exchanges of many clients share: which
//! connections there are, and which has room.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use quinn_proto::{Dir, StreamId};
use weir_http::h3::Code;
use weir_io::clock;

use super::shared::Shared;
use crate::http::shared_connections::SharedConnections;

/// Most concurrent requests on one connection, however many the backend allows: it can fill the windows of so
/// many responses ([`super::backend`]).
pub const STREAMS: usize = 100;

/// The connections to one backend.
pub type QuicConnections = SharedConnections<QuicConnection>;

/// One connection.
pub struct QuicConnection {
    pub(super) shared: Rc<Shared>,
    pub(super) streams: Cell<usize>,
    /// It takes no further requests: the backend said so, or it seems dead.
    pub(super) is_over: Cell<bool>,
    /// [`weir_state::Resolved::moves`] when it was opened.
    pub(super) moves: u32,
    pub(super) idle_since: Cell<Duration>,
}

/// A place for one request on a connection; its stream holds it until it ends.
pub struct QuicSlot {
    pub(super) connection: Rc<QuicConnection>,
    owner: Rc<QuicConnections>,
    /// The QUIC stream, which is open.
    pub(super) id: StreamId,
    /// Whether a request was sent on it, which then also ends it.
    pub(super) is_used: Cell<bool>,
    taken_at: Duration,
}

impl Drop for QuicSlot {
    fn drop(&mut self) {
        let QuicConnection { shared, streams, idle_since, .. } = &*self.connection;
        if !self.is_used.get() {
            shared.quic.reset(self.id, Code::RequestCancelled.value());
            shared.quic.stop(self.id, Code::RequestCancelled.value());
            shared.quic.forget(self.id);
        }
        streams.set(streams.get() - 1);
        idle_since.set(clock::now());
        self.owner.wake_waiting();
    }
}

impl QuicSlot {
    /// Called when nothing was received for too long: later requests should use another connection.
    pub fn give_up_connection(&self) {
        self.connection.is_over.set(true);
    }

    /// Whether nothing has come on the connection since this place was taken, not even an acknowledgement of
    /// the request, which is overdue.
    pub(super) fn is_unheard(&self) -> bool {
        self.connection.shared.quic.is_unheard_for(clock::now().saturating_sub(self.taken_at))
    }
}

impl QuicConnection {
    /// Whether the connection is over and no stream uses it any more. Closes it then.
    fn is_done(&self) -> bool {
        let is_done = self.is_over.get() && self.streams.get() == 0;
        if is_done {
            self.shared.quic.close(Code::NoError.value(), "");
        }
        is_done
    }

    fn slot(self: &Rc<Self>, owner: &Rc<QuicConnections>) -> Option<QuicSlot> {
        let quic = &self.shared.quic;
        if self.is_over.get() || quic.is_over() || self.streams.get() >= STREAMS {
            return None;
        }
        // Even a head would wait until the backend reads the content of others (threat B27).
        if quic.is_narrow() {
            return None;
        }
        // The backend may come back: running requests wait for it, but no new ones use it.
        if quic.seems_gone() {
            return None;
        }
        // The backend limits how many streams may be open.
        let id = quic.open(Dir::Bi)?;
        self.streams.set(self.streams.get() + 1);
        let (connection, owner, is_used) = (self.clone(), owner.clone(), Cell::new(false));
        Some(QuicSlot { connection, owner, id, is_used, taken_at: clock::now() })
    }
}

impl QuicConnections {
    /// A place on an open connection to the backend's current address; `None` if there is none.
    pub fn stream_slot(self: &Rc<Self>, moves: u32) -> Option<QuicSlot> {
        let mut open = self.open.borrow_mut();
        if open.is_empty() {
            return None;
        }
        open.retain(|connection| !connection.is_done());
        // If the backend is gone on one connection it may be gone on all, and connections on which nothing
        // was sent since then have not noticed.
        let gone_since = open.iter().filter_map(|it| it.shared.quic.overdue_since()).min();
        let is_good = |it: &&Rc<QuicConnection>| {
            it.moves == moves && gone_since.is_none_or(|since| it.shared.quic.was_heard_since(since))
        };
        open.iter().filter(is_good).find_map(|it| it.slot(self))
    }

    /// Registers a new connection.
    pub(super) fn take_up(self: &Rc<Self>, connection: &Rc<QuicConnection>) -> Option<QuicSlot> {
        self.open.borrow_mut().push(connection.clone());
        connection.slot(self)
    }

    /// Closes connections that have carried nothing for `longest`, or that lead to an address that the
    /// backend has left.
    pub fn retire(&self, now: Duration, longest: Duration, moves: u32) {
        self.open.borrow_mut().retain(|connection| {
            let is_old = now.saturating_sub(connection.idle_since.get()) >= longest;
            let is_useless = connection.is_over.get() || connection.moves != moves || is_old;
            let is_done = is_useless && connection.streams.get() == 0;
            if is_done {
                connection.shared.quic.close(Code::NoError.value(), "");
            }
            !is_done
        });
    }

    /// Closes up to `most` connections that carry nothing; gives how many.
    pub fn close_idle(&self, most: usize) -> usize {
        let mut closed = 0;
        self.open.borrow_mut().retain(|connection| {
            let is_closed = closed < most && connection.streams.get() == 0;
            if is_closed {
                closed += 1;
                connection.is_over.set(true);
                connection.shared.quic.close(Code::NoError.value(), "");
            }
            !is_closed
        });
        closed
    }

    /// Ends all connections, whatever they carry; gives how many.
    pub fn end_all(&self) -> usize {
        let all = std::mem::take(&mut *self.open.borrow_mut());
        for connection in &all {
            connection.is_over.set(true);
            connection.shared.quic.close(Code::NoError.value(), "");
        }
        all.len()
    }
}
