//! One attempt of an exchange on one backend: connect or reuse, send, receive the response's head.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use weir_config::PoolProtocol;
use weir_http::h1::connection::Busy;
use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::stream::{Duplex as _, Sight};
use weir_io::wait::give_way;

use crate::access_log::Spoken;
use crate::backends::{Chosen, ProxyHeader};
use crate::http::ask::Call;
use crate::http::connection::Connection;
use crate::http::exchange::{BackendHeads, Exchange};
use crate::http::failure::Failure;
use crate::http::opener::{self, Opener};
use crate::http::race::Race;
use crate::http::reply;
use crate::http::requester::{Recipient, Requester};
use crate::http::sink::Framing;
use crate::http::stream::Stream;
use crate::http::upload::Upload;

/// How long an idle backend connection may have been idle to carry a request that must not be sent twice: one
/// that the backend closes at the very moment would lose it.
const FRESH: Duration = Duration::from_secs(1);

/// Most bytes of a body that was held back that are sent before others get their turn.
const TURN_BYTES: usize = 1 << 20;

/// A response whose head is complete.
pub struct Begun {
    pub connection: Busy<Connection>,
    /// What was received of the response; its head is at the front.
    pub received: Buffer,
    /// The response's status.
    pub status: u16,
    /// From the request sent to the response's head received.
    pub latency: Duration,
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
        let is_repeatable = self.facts.method.is_idempotent() && self.upload.is_here();
        let max_idle = if is_repeatable { Duration::MAX } else { FRESH };
        let max_idle = (!only_new).then_some(max_idle);
        let opened = match self.take_idle(chosen, max_idle) {
            Some(idle) => Ok((idle, true)),
            None => self.begin(chosen, max_idle).await,
        };
        let (mut connection, reused) = match opened {
            Ok(opened) => opened,
            Err(failure) => return Err(Failed { failure: self.requester.judge(failure), reused: false }),
        };
        let is_muxed = connection.connection().is_muxed();
        let spoken = connection.connection().as_muxed().map_or(Spoken::Http11, |stream| stream.spoken());
        self.exchange.ledger.backend_protocol = Some(spoken);
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
        let timeout = self.forwarding.timers();
        let patience = if self.upload.is_awaited() { timeout.client_body } else { timeout.backend };
        requester.wait(sent_at, self.within_try(sent_at, patience));
        let outgoing = match self.facts.protocol {
            PoolProtocol::Auto | PoolProtocol::H3 => {
                frame_for(self.exchange, self.race, self.upload, is_muxed);
                &self.exchange.heads.framed
            }
            PoolProtocol::H1 | PoolProtocol::H2 => {
                self.race.map_or(&self.exchange.outgoing, |race| &race.outgoing)
            }
        };
        let sent_bytes = outgoing.len();
        let mut sending = Sending {
            requester,
            recipient: &mut *self.recipient,
            patience,
            try_until: self.try_until,
            watched: requester.buffer.is_none(),
        };
        let late = |failure| Failed { failure: requester.judge_attempt(failure, sent_at), reused };
        match sending.send(connection.connection(), outgoing).await.map_err(late)? {
            Sent::All => {}
            Sent::Cut => self.upload.cut(),
            // It may have answered before it closed; what it said is worth reading.
            Sent::Broken => self.upload.refuse(),
        }
        let cells = chosen.backend().cells();
        cells.bytes_sent.add(sent_bytes as u64);
        let received = self.until_response(connection.connection()).await.map_err(|failure| {
            // What of the body came later was waited for until then.
            let failure = requester.judge_attempt(failure, sent_at.max(self.upload.moved_at()));
            if let (Failure::BackendTimeout, Some(stream)) = (&failure, connection.connection().as_muxed()) {
                stream.give_up_connection();
            }
            Failed { failure, reused }
        })?;
        let latency = clock::now().saturating_sub(sent_at);
        self.exchange.ledger.backend_header = Some(latency);
        cells.response_seconds.record(latency);
        Ok(Begun { connection, received, status: self.exchange.response.status(), latency })
    }

    /// A connection that was kept, of a pool whose backends are spoken to in HTTP/1.1 alone.
    #[inline]
    fn take_idle(&self, chosen: &Chosen, max_idle: Option<Duration>) -> Option<Busy<Connection>> {
        let is_possible = self.facts.protocol == PoolProtocol::H1
            && self.forwarding.pool.shared.config.send_proxy.is_none();
        if !is_possible {
            return None;
        }
        opener::take_idle(chosen, self.exchange.ledger.nearly_now(), max_idle)
    }

    /// Gets a connection that was not kept, or a stream of one. What the client sends meanwhile is gathered.
    async fn begin(
        &mut self,
        chosen: &Chosen,
        max_idle: Option<Duration>,
    ) -> Result<(Busy<Connection>, bool), Failure> {
        let connect = match self.try_until {
            Duration::MAX => self.forwarding.timers().connect,
            _ => self.within_try(clock::now(), self.forwarding.timers().connect),
        };
        let Call { requester, recipient, exchange, forwarding, facts, upload, race, .. } = self;
        let header = ProxyHeader::of(&forwarding.pool, &exchange.ledger.client(requester), || {
            // Asked of a connection that was here before any pool sent headers.
            let unknown = || Err(io::ErrorKind::Unsupported.into());
            recipient.stream().map_or_else(unknown, |stream| stream.local_addr())
        });
        let race = *race;
        let mut opener = Opener { requester, exchange, forwarding, chosen, header, connect, race };
        match facts.protocol {
            PoolProtocol::H1 => {
                let opening = pin!(opener.open());
                gathering(&mut **recipient, opening).await
            }
            PoolProtocol::H2 => {
                let opening = pin!(opener.open_stream(facts, upload.is_none()));
                gathering(&mut **recipient, opening).await
            }
            PoolProtocol::Auto => {
                let opening = pin!(opener.open_either(facts, upload.is_none(), max_idle));
                gathering(&mut **recipient, opening).await
            }
            PoolProtocol::H3 => {
                let opening = pin!(opener.open_h3(facts, upload.is_none(), max_idle));
                gathering(&mut **recipient, opening).await
            }
        }
    }
}

