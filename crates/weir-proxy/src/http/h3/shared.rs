//! State that the streams of one HTTP/3 connection share with each other and with its driver.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{Dir, StreamId};
use weir_http::h3::{self, Code, Event, Fault, OwnStream, PeerStream};
use weir_io::buffers::{Buffers, Held};
use weir_io::clock;
use weir_io::flood::{Budget, RESET_COST};
use weir_quic::connection::{Connection, StreamError};

use crate::http::under_way::UnderWay;

/// How long the end of an answer may wait for the client to make room for more of it.
const LATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Memory that the end of an answer takes besides its bytes: a task and its stream.
const LATE_BYTES: u64 = 1 << 10;

/// Longest time that the answer to a malformed request has to arrive.
const LONGEST_ROUND_TRIPS: Duration = Duration::from_millis(500);

/// Instructions for the client's QPACK encoder wait for an answer to be sent with, unless they are at least
/// this many bytes.
const INSTRUCTION_BYTES: usize = 64;

/// Bytes that are read at once from a control stream.
const READ_BYTES: usize = 4 << 10;

/// Streams whose fields wait for the client's encoder, and their wakers.
pub type Blocked = HashMap<u64, Option<Waker>, foldhash::fast::RandomState>;

/// State that the streams of a connection share.
pub struct Shared {
    pub quic: Rc<Connection>,
    pub protocol: RefCell<h3::Connection>,
    /// Our control stream and our QPACK decoder's, once they are open.
    pub(super) own: [Cell<Option<StreamId>>; 2],
    /// Streams that wait for the client's encoder.
    pub(super) blocked: RefCell<Blocked>,
    /// A server does not process requests on streams from this one on (RFC 9114 section 5.2).
    pub(super) refused_from: Cell<u64>,
    /// Wakers of those that wait for the head of a response, by stream.
    pub(super) awaited: RefCell<HashMap<u64, Waker, foldhash::fast::RandomState>>,
    /// Requests that are broken off are charged to it. The client's frames are charged where they are
    /// received.
    pub(super) flood_budget: RefCell<Budget>,
    pub(super) is_flooded: Cell<bool>,
    pub(super) under_way: Rc<UnderWay>,
    /// Data that waits for the client counts against its budget.
    pub(super) buffers: Rc<Buffers>,
    /// How many ends of answers wait for the client to make room; their exchanges are over.
    pub(super) late: Cell<u32>,
    /// Whether the connection to a backend is over and its control streams were read to the end.
    pub(super) has_read_last: Cell<bool>,
}

impl Shared {
    /// Closes the connection because of an error by the client.
    pub fn fail(&self, fault: Fault) {
        tracing::debug!(client = %self.quic.client(), fault = fault.word(), "http/3 connection closed");
        self.quic.close(fault.code().value(), fault.sentence());
    }

    /// Notes that a request was broken off for no reason of ours.
    pub fn count_broken(&self) {
        if !self.flood_budget.borrow_mut().charge(RESET_COST, clock::now) {
            self.is_flooded.set(true);
            self.under_way.wake_driver();
        }
    }

    /// Stops reading a request's stream.
    pub fn abandon(&self, id: StreamId) {
        self.blocked.borrow_mut().remove(&number(id));
        let abandoned = self.protocol.borrow_mut().abandon(number(id));
        if let Err(fault) = abandoned {
            self.fail(fault);
        }
        self.note_instructions();
    }

    /// Notes that a stream waits for the client's encoder.
    pub fn block(&self, id: StreamId, context: &Context<'_>) {
        self.blocked.borrow_mut().insert(number(id), Some(context.waker().clone()));
    }

    /// Whether the stream still waits for it.
    pub fn is_blocked(&self, id: StreamId, context: &Context<'_>) -> bool {
        match self.blocked.borrow_mut().get_mut(&number(id)) {
            Some(waker) => {
                *waker = Some(context.waker().clone());
                true
            }
            None => false,
        }
    }

    /// Notes that our QPACK decoder may have something to send. It is sent together with the next answer,
    /// because otherwise it would cost one more packet of ours and one of the client's for each request. Only
    /// a large amount is sent at once.
    pub fn note_instructions(&self) {
        if self.protocol.borrow_mut().pending(OwnStream::QpackDecoder).len() >= INSTRUCTION_BYTES {
            self.under_way.wake_driver();
        }
    }

    /// Wakes all tasks that wait for the head of a response.
    pub(super) fn wake_awaiting(&self) {
        self.awaited.borrow_mut().drain().for_each(|(_, waker)| waker.wake());
    }

