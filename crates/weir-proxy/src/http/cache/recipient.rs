//! Receives the response of a fetch and passes it to the cache and to all who wait for it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use weir_cache::{
    Body, Crowd, Exchange as Asked, KeyBuffer, NotStored, Object, RequestFacts, Storing, Unkept, freshen,
    judge_response, outlasts_error, unkept, validators,
};
use weir_http::{BodyLength, Conditions, Field, RequestHead, ResponseHead, SetCookie};
use weir_io::clock;
use weir_io::stream::Sight;

use super::around::{Interim, Trailer};
use super::broadcast::{FetchedHead, Origin};
use super::fetches::{BACK_OFF, Lease, PASS_FOR};
use super::times;
use crate::http::edit_table::Edits;
use crate::http::exchange::Exchange;
use crate::http::failure::{FailedFetch, Failure, Meets};
use crate::http::requester::{Recipient, Requester};
use crate::http::sink::{Parts, Sink};
use crate::worker::WorkerListener;

/// Pieces of content smaller than this on average, in bytes, are joined before they are stored.
const PIECE_BYTES: usize = 16 << 10;
/// The size that pieces are joined to, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The recipient of a fetch's response.
pub struct Fetch {
    pub(super) lease: Lease,
    pub(super) route: usize,
    pub(super) listener: Rc<WorkerListener>,
    pub(super) key: KeyBuffer,
    pub(super) facts: RequestFacts,
    /// The request that began the fetch.
    pub(super) request: Rc<RequestHead>,
    pub(super) text: Rc<[u8]>,
    /// The stale response, if there is one. It is revalidated if it has validators.
    pub(super) stale: Option<Arc<Object>>,
    pub(super) storing: Option<Storing>,
    pub(super) asked_at: Duration,
    /// The backend confirmed another response than the stored one: ask again without conditions.
    pub(super) is_mismatched: bool,
}

impl Fetch {
    fn cache(&self) -> Option<&super::RouteCache> {
        self.listener.compiled.routes.route(self.route)?.cache.as_deref()
    }

