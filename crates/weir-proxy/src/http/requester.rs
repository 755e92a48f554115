//! Who asks for a response, and whom it goes to.
//!
//! Both are known here by what the steps of an exchange need of them, and by nothing else: what the cache
//! asks a backend takes the same steps as what a client asks.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_config::NEVER;
use weir_http::ClientIdentity;
use weir_io::buffers::Buffer;
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
use crate::worker::{ListenerSlot, Worker};

/// What a client has in common with the cache, which asks for many clients.
pub struct Requester {
    pub worker: Rc<Worker>,
    pub slot: Rc<ListenerSlot>,
    /// What the TLS handshake came to; `None` without TLS.
    pub secure: Option<Rc<Secure>>,
    pub client: Client,
    /// Rendered once; goes into every request.
    pub identity: Rc<ClientIdentity>,
    pub deadline: Deadline,
    /// The time for the whole request under way.
    pub total: Total,
    /// What was received and not yet used: the head under way, or pipelined requests.
    pub buffer: Option<Buffer>,
}

/// The time for a whole request (`timeout.request_total`).
pub struct Total {
    /// When it must be over, or [`Duration::MAX`].
    until: Cell<Duration>,
    /// How long it may take, or [`Duration::MAX`].
    length: Cell<Duration>,
}

impl Total {
    /// As long as it takes.
    pub const fn endless() -> Total {
        Total { until: Cell::new(Duration::MAX), length: Cell::new(Duration::MAX) }
    }
}

/// Whom a response goes to.
pub trait Recipient {
    /// Whether anybody waits for it, for whom it is worth asking two backends.
    const WAITS: bool = true;

    /// What the request came by, and the rest of its body comes by; `None` for memory, which asks without
    /// content.
    fn stream(&mut self) -> Option<&mut Stream> {
        None
    }

    /// Takes what has come of the request's body while nobody has room for it, as
    /// [`weir_io::stream::Duplex::gather`] does. Whoever waits for something else does so at each turn.
    #[inline]
    fn gather_body(&mut self, context: &mut Context<'_>) {
        if let Some(stream) = self.stream() {
            stream.gather(context);
        }
    }

    /// What is to be seen of it without taking anything of what it sent. Err when it is gone.
    fn poll_present(&mut self, context: &mut Context<'_>) -> io::Result<Sight>;

    /// Passes the interim response in `exchange.response` on, whose text is the front of `received`, without
    /// what rules (`edits`) take out of responses; whoever waits for the final one alone lets it go by.
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

/// Nobody: the response is thrown away, or somebody else hands it on.
#[derive(Default)]
pub struct Nobody {
    /// Bytes of it.
    pub taken: usize,
}

impl Recipient for Nobody {
    const WAITS: bool = false;

    fn poll_present(&mut self, _: &mut Context<'_>) -> io::Result<Sight> {
        Ok(Sight::Quiet)
    }
}

impl Requester {
    /// One that asks beside it on behalf of `client`, in the same task.
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
            deadline,
            total: Total::endless(),
            buffer: None,
        }
    }

    /// A reload has taken the client's address into the proxies that are believed, or out of them.
    #[cold]
    pub fn renew_trust(&mut self) {
        let trusted = !self.identity.is_trusted();
        self.identity = Rc::new(ClientIdentity::clone(&self.identity).of_trust(trusted));
    }

    /// What was received and not yet used.
    #[inline]
    pub fn received(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[][..], Buffer::filled)
    }

    /// Whether the deadline has passed. It is brought forward once draining has begun, which every session is
    /// woken for.
    pub fn is_late(&self) -> bool {
        if let Some(until) = self.slot.draining_until() {
            self.deadline.no_later_than(until);
        }
        self.deadline.has_passed()
    }

    /// Whether the time that draining grants is over.
    pub fn is_drained(&self) -> bool {
        self.slot.draining_until().is_some_and(|until| until <= clock::now())
    }

    /// Whether it can be seen that whom the response is for leaves. Who has sent more than the request
    /// already can't be seen to before that is received, but for a stream, whose reset overtakes it.
    #[inline]
    pub fn sees_leave(&self, recipient: &mut impl Recipient) -> bool {
        self.buffer.is_none() || recipient.stream().is_some_and(|stream| stream.is_muxed())
    }

    /// Looks at whom the response is for without taking anything. `Err` when it has left: it reset the
    /// connection, or ended its direction where that counts as leaving.
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

    /// Has all waits of the request together end within `total` of `head`, when its head was complete.
    #[inline]
    pub fn begin_total(&self, head: Duration, total: Duration) {
        self.total.until.set(if total == NEVER { Duration::MAX } else { head + total });
        self.total.length.set(total);
    }

    /// Has all waits end by `moment` as well, where that is earlier.
    pub fn end_by(&self, moment: Duration) {
        self.total.until.set(self.total.until.get().min(moment));
    }

    /// Has all waits end when those of `other` do, for the same request.
    pub fn share_total(&self, other: &Requester) {
        self.total.until.set(other.total.until.get());
        self.total.length.set(other.total.length.get());
    }

    /// Has waits last as long as each may.
    #[inline]
    pub fn end_total(&self) {
        self.total.until.set(Duration::MAX);
    }

    /// When the request under way must be over.
    #[inline]
    pub fn last_moment(&self) -> Duration {
        self.total.until.get()
    }

    /// What a failure really is: a wait that took too long may have done so because the time for the whole
    /// request was over. Who was waited for then is to blame only where it owed something: a backend that is
    /// always slower than that would else be taken for a good one.
    pub fn judge(&self, failure: Failure) -> Failure {
        let awaited = match &failure {
            Failure::BodyTimeout | Failure::ClientStalled => Awaited::Client,
            Failure::BackendTimeout => Awaited::Backend,
            // One that has begun to answer may have much to say.
            Failure::StreamTimeout { .. }
            | Failure::QueueTimeout
            | Failure::Connect(ConnectError::TimedOut { .. }) => Awaited::Nobody,
            _ => return failure,
        };
        if self.last_moment() > clock::now() { failure } else { Failure::RequestTotal(awaited) }
    }

    /// As [`Self::judge`], of an attempt whose backend was sent the request at `sent_at`. It owed an answer
    /// where it had the request for half of the time at least: under load most of it may be spent in line,
    /// and what is left is too short for anybody.
    pub fn judge_attempt(&self, failure: Failure, sent_at: Duration) -> Failure {
        let had = || clock::now().saturating_sub(sent_at);
        match self.judge(failure) {
            Failure::RequestTotal(Awaited::Backend) if had() < self.total.length.get() / 2 => {
                Failure::RequestTotal(Awaited::Nobody)
            }
            judged => judged,
        }
    }

    /// Has a wait that begins at `now` end after `patience`, or when the drain is over.
    #[inline]
    pub fn wait(&self, now: Duration, patience: Duration) {
        let due = (now + patience).min(self.total.until.get());
        self.deadline.set(self.slot.draining_until().map_or(due, |until| due.min(until)));
    }
}
