//! One attempt of an exchange on one backend: connect or reuse, send, receive the response's head.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use weir_http::h1::connection::Busy;
use weir_io::buffers::{Buffer, LARGE};
use weir_io::clock;
use weir_io::stream::{Duplex as _, Sight};
use weir_io::wait::{WaitError, give_way, send_all, timed_out};

use crate::backends::{self, Chosen, ConnectError};
use crate::http::ask::Call;
use crate::http::connection::Connection;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::h2::StreamSlot;
use crate::http::kept::Kept;
use crate::http::muxed::Muxed;
use crate::http::reply;
use crate::http::requester::{Recipient, Requester};
use crate::http::stream::Stream;

/// How long an idle backend connection may have been idle to carry a request that must not be sent twice: one
/// that the backend closes at the very moment would lose it.
const FRESH: Duration = Duration::from_secs(1);

/// Wait between two looks at whether a backend's settings have come.
const SETTINGS_PAUSE: Duration = Duration::from_millis(5);

/// Most bytes of a body that was held back that are sent before others get their turn.
const TURN_BYTES: usize = 1 << 20;

/// A response whose head is complete.
pub struct Begun {
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

impl<R: Recipient> Call<'_, R> {
    /// Makes one attempt. On success the response's head is in `exchange.response`.
    pub async fn attempt(&mut self, chosen: &Chosen, only_new: bool) -> Result<Begun, Failed> {
        // What can't be sent twice, or is not all here to be sent again, must not meet a backend that is just
        // closing.
        let is_repeatable = self.facts.method.is_idempotent() && self.upload.is_done();
        let max_idle = if is_repeatable { Duration::MAX } else { FRESH };
        let max_idle = (!only_new).then_some(max_idle);
        let (mut connection, reused) = match self.begin(chosen, max_idle).await {
            Ok(opened) => opened,
            Err(failure) => return Err(Failed { failure: self.requester.judge(failure), reused: false }),
        };
        let requester = self.requester;
        let failed = |failure| Failed { failure: requester.judge(failure), reused };
        if self.facts.expect_continue && self.upload.is_awaited() && !self.exchange.continued {
            self.exchange.continued = true;
            if let Some(stream) = self.recipient.stream() {
                let sent = reply::send_continue(stream, &self.requester.deadline).await;
                sent.map_err(|error| failed(error.into()))?;
            }
            self.exchange.ledger.note_wait();
        }
        let sent_at = if reused { self.exchange.ledger.nearly_now() } else { clock::now() };
        self.upload.resume(sent_at);
        let timeout = &self.forwarding.timers;
        let patience = match self.upload.is_awaited() {
            true => timeout.client_body,
            false => self.within_try(sent_at, timeout.backend),
        };
        self.requester.wait(sent_at, patience);
        let (outgoing, deadline) = (&self.exchange.outgoing, &self.requester.deadline);
        let sent = if outgoing.len() <= LARGE {
            send_all(&mut **connection.connection(), outgoing, deadline, || {}).await.map(|()| true)
        } else {
            Box::pin(send_held(connection.connection(), outgoing, self.requester, timeout.backend)).await
        };
        match sent {
            Ok(true) => {}
            Ok(false) => self.upload.cut(),
            Err(WaitError::TimedOut) => return Err(failed(Failure::BackendTimeout)),
            // It may have answered before it closed; what it said is worth reading.
            Err(WaitError::Broken(_)) => self.upload.refuse(),
        }
        let cells = chosen.backend().cells();
        cells.bytes_sent.add(self.exchange.outgoing.len() as u64);
        let received = self.until_response(connection.connection()).await.map_err(|failure| {
            let failure = requester.judge(failure);
            if let (Failure::BackendTimeout, Some(stream)) = (&failure, connection.connection().as_muxed()) {
                stream.give_up_connection();
            }
            failed(failure)
        })?;
        let latency = clock::now().saturating_sub(sent_at);
        self.exchange.ledger.backend_header = Some(latency);
        cells.response_seconds.record(latency);
        Ok(Begun { connection, received })
    }

    /// Gets a connection, or a stream of one. What the client sends meanwhile is gathered.
    async fn begin(
        &mut self,
        chosen: &Chosen,
        max_idle: Option<Duration>,
    ) -> Result<(Busy<Connection>, bool), Failure> {
        let connect = match self.try_until {
            Duration::MAX => self.forwarding.timers.connect,
            _ => self.within_try(clock::now(), self.forwarding.timers.connect),
        };
        let Call { requester, recipient, exchange, forwarding, facts, upload, .. } = self;
        let header = forwarding.pool.shared.config.send_proxy.map(|version| {
            let unknown = || Err(io::ErrorKind::Unsupported.into());
            let local = || recipient.stream().map_or_else(unknown, |stream| stream.local_addr());
            exchange.ledger.client(requester).proxy_header(version, local)
        });
        let mut opener = Opener { requester, exchange, forwarding, chosen, header, connect };
        if !forwarding.over_h2() {
            let opening = pin!(opener.open(max_idle));
            return gathering(&mut **recipient, opening).await;
        }
        let opening = pin!(opener.open_stream(facts, upload.is_none()));
        gathering(&mut **recipient, opening).await
    }
}

