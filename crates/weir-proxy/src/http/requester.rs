//! Who a response is requested by, and who receives it.
//!
//! Both are described only by what the steps of an exchange need, so that a fetch for the cache takes the
//! same steps as a client's request.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_config::NEVER;
use weir_http::ClientIdentity;
use weir_io::buffers::{Buffer, Buffers};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::handshake::Secure;
use weir_io::stream::{Duplex as _, Sight};

use crate::backends::ConnectError;
use crate::client::Client;
use crate::http::edit_table::Edits;
use crate::http::exchange::Exchange;
use crate::http::failure::{Awaited, Failure};
use crate::http::stream::Stream;
use crate::shares;
use crate::worker::{ListenerSlot, Worker};

/// What a client has in common with a fetch for the cache, which acts for many clients.
pub struct Requester {
    pub worker: Rc<Worker>,
    pub slot: Rc<ListenerSlot>,
    /// The result of the TLS handshake; `None` without TLS.
    pub secure: Option<Rc<Secure>>,
    pub client: Client,
    /// Rendered once; added to every request.
    pub identity: Rc<ClientIdentity>,
    /// Whose memory the exchange takes: see [`crate::shares`].
    pub buffers: Rc<Buffers>,
    pub deadline: Deadline,
    /// The time limit for the current request as a whole.
    pub total: Total,
    /// Bytes received and not yet used: the current head, or pipelined requests.
    pub buffer: Option<Buffer>,
}

/// The time limit for a whole request (`timeout.request_total`).
pub struct Total {
    /// When it must be over, or [`Duration::MAX`].
    until: Cell<Duration>,
    /// How long it may take, or [`Duration::MAX`].
    length: Cell<Duration>,
}

impl Total {
    /// No limit.
    pub const fn endless() -> Total {
        Total { until: Cell::new(Duration::MAX), length: Cell::new(Duration::MAX) }
    }
}

/// The recipient of a response.
pub trait Recipient {
    /// Whether somebody waits for the response, for whom a second backend is worth asking.
    const WAITS: bool = true;

    /// The stream that the request came on and that the rest of its body comes on; `None` for memory, whose
    /// requests have no content.
    fn stream(&mut self) -> Option<&mut Stream> {
        None
    }

    /// Takes the part of the request's body that has arrived while no buffer is free for it, as
    /// [`weir_io::stream::Duplex::gather`] does. Code that waits for something else calls this at each poll.
    #[inline]
    fn gather_body(&mut self, context: &mut Context<'_>) {
        if let Some(stream) = self.stream() {
            stream.gather(context);
        }
    }

    /// Checks for the recipient without taking anything that it sent. `Err` if it is gone.
    fn poll_present(&mut self, context: &mut Context<'_>) -> io::Result<Sight>;

    /// Passes on the interim response in `exchange.response`, whose text is at the front of `received`,
    /// without the fields that rules (`edits`) remove from responses. A recipient that only waits for the
    /// final response ignores it.
    async fn pass_on(
        &mut self,
        _requester: &Requester,
        _exchange: &mut Exchange,
        _edits: Option<&Edits>,
        _received: &[u8],
    ) -> Result<(), Failure> {
        Ok(())
    }
}

/// No recipient: the response is discarded, or passed on by somebody else.
#[derive(Default)]
pub struct Nobody {
    /// How many bytes of it were taken.
    pub taken: usize,
}

impl Recipient for Nobody {
    const WAITS: bool = false;

    fn poll_present(&mut self, _: &mut Context<'_>) -> io::Result<Sight> {
        Ok(Sight::Quiet)
    }
}

impl Requester {
    /// A second requester for `client` in the same task.
    pub async fn beside(&self, client: Client) -> Requester {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let deadline = self.worker.deadlines.register(waker);
        deadline.belongs_to(self.slot.current().shared.number());
        Requester {
            worker: self.worker.clone(),
            slot: self.slot.clone(),
            secure: self.secure.clone(),
            client,
            identity: self.identity.clone(),
            buffers: self.buffers.clone(),
            deadline,
            total: Total::endless(),
            buffer: None,
        }
    }

    /// Called when a reload has added the client's address to the trusted proxies, or removed it.
    #[cold]
    pub fn renew_trust(&mut self) {
        let trusted = !self.identity.is_trusted();
        self.buffers = shares::of_connection(&self.worker, &self.client, trusted);
        self.identity = Rc::new(ClientIdentity::clone(&self.identity).of_trust(trusted));
    }

