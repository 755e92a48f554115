//! The part of a request's body that waits in a file for its backend: framed for that backend, and read as
//! often as it has to be sent.

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

/// Most bytes sent before other tasks get their turn.
const TURN_BYTES: u64 = 1 << 20;

/// A part of a body in a file.
pub struct Filed {
    file: TemporaryFile,
    /// Bytes that are sent after the file's content, for a backend whose framing was decided later.
    behind: Vec<u8>,
    /// How many of these were sent.
    behind_sent: usize,
}

impl Filed {
    /// With an empty file.
    pub fn new(file: TemporaryFile) -> Filed {
        Filed { file, behind: Vec::new(), behind_sent: 0 }
    }

    /// Bytes in the file.
    pub fn length(&self) -> u64 {
        self.file.length()
    }

    /// Whether the file takes no more.
    pub fn is_full(&self) -> bool {
        self.file.is_full()
    }

    /// Whether everything was sent.
    pub fn is_sent(&self) -> bool {
        self.file.unread() == 0 && self.behind_sent == self.behind.len()
    }

    /// Bytes sent to the current backend.
    pub fn sent(&self) -> u64 {
        self.file.length() - self.file.unread() + self.behind_sent as u64
    }

    /// Whether the disk is being waited for, for writing or reading, whichever is in use.
    pub fn awaits_disk(&self) -> bool {
        self.file.awaits_disk()
    }

    /// Whether only the disk keeps it from taking more.
    pub fn is_stuck(&self) -> bool {
        self.file.is_stuck()
    }

    /// Sets the bytes that follow the file's content.
    pub fn set_behind(&mut self, behind: Vec<u8>) {
        (self.behind, self.behind_sent) = (behind, 0);
    }

    /// Prepares for sending to another backend.
    pub fn begin_again(&mut self) {
        self.file.rewind();
        self.set_behind(Vec::new());
    }

    /// Sends what the backend takes; `Ready(Ok)` once everything was sent.
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

    /// The recipient learns of the end and the trailers later, when the file has been sent.
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
