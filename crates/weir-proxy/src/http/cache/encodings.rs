//! Encodes content once for all clients that want that coding.
//!
//! The first request for it begins the encoding and reads it like the others, on any worker: from a
//! [`Broadcast`] that an encoder writes instead of a backend. The encoder takes turns like any other task of
//! its worker, and its output is stored with the object that it was made from.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use weir_cache::{Body, Coding, Object, RequestFacts};
use weir_http::Method;
use weir_http::forward::Negotiated;
use weir_state::Listener;

use super::Cache;
use super::broadcast::{Alone, Broadcast, Piece, Reader, Sender};
use super::recipient::put_together;
use crate::http::compress::{self, Encoding, Offer};
use crate::http::forwarding::Forwarding;
use crate::http::session::Session;
use crate::worker;

/// The encodings that are running.
#[derive(Default)]
pub struct Encodings {
    under_way: Mutex<UnderWay>,
    count: AtomicU64,
}

/// By the address of the plain content, and by coding.
type UnderWay = HashMap<(usize, Coding), Making>;

/// One encoding that is running.
struct Making {
    encoded: Arc<Broadcast>,
    /// The plain content. Held, so that nothing else is allocated at its address.
    plain: Held,
}

enum Held {
    Fetched(#[allow(dead_code, reason = "it keeps its address")] Arc<Broadcast>),
    /// The coding is claimed at the object.
    Object(Arc<Object>),
}

impl Encodings {
    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often content was encoded in order to store it encoded.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Claims at `object`, which the response of `broadcast` becomes, the codings that are being made of it;
    /// gives these codings. Must be called before others see the object.
    pub fn claim(&self, broadcast: &Arc<Broadcast>, object: &Object) -> Vec<Coding> {
        let under_way = self.lock();
        let is_made = |coding: &Coding| under_way.contains_key(&(address(broadcast), *coding));
        Coding::ALL.into_iter().filter(is_made).filter(|coding| object.claim(*coding)).collect()
    }

    /// Lets others find the running encodings of `broadcast` by `object` too, once they see it. A claim for
    /// an encoding that has ended meanwhile is given back.
    pub fn hand_over(&self, broadcast: &Arc<Broadcast>, object: &Arc<Object>, claimed: Vec<Coding>) {
        let mut under_way = self.lock();
        for coding in claimed {
            match under_way.get(&(address(broadcast), coding)).map(|making| making.encoded.clone()) {
                Some(encoded) => {
                    let making = Making { encoded, plain: Held::Object(object.clone()) };
                    under_way.insert((address(object), coding), making);
                }
                None => object.give_back(coding),
            }
        }
    }

