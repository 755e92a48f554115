//! A response on its way from a backend into the cache, and all who wait for it.
//!
//! One fetch writes; any number of clients on any worker read. While the response is to be stored, nothing
//! that a reader does holds the fetch up. A response that is not stored goes through a window: the fetch
//! waits for its slowest reader, unless others wait for what that does not read (`laggards`), and ends when
//! no reader is left.

mod laggards;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use weir_cache::{Freshness, Object};
use weir_http::values::vary::Vary;
use weir_http::{ResponseHead, SetCookie};

pub use self::sender::Sender;
use super::around::{Interim, Trailer};
use super::background::{Background, Permit};
use crate::http::failure::{FailedFetch, Meets};

/// Most bytes of content that is not stored and that some reader has not read yet.
const WINDOW_BYTES: u64 = 256 << 10;

/// One fetch and its readers.
pub struct Broadcast {
    state: Mutex<BroadcastState>,
}

struct BroadcastState {
    stage: Stage,
    /// Whether the content is gathered in order to be stored.
    is_kept: bool,
    /// Content that is still to be read or stored; each piece with the position of its first byte.
    chunks: VecDeque<(u64, Bytes)>,
    /// All content so far, in bytes.
    length: u64,
    /// The trailers after the content.
    trailers: Option<Arc<[Trailer]>>,
    /// The interim responses that came before the final head.
    interim: Vec<Arc<Interim>>,
    charge: Charge,
    end: Option<Ending>,
    readers: Vec<ReaderState>,
    /// Indices in `readers` that are free.
    free: Vec<usize>,
    alone: Alone,
    /// The permit by which the fetch goes on although nobody reads.
    permit: Option<Permit>,
    /// Wakes the fetch while it waits for room or for its last reader to leave.
    driver: Option<Waker>,
}

/// Whether a response that is to be stored is still received while nobody reads it.
#[derive(Clone)]
pub enum Alone {
    /// It is: no backend is busy with it.
    GoesOn,
    /// It is not; the fetch ends.
    Ends,
    /// It is, as long as it has a permit among these.
    Among(Arc<Background>),
}

/// The bytes of the shared limit that one broadcast holds, apart from those that the store holds and counts
/// itself. They are given back when the last reader has left, because slow readers keep content that nobody
/// else needs any more.
struct Charge {
    gathered: Arc<AtomicU64>,
    bytes: u64,
}

