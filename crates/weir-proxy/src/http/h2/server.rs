//! A client's HTTP/2 connection: receives requests, and gives each to an exchange of its own.

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
use weir_stats::table::{End, ListenerCells, Rejected};

use crate::http::failure::Failure;
use crate::http::h2::head;
use crate::http::h2::stream::Stream as RequestStream;
use crate::http::h2::wire::{Unsent, Watched, Wire};
use crate::http::idle::{IdleVerdict, Idleness, Patience};
use crate::http::limits::{clients_of, limits_of};
use crate::http::muxed::Muxed;
use crate::http::requester::Requester;
use crate::http::session::{LAST_CHANCE, Session};
use crate::http::stream_exchange::{self, Peer, Served};
use crate::http::tasks;
use crate::http::under_way::{ExchangeCount, STREAM_WINDOW_BYTES, UnderWay, connection_window};

/// Most bytes of content that wait in the connection to be sent, per stream.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Memory that small frames of content may take in addition to their content until somebody takes it: 256
/// bytes for each frame, less its content. A whole window of frames of 100 bytes does not reach this.
const SMALL_FRAMES_BYTES: usize = 256 << 10;
/// Requests that a client may reset before we have accepted them; beyond that `h2` closes the connection.
const RESETS_BEFORE_ACCEPT: usize = 20;
/// Requests that we may have to reset because of a client's errors in the life of a connection, including
/// those above the announced number of streams; beyond that `h2` closes the connection (threat B2). A client
/// may open any number of streams before it knows our limit.
const RESETS_FOR_ERRORS: usize = 1024;
/// The `h2` crate accepts this many times the limit of a head from a trusted proxy: it ends a connection on
/// which a head comes in too many frames, and the proxy may let its visitors send larger ones than we do.
const ROOM_FOR_SECTIONS: u32 = 4;

/// How long a client that sent too much may take to receive the news.
const FLOOD_PATIENCE: Duration = Duration::from_millis(500);

/// Serves a connection with HTTP/2 to its end. Bytes received already are in `session.requester.buffer`.
pub async fn serve(session: Session) {
    let Session { requester, stream, .. } = session;
    let Requester { worker, slot, secure, client, identity, buffers, deadline, buffer, .. } = requester;
    let listener = slot.current();
    let limits = &listener.shared.config.http().limits;
    let unsent = Unsent::new(u64::from(limits.streams) * SEND_BUFFER_BYTES as u64, &buffers);
    // A multiplexed connection is never itself a stream of another one.
    let Some(stream) = stream.into_wire() else { return };
    let clients = clients_of(identity.is_trusted(), limits);
    let watched = Watched::new(stream, limits.control_frames.saturating_mul(clients), unsent);
    let wire = Wire::of_client(buffer, watched.clone());
    deadline.set(clock::now() + listener.shared.config.timeout.header);
    let window = connection_window(identity.is_trusted(), limits.streams);
    let mut handshake = pin!(builder(limits, window, identity.is_trusted()).handshake::<Wire, Bytes>(wire));
    let connection = poll_fn(|context| match handshake.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(result.map_err(|_| End::BadRequest)),
        Poll::Pending if deadline.has_passed() => Poll::Ready(Err(End::ClientHeader)),
        Poll::Pending => Poll::Pending,
    })
    .await;
    let connection = match connection {
        Ok(connection) => connection,
        Err(end) => return listener.shared.cells.of(worker.number).count_ended(end),
    };
    let streams = limits.streams;
    // A first request may have come along with the preface; the connection still counts as idle before it.
    let now = clock::now();
    deadline.set_idle(Some(now));
    deadline.set(now + listener.shared.config.timeout.client_idle);
    drop(listener);
    let identity = Rc::new(Rc::unwrap_or_clone(identity).of_version(Version::Http2));
    let peer = Rc::new(Peer { worker, slot, secure, client, identity, buffers });
    let under_way = UnderWay::new(&peer.buffers, window);
    let received_bytes = watched.received_bytes.get();
    Driver {
        connection,
        peer,
        under_way,
        watched,
        deadline,
        streams,
        received_bytes,
        idleness: Some(Idleness::of_new(now)),
        phase: Phase::Open,
    }
    .run()
    .await;
}

fn builder(limits: &HttpLimits, window: u32, is_trusted: bool) -> Builder {
    let clients = clients_of(is_trusted, limits) as usize;
    let room = if is_trusted { ROOM_FOR_SECTIONS } else { 1 };
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits.streams)
        // Above our own limit, so that a head that is too large gets our answer, with the same text as in
        // other versions.
        .max_header_list_size((limits_of(limits).section_bytes() as u32).saturating_mul(room))
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(window)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .data_frame_budget(SMALL_FRAMES_BYTES)
        .max_pending_accept_reset_streams(RESETS_BEFORE_ACCEPT.saturating_mul(clients))
        .max_local_error_reset_streams(Some(RESETS_FOR_ERRORS.saturating_mul(clients)))
        .enable_connect_protocol();
    builder
}