    /// Removes `encoded` from the table. Unless its output was stored, others may make it again.
    fn end(&self, encoded: &Arc<Broadcast>, is_kept: bool) {
        self.lock().retain(|(_, coding), making| {
            let is_this = Arc::ptr_eq(&making.encoded, encoded);
            if let Held::Object(object) = &making.plain
                && is_this
                && !is_kept
            {
                object.give_back(*coding);
            }
            !is_this
        });
    }
}

fn address<T>(shared: &Arc<T>) -> usize {
    Arc::as_ptr(shared) as usize
}

/// The form in which an object is sent to a client.
pub enum Form {
    /// Without coding.
    AsItIs,
    /// In this coding, which is stored.
    Kept(Coding, Negotiated),
    /// In a coding that is being made.
    Coming(Reader, Negotiated),
}

/// The form in which `object` is sent to the client, given the codings in `offer`.
pub fn form_of(
    session: &Session,
    forwarding: &Forwarding<'_>,
    object: &Arc<Object>,
    facts: &RequestFacts,
    offer: &Offer,
) -> Form {
    let Some(wanted) = offer.coding else { return Form::AsItIs };
    let coding = compress::named(wanted);
    let negotiated = |length| Negotiated { coding: Some(wanted.word()), length, weaken: true };
    let kept = || {
        let made = object.encoded(coding)?;
        // Content that encoding made larger is sent without coding.
        let length = (!made.is_empty()).then(|| made.len());
        Some(length.map_or(Form::AsItIs, |length| Form::Kept(coding, negotiated(Some(length)))))
    };
    if facts.method == Method::Head {
        // HEAD names the form that GET would get, but does not cause an encoding.
        return kept().unwrap_or(Form::Kept(coding, negotiated(None)));
    }
    let form = kept().unwrap_or_else(|| match begin(session, forwarding, offer, &Plain::Object(object)) {
        Some(reader) => Form::Coming(reader, negotiated(None)),
        // Another worker may just have finished it.
        None => kept().unwrap_or(Form::AsItIs),
    });
    if !matches!(form, Form::AsItIs) {
        compress::count_response(session, forwarding, wanted);
    }
    form
}

/// A reader of the same content as `reader`, in the coding that `offer` names. `None` to send it without
/// coding.
pub fn of_broadcast(
    session: &Session,
    forwarding: &Forwarding<'_>,
    reader: &Reader,
    offer: &Offer,
) -> Option<(Reader, Negotiated)> {
    let wanted = offer.coding?;
    let encoded = begin(session, forwarding, offer, &Plain::Fetched(reader))?;
    compress::count_response(session, forwarding, wanted);
    Some((encoded, Negotiated { coding: Some(wanted.word()), length: None, weaken: true }))
}

/// The plain content to encode.
enum Plain<'a> {
    /// A stored object.
    Object(&'a Arc<Object>),
    /// A response that is being fetched, as a client reads it.
    Fetched(&'a Reader),
}

/// Joins the running encoding, or begins one. `None` if neither is possible.
fn begin(session: &Session, forwarding: &Forwarding<'_>, offer: &Offer, plain: &Plain<'_>) -> Option<Reader> {
    let cache = &forwarding.route?.cache.as_ref()?.cache;
    let coding = compress::named(offer.coding?);
    let place = match plain {
        Plain::Object(object) => address(object),
        Plain::Fetched(reader) => address(reader.broadcast()),
    };
    let mut under_way = cache.encodings.lock();
    if let Some(making) = under_way.get(&(place, coding)) {
        // Content that is not stored has lost its beginning once some of it was read.
        return Some(making.encoded.join(false)).filter(Reader::is_at_start);
    }
    let source = match plain {
        // False if somebody has encoded it meanwhile, or is encoding it and can't be joined yet.
        Plain::Object(object) => object.claim(coding).then(|| Source::Object((*object).clone(), 0))?,
        Plain::Fetched(reader) => Source::Fetched(Some(reader.joined()).filter(Reader::is_at_start)?),
    };
    let length = source.object().map(|object| object.body().len());
    let Some(encoding) = compress::begin(session, forwarding, offer, length) else {
        source.object().inspect(|object| object.give_back(coding));
        return None;
    };
    let (alone, held) = match &source {
        Source::Object(object, _) => (Alone::GoesOn, Held::Object(object.clone())),
        // Otherwise a fetch that nobody waits for would go on just for its encoding.
        Source::Fetched(reader) => (Alone::Ends, Held::Fetched(reader.broadcast().clone())),
    };
    let mut sender = Sender::new(cache.fetches.gathered(), cache.gathered_most(), alone);
    let is_kept = source.is_kept();
    sender.begin_copy(is_kept);
    let reader = sender.broadcast().join(true);
    let encoded = sender.broadcast().clone();
    under_way.insert((place, coding), Making { encoded: encoded.clone(), plain: held });
    drop(under_way);
    if is_kept {
        cache.encodings.count.fetch_add(1, Ordering::Relaxed);
    }
    let registration = Registration { cache: cache.clone(), coding, encoded, is_kept: false };
    let listener = forwarding.listener.shared.clone();
    let job = EncodingJob {
        encoding,
        sender,
        source,
        registration,
        listener,
        worker: session.requester.worker.number,
    };
    worker::spawn(&session.requester.worker, serve(job));
    Some(reader)
}

/// The source of the plain content.
enum Source {
    /// The object, and the number of its next chunk.
    Object(Arc<Object>, usize),
    Fetched(Reader),
}

impl Source {
    fn is_kept(&self) -> bool {
        match self {
            Source::Object(..) => true,
            Source::Fetched(reader) => reader.is_kept(),
        }
    }

    fn has_piece(&self) -> bool {
        match self {
            Source::Object(..) => true,
            Source::Fetched(reader) => reader.has_piece(),
        }
    }

    fn poll_piece(&mut self, context: &Context<'_>) -> Poll<Piece> {
        match self {
            Source::Object(object, next) => {
                let chunk = object.body().chunks().get(*next).cloned();
                *next += 1;
                Poll::Ready(chunk.map_or(Piece::End, Piece::Content))
            }
            Source::Fetched(reader) => reader.poll_piece(context),
        }
    }

    /// The object that it is, or has become.
    fn object(&self) -> Option<Arc<Object>> {
        match self {
            Source::Object(object, _) => Some(object.clone()),
            Source::Fetched(reader) => reader.object(),
        }
    }
}

/// A running encoding's entries in the table; removed when dropped.
struct Registration {
    cache: Arc<Cache>,
    coding: Coding,
    encoded: Arc<Broadcast>,
    /// Whether the output is stored, so that the next request finds it with its object.
    is_kept: bool,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.cache.encodings.end(&self.encoded, self.is_kept);
    }
}

/// One body that is encoded.
struct EncodingJob {
    encoding: Box<Encoding>,
    sender: Sender,
    source: Source,
    registration: Registration,
    listener: Arc<Listener>,
    worker: usize,
}

/// Runs an encoding. In any case its readers learn of the end, at the latest when it is dropped.
async fn serve(mut job: EncodingJob) {
    if job.run().await.is_some() {
        job.encoding.count_content(job.listener.cells.of(job.worker));
        job.keep();
        let trailers = match &job.source {
            Source::Object(..) => None,
            Source::Fetched(reader) => reader.trailers(),
        };
        job.sender.finish(None, trailers);
    }
}

impl EncodingJob {
    /// Encodes all of the content; `None` if it can't be completed.
    async fn run(&mut self) -> Option<()> {
        loop {
            if !self.source.has_piece() {
                self.flush().await?;
            }
            match self.next().await? {
                Piece::Content(content) => self.encode(&content).await?,
                Piece::End => break,
                Piece::Broken | Piece::Left => return None,
            }
        }
        loop {
            self.encoding.finish().ok()?;
            self.give_out().await?;
            if self.encoding.is_finished() {
                return Some(());
            }
        }
    }

