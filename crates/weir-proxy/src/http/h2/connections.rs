//! HTTP/2 connections to one backend on one worker, which the exchanges of many clients share: which there
//! are, and which has room.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use weir_io::clock;

use crate::http::shared_connections::SharedConnections;

/// A backend has this long to say what it takes (RFC 9113 §3.4: its settings come first).
const SETTINGS_PATIENCE: Duration = Duration::from_secs(1);

/// The connections to one backend.
pub type BackendConnections = SharedConnections<BackendConnection>;

/// One connection.
pub struct BackendConnection {
    pub(super) sender: RefCell<SendRequest<Bytes>>,
    pub(super) streams: Cell<usize>,
    /// No further requests go over it: the backend said so, or it seems dead.
    pub(super) is_over: Cell<bool>,
    /// [`weir_state::Resolved::moves`] when it was opened.
    pub(super) moves: u32,
    pub(super) opened: Duration,
    pub(super) idle_since: Cell<Duration>,
}

/// Room for one request on a connection; kept by its stream until it is gone.
pub struct StreamSlot {
    pub(super) connection: Rc<BackendConnection>,
    pub(super) owner: Rc<BackendConnections>,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.connection.idle_since.set(clock::now());
        self.owner.wake_waiting();
    }
}

impl StreamSlot {
    /// Whether the backend has said that it takes extended CONNECT.
    pub fn allows_tunnels(&self) -> bool {
        self.connection.sender.borrow().is_extended_connect_protocol_enabled()
    }

    /// Whether the backend may not have said yet what it takes.
    pub fn is_new(&self) -> bool {
        !self.connection.is_over.get()
            && clock::now().saturating_sub(self.connection.opened) < SETTINGS_PATIENCE
    }

    /// Nothing was heard for too long: later requests had better go over another connection.
    pub fn give_up_connection(&self) {
        self.connection.is_over.set(true);
    }
}

impl BackendConnections {
    /// Room on an open connection that goes to where the backend is now; `None` when there is none.
    pub fn stream_slot(self: &Rc<Self>, moves: u32) -> Option<StreamSlot> {
        let mut open = self.open.borrow_mut();
        open.retain(|connection| !connection.is_over.get());
        let connection = open.iter().find(|connection| connection.moves == moves && connection.has_room())?;
        connection.streams.set(connection.streams.get() + 1);
        Some(StreamSlot { connection: connection.clone(), owner: self.clone() })
    }

    /// Drops connections that carry nothing and have not for `longest`, or that lead to where the backend no
    /// longer is.
    pub fn retire(&self, now: Duration, longest: Duration, moves: u32) {
        self.open.borrow_mut().retain(|connection| {
            let is_old = now.saturating_sub(connection.idle_since.get()) >= longest;
            let is_useless = connection.is_over.get() || connection.moves != moves;
            !(is_useless || (connection.streams.get() == 0 && is_old))
        });
    }
}

impl BackendConnection {
    fn has_room(&self) -> bool {
        self.streams.get() < self.sender.borrow().current_max_send_streams()
    }
}
