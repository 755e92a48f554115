//! TLS over one socket: rustls interprets the records, this module moves them.
//!
//! It uses rustls's unbuffered interface, so that an idle connection holds no buffer of ours: records are
//! received into a borrowed buffer that is returned once all in it are processed, and encrypted into another
//! that is returned once the kernel has taken it.

mod last_words;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ServerConfig};
use tokio::net::TcpStream;
use weir_tls::observing_name;

use crate::buffers::{Buffer, Buffers, LARGE, SMALL};
use crate::socket;

/// Most content bytes encrypted at once: three full records, whose ciphertext fits into a large buffer with
/// room to spare.
const PIECE_BYTES: usize = 3 * (16 << 10);
/// A waiting connection does not keep a content vector larger than this.
const KEPT_BYTES: usize = 1 << 10;

/// Most bytes received for a handshake, not counting a PROXY header (threat D4): enough for a client's
/// certificates, too few for a flood.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// One TLS connection.
pub struct Tls {
    side: Side,
    buffers: Rc<Buffers>,
    /// Records received and not yet processed.
    incoming: Option<Buffer>,
    server_name: Option<Box<str>>,
    /// Bytes received in all while the handshake lasts; `None` once it is over.
    shaking: Option<usize>,
    /// Free room to have at the next receive; large only while much arrives at once.
    room: usize,
    /// Whether `incoming` holds something that rustls has not seen.
    is_fresh: bool,
    /// Content of the last record; from `taken` on it is yet to be taken.
    content: Vec<u8>,
    taken: usize,
    /// Records that the kernel has not taken yet.
    outgoing: Option<Buffer>,
    /// Content bytes in `outgoing` that were not yet reported to the caller as sent.
    accepted: usize,
    /// How the peer ended its stream; `None` while it has not.
    ended: Option<End>,
    close_queued: bool,
    /// rustls has found an error and must not be called again: given the same records it would fail again,
    /// with another alert.
    is_broken: bool,
    /// Whether what we send next is encrypted.
    encrypts: bool,
    /// Bytes discarded since the alert was sent; `None` before that.
    lingered: Option<usize>,
}

enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// End of the peer's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With `close_notify`.
    InOrder,
    /// The connection closed without it: what was received may be incomplete (RFC 8446 §6.1).
    Cut,
}

/// What processing led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processed {
    /// There is more in `content`.
    Content,
    /// Nothing is left to process; the handshake needs more bytes.
    NeedsBytes,
    /// Nothing is left to process, and the handshake is over. What was to be sent is in `outgoing`.
    Open,
    /// The peer will send nothing more.
    Ended,
}

/// What to write once the handshake is over.
#[derive(Clone, Copy)]
enum Wish<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    Close,
}

impl Tls {
    /// The server's end of a new connection. `first` is what was already received.
    pub fn server(
        config: Arc<ServerConfig>,
        buffers: &Rc<Buffers>,
        first: Option<Buffer>,
    ) -> io::Result<Tls> {
        let connection = UnbufferedServerConnection::new(config).map_err(broken)?;
        Tls::new(Side::Server(connection), buffers, first)
    }

