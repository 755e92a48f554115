//! One attempt of an exchange on one backend: connect or reuse a connection, send, receive the response's
//! head.

use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_config::PoolProtocol;
use weir_http::InterimAllowance;
use weir_http::h1::connection::Busy;
use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::stream::Duplex as _;

use crate::access_log::Spoken;
use crate::backends::{Chosen, ProxyHeader};
use crate::http::ask::Call;
use crate::http::connection::Connection;
use crate::http::drive;
use crate::http::exchange::{BackendHeads, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::Facts;
use crate::http::opener::{self, Opener};
use crate::http::race::Race;
use crate::http::reply;
use crate::http::requester::Recipient;
use crate::http::sink::Framing;
use crate::http::stream::Stream;
use crate::http::upload::Upload;
use crate::reach::RetryRules;

/// How long an idle backend connection may have been idle to carry a request that must not be sent twice: if
/// the backend closes the connection at that very moment, such a request is lost.
const FRESH: Duration = Duration::from_secs(1);

/// Most bytes of a held-back body that are sent at once.
const AT_ONCE_BYTES: usize = 1 << 20;

/// A response whose head is complete.
pub struct Begun {
    pub connection: Busy<Connection>,
    /// The bytes received of the response, beginning with its head.
    pub received: Buffer,
    /// The response's status.
    pub status: u16,
    /// From sending the request, or the last of its body that came later, to receiving the response's head.
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
        // A request that can't be sent twice, or is not completely here to be sent again, must not use a
        // connection that the backend may just be closing.
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
        // The connection may be another client's next.
        connection.connection().counts_for(&self.requester.buffers);
        let is_muxed = connection.connection().is_muxed();
        let spoken = connection.connection().as_muxed().map_or(Spoken::Http11, |stream| stream.spoken());
        self.exchange.ledger.backend_protocol = Some(spoken);
        let requester = self.requester;
        let failed = |failure| Failed { failure: requester.judge(failure), reused };
        if self.facts.expect_continue && self.upload.is_awaited() && !self.exchange.continued {
            self.exchange.continued = true;
            if let Some(stream) = self.recipient.stream() {
                let left = InterimAllowance::of(self.forwarding.limits());
                let sending = reply::send_continue(stream, &self.requester.deadline);
                let (sent, floods) = drive::beside_interim(connection.connection(), left, sending).await;
                sent.map_err(|error| failed(error.into()))?;
                if floods {
                    return Err(failed(Failure::InterimFlood));
                }
            }
            self.exchange.ledger.note_wait();
        }
        let sent_at = if reused { self.exchange.ledger.nearly_now() } else { clock::now() };
        self.upload.resume(sent_at);
        if self.facts.protocol.lets_pick() {
            frame_for(self.exchange, self.race, self.upload, is_muxed);
        }
        let outgoing = outgoing(self.exchange, self.race, self.facts);
        let (sent, is_open) = send_some(connection.connection(), outgoing).await;
        if sent < outgoing.len() {
            self.upload.begin_untaken(sent..outgoing.len());
        }
        if !is_open {
            // The backend may have answered before it closed; that answer is worth reading.
            self.upload.refuse();
        }
        let timeout = self.forwarding.timers();
        let patience = if self.upload.is_awaited() { timeout.client_body } else { timeout.backend };
        requester.wait(sent_at, self.within_try(sent_at, patience));
        let cells = chosen.backend().cells();
        cells.bytes_sent.add(sent as u64);
        let leaves_silent = (reused && !only_new && self.may_be_sent_again())
            || (self.leaves_silent && self.upload.is_replayable());
        let received =
            self.until_response(connection.connection(), leaves_silent).await.map_err(|failure| {
                // The backend may also have waited for body bytes that arrived later, so the wait counts from
                // then.
                let failure = requester.judge_attempt(failure, sent_at.max(self.upload.moved_at()));
                if let Some(stream) = connection.connection().as_muxed() {
                    stream.note_unanswered(&failure);
                }
                Failed { failure, reused }
            })?;
        if self.facts.upgrade && self.exchange.response.status() != 101 {
            end_refused(connection.connection());
        }
        let now = clock::now();
        let taken = now.saturating_sub(sent_at);
        self.exchange.ledger.backend_header = Some(taken);
        cells.response_seconds.record(taken);
        // The time in which the body arrived is up to the client.
        let latency = now.saturating_sub(sent_at.max(self.upload.moved_at()));
        Ok(Begun { connection, received, status: self.exchange.response.status(), latency })
    }

    /// Whether the request can and may be sent again although its backend may have processed it.
    fn may_be_sent_again(&self) -> bool {
        let rules = RetryRules::of(&self.forwarding.pool.shared.config.retry, self.forwarding.route_retry());
        self.upload.is_replayable() && (self.facts.method.is_idempotent() || rules.non_idempotent)
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

    /// Gets a connection that was not kept, or a stream of a shared one. Data from the client is gathered
    /// meanwhile.
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
            // The connection was accepted before any pool sent PROXY headers.
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

/// Ends the request of an upgrade that a backend has refused. The stream that was to become a tunnel is still
/// open. Dropping it would reset it, and backends tolerate few resets on a connection that many exchanges
/// share (threat B21).
#[cold]
fn end_refused(backend: &mut Stream) {
    // If the stream is broken, whoever reads the response will notice.
    let _ = backend.poll_finish(&mut Context::from_waker(Waker::noop()), std::iter::empty());
}

/// Frames a request for a backend that has chosen its protocol: `to_stream` if it chose HTTP/2.
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

/// The bytes that are sent with the head, and the head itself in HTTP/1.1.
pub fn outgoing<'a>(exchange: &'a Exchange, race: Option<&'a Race>, facts: &Facts) -> &'a [u8] {
    match (facts.protocol.lets_pick(), race) {
        (true, _) => &exchange.heads.framed,
        (false, Some(race)) => &race.outgoing,
        (false, None) => &exchange.outgoing,
    }
}

/// Moves [`outgoing`] out of an exchange for which no other backend will be asked.
pub fn take_outgoing(exchange: &mut Exchange, facts: &Facts) -> Vec<u8> {
    mem::take(match facts.protocol.lets_pick() {
        true => &mut exchange.heads.framed,
        false => &mut exchange.outgoing,
    })
}

/// Sends as much of `outgoing` as the backend takes at once. It does not wait for the backend to take more:
/// the backend may have answered already, and take no more before that answer is read. Gives how much it
/// took, and whether it would take more later.
async fn send_some(backend: &mut Stream, outgoing: &[u8]) -> (usize, bool) {
    let mut sent = 0;
    poll_fn(|context| {
        while sent < outgoing.len().min(AT_ONCE_BYTES) {
            match backend.poll_send(context, &outgoing[sent..]) {
                Poll::Ready(Ok(count)) => sent += count,
                Poll::Ready(Err(_)) => return Poll::Ready((sent, false)),
                Poll::Pending => break,
            }
        }
        Poll::Ready((sent, true))
    })
    .await
}

/// Waits for `other`, and takes what comes from the client meanwhile.
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