    /// The conditions sent to the backend: none, or those that revalidate the stale response.
    pub fn conditions(&self) -> Conditions<'_> {
        let known = self.stale.as_deref().map(validators);
        Conditions::Of {
            if_none_match: known.as_ref().and_then(|known| known.if_none_match),
            if_modified_since: known.as_ref().and_then(|known| known.if_modified_since),
        }
    }

    /// Whether the request to the backend has conditions.
    fn is_conditional(&self) -> bool {
        self.stale.as_deref().is_some_and(|stale| !validators(stale).is_empty())
    }

    /// Takes the head of the response; gives the framing of its content.
    pub fn begin(
        &mut self,
        head: &ResponseHead,
        received: &[u8],
        origin: Origin,
        sticky: Option<&SetCookie>,
    ) -> BodyLength {
        if head.status() == 304 && self.is_conditional() {
            self.confirm(head, received);
            return head.body();
        }
        let text = &received[..head.head_bytes()];
        let judged = self.judge(head, text);
        let mut key = self.key.clone();
        let variant = judged.as_ref().map(|storing| {
            key.select(storing.vary(), &self.request, &self.text);
            (storing.vary().clone(), key.bytes().into())
        });
        let has_cookie = head.value(weir_http::KnownHeader::SetCookie, text).is_some();
        let is_personal = has_cookie || judged.as_ref().is_some_and(Storing::withholds);
        self.storing = judged;
        let is_late = self.storing.as_ref().is_some_and(Storing::is_late);
        let fetched = FetchedHead {
            head: head.clone(),
            text: text.into(),
            variant,
            freshness: self.storing.as_ref().map(|storing| *storing.freshness()),
            is_late,
            is_personal,
            sticky: sticky.cloned(),
            origin,
        };
        // A response that came too late is gathered like one that is stored, so that no reader holds up
        // another.
        let is_gathered = self.storing.is_some();
        self.lease.sender.begin(Arc::new(fetched), is_gathered);
        if !is_gathered || is_late {
            self.lease.leave();
        }
        if head.body().is_empty() {
            self.finish(std::iter::empty());
        }
        head.body()
    }

    /// Whether the response is to be stored.
    fn judge(&self, head: &ResponseHead, text: &[u8]) -> Option<Storing> {
        let route = self.cache()?;
        let (cache, hash) = (&route.cache, self.key.hash());
        let now = clock::now();
        let is_error = head.status() >= 500;
        let outlasts =
            |kept: &Arc<Object>| outlasts_error(kept, head.status(), &self.facts, &route.rules, now);
        if self.stale.as_ref().is_some_and(outlasts) {
            if is_error && !self.facts.demands() {
                cache.fetches.pass(hash, Crowd::All, now, now + BACK_OFF);
            }
            return None;
        }
        let asked = Asked { asked_at: self.asked_at, times: times() };
        match judge_response(&self.facts, head, text, &route.rules, asked) {
            Ok(storing) => {
                let is_outdated = || unkept(&self.facts, head.status(), NotStored::Stale).drops;
                if let Some(stale) = self.stale.as_ref().filter(|_| storing.is_late() && is_outdated()) {
                    cache.store.discard(stale);
                }
                cache.has_room().then_some(storing)
            }
            Err(reason) => {
                let Unkept { passes, drops } = unkept(&self.facts, head.status(), reason);
                if let Some(crowd) = passes {
                    let long = if is_error { BACK_OFF } else { PASS_FOR };
                    cache.fetches.pass(hash, crowd, now, now + long);
                }
                if let Some(stale) = self.stale.as_ref().filter(|_| drops) {
                    cache.store.discard(stale);
                }
                None
            }
        }
    }

    /// The backend confirmed the stale response (RFC 9111 §4.3.4).
    fn confirm(&mut self, head: &ResponseHead, received: &[u8]) {
        let Some(stale) = self.stale.take() else { return };
        let Some(route) = self.cache() else { return };
        let asked = Asked { asked_at: self.asked_at, times: times() };
        match freshen(&stale, head, received, &self.facts, &route.rules, asked) {
            Ok(freshened) => {
                let store = &route.cache.store;
                let is_for_all = freshened.kept.is_ok();
                let object = match freshened.kept {
                    // If it was purged or replaced meanwhile, it still answers those who wait.
                    Ok(()) => store.freshened(&stale, freshened.object, self.lease.began).unwrap_or(stale),
                    Err(reason) => {
                        if unkept(&self.facts, stale.status(), reason).drops {
                            store.discard(&stale);
                        }
                        Arc::new(freshened.object)
                    }
                };
                self.lease.sender.confirm(object, is_for_all);
                self.lease.leave();
            }
            Err(_) => {
                if !self.facts.demands() {
                    route.cache.store.discard(&stale);
                }
                self.is_mismatched = true;
            }
        }
    }

    /// Takes content.
    fn poll_append(&mut self, context: &Context<'_>, content: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_mismatched {
            return Poll::Ready(Ok(content.len()));
        }
        let most = self.cache().map_or(0, |route| route.rules.object_max_bytes);
        let was_kept = self.storing.is_some();
        let polled = self.lease.sender.poll_append(context, content, most);
        if was_kept && !self.lease.sender.is_kept() {
            // It turned out too large.
            self.storing = None;
            self.lease.leave();
            if let Some(route) = self.cache() {
                let now = clock::now();
                if let Some(crowd) = unkept(&self.facts, 200, NotStored::TooLarge).passes {
                    route.cache.fetches.pass(self.key.hash(), crowd, now, now + PASS_FOR);
                }
            }
        }
        polled
    }

    /// The response is complete, with these trailers. They are not stored (RFC 9110 §6.5.1 allows dropping
    /// them): a response from memory has a length, after which HTTP/1.1 has no place for trailers.
    fn finish<'a>(&mut self, trailers: impl Iterator<Item = Field<'a>>) {
        if self.is_mismatched {
            return;
        }
        let storing = self.storing.take().filter(|storing| !storing.is_late());
        let sender = &self.lease.sender;
        let object = storing.zip(sender.gathered()).and_then(|(storing, chunks)| {
            let (route, head) = (self.cache()?, sender.head()?);
            let body = Body::new(put_together(chunks));
            let object = storing.object(&head.head, &head.text, body).ok()?;
            let super::Cache { store, encodings, .. } = &*route.cache;
            let claimed = encodings.claim(sender.broadcast(), &object);
            let object = store.insert(&self.key, &self.request, &self.text, object, self.lease.began).ok()?;
            encodings.hand_over(sender.broadcast(), &object, claimed);
            Some(object)
        });
        let trailers: Vec<Trailer> = trailers.map(|field| Trailer::of(&field)).collect();
        self.lease
            .sender
            .finish(object, Some(trailers.into()).filter(|trailers: &Arc<[_]>| !trailers.is_empty()));
        self.lease.leave();
    }

    /// There is no response, or an incomplete one.
    pub fn fail(&mut self, failed: FailedFetch) {
        let says_nothing = failed.meets == Meets::Client || self.facts.demands();
        if let (Some(route), Some(_)) = (self.cache(), self.stale.as_ref().filter(|_| !says_nothing)) {
            let now = clock::now();
            route.cache.fetches.pass(self.key.hash(), Crowd::All, now, now + BACK_OFF);
        }
        self.lease.sender.fail(failed);
        self.lease.leave();
    }
}

