//! HTTP/2 connections to one backend on one worker, which the exchanges of many clients share: which
//! connections there are, and which has room.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use weir_io::clock;

use crate::http::h2::awaiting::{Awaiting, AwaitingPlace};
use crate::http::h2::heard::Heard;
use crate::http::h2::resets::Resets;
use crate::http::h2::send_window::SendWindow;
use crate::http::h2::small_frames::SMALL_BYTES;
use crate::http::shared_connections::SharedConnections;

/// Bytes that a backend may send of one response before the client has taken any of it.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Longest time for a backend to send its settings (RFC 9113 §3.4: they come first). It is shorter if the
/// requests that wait for the settings have less time for a connection.
pub const SETTINGS_PATIENCE: Duration = Duration::from_secs(1);

/// The connections to one backend.
pub type BackendConnections = SharedConnections<BackendConnection>;

/// One connection.
pub struct BackendConnection {
    pub(super) sender: RefCell<SendRequest<Bytes>>,
    pub(super) streams: Cell<usize>,
    /// It takes no further requests: the backend said so, or it seems dead.
    pub(super) is_over: Cell<bool>,
    /// [`weir_state::Resolved::moves`] when it was opened.
    pub(super) moves: u32,
    /// When the backend's settings are due.
    pub(super) settings_due: Duration,
    pub(super) idle_since: Cell<Duration>,
    pub(super) heard: Rc<Heard>,
    pub(super) window: Rc<SendWindow>,
    pub(super) resets: Resets,
    /// The backend's host acknowledges nothing: requests that may be sent again leave.
    pub(super) is_unreachable: Cell<bool>,
    pub(super) awaiting: Awaiting,
}

/// A place for one request on a connection; its stream holds it until it ends.
pub struct StreamSlot {
    pub(super) connection: Rc<BackendConnection>,
    pub(super) owner: Rc<BackendConnections>,
    /// [`Heard::bytes`] when the request was sent.
    heard_before: Cell<u64>,
    /// Whether a request was sent that has not been answered yet.
    is_unanswered: Cell<bool>,
    /// The number of its stream; 0 before the request was sent.
    pub(super) number: Cell<u32>,
    /// Where the task waits that waits for the answer.
    place: AwaitingPlace,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.note_over();
        self.connection.window.small_frames().end(self.number.get());
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.connection.idle_since.set(clock::now());
        self.owner.wake_waiting();
    }
}

impl StreamSlot {
    /// A place that was taken on `connection`.
    pub(super) fn of(connection: Rc<BackendConnection>, owner: Rc<BackendConnections>) -> StreamSlot {
        let (heard_before, is_unanswered, number) = (Cell::new(0), Cell::new(false), Cell::new(0));
        let place = AwaitingPlace::default();
        StreamSlot { connection, owner, heard_before, is_unanswered, number, place }
    }

    /// Whether the backend has announced support for extended CONNECT.
    pub fn allows_tunnels(&self) -> bool {
        self.connection.sender.borrow().is_extended_connect_protocol_enabled()
    }

    /// Whether the backend has not sent its settings yet, and still has time to.
    pub fn is_new(&self) -> bool {
        !self.connection.is_over.get() && self.connection.awaits_settings()
    }

    /// Called when nothing was received for too long: later requests should use another connection.
    pub fn give_up_connection(&self) {
        self.connection.is_over.set(true);
    }

    /// Whether the backend's host acknowledges nothing, so that a request which may be sent again should use
    /// another connection. A task that has called [`Self::await_answer`] is woken when this becomes true.
    pub(super) fn is_unreachable(&self) -> bool {
        self.connection.is_unreachable.get()
    }

    /// Notes the task that waits for the answer.
    pub(super) fn await_answer(&self, context: &Context<'_>) {
        if self.is_unanswered.get() {
            self.connection.awaiting.enter(&self.place, context);
        }
    }

    /// Whether nothing was received on the connection since the request was sent.
    pub(super) fn is_unheard(&self) -> bool {
        self.connection.heard.bytes() == self.heard_before.get()
    }

