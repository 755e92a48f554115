//! The phases of an exchange in which both directions may move at once.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_http::{Asked, InterimAllowance, Progress, parse_response};
use weir_io::buffers::{Buffer, SMALL};
use weir_io::clock;
use weir_io::stream::{Duplex as _, Sight};

use crate::backends::ConnectError;
use crate::http::ask::Call;
use crate::http::attempt;
use crate::http::edits;
use crate::http::exchange::Exchange;
use crate::http::failure::{Awaited, Failure};
use crate::http::forwarding::Forwarding;
use crate::http::muxed::Muxed;
use crate::http::pump::{Pump, PumpError};
use crate::http::read_ahead::{AheadMoved, ReadAhead};
use crate::http::reply;
use crate::http::requester::{Recipient, Requester};
use crate::http::session::Session;
use crate::http::stream::Stream;
use crate::http::upload::Upload;
use crate::timers::ExchangeTimers;

impl<R: Recipient> Call<'_, R> {
    /// Receives the response's head, moving the request's body meanwhile. Interim responses are passed on as
    /// they come. If `leaves_silent`, this gives up on a connection on which the backend sends nothing at
    /// all, so that the request can be sent again elsewhere.
    pub async fn until_response(
        &mut self,
        backend: &mut Stream,
        leaves_silent: bool,
    ) -> Result<Buffer, Failure> {
        self.exchange.response.clear();
        let mut received: Option<Buffer> = None;
        let mut watch = Watch::new(self.requester, self.recipient);
        let mut allowance = InterimAllowance::of(self.forwarding.limits());
        let mut has_begun = false;
        let mut awaits_client = false;
        loop {
            poll_fn(|context| {
                awaits_client = self.upload.is_awaited_or(awaits_client);
                match self.upload.is_moving() {
                    true => self.poll_upload(backend, context)?,
                    false => self.recipient.gather_body(context),
                }
                let polled = self.poll_head(backend, &mut received, context);
                if polled.is_ready() {
                    return polled;
                }
                if leaves_silent && !has_begun && is_silent(backend) {
                    return Poll::Ready(Err(Failure::Empty(Awaited::Backend)));
                }
                watch.look(self.requester, self.recipient, self.upload, context)?;
                if self.requester.is_late() {
                    return Poll::Ready(Err(match self.upload.is_awaited() {
                        _ if self.requester.is_drained() => Failure::Drained,
                        _ if self.upload.awaits_disk() => Failure::BufferLost,
                        true => Failure::BodyTimeout,
                        false => Failure::BackendTimeout,
                    }));
                }
                Poll::Pending
            })
            .await
            .map_err(|failure| match failure {
                // A backend that has sent an interim response has begun to work on the request.
                Failure::Empty(awaited) if has_begun => Failure::BackendClosed(awaited),
                failure => failure,
            })
            .map_err(|failure| {
                if awaits_client { failure.while_awaiting(Awaited::Client) } else { failure }
            })?;
            let Some(mut buffer) = received.take() else { return Err(Failure::Empty(Awaited::Backend)) };
            if !self.exchange.response.is_interim() {
                return Ok(buffer);
            }
            has_begun = true;
            if !allowance.take(self.exchange.response.head_bytes()) {
                return Err(Failure::InterimFlood);
            }
            self.pass_on(backend, buffer.filled(), allowance).await?;
            if !self.upload.is_awaited() {
                // An interim response shows that the backend is at work; how many it may send is bounded.
                let now = clock::now();
                self.requester.wait(now, self.within_try(now, self.forwarding.timers().backend));
            }
            buffer.consume(self.exchange.response.head_bytes());
            self.exchange.response.clear();
            received = Some(buffer).filter(|buffer| !buffer.is_empty());
        }
    }

    /// Passes an interim response on. Of those behind it, what is `left` may come before the client has taken
    /// it.
    async fn pass_on(
        &mut self,
        backend: &mut Stream,
        received: &[u8],
        left: InterimAllowance,
    ) -> Result<(), Failure> {
        if !reply::passes_on(&self.exchange.response, self.facts.version) {
            return Ok(());
        }
        let edits = edits::of(self.forwarding.listener, self.exchange);
        let race = self.race;
        if race.is_some_and(|race| !race.speak()) {
            return Ok(());
        }
        let passing = self.recipient.pass_on(self.requester, self.exchange, edits, received);
        let (passed, floods) = beside_interim(backend, left, passing).await;
        if let Some(race) = race {
            race.spoken();
        }
        passed.and(if floods { Err(Failure::InterimFlood) } else { Ok(()) })
    }

    /// Moves the body on, and renews the deadline while it moves.
    fn poll_upload(&mut self, backend: &mut Stream, context: &mut Context<'_>) -> Result<(), Failure> {
        let Call { requester, recipient, exchange, forwarding, facts, upload, race, .. } = self;
        let (mut moved, mut of_head) = (false, false);
        let shared = attempt::outgoing(exchange, *race, facts);
        if upload.poll_untaken(context, backend, shared, &mut of_head).is_pending() {
            recipient.gather_body(context);
        } else if let Some(client) = recipient.stream() {
            let polled = upload.poll(context, client, backend, &requester.buffers, &mut moved);
            if let Poll::Ready(result) = polled {
                result?;
            }
        } else {
            upload.poll_tell_end(context, backend);
        }
        let is_over = !upload.is_moving();
        if moved || of_head || is_over {
            let now = clock::now();
            if moved || is_over {
                upload.note_moved(now);
            }
            let listener = &forwarding.listener.shared.config;
            if upload.is_too_slow(now, listener.http().limits.min_body_rate) {
                return Err(Failure::BodyTimeout);
            }
            let timeout = forwarding.timers();
            match upload.is_awaited() {
                true => requester.wait(now, timeout.client_body),
                false => requester.wait(now, self.within_try(now, timeout.backend)),
            }
        }
        Ok(())
    }

    /// Receives and parses until a head, interim or final, is complete.
    fn poll_head(
        &mut self,
        backend: &mut Stream,
        received: &mut Option<Buffer>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        if let Some(stream) = backend.as_muxed() {
            return self.poll_stream_head(stream, received, context);
        }
        loop {
            let response = &mut self.exchange.response;
            if let Some(buffer) = received.as_ref() {
                match parse_response(buffer.filled(), self.forwarding.limits(), self.facts.method, response) {
                    Ok(Progress::Complete { .. }) => return Poll::Ready(Ok(())),
                    Ok(Progress::Partial) => {}
                    Err(violation) => return Poll::Ready(Err(Failure::BadResponse(violation))),
                }
            }
            let has_started = response.has_started();
            let nothing_yet = |received: &Option<Buffer>| received.is_none() && !has_started;
            match std::task::ready!(self.poll_receive_head(backend, received, context)) {
                Ok(0) if nothing_yet(received) => return Poll::Ready(Err(Failure::Empty(Awaited::Backend))),
                Ok(0) => return Poll::Ready(Err(Failure::BackendClosed(Awaited::Backend))),
                Ok(_) => {}
                Err(Failure::BackendClosed(_)) if nothing_yet(received) => {
                    return Poll::Ready(Err(Failure::Empty(Awaited::Backend)));
                }
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
    }

    /// Receives the next head of a stream. Its text then counts as received bytes.
    fn poll_stream_head(
        &mut self,
        stream: &mut Muxed,
        received: &mut Option<Buffer>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        let Exchange { response, reply, upgrade, .. } = &mut *self.exchange;
        let limits = self.forwarding.limits();
        let upgrade = self.facts.upgrade.then_some(upgrade.as_slice());
        // The vector for the reply is unused until there is a response.
        reply.clear();
        let asked = Asked { method: self.facts.method, upgrade };
        let polled = std::task::ready!(stream.poll_response(context, limits, asked, response, reply));
        Poll::Ready(match polled {
            Ok(Ok(())) => match self.requester.buffers.borrow(reply.len()) {
                Some(mut buffer) => {
                    buffer.append(reply);
                    *received = Some(buffer);
                    Ok(())
                }
                None => Err(Failure::OutOfMemory),
            },
            Ok(Err(violation)) => Err(Failure::BadResponse(violation)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(Failure::Connect(ConnectError::Declined))
            }
            // The connection has ended, and may have been dead for long without anybody noticing.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                Err(Failure::Empty(Awaited::Backend))
            }
            Err(_) => Err(Failure::BackendClosed(Awaited::Backend)),
        })
    }

    /// Receives once; a buffer is borrowed only when there is something to receive.
    fn poll_receive_head(
        &self,
        backend: &mut Stream,
        received: &mut Option<Buffer>,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, Failure>> {
        if std::task::ready!(backend.poll_readable(context)).is_err() {
            return Poll::Ready(Err(Failure::BackendClosed(Awaited::Backend)));
        }
        let buffers = &self.requester.buffers;
        let mut buffer = match received.take() {
            Some(mut buffer) => {
                buffer.compact();
                if buffer.is_full() {
                    let size =
                        (buffer.capacity() * 2).min(self.forwarding.limits().head_bytes().max(2 * SMALL));
                    let Some(mut larger) = buffers.borrow(size) else {
                        return Poll::Ready(Err(Failure::OutOfMemory));
                    };
                    larger.append(buffer.filled());
                    larger
                } else {
                    buffer
                }
            }
            None => match buffers.borrow(SMALL) {
                Some(buffer) => buffer,
                None => return Poll::Ready(Err(Failure::OutOfMemory)),
            },
        };
        let polled = backend.receive_ready(context, &mut buffer);
        if !buffer.is_empty() {
            *received = Some(buffer);
        }
        polled.map_err(|_| Failure::BackendClosed(Awaited::Backend))
    }
}

/// Waits until the client has taken an interim response. Also gives whether the backend has sent more of them
/// meanwhile than what is `left`; then its stream was given up.
pub async fn beside_interim<T>(
    backend: &mut Stream,
    left: InterimAllowance,
    taken: impl Future<Output = T>,
) -> (T, bool) {
    let (mut taken, mut floods) = (pin!(taken), false);
    let taken = poll_fn(|context| {
        let polled = taken.as_mut().poll(context);
        if polled.is_pending() && !floods {
            // The client still gets the whole of this one, so that it can read the answer behind it.
            floods = backend.as_muxed().is_some_and(|stream| stream.floods(context, left));
        }
        polled
    })
    .await;
    (taken, floods)
}

/// Whether a backend sends nothing at all on its connection although an acknowledgement is overdue.
fn is_silent(backend: &mut Stream) -> bool {
    backend.as_muxed().is_some_and(|stream| stream.is_silent())
}

/// Moves both bodies until the response's is over: sent, or where it is read `ahead` received.
pub async fn until_sent(
    session: &mut Session,
    backend: &mut Stream,
    forwarding: &Forwarding<'_>,
    upload: &mut Upload,
    download: &mut Pump,
    mut ahead: Option<&mut ReadAhead>,
) -> Result<(), Failure> {
    let timers = forwarding.timers();
    let Session { requester, stream, .. } = session;
    // The deadline so far was for the head; whose turn it is now is known after the first poll.
    let mut is_first = true;
    let mut watch = Watch::new(requester, stream);
    let mut kept_waiting = KeptWaiting::default();
    let mut held = false;
    poll_fn(|context| {
        let is_first = std::mem::take(&mut is_first);
        let (mut uploaded, mut moved) = (false, AheadMoved::default());
        let buffers = &requester.buffers;
        kept_waiting.uploads(upload);
        if upload.is_moving() {
            let polled = upload.poll(context, stream, backend, buffers, &mut uploaded);
            if let Poll::Ready(Err(failure)) = polled {
                return Poll::Ready(Err(failure));
            }
        } else {
            stream.gather(context);
        }
        let polled = match &mut ahead {
            None => download.poll(context, backend, stream, buffers, &mut moved.went),
            Some(ahead) => ahead.poll(context, backend, stream, download, &mut moved),
        };
        if let Poll::Ready(result) = polled {
            let failure = |error| download_failure(error).while_awaiting(kept_waiting.awaited());
            return Poll::Ready(result.map_err(failure));
        }
        kept_waiting.gives(download);
        let has_all = ahead.as_ref().is_none_or(|ahead| ahead.is_drained());
        // A backend that has begun to answer may be waiting for the rest of the request: then the client is
        // the slow side.
        let awaits_backend = download.waits_for_source() && has_all && !upload.is_awaited();
        // Otherwise a client that has left would go unnoticed until there is something to send.
        if awaits_backend {
            watch.look(requester, stream, upload, context)?;
        }
        // The minimum rate of the request's body no longer applies: the two sides may be taking turns, with
        // few and short messages.
        let turn = match upload.is_awaited() {
            false if awaits_backend => Turn::of_backend(timers, download),
            false => Turn::of_client(timers, stalled(ahead.as_deref())),
            // Neither side has anything to send, as on a gRPC stream between two messages.
            true if download.waits_for_source() && has_all && !upload.is_owed() => Turn::of_either(timers),
            true => Turn::of_client(timers, Failure::BodyTimeout),
        };
        // Data from the backend does not show that the client takes any of what is waiting for it.
        let was_held = std::mem::replace(&mut held, ahead.as_ref().is_some_and(|it| it.held_bytes() > 0));
        let came = moved.came && !(was_held && held);
        go_on(requester, is_first || uploaded || moved.went || came, turn)
    })
    .await
}

/// If a backend has waited this long in total for a client, that may be why it closes within its response.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// How long a client has kept a backend waiting while the response was being sent.
#[derive(Default)]
pub struct KeptWaiting {
    /// Since when there is something that the client does not take; `None` while there is nothing.
    since: Option<Duration>,
    /// The total of earlier such times.
    total: Duration,
    /// Whether the client still had to send more of its request.
    upload: bool,
}

impl KeptWaiting {
    /// Notes whether the client still has to send more, before new data is looked at.
    fn uploads(&mut self, upload: &Upload) {
        self.upload = upload.is_awaited_or(self.upload);
    }

    /// Notes whether the client still has to take something, after it was offered.
    pub fn gives(&mut self, download: &Pump) {
        match (self.since, download.waits_for_source()) {
            (None, false) => self.since = Some(clock::now()),
            (Some(since), true) => {
                self.total += clock::now().saturating_sub(since);
                self.since = None;
            }
            _ => {}
        }
    }

    /// Who the backend was waiting for when it closed.
    pub fn awaited(&self) -> Awaited {
        let now = clock::now();
        let waited = self.total + self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if self.upload || waited >= LONG_WAIT { Awaited::Client } else { Awaited::Backend }
    }
}

/// Whether it can be noticed that the client leaves while a backend is waited for.
struct Watch {
    /// Once the request has been received.
    behind: bool,
    /// While the request's body waits for a backend that takes none of it now. Most clients have sent more of
    /// it by then, which hides a close; a stream's reset is seen nevertheless.
    within: bool,
}

impl Watch {
    fn new(requester: &Requester, recipient: &mut impl Recipient) -> Watch {
        let is_seen = requester.sees_leave(recipient);
        Watch { behind: is_seen, within: is_seen }
    }

    /// Checks for a client that has left, unless the client is being read, which shows that too.
    #[inline]
    fn look(
        &mut self,
        requester: &Requester,
        recipient: &mut impl Recipient,
        upload: &Upload,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let watched = match upload.is_received() {
            true => &mut self.behind,
            false if upload.is_moving() && upload.is_awaited() => return Ok(()),
            false => &mut self.within,
        };
        if *watched {
            *watched = requester.look_at(recipient, context)? == Sight::Quiet;
        }
        Ok(())
    }
}

/// Sends the client what has been read ahead; the backend is no longer needed.
pub async fn until_drained(
    session: &mut Session,
    forwarding: &Forwarding<'_>,
    ahead: &mut ReadAhead,
) -> Result<(), Failure> {
    let Session { requester, stream, .. } = session;
    let mut is_first = true;
    poll_fn(|context| {
        let mut moved = std::mem::take(&mut is_first);
        if let Poll::Ready(result) = ahead.poll_drain(context, stream, &mut moved) {
            return Poll::Ready(result.map_err(download_failure));
        }
        stream.gather(context);
        go_on(requester, moved, Turn::of_client(forwarding.timers(), stalled(Some(ahead))))
    })
    .await
}

/// The failure when a client has not taken what is there for it, or seems not to have.
fn stalled(ahead: Option<&ReadAhead>) -> Failure {
    match ahead {
        Some(ahead) if ahead.awaits_disk() => Failure::BufferLost,
        _ => Failure::ClientStalled,
    }
}

/// Who is waited for while a response is being sent, and for how long.
pub struct Turn {
    patience: Duration,
    /// The failure when it takes too long.
    late: Failure,
}

impl Turn {
    /// The backend must go on with its response. If it has announced a length, it owes the rest.
    pub fn of_backend(timers: &ExchangeTimers, download: &Pump) -> Turn {
        let late = Failure::StreamTimeout { is_owed: download.is_owed() };
        Turn { patience: timers.stream, late }
    }

    /// The client must send or take something.
    pub fn of_client(timers: &ExchangeTimers, late: Failure) -> Turn {
        Turn { patience: timers.client_body, late }
    }

    /// Either side may send something.
    fn of_either(timers: &ExchangeTimers) -> Turn {
        Turn { patience: timers.stream, late: Failure::StreamTimeout { is_owed: false } }
    }
}

/// Goes on waiting for the side whose turn it is; the time starts anew when something has moved.
pub fn go_on(requester: &Requester, moved: bool, turn: Turn) -> Poll<Result<(), Failure>> {
    if moved {
        requester.wait(clock::now(), turn.patience);
    } else if requester.is_late() {
        return Poll::Ready(Err(if requester.is_drained() { Failure::Drained } else { turn.late }));
    }
    Poll::Pending
}

/// The failure on the backend's side.
pub fn download_failure(error: PumpError) -> Failure {
    match error {
        PumpError::SourceClosed => Failure::BackendClosed(Awaited::Backend),
        PumpError::Malformed(violation) => Failure::BadResponse(violation),
        PumpError::SinkClosed => Failure::ClientClosed,
        PumpError::OutOfMemory | PumpError::TooLarge => Failure::OutOfMemory,
        PumpError::Lost => Failure::BufferLost,
    }
}
