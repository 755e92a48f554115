//! What an exchange reads from and writes to: a connection of its own (HTTP/1.1), or a stream of a
//! multiplexed connection.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::net::TcpStream;
use weir_http::{Field, StreamError, Trailers};
use weir_io::buffers::{Buffer, Buffers};
use weir_io::stream::{Duplex, Sight, Stream as Wire};

use crate::http::muxed::Muxed;
use crate::http::response_pace::ResponsePace;

/// One side of an exchange.
pub struct Stream {
    kind: Kind,
    /// Limits what is sent; boxed, because few responses have it.
    pace: Option<Box<ResponsePace>>,
}

/// The transport of the messages. Streams are boxed, so that they do not make connections larger.
enum Kind {
    Wire(Wire),
    /// Another task drives the connection.
    Muxed(Box<Muxed>),
}

impl Stream {
    /// A connection that carries one message after the other.
    pub fn of_wire(wire: Wire) -> Stream {
        Stream { kind: Kind::Wire(wire), pace: None }
    }

    /// A stream of a multiplexed connection. Its end is the message's end: see [`Stream::poll_finish`].
    pub fn muxed(stream: Muxed) -> Stream {
        Stream { kind: Kind::Muxed(Box::new(stream)), pace: None }
    }

    /// The connection, if it is not a shared one.
    pub fn into_wire(self) -> Option<Wire> {
        match self.kind {
            Kind::Wire(wire) => Some(wire),
            Kind::Muxed(_) => None,
        }
    }

    /// The stream, if this is one of a multiplexed connection.
    #[inline]
    pub fn as_muxed(&mut self) -> Option<&mut Muxed> {
        match &mut self.kind {
            Kind::Muxed(stream) => Some(stream),
            Kind::Wire(_) => None,
        }
    }

    /// As [`Wire::counts_for`], for a connection of its own. What a stream holds was given to whoever it
    /// counts for when it began.
    #[inline]
    pub fn counts_for(&mut self, owner: &Rc<Buffers>) {
        if let Kind::Wire(wire) = &mut self.kind {
            wire.counts_for(owner);
        }
    }

    /// Whether this is a stream of a multiplexed connection.
    #[inline]
    pub fn is_muxed(&self) -> bool {
        matches!(self.kind, Kind::Muxed(_))
    }

