//! A queue of bytes, of which all but the last few are in a file.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use weir_stats::table::FileRefusal;

use super::{BLOCK, Done, Job, Shared, TemporaryFiles, Work};
use crate::buffers::{Buffers, Charge};

/// Blocks in memory at once: one being filled, one on its way to or from the disk, one being read.
const BLOCKS: u64 = 3;

/// Bytes that were put into a file could not be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Bytes that are put in at one end and read from the other, once or several times.
///
/// `0..written` are in the file, then come `in_flight` bytes on their way there, then the blocks of `tail`.
/// `tail` has two blocks if a block could not be written, otherwise at most one.
pub struct TemporaryFile {
    files: Arc<TemporaryFiles>,
    /// `None` once the file is given up.
    shared: Option<Arc<Shared>>,
    /// Most bytes it may hold.
    most: u64,
    /// Number of bytes that have been read.
    position: u64,
    written: u64,
    in_flight: u64,
    tail: VecDeque<Vec<u8>>,
    /// A block of the file, from offset `front_at` on; empty until one was read.
    front: Vec<u8>,
    front_at: u64,
    /// A block for reuse.
    spare: Vec<u8>,
    under_way: Option<UnderWay>,
    /// No more bytes are accepted.
    is_stopped: bool,
    is_lost: bool,
    _charge: Charge,
}

/// The job that a thread does for this file.
struct UnderWay {
    told: oneshot::Receiver<Done>,
    /// Offset from which the block is read; `None` for a write.
    reads_at: Option<u64>,
}

impl TemporaryFile {
    /// An empty file for up to `most` bytes. The disk is not touched before a block is full. `None`, which is
    /// counted, if memory is short or there are too many files.
    pub fn begin(files: &Arc<TemporaryFiles>, most: u64, buffers: &Rc<Buffers>) -> Option<TemporaryFile> {
        let Some(charge) = buffers.charge(BLOCKS * BLOCK as u64) else {
            files.refuse(FileRefusal::Memory);
            return None;
        };
        Some(TemporaryFile {
            shared: Some(files.place()?),
            files: files.clone(),
            most,
            position: 0,
            written: 0,
            in_flight: 0,
            tail: VecDeque::new(),
            front: Vec::new(),
            front_at: 0,
            spare: Vec::new(),
            under_way: None,
            is_stopped: false,
            is_lost: false,
            _charge: charge,
        })
    }

    /// Bytes put in.
    pub fn length(&self) -> u64 {
        self.written + self.in_flight + self.tail.iter().map(|block| block.len() as u64).sum::<u64>()
    }

    /// Bytes not read yet.
    pub fn unread(&self) -> u64 {
        self.length() - self.position
    }

    /// Whether no more bytes will ever be accepted: the file is full, or the disk is.
    pub fn is_full(&self) -> bool {
        self.is_stopped || self.length() >= self.most
    }

    /// Whether bytes would be accepted now.
    pub fn has_room(&self) -> bool {
        !self.is_full() && self.tail.back().is_none_or(|block| block.len() < BLOCK)
    }

    /// Whether bytes would be accepted if the disk were faster.
    pub fn is_stuck(&self) -> bool {
        !self.is_full() && !self.has_room()
    }

    /// Whether there are unread bytes that must first come from the disk.
    pub fn awaits_disk(&self) -> bool {
        let is_here = self.position >= self.written && self.in_flight == 0 || self.in_front().is_some();
        self.unread() > 0 && !is_here
    }

    /// Takes as many of `bytes` as there is room for; returns how many. `Pending` while a block waits for the
    /// disk, and for ever once [`Self::is_full`].
    pub fn poll_put(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<usize> {
        self.advance(context);
        if !self.has_room() {
            return Poll::Pending;
        }
        let left = usize::try_from(self.most - self.length()).unwrap_or(usize::MAX);
        if self.tail.is_empty() {
            let mut block = std::mem::take(&mut self.spare);
            block.clear();
            block.reserve_exact(BLOCK);
            self.tail.push_back(block);
        }
        let Some(block) = self.tail.back_mut() else { return Poll::Pending };
        let count = bytes.len().min(left).min(BLOCK - block.len());
        block.extend_from_slice(&bytes[..count]);
        self.advance(context);
        Poll::Ready(count)
    }

    /// The next unread bytes, as far as they are contiguous; empty at the end.
    ///
    /// # Errors
    /// They can't be read back.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<&[u8], Lost>> {
        self.advance(context);
        if self.position >= self.written && self.in_flight == 0 {
            return Poll::Ready(Ok(self.of_tail()));
        }
        if let Some(at) = self.in_front() {
            return Poll::Ready(Ok(&self.front[at..]));
        }
        if self.is_lost { Poll::Ready(Err(Lost)) } else { Poll::Pending }
    }