impl Charge {
    /// Adds bytes; gives how many all broadcasts then hold.
    fn add(&mut self, bytes: u64) -> u64 {
        self.bytes += bytes;
        self.gathered.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Reduces the count to at most this many bytes.
    fn shrink(&mut self, most: u64) {
        let less = self.bytes.saturating_sub(most);
        self.gathered.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[derive(Default)]
enum Stage {
    #[default]
    Asked,
    Streaming(Arc<FetchedHead>),
    /// As [`Stage::Streaming`], for content whose readers have the head already.
    Copying,
    /// A backend confirmed the stored response, for everybody or only for the first client.
    Confirmed {
        object: Arc<Object>,
        is_for_all: bool,
    },
    Failed(FailedFetch),
    Lost,
}

#[derive(Clone)]
enum Ending {
    /// All of it came; with the object if it could be stored.
    Whole(Option<Arc<Object>>),
    Broken,
}

#[derive(Default)]
struct ReaderState {
    is_taken: bool,
    /// Bytes of the content that it has read.
    position: u64,
    /// How many interim responses it has read.
    interim: usize,
    /// Its position when it was last checked whether it keeps others waiting.
    position_before: u64,
    /// It kept others waiting, and gets nothing more.
    is_left: bool,
    waker: Option<Waker>,
}

/// The head of a response that is being fetched, and what goes with it.
pub struct FetchedHead {
    /// As received, except for fields that belong to the backend's connection.
    pub head: ResponseHead,
    /// The bytes that `head` points into.
    pub text: Box<[u8]>,
    /// The fields that the response varies by, and the key of this variant.
    pub variant: Option<(Vary, Box<[u8]>)>,
    /// How long it is fresh; `None` if it is not stored.
    pub freshness: Option<Freshness>,
    /// Whether it came too late to be stored: those who wait for it get it, and nobody else.
    pub is_late: bool,
    /// Whether only the first client may get this head unchanged.
    pub is_personal: bool,
    /// The stickiness cookie for the first client.
    pub sticky: Option<SetCookie>,
    /// What the access log says about the backend.
    pub origin: Origin,
}

/// Facts about an exchange with a backend, for the access log of those who waited for it.
#[derive(Clone, Copy, Default)]
pub struct Origin {
    /// The backend's index in the pool.
    pub backend: Option<usize>,
    pub retries: u32,
    pub hedge: Option<weir_stats::table::HedgeResult>,
    pub queue: Option<Duration>,
    pub connect: Option<Duration>,
    pub backend_header: Option<Duration>,
    pub backend_protocol: Option<crate::access_log::Spoken>,
}

/// The first thing that a waiting client learns.
pub enum Arrived {
    /// An interim response. Only the first client gets it: it hints at what that client can do meanwhile.
    Interim(Arc<Interim>),
    /// A head; content follows.
    Streaming(Arc<FetchedHead>),
    /// An object to answer from.
    Object(Arc<Object>),
    /// The result is only for the first client: a response with this status, or the confirmation that the
    /// stored response is still good.
    Released { status: Option<u16> },
    /// The fetch failed.
    Failed(FailedFetch),
    /// The fetch ended without a result, as after a panic or the end of its worker.
    Lost,
}

/// The next piece of the content.
pub enum Piece {
    Content(Bytes),
    End,
    /// The content broke off.
    Broken,
    /// This reader was too slow for the others.
    Left,
}

impl Broadcast {
    fn new(gathered: &Arc<AtomicU64>, alone: Alone) -> Broadcast {
        let state = BroadcastState {
            stage: Stage::Asked,
            is_kept: false,
            chunks: VecDeque::new(),
            length: 0,
            trailers: None,
            interim: Vec::new(),
            charge: Charge { gathered: gathered.clone(), bytes: 0 },
            end: None,
            readers: Vec::new(),
            free: Vec::new(),
            alone,
            permit: None,
            driver: None,
        };
        Broadcast { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, BroadcastState> {
        // If the fetch panics, dropping its `Sender` tells the readers.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes all waiting readers.
    fn change<T>(&self, change: impl FnOnce(&mut BroadcastState) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let wakers: Vec<Waker> = state.readers.iter_mut().filter_map(|reader| reader.waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// The head, once it has come.
    pub fn head(&self) -> Option<Arc<FetchedHead>> {
        match &self.lock().stage {
            Stage::Streaming(head) => Some(head.clone()),
            _ => None,
        }
    }

    /// Adds a reader; `leads` for the first client.
    pub fn join(self: &Arc<Broadcast>, leads: bool) -> Reader {
        let mut state = self.lock();
        let position = state.chunks.front().map_or(state.length, |(start, _)| *start);
        let reader =
            ReaderState { is_taken: true, position, position_before: position, ..ReaderState::default() };
        let number = match state.free.pop() {
            Some(free) => {
                state.readers[free] = reader;
                free
            }
            None => {
                state.readers.push(reader);
                state.readers.len() - 1
            }
        };
        state.permit = None;
        Reader { broadcast: self.clone(), number, leads, leaves_it: true }
    }
}

/// A reader of the broadcast. It leaves when dropped.
pub struct Reader {
    broadcast: Arc<Broadcast>,
    number: usize,
    leads: bool,
    /// Whether the fetch may go on when this reader leaves as the last.
    leaves_it: bool,
}

impl Reader {
    /// If `takes`, the fetch ends when this reader leaves as the last: limits on concurrent requests count
    /// its client, and would no longer do so.
    pub fn takes_it_along(&mut self, takes: bool) {
        self.leaves_it = !takes;
    }

    /// Another reader for the same client, which need not be the one that asked first.
    pub fn joined(&self) -> Reader {
        let mut other = self.broadcast.join(false);
        other.leaves_it = self.leaves_it;
        other
    }

    /// Ready once it is known what comes.
    pub fn poll_arrived(&self, context: &Context<'_>) -> Poll<Arrived> {
        let mut state = self.broadcast.lock();
        let BroadcastState { readers, interim, stage, is_kept, .. } = &mut *state;
        let reader = &mut readers[self.number];
        if self.leads
            && let Some(next) = interim.get(reader.interim)
        {
            reader.interim += 1;
            return Poll::Ready(Arrived::Interim(next.clone()));
        }
        Poll::Ready(match stage {
            Stage::Asked => {
                reader.wait(context);
                return Poll::Pending;
            }
            Stage::Confirmed { is_for_all: false, .. } if !self.leads => Arrived::Released { status: None },
            Stage::Confirmed { object, .. } => Arrived::Object(object.clone()),
            Stage::Failed(failed) if failed.meets == Meets::Client && !self.leads => Arrived::Lost,
            Stage::Failed(failed) => Arrived::Failed(*failed),
            Stage::Lost | Stage::Copying => Arrived::Lost,
            Stage::Streaming(head) if !*is_kept && !head.is_late && !self.leads => {
                Arrived::Released { status: Some(head.head.status()) }
            }
            Stage::Streaming(head) => Arrived::Streaming(head.clone()),
        })
    }

    /// The object, once the content is complete and if it could be stored. `None` if there will be none.
    pub fn poll_object(&self, context: &Context<'_>) -> Poll<Option<Arc<Object>>> {
        let mut state = self.broadcast.lock();
        match &state.end {
            Some(Ending::Whole(object)) => Poll::Ready(object.clone()),
            Some(Ending::Broken) => Poll::Ready(None),
            None if !state.is_kept => Poll::Ready(None),
            None => {
                state.readers[self.number].wait(context);
                Poll::Pending
            }
        }
    }

    /// The object, if all of it has arrived and been stored.
    pub fn object(&self) -> Option<Arc<Object>> {
        match &self.broadcast.lock().end {
            Some(Ending::Whole(object)) => object.clone(),
            _ => None,
        }
    }

    /// Whether it broke off.
    pub fn is_broken(&self) -> bool {
        matches!(self.broadcast.lock().end, Some(Ending::Broken))
    }

    /// The trailers; `None` if there are none, or they have not come yet.
    pub fn trailers(&self) -> Option<Arc<[Trailer]>> {
        self.broadcast.lock().trailers.clone()
    }

    /// The broadcast that it reads.
    pub fn broadcast(&self) -> &Arc<Broadcast> {
        &self.broadcast
    }

    /// Whether the response is still to be stored.
    pub fn is_kept(&self) -> bool {
        self.broadcast.lock().is_kept
    }

    /// Whether the next piece is the first one.
    pub fn is_at_start(&self) -> bool {
        self.broadcast.lock().readers[self.number].position == 0
    }

    /// Whether [`Self::poll_piece`] is ready.
    pub fn has_piece(&self) -> bool {
        let state = self.broadcast.lock();
        let reader = &state.readers[self.number];
        state.end.is_some() || reader.is_left || state.length > reader.position
    }

    /// The next piece of the content.
    pub fn poll_piece(&self, context: &Context<'_>) -> Poll<Piece> {
        let mut state = self.broadcast.lock();
        if state.readers[self.number].is_left {
            return Poll::Ready(Piece::Left);
        }
        if let Some(chunk) = state.piece_at(state.readers[self.number].position) {
            state.readers[self.number].position += chunk.len() as u64;
            let driver = state.free_read();
            drop(state);
            driver.into_iter().for_each(Waker::wake);
            return Poll::Ready(Piece::Content(chunk));
        }
        match &state.end {
            Some(Ending::Whole(_)) => Poll::Ready(Piece::End),
            Some(Ending::Broken) => Poll::Ready(Piece::Broken),
            None => {
                state.readers[self.number].wait(context);
                Poll::Pending
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.broadcast.lock();
        state.readers[self.number] = ReaderState::default();
        state.free.push(self.number);
        if let (Alone::Among(background), true) = (&state.alone, self.leaves_it)
            && !state.has_readers()
            && !state.is_over()
        {
            state.permit = background.admit();
        }
        let driver = state.free_read().or_else(|| state.driver.take());
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }
}

impl ReaderState {
    /// Whether it is there, and gets what comes.
    fn reads(&self) -> bool {
        self.is_taken && !self.is_left
    }

    fn wait(&mut self, context: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.waker = Some(context.waker().clone());
        }
    }
}

impl BroadcastState {
    fn has_readers(&self) -> bool {
        self.readers.iter().any(ReaderState::reads)
    }

    /// Whether nothing more will come.
    fn is_over(&self) -> bool {
        self.end.is_some() || matches!(self.stage, Stage::Confirmed { .. } | Stage::Failed(_) | Stage::Lost)
    }

    /// Whether nobody needs the rest of the response.
    fn is_unwanted(&mut self) -> bool {
        if self.has_readers() {
            return false;
        }
        let is_for_readers_alone = match &self.stage {
            Stage::Streaming(head) => !self.is_kept || head.is_late,
            Stage::Copying => !self.is_kept,
            _ => false,
        };
        if is_for_readers_alone {
            return true;
        }
        match self.alone {
            Alone::GoesOn => false,
            Alone::Ends => true,
            Alone::Among(_) => self.permit.as_mut().is_none_or(Permit::is_over),
        }
    }

    /// The content from `position` to the end of its piece.
    fn piece_at(&self, position: u64) -> Option<Bytes> {
        let index = self.chunks.partition_point(|(start, bytes)| start + bytes.len() as u64 <= position);
        let (start, bytes) = self.chunks.get(index)?;
        Some(bytes.slice((position - start) as usize..))
    }

    /// Bytes that are still to be read or stored.
    fn held_bytes(&self) -> u64 {
        self.chunks.front().map_or(0, |(start, _)| self.length - start)
    }

    /// Drops what everybody has read, unless it is to be stored. Gives the waker of the fetch if that makes
    /// room again.
    fn free_read(&mut self) -> Option<Waker> {
        if self.is_kept {
            return None;
        }
        let positions = self.readers.iter().filter(|reader| reader.reads()).map(|reader| reader.position);
        let least = positions.min().unwrap_or(u64::MAX);
        while self.chunks.front().is_some_and(|(start, bytes)| start + bytes.len() as u64 <= least) {
            self.chunks.pop_front();
        }
        let held = self.held_bytes();
        self.charge.shrink(held);
        if held < WINDOW_BYTES { self.driver.take() } else { None }
    }

    /// The response is not to be stored after all.
    fn let_go(&mut self) {
        self.is_kept = false;
        self.free_read();
    }

    /// Replaces the gathered pieces by the stored object's content.
    fn hand_over(&mut self, object: &Object) {
        let mut start = 0;
        self.chunks.clear();
        for chunk in object.body().chunks() {
            self.chunks.push_back((start, chunk.clone()));
            start += chunk.len() as u64;
        }
        self.charge.shrink(0);
    }
}
