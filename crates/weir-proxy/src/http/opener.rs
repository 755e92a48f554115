//! Gets the connection to the chosen backend for an attempt: a kept one, a stream of a shared one, or a new
//! one.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weir_config::{NEVER, PoolProtocol};
use weir_http::h1::connection::Busy;
use weir_http::h3::Code;
use weir_io::clock;
use weir_io::handshake::Offer;
use weir_io::wait::timed_out;
use weir_state::picked::{Picked, QuicTurn};

use crate::backends::{self, Chosen, ConnectError, ProxyHeader};
use crate::http::connection::Connection;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::h2::{BackendConnections, SETTINGS_PATIENCE, StreamSlot};
use crate::http::h3::{self, QuicConnections, QuicSlot};
use crate::http::kept::Kept;
use crate::http::muxed::Muxed;
use crate::http::race::Race;
use crate::http::requester::Requester;
use crate::http::shared_connections::SharedConnections;

/// Interval at which it is checked whether a backend's settings have arrived.
const SETTINGS_PAUSE: Duration = Duration::from_millis(5);

/// How long requests use TCP before QUIC is tried again, if it did not get through.
const NO_QUIC: Duration = Duration::from_secs(60);

/// The result of opening a connection to be shared.
enum Got {
    /// A stream on a shared connection.
    Slot(StreamSlot),
    /// A connection of its own: the backend could choose, and chose HTTP/1.1.
    Own(backends::Connection),
}

/// The single attempt at QUIC after it did not get through before. If this attempt has no result, for example
/// because its client has left, another exchange may make it.
struct Trial<'b> {
    picked: &'b Picked,
    is_over: bool,
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.picked.give_turn_back(clock::now());
        }
    }
}

/// What is needed to get a connection to a backend. The client's stream is not borrowed meanwhile.
pub struct Opener<'a> {
    pub requester: &'a Requester,
    pub exchange: &'a mut Exchange,
    pub forwarding: &'a Forwarding<'a>,
    pub chosen: &'a Chosen,
    /// The PROXY header that a new connection begins with.
    pub header: ProxyHeader,
    /// Time limit for opening a connection.
    pub connect: Duration,
    /// The request to send, if two backends may be asked in parallel.
    pub race: Option<&'a Race>,
}

/// A kept connection to `chosen` that has been idle for less than `max_idle`; `None` if a new one is needed.
#[inline]
pub fn take_idle(chosen: &Chosen, now: Duration, max_idle: Option<Duration>) -> Option<Busy<Connection>> {
    let backend = chosen.backend();
    let idle = backend.kept::<Kept>().take_idle(backend, now, max_idle?)?;
    backend.cells().reused.increment();
    Some(idle.begin())
}

