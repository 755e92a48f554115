//! A backend's side of an exchange: a connection that was opened or kept for it, or a stream of a shared
//! connection.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use crate::backends::{self, OpenCount};
use crate::enders::Ender;
use crate::http::muxed::Muxed;
use crate::http::stream::Stream;

/// The connection or stream over which an exchange sends its request.
pub struct Connection {
    stream: Stream,
    /// `None` for a stream, whose underlying connection is counted instead. Boxed, because connections are
    /// moved several times.
    count: Option<Box<OpenCount>>,
    /// See [`backends::Connection::moves`].
    moves: u32,
}

impl Connection {
    /// A connection that serves one exchange after the other.
    pub fn of_wire(connection: backends::Connection) -> Connection {
        let moves = connection.moves();
        let (wire, count) = connection.into_parts();
        Connection { stream: Stream::of_wire(wire), count: Some(Box::new(count)), moves }
    }

    /// A stream of a shared connection, for one exchange.
    pub fn of_stream(stream: Muxed) -> Connection {
        Connection { stream: Stream::muxed(stream), count: None, moves: 0 }
    }

    /// See [`OpenCount::ender`].
    pub fn ender(&self) -> Option<Rc<Ender>> {
        self.count.as_ref().and_then(|count| count.ender())
    }

    /// Whether it can be used again: whether nothing has arrived on it, not even its end. If something has,
    /// that is counted.
    pub fn is_kept(&self) -> bool {
        let is_kept = self.stream.is_quiet();
        if let Some(count) = self.count.as_ref().filter(|_| !is_kept) {
            count.note_ended_idle();
        }
        is_kept
    }

    /// See [`backends::Connection::moves`].
    pub fn moves(&self) -> u32 {
        self.moves
    }
}

impl Deref for Connection {
    type Target = Stream;

    #[inline]
    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl DerefMut for Connection {
    #[inline]
    fn deref_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }
}