    /// Reads the peer's control and QPACK streams; `steering` are those that are open. What was received
    /// before a fault remains valid.
    pub(super) fn steer(&self, steering: &mut Vec<StreamId>, context: &mut Context<'_>) -> Result<(), Fault> {
        while let Poll::Ready(Some(id)) = self.quic.poll_accept(Dir::Uni, context) {
            steering.push(id);
        }
        let mut fault = Ok(());
        steering.retain(|&id| match read_steering(self, id, context) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                fault = Err(error);
                false
            }
        });
        while let Some(event) = self.protocol.borrow_mut().poll_event() {
            match event {
                Event::Unblocked(id) => {
                    if let Some(Some(waker)) = self.blocked.borrow_mut().remove(&id) {
                        waker.wake();
                    }
                }
                // For a server this concerns pushes, which do not exist here.
                Event::GoAway(id) => {
                    self.refused_from.set(id);
                    self.wake_awaiting();
                }
                Event::Settings(_) => {}
            }
        }
        fault
    }

    /// Sends what our own unidirectional streams have to send.
    pub fn send_own(&self, context: &mut Context<'_>) -> Result<(), Fault> {
        for (own, place) in OwnStream::ALL.into_iter().zip(&self.own) {
            loop {
                let pending = Bytes::copy_from_slice(self.protocol.borrow_mut().pending(own));
                if pending.is_empty() {
                    break;
                }
                if place.get().is_none() {
                    place.set(self.quic.open(Dir::Uni));
                }
                // A client that allows no streams can't be sent anything; RFC 9114 section 6.2 requires it to
                // allow three.
                let Some(id) = place.get() else { break };
                let mut rest = pending.clone();
                match self.quic.poll_write(id, &mut rest, context) {
                    Poll::Ready(Ok(())) => {
                        self.protocol.borrow_mut().sent(own, pending.len() - rest.len());
                    }
                    Poll::Ready(Err(_)) => return Err(Fault::CriticalStreamClosed),
                    Poll::Pending => break,
                }
            }
        }
        Ok(())
    }

    /// Whether the client has not received everything of answers whose exchanges are over. The driver is
    /// woken when that changes.
    pub(super) fn is_unsent(&self, context: &mut Context<'_>) -> bool {
        self.late.get() > 0 || self.quic.poll_acknowledged(context).is_pending()
    }

    /// Sends the end of an answer whose exchange is already over, and then forgets the stream.
    /// `malformed_code` ends the answer to a malformed request (RFC 9114 section 4.1.2): it is sent when the
    /// answer has had time to arrive, because many clients then discard what they have not read yet.
    pub fn send_late(self: &Rc<Self>, id: StreamId, rest: [Bytes; 2], malformed_code: Option<u64>) {
        let shared = self.clone();
        self.late.set(self.late.get() + 1);
        // Content that is sent from where it is stored is not counted here.
        let held = Held::new(&self.buffers);
        held.set(LATE_BYTES + rest[0].len() as u64);
        tokio::task::spawn_local(async move {
            let quic = &shared.quic;
            let send = async {
                for mut bytes in rest {
                    while !bytes.is_empty() {
                        let written = poll_fn(|context| quic.poll_write(id, &mut bytes, context));
                        let in_time = tokio::time::timeout(LATE_TIMEOUT, written).await;
                        in_time.unwrap_or(Err(StreamError::Reset(Code::RequestCancelled.value())))?;
                    }
                    held.set(LATE_BYTES);
                }
                let Some(code) = malformed_code else { return quic.finish(id) };
                tokio::time::sleep((2 * quic.round_trip()).min(LONGEST_ROUND_TRIPS)).await;
                quic.reset(id, code);
                Ok(())
            };
            if send.await.is_err() {
                quic.reset(id, Code::RequestCancelled.value());
            }
            quic.forget(id);
            shared.late.set(shared.late.get() - 1);
            shared.under_way.wake_driver();
        });
    }
}

/// Reads a unidirectional stream of the peer; gives whether it goes on.
fn read_steering(shared: &Shared, id: StreamId, context: &mut Context<'_>) -> Result<bool, Fault> {
    loop {
        match shared.quic.poll_read(id, READ_BYTES, context) {
            Poll::Ready(Ok(Some(bytes))) => {
                let said = shared.protocol.borrow_mut().receive(number(id), &bytes)?;
                if said == PeerStream::Ignore {
                    shared.quic.stop(id, Code::StreamCreationError.value());
                    shared.quic.forget(id);
                    return Ok(false);
                }
            }
            Poll::Ready(_) => {
                shared.quic.forget(id);
                shared.protocol.borrow_mut().closed(number(id))?;
                return Ok(false);
            }
            Poll::Pending => return Ok(true),
        }
    }
}

/// The number of a stream.
pub(super) fn number(id: StreamId) -> u64 {
    quinn_proto::VarInt::from(id).into_inner()
}