impl Recipient for Fetch {
    /// The recipient is gone once nobody needs the response any more.
    fn poll_present(&mut self, context: &mut Context<'_>) -> io::Result<Sight> {
        match self.lease.sender.poll_unwanted(context) {
            Poll::Pending => Ok(Sight::Quiet),
            Poll::Ready(()) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    async fn pass_on(
        &mut self,
        _: &Requester,
        exchange: &mut Exchange,
        _: Option<&Edits>,
        received: &[u8],
    ) -> Result<(), Failure> {
        let head = exchange.response.clone();
        let text = received[..head.head_bytes()].into();
        self.lease.sender.pass_on(Interim { head, text });
        Ok(())
    }
}

impl Sink for Fetch {
    fn poll_take(&mut self, context: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>> {
        self.poll_append(context, parts.content)
    }

    fn poll_end<'a>(
        &mut self,
        _: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        self.finish(trailers);
        Poll::Ready(Ok(()))
    }
}

/// Copies small pieces into larger ones, once: each piece costs some memory and a step in every send.
pub fn put_together(pieces: Vec<Bytes>) -> Vec<Bytes> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    if pieces.len() <= 1 || length / pieces.len() >= PIECE_BYTES {
        return pieces;
    }
    let mut chunks = Vec::with_capacity(length / CHUNK_BYTES + 1);
    let mut chunk = Vec::with_capacity(length.min(CHUNK_BYTES));
    for mut piece in pieces {
        while !piece.is_empty() {
            let count = piece.len().min(CHUNK_BYTES - chunk.len());
            chunk.extend_from_slice(&piece.split_to(count));
            if chunk.len() == CHUNK_BYTES {
                chunks.push(Bytes::from(std::mem::take(&mut chunk)));
            }
        }
    }
    if !chunk.is_empty() {
        chunk.shrink_to_fit();
        chunks.push(Bytes::from(chunk));
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_become_few_chunks_with_the_same_bytes() {
        let bytes: Vec<u8> = (0..200_000u32).map(|number| number as u8).collect();
        let pieces: Vec<Bytes> = bytes.chunks(1000).map(Bytes::copy_from_slice).collect();
        let chunks = put_together(pieces);
        assert_eq!(chunks.len(), 4);
        assert_eq!(chunks.concat(), bytes);
        let large = vec![Bytes::from(vec![0; PIECE_BYTES]), Bytes::from(vec![1; PIECE_BYTES])];
        assert_eq!(put_together(large.clone()), large, "large ones stay where they are");
    }
}
