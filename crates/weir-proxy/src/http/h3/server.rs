//! A client's HTTP/3 connection: receives requests, and gives each to an exchange of its own.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn_proto::{Dir, StreamId};
use rustls::ProtocolVersion;
use weir_http::h3::{self, Code, Config};
use weir_http::{Method, Version};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::flood::Budget;
use weir_io::handshake::{Secure, subject_of};
use weir_quic::connection::Connection;
use weir_stats::table::{End, Rejected};

use super::shared::{Shared, number};
use super::stream::{HeadError, Stream};
use crate::client::Client;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::idle::{IdleVerdict, Idleness, Patience};
use crate::http::limits::{clients_of, limits_of};
use crate::http::muxed::{Muxed, confirm};
use crate::http::session::{LAST_CHANCE, identify};
use crate::http::stream_exchange::{self, Peer, Served};
use crate::http::tasks;
use crate::http::under_way::{CONNECTION_WINDOW_BYTES, ExchangeCount, UnderWay};
use crate::shares;
use crate::worker::{ListenerSlot, Worker};

/// A client that does not answer pings for this long while the connection is being closed is considered gone.
const SILENCE: Duration = Duration::from_secs(5);
/// Serves a connection whose handshake is complete, to its end.
pub async fn serve(worker: Rc<Worker>, slot: Rc<ListenerSlot>, quic: Rc<Connection>) {
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    let listener = slot.current();
    deadline.belongs_to(listener.shared.number());
    let limits = &listener.shared.config.http().limits;
    let secure = secure(&slot, &quic);
    let peer = peer(&worker, &slot, &quic, &secure);
    quic.counts_for(&peer.buffers);
    // A WebSocket server behind Weir would have to be asked in HTTP/1.1: see RFC 9220.
    let config = Config::new(&limits_of(limits));
    let frames = limits.control_frames.saturating_mul(clients_of(peer.identity.is_trusted(), limits));
    let shared = Rc::new(Shared {
        protocol: RefCell::new(h3::Connection::new(&config, worker.draw() as u32)),
        quic,
        own: [Cell::new(None), Cell::new(None)],
        blocked: RefCell::default(),
        refused_from: Cell::new(u64::MAX),
        awaited: RefCell::default(),
        flood_budget: RefCell::new(Budget::new(frames, clock::now())),
        is_flooded: Cell::new(false),
        under_way: UnderWay::new(&peer.buffers, CONNECTION_WINDOW_BYTES),
        buffers: peer.buffers.clone(),
        late: Cell::new(0),
        has_read_last: Cell::new(false),
    });
    let streams = limits.streams;
    drop(listener);
    let driver = Driver {
        shared,
        peer,
        deadline,
        streams,
        steering: Vec::new(),
        idleness: None,
        idle_since: None,
        draining: Draining::Not,
        taken_out_until: None,
        end_at: Duration::MAX,
        asked_at: None,
        probe_at: Duration::MAX,
    };
    driver.run().await;
}

/// The client, with its validated address.
fn peer(
    worker: &Rc<Worker>,
    slot: &Rc<ListenerSlot>,
    quic: &Connection,
    secure: &Option<Rc<Secure>>,
) -> Rc<Peer> {
    let address = quic.client();
    let client = Client { peer: address, address, destination: Some(quic.local()) };
    let port = quic.local().port();
    let identity = identify(&slot.current(), &client, port, secure.as_deref()).of_version(Version::Http3);
    let buffers = shares::of_connection(worker, &client, identity.is_trusted());
    Rc::new(Peer {
        worker: worker.clone(),
        slot: slot.clone(),
        secure: secure.clone(),
        client,
        identity: Rc::new(identity),
        buffers,
    })
}

/// The result of the TLS handshake.
fn secure(slot: &ListenerSlot, quic: &Connection) -> Option<Rc<Secure>> {
    let server = slot.current().shared.tls.clone()?;
    let agreed = quic.handshake();
    let (alpn, name) = agreed.map_or((None, None), |agreed| (agreed.protocol, agreed.server_name));
    let certificates = quic.client_certificates();
    let client_certificate: Option<Box<[u8]>> =
        certificates.and_then(|chain| chain.first().map(|first| Box::from(&**first)));
    Some(Rc::new(Secure {
        server,
        server_name: name.map(|name| name.to_ascii_lowercase().into()),
        alpn: alpn.map(Vec::into_boxed_slice),
        version: ProtocolVersion::TLSv1_3,
        // Quinn does not give it out.
        cipher: None,
        client_subject: subject_of(client_certificate.as_deref()),
        client_certificate,
    }))
}