    /// The client's end of a new connection, to a server that has to prove that it is `name`.
    pub fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        buffers: &Rc<Buffers>,
    ) -> io::Result<Tls> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(broken)?;
        Tls::new(Side::Client(connection), buffers, None)
    }

    fn new(side: Side, buffers: &Rc<Buffers>, first: Option<Buffer>) -> io::Result<Tls> {
        let mut tls = Tls {
            side,
            buffers: buffers.clone(),
            incoming: None,
            server_name: None,
            shaking: Some(0),
            room: SMALL,
            is_fresh: true,
            content: Vec::new(),
            taken: 0,
            outgoing: None,
            accepted: 0,
            ended: None,
            close_queued: false,
            is_broken: false,
            encrypts: false,
            lingered: None,
        };
        if let Some(first) = first {
            // A record may be longer than the buffer that `first` is in.
            let mut incoming = tls.borrow(LARGE)?;
            incoming.append(first.filled());
            tls.incoming = Some(incoming);
        }
        Ok(tls)
    }

    /// rustls's state of the connection.
    pub fn state(&self) -> &CommonState {
        match &self.side {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }

    /// What it borrows from now on is memory of `owner`, a client of the same worker.
    #[inline]
    pub fn counts_for(&mut self, owner: &Rc<Buffers>) {
        if !Rc::ptr_eq(&self.buffers, owner) {
            self.buffers = owner.clone();
        }
    }

    /// The name that the client asked for, lower case; always `None` on the client's own side.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Advances the handshake. Content that came with its last message is kept to be taken.
    pub fn poll_handshake(&mut self, socket: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let step = self.process(Wish::Nothing);
            if self.outgoing.is_some() {
                match self.poll_flush(socket, context) {
                    // Sending the alert that names the error is worth one try.
                    _ if step.is_err() => {}
                    flushed => ready!(flushed)?,
                }
            }
            match step? {
                Processed::Open => {
                    self.shaking = None;
                    return Poll::Ready(Ok(()));
                }
                Processed::Content => {}
                // With its last handshake message a client may send content, and also `close_notify`.
                Processed::Ended if !self.state().is_handshaking() => {
                    self.shaking = None;
                    return Poll::Ready(Ok(()));
                }
                Processed::Ended => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Processed::NeedsBytes => {
                    if ready!(self.poll_fill(socket, context))? == 0 {
                        return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                    }
                }
            }
        }
    }

    /// Ready when [`Self::take`] has something to give: content, the end, or an error.
    pub fn poll_readable(&mut self, socket: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.taken < self.content.len() || self.ended.is_some() {
                return Poll::Ready(Ok(()));
            }
            if std::mem::take(&mut self.is_fresh) {
                match self.process(Wish::Nothing) {
                    Ok(Processed::Content | Processed::Ended) => continue,
                    Ok(Processed::NeedsBytes | Processed::Open) => {}
                    Err(error) => {
                        let _ = self.poll_linger(socket, context);
                        return Poll::Ready(Err(error));
                    }
                }
                // rustls's own answers (to a key update, say) need not be waited for: what is sent next goes
                // behind them.
                if let Poll::Ready(Err(error)) = self.poll_flush(socket, context) {
                    return Poll::Ready(Err(error));
                }
            }
            if ready!(self.poll_fill(socket, context))? == 0 {
                self.ended.get_or_insert(End::Cut);
            }
        }
    }

    /// Moves content into the free room of `buffer`. Zero is the end of the stream.
    ///
    /// # Errors
    /// The connection closed without `close_notify`: what was received may be incomplete.
    pub fn take(&mut self, buffer: &mut Buffer) -> io::Result<usize> {
        let room = buffer.free();
        let count = self.take_with(room.len(), |content| room[..content.len()].copy_from_slice(content))?;
        buffer.fill(count);
        Ok(count)
    }

    /// As [`Self::take`], but passes at most `most` bytes to `put`.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub fn take_with(&mut self, most: usize, put: impl FnOnce(&[u8])) -> io::Result<usize> {
        let content = &self.content[self.taken..];
        if content.is_empty() {
            return match self.ended {
                Some(End::InOrder) => Ok(0),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let count = content.len().min(most);
        put(&content[..count]);
        self.taken += count;
        if self.taken == self.content.len() {
            self.taken = 0;
            self.content.clear();
            if self.content.capacity() > KEPT_BYTES {
                self.content = Vec::new();
            }
            // There may be more records behind the one whose content was taken.
            self.is_fresh = self.incoming.is_some();
        }
        Ok(count)
    }

    /// Encrypts and sends up to [`PIECE_BYTES`] of `parts`; ready with the number of content bytes once the
    /// kernel has taken all of their records.
    pub fn poll_send(
        &mut self,
        socket: &TcpStream,
        context: &mut Context<'_>,
        parts: &[&[u8]],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_flush(socket, context))?;
            if self.accepted > 0 {
                return Poll::Ready(Ok(std::mem::take(&mut self.accepted)));
            }
            let gathered;
            let mut present = parts.iter().filter(|part| !part.is_empty());
            let piece = match (present.next(), present.next()) {
                (None, _) => return Poll::Ready(Ok(0)),
                (Some(only), None) => &only[..only.len().min(PIECE_BYTES)],
                _ => {
                    gathered = gather(parts);
                    &gathered[..]
                }
            };
            self.write(Wish::Encrypt(piece))?;
            self.accepted = piece.len();
        }
    }

    /// Sends `close_notify`.
    pub fn poll_close(&mut self, socket: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.close_queued, true) {
            ready!(self.poll_flush(socket, context))?;
            self.write(Wish::Close)?;
        }
        self.poll_flush(socket, context)
    }

    /// Whether content waits to be taken.
    #[inline]
    pub fn has_content(&self) -> bool {
        self.taken < self.content.len()
    }

    /// Whether nothing is waiting to be taken or processed, not even an end of stream.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.ended.is_none() && self.incoming.is_none() && self.content.is_empty()
    }

    fn write(&mut self, wish: Wish<'_>) -> io::Result<()> {
        // The peer may have ended its direction and still be reading; a second `Ended` means that both
        // directions are over.
        let mut was_ended = false;
        loop {
            match self.process(wish)? {
                Processed::Open => return Ok(()),
                // Content that arrives meanwhile is kept; `incoming` bounds it.
                Processed::Content => {}
                Processed::Ended if !std::mem::replace(&mut was_ended, true) => {}
                Processed::NeedsBytes | Processed::Ended => return Err(io::ErrorKind::NotConnected.into()),
            }
        }
    }

    /// Processes until there is content or nothing is left to do.
    fn process(&mut self, wish: Wish<'_>) -> io::Result<Processed> {
        if self.is_broken {
            return Err(io::ErrorKind::NotConnected.into());
        }
        loop {
            let mut outgoing = self.outgoing.take();
            // Behind the handshake, what was received rarely wants an answer.
            let writes = self.shaking.is_some() || !matches!(wish, Wish::Nothing);
            if writes && outgoing.is_none() {
                outgoing = Some(self.borrow(LARGE)?);
            }
            let (discard, result) = self.turn(wish, &mut outgoing);
            self.outgoing = outgoing.filter(|outgoing| !outgoing.is_empty());
            self.consume(discard);
            if matches!(result, Ok(Some(Processed::NeedsBytes))) && self.shaking.is_some() {
                let incoming = self.incoming.as_ref().map_or(&[][..], Buffer::filled);
                self.consume(last_words::skipped_bytes(incoming));
            }
            match result {
                Ok(None) => {}
                Ok(Some(Processed::Ended)) => {
                    self.ended = Some(End::InOrder);
                    return Ok(Processed::Ended);
                }
                Ok(Some(step)) => return Ok(step),
                Err(error) => {
                    self.end_by(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Removes the first `count` bytes of `incoming`.
    fn consume(&mut self, count: usize) {
        if let Some(buffer) = &mut self.incoming {
            buffer.consume(count);
            if buffer.is_empty() {
                self.incoming = None;
            }
        }
    }

    /// Lets rustls process one state. Returns how many bytes of `incoming` it used, and the outcome; `None`
    /// means go on. `outgoing` is borrowed if it is needed and not there.
    fn turn(
        &mut self,
        wish: Wish<'_>,
        outgoing: &mut Option<Buffer>,
    ) -> (usize, io::Result<Option<Processed>>) {
        let before = outgoing.as_ref().map_or(0, |outgoing| outgoing.filled().len());
        let mut turn = Turn { content: &mut self.content, outgoing, buffers: &self.buffers, wish };
        let incoming = self.incoming.as_mut().map_or(&mut [][..], Buffer::filled_mut);
        let came_to = match &mut self.side {
            Side::Server(connection) if self.shaking.is_some() => {
                let (status, name) = observing_name(|| connection.process_tls_records(incoming));
                if name.is_some() {
                    self.server_name = name;
                }
                turn.take(status)
            }
            Side::Server(connection) => turn.take(connection.process_tls_records(incoming)),
            Side::Client(connection) => turn.take(connection.process_tls_records(incoming)),
        };
        if !self.encrypts {
            let made = outgoing.as_ref().and_then(|outgoing| outgoing.filled().get(before..));
            let version = self.state().protocol_version();
            self.encrypts = last_words::begins_encryption(made.unwrap_or_default(), version);
        }
        came_to
    }

    fn borrow(&self, bytes: usize) -> io::Result<Buffer> {
        self.buffers.borrow(bytes).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Moves the records into a larger buffer: a record may be longer than a small one.
    fn larger(&mut self, full: Buffer) -> io::Result<Buffer> {
        if full.capacity() >= LARGE {
            self.incoming = Some(full);
            let error = malformed("a handshake message is longer than a buffer");
            self.end_by(&error);
            return Err(error);
        }
        let mut larger = self.borrow(LARGE)?;
        larger.append(full.filled());
        Ok(larger)
    }

    /// Receives records behind those that are already there. Zero is the end of the stream.
    fn poll_fill(&mut self, socket: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(socket.poll_read_ready(context))?;
        let mut incoming = match self.incoming.take() {
            Some(mut incoming) => {
                incoming.compact();
                if incoming.is_full() { self.larger(incoming)? } else { incoming }
            }
            None => self.borrow(self.room)?,
        };
        let polled = socket::receive_ready(socket, context, &mut incoming);
        let mut is_flood = false;
        if let Poll::Ready(Ok(count)) = &polled {
            self.is_fresh |= *count > 0;
            self.room = if incoming.is_full() { LARGE } else { SMALL };
            if let Some(total) = &mut self.shaking {
                *total += count;
                is_flood = *total > HANDSHAKE_BYTES;
            }
        }
        if !incoming.is_empty() {
            self.incoming = Some(incoming);
        }
        if is_flood {
            let error = malformed("a handshake takes more bytes than any should");
            self.end_by(&error);
            return Poll::Ready(Err(error));
        }
        polled
    }

    fn poll_flush(&mut self, socket: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(outgoing) = &mut self.outgoing {
            let count = ready!(socket::poll_send(socket, context, outgoing.filled()))?;
            outgoing.consume(count);
            if outgoing.is_empty() {
                self.outgoing = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Where one state of rustls's machine puts its output.
struct Turn<'t> {
    content: &'t mut Vec<u8>,
    outgoing: &'t mut Option<Buffer>,
    buffers: &'t Rc<Buffers>,
    wish: Wish<'t>,
}

impl Turn<'_> {
    /// Has `write` write records; it returns their length in bytes.
    fn write<E>(&mut self, write: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> io::Result<()>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        if self.outgoing.is_none() {
            *self.outgoing = self.buffers.borrow(LARGE);
        }
        let outgoing = self.outgoing.as_mut().ok_or(io::ErrorKind::OutOfMemory)?;
        let count = write(outgoing.free()).map_err(io::Error::other)?;
        outgoing.fill(count);
        Ok(())
    }

    /// Handles one state. Returns how many bytes of input it used, and the outcome; `None` means go on.
    fn take<Data>(
        &mut self,
        status: UnbufferedStatus<'_, '_, Data>,
    ) -> (usize, io::Result<Option<Processed>>) {
        let mut discard = status.discard;
        let result = match status.state {
            Err(error) => Err(broken(error)),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    self.content.extend_from_slice(record.payload);
                    // Empty records are allowed and mean nothing (RFC 8446 §5.1).
                    Ok((!record.payload.is_empty()).then_some(Processed::Content))
                }
                Some(Err(error)) => Err(broken(error)),
                None => Ok(None),
            },
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                self.write(|room| data.encode(room)).map(|()| None)
            }
            // The data is in `outgoing`, which is sent before anything else.
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(None)
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                let written = match self.wish {
                    Wish::Nothing => Ok(()),
                    Wish::Encrypt(content) => self.write(|room| traffic.encrypt(content, room)),
                    Wish::Close => self.write(|room| traffic.queue_close_notify(room)),
                };
                written.map(|()| Some(Processed::Open))
            }
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Some(Processed::Ended)),
            Ok(_) => Ok(Some(Processed::NeedsBytes)),
        };
        (discard, result)
    }
}

/// Up to [`PIECE_BYTES`] of `parts`, copied into one vector.
fn gather(parts: &[&[u8]]) -> Vec<u8> {
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let mut gathered = Vec::with_capacity(total.min(PIECE_BYTES));
    for part in parts {
        let room = PIECE_BYTES - gathered.len();
        gathered.extend_from_slice(&part[..part.len().min(room)]);
    }
    gathered
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
