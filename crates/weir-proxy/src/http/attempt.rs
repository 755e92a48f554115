//! One attempt of an exchange on one backend: connect or reuse, send, receive the response's head.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weir_http::h1::connection::Busy;
use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::Duplex as _;
use weir_io::wait::send_all;
use weir_io::wait::{WaitError, timed_out};

use crate::backends::{self, Chosen, ConnectError};
use crate::http::connection::Connection;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::h2::Place;
use crate::http::kept::Kept;
use crate::http::muxed::Muxed;
use crate::http::session::{Session, due};
use crate::http::stream::Stream;
use crate::http::upload::Upload;
use crate::http::{drive, reply};
use crate::worker::{ListenerSlot, Worker};

/// How long an idle backend connection may have been idle to carry a request that must not be sent twice: one that the
/// backend closes at the very moment would lose it.
const FRESH: Duration = Duration::from_secs(1);

/// Wait between two looks at whether a backend's settings have come.
const SETTINGS_PAUSE: Duration = Duration::from_millis(5);

/// A response whose head is complete.
pub struct Answered {
    pub connection: Busy<Connection>,
    /// What was received of the response; its head is at the front.
    pub received: Buffer,
}

/// Why an attempt failed.
pub struct Failed {
    pub failure: Failure,
    /// Whether the connection had served an exchange before.
    pub reused: bool,
}

/// Makes one attempt. On success the response's head is in `exchange.response`.
pub async fn make(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    chosen: &Chosen,
    upload: &mut Upload,
    only_new: bool,
) -> Result<Answered, Failed> {
    // What can't be sent twice, or is not all here to be sent again, must not meet a backend that is just closing.
    let is_repeatable = facts.method.is_idempotent() && upload.is_done();
    let max_idle = if is_repeatable { Duration::MAX } else { FRESH };
    let max_idle = (!only_new).then_some(max_idle);
    let (mut connection, reused) =
        match begin(session, exchange, forwarding, facts, chosen, max_idle, upload).await {
            Ok(opened) => opened,
            Err(failure) => return Err(Failed { failure, reused: false }),
        };
    let failed = |failure| Failed { failure, reused };
    if facts.expect_continue && upload.is_awaited() && !exchange.continued {
        exchange.continued = true;
        reply::send_continue(session).await.map_err(|error| failed(error.into()))?;
        exchange.ledger.note_wait();
    }
    let sent_at = if reused { exchange.ledger.nearly_now() } else { clock::now() };
    upload.resume(sent_at);
    let timeout = &forwarding.listener.shared.config.timeout;
    let patience = if upload.is_awaited() { timeout.client_body } else { timeout.backend };
    session.deadline.set(due(&session.slot, sent_at, patience));
    match send_all(&mut **connection.connection(), &exchange.outgoing, &session.deadline, || {}).await {
        Ok(()) => {}
        Err(WaitError::TimedOut) => return Err(failed(Failure::BackendTimeout)),
        // It may have answered before it closed; what it said is worth reading.
        Err(WaitError::Broken(_)) => upload.refuse(),
    }
    let cells = chosen.backend().cells();
    cells.bytes_sent.add(exchange.outgoing.len() as u64);
    let received =
        drive::until_response(session, connection.connection(), exchange, forwarding, facts, upload)
            .await
            .map_err(|failure| {
                if let (Failure::BackendTimeout, Some(stream)) =
                    (&failure, connection.connection().as_muxed())
                {
                    stream.give_up_connection();
                }
                failed(failure)
            })?;
    let latency = clock::now().saturating_sub(sent_at);
    exchange.ledger.backend_header = Some(latency);
    cells.response_seconds.record(latency);
    Ok(Answered { connection, received })
}

/// What of a session is needed to get a connection to a backend. Its stream is free meanwhile.
struct Opener<'a> {
    worker: &'a Rc<Worker>,
    slot: &'a ListenerSlot,
    deadline: &'a Deadline,
    /// The PROXY header for a new connection, where the pool wants one.
    header: Option<Vec<u8>>,
}

impl Opener<'_> {
    /// Has `timeout` run from `began`.
    fn wait_until(&self, began: Duration, timeout: Duration) {
        self.deadline.set(due(self.slot, began, timeout));
    }
}

/// Gets a connection, or a stream of one. What the client sends meanwhile is gathered.
async fn begin(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    chosen: &Chosen,
    max_idle: Option<Duration>,
    upload: &Upload,
) -> Result<(Busy<Connection>, bool), Failure> {
    let client = exchange.ledger.client(session);
    let Session { worker, slot, deadline, stream, .. } = session;
    let send_proxy = forwarding.pool.shared.config.send_proxy;
    let header = send_proxy.map(|version| client.proxy_header(version, || stream.local_addr()));
    let opener = Opener { worker, slot, deadline, header };
    if !forwarding.over_h2() {
        let opening = pin!(open(&opener, exchange, forwarding, chosen, max_idle));
        return gathering(stream, opening).await;
    }
    let opening = pin!(open_stream(&opener, exchange, forwarding, facts, chosen, upload.is_none()));
    gathering(stream, opening).await
}

