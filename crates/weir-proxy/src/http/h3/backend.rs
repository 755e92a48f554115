//! HTTP/3 to backends: drives connections, and sends requests over open ones.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{IdleTimeout, StreamId, TransportConfig, VarInt};
use weir_http::Limits;
use weir_http::h3::{self, Config, Fault, SectionWriter};
use weir_io::buffers::Buffers;
use weir_io::clock;
use weir_io::flood::Budget;
use weir_quic::allowance::OwnSettings;
use weir_quic::connection::Connection;

use super::connections::{QuicConnection, QuicConnections, QuicSlot, STREAMS};
use super::shared::{Shared, number};
use super::stream::Stream;
use crate::backends::OpenCount;
use crate::http::under_way::UnderWay;

/// Bytes that a backend may send of one response before the client has taken any of it.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// The same for all responses of a connection together: large enough that each can fill its own window.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * STREAMS as u32;
/// Longest silence of a connection without requests, and the time in which a dead one is noticed: three pings
/// go unanswered.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Unidirectional streams of a backend: three for control, and some for extensions that we do not know.
const STEERING_STREAMS: u32 = 16;
/// Bytes of handshake messages that may arrive out of order.
const CRYPTO_BYTES: usize = 64 << 10;

/// The QUIC settings for one connection that uses `tls`.
///
/// `None` if `tls` lacks the cipher suite for first packets, which none of our policies does.
pub fn settings(tls: &Arc<rustls::ClientConfig>) -> Option<OwnSettings> {
    let crypto = QuicClientConfig::try_from(tls.clone()).ok()?;
    let mut transport = TransportConfig::default();
    transport
        // Backends only open control streams.
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(STEERING_STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok())
        .crypto_buffer_size(CRYPTO_BYTES)
        .datagram_receive_buffer_size(None);
    Some(OwnSettings::new(Arc::new(crypto), transport))
}

impl QuicConnections {
    /// Registers a connection whose handshake is complete, and takes a stream on it; `None` if the backend
    /// allows no requests at all.
    pub fn begin(
        self: &Rc<Self>,
        quic: Rc<Connection>,
        (limits, draw): (&Limits, u32),
        buffers: &Rc<Buffers>,
        (count, moves): (OpenCount, u32),
    ) -> Option<QuicSlot> {
        let shared = Rc::new(Shared {
            protocol: RefCell::new(h3::Connection::new(&Config::of_backend(limits), draw)),
            quic,
            own: [Cell::new(None), Cell::new(None)],
            blocked: RefCell::default(),
            refused_from: Cell::new(u64::MAX),
            awaited: RefCell::default(),
            flood_budget: RefCell::new(Budget::new(u32::MAX, clock::now())),
            is_flooded: Cell::new(false),
            under_way: UnderWay::new(buffers, CONNECTION_WINDOW_BYTES),
            buffers: buffers.clone(),
            late: Cell::new(0),
            has_read_last: Cell::new(false),
        });
        let connection = Rc::new(QuicConnection {
            shared: shared.clone(),
            streams: Cell::new(0),
            is_over: Cell::new(false),
            moves,
            idle_since: Cell::new(clock::now()),
        });
        tokio::task::spawn_local(drive(shared, Rc::downgrade(&connection), Rc::downgrade(self), count));
        self.take_up(&connection)
    }
}

/// Moves what the streams of one connection share until it is over.
async fn drive(
    shared: Rc<Shared>,
    connection: Weak<QuicConnection>,
    owner: Weak<QuicConnections>,
    count: OpenCount,
) {
    let _count = count;
    let mut steering = Vec::new();
    let ended = poll_fn(|context| {
        let polled = poll_end(&shared, &mut steering, context);
        if shared.refused_from.get() != u64::MAX
            && let Some(connection) = connection.upgrade()
        {
            connection.is_over.set(true);
        }
        if shared.quic.is_silent() {
            // Requests that may be sent again have waited long enough.
            shared.wake_awaiting();
        }
        if let Some(owner) = owner.upgrade() {
            // There may be room for further streams.
            owner.wake_waiting();
        }
        polled
    })
    .await;
    if let Err(fault) = ended {
        shared.fail(fault);
    }
    if let Some(connection) = connection.upgrade() {
        connection.is_over.set(true);
    }
    shared.has_read_last.set(true);
    shared.wake_awaiting();
    if let Some(owner) = owner.upgrade() {
        owner.wake_waiting();
    }
}

fn poll_end(
    shared: &Shared,
    steering: &mut Vec<StreamId>,
    context: &mut Context<'_>,
) -> Poll<Result<(), Fault>> {
    shared.under_way.driven_by(context);
    if shared.quic.poll_lost(context).is_ready() {
        // Before that, it may have said which requests it has not processed.
        let _ = shared.steer(steering, context);
        return Poll::Ready(Ok(()));
    }
    if let Err(fault) = shared.steer(steering, context) {
        return Poll::Ready(Err(fault));
    }
    match shared.send_own(context) {
        Ok(()) => Poll::Pending,
        Err(fault) => Poll::Ready(Err(fault)),
    }
}

impl QuicSlot {
    /// Sends a request's head; `is_whole` if nothing follows it. Response content that waits counts against
    /// the budget of `buffers`.
    pub fn send(self, head: &http::Request<()>, is_whole: bool, buffers: &Rc<Buffers>) -> Option<Stream> {
        let shared = self.connection.shared.clone();
        let reader = shared.protocol.borrow_mut().admit(number(self.id))?;
        self.is_used.set(true);
        let mut stream = Stream::of_backend(&shared, reader, frame_of(head), is_whole, self);
        stream.held.counts_for(buffers);
        shared.quic.note_asked();
        Some(stream)
    }
}

/// The HEADERS frame of a request.
fn frame_of(head: &http::Request<()>) -> Bytes {
    let mut frame = SectionWriter::new(Vec::with_capacity(512));
    let uri = head.uri();
    frame.field(b":method", head.method().as_str().as_bytes());
    frame.field(b":scheme", uri.scheme_str().unwrap_or("https").as_bytes());
    if let Some(authority) = uri.authority() {
        frame.field(b":authority", authority.as_str().as_bytes());
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    frame.field(b":path", path.as_bytes());
    for (name, value) in head.headers() {
        frame.field(name.as_str().as_bytes(), value.as_bytes());
    }
    frame.into_out().into()
}