/// Sends a head with a body that was held back, of any length, as long as the backend takes some within its
/// `patience`. Gives whether all of it was sent: one that answers before it has all gets no more, for it may
/// not read it either, and then both would wait.
async fn send_held(
    backend: &mut Stream,
    outgoing: &[u8],
    requester: &Requester,
    patience: Duration,
) -> Result<bool, WaitError> {
    let mut sent = 0;
    poll_fn(|context| {
        let turn = sent + TURN_BYTES;
        while sent < turn {
            match backend.poll_send(context, &outgoing[sent..]) {
                Poll::Ready(Ok(count)) => sent += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(WaitError::Broken(error))),
                Poll::Pending => {
                    return match backend.poll_present(context) {
                        Ok(Sight::Quiet) => timed_out(&requester.deadline),
                        Ok(Sight::Speaking | Sight::Ended) => Poll::Ready(Ok(false)),
                        Err(error) => Poll::Ready(Err(WaitError::Broken(error))),
                    };
                }
            }
            if sent == outgoing.len() {
                return Poll::Ready(Ok(true));
            }
            requester.wait(clock::now(), patience);
        }
        give_way(context);
        Poll::Pending
    })
    .await
}

/// Waits for `other` and takes what comes from the client meanwhile.
async fn gathering<T>(recipient: &mut impl Recipient, mut other: Pin<&mut impl Future<Output = T>>) -> T {
    poll_fn(|context| {
        let polled = other.as_mut().poll(context);
        if polled.is_pending()
            && let Some(stream) = recipient.stream()
        {
            stream.gather(context);
        }
        polled
    })
    .await
}

/// What is needed to get a connection to a backend. The client's stream is free meanwhile.
struct Opener<'a> {
    requester: &'a Requester,
    exchange: &'a mut Exchange,
    forwarding: &'a Forwarding<'a>,
    chosen: &'a Chosen,
    /// The PROXY header for a new connection, where the pool wants one.
    header: Option<Vec<u8>>,
    /// For one to come about.
    connect: Duration,
}

impl Opener<'_> {
    /// A connection that has been idle for less than `max_idle`, or a new one.
    async fn open(&mut self, max_idle: Option<Duration>) -> Result<(Busy<Connection>, bool), Failure> {
        let backend = self.chosen.backend();
        let now = || self.exchange.ledger.nearly_now();
        if let Some(max_idle) = max_idle.filter(|_| self.header.is_none())
            && let Some(idle) = backend.kept::<Kept>().take_idle(backend, now(), max_idle)
        {
            backend.cells().reused.increment();
            return Ok((idle.begin(), true));
        }
        let connection = Box::pin(self.connect()).await?;
        Ok((Busy::first(Connection::of_wire(connection)), false))
    }

    /// A stream of a connection that the backend shares among exchanges, with the request's head sent.
    async fn open_stream(
        &mut self,
        facts: &Facts,
        without_body: bool,
    ) -> Result<(Busy<Connection>, bool), Failure> {
        let backend = self.chosen.backend();
        let moves = backend.shared.resolved.moves();
        let (slot, reused) = match backend.kept::<Kept>().h2.stream_slot(moves) {
            Some(slot) => (slot, true),
            None => (Box::pin(self.wait_for_slot()).await?, false),
        };
        if reused {
            backend.cells().reused.increment();
        }
        let Some(head) = self.exchange.stream_head.clone() else {
            return Err(Failure::Connect(ConnectError::Declined));
        };
        if facts.upgrade && !Box::pin(self.allows_tunnels(&slot)).await {
            return Err(Failure::Connect(ConnectError::Declined));
        }
        // A tunnel's stream goes on behind its head.
        let is_whole = without_body && !facts.upgrade;
        let stream = slot
            .send(head, is_whole, &self.requester.worker.buffers)
            .map_err(|_| Failure::Connect(ConnectError::Declined))?;
        Ok((Busy::first(Connection::of_stream(Muxed::H2(stream))), reused))
    }

    /// Whether the backend takes extended CONNECT (RFC 8441 §3). On a connection just opened it may not have
    /// said so yet.
    async fn allows_tunnels(&self, slot: &StreamSlot) -> bool {
        while !slot.allows_tunnels() {
            if self.requester.deadline.has_passed() || !slot.is_new() {
                return false;
            }
            tokio::time::sleep(SETTINGS_PAUSE).await;
        }
        true
    }

    /// Opens a connection to be shared, or waits until another exchange has.
    async fn wait_for_slot(&mut self) -> Result<StreamSlot, Failure> {
        let backend = self.chosen.backend();
        let connections = backend.kept::<Kept>().h2.clone();
        let config = &self.forwarding.listener.shared.config;
        let began = clock::now();
        loop {
            self.requester.wait(began, self.connect);
            if let Some(slot) = connections.stream_slot(backend.shared.resolved.moves()) {
                self.exchange.ledger.connect = Some(clock::now().saturating_sub(began));
                return Ok(slot);
            }
            let deadline = &self.requester.deadline;
            if let Some(opening) = connections.open() {
                let connection = self.connect().await?;
                let begun =
                    opening.begin(connection, config.http().limits.header_bytes as u32, deadline).await;
                return begun.map_err(|error| Failure::Connect(backend.wait_failed(error)));
            }
            let mut asked = false;
            poll_fn(|context| match connections.poll_changed(context, &mut asked) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => timed_out(deadline),
            })
            .await
            .map_err(|error| Failure::Connect(backend.wait_failed(error)))?;
        }
    }

    /// A new connection, with the PROXY header sent where the pool wants one.
    async fn connect(&mut self) -> Result<backends::Connection, Failure> {
        let Requester { worker, deadline, .. } = self.requester;
        let began = clock::now();
        self.requester.wait(began, self.connect);
        let client = self.exchange.ledger.client(self.requester).address.ip();
        let header = self.header.as_deref();
        let opened = self.chosen.backend().open(worker, deadline, header, Some(client)).await;
        self.exchange.ledger.connect = Some(clock::now().saturating_sub(began));
        opened.map_err(Failure::Connect)
    }
}