/// Waits for `other` and takes what comes over `stream` meanwhile.
async fn gathering<T>(stream: &mut Stream, mut other: Pin<&mut impl Future<Output = T>>) -> T {
    poll_fn(|context| {
        let polled = other.as_mut().poll(context);
        if polled.is_pending() {
            stream.gather(context);
        }
        polled
    })
    .await
}

/// A connection that has been idle for less than `max_idle`, or a new one.
async fn open(
    opener: &Opener<'_>,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    chosen: &Chosen,
    max_idle: Option<Duration>,
) -> Result<(Busy<Connection>, bool), Failure> {
    let backend = chosen.backend();
    if let Some(max_idle) = max_idle.filter(|_| opener.header.is_none())
        && let Some(idle) = backend.kept::<Kept>().take_idle(backend, exchange.ledger.nearly_now(), max_idle)
    {
        backend.cells().reused.increment();
        return Ok((idle.begin(), true));
    }
    let connection = Box::pin(connect(opener, exchange, forwarding, chosen)).await?;
    Ok((Busy::first(Connection::of_wire(connection)), false))
}

/// A stream of a connection that the backend shares among exchanges, with the request's head sent.
async fn open_stream(
    opener: &Opener<'_>,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    chosen: &Chosen,
    without_body: bool,
) -> Result<(Busy<Connection>, bool), Failure> {
    let backend = chosen.backend();
    let moves = backend.shared.resolved.moves();
    let (place, reused) = match backend.kept::<Kept>().carriers.place(moves) {
        Some(place) => (place, true),
        None => (Box::pin(wait_for_place(opener, exchange, forwarding, chosen)).await?, false),
    };
    if reused {
        backend.cells().reused.increment();
    }
    let Some(head) = exchange.stream_head.clone() else {
        return Err(Failure::Connect(ConnectError::Declined));
    };
    if facts.upgrade && !Box::pin(allows_tunnels(opener, &place)).await {
        return Err(Failure::Connect(ConnectError::Declined));
    }
    // A tunnel's stream goes on behind its head.
    let is_whole = without_body && !facts.upgrade;
    let stream = place
        .send(head, is_whole, &opener.worker.buffers)
        .map_err(|_| Failure::Connect(ConnectError::Declined))?;
    Ok((Busy::first(Connection::of_stream(Muxed::H2(stream))), reused))
}

/// Whether the backend takes extended CONNECT (RFC 8441 §3). On a connection just opened it may not have said so yet.
async fn allows_tunnels(opener: &Opener<'_>, place: &Place) -> bool {
    while !place.allows_tunnels() {
        if opener.deadline.has_passed() || !place.is_new() {
            return false;
        }
        tokio::time::sleep(SETTINGS_PAUSE).await;
    }
    true
}

/// Opens a connection to be shared, or waits until another exchange has.
async fn wait_for_place(
    opener: &Opener<'_>,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    chosen: &Chosen,
) -> Result<Place, Failure> {
    let backend = chosen.backend();
    let carriers = backend.kept::<Kept>().carriers.clone();
    let header_bytes = forwarding.listener.shared.config.http().limits.header_bytes as u32;
    let began = clock::now();
    loop {
        opener.wait_until(began, forwarding.listener.shared.config.timeout.connect);
        if let Some(place) = carriers.place(backend.shared.resolved.moves()) {
            exchange.ledger.connect = Some(clock::now().saturating_sub(began));
            return Ok(place);
        }
        if let Some(opening) = carriers.open() {
            let connection = connect(opener, exchange, forwarding, chosen).await?;
            let begun = opening.begin(connection, header_bytes, opener.deadline).await;
            return begun.map_err(|error| Failure::Connect(backend.wait_failed(error)));
        }
        let mut asked = false;
        poll_fn(|context| match carriers.poll_changed(context, &mut asked) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => timed_out(opener.deadline),
        })
        .await
        .map_err(|error| Failure::Connect(backend.wait_failed(error)))?;
    }
}

/// A new connection, with the PROXY header sent where the pool wants one.
async fn connect(
    opener: &Opener<'_>,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    chosen: &Chosen,
) -> Result<backends::Connection, Failure> {
    let backend = chosen.backend();
    let began = clock::now();
    opener.wait_until(began, forwarding.listener.shared.config.timeout.connect);
    let opened = backend.open(opener.worker, opener.deadline, opener.header.as_deref()).await;
    exchange.ledger.connect = Some(clock::now().saturating_sub(began));
    opened.map_err(Failure::Connect)
}
