//! A client's HTTP/2 connection: requests in, each to an exchange of its own.

use std::cell::RefCell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use weir_config::HttpLimits;
use weir_http::{Scheme, Version};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_stats::table::{End, Rejected};

use crate::http::crew;
use crate::http::failure::Failure;
use crate::http::h2::gauge::Gauge;
use crate::http::h2::head;
use crate::http::h2::stream::Stream as RequestStream;
use crate::http::h2::wire::{Unsent, Watched, Wire};
use crate::http::muxed::Muxed;
use crate::http::running::{CONNECTION_WINDOW_BYTES, Place, Running, STREAM_WINDOW_BYTES};
use crate::http::session::{LAST_CHANCE, Session, limits_of};
use crate::http::stream_exchange::{self, Peer, Served};
use crate::worker::WorkerListener;

/// Most content that waits in the connection to be sent, per stream.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// What small frames of content may take besides their content until somebody takes it, 256 bytes each less their content: by a whole window of
/// frames of 100 bytes it is not reached.
const SMALL_FRAMES_BYTES: usize = 256 << 10;
/// Requests that a client may have broken off before we took them up; `h2` closes the connection beyond.
const RESETS_BEFORE_ACCEPT: usize = 20;
/// Requests that a client may make us break off by errors of its own in the life of a connection, those above the announced number of streams
/// among them; `h2` closes the connection beyond (threat B2). A client may open as many streams as it likes before it knows our limit.
const RESETS_FOR_ERRORS: usize = 1024;

/// How long a client that sent too much may take to take the news.
const FLOOD_PATIENCE: Duration = Duration::from_millis(500);

/// Serves a connection on which HTTP/2 is spoken, to its end. What was received already is in `session.buffer`.
pub async fn serve(session: Session) {
    let Session { worker, slot, stream, secure, client, identity, deadline, buffer, .. } = session;
    let listener = slot.current();
    let limits = &listener.shared.config.limits;
    let gauge = Rc::new(RefCell::new(Gauge::new(limits.control_frames, clock::now())));
    let unsent = Unsent::new(u64::from(limits.streams) * SEND_BUFFER_BYTES as u64, &worker.buffers);
    let watched = Watched { gauge, malformed: Rc::default(), unsent };
    // What carries many is itself carried by nothing.
    let Some(stream) = stream.into_wire() else { return };
    let wire = Wire::of_client(stream, buffer, watched.clone());
    deadline.set(clock::now() + listener.shared.config.timeout.header);
    let mut handshake = pin!(builder(limits).handshake::<Wire, Bytes>(wire));
    let connection = poll_fn(|context| match handshake.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(result.map_err(|_| End::BadRequest)),
        Poll::Pending if deadline.has_passed() => Poll::Ready(Err(End::ClientHeader)),
        Poll::Pending => Poll::Pending,
    })
    .await;
    let connection = match connection {
        Ok(connection) => connection,
        Err(end) => return count_end(&listener, worker.number, end),
    };
    let streams = limits.streams;
    // A first request may have come along with the preface; its connection is idle before it all the same.
    let since = clock::now();
    deadline.set_idle(Some(since));
    deadline.set(since + listener.shared.config.timeout.client_idle);
    drop(listener);
    let identity = Rc::new(Rc::unwrap_or_clone(identity).of_version(Version::Http2));
    let peer = Rc::new(Peer { worker, slot, secure, client, identity });
    let running = Running::new(&peer.worker.buffers);
    Driver {
        connection,
        peer,
        running,
        watched,
        deadline,
        streams,
        idle_since: Some(since),
        closing: false,
        told: false,
    }
    .run()
    .await;
}

fn builder(limits: &HttpLimits) -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits.streams)
        // Above our own, so that what is too large gets our answer, in the words of every other version.
        .max_header_list_size(limits_of(limits).section_bytes() as u32)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .data_frame_budget(SMALL_FRAMES_BYTES)
        .max_pending_accept_reset_streams(RESETS_BEFORE_ACCEPT)
        .max_local_error_reset_streams(Some(RESETS_FOR_ERRORS))
        .enable_connect_protocol();
    builder
}

/// What drives one connection.
struct Driver {
    connection: Connection<Wire, Bytes>,
    peer: Rc<Peer>,
    running: Rc<Running>,
    watched: Watched,
    deadline: Deadline,
    /// Most exchanges at once.
    streams: u32,
    /// Since when no exchange is under way.
    idle_since: Option<Duration>,
    /// The client was told to open no further streams.
    told: bool,
    /// No more is expected of the client; what is left is to let it know.
    closing: bool,
}

/// What came of the connection.
// Made once per request and taken apart at once: a box would cost more than the move.
#[allow(clippy::large_enum_variant)]
enum Step {
    Request(Request<RecvStream>, SendResponse<Bytes>),
    Over,
    Ended(End),
}

impl Driver {
    async fn run(mut self) {
        loop {
            match poll_fn(|context| self.poll_step(context)).await {
                Step::Request(request, response) => self.begin(request, response),
                Step::Over => return,
                Step::Ended(end) => {
                    return count_end(&self.peer.slot.current(), self.peer.worker.number, end);
                }
            }
        }
    }

