//! What of a request's body waits in a file for its backend: framed as that gets it, and sent as often as it
//! is asked for.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::net::TcpStream;
use weir_http::Field;
use weir_io::stream::Duplex as _;
use weir_io::temporary::TemporaryFile;
use weir_io::wait::give_way;

use crate::http::pump::PumpError;
use crate::http::sink::{Parts, Sink};
use crate::http::stream::Stream;

/// Most bytes sent before others get their turn.
const TURN_BYTES: u64 = 1 << 20;

/// A part of a body in a file.
pub struct Filed {
    file: TemporaryFile,
    /// What goes behind it, for a backend that it was framed for later.
    behind: Vec<u8>,
    /// How much of that was sent.
    behind_sent: usize,
}

impl Filed {
    /// Nothing is in it yet.
    pub fn new(file: TemporaryFile) -> Filed {
        Filed { file, behind: Vec::new(), behind_sent: 0 }
    }

    /// Bytes in the file.
    pub fn length(&self) -> u64 {
        self.file.length()
    }

    /// Whether no more goes into it.
    pub fn is_full(&self) -> bool {
        self.file.is_full()
    }

    /// Whether all of it was sent.
    pub fn is_sent(&self) -> bool {
        self.file.unread() == 0 && self.behind_sent == self.behind.len()
    }

    /// Bytes sent to the backend that gets it now.
    pub fn sent(&self) -> u64 {
        self.file.length() - self.file.unread() + self.behind_sent as u64
    }

    /// Whether the disk is waited for, at the end that is in use.
    pub fn awaits_disk(&self) -> bool {
        self.file.awaits_disk()
    }

    /// Whether it would take more, did it not wait for the disk.
    pub fn is_stuck(&self) -> bool {
        self.file.is_stuck()
    }

    /// What goes behind what is in the file.
    pub fn set_behind(&mut self, behind: Vec<u8>) {
        (self.behind, self.behind_sent) = (behind, 0);
    }

    /// Makes ready for another backend.
    pub fn begin_again(&mut self) {
        self.file.rewind();
        self.set_behind(Vec::new());
    }

    /// Sends what the backend takes; `Ready(Ok)` once all was sent.
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        backend: &mut Stream,
        moved: &mut bool,
    ) -> Poll<Result<(), PumpError>> {
        let enough = self.sent() + TURN_BYTES;
        while !self.is_sent() {
            if self.sent() >= enough {
                give_way(context);
                return Poll::Pending;
            }
            let is_of_file = self.file.unread() > 0;
            let bytes = match is_of_file {
                true => ready!(self.file.poll_next(context)).map_err(|_| PumpError::Lost)?,
                false => &self.behind[self.behind_sent..],
            };
            let sent = ready!(backend.poll_send(context, bytes)).map_err(|_| PumpError::SinkClosed)?;
            if sent == 0 {
                return Poll::Ready(Err(PumpError::SinkClosed));
            }
            *moved = true;
            match is_of_file {
                true => self.file.consume(sent),
                false => self.behind_sent += sent,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Sink for Filed {
    fn poll_take(&mut self, context: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        for part in [parts.before, parts.content, parts.behind] {
            let mut rest = part;
            while !rest.is_empty() {
                match self.file.poll_put(context, rest) {
                    Poll::Ready(count) => {
                        taken += count;
                        rest = &rest[count..];
                    }
                    Poll::Pending if taken > 0 => return Poll::Ready(Ok(taken)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        }
        Poll::Ready(Ok(taken))
    }

    /// Whoever gets it is told of the end and the trailers behind it.
    fn poll_end<'a>(
        &mut self,
        _: &mut Context<'_>,
        _: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}