    /// The buffers for the next head. A trusted proxy may send it for another client than the one before,
    /// whose share may be used up.
    #[inline]
    pub fn buffers_for_head(&self) -> &Rc<Buffers> {
        if self.identity.is_trusted() { &self.worker.buffers } else { &self.buffers }
    }

    /// Bytes received and not yet used.
    #[inline]
    pub fn received(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[][..], Buffer::filled)
    }

    /// Whether the deadline has passed. Once draining has begun, for which every session is woken, this
    /// brings the deadline forward.
    pub fn is_late(&self) -> bool {
        if let Some(until) = self.slot.draining_until() {
            self.deadline.no_later_than(until);
        }
        self.deadline.has_passed()
    }

    /// Whether the time for draining is over.
    pub fn is_drained(&self) -> bool {
        self.slot.draining_until().is_some_and(|until| until <= clock::now())
    }

    /// Whether it can be noticed that the recipient leaves. If a client has already sent more than the
    /// request, its close only shows after that is received; but a stream's reset overtakes the data.
    #[inline]
    pub fn sees_leave(&self, recipient: &mut impl Recipient) -> bool {
        self.buffer.is_none() || recipient.stream().is_some_and(|stream| stream.is_muxed())
    }

    /// Checks for the recipient without taking anything. `Err` if it has left: it reset the connection, or
    /// ended its direction where that counts as leaving.
    pub fn look_at(
        &self,
        recipient: &mut impl Recipient,
        context: &mut Context<'_>,
    ) -> Result<Sight, Failure> {
        match recipient.poll_present(context) {
            Ok(Sight::Ended) if self.slot.current().shared.config.http().abort_on_close => {
                Err(Failure::ClientClosed)
            }
            seen => seen.map_err(|_| Failure::ClientClosed),
        }
    }

    /// Makes all waits of the request together end within `total` of `head`, when its head was complete.
    #[inline]
    pub fn begin_total(&self, head: Duration, total: Duration) {
        self.total.until.set(if total == NEVER { Duration::MAX } else { head + total });
        self.total.length.set(total);
    }

    /// Makes all waits also end by `moment`, if that is earlier.
    pub fn end_by(&self, moment: Duration) {
        self.total.until.set(self.total.until.get().min(moment));
    }

    /// Makes all waits end when those of `other` do, which serves the same request.
    pub fn share_total(&self, other: &Requester) {
        self.total.until.set(other.total.until.get());
        self.total.length.set(other.total.length.get());
    }

    /// Removes the limit on the total of all waits.
    #[inline]
    pub fn end_total(&self) {
        self.total.until.set(Duration::MAX);
    }

    /// When the current request must be over.
    #[inline]
    pub fn last_moment(&self) -> Duration {
        self.total.until.get()
    }

    /// The real reason for a failure: a wait may have timed out because the total time of the request was
    /// over. Whoever was waited for then is only to blame if it owed something: otherwise a backend that is
    /// always slower than that would seem healthy.
    pub fn judge(&self, failure: Failure) -> Failure {
        let awaited = match &failure {
            Failure::BodyTimeout | Failure::ClientStalled => Awaited::Client,
            Failure::BackendTimeout => Awaited::Backend,
            // A backend that has begun to answer may have much to send.
            Failure::StreamTimeout { .. }
            | Failure::QueueTimeout
            | Failure::Connect(ConnectError::TimedOut { .. }) => Awaited::Nobody,
            _ => return failure,
        };
        if self.last_moment() > clock::now() { failure } else { Failure::RequestTotal(awaited) }
    }

    /// As [`Self::judge`], for an attempt whose backend was sent the request at `sent_at`. The backend owed
    /// an answer only if it had the request for at least half of the total time: under load most of that may
    /// be spent in line, and the rest would be too short for any backend.
    pub fn judge_attempt(&self, failure: Failure, sent_at: Duration) -> Failure {
        let had = || clock::now().saturating_sub(sent_at);
        match self.judge(failure) {
            Failure::RequestTotal(Awaited::Backend) if had() < self.total.length.get() / 2 => {
                Failure::RequestTotal(Awaited::Nobody)
            }
            judged => judged,
        }
    }

    /// Makes a wait that begins at `now` end after `patience`, or when the drain is over.
    #[inline]
    pub fn wait(&self, now: Duration, patience: Duration) {
        let due = (now + patience).min(self.total.until.get());
        self.deadline.set(self.slot.draining_until().map_or(due, |until| due.min(until)));
    }
}