    fn begin(&mut self, request: Request<RecvStream>, response: SendResponse<Bytes>) {
        let order = Order {
            peer: self.peer.clone(),
            watched: self.watched.clone(),
            place: self.running.enter(),
            request,
            response,
        };
        crew::serve(&self.peer.worker, crew::Order::H2(order));
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        loop {
            let is_exhausted = self.watched.gauge.borrow().is_exhausted();
            let polled = if self.running.count() < self.streams && !is_exhausted {
                self.connection.poll_accept(context)
            } else {
                // Driven, but no further request is taken up.
                self.connection.poll_closed(context).map(|closed| closed.err().map(Err))
            };
            match polled {
                Poll::Ready(Some(Ok((request, response)))) => {
                    return Poll::Ready(Step::Request(request, response));
                }
                // How connections end: the client closed, or broke the protocol and has been told.
                Poll::Ready(ended) => {
                    if matches!(ended, Some(Err(error)) if is_flood(&error)) {
                        self.count_flood();
                    }
                    return Poll::Ready(Step::Over);
                }
                Poll::Pending => {}
            }
            self.running.driven_by(context);
            self.running.await_each(self.running.count() >= self.streams);
            if !self.closing && self.watched.gauge.borrow().is_exhausted() {
                self.count_flood();
                self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                self.close_within(FLOOD_PATIENCE);
                continue;
            }
            if let Some(until) = self.peer.slot.draining_until()
                && !self.told
            {
                self.told = true;
                self.connection.graceful_shutdown();
                self.deadline.set(until);
                continue;
            }
            self.watch_idleness();
            if self.deadline.has_passed() {
                if self.closing || self.told {
                    return Poll::Ready(Step::Ended(match self.peer.slot.draining_until() {
                        Some(_) => End::Draining,
                        None => End::ClientIdle,
                    }));
                }
                self.tell_and_close();
                continue;
            }
            if self.deadline.is_shed() && self.running.count() == 0 {
                return Poll::Ready(Step::Ended(End::Overload));
            }
            self.watched.gauge.borrow_mut().end_turn();
            self.watched.unsent.settle();
            return Poll::Pending;
        }
    }

    /// A connection without exchanges is idle, and closed after `timeout.client_idle`.
    fn watch_idleness(&mut self) {
        let is_idle = self.running.count() == 0;
        if is_idle == self.idle_since.is_some() {
            return;
        }
        self.idle_since = is_idle.then(clock::now);
        self.deadline.set_idle(self.idle_since);
        if self.told || self.closing {
            return;
        }
        self.deadline.set(match self.idle_since {
            Some(since) => since + self.peer.slot.current().shared.config.timeout.client_idle,
            None => Duration::MAX,
        });
    }

    /// Tells the client that it is over; it may have sent a request before it could know, which is served.
    fn tell_and_close(&mut self) {
        self.connection.graceful_shutdown();
        self.close_within(LAST_CHANCE);
    }

    fn close_within(&mut self, time: Duration) {
        self.closing = true;
        self.deadline.set(clock::now() + time);
    }

    fn count_flood(&self) {
        let cells = self.peer.slot.current();
        cells.shared.cells.of(self.peer.worker.number).rejected[Rejected::FrameFlood as usize].increment();
    }
}

/// A request, and its place among those of its connection until it is served.
pub struct Order {
    peer: Rc<Peer>,
    watched: Watched,
    place: Place,
    request: Request<RecvStream>,
    response: SendResponse<Bytes>,
}

/// Serves one request.
pub async fn serve_request(order: Order) {
    let Order { peer, watched, mut place, request, response } = order;
    let (parts, body) = request.into_parts();
    let is_whole = body.is_end_stream();
    if !is_whole {
        place.expects_body();
    }
    let fields = parts.headers.len();
    let violation = watched.violation_of(body.stream_id());
    let scheme = if peer.secure.is_some() { Scheme::Https } else { Scheme::Http };
    let stream = Muxed::H2(RequestStream::of_client(body, response, watched.clone()));
    // The fields go with what reads them: an answer may wait for its window long after, with thousands beside it (threat B5).
    let served = stream_exchange::serve(&peer, stream, async move |_, limits, _, exchange, text| {
        let read = head::read_request(&parts, scheme, is_whole, limits, &mut exchange.request, text);
        drop(parts);
        violation.map_or(read, Err).map_err(Failure::BadRequest)
    })
    .await;
    match served {
        Served::Answered => watched.gauge.borrow_mut().answered(),
        Served::Refused => watched.gauge.borrow_mut().refused(fields),
        Served::BrokenOff => {}
    }
}

/// Whether `h2` ended the connection over what it counts by itself: requests reset before they were taken up, resets that the client's errors
/// made us send, continuations, tiny frames of content. What we end by ourselves was counted then.
fn is_flood(error: &h2::Error) -> bool {
    error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM)
}

fn count_end(listener: &WorkerListener, worker: usize, end: End) {
    listener.shared.cells.of(worker).ends[end as usize].increment();
}
