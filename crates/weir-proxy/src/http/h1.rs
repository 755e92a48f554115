//! A client's TCP connection: finds out who the client is and which protocol it speaks. For HTTP/1.1 it
//! serves one exchange after another until either side closes.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpStream;
use weir_config::HttpVersion;
use weir_http::{Limits, Progress, parse_request};
use weir_io::buffers::{Held, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Stream as Wire};
use weir_io::wait::boxed;
use weir_stats::table::End;

use crate::handshake;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::idle::{IdleVerdict, Idleness, Patience};
use crate::http::requester::{Requester, Total};
use crate::http::session::{LAST_CHANCE, Session};
use crate::http::stream::Stream;
use crate::http::{dispatch, h2, linger, session};
use crate::identify;
use crate::shares;
use crate::worker::{ListenerSlot, Worker, WorkerListener};

/// A partly received head up to this size, in bytes, is moved out of its read buffer while more is awaited,
/// so that a client that sends one byte and stops does not make us hold a whole buffer. It counts for the
/// client as what it is (threat D34).
const PARKED_BYTES: usize = SMALL / 4;

/// Requests that follow each other within this time are served by one boxed future, because allocating one
/// for each would cost more than anything else that Weir itself does with a small request.
const CLOSE_TOGETHER: Duration = Duration::from_millis(100);

/// How the wait for a request ended.
enum Arrival {
    /// Its head is complete.
    Complete,
    /// No further request will come; there is nothing to answer.
    Gone,
    /// It can't be served: answer and close.
    Refused(Failure),
}

/// Serves one connection to its end.
pub async fn serve(worker: Rc<Worker>, slot: Rc<ListenerSlot>, stream: TcpStream, peer: SocketAddr) {
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    let mut buffer = None;
    let mut wire = Wire::plain(stream);
    let listener = slot.current();
    deadline.belongs_to(listener.shared.number());
    let (mut client, _counted) = match Box::pin(identify::by_header(
        &listener,
        &mut wire,
        peer,
        &mut buffer,
        &worker,
        &deadline,
    ))
    .await
    {
        Ok(identified) => identified,
        Err(end) => {
            count_refused_session(&worker, &listener, end);
            // A peer that is not accepted gets no answer to learn from.
            wire.reset_on_close();
            return;
        }
    };
    let buffers = shares::of_connection(&worker, &client, listener.shared.trusts(client.address.ip()));
    if let Some(first) = &mut buffer {
        first.counts_for(&buffers);
    }
    let shaken =
        boxed(|| handshake::with_client(&worker, &listener, &buffers, wire, &mut buffer, &deadline)).await;
    let (wire, secure) = match shaken {
        Ok(shaken) => shaken,
        Err(end) => return count_refused_session(&worker, &listener, end),
    };
    if listener.compiled.sends_proxy {
        client.note_destination(|| wire.local_addr());
    }
    let port = client.port_asked(&listener.shared.config, || wire.local_addr());
    let identity = Rc::new(session::identify(&listener, &client, port, secure.as_deref()));
    drop(listener);
    let stream = Stream::of_wire(wire);
    let total = Total::endless();
    let requester = Requester { worker, slot, secure, client, identity, buffers, deadline, total, buffer };
    let mut session = Session { requester, stream, idle_since: None };
    match session.spoken().await {
        Ok(Spoken::Http1) => session.run().await,
        Ok(Spoken::Http2) => boxed(|| h2::serve(session)).await,
        Err(end) => session.end_idle(end),
    }
}

/// Counts a session that ended before any request: its PROXY header was missing, malformed, late, or named a
/// client that has its share already; or the TLS handshake failed, or was only for a certificate authority.
fn count_refused_session(worker: &Worker, listener: &WorkerListener, end: End) {
    listener.shared.cells.of(worker.number).count_ended(end);
}

/// The protocol that a client speaks.
enum Spoken {
    Http1,
    Http2,
}

impl Session {
    /// Finds out which protocol the client speaks. With TLS, ALPN says it; without, HTTP/2 is recognised by
    /// the first bytes of its preface, if the listener offers it (threat B16). A client with TLS that
    /// negotiated nothing speaks HTTP/1.1 if that is offered (RFC 9113 §3.2 requires HTTP/2 to be
    /// negotiated).
    async fn spoken(&mut self) -> Result<Spoken, End> {
        if let Some(agreed) = self.requester.secure.as_ref().and_then(|secure| secure.alpn.as_deref()) {
            return Ok(if agreed == b"h2" { Spoken::Http2 } else { Spoken::Http1 });
        }
        let listener = self.requester.slot.current();
        let offers = |version| listener.shared.config.http().versions.contains(&version);
        let offers_http1 = offers(HttpVersion::H1);
        if !offers(HttpVersion::H2) || (offers_http1 && self.requester.secure.is_some()) {
            return Ok(Spoken::Http1);
        }
        self.await_first_byte(true).await?;
        let limits = Limits::default();
        loop {
            let received = self.requester.received();
            let compared = received.len().min(h2::PREFACE.len());
            if received[..compared] != h2::PREFACE[..compared] {
                if offers_http1 {
                    return Ok(Spoken::Http1);
                }
                // The client speaks something else and would not understand an answer; but it should see an
                // orderly close, and not a reset.
                boxed(|| linger::until_quiet(self)).await;
                return Err(End::BadRequest);
            }
            if compared == h2::PREFACE.len() {
                return Ok(Spoken::Http2);
            }
            self.requester
                .deadline
                .set(clock::now() + self.requester.slot.current().shared.config.timeout.header);
            self.receive_more(&limits).await.map_err(|failure| failure.end())?;
        }
    }