/// How far the connection is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draining {
    Not,
    /// The client was told that the end is near; requests that it sent before it could know are still
    /// accepted.
    Announced {
        since: Duration,
    },
    /// No more requests are accepted.
    Refusing,
}

/// The state of the task that drives one connection.
struct Driver {
    shared: Rc<Shared>,
    peer: Rc<Peer>,
    deadline: Deadline,
    /// Most exchanges at once.
    streams: u32,
    /// The client's unidirectional streams.
    steering: Vec<StreamId>,
    /// Set while no exchange is running.
    idleness: Option<Idleness>,
    /// Since when it counts as idle.
    idle_since: Option<Duration>,
    draining: Draining,
    /// How long the connection may stay if its listener no longer offers HTTP/3.
    taken_out_until: Option<Duration>,
    /// When draining goes on whatever the client does.
    end_at: Duration,
    /// When the client was first pinged, and when it is pinged next.
    asked_at: Option<Duration>,
    probe_at: Duration,
}

impl Driver {
    async fn run(mut self) {
        let end = poll_fn(|context| self.poll_end(context)).await;
        if let Some((end, code)) = end {
            self.shared.quic.close(code.value(), "");
            let listener = self.peer.slot.current();
            listener.shared.cells.of(self.peer.worker.number).count_end(end);
        }
    }

