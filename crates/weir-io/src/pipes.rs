//! Pipes for `splice(2)`, kept for reuse: opening and sizing one costs as much as moving 100 KiB.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use crate::buffers::{Buffers, Charge};
use crate::system::{self, PipeEnds};

/// Size requested for a pipe, in bytes. A pipe consists of page slots. Bulk data comes in fragments of up to
/// 32 KiB, one per slot; but with several streams at once fragments get small, and then 256 slots take half
/// the CPU time that 64 do.
const PIPE_BYTES: usize = 1 << 20;
/// Least capacity that is worth using. Users without `CAP_SYS_RESOURCE` get pipes of the default 64 KiB once
/// their pipes exceed `fs.pipe-user-pages-soft` (64 MiB), which is still better than copying. Well beyond
/// that they get pipes of one or two pages, which is not.
const LEAST_BYTES: usize = 64 << 10;
/// Pieces below this size count as small: moving page references costs as much as copying the bytes.
pub const SMALL_PIECE: usize = 16 << 10;
/// A transfer no longer counts as bulk after this many small pieces in a row.
pub const SMALL_PIECES: u32 = 8;
/// Most bytes in a pipe at once: the kernel memory that a peer which has stopped reading makes us hold.
const FILL_BYTES: usize = 192 << 10;
/// Empty pipes kept per worker.
const KEPT: usize = 16;

thread_local! {
    /// The empty pipes of this worker; a worker is one thread.
    static EMPTY: RefCell<Vec<PipeEnds>> = const { RefCell::new(Vec::new()) };
}

/// A pipe and the bytes in it. It goes back to its worker if it is empty when dropped; otherwise it is
/// closed, since the bytes in it belong to one session.
pub struct Pipe {
    ends: Option<PipeEnds>,
    held: usize,
    most: usize,
    /// A full pipe is kernel memory that a peer which does not read makes us hold for as long as it likes.
    _charge: Charge,
}

impl Pipe {
    /// An empty pipe for at most `most` bytes at a time, charged to `buffers`; `None` when the kernel has no
    /// pipe large enough or the budget is used up.
    pub fn borrow(buffers: &Rc<Buffers>, most: u64) -> Option<Pipe> {
        let most = usize::try_from(most).map_or(FILL_BYTES, |most| most.min(FILL_BYTES));
        let charge = buffers.charge(most as u64)?;
        let kept = EMPTY.with_borrow_mut(Vec::pop);
        let ends = match kept {
            Some(ends) => ends,
            None => system::open_pipe(PIPE_BYTES).ok().filter(|ends| ends.capacity_bytes >= LEAST_BYTES)?,
        };
        Some(Pipe { ends: Some(ends), held: 0, most, _charge: charge })
    }

    /// Bytes in it.
    #[inline]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves what has arrived at `source` into the pipe, which must be empty: then `WouldBlock` can only mean
    /// that nothing has arrived. Zero is the end of the stream.
    pub fn fill(&mut self, source: &impl AsFd) -> io::Result<usize> {
        assert!(self.held == 0, "a pipe is filled only when empty");
        let ends = self.ends.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let count = system::splice(source, &ends.write, self.most)?;
        self.held = count;
        Ok(count)
    }

    /// Moves as much as the kernel takes now from the pipe to `sink`.
    pub fn drain(&mut self, sink: &impl AsFd) -> io::Result<usize> {
        let ends = self.ends.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let count = system::splice(&ends.read, sink, self.held)?;
        self.held -= count;
        Ok(count)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if self.held > 0 {
            return;
        }
        if let Some(ends) = self.ends.take() {
            // The thread-local is gone while the thread ends; then the pipe is simply closed.
            let _ = EMPTY.try_with(|empty| {
                let mut empty = empty.borrow_mut();
                if empty.len() < KEPT {
                    empty.push(ends);
                }
            });
        }
    }
}
