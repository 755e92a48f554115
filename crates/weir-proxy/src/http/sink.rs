//! Where a body goes: to a client, to a backend, or into memory.

use std::io;
use std::task::{Context, Poll};

use tokio::net::TcpStream;
use weir_http::Field;
use weir_io::stream::Duplex as _;

use crate::http::stream::Stream;

/// Content, and the framing around it where a sink is told so where the body ends.
pub struct Parts<'a> {
    pub before: &'a [u8],
    pub content: &'a [u8],
    pub behind: &'a [u8],
    /// Whether nothing but the end follows: where the content goes in one piece, the end of a stream goes with it.
    pub is_last: bool,
}

/// What takes a body.
pub trait Sink {
    /// Takes as much as there is room for now, at least one byte when ready; gives how much.
    fn poll_take(&mut self, context: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>>;

    /// The body is over, with `trailers` behind it where there are any.
    fn poll_end<'a>(
        &mut self,
        context: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>>;

    /// The socket, where what it is given goes out as it is.
    fn socket(&self) -> Option<&TcpStream>;
}

impl Sink for Stream {
    #[inline]
    fn poll_take(&mut self, context: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>> {
        let Parts { before, content, behind, is_last } = *parts;
        if is_last {
            self.poll_send_last(context, content)
        } else if before.is_empty() && behind.is_empty() {
            self.poll_send(context, content)
        } else {
            self.poll_send_parts(context, &[before, content, behind])
        }
    }

    #[inline]
    fn poll_end<'a>(
        &mut self,
        context: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        self.poll_finish(context, trailers)
    }

    #[inline]
    fn socket(&self) -> Option<&TcpStream> {
        self.bare()
    }
}