    /// Our address; `Unsupported` for a stream, which has the addresses of its connection.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.kind {
            Kind::Wire(wire) => wire.local_addr(),
            Kind::Muxed(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// How much the peer has taken of what was sent, in a measure that grows; `None` if it has taken
    /// everything, and for a stream, where that depends on its connection.
    pub fn taken(&self) -> Option<u64> {
        match &self.kind {
            Kind::Wire(wire) => wire.taken(),
            Kind::Muxed(_) => None,
        }
    }

    /// As [`Duplex::poll_send`], for bytes that end the message: if they are sent in one piece, the end is
    /// sent with them. [`Self::poll_finish`] must still be called.
    #[inline]
    pub fn poll_send_last(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.pace.is_some() {
            return self.poll_send_paced(context, bytes, true);
        }
        match &mut self.kind {
            Kind::Muxed(stream) => stream.poll_send_last(context, bytes),
            Kind::Wire(wire) => wire.poll_send(context, bytes),
        }
    }

    /// As [`Duplex::poll_send`], from several buffers in one call.
    #[inline]
    pub fn poll_send_parts(
        &mut self,
        context: &mut Context<'_>,
        parts: &[&[u8]; 3],
    ) -> Poll<io::Result<usize>> {
        if self.pace.is_some() {
            let first = parts.iter().find(|part| !part.is_empty());
            return self.poll_send_paced(context, first.unwrap_or(&parts[0]), false);
        }
        match &mut self.kind {
            Kind::Wire(wire) => wire.poll_send_parts(context, parts),
            Kind::Muxed(stream) => {
                let first = parts.iter().find(|part| !part.is_empty());
                stream.poll_send(context, first.unwrap_or(&parts[0]))
            }
        }
    }

    /// As [`Duplex::poll_send`], from any number of buffers; `Unsupported` on a stream, which takes them one
    /// by one without a copy.
    pub fn poll_send_slices(
        &mut self,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.pace.is_some() && !self.is_muxed() {
            let first = parts.iter().find(|part| !part.is_empty());
            return self.poll_send_paced(context, first.map_or(&[][..], |part| &part[..]), false);
        }
        match &mut self.kind {
            Kind::Wire(wire) => wire.poll_send_slices(context, parts),
            Kind::Muxed(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// See [`Muxed::poll_send_bytes`]; `Unsupported` on a connection of its own.
    pub fn poll_send_bytes(
        &mut self,
        context: &mut Context<'_>,
        content: &mut Bytes,
        is_last: bool,
    ) -> Poll<io::Result<()>> {
        let room = match &mut self.pace {
            Some(pace) => ready!(pace.poll_room(context)),
            None => usize::MAX,
        };
        let Kind::Muxed(stream) = &mut self.kind else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let before = content.len();
        if room >= before {
            ready!(stream.poll_send_bytes(context, content, is_last))?;
        } else {
            let mut piece = content.slice(..room);
            ready!(stream.poll_send_bytes(context, &mut piece, false))?;
            content.advance(room - piece.len());
        }
        if let Some(pace) = &mut self.pace {
            pace.take(before - content.len());
        }
        Poll::Ready(Ok(()))
    }

    /// Limits the speed of what is sent from now on; `None` for no limit.
    pub fn set_pace(&mut self, pace: Option<Box<ResponsePace>>) {
        self.pace = pace;
    }

    /// Sends as much as the pace has room for. `is_last` as for [`Self::poll_send_last`].
    #[cold]
    fn poll_send_paced(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        let room = match &mut self.pace {
            Some(pace) if !bytes.is_empty() => ready!(pace.poll_room(context)),
            _ => usize::MAX,
        };
        let piece = bytes.get(..room).unwrap_or(bytes);
        let sent = ready!(match &mut self.kind {
            Kind::Muxed(stream) if is_last && piece.len() == bytes.len() => {
                stream.poll_send_last(context, piece)
            }
            Kind::Muxed(stream) => stream.poll_send(context, piece),
            Kind::Wire(wire) => wire.poll_send(context, piece),
        })?;
        if let Some(pace) = &mut self.pace {
            pace.take(sent);
        }
        Poll::Ready(Ok(sent))
    }

    /// Ends the message, with `trailers` if there are any, on a stream whose end is the message's end.
    /// Otherwise the framing marks the end, and this does nothing.
    pub fn poll_finish<'a>(
        &mut self,
        context: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Wire(_) => Poll::Ready(Ok(())),
            Kind::Muxed(stream) => stream.poll_finish(context, trailers),
        }
    }

    /// Whether this is a stream of which everything was taken, including its end.
    pub fn is_ended(&self) -> bool {
        matches!(&self.kind, Kind::Muxed(stream) if stream.is_ended())
    }

    /// See [`Muxed::resets_behind_answers`].
    pub fn resets_behind_answers(&self) -> bool {
        matches!(&self.kind, Kind::Muxed(stream) if stream.resets_behind_answers())
    }

    /// The trailers of the message, once its end was received; given only once. `None` if they are part of
    /// the framing.
    pub fn take_trailers(&mut self) -> Option<Box<Trailers>> {
        self.as_muxed().and_then(Muxed::take_trailers)
    }

    /// See [`Wire::say_farewell`]. On a stream, its end has that effect.
    pub async fn say_farewell(&mut self) {
        if let Kind::Wire(wire) = &mut self.kind {
            wire.say_farewell().await;
        }
    }

    /// See [`Wire::is_quiet`]. A stream carries one message, and is never kept.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        matches!(&self.kind, Kind::Wire(wire) if wire.is_quiet())
    }

    /// Checks for the peer without taking anything that it sent. `Err` if the connection or the stream was
    /// reset.
    pub fn poll_present(&mut self, context: &mut Context<'_>) -> io::Result<Sight> {
        match &mut self.kind {
            Kind::Wire(wire) => wire.poll_present(context),
            Kind::Muxed(stream) => match stream.poll_gone(context) {
                Poll::Pending => Ok(Sight::Quiet),
                Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            },
        }
    }
}

impl Duplex for Stream {
    #[inline]
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Wire(wire) => wire.poll_readable(context),
            Kind::Muxed(stream) => stream.poll_readable(context),
        }
    }

    #[inline]
    fn receive_ready(&mut self, context: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        match &mut self.kind {
            Kind::Wire(wire) => wire.receive_ready(context, buffer),
            Kind::Muxed(stream) => Poll::Ready(stream.take(buffer)),
        }
    }

    #[inline]
    fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.pace.is_some() {
            return self.poll_send_paced(context, bytes, false);
        }
        match &mut self.kind {
            Kind::Wire(wire) => wire.poll_send(context, bytes),
            Kind::Muxed(stream) => stream.poll_send(context, bytes),
        }
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Wire(wire) => wire.poll_shutdown(context),
            Kind::Muxed(stream) => stream.poll_finish(context, std::iter::empty()),
        }
    }

    fn reset_on_close(&mut self) {
        match &mut self.kind {
            Kind::Wire(wire) => wire.reset_on_close(),
            Kind::Muxed(stream) => stream.reset(StreamError::Internal),
        }
    }

    #[inline]
    fn bare(&self) -> Option<&TcpStream> {
        match &self.kind {
            // What is moved past this would not be counted.
            _ if self.pace.is_some() => None,
            Kind::Wire(wire) => wire.bare(),
            Kind::Muxed(_) => None,
        }
    }

    fn is_broken_off(&mut self, context: &mut Context<'_>) -> bool {
        match &mut self.kind {
            Kind::Wire(wire) => wire.is_broken_off(context),
            Kind::Muxed(stream) => stream.poll_gone(context).is_ready(),
        }
    }

    fn is_gone(&mut self, context: &mut Context<'_>) -> bool {
        match &mut self.kind {
            Kind::Wire(wire) => wire.is_gone(context),
            Kind::Muxed(stream) => stream.poll_gone(context).is_ready(),
        }
    }

    #[inline]
    fn gather(&mut self, context: &mut Context<'_>) {
        if let Kind::Muxed(stream) = &mut self.kind {
            stream.gather(context);
        }
    }
}