    /// The next piece of plain content; `None` if nobody needs it any more.
    async fn next(&mut self) -> Option<Piece> {
        let EncodingJob { sender, source, .. } = self;
        if sender.is_kept() && !source.is_kept() {
            // It turned out too large.
            sender.keep_no_more();
        }
        poll_fn(|context| {
            if sender.poll_unwanted(context).is_ready() {
                return Poll::Ready(None);
            }
            source.poll_piece(context).map(Some)
        })
        .await
    }

    async fn encode(&mut self, content: &[u8]) -> Option<()> {
        let mut rest = content;
        while !rest.is_empty() {
            if self.encoding.is_out_of_turn() {
                // Other tasks of this worker get their turn.
                tokio::task::yield_now().await;
                self.encoding.begin_turn();
            }
            let taken = self.encoding.take(rest).ok()?;
            rest = &rest[taken..];
            if self.encoding.has_piece() {
                self.give_out().await?;
            }
        }
        Some(())
    }

    /// Makes the encoder emit what it holds, because no more content is there yet: it may be an event, or
    /// half a page.
    async fn flush(&mut self) -> Option<()> {
        while self.encoding.flush().ok()? {
            self.give_out().await?;
        }
        self.give_out().await
    }

    /// Passes the encoder's output to the readers; `None` if there are none left.
    async fn give_out(&mut self) -> Option<()> {
        let EncodingJob { encoding, sender, .. } = self;
        while !encoding.encoded().is_empty() {
            let gave = poll_fn(|context| sender.poll_append(context, encoding.encoded(), u64::MAX)).await;
            encoding.sent(gave.ok()?);
        }
        Some(())
    }

    /// Stores the output with its object, or the fact that encoding does not pay.
    fn keep(&mut self) {
        let Some(object) = self.source.object() else { return };
        let store = &self.registration.cache.store;
        let body = match self.sender.gathered() {
            _ if self.encoding.encoded_bytes() >= object.body().len() => Body::from(Bytes::new()),
            Some(chunks) => Body::new(put_together(chunks)),
            // There was no room to gather it.
            None => return,
        };
        let coding = self.registration.coding;
        self.registration.is_kept =
            store.encode(&object, coding, body) || store.encode(&object, coding, Body::from(Bytes::new()));
    }
}
