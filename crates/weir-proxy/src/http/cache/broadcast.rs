//! A response on its way from a backend into the cache, and everybody who waits for it.
//!
//! One fetch writes, any number of clients on any worker read. While it is to be kept, nothing that a reader
//! does holds the fetch up. What is not to be kept goes through a window: the fetch waits for its slowest
//! reader, and ends when none is left.

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

/// Content that is not kept and that readers have not taken yet, most bytes.
const WINDOW_BYTES: u64 = 256 << 10;

/// One fetch and who waits for it.
pub struct Broadcast {
    state: Mutex<BroadcastState>,
}

struct BroadcastState {
    stage: Stage,
    /// Whether what comes is gathered to be kept.
    is_kept: bool,
    /// Content that is still to be read or kept, each piece behind the position of its first byte.
    chunks: VecDeque<(u64, Bytes)>,
    /// All content so far, bytes.
    length: u64,
    /// What stood behind the content.
    trailers: Option<Arc<[Trailer]>>,
    /// Heads that came before the final one.
    interim: Vec<Arc<Interim>>,
    charge: Charge,
    end: Option<Ending>,
    readers: Vec<ReaderState>,
    /// Seats that nobody has.
    free: Vec<usize>,
    alone: Alone,
    /// What lets it go on although nobody reads.
    permit: Option<Permit>,
    /// The fetch, while it waits for room or for its last reader to leave.
    driver: Option<Waker>,
}

/// Whether what is to be kept goes on to come while nobody reads it.
#[derive(Clone)]
pub enum Alone {
    /// It does: no backend is busy with it.
    GoesOn,
    /// It ends.
    Ends,
    /// As long as it is one of these.
    Among(Arc<Background>),
}

/// What one broadcast holds of what all of them may, beside what the store holds and counts itself. Given
/// back when the last reader has left: slow ones hold on to what nobody else needs any more.
struct Charge {
    gathered: Arc<AtomicU64>,
    bytes: u64,
}

impl Charge {
    /// Counts more; gives what all of them hold then.
    fn add(&mut self, bytes: u64) -> u64 {
        self.bytes += bytes;
        self.gathered.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Counts no more than this.
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
    /// As [`Stage::Streaming`], of something whose head is elsewhere.
    Copying,
    /// A backend said that what the cache has is still good, to all or only to who asked first.
    Confirmed {
        object: Arc<Object>,
        is_for_all: bool,
    },
    Failed(FailedFetch),
    Lost,
}

#[derive(Clone)]
enum Ending {
    /// All of it came; the object is there where it could be kept.
    Whole(Option<Arc<Object>>),
    Broken,
}

#[derive(Default)]
struct ReaderState {
    is_taken: bool,
    /// Bytes of the content that were read.
    position: u64,
    /// Interim responses that were read.
    interim: usize,
    waker: Option<Waker>,
}

/// The head of a response under way, and what goes with it.
pub struct FetchedHead {
    /// As received, but for what belongs to the backend's connection.
    pub head: ResponseHead,
    /// What `head` points into.
    pub text: Box<[u8]>,
    /// What the response varies by, and the key of the variant that it is.
    pub variant: Option<(Vary, Box<[u8]>)>,
    /// How long it is fresh; `None` where it is not kept.
    pub freshness: Option<Freshness>,
    /// Whether it came too late to be kept: those who wait for it get it, and nobody else does.
    pub is_late: bool,
    /// Whether nobody but who asked may get this head as it is.
    pub is_personal: bool,
    /// The stickiness cookie for who asked.
    pub sticky: Option<SetCookie>,
    /// What the log says of the backend.
    pub origin: Origin,
}

/// What an exchange with a backend took, for the log of who waited for it.
#[derive(Clone, Copy, Default)]
pub struct Origin {
    /// Its number in the pool.
    pub backend: Option<usize>,
    pub retries: u32,
    pub hedge: Option<weir_stats::table::HedgeResult>,
    pub queue: Option<Duration>,
    pub connect: Option<Duration>,
    pub backend_header: Option<Duration>,
    pub backend_protocol: Option<crate::access_log::Spoken>,
}

/// What a waiting client learns first.
pub enum Arrived {
    /// An interim response. For who asked first only: it hints at what that one is to do meanwhile.
    Interim(Arc<Interim>),
    /// A head; content follows.
    Streaming(Arc<FetchedHead>),
    /// An object to answer from.
    Object(Arc<Object>),
    /// What came is for who asked first only: something with this status, or the word that what is kept is
    /// still good.
    Released { status: Option<u16> },
    /// Nothing came.
    Failed(FailedFetch),
    /// The fetch ended without a word, as in a panic or with its worker.
    Lost,
}

/// The next of the content.
pub enum Piece {
    Content(Bytes),
    End,
    /// It broke off.
    Broken,
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
        // What a panic of the fetch leaves is told to the readers by the drop of its `Sender`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes whoever waits.
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