/// The state of the task that drives one connection.
struct Driver {
    connection: Connection<Wire, Bytes>,
    peer: Rc<Peer>,
    under_way: Rc<UnderWay>,
    watched: Rc<Watched>,
    deadline: Deadline,
    /// Most exchanges at once.
    streams: u32,
    /// Bytes received when idleness was last checked.
    received_bytes: u64,
    /// Set while no exchange is running.
    idleness: Option<Idleness>,
    phase: Phase,
}

/// How far the connection is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The client may send more requests.
    Open,
    /// The client was told to open no further streams. Requests that it sent before it could know are served.
    Told,
    /// The client has sent too much. All that is left to do is to tell it.
    Flooded,
    /// Our direction has ended. The client may still read, and what it sends is discarded.
    Shut,
}

/// The result of polling the connection.
// Made once per request and taken apart at once: boxing it would cost more than moving it.
#[allow(clippy::large_enum_variant)]
enum Polled {
    Request(Request<RecvStream>, SendResponse<Bytes>),
    /// It is over; with the reason, if that is counted.
    Over(Option<End>),
}

/// The result of checking the connection.
enum Stock {
    /// It waits for something.
    Waits,
    /// It has something to send, and has to be driven once more.
    HasToSay,
    /// It is over, as [`Polled::Over`] says.
    Ends(Option<End>),
}

impl Driver {
    async fn run(mut self) {
        loop {
            match poll_fn(|context| self.poll_next(context)).await {
                Polled::Request(request, response) => self.begin(request, response),
                Polled::Over(None) => return,
                Polled::Over(Some(end)) => return self.count(|cells| cells.count_end(end)),
            }
        }
    }