impl Opener<'_> {
    /// Opens a new connection.
    pub async fn open(&mut self) -> Result<(Busy<Connection>, bool), Failure> {
        let connection = Box::pin(self.connect(Offer::Usual, clock::now())).await;
        let connection = connection.map_err(|failure| self.for_tunnel(failure))?;
        Ok((Busy::first(Connection::of_wire(connection)), false))
    }

    /// The failure of a connection in HTTP/1.1. In pools whose backends choose, only tunnels need one, and a
    /// backend that serves everything else may speak other versions alone, or not listen at TCP at all. That
    /// is not its failure, and a client could use up the pool's retry budget by it (threat B20).
    fn for_tunnel(&self, failure: Failure) -> Failure {
        let is_h3 = self.forwarding.pool.shared.config.protocol == PoolProtocol::H3;
        let is_over_quic = is_h3 && !self.chosen.backend().shared.picked.lacks_quic();
        match failure {
            Failure::Connect(ConnectError::Tls { speaks_none: true, .. })
                if self.forwarding.pool.shared.config.protocol.lets_pick() =>
            {
                Failure::NoTunnel
            }
            Failure::Connect(ConnectError::Refused { .. } | ConnectError::TimedOut { .. })
                if is_over_quic =>
            {
                Failure::NoTunnel
            }
            failure => failure,
        }
    }

    /// Opens a stream on a connection that exchanges share, and sends the request's head.
    pub async fn open_stream(
        &mut self,
        facts: &Facts,
        without_body: bool,
    ) -> Result<(Busy<Connection>, bool), Failure> {
        let backend = self.chosen.backend();
        let moves = backend.shared.resolved.moves();
        let has_content = !without_body || facts.upgrade;
        match backend.kept::<Kept>().h2.stream_slot(moves, has_content) {
            Some(slot) => {
                backend.cells().reused.increment();
                Ok((self.send_over(slot, facts, without_body).await?, true))
            }
            None => self.open_shared(Offer::Usual, facts, without_body).await,
        }
    }

    /// Opens a connection to be shared and sends the request's head on a stream of it. If `offer` lets the
    /// backend choose, and it does not choose a shared protocol, this gives a connection of its own.
    async fn open_shared(
        &mut self,
        offer: Offer,
        facts: &Facts,
        without_body: bool,
    ) -> Result<(Busy<Connection>, bool), Failure> {
        let has_content = !without_body || facts.upgrade;
        match Box::pin(self.wait_for_shared(offer, has_content)).await? {
            Got::Slot(slot) => Ok((self.send_over(slot, facts, without_body).await?, false)),
            Got::Own(connection) => Ok((Busy::first(Connection::of_wire(connection)), false)),
        }
    }

    /// The request's head in the form for streams.
    fn stream_head(&self) -> Option<&::http::Request<()>> {
        match self.race {
            Some(race) => race.heads.stream.as_ref(),
            None => self.exchange.heads.stream.as_ref(),
        }
    }

    /// Sends the request's head over a shared connection.
    async fn send_over(
        &mut self,
        slot: StreamSlot,
        facts: &Facts,
        without_body: bool,
    ) -> Result<Busy<Connection>, Failure> {
        let Some(head) = self.stream_head().cloned() else {
            return Err(Failure::Connect(ConnectError::Declined));
        };
        if facts.upgrade && !Box::pin(self.allows_tunnels(&slot)).await {
            // A retry would find the same, and would use up budget of requests whose backend has failed.
            return Err(Failure::NoTunnel);
        }
        // A tunnel's stream stays open after its head.
        let is_whole = without_body && !facts.upgrade;
        let stream = slot
            .send(head, is_whole, &self.requester.buffers)
            .map_err(|_| Failure::Connect(ConnectError::Declined))?;
        Ok(Busy::first(Connection::of_stream(Muxed::H2(stream))))
    }

    /// Opens a stream of an HTTP/3 connection; or of whatever there is over TCP, if QUIC does not get through
    /// and the pool allows that.
    pub async fn open_h3(
        &mut self,
        facts: &Facts,
        without_body: bool,
        max_idle: Option<Duration>,
    ) -> Result<(Busy<Connection>, bool), Failure> {
        let backend = self.chosen.backend();
        let connections = backend.kept::<Kept>().h3.clone();
        if let Some(slot) = connections.stream_slot(backend.shared.resolved.moves()) {
            backend.cells().reused.increment();
            return Ok((self.send_over_quic(slot, without_body)?, true));
        }
        let patience = self.forwarding.pool.shared.config.fall_back_after;
        let falls_back = patience != NEVER;
        let turn = match falls_back {
            true => backend.shared.picked.quic_turn(clock::now(), NO_QUIC),
            false => QuicTurn::CallerAlone,
        };
        if turn != QuicTurn::Others {
            let mut trial = Trial { picked: &backend.shared.picked, is_over: turn == QuicTurn::Anyone };
            let began = clock::now();
            match Box::pin(self.wait_for_quic(&connections, patience, turn)).await {
                Ok(Some(slot)) => {
                    trial.is_over = true;
                    return Ok((self.send_over_quic(slot, without_body)?, false));
                }
                // Another exchange has found that QUIC does not get through.
                Ok(None) => {}
                Err(failure) if !falls_back || self.requester.is_drained() => return Err(failure),
                // A request that has no time left shows nothing about QUIC, and would have no time for TCP
                // either.
                Err(failure) if self.is_cut_short(&failure, began, patience) => return Err(failure),
                Err(failure) => {
                    trial.is_over = true;
                    backend.cells().fell_back.increment();
                    if backend.shared.picked.note_no_quic(clock::now(), NO_QUIC) {
                        let (pool, backend) = (&self.chosen.pool.shared.config.name, &backend.shared.address);
                        let why = failure.of_backend();
                        tracing::warn!(pool, backend, why, "no HTTP/3: requests go over TCP for a minute");
                    }
                }
            }
        }
        let opened = self.open_either(facts, without_body, max_idle).await;
        // A backend without TCP may just have been late: the next request tries QUIC again, and not the first
        // one of the next minute.
        if falls_back && matches!(opened, Err(Failure::Connect(ConnectError::Refused { .. }))) {
            self.chosen.backend().shared.picked.give_turn_back(clock::now());
        }
        opened
    }

    /// Whether a QUIC connection that was begun at `began` failed only because it did not get its full time:
    /// the request's total time was over, or that of the attempt.
    fn is_cut_short(&self, failure: &Failure, began: Duration, patience: Duration) -> bool {
        let whole = patience.min(self.forwarding.timers().connect);
        matches!(failure, Failure::Connect(ConnectError::TimedOut { .. }))
            && clock::now().saturating_sub(began) < whole
    }

    /// Opens a QUIC connection, or waits until another exchange has; `None` if that exchange found that QUIC
    /// does not get through.
    async fn wait_for_quic(
        &mut self,
        connections: &Rc<QuicConnections>,
        patience: Duration,
        turn: QuicTurn,
    ) -> Result<Option<QuicSlot>, Failure> {
        let backend = self.chosen.backend();
        let Some(tls) = &backend.shared.tls else { return Ok(None) };
        let Some(settings) = tls.for_h3.as_ref().and_then(h3::settings) else { return Ok(None) };
        let Requester { worker, deadline, .. } = self.requester;
        let began = clock::now();
        self.requester.wait(began, self.connect.min(patience));
        loop {
            if let Some(slot) = connections.stream_slot(backend.shared.resolved.moves()) {
                self.exchange.ledger.connect = Some(clock::now().saturating_sub(began));
                return Ok(Some(slot));
            }
            if let Some(_leave) = connections.leave_to_open() {
                if turn == QuicTurn::Anyone && backend.shared.picked.lacks_quic() {
                    return Ok(None);
                }
                let bounds = (h3::IDLE_TIMEOUT, Code::ExcessiveLoad.value());
                let opened = backend.open_quic(worker, deadline, (settings, tls), bounds).await;
                self.exchange.ledger.connect = Some(clock::now().saturating_sub(began));
                let (quic, count, moves) = opened.map_err(Failure::Connect)?;
                backend.shared.picked.note_quic();
                let draw = worker.draw() as u32;
                let slot = connections.begin(
                    quic,
                    (self.forwarding.limits(), draw),
                    &worker.buffers,
                    (count, moves),
                );
                return slot.map(Some).ok_or(Failure::Connect(ConnectError::Declined));
            }
            self.until_changed(connections).await?;
        }
    }

    /// Sends the request's head on a stream of an HTTP/3 connection.
    fn send_over_quic(&self, slot: QuicSlot, without_body: bool) -> Result<Busy<Connection>, Failure> {
        let head = self.stream_head();
        let stream = head.and_then(|head| slot.send(head, without_body, &self.requester.buffers));
        let stream = stream.ok_or(Failure::Connect(ConnectError::Declined))?;
        Ok(Busy::first(Connection::of_stream(Muxed::H3(stream))))
    }

    /// Opens a stream of a shared connection, or a connection of its own, as the backend has chosen or
    /// chooses now.
    pub async fn open_either(
        &mut self,
        facts: &Facts,
        without_body: bool,
        max_idle: Option<Duration>,
    ) -> Result<(Busy<Connection>, bool), Failure> {
        let backend = self.chosen.backend();
        let kept = backend.kept::<Kept>();
        let has_content = !without_body || facts.upgrade;
        if let Some(slot) = kept.h2.stream_slot(backend.shared.resolved.moves(), has_content) {
            backend.cells().reused.increment();
            return Ok((self.send_over(slot, facts, without_body).await?, true));
        }
        if let Some(idle) = take_idle(self.chosen, self.exchange.ledger.nearly_now(), max_idle) {
            return Ok((idle, true));
        }
        self.open_shared(Offer::Either, facts, without_body).await
    }

    /// Opens a connection to be shared, or waits until another exchange has. If `offer` lets the backend
    /// choose, exchanges for a backend whose choice is not known, or is HTTP/2, share what the first of them
    /// gets. Nobody waits for another exchange if the backend chose HTTP/1.1.
    async fn wait_for_shared(&mut self, offer: Offer, has_content: bool) -> Result<Got, Failure> {
        let picks = offer == Offer::Either;
        let backend = self.chosen.backend();
        let connections = backend.kept::<Kept>().h2.clone();
        let began = clock::now();
        self.requester.wait(began, self.connect);
        loop {
            if let Some(slot) = connections.stream_slot(backend.shared.resolved.moves(), has_content) {
                self.exchange.ledger.connect = Some(clock::now().saturating_sub(began));
                return Ok(Got::Slot(slot));
            }
            if connections.awaits_settings(backend.shared.resolved.moves()) {
                self.until_changed(&connections).await?;
                continue;
            }
            // The exchange that opens one keeps its permission until the backend's choice is known.
            let leave = connections.leave_to_open();
            if leave.is_none() && !(picks && backend.shared.picked.is_h1()) {
                self.until_changed(&connections).await?;
                continue;
            }
            let connection = self.connect(offer, began).await?;
            if picks && !connection.is_h2() {
                return Ok(Got::Own(connection));
            }
            // The backend chose HTTP/1.1 before, so other exchanges may have opened a shared connection
            // meanwhile.
            if picks && let Some(slot) = connections.stream_slot(backend.shared.resolved.moves(), has_content)
            {
                return Ok(Got::Slot(slot));
            }
            return self.begin_shared(&connections, connection).await.map(Got::Slot);
        }
    }

    /// Whether the backend supports extended CONNECT (RFC 8441 §3). On a new connection it may not have said
    /// so yet.
    async fn allows_tunnels(&self, slot: &StreamSlot) -> bool {
        while !slot.allows_tunnels() {
            if self.requester.deadline.has_passed() || !slot.is_new() {
                return false;
            }
            tokio::time::sleep(SETTINGS_PAUSE).await;
        }
        true
    }

    /// Begins HTTP/2 on a new connection and takes a stream on it.
    async fn begin_shared(
        &self,
        connections: &Rc<BackendConnections>,
        connection: backends::Connection,
    ) -> Result<StreamSlot, Failure> {
        let header_bytes = self.forwarding.listener.shared.config.http().limits.header_bytes as u32;
        // Other requests wait for the settings of this connection, and no longer than they may wait for a
        // connection.
        let taken = self.exchange.ledger.connect.unwrap_or_default();
        let patience = SETTINGS_PATIENCE.min(self.forwarding.timers().connect.saturating_sub(taken) / 2);
        let begun = connections.begin(connection, header_bytes, &self.requester.deadline, patience).await;
        begun.map_err(|error| Failure::Connect(self.chosen.backend().wait_failed(error)))
    }

    /// Waits until another exchange has opened a connection, or ended on one.
    async fn until_changed<C>(&self, connections: &SharedConnections<C>) -> Result<(), Failure> {
        let mut asked = false;
        poll_fn(|context| match connections.poll_changed(context, &mut asked) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => timed_out(&self.requester.deadline),
        })
        .await
        .map_err(|error| Failure::Connect(self.chosen.backend().wait_failed(error)))
    }

    /// Opens a connection and sends the PROXY header if the pool wants one. The request has waited for it
    /// since `began`.
    async fn connect(&mut self, offer: Offer, began: Duration) -> Result<backends::Connection, Failure> {
        let Requester { worker, deadline, .. } = self.requester;
        self.requester.wait(began, self.connect);
        let client = self.exchange.ledger.client(self.requester).address.ip();
        let (backend, header) = (self.chosen.backend(), &self.header);
        let opened = match offer {
            Offer::Usual => backend.open(worker, deadline, header, Some(client)).await,
            Offer::Either => backend.open_either(worker, deadline, client).await,
        };
        self.exchange.ledger.connect = Some(clock::now().saturating_sub(began));
        opened.map_err(Failure::Connect)
    }
}