    /// Moves everything on; ready when the connection is over, with the reason if we ended it.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Option<(End, Code)>> {
        self.shared.under_way.driven_by(context);
        if self.shared.quic.poll_lost(context).is_ready() {
            return Poll::Ready(None);
        }
        if let Err(fault) = self.shared.steer(&mut self.steering, context) {
            self.shared.fail(fault);
            return Poll::Ready(None);
        }
        self.take_requests(context);
        if let Err(fault) = self.shared.send_own(context) {
            self.shared.fail(fault);
            return Poll::Ready(None);
        }
        if self.shared.is_flooded.get() {
            let listener = self.peer.slot.current();
            let cells = listener.shared.cells.of(self.peer.worker.number);
            cells.count_rejected(Rejected::FrameFlood);
            return Poll::Ready(Some((End::BadRequest, Code::ExcessiveLoad)));
        }
        self.watch_idleness(context);
        self.watch_config();
        let is_draining = self.draining_until().is_some() || self.deadline.is_shed();
        self.shared.under_way.await_each(is_draining || self.shared.under_way.count() >= self.streams);
        match self.drain(context) {
            Some(end) => Poll::Ready(Some((end, Code::NoError))),
            None if self.is_stalled(context) => Poll::Ready(Some((End::ClientBody, Code::NoError))),
            None => Poll::Pending,
        }
    }

    /// Begins an exchange for each new request, up to the limit of concurrent ones.
    fn take_requests(&mut self, context: &mut Context<'_>) {
        while self.shared.under_way.count() < self.streams
            && let Poll::Ready(Some(id)) = self.shared.quic.poll_accept(Dir::Bi, context)
        {
            let admitted = self.shared.protocol.borrow_mut().admit(number(id));
            let Some(reader) = admitted else {
                self.refuse(id);
                continue;
            };
            let Some(count) = self.shared.under_way.enter() else {
                let listener = self.peer.slot.current();
                listener.shared.cells.of(self.peer.worker.number).count_rejected(Rejected::Memory);
                self.refuse(id);
                continue;
            };
            if self.shared.quic.client() != self.peer.client.address {
                let Peer { worker, slot, secure, .. } = &*self.peer;
                self.peer = peer(worker, slot, &self.shared.quic, secure);
            }
            let request = ReceivedRequest {
                peer: self.peer.clone(),
                count,
                stream: Stream::of_client(&self.shared, id, reader),
                shared: self.shared.clone(),
            };
            tasks::serve(&self.peer.worker, tasks::Job::H3(request));
        }
    }

    /// Rejects the request of this stream unprocessed, so that the client may send it again elsewhere.
    fn refuse(&self, id: StreamId) {
        self.shared.quic.reset(id, h3::Connection::REFUSED.value());
        self.shared.quic.stop(id, h3::Connection::REFUSED.value());
        self.shared.abandon(id);
        self.shared.quic.forget(id);
    }

    /// Takes note of exchanges that began or ended. Of a connection that is idle for too long QUIC takes care
    /// by itself, but not of a client that says something and reads nothing.
    fn watch_idleness(&mut self, context: &mut Context<'_>) {
        let is_busy = self.shared.under_way.count() > 0;
        if is_busy == self.idleness.is_some() {
            self.idleness = (!is_busy).then(|| Idleness::behind_exchange(clock::now()));
            self.set_deadline();
        }
        let is_unsent = self.shared.is_unsent(context);
        let idle_since = self.idleness.filter(|_| !is_unsent).and_then(|idleness| idleness.since());
        if idle_since != self.idle_since {
            self.idle_since = idle_since;
            self.deadline.set_idle(idle_since);
        }
    }

    fn set_deadline(&self) {
        if self.draining == Draining::Not {
            self.deadline.set(self.idleness.map_or(Duration::MAX, |idleness| idleness.due(self.patience())));
        }
    }

    fn patience(&self) -> Patience {
        let timeout = self.peer.slot.current().shared.config.timeout;
        Patience { idle: timeout.client_idle, stalled: timeout.client_body }
    }

    /// Whether the client has taken nothing of what is unsent for too long.
    fn is_stalled(&mut self, context: &mut Context<'_>) -> bool {
        let patience = self.patience();
        let Some(idleness) = self.idleness.as_mut().filter(|_| self.deadline.has_passed()) else {
            return false;
        };
        let is_unsent = self.shared.is_unsent(context);
        let taken = is_unsent.then(|| self.shared.quic.pieces_sent());
        match idleness.look(taken, clock::now(), patience) {
            IdleVerdict::Stalled => return true,
            IdleVerdict::Stays => self.set_deadline(),
            IdleVerdict::Idle => self.deadline.set(Duration::MAX),
        }
        false
    }

    /// Notices a reload after which the listener no longer offers HTTP/3. New connections are then refused,
    /// but this one would last for as long as its client likes.
    fn watch_config(&mut self) {
        let Peer { worker, slot, .. } = &*self.peer;
        if self.taken_out_until.is_none()
            && slot.current().shared.tls.as_deref().is_none_or(|tls| tls.quic_config().is_none())
        {
            self.taken_out_until = Some(clock::now() + worker.patience_of_leavers.get());
        }
    }

    /// When the connection is cut off; `None` while it may stay.
    fn draining_until(&self) -> Option<Duration> {
        let of_slot = self.peer.slot.draining_until();
        of_slot.into_iter().chain(self.taken_out_until).min()
    }

    /// Tells the client of the end that is to come, refuses requests a round trip later, and closes once all
    /// are done.
    fn drain(&mut self, context: &mut Context<'_>) -> Option<End> {
        let until = self.draining_until();
        if until.is_none() && !self.deadline.is_shed() {
            return None;
        }
        let reason = if until.is_some() { End::Draining } else { End::Overload };
        let now = clock::now();
        if self.draining == Draining::Not {
            self.draining = Draining::Announced { since: now };
            self.shared.protocol.borrow_mut().announce_end();
            let last = now + LAST_CHANCE;
            self.end_at = until.map_or(last, |until| until.min(last));
            self.probe_at = now;
        }
        if let Draining::Announced { since } = self.draining
            && (now >= self.end_at || now >= since + LAST_CHANCE)
        {
            self.draining = Draining::Refusing;
            self.shared.protocol.borrow_mut().refuse_requests();
            self.end_at = until.unwrap_or(now + LAST_CHANCE);
        }
        let _ = self.shared.send_own(context);
        let is_gone = self.look_for_client(now);
        self.deadline.set(self.end_at.min(self.probe_at));
        if self.draining != Draining::Refusing {
            return None;
        }
        let is_answered = self.shared.under_way.count() == 0 && self.shared.late.get() == 0;
        // Closing discards what the client has not received yet, so its answers must have been acknowledged.
        let is_over = is_answered && self.shared.quic.poll_acknowledged(context).is_ready();
        (is_over || is_gone || now >= self.end_at).then_some(reason)
    }

    /// Pings the client now and then; gives whether it has gone. A process must not be kept from ending by
    /// data that a client which has gone does not acknowledge.
    fn look_for_client(&mut self, now: Duration) -> bool {
        let silence = self.shared.quic.silence();
        if now >= self.probe_at {
            self.probe_at = now + SILENCE / 2;
            self.shared.quic.probe();
        }
        self.asked_at.get_or_insert(now);
        silence >= SILENCE && self.asked_at.is_some_and(|asked| now >= asked + SILENCE)
    }
}