    fn begin(&mut self, request: Request<RecvStream>, mut response: SendResponse<Bytes>) {
        let Some(count) = self.under_way.enter() else {
            self.count(|cells| cells.count_rejected(Rejected::Memory));
            return response.send_reset(Reason::REFUSED_STREAM);
        };
        let request = ReceivedRequest {
            peer: self.peer.clone(),
            watched: self.watched.clone(),
            count,
            request,
            response,
        };
        tasks::serve(&self.peer.worker, tasks::Job::H2(request));
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Polled> {
        loop {
            let is_exhausted = self.watched.flood_budget.borrow().is_exhausted();
            let polled = if self.under_way.count() < self.streams && !is_exhausted {
                self.connection.poll_accept(context)
            } else {
                // The connection is driven, but no further request is accepted.
                self.connection.poll_closed(context).map(|closed| closed.err().map(Err))
            };
            match polled {
                Poll::Ready(Some(Ok((request, response)))) => {
                    return Poll::Ready(Polled::Request(request, response));
                }
                // The usual ends of connections: the client closed, or broke the protocol and has been told.
                Poll::Ready(ended) => {
                    if matches!(ended, Some(Err(error)) if is_flood(&error)) {
                        self.count(|cells| cells.count_rejected(Rejected::FrameFlood));
                    }
                    return Poll::Ready(Polled::Over(None));
                }
                Poll::Pending => {}
            }
            self.under_way.driven_by(context);
            self.under_way.await_each(self.under_way.count() >= self.streams);
            match self.take_stock() {
                Stock::Waits => {}
                Stock::HasToSay => continue,
                Stock::Ends(end) => return Poll::Ready(Polled::Over(end)),
            }
            self.watched.turn.borrow_mut().end();
            self.watched.unsent.settle();
            return Poll::Pending;
        }
    }

    /// Checks what others ask of the connection, and how long nothing has happened.
    fn take_stock(&mut self) -> Stock {
        let is_open = matches!(self.phase, Phase::Open | Phase::Told);
        if is_open && self.watched.flood_budget.borrow().is_exhausted() {
            self.count(|cells| cells.count_rejected(Rejected::FrameFlood));
            self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            self.phase = Phase::Flooded;
            self.deadline.set(clock::now() + FLOOD_PATIENCE);
            return Stock::HasToSay;
        }
        if is_open && self.watched.is_shut.get() {
            self.shut();
        }
        if self.phase == Phase::Open && self.peer.slot.draining_until().is_some() {
            return self.tell();
        }
        self.watch_idleness();
        if self.deadline.is_shed() && self.under_way.count() == 0 {
            let (taken, patience) = (self.watched.taken(), self.patience());
            if let (Phase::Open, Some(idleness)) = (self.phase, &mut self.idleness)
                && !idleness.makes_room(taken, clock::now(), patience)
            {
                self.deadline.decline_shed();
                self.set_deadline();
                return Stock::Waits;
            }
            return Stock::Ends(Some(End::Overload));
        }
        if self.deadline.has_passed() { self.time_is_over() } else { Stock::Waits }
    }

    /// Notes exchanges that began or ended, and data that was received while there was none.
    fn watch_idleness(&mut self) {
        if matches!(self.phase, Phase::Flooded | Phase::Shut) {
            return;
        }
        let received_bytes = self.watched.received_bytes.get();
        match (&mut self.idleness, self.under_way.count() > 0) {
            (idleness @ Some(_), true) => *idleness = None,
            (idleness @ None, false) => *idleness = Some(Idleness::behind_exchange(clock::now())),
            (Some(idleness), false) if self.phase == Phase::Open && received_bytes > self.received_bytes => {
                idleness.heard(clock::now());
            }
            _ => return,
        }
        self.received_bytes = received_bytes;
        self.set_deadline();
    }

    fn set_deadline(&self) {
        self.deadline.set_idle(self.idleness.as_ref().and_then(Idleness::since));
        let due = self.idleness.as_ref().map_or(Duration::MAX, |idleness| idleness.due(self.patience()));
        let due = self.peer.slot.draining_until().map_or(due, |until| due.min(until));
        self.deadline.set(due);
    }

    fn patience(&self) -> Patience {
        let timeout = self.peer.slot.current().shared.config.timeout;
        let idle = if self.phase == Phase::Open { timeout.client_idle } else { LAST_CHANCE };
        Patience { idle, stalled: timeout.client_body }
    }

    fn time_is_over(&mut self) -> Stock {
        let now = clock::now();
        if self.phase == Phase::Flooded {
            return Stock::Ends(None);
        }
        if self.peer.slot.draining_until().is_some_and(|until| until <= now) {
            return Stock::Ends(Some(End::Draining));
        }
        let (taken, patience) = (self.watched.taken(), self.patience());
        let verdict = self.idleness.as_mut().map(|idleness| idleness.look(taken, now, patience));
        match (verdict, self.phase) {
            (None | Some(IdleVerdict::Stays), _) => {
                self.set_deadline();
                Stock::Waits
            }
            (Some(_), Phase::Shut | Phase::Flooded) => Stock::Ends(None),
            (Some(IdleVerdict::Stalled), _) => Stock::Ends(Some(End::ClientBody)),
            (Some(IdleVerdict::Idle), Phase::Open) => {
                self.count(|cells| cells.count_end(End::ClientIdle));
                self.tell()
            }
            (Some(IdleVerdict::Idle), Phase::Told) => {
                // The client does not show that it has understood.
                self.connection.abrupt_shutdown(Reason::NO_ERROR);
                self.shut();
                Stock::HasToSay
            }
        }
    }

    /// Tells the client to open no further streams; a request that it sent before it could know is served.
    fn tell(&mut self) -> Stock {
        self.connection.graceful_shutdown();
        self.phase = Phase::Told;
        self.idleness = self.idleness.map(|_| Idleness::behind_exchange(clock::now()));
        self.set_deadline();
        Stock::HasToSay
    }

    fn shut(&mut self) {
        self.phase = Phase::Shut;
        self.idleness = Some(Idleness::behind_exchange(clock::now()));
        self.set_deadline();
    }

    /// Counts at the listener as it is configured now.
    fn count(&self, count: impl FnOnce(&ListenerCells)) {
        count(self.peer.slot.current().shared.cells.of(self.peer.worker.number));
    }
}

/// A request, which counts as an exchange of its connection until it is served.
pub struct ReceivedRequest {
    peer: Rc<Peer>,
    watched: Rc<Watched>,
    count: ExchangeCount,
    request: Request<RecvStream>,
    response: SendResponse<Bytes>,
}

/// Serves one request.
pub async fn serve_request(received: ReceivedRequest) {
    let ReceivedRequest { peer, watched, mut count, request, response } = received;
    let (parts, body) = request.into_parts();
    let is_whole = body.is_end_stream();
    if !is_whole {
        count.expects_body();
    }
    let fields = parts.headers.len();
    let violation = watched.violation_of(body.stream_id());
    let scheme = if peer.secure.is_some() { Scheme::Https } else { Scheme::Http };
    let asks_for_tunnel = parts.extensions.get::<h2::ext::Protocol>().is_some();
    let stream = RequestStream::of_client(body, response, watched.clone(), asks_for_tunnel);
    let stream = Muxed::H2(stream);
    // The fields are dropped by the code that reads them: an answer may wait for its window long after that,
    // next to thousands of others (threat B5).
    let served = stream_exchange::serve(&peer, stream, async move |_, limits, _, exchange, text| {
        let read = head::read_request(&parts, scheme, is_whole, limits, &mut exchange.request, text);
        drop(parts);
        violation.map_or(read, Err).map_err(Failure::BadRequest)
    })
    .await;
    match served {
        Served::Answered => watched.answered(),
        Served::Refused => watched.refused(fields),
        Served::BrokenOff => {}
    }
}

/// Whether `h2` ended the connection because of one of its own limits: requests reset before they were
/// accepted, resets caused by the client's errors, continuations, tiny frames of content. Connections that we
/// end ourselves have been counted then.
fn is_flood(error: &h2::Error) -> bool {
    error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM)
}
