//! HTTP/2 to backends: opens connections, and sends requests over open ones.

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
use weir_io::stream::Stream;
use weir_io::wait::{WaitError, timed_out};

use crate::backends::{Connection, OpenCount};
use crate::http::h2::awaiting::Awaiting;
use crate::http::h2::connections::{BackendConnection, BackendConnections, STREAM_WINDOW_BYTES, StreamSlot};
use crate::http::h2::heard::Heard;
use crate::http::h2::presence::{Finding, Presence};
use crate::http::h2::resets::Resets;
use crate::http::h2::send_window::SendWindow;
use crate::http::h2::stream::Stream as RequestStream;
use crate::http::h2::wire::Wire;

/// Bytes that a backend may send of all responses of a connection together: large enough that each can fill
/// its own window. Otherwise clients that read slowly would hold up all others whose responses come over the
/// same connection.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
/// Memory that small frames of content on a connection may take in addition to their content until somebody
/// takes it: 256 bytes for each frame, less its content. Beyond this the connection ends for all who share
/// it. A burst of a hundred thousand messages does not reach it, and content that clients are slow to take
/// is gathered.
const SMALL_FRAMES_BYTES: usize = 32 << 20;
/// Requests that may be sent before the backend has announced its limit: the minimum that RFC 9113 §6.5.2
/// recommends to allow. The `h2` crate would send any number, and a backend that allows fewer closes a
/// connection that ignores this.
const STREAMS_BEFORE_SETTINGS: usize = 100;
/// Most bytes of request content that wait in a connection to be sent, per stream.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// How many streams that we reset are remembered, and for how long: frames that are still in transit on them
/// are no error of the backend's.
const RESETS_REMEMBERED: usize = 4096;
const RESETS_REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// The backend's kernel is asked whether it is there after this much silence, and how often from then on.
/// What it does not acknowledge ends the connection: without a `PING`, of which a backend gets only few,
/// nothing would be sent while it works for long on a request.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(3);
/// A connection ends if the backend's kernel acknowledges nothing for this long, or has no room for what is
/// sent. Most backends that stall and come back do so sooner.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

impl StreamSlot {
    /// Sends a request's head; `is_whole` if nothing follows it. Response content that waits counts against
    /// the budget of `buffers`.
    ///
    /// # Errors
    /// The connection accepts no further requests: nothing was sent.
    pub fn send(self, head: Request<()>, is_whole: bool, buffers: &Rc<Buffers>) -> io::Result<RequestStream> {
        let sent = self.connection.sender.borrow_mut().send_request(head, is_whole);
        let (response, stream) = sent.map_err(|error| {
            self.connection.is_over.set(true);
            io::Error::new(io::ErrorKind::ConnectionRefused, error)
        })?;
        self.number.set(stream.stream_id().into());
        self.note_asked();
        Ok(RequestStream::of_backend(response, stream, is_whole, self, Held::new(buffers)))
    }
}

/// The `h2` crate accepts this many times the limit of a head: of trailers beyond that, it silently leaves
/// fields out. What exceeds the limit itself is refused where it is read.
const ROOM_FOR_SECTIONS: u32 = 4;

impl BackendConnections {
    /// Begins HTTP/2 on a new connection and reserves a stream on it. The backend has `patience` to send its
    /// settings before the connection is given more than this one request.
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
            // Counted over the connection's life, these resets would end it for all who share it.
            .max_local_error_reset_streams(None);
        // If not even the kernel at the other end answers any more, there is no point in waiting longer.
        stream.end_when_unacknowledged(UNACKNOWLEDGED);
        stream.probe_when_silent(PROBE_AFTER, PROBE_INTERVAL);
        let (heard, window) = (Rc::new(Heard::default()), Rc::new(SendWindow::default()));
        let stream = Rc::new(RefCell::new(stream));
        let wire = Wire::of_backend(stream.clone(), heard.clone(), window.clone());
        let mut handshake = pin!(builder.handshake::<Wire, Bytes>(wire));
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
            window,
            resets: Resets::default(),
            is_unreachable: Cell::new(false),
            awaiting: Awaiting::default(),
        });
        let driven = Driven {
            connection: Rc::downgrade(&connection),
            owner: Rc::downgrade(self),
            presence: Presence::new(frames.ping_pong()),
            stream,
            heard,
            settings: Some(Box::pin(tokio::time::sleep(patience))),
        };
        tokio::task::spawn_local(drive(frames, driven, count));
        self.open.borrow_mut().push(connection.clone());
        Ok(StreamSlot::of(connection, self.clone()))
    }
}

/// The state of a connection for the task that drives it.
struct Driven {
    connection: Weak<BackendConnection>,
    owner: Weak<BackendConnections>,
    presence: Presence,
    stream: Rc<RefCell<Stream>>,
    heard: Rc<Heard>,
    /// How long its backend may still take to send its settings. `None` once nobody waits for them.
    settings: Option<Pin<Box<Sleep>>>,
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
    /// Checks whether the backend has sent its settings, and whether it is still there.
    fn look(&mut self, context: &mut Context<'_>) {
        if let Some(timer) = &mut self.settings
            && (self.heard.has_settings() || timer.as_mut().poll(context).is_ready())
        {
            self.settings = None;
            self.wake_waiting();
        }
        match self.presence.look(&self.heard, &self.stream, context) {
            Finding::Nothing => {}
            Finding::Silent => {
                tracing::debug!("an HTTP/2 connection to a backend is silent: others are used");
                self.set_aside();
            }
            Finding::Unreachable => {
                tracing::debug!("the host of a backend acknowledges nothing on an HTTP/2 connection");
                self.set_aside();
                if let Some(connection) = self.connection.upgrade() {
                    connection.is_unreachable.set(true);
                    connection.awaiting.wake_all();
                }
            }
        }
    }

    /// Takes no further requests. Those that it carries have their own timers.
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
