//! HTTP/2 connections to one backend on one worker: few of them, shared by the exchanges of many clients.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::Request;
use weir_io::buffers::{Buffers, Held};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::wait::{WaitError, timed_out};

use crate::backends::{Connection, OpenCount};
use crate::http::h2::stream::Stream as RequestStream;
use crate::http::h2::wire::Wire;

/// What a backend may send of one response before the client has taken any of it.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// The same for all responses of a connection together: so much that each may fill its own. Clients that read
/// slowly would else hold up all others whose answers come over the same connection.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
/// What small frames of content may take besides their content until somebody takes it, 256 bytes each less
/// their content, on a connection: beyond it ends for all who share it. A burst of a hundred thousand
/// messages does not reach it, and what clients are slow to take is gathered.
const SMALL_FRAMES_BYTES: usize = 32 << 20;
/// Requests sent before the backend has said how many it takes: what RFC 9113 §6.5.2 asks every one to allow.
/// The `h2` crate would send any number, and a backend that allows fewer closes a connection that takes no
/// notice.
const STREAMS_BEFORE_SETTINGS: usize = 100;
/// Most content of requests that waits in a connection to be sent, per stream.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// A backend has this long to say what it takes (RFC 9113 §3.4: its settings come first).
const SETTINGS_PATIENCE: Duration = Duration::from_secs(1);

/// The connections to one backend.
#[derive(Default)]
pub struct BackendConnections {
    open: RefCell<Vec<Rc<BackendConnection>>>,
    /// Whether somebody opens a connection; others wait for it instead of opening one each.
    opening: Cell<bool>,
    /// Who waits for it, or for a stream to end.
    waiting: RefCell<Vec<Waker>>,
}

/// One connection.
pub struct BackendConnection {
    sender: RefCell<SendRequest<Bytes>>,
    streams: Cell<usize>,
    /// No further requests go over it: the backend said so, or it seems dead.
    is_over: Cell<bool>,
    /// [`weir_state::Resolved::moves`] when it was opened.
    moves: u32,
    opened: Duration,
    idle_since: Cell<Duration>,
}

/// Room for one request on a connection; kept by its stream until it is gone.
pub struct StreamSlot {
    connection: Rc<BackendConnection>,
    owner: Rc<BackendConnections>,
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

    /// Sends a request's head; `is_whole` when nothing follows it. What of its answer waits counts against
    /// the budget of `buffers`.
    ///
    /// # Errors
    /// The connection takes no further requests: nothing was sent.
    pub fn send(self, head: Request<()>, is_whole: bool, buffers: &Rc<Buffers>) -> io::Result<RequestStream> {
        let sent = self.connection.sender.borrow_mut().send_request(head, is_whole);
        let (response, stream) = sent.map_err(|error| {
            self.connection.is_over.set(true);
            io::Error::new(io::ErrorKind::ConnectionRefused, error)
        })?;
        Ok(RequestStream::of_backend(response, stream, is_whole, self, Held::new(buffers)))
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

    /// Leave to open a connection; `None` when another exchange has it: wait with [`Self::poll_changed`].
    pub fn open(self: &Rc<Self>) -> Option<Opening> {
        (!self.opening.replace(true)).then(|| Opening(self.clone()))
    }

    /// Ready once something may have changed since the caller looked. `asked` tells whether this was polled
    /// before.
    pub fn poll_changed(&self, context: &mut std::task::Context<'_>, asked: &mut bool) -> Poll<()> {
        if std::mem::replace(asked, true) {
            return Poll::Ready(());
        }
        self.waiting.borrow_mut().push(context.waker().clone());
        Poll::Pending
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

    fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Leave to open a connection. Others wait until this is dropped.
pub struct Opening(Rc<BackendConnections>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.opening.set(false);
        self.0.wake_waiting();
    }
}

impl Opening {
    /// Begins HTTP/2 on a new connection and takes room on it.
    pub async fn begin(
        self,
        connection: Connection,
        header_bytes: u32,
        deadline: &Deadline,
    ) -> Result<StreamSlot, WaitError> {
        let moves = connection.moves();
        let (stream, count) = connection.into_parts();
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_max_send_streams(STREAMS_BEFORE_SETTINGS)
            .max_header_list_size(header_bytes)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .data_frame_budget(SMALL_FRAMES_BYTES);
        let mut handshake = pin!(builder.handshake::<Wire, Bytes>(Wire::of_backend(stream)));
        let (sender, frames) = poll_fn(|context| match handshake.as_mut().poll(context) {
            Poll::Ready(result) => {
                Poll::Ready(result.map_err(|error| WaitError::Broken(io::Error::other(error))))
            }
            Poll::Pending => timed_out(deadline),
        })
        .await?;
        let connection = Rc::new(BackendConnection {
            sender: RefCell::new(sender),
            streams: Cell::new(1),
            is_over: Cell::new(false),
            moves,
            opened: clock::now(),
            idle_since: Cell::new(clock::now()),
        });
        let owner = self.0.clone();
        tokio::task::spawn_local(drive(frames, Rc::downgrade(&connection), Rc::downgrade(&owner), count));
        owner.open.borrow_mut().push(connection.clone());
        Ok(StreamSlot { connection, owner })
    }
}

impl BackendConnection {
    fn has_room(&self) -> bool {
        self.streams.get() < self.sender.borrow().current_max_send_streams()
    }
}

/// Moves the frames of one connection until it is over.
async fn drive(
    mut frames: h2::client::Connection<Wire, Bytes>,
    connection: Weak<BackendConnection>,
    owner: Weak<BackendConnections>,
    count: OpenCount,
) {
    let _count = count;
    let ended = poll_fn(|context| std::pin::Pin::new(&mut frames).poll(context)).await;
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP/2 connection to a backend ended");
    }
    if let Some(connection) = connection.upgrade() {
        connection.is_over.set(true);
    }
    if let Some(owner) = owner.upgrade() {
        owner.wake_waiting();
    }
}
