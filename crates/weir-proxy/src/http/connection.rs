//! A backend's side of an exchange: a connection that was opened or kept for it, or one of the streams of a
//! shared one.

use std::ops::{Deref, DerefMut};

use crate::backends::{self, OpenCount};
use crate::http::muxed::Muxed;
use crate::http::stream::Stream;

/// What an exchange sends its request over.
pub struct Connection {
    stream: Stream,
    /// `None` for a stream: the connection below it is counted.
    _count: Option<OpenCount>,
    /// See [`backends::Connection::moves`].
    moves: u32,
}

impl Connection {
    /// A connection for one exchange after the other.
    pub fn of_wire(connection: backends::Connection) -> Connection {
        let moves = connection.moves();
        let (wire, count) = connection.into_parts();
        Connection { stream: Stream::of_wire(wire), _count: Some(count), moves }
    }

    /// A stream of a shared connection, for one exchange.
    pub fn of_stream(stream: Muxed) -> Connection {
        Connection { stream: Stream::muxed(stream), _count: None, moves: 0 }
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