/// Frames what goes to a backend that picks: `to_stream` when it picked HTTP/2.
fn frame_for(exchange: &mut Exchange, race: Option<&Race>, upload: &mut Upload, to_stream: bool) {
    let body = exchange.body_to_backends();
    let BackendHeads { picked, framed, .. } = &mut *exchange.heads;
    let (head, held, body) = match race {
        Some(race) => (&race.heads.picked, &race.outgoing, race.body),
        None => (&*picked, &exchange.outgoing, body),
    };
    framed.clear();
    if !to_stream {
        framed.extend_from_slice(head);
    }
    upload.frame_anew(Framing::on(to_stream, body), held, framed);
}

/// What became of a head and what leaves with it.
enum Sent {
    /// All of it is with the kernel, or with the connection that carries the stream.
    All,
    /// The backend has answered before it had all, and gets no more: it may not read it either, and then both
    /// would wait.
    Cut,
    /// The backend takes no more.
    Broken,
}

/// Who waits while a head is sent with what leaves with it.
struct Sending<'a, R> {
    requester: &'a Requester,
    recipient: &'a mut R,
    /// The backend is to take some of it within this.
    patience: Duration,
    /// And all of it by then.
    try_until: Duration,
    /// Whether the client can be seen to leave: it has sent nothing that was not received.
    watched: bool,
}

impl<R: Recipient> Sending<'_, R> {
    /// Sends `outgoing`, of any length, as long as the backend takes some in time. The backend may be slow to
    /// read, and a stream of its connection may wait for room that others have taken; what comes from the
    /// client meanwhile is gathered, and it may leave.
    async fn send(&mut self, backend: &mut Stream, outgoing: &[u8]) -> Result<Sent, Failure> {
        let mut sent = 0;
        poll_fn(|context| {
            let turn = sent + TURN_BYTES;
            while sent < outgoing.len() {
                if sent >= turn {
                    give_way(context);
                    return Poll::Pending;
                }
                match backend.poll_send(context, &outgoing[sent..]) {
                    Poll::Ready(Ok(count)) => sent += count,
                    Poll::Ready(Err(_)) => return Poll::Ready(Ok(Sent::Broken)),
                    Poll::Pending => return self.poll_wait(backend, context),
                }
                if sent < outgoing.len() {
                    let now = clock::now();
                    self.requester.wait(now, self.patience.min(self.try_until.saturating_sub(now)));
                }
            }
            Poll::Ready(Ok(Sent::All))
        })
        .await
    }

    /// The backend takes nothing now.
    #[inline(never)]
    fn poll_wait(&mut self, backend: &mut Stream, context: &mut Context<'_>) -> Poll<Result<Sent, Failure>> {
        self.recipient.gather_body(context);
        match backend.poll_present(context) {
            Ok(Sight::Quiet) => {}
            Ok(Sight::Speaking | Sight::Ended) => return Poll::Ready(Ok(Sent::Cut)),
            Err(_) => return Poll::Ready(Ok(Sent::Broken)),
        }
        if self.watched {
            self.watched = self.requester.look_at(self.recipient, context)? == Sight::Quiet;
        }
        if self.requester.deadline.has_passed() {
            return Poll::Ready(Err(Failure::BackendTimeout));
        }
        Poll::Pending
    }
}

/// Waits for `other` and takes what comes from the client meanwhile.
async fn gathering<T>(recipient: &mut impl Recipient, mut other: Pin<&mut impl Future<Output = T>>) -> T {
    poll_fn(|context| {
        let polled = other.as_mut().poll(context);
        if polled.is_pending() {
            recipient.gather_body(context);
        }
        polled
    })
    .await
}