    async fn run(&mut self) {
        let mut is_first = true;
        loop {
            if let Err(end) = self.await_first_byte(is_first).await {
                self.stream.say_farewell().await;
                return self.end_idle(end);
            }
            is_first = false;
            // Boxed: ten thousand idle sessions must not each hold space for an exchange.
            if boxed(|| self.serve_while_busy()).await.is_break() {
                return;
            }
        }
    }

    /// Serves requests as long as they follow each other closely; `Break` when the connection is over.
    async fn serve_while_busy(&mut self) -> ControlFlow<()> {
        loop {
            let mut exchange = Exchange::take();
            let listener = self.requester.slot.current();
            let after = match self.receive_head(&listener, &mut exchange).await {
                Arrival::Complete => dispatch::run(self, listener, &mut exchange).await,
                Arrival::Refused(failure) => {
                    boxed(|| dispatch::refuse(self, &listener, &mut exchange, failure)).await
                }
                Arrival::Gone => After::Close,
            };
            exchange.give_back();
            self.stream.set_pace(None);
            match after {
                After::Keep => {}
                After::Close => {
                    self.stream.say_farewell().await;
                    return ControlFlow::Break(());
                }
                After::Linger => {
                    boxed(|| linger::until_quiet(self)).await;
                    return ControlFlow::Break(());
                }
                After::Reset => {
                    self.stream.reset_on_close();
                    return ControlFlow::Break(());
                }
            }
            if !self.next_is_close().await {
                return ControlFlow::Continue(());
            }
        }
    }

    /// Whether the next request begins within [`CLOSE_TOGETHER`]. [`Self::await_first_byte`] handles
    /// everything else that may happen to an idle connection.
    async fn next_is_close(&mut self) -> bool {
        if self.requester.buffer.is_some() {
            // The next request is here already; other tasks get their turn nevertheless.
            tokio::task::coop::consume_budget().await;
            return true;
        }
        let Some(idle_since) = self.idle_since else { return false };
        let client_idle = self.requester.slot.current().shared.config.timeout.client_idle;
        self.requester.deadline.set(idle_since + CLOSE_TOGETHER.min(client_idle));
        self.requester.deadline.set_idle(Some(idle_since));
        let is_close = poll_fn(|context| match self.poll_first_bytes(context) {
            Poll::Ready(received) => Poll::Ready(received.is_ok()),
            Poll::Pending if self.requester.deadline.has_passed() || self.requester.deadline.is_shed() => {
                Poll::Ready(false)
            }
            Poll::Pending if self.requester.slot.draining_until().is_some() => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        })
        .await;
        self.requester.deadline.set_idle(None);
        is_close
    }

    /// Waits for the client's next request without holding a buffer.
    async fn await_first_byte(&mut self, is_first: bool) -> Result<(), End> {
        let idle_since = self.idle_since.take();
        if self.requester.buffer.is_some() {
            return Ok(());
        }
        // The previous exchange ended a moment ago, so its time is used instead of asking the clock again.
        let now = idle_since.unwrap_or_else(clock::now);
        let timeout = self.requester.slot.current().shared.config.timeout;
        // A client that has not sent anything yet gets no more time than one that is sending its first head.
        let idle = if is_first { timeout.header.min(timeout.client_idle) } else { timeout.client_idle };
        let patience = Patience { idle, stalled: timeout.client_body };
        let mut idleness = if is_first { Idleness::of_new(now) } else { Idleness::behind_exchange(now) };
        let mut told = false;
        self.requester.deadline.set(idleness.due(patience));
        self.requester.deadline.set_idle(Some(now));
        let waited = poll_fn(|context| {
            if let Poll::Ready(received) = self.poll_first_bytes(context) {
                return Poll::Ready(received);
            }
            if self.requester.deadline.has_passed() {
                if told {
                    return Poll::Ready(Err(End::Draining));
                }
                match idleness.look(self.stream.taken(), clock::now(), patience) {
                    IdleVerdict::Stays => {}
                    IdleVerdict::Idle => return Poll::Ready(Err(End::ClientIdle)),
                    IdleVerdict::Stalled => return Poll::Ready(Err(End::ClientBody)),
                }
                self.requester.deadline.set(idleness.due(patience));
                self.requester.deadline.set_idle(idleness.since());
            }
            if self.requester.deadline.is_shed() {
                if idleness.makes_room(self.stream.taken(), clock::now(), patience) {
                    return Poll::Ready(Err(End::Overload));
                }
                self.requester.deadline.decline_shed();
                self.requester.deadline.no_later_than(idleness.due(patience));
            }
            if let Some(until) = self.requester.slot.draining_until()
                && !told
            {
                told = true;
                self.requester.deadline.no_later_than(until.min(clock::now() + LAST_CHANCE));
            }
            Poll::Pending
        })
        .await;
        self.requester.deadline.set_idle(None);
        waited
    }

