//! The writing end of a broadcast.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

use bytes::Bytes;
use weir_cache::Object;

use super::super::around::{Interim, Trailer};
use super::laggards::Laggards;
use super::{Alone, Broadcast, Ending, FetchedHead, Stage, WINDOW_BYTES};
use crate::http::failure::FailedFetch;

/// Writes to a broadcast. Its readers always learn of the end, at the latest when it is dropped.
pub struct Sender {
    broadcast: Arc<Broadcast>,
    /// Most bytes that all broadcasts together may gather.
    gathered_most: u64,
    is_over: bool,
    laggards: Laggards,
}

impl Sender {
    /// A new broadcast. `gathered` counts the bytes of all broadcasts, which may be at most `gathered_most`.
    pub fn new(gathered: &Arc<AtomicU64>, gathered_most: u64, alone: Alone) -> Sender {
        let broadcast = Arc::new(Broadcast::new(gathered, alone));
        Sender { broadcast, gathered_most, is_over: false, laggards: Laggards::default() }
    }

    /// The broadcast, which readers join.
    pub fn broadcast(&self) -> &Arc<Broadcast> {
        &self.broadcast
    }

    /// Passes on an interim response.
    pub fn pass_on(&mut self, interim: Interim) {
        self.broadcast.change(|state| state.interim.push(Arc::new(interim)));
    }

    /// The final head came. The content is gathered if `is_kept`.
    pub fn begin(&mut self, head: Arc<FetchedHead>, is_kept: bool) {
        self.broadcast.change(|state| {
            state.stage = Stage::Streaming(head);
            state.is_kept = is_kept;
        });
    }

    /// As [`Self::begin`], for content whose readers have its head already.
    pub fn begin_copy(&mut self, is_kept: bool) {
        self.broadcast.change(|state| {
            state.stage = Stage::Copying;
            state.is_kept = is_kept;
        });
    }

    /// Whether the content is still to be stored.
    pub fn is_kept(&self) -> bool {
        self.broadcast.lock().is_kept
    }

    /// Whether nobody needs the rest of the response.
    pub fn is_unwanted(&self) -> bool {
        self.broadcast.lock().is_unwanted()
    }

    /// Ready if nobody needs the rest of the response: nobody reads it, and it is not to be stored or may not
    /// go on alone. The task is woken when that changes.
    pub fn poll_unwanted(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.broadcast.lock();
        if state.is_unwanted() {
            return Poll::Ready(());
        }
        state.driver = Some(context.waker().clone());
        Poll::Pending
    }

    /// Takes all of `content` as soon as there is room. If more than `most` bytes have been gathered, the
    /// response is not stored.
    pub fn poll_append(
        &mut self,
        context: &Context<'_>,
        content: &[u8],
        most: u64,
    ) -> Poll<io::Result<usize>> {
        let added = content.len() as u64;
        let mut state = self.broadcast.lock();
        if state.is_unwanted() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if state.is_kept {
            let all = state.charge.add(added);
            if state.length + added > most || all > self.gathered_most {
                state.let_go();
            }
        }
        if !state.is_kept {
            if !state.has_readers() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            while state.held_bytes() >= WINDOW_BYTES {
                if !self.laggards.check(&mut state, context) {
                    state.driver = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
        drop(state);
        let chunk = Bytes::copy_from_slice(content);
        self.broadcast.change(|state| {
            state.chunks.push_back((state.length, chunk));
            state.length += added;
        });
        Poll::Ready(Ok(content.len()))
    }

    /// Stops gathering, and drops what everybody has read.
    pub fn keep_no_more(&mut self) {
        self.broadcast.lock().let_go();
    }

    /// The gathered content, once all of it has come; `None` if it is not to be stored.
    pub fn gathered(&self) -> Option<Vec<Bytes>> {
        let state = self.broadcast.lock();
        state.is_kept.then(|| state.chunks.iter().map(|(_, chunk)| chunk.clone()).collect())
    }

    /// The head, if it has come.
    pub fn head(&self) -> Option<Arc<FetchedHead>> {
        self.broadcast.head()
    }

    /// The response is complete. `object` is what was stored.
    pub fn finish(&mut self, object: Option<Arc<Object>>, trailers: Option<Arc<[Trailer]>>) {
        self.is_over = true;
        self.broadcast.change(|state| {
            match &object {
                Some(object) => state.hand_over(object),
                None => state.let_go(),
            }
            state.trailers = trailers;
            state.end = Some(Ending::Whole(object));
            state.permit = None;
        });
    }

    /// The backend confirmed the stored response.
    pub fn confirm(&mut self, object: Arc<Object>, is_for_all: bool) {
        self.is_over = true;
        self.broadcast.change(|state| {
            state.stage = Stage::Confirmed { object, is_for_all };
            state.permit = None;
        });
    }

    /// There was no response, or an incomplete one.
    pub fn fail(&mut self, failed: FailedFetch) {
        self.end_with(Stage::Failed(failed));
    }

    fn end_with(&mut self, stage: Stage) {
        self.is_over = true;
        self.broadcast.change(|state| {
            state.permit = None;
            match state.stage {
                Stage::Streaming(_) | Stage::Copying => {
                    state.let_go();
                    state.end = Some(Ending::Broken);
                }
                _ => state.stage = stage,
            }
        });
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.is_over {
            self.end_with(Stage::Lost);
        }
    }
}
