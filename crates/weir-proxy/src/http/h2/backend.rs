//! HTTP/2 towards backends: opens connections, and sends requests over those there are.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::Builder;
use http::Request;
use tokio::time::Sleep;
use weir_io::buffers::{Buffers, Held};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::wait::{WaitError, timed_out};

use crate::backends::{Connection, OpenCount};
use crate::http::h2::connections::{BackendConnection, BackendConnections, StreamSlot};
use crate::http::h2::heard::Heard;
use crate::http::h2::presence::Presence;
use crate::http::h2::resets::Resets;
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
/// Streams that we broke off are remembered, for what is on its way on them is no mistake of the backend's:
/// so many, and for so long.
const RESETS_REMEMBERED: usize = 4096;
const RESETS_REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// A connection ends where the backend's kernel acknowledges nothing for so long, or has no room for what is
/// sent, which is longer than most stand still that come back.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

impl StreamSlot {
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
        self.note_asked();
        Ok(RequestStream::of_backend(response, stream, is_whole, self, Held::new(buffers)))
    }
}

/// How many times the limit of a head the `h2` crate takes in: of trailers beyond that it leaves fields out
/// without a word. What is over the limit itself is refused where it is read, and is known to be.
const ROOM_FOR_SECTIONS: u32 = 4;

impl BackendConnections {
    /// Begins HTTP/2 on a new connection and takes room on it. The backend has `patience` to say what it
    /// takes, before it gets more than this one request.
    pub async fn begin(
        self: &Rc<Self>,
        connection: Connection,
        header_bytes: u32,
        deadline: &Deadline,
        patience: Duration,
    ) -> Result<StreamSlot, WaitError> {
        let moves = connection.moves();
        let (stream, count) = connection.into_parts();
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_max_send_streams(STREAMS_BEFORE_SETTINGS)
            .max_header_list_size(header_bytes.saturating_mul(ROOM_FOR_SECTIONS))
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .data_frame_budget(SMALL_FRAMES_BYTES)
            .max_concurrent_reset_streams(RESETS_REMEMBERED)
            .reset_stream_duration(RESETS_REMEMBERED_FOR)
            // Counted over the connection's life, they would end it for all who share it.
            .max_local_error_reset_streams(None);
        // Where not even the kernel at the other end answers any more, who waits need not wait longer.
        stream.end_when_unacknowledged(UNACKNOWLEDGED);
        let heard = Rc::new(Heard::default());
        let mut handshake = pin!(builder.handshake::<Wire, Bytes>(Wire::of_backend(stream, heard.clone())));
        let (sender, mut frames) = poll_fn(|context| match handshake.as_mut().poll(context) {
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
            settings_due: clock::now() + patience,
            idle_since: Cell::new(clock::now()),
            heard: heard.clone(),
            resets: Resets::default(),
        });
        let driven = Driven {
            connection: Rc::downgrade(&connection),
            owner: Rc::downgrade(self),
            presence: Presence::new(frames.ping_pong()),
            heard,
            settings: Some(Box::pin(tokio::time::sleep(patience))),
            is_lost: false,
        };
        tokio::task::spawn_local(drive(frames, driven, count));
        self.open.borrow_mut().push(connection.clone());
        Ok(StreamSlot::of(connection, self.clone()))
    }
}

/// What is known of a connection by whoever drives it.
struct Driven {
    connection: Weak<BackendConnection>,
    owner: Weak<BackendConnections>,
    presence: Presence,
    heard: Rc<Heard>,
    /// How long its backend has still to say what it takes. `None` once nobody waits for that.
    settings: Option<Pin<Box<Sleep>>>,
    /// Whether it seemed dead.
    is_lost: bool,
}

/// Moves the frames of one connection until it is over.
async fn drive(mut frames: h2::client::Connection<Wire, Bytes>, mut driven: Driven, count: OpenCount) {
    let _count = count;
    let ended = poll_fn(|context| {
        let polled = Pin::new(&mut frames).poll(context);
        driven.look(context);
        polled
    })
    .await;
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP/2 connection to a backend ended");
    }
    driven.set_aside();
}

impl Driven {
    /// Looks whether the backend has said what it takes, and whether it is still there.
    fn look(&mut self, context: &mut Context<'_>) {
        if let Some(timer) = &mut self.settings
            && (self.heard.has_settings() || timer.as_mut().poll(context).is_ready())
        {
            self.settings = None;
            self.wake_waiting();
        }
        if !self.is_lost && self.presence.poll_lost(&self.heard, context).is_ready() {
            self.is_lost = true;
            tracing::debug!("an HTTP/2 connection to a backend is silent: others are used");
            self.set_aside();
        }
    }

    /// No further requests go over it. Those that it carries have their own timers.
    fn set_aside(&self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.is_over.set(true);
        }
        self.wake_waiting();
    }

    fn wake_waiting(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.wake_waiting();
        }
    }
}
