//! One request and its response, with all buffers that are reused from one exchange to the next.

use std::cell::RefCell;
use std::time::Duration;

use weir_cache::KeyBuffer;
use weir_http::values::accept::Wants;
use weir_http::{BodyLength, RequestHead, ResponseHead};

use crate::http::auth::UserFacts;
use crate::http::edit_table::Rendered;
use crate::http::ledger::Ledger;
use crate::http::plan::Paths;
use crate::seldom::{Reused, Seldom};

/// What happens to the client's connection after an exchange.
pub enum After {
    /// It stays open for the next request.
    Keep,
    /// It is closed; nothing is left to send or receive.
    Close,
    /// It is closed only after a while, since the client may still be sending data that we will not read.
    Linger,
    /// It is reset, so that the client sees that the response is incomplete.
    Reset,
}

/// The state of an exchange, reused for the next one so that nothing is allocated in steady state.
pub struct Exchange {
    pub request: RequestHead,
    pub response: ResponseHead,
    /// The request as it is sent to backends, with the part of its body that arrived with its head.
    pub outgoing: Vec<u8>,
    /// The request's head for pools whose backends, or some of them, do not speak HTTP/1.1.
    pub heads: Seldom<BackendHeads>,
    /// The response's head, and small bodies, as they are sent to the client.
    pub reply: Vec<u8>,
    /// Bytes of response head that were passed to the encoder of a stream.
    pub reply_head_bytes: u64,
    /// How path and query differ from what the client sent.
    pub paths: Paths,
    /// The value of `x-request-id` for both sides: the client's own if it sent an acceptable one.
    pub request_id: Vec<u8>,
    /// The form in which the client wants error pages.
    pub wants: Wants,
    /// Whether the request came before the client's handshake was complete (RFC 8470), so that it may be a
    /// replay.
    pub early: bool,
    /// The protocol that the client asks to upgrade to.
    pub upgrade: Seldom<Vec<u8>>,
    /// Number of the route that matched the request.
    pub route: Option<usize>,
    /// Index of the pool that the request goes to, or would have gone to.
    pub pool: Option<usize>,
    /// The field lines that header rules have filled in.
    pub rendered: Seldom<Rendered>,
    /// What authentication found out about the user, if it took place.
    pub user: Seldom<UserFacts>,
    /// Whether this is a request of Weir's own on behalf of another exchange, such as a question to an
    /// authentication service. Only the rules of its pool apply to it.
    pub is_question: bool,
    pub ledger: Ledger,
    /// Most bytes of the request's body that are set aside for a copy; with 0, none are.
    pub put_aside: usize,
    /// Called once a backend has been chosen: until then the request may still be refused.
    pub once_chosen: Option<Box<dyn FnOnce()>>,
    /// The key that the cache is asked by.
    pub key: KeyBuffer,
    /// Whether the host and query that a backend receives are made of the parts of `key` alone.
    pub is_keyed: bool,
    /// Whether `100 Continue` was sent.
    pub continued: bool,
    /// Whether the request was removed from the session's buffer to be forwarded.
    pub forwarded: bool,
    /// Whether some of the request's body was left unread.
    pub body_left: bool,
}

/// The head of a request for pools whose backends, or some of them, do not speak HTTP/1.1.
#[derive(Default)]
pub struct BackendHeads {
    /// For HTTP/2 and HTTP/3. If it is set, [`Exchange::outgoing`] holds content only.
    pub stream: Option<::http::Request<()>>,
    /// The HTTP/1.1 head beside it, for backends that choose the protocol (ALPN) and choose HTTP/1.1.
    pub picked: Vec<u8>,
    /// The whole request, framed for the backend that has chosen HTTP/1.1.
    pub framed: Vec<u8>,
}

impl Reused for BackendHeads {
    const UNUSED: &'static BackendHeads =
        &BackendHeads { stream: None, picked: Vec::new(), framed: Vec::new() };

    fn clear(&mut self) {
        self.stream = None;
        self.picked.clear();
        self.framed.clear();
    }
}

/// How many unused exchanges each worker keeps.
const KEPT: usize = 256;
/// Buffers of an unused exchange that are larger than this, in bytes, are freed.
const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    /// Exchanges of this worker that are not in use; a worker is one thread.
    // Boxed, because taking one out must move a pointer and not 900 bytes.
    #[allow(clippy::vec_box)]
    static UNUSED: RefCell<Vec<Box<Exchange>>> = const { RefCell::new(Vec::new()) };
}

impl Exchange {
    /// An exchange that is ready for a new request.
    pub fn take() -> Box<Exchange> {
        UNUSED.with_borrow_mut(Vec::pop).unwrap_or_else(|| Box::new(Exchange::new()))
    }

    /// Keeps it for the next request on this worker, unless enough are kept already.
    pub fn give_back(mut self: Box<Self>) {
        self.ledger.release();
        self.once_chosen = None;
        if self.outgoing.capacity() > KEPT_BYTES || self.reply.capacity() > KEPT_BYTES {
            self.outgoing = Vec::new();
            self.reply = Vec::new();
        }
        if let Some(heads) = self.heads.used().filter(|heads| heads.framed.capacity() > KEPT_BYTES) {
            heads.framed = Vec::new();
        }
        if let Some(rendered) = self.rendered.used() {
            rendered.shrink(KEPT_BYTES);
        }
        UNUSED.with_borrow_mut(|unused| {
            if unused.len() < KEPT {
                unused.push(self);
            }
        });
    }
}

impl Exchange {
    fn new() -> Exchange {
        Exchange {
            request: RequestHead::new(),
            response: ResponseHead::new(),
            outgoing: Vec::new(),
            heads: Seldom::default(),
            reply: Vec::new(),
            reply_head_bytes: 0,
            paths: Paths::default(),
            request_id: Vec::new(),
            wants: Wants::default(),
            early: false,
            upgrade: Seldom::default(),
            route: None,
            pool: None,
            rendered: Seldom::default(),
            user: Seldom::default(),
            is_question: false,
            put_aside: 0,
            once_chosen: None,
            ledger: Ledger::default(),
            key: KeyBuffer::new(),
            is_keyed: false,
            continued: false,
            forwarded: false,
            body_left: false,
        }
    }

    /// The length of the request's body as HTTP/1.1 announces it to backends.
    pub fn body_to_backends(&self) -> BodyLength {
        let body = self.request.body();
        if body.is_open_ended() { BodyLength::Chunked } else { body }
    }

    /// Takes from `other` the request that was framed for the backend that is asked.
    pub fn take_framed(&mut self, other: &mut Seldom<BackendHeads>) {
        if let Some(other) = other.used().filter(|other| !other.framed.is_empty()) {
            std::mem::swap(&mut self.heads.framed, &mut other.framed);
        }
    }

    /// Resets everything for a request whose first byte came at `now`.
    pub fn begin(&mut self, now: Duration) {
        self.request.clear();
        self.outgoing.clear();
        self.heads.clear();
        self.reply.clear();
        self.reply_head_bytes = 0;
        self.request_id.clear();
        self.wants = Wants::default();
        self.early = false;
        self.upgrade.clear();
        self.is_keyed = false;
        self.route = None;
        self.pool = None;
        self.rendered.clear();
        self.user.clear();
        self.is_question = false;
        self.put_aside = 0;
        self.once_chosen = None;
        self.continued = false;
        self.forwarded = false;
        self.body_left = false;
        self.ledger.begin(now);
    }
}
