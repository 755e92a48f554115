//! Serves the single request of an HTTP/2 or HTTP/3 stream, as `h1` serves the many of a connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use weir_http::{ClientIdentity, Limits};
use weir_io::buffers::{Buffers, Held};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::handshake::Secure;
use weir_io::stream::Duplex as _;

use crate::client::Client;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::muxed::Muxed;
use crate::http::requester::{Requester, Total};
use crate::http::session::Session;
use crate::http::stream::Stream;
use crate::http::{dispatch, linger};
use crate::worker::{ListenerSlot, Worker};

/// Heads up to this size are not counted against the memory budget; most are smaller.
const SMALL_HEAD_BYTES: usize = 4 << 10;

/// The client at the other end of a multiplexed connection.
pub struct Peer {
    pub worker: Rc<Worker>,
    pub slot: Rc<ListenerSlot>,
    /// The result of the TLS handshake; `None` without TLS.
    pub secure: Option<Rc<Secure>>,
    pub client: Client,
    pub identity: Rc<ClientIdentity>,
    /// Whose memory its exchanges take: see [`crate::shares`].
    pub buffers: Rc<Buffers>,
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It was answered in full.
    Answered,
    /// Its head was malformed, and the answer said so.
    Refused,
    /// It was not answered, or not completely.
    BrokenOff,
}

/// Serves the request on `stream`. `read` puts its head into the exchange and appends its text to the given
/// vector; it may take until the deadline passes.
///
/// Gives what happened to the request.
pub async fn serve(
    peer: &Peer,
    stream: Muxed,
    read: impl AsyncFnOnce(&mut Muxed, &Limits, &Deadline, &mut Exchange, &mut Vec<u8>) -> Result<(), Failure>,
) -> Served {
    let Peer { worker, slot, secure, client, identity, buffers } = peer;
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    let listener = slot.current();
    deadline.belongs_to(listener.shared.number());
    let mut exchange = Exchange::take();
    exchange.begin(clock::now());
    let requester = Requester {
        worker: worker.clone(),
        slot: slot.clone(),
        secure: secure.clone(),
        client: *client,
        identity: identity.clone(),
        buffers: buffers.clone(),
        deadline,
        total: Total::endless(),
        buffer: None,
    };
    let mut session = Session { requester, stream: Stream::muxed(stream), idle_since: None };
    session.requester.deadline.set(clock::now() + listener.shared.config.timeout.header);
    let head = read_head(&mut session, &listener.compiled.limits, &mut exchange, read).await;
    let is_good = head.is_ok();
    let _held = count_head(&session);
    let after = match head {
        Ok(()) => {
            take_early_content(&mut session).await;
            dispatch::run(&mut session, listener, &mut exchange).await
        }
        Err(failure) => Box::pin(dispatch::refuse(&mut session, &listener, &mut exchange, failure)).await,
    };
    exchange.give_back();
    if matches!(after, After::Reset) {
        session.stream.reset_on_close();
        return Served::BrokenOff;
    }
    if matches!(after, After::Linger) && session.stream.resets_behind_answers() {
        Box::pin(linger::until_stream_is_read(&mut session)).await;
    }
    if is_good { Served::Answered } else { Served::Refused }
}

async fn read_head(
    session: &mut Session,
    limits: &Limits,
    exchange: &mut Exchange,
    read: impl AsyncFnOnce(&mut Muxed, &Limits, &Deadline, &mut Exchange, &mut Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // The vector that the request for the backend is later written into is unused until then.
    let mut text = std::mem::take(&mut exchange.outgoing);
    let stream = session.stream.as_muxed().ok_or(Failure::ClientClosed)?;
    let result = read(stream, limits, &session.requester.deadline, exchange, &mut text).await;
    if result.is_ok() {
        let mut buffer = session.requester.buffers.borrow(text.len()).ok_or(Failure::OutOfMemory)?;
        buffer.append(&text);
        session.requester.buffer = Some(buffer);
    }
    text.clear();
    // A text that was too large is not held while its refusal waits to be sent.
    exchange.outgoing = if result.is_ok() { text } else { Vec::new() };
    result
}

/// Counts a large head against the memory budget until it is dropped: what is forwarded of it is kept as long
/// as its request runs. It may have been sent in a few bytes that refer to others (threat B25).
fn count_head(session: &Session) -> Option<Held> {
    let bytes = session.requester.received().len();
    (bytes > SMALL_HEAD_BYTES).then(|| {
        let held = Held::new(&session.requester.buffers);
        held.set(bytes as u64);
        held
    })
}

/// Puts the content that is here already after the head, as on a connection of its own: it is sent together
/// with the head, and can be sent again.
async fn take_early_content(session: &mut Session) {
    if session.stream.is_ended() {
        return;
    }
    let Session { stream, requester: Requester { buffer: Some(buffer), .. }, .. } = session else { return };
    poll_fn(|context| {
        while !buffer.free().is_empty() {
            match stream.poll_receive(context, buffer) {
                Poll::Ready(Ok(1..)) => {}
                // The end, an error, or nothing yet: whoever reads the body will find out.
                _ => break,
            }
        }
        Poll::Ready(())
    })
    .await;
}