    /// Marks the first `count` bytes that [`Self::poll_next`] returned as read.
    pub fn consume(&mut self, count: usize) {
        self.position += count as u64;
    }

    /// Starts reading again from the beginning.
    pub fn rewind(&mut self) {
        self.position = 0;
    }

    /// Discards the contents to make room, if all were read.
    pub fn restart(&mut self) {
        if self.unread() > 0 || self.under_way.is_some() {
            return;
        }
        (self.position, self.written) = (0, 0);
        if let Some(block) = self.tail.pop_back() {
            self.spare = block;
        }
        self.tail.clear();
        self.front.clear();
    }

    /// Position of the next byte in the front block.
    fn in_front(&self) -> Option<usize> {
        let at = usize::try_from(self.position.checked_sub(self.front_at)?).ok()?;
        (at < self.front.len() && self.position < self.written).then_some(at)
    }

    fn of_tail(&self) -> &[u8] {
        let mut at = (self.position - self.written) as usize;
        for block in &self.tail {
            if at < block.len() {
                return &block[at..];
            }
            at -= block.len();
        }
        &[]
    }

    /// Takes the result of the last job, and starts the next.
    fn advance(&mut self, context: &mut Context<'_>) {
        loop {
            if let Some(UnderWay { told, reads_at }) = &mut self.under_way {
                let Poll::Ready(done) = Pin::new(told).poll(context) else { return };
                let reads_at = *reads_at;
                self.under_way = None;
                self.settle(reads_at, done.ok());
            }
            if !self.begin_next() {
                return;
            }
        }
    }

    /// Takes the result of a job. `done` is `None` if its thread is gone.
    fn settle(&mut self, reads_at: Option<u64>, done: Option<Done>) {
        match (reads_at, done) {
            (None, Some(Done { block, is_good: true })) => {
                self.written += self.in_flight;
                self.in_flight = 0;
                self.spare = block;
            }
            (None, Some(Done { block, is_good: false })) => {
                self.tail.push_front(block);
                self.in_flight = 0;
                self.is_stopped = true;
            }
            (Some(at), Some(Done { block, is_good: true })) => {
                (self.front, self.front_at) = (block, at);
            }
            (_, None) | (Some(_), Some(Done { is_good: false, .. })) => self.lose(),
        }
    }

    fn lose(&mut self) {
        (self.is_lost, self.is_stopped) = (true, true);
        self.files.refuse(FileRefusal::Lost);
    }

    /// Starts the next job; false when there is none. Reads come first: the reader may be holding up the
    /// writer.
    fn begin_next(&mut self) -> bool {
        if self.is_lost {
            return false;
        }
        if self.position < self.written && self.in_front().is_none() {
            return self.begin_read();
        }
        let is_block_full = self.tail.back().is_some_and(|block| block.len() == BLOCK);
        if self.is_stopped || !is_block_full {
            return false;
        }
        let length = self.written + BLOCK as u64;
        if !self.shared.as_ref().is_some_and(|shared| shared.reserve(length)) {
            self.files.refuse(FileRefusal::Full);
            self.is_stopped = true;
            return false;
        }
        self.begin_write()
    }

    fn begin_read(&mut self) -> bool {
        let (tell, told) = oneshot::channel();
        let at = self.position;
        let length = (self.written - at).min(BLOCK as u64) as usize;
        let mut block = std::mem::take(&mut self.front);
        block.resize(length, 0);
        match self.submit(Work::Read { block, at, tell }) {
            Ok(()) => self.under_way = Some(UnderWay { told, reads_at: Some(at) }),
            Err(_) => self.lose(),
        }
        true
    }

    fn begin_write(&mut self) -> bool {
        let Some(block) = self.tail.pop_front() else { return false };
        let (tell, told) = oneshot::channel();
        let length = block.len() as u64;
        match self.submit(Work::Write { block, at: self.written, tell }) {
            Ok(()) => {
                self.in_flight = length;
                self.under_way = Some(UnderWay { told, reads_at: None });
            }
            Err(work) => {
                if let Work::Write { block, .. } = work {
                    self.tail.push_front(block);
                }
                self.files.refuse(FileRefusal::Disk);
                self.is_stopped = true;
            }
        }
        true
    }

    fn submit(&self, work: Work) -> Result<(), Work> {
        match self.shared.clone() {
            Some(file) => self.files.submit(Job { file, work }).map_err(|job| job.work),
            None => Err(work),
        }
    }
}

impl Drop for TemporaryFile {
    /// A thread closes the file: freeing a large one takes a while.
    fn drop(&mut self) {
        let Some(file) = self.shared.take() else { return };
        if file.file.get().is_some() || self.under_way.is_some() {
            let _ = self.files.submit(Job { file, work: Work::Close });
        }
    }
}