    /// Notes that the request was sent.
    pub(super) fn note_asked(&self) {
        let heard = &self.connection.heard;
        heard.note_asked();
        self.heard_before.set(heard.bytes());
        self.is_unanswered.set(true);
    }

    /// When content of so few bytes may be sent, which does not end the stream; zero if at once.
    pub(super) fn piece_at(&self, bytes: usize) -> Duration {
        let window = &self.connection.window;
        match bytes < SMALL_BYTES {
            true => window.small_frames().next_at(self.number.get(), window.largest()),
            false => Duration::ZERO,
        }
    }

    /// Notes that content was sent, which did not end the stream.
    pub(super) fn note_piece(&self, bytes: usize) {
        let window = &self.connection.window;
        window.small_frames().note_sent(self.number.get(), bytes, window.largest(), clock::now);
    }

    /// Notes that a piece of the answer's content was received.
    pub(super) fn note_answer_piece(&self) {
        self.connection.window.small_frames().note_answered(self.number.get());
    }

    fn note_over(&self) {
        if self.is_unanswered.replace(false) {
            self.connection.awaiting.leave(&self.place);
            self.connection.heard.note_over();
        }
    }

    /// Notes that the request was answered.
    pub(super) fn note_answered(&self) {
        self.note_over();
        self.connection.heard.note_answered();
        self.connection.resets.answered();
    }

    /// Notes that the request was given up before it was answered, or in the middle of that. Gives how long
    /// to wait before its stream is reset.
    pub(super) fn note_given_up(&self, is_answered: bool) -> Duration {
        let (resets, now) = (&self.connection.resets, clock::now());
        let pause = resets.take(now, is_answered);
        if resets.is_spent(now) && !self.connection.is_over.replace(true) {
            tracing::debug!("many requests were given up: others go over another connection to the backend");
        }
        pause
    }
}

impl BackendConnections {
    /// A place on an open connection to the backend's current address, for a request that `has_content` or
    /// has none; `None` if there is none.
    pub fn stream_slot(self: &Rc<Self>, moves: u32, has_content: bool) -> Option<StreamSlot> {
        let mut open = self.open.borrow_mut();
        open.retain(|connection| !connection.is_over.get());
        let is_free = |it: &&Rc<BackendConnection>| it.moves == moves && it.has_room(has_content);
        let connection = open.iter().find(is_free)?;
        connection.streams.set(connection.streams.get() + 1);
        Some(StreamSlot::of(connection.clone(), self.clone()))
    }

    /// Whether there is a connection whose backend has still to announce how many requests it accepts.
    pub fn awaits_settings(&self, moves: u32) -> bool {
        let awaits =
            |it: &Rc<BackendConnection>| it.moves == moves && !it.is_over.get() && it.awaits_settings();
        self.open.borrow().iter().any(awaits)
    }

    /// Drops connections that have carried nothing for `longest`, or that lead to an address that the backend
    /// has left.
    pub fn retire(&self, now: Duration, longest: Duration, moves: u32) {
        self.open.borrow_mut().retain(|connection| {
            let is_old = now.saturating_sub(connection.idle_since.get()) >= longest;
            let is_useless = connection.is_over.get() || connection.moves != moves;
            !(is_useless || (connection.streams.get() == 0 && is_old))
        });
    }
}

impl BackendConnection {
    fn has_room(&self, has_content: bool) -> bool {
        // Its content would wait until the backend reads that of others (threat B27).
        if has_content && self.window.is_narrow() {
            return false;
        }
        // The backend may be about to end the connection (threat B29).
        if self.window.small_frames().is_crowded(self.window.largest()) {
            return false;
        }
        // Many backends allow fewer streams than RFC 9113 recommends, and refuse further ones.
        let most = if self.awaits_settings() { 1 } else { self.sender.borrow().current_max_send_streams() };
        self.streams.get() < most
    }

    /// Whether the backend's settings are still awaited; false once that has taken too long.
    fn awaits_settings(&self) -> bool {
        !self.heard.has_settings() && clock::now() < self.settings_due
    }
}