    /// A place among those who wait; `leads` for who asked first.
    pub fn join(self: &Arc<Broadcast>, leads: bool) -> Reader {
        let mut state = self.lock();
        let position = state.chunks.front().map_or(state.length, |(start, _)| *start);
        let reader = ReaderState { is_taken: true, position, ..ReaderState::default() };
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

/// One who waits. Leaves when dropped.
pub struct Reader {
    broadcast: Arc<Broadcast>,
    number: usize,
    leads: bool,
    /// Whether what it reads may go on to come when it leaves as the last.
    leaves_it: bool,
}

impl Reader {
    /// What it reads ends with it if it is the last: limits on requests under way count its client, and no
    /// longer would.
    pub fn takes_it_along(&mut self, takes: bool) {
        self.leaves_it = !takes;
    }

    /// Another in the name of the same client, who need not be the one that asked first.
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

    /// The object, once the content is whole and where it could be kept. `None`: there will be none.
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

    /// The object where all of it is there already.
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

    /// What stood behind the content; `None` where nothing did, or while it has not come.
    pub fn trailers(&self) -> Option<Arc<[Trailer]>> {
        self.broadcast.lock().trailers.clone()
    }

    /// What it reads.
    pub fn broadcast(&self) -> &Arc<Broadcast> {
        &self.broadcast
    }

    /// Whether what it reads is still to be kept.
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
        state.end.is_some() || state.length > state.readers[self.number].position
    }

    /// The next piece of the content.
    pub fn poll_piece(&self, context: &Context<'_>) -> Poll<Piece> {
        let mut state = self.broadcast.lock();
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
    fn wait(&mut self, context: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.waker = Some(context.waker().clone());
        }
    }
}

impl BroadcastState {
    fn has_readers(&self) -> bool {
        self.readers.iter().any(|reader| reader.is_taken)
    }

    /// Whether nothing more is to come.
    fn is_over(&self) -> bool {
        self.end.is_some() || matches!(self.stage, Stage::Confirmed { .. } | Stage::Failed(_) | Stage::Lost)
    }

    /// Whether nobody wants what comes.
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

    /// What there is from `position` to the end of its piece.
    fn piece_at(&self, position: u64) -> Option<Bytes> {
        let index = self.chunks.partition_point(|(start, bytes)| start + bytes.len() as u64 <= position);
        let (start, bytes) = self.chunks.get(index)?;
        Some(bytes.slice((position - start) as usize..))
    }

    /// Bytes that are still to be read or kept.
    fn held_bytes(&self) -> u64 {
        self.chunks.front().map_or(0, |(start, _)| self.length - start)
    }

    /// Lets go of what everybody has read, unless it is to be kept. Gives the fetch to wake where there is
    /// room again.
    fn free_read(&mut self) -> Option<Waker> {
        if self.is_kept {
            return None;
        }
        let positions = self.readers.iter().filter(|reader| reader.is_taken).map(|reader| reader.position);
        let least = positions.min().unwrap_or(u64::MAX);
        while self.chunks.front().is_some_and(|(start, bytes)| start + bytes.len() as u64 <= least) {
            self.chunks.pop_front();
        }
        let held = self.held_bytes();
        self.charge.shrink(held);
        if held < WINDOW_BYTES { self.driver.take() } else { None }
    }

    /// It is not to be kept after all.
    fn let_go(&mut self) {
        self.is_kept = false;
        self.free_read();
    }

    /// What is kept takes the place of the pieces that it was made of.
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
