//! One request and its response, with all that is reused from one to the next.

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

/// What becomes of the client's connection.
pub enum After {
    /// The next request may come.
    Keep,
    /// Nothing more to say or to hear.
    Close,
    /// The client may still be sending what we will not read.
    Linger,
    /// The client must see that what it got is not whole.
    Reset,
}

/// What an exchange needs, reused from one to the next so that steady state allocates nothing.
pub struct Exchange {
    pub request: RequestHead,
    pub response: ResponseHead,
    /// The request as it goes to backends, with the part of its body that came with it.
    pub outgoing: Vec<u8>,
    /// The head for backends that are not, or not all, spoken to in HTTP/1.1.
    pub heads: Seldom<BackendHeads>,
    /// The response's head, and small bodies, as they go to the client.
    pub reply: Vec<u8>,
    /// Text of a response's head that went to the encoder of a stream, bytes.
    pub reply_head_bytes: u64,
    /// What differs from the path that was sent.
    pub paths: Paths,
    /// What `x-request-id` says towards both sides: the client's own where it sent an acceptable one.
    pub request_id: Vec<u8>,
    /// How the client reads an error.
    pub wants: Wants,
    /// Whether the request may be a copy that somebody sends again: it came before the client's handshake was
    /// over (RFC 8470).
    pub early: bool,
    /// The protocol the client asks to upgrade to.
    pub upgrade: Seldom<Vec<u8>>,
    /// Number of the route that took the request.
    pub route: Option<usize>,
    /// Index of the pool that is asked, or would have been.
    pub pool: Option<usize>,
    /// What rules about header fields have filled in.
    pub rendered: Seldom<Rendered>,
    /// What is known of the user, where anybody asked.
    pub user: Seldom<UserFacts>,
    /// Whether it is a question about another exchange, which the rules of its pool alone change.
    pub is_question: bool,
    pub ledger: Ledger,
    /// Most bytes of the request's body that are put aside for a copy; 0: nothing is.
    pub put_aside: usize,
    /// What is done once a backend was chosen: until then the request may be refused.
    pub once_chosen: Option<Box<dyn FnOnce()>>,
    /// The key that the request is looked up by.
    pub key: KeyBuffer,
    /// Whether a backend is asked by the parts of `key`, and by nothing else of host and query.
    pub is_keyed: bool,
    /// Whether `100 Continue` was sent.
    pub continued: bool,
    /// Whether the request was taken off the session's buffer to be forwarded.
    pub forwarded: bool,
    /// Whether some of the request's body was left unread.
    pub body_left: bool,
}

/// The head of a request as it goes to backends that are not, or not all, spoken to in HTTP/1.1.
#[derive(Default)]
pub struct BackendHeads {
    /// For HTTP/2 and HTTP/3: then [`Exchange::outgoing`] holds content only.
    pub stream: Option<::http::Request<()>>,
    /// Beside it the one for those that pick HTTP/1.1, where they pick.
    pub picked: Vec<u8>,
    /// The whole request as it goes to the one that has picked.
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

/// Exchanges kept for reuse per worker.
const KEPT: usize = 256;
/// A kept exchange's vectors above this size are given back to the allocator.
const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    /// Exchanges of this worker that are not in use; a worker is one thread.
    // Boxed, because taking one out must move a pointer and not 900 bytes.
    #[allow(clippy::vec_box)]
    static UNUSED: RefCell<Vec<Box<Exchange>>> = const { RefCell::new(Vec::new()) };
}

impl Exchange {
    /// One that is ready for a new request.
    pub fn take() -> Box<Exchange> {
        UNUSED.with_borrow_mut(Vec::pop).unwrap_or_else(|| Box::new(Exchange::new()))
    }

    /// Keeps it for the next request on this worker.
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

    /// Takes over what was framed elsewhere for the backend that is asked.
    pub fn take_framed(&mut self, other: &mut Seldom<BackendHeads>) {
        if let Some(other) = other.used().filter(|other| !other.framed.is_empty()) {
            std::mem::swap(&mut self.heads.framed, &mut other.framed);
        }
    }

    /// Makes ready for a request whose first byte came at `now`.
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