    fn poll_first_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        std::task::ready!(self.stream.poll_readable(context)).map_err(|_| End::ClientClosed)?;
        let Some(mut buffer) = self.requester.buffers_for_head().borrow(SMALL) else {
            return Poll::Ready(Err(End::Overload));
        };
        match std::task::ready!(self.stream.receive_ready(context, &mut buffer)) {
            Ok(0) | Err(_) => Poll::Ready(Err(End::ClientClosed)),
            Ok(_) => {
                self.requester.buffer = Some(buffer);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Counts the end of a connection between requests. A close by the client is not counted: that is how
    /// kept connections normally end, and the exchanges before it have been counted.
    fn end_idle(&mut self, end: End) {
        if end == End::ClientClosed {
            return;
        }
        let listener = self.requester.slot.current();
        listener.shared.cells.of(self.requester.worker.number).count_ended(end);
    }

    /// Receives until the head is complete. The time limit is absolute: further bytes do not extend it (D1).
    async fn receive_head(&mut self, listener: &WorkerListener, exchange: &mut Exchange) -> Arrival {
        let limits = &listener.compiled.limits;
        exchange.begin(clock::now());
        let mut timed = false;
        loop {
            let received = self.requester.received();
            match parse_request(received, limits, &mut exchange.request) {
                Ok(Progress::Complete { .. }) => {
                    if timed {
                        exchange.ledger.head = clock::now();
                    }
                    return Arrival::Complete;
                }
                Err(violation) => return Arrival::Refused(Failure::BadRequest(violation)),
                Ok(Progress::Partial) => {}
            }
            if !timed {
                timed = true;
                self.requester.deadline.set(clock::now() + listener.shared.config.timeout.header);
            }
            if let Err(refused) = self.receive_more(limits).await {
                return match refused {
                    Failure::ClientClosed if !exchange.request.has_started() => Arrival::Gone,
                    refused => Arrival::Refused(refused),
                };
            }
        }
    }

    /// Receives once, after the bytes that are there, into a larger buffer if the head needs one.
    async fn receive_more(&mut self, limits: &Limits) -> Result<(), Failure> {
        let buffers = self.requester.buffers_for_head().clone();
        if let Some(buffer) = &mut self.requester.buffer {
            buffer.compact();
            if buffer.is_full() {
                let size = (buffer.capacity() * 2).min(limits.head_bytes().max(2 * SMALL));
                if size <= buffer.capacity() {
                    // The parser refuses longer heads before they fill the largest buffer.
                    return Err(Failure::OutOfMemory);
                }
                let mut larger = buffers.borrow(size).ok_or(Failure::OutOfMemory)?;
                larger.append(buffer.filled());
                self.requester.buffer = Some(larger);
            }
        }
        let mut parked: Option<(Box<[u8]>, Held)> = None;
        poll_fn(|context| {
            if let Some((bytes, _)) = &parked {
                std::task::ready!(poll_unless_late(&mut self.stream, &self.requester.deadline, context))?;
                let mut buffer = buffers.borrow(SMALL).ok_or(Failure::OutOfMemory)?;
                buffer.append(bytes);
                self.requester.buffer = Some(buffer);
                parked = None;
            }
            let Some(buffer) = &mut self.requester.buffer else {
                return Poll::Ready(Err(Failure::OutOfMemory));
            };
            match self.stream.poll_receive(context, buffer) {
                Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Err(Failure::ClientClosed)),
                Poll::Ready(Ok(_)) => Poll::Ready(Ok(())),
                Poll::Pending if self.requester.deadline.has_passed() => {
                    Poll::Ready(Err(Failure::HeaderTimeout))
                }
                Poll::Pending => {
                    if buffer.filled().len() <= PARKED_BYTES {
                        let held = Held::new(&buffers);
                        held.set(buffer.filled().len() as u64);
                        parked = Some((buffer.filled().into(), held));
                        self.requester.buffer = None;
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

fn poll_unless_late(
    stream: &mut Stream,
    deadline: &Deadline,
    context: &mut Context<'_>,
) -> Poll<Result<(), Failure>> {
    match stream.poll_readable(context) {
        Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
        Poll::Ready(Err(_)) => Poll::Ready(Err(Failure::ClientClosed)),
        Poll::Pending if deadline.has_passed() => Poll::Ready(Err(Failure::HeaderTimeout)),
        Poll::Pending => Poll::Pending,
    }
}