/// A request, which counts as an exchange of its connection until it is served.
pub struct ReceivedRequest {
    shared: Rc<Shared>,
    peer: Rc<Peer>,
    stream: Stream,
    count: ExchangeCount,
}

/// Serves one request.
pub async fn serve_request(received: ReceivedRequest) {
    let ReceivedRequest { shared, peer, mut stream, mut count } = received;
    // Before anything is allocated for it: its head must be here.
    match await_section(&peer, &mut stream).await {
        Ok(()) => {}
        Err(NoHead::Gone) => return,
        Err(NoHead::Late) => {
            let listener = peer.slot.current();
            return listener.shared.cells.of(peer.worker.number).count_rejected(Rejected::HeaderTimeout);
        }
    }
    let served =
        stream_exchange::serve(&peer, Muxed::H3(stream), async |stream, limits, deadline, exchange, text| {
            let Muxed::H3(h3) = &mut *stream else { return Err(Failure::ClientClosed) };
            let read = poll_fn(|context| match h3.poll_head(context, limits, &mut exchange.request, text) {
                Poll::Ready(read) => Poll::Ready(Some(read)),
                // It waits for the client's QPACK encoder (threat C4).
                Poll::Pending if deadline.has_passed() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            match read.await {
                Some(Ok(())) => {
                    if !exchange.request.body().is_empty() {
                        count.expects_body();
                        make_room(&peer, &shared);
                    }
                    take_up(&shared, stream, deadline, exchange).await
                }
                Some(Err(HeadError::Refused(violation))) => Err(Failure::BadRequest(violation)),
                Some(Err(HeadError::Gone(_))) => Err(Failure::ClientClosed),
                None => Err(Failure::HeaderTimeout),
            }
        })
        .await;
    match served {
        Served::Answered => shared.flood_budget.borrow_mut().request_answered(),
        // Reading it may have been most of the work (threat C4).
        Served::Refused => shared.count_broken(),
        Served::BrokenOff => {}
    }
}

/// Widens the connection's window for one more body: otherwise two that a backend does not read would keep
/// all other requests waiting (threat B28).
fn make_room(peer: &Peer, shared: &Shared) {
    let streams = peer.slot.current().shared.config.http().limits.streams;
    if let Some(window) = shared.under_way.widen(peer.identity.is_trusted(), streams) {
        shared.quic.widen_window(window);
    }
}

/// Handles a request that came before the handshake was complete and may be a replay: it is served at once if
/// it may be repeated, and otherwise waits (threat C7).
async fn take_up(
    shared: &Shared,
    stream: &mut Muxed,
    deadline: &Deadline,
    exchange: &mut Exchange,
) -> Result<(), Failure> {
    if !shared.quic.is_early() {
        return Ok(());
    }
    let request = &exchange.request;
    // RFC 8470 section 3: only for safe methods is it known what a resource does with a repeated request.
    let may_be_repeated = matches!(request.method(), Method::Get | Method::Head | Method::Options)
        && request.body().is_empty()
        && !request.is_extended_connect();
    if !may_be_repeated {
        return confirm(stream, deadline).await;
    }
    exchange.early = true;
    shared.quic.note_early();
    Ok(())
}

/// Why the head of a request is no longer waited for.
enum NoHead {
    /// It did not come in time.
    Late,
    /// The stream is over.
    Gone,
}

/// Waits for the bytes of the head, at most for `timeout.header`.
async fn await_section(peer: &Peer, stream: &mut Stream) -> Result<(), NoHead> {
    let mut deadline: Option<Deadline> = None;
    poll_fn(|context| match stream.poll_section(context) {
        Poll::Ready(found) => Poll::Ready(found.map_err(|_| NoHead::Gone)),
        Poll::Pending => {
            let deadline = deadline.get_or_insert_with(|| {
                let deadline = peer.worker.deadlines.register(context.waker().clone());
                let timeout = peer.slot.current().shared.config.timeout.header;
                deadline.set(clock::now() + timeout);
                deadline
            });
            match deadline.has_passed() {
                true => Poll::Ready(Err(NoHead::Late)),
                false => Poll::Pending,
            }
        }
    })
    .await
}
