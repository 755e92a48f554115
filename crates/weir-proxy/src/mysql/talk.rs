//! Exchanges whole packets, for logins and for Weir's own short exchanges with servers.
//!
//! Both sides take turns and send little, so each packet is copied out whole. The copy may contain a
//! password: it is wiped when dropped, and the buffer is wiped at once. Statements and their answers use
//! other code, which copies nothing.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use weir_io::buffers::{Buffer, Buffers, SMALL};
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Stream};
use weir_io::wait::{WaitError, send_all};
use weir_mysql::WireError;
use weir_mysql::outcome::ERR;
use weir_mysql::packet::{HEADER_BYTES, PacketEvent, PacketHeader, PacketReader, write_packet_with};
use zeroize::{Zeroize as _, Zeroizing};

use crate::backends::Connection;

/// Initial capacity for a login packet. It is large enough for every packet with a password, so that the
/// vector never reallocates and leaves a password in freed memory.
const PACKET_ROOM: usize = 1024;

/// A connection that packets are read from and written to.
pub trait Wire {
    /// The byte stream.
    fn stream(&mut self) -> &mut Stream;
}

impl Wire for Stream {
    fn stream(&mut self) -> &mut Stream {
        self
    }
}

impl Wire for Connection {
    fn stream(&mut self) -> &mut Stream {
        self
    }
}

impl<T: Wire> Wire for &mut T {
    fn stream(&mut self) -> &mut Stream {
        (**self).stream()
    }
}

/// A conversation in packets, in which both sides take turns.
pub struct Talk<W = Stream> {
    wire: W,
    /// Bytes that were received and not yet read.
    buffer: Option<Buffer>,
    /// The sequence id of the next packet, from either side.
    sequence: u8,
    /// Bytes received, including headers.
    pub received_bytes: u64,
    /// Bytes sent, including headers.
    pub sent_bytes: u64,
}

/// Why a conversation ended early. The connection cannot be used any more.
#[derive(Debug)]
pub enum TalkError {
    /// The session's deadline passed.
    TimedOut,
    /// The connection broke.
    Broken(io::Error),
    /// The peer closed it.
    Closed,
    /// A packet is longer than any that is allowed here.
    TooLong,
    /// The memory budget has no room for a packet.
    NoMemory,
    /// The bytes violate MySQL's protocol.
    Protocol(WireError),
    /// The worker is short of a resource and has shed the session.
    Shed,
}

impl fmt::Display for TalkError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TalkError::TimedOut => write!(out, "the time for it was over"),
            TalkError::Broken(error) => write!(out, "the connection broke: {error}"),
            TalkError::Closed => write!(out, "the connection was closed"),
            TalkError::TooLong => write!(out, "a packet is longer than any that is expected in a login"),
            TalkError::NoMemory => write!(out, "the memory budget is used up"),
            TalkError::Protocol(error) => write!(out, "against MySQL's protocol: {error}"),
            TalkError::Shed => write!(out, "room was needed for others"),
        }
    }
}

impl From<WireError> for TalkError {
    fn from(error: WireError) -> TalkError {
        TalkError::Protocol(error)
    }
}

impl From<WaitError> for TalkError {
    fn from(error: WaitError) -> TalkError {
        match error {
            WaitError::TimedOut => TalkError::TimedOut,
            WaitError::Broken(error) => TalkError::Broken(error),
        }
    }
}

impl<W: Wire> Talk<W> {
    /// Starts a conversation. `first` has bytes that were already received.
    pub fn new(wire: W, first: Option<Buffer>) -> Talk<W> {
        Talk { wire, buffer: first, sequence: 0, received_bytes: 0, sent_bytes: 0 }
    }

    /// The same with this sequence id for the next packet, after packets that were exchanged elsewhere.
    pub fn at(mut self, sequence: u8) -> Talk<W> {
        self.sequence = sequence;
        self
    }

    /// The sequence id of the next packet, from either side.
    pub fn sequence(&self) -> u8 {
        self.sequence
    }

    /// The underlying stream. Nothing else may use it during the conversation.
    pub fn wire(&mut self) -> &mut Stream {
        self.wire.stream()
    }

    /// Whether received bytes are unread.
    pub fn has_unread(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty())
    }

    /// The connection, and the received bytes that are unread.
    pub fn into_parts(self) -> (W, Option<Buffer>) {
        (self.wire, self.buffer.filter(|buffer| !buffer.is_empty()))
    }

    /// The payload of the next packet, of at most `limit` bytes. Holds a buffer only while it contains bytes.
    ///
    /// # Errors
    /// The connection cannot be used any more. [`TalkError::Shed`] occurs only while `deadline` marks the
    /// session as idle.
    pub async fn receive(
        &mut self,
        buffers: &Rc<Buffers>,
        deadline: &Deadline,
        limit: usize,
    ) -> Result<Zeroizing<Vec<u8>>, TalkError> {
        loop {
            let needs = match self.take(limit)? {
                Taken::Whole(payload) => return Ok(payload),
                Taken::Needs(needs) => needs,
            };
            self.readable(deadline).await?;
            let mut buffer = self.room_for(needs, buffers)?;
            let stream = self.wire.stream();
            let received = poll_fn(|context| match stream.receive_ready(context, &mut buffer) {
                // A spurious wakeup: wait for the next one.
                Poll::Pending => Poll::Ready(Ok(None)),
                Poll::Ready(result) => Poll::Ready(result.map(Some)),
            });
            let received = received.await.map_err(TalkError::Broken)?;
            if !buffer.is_empty() {
                self.buffer = Some(buffer);
            }
            match received {
                Some(0) => return Err(TalkError::Closed),
                Some(count) => self.received_bytes += count as u64,
                None => {}
            }
        }
    }

    /// Sends the packet that `fill` writes, with the next sequence id.
    ///
    /// # Errors
    /// The connection cannot be used any more.
    pub async fn send(
        &mut self,
        deadline: &Deadline,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), TalkError> {
        let mut packet = Zeroizing::new(Vec::with_capacity(PACKET_ROOM));
        self.sequence = write_packet_with(&mut packet, self.sequence, fill);
        self.sent_bytes += packet.len() as u64;
        Ok(send_all(self.wire.stream(), &packet, deadline, || {}).await?)
    }

    /// Takes the first packet from the received bytes, if it is complete.
    fn take(&mut self, limit: usize) -> Result<Taken, TalkError> {
        let Some(buffer) = &mut self.buffer else { return Ok(Taken::Needs(HEADER_BYTES)) };
        // The header alone shows this, so the rest is not waited for.
        let header = buffer.filled().first_chunk().copied().map(PacketHeader::parse);
        if header.is_some_and(|header| header.payload_bytes as usize > limit) {
            return Err(TalkError::TooLong);
        }
        let step = PacketReader::new().advance(buffer.filled(), |_, header| header.payload_bytes as usize)?;
        let head = match step.event {
            PacketEvent::Head(head) => head,
            PacketEvent::Partial { needs } => return Ok(Taken::Needs(needs)),
            PacketEvent::Middle | PacketEvent::End { .. } => {
                return Err(TalkError::Protocol(WireError::UnexpectedPacket));
            }
        };
        // A payload that continues in another packet is already 16 MiB long.
        if !head.is_whole {
            return Err(TalkError::TooLong);
        }
        // A server may send an error at any time, so its sequence id may be out of order.
        if head.header.sequence != self.sequence && head.bytes.first() != Some(&ERR) {
            return Err(TalkError::Protocol(WireError::SequenceId));
        }
        self.sequence = head.header.sequence.wrapping_add(1);
        let payload = Zeroizing::new(head.bytes.to_vec());
        let consumed = step.consumed;
        if let Some(read) = buffer.filled_mut().get_mut(..consumed) {
            read.zeroize();
        }
        buffer.consume(consumed);
        self.buffer.take_if(|buffer| buffer.is_empty());
        Ok(Taken::Whole(payload))
    }

    /// A buffer that contains the received bytes and has room for a packet of `needs` bytes.
    fn room_for(&mut self, needs: usize, buffers: &Rc<Buffers>) -> Result<Buffer, TalkError> {
        let Some(mut buffer) = self.buffer.take() else {
            return buffers.borrow(needs.max(SMALL)).ok_or(TalkError::NoMemory);
        };
        if needs <= buffer.capacity() {
            buffer.compact();
            return Ok(buffer);
        }
        let mut larger = buffers.borrow(needs).ok_or(TalkError::NoMemory)?;
        larger.append(buffer.filled());
        buffer.filled_mut().zeroize();
        Ok(larger)
    }

    async fn readable(&mut self, deadline: &Deadline) -> Result<(), TalkError> {
        let stream = self.wire.stream();
        poll_fn(|context| match stream.poll_readable(context) {
            Poll::Ready(result) => Poll::Ready(result.map_err(TalkError::Broken)),
            Poll::Pending if deadline.has_passed() => Poll::Ready(Err(TalkError::TimedOut)),
            Poll::Pending if deadline.is_shed() => Poll::Ready(Err(TalkError::Shed)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

enum Taken {
    Whole(Zeroizing<Vec<u8>>),
    /// Bytes that must have been received, including the header.
    Needs(usize),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use weir_io::clock;
    use weir_io::deadline::Deadlines;

    use super::*;

    /// Both ends of a connection over the loopback interface: the peer's socket, and Weir's stream.
    async fn pair() -> (TcpStream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (peer, Stream::plain(listener.accept().await.unwrap().0))
    }

    /// A deadline of this task, far in the future.
    async fn deadline() -> Deadline {
        let deadlines = Deadlines::new();
        tokio::task::spawn_local(deadlines.clone().run());
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let deadline = deadlines.register(waker);
        deadline.set(clock::now() + Duration::from_secs(30));
        deadline
    }

    #[tokio::test(flavor = "local")]
    async fn packets_are_received_whole_in_whatever_pieces_they_come() {
        let (mut peer, stream) = pair().await;
        let (buffers, deadline) = (Buffers::new(1 << 20), deadline().await);
        let mut talk = Talk::new(stream, None);
        tokio::task::spawn_local(async move {
            for piece in [&b"\x03\0"[..], b"\0\0a", b"bc\x01\0\0\x01d\x00\0\0\x02", b"\x01\0\0\x03e"] {
                peer.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            std::future::pending::<()>().await;
        });
        for expected in [&b"abc"[..], b"d", b"", b"e"] {
            assert_eq!(*talk.receive(&buffers, &deadline, 3).await.unwrap(), expected);
        }
        assert_eq!((talk.received_bytes, buffers.in_use_bytes()), (21, 0), "no buffer is held for nothing");
    }

    #[tokio::test(flavor = "local")]
    async fn a_packet_larger_than_a_buffer_is_received_and_one_over_the_limit_is_not_waited_for() {
        let (mut peer, stream) = pair().await;
        let (buffers, deadline) = (Buffers::new(1 << 20), deadline().await);
        let mut talk = Talk::new(stream, None);
        tokio::task::spawn_local(async move {
            let mut packet = Vec::new();
            write_packet_with(&mut packet, 0, |out| out.extend([7; 60_000]));
            packet.extend_from_slice(b"\xff\xff\xff\x01a");
            peer.write_all(&packet).await.unwrap();
            std::future::pending::<()>().await;
        });
        let received = talk.receive(&buffers, &deadline, 60_000).await.unwrap();
        assert!(received.len() == 60_000 && received.iter().all(|byte| *byte == 7));
        let refused = talk.receive(&buffers, &deadline, 60_000).await;
        assert!(matches!(refused, Err(TalkError::TooLong)));
    }

    #[tokio::test(flavor = "local")]
    async fn what_was_read_is_wiped_from_the_buffer_and_what_follows_is_handed_on() {
        let (_peer, stream) = pair().await;
        let (buffers, deadline) = (Buffers::new(1 << 20), deadline().await);
        let mut first = buffers.borrow(SMALL).unwrap();
        first.append(b"\x07\0\0\x00sesame\0rest");
        let mut talk = Talk::new(stream, Some(first));
        assert_eq!(*talk.receive(&buffers, &deadline, 64).await.unwrap(), b"sesame\0");
        assert!(talk.has_unread());
        let (_, rest) = talk.into_parts();
        let mut rest = rest.expect("four bytes are left");
        assert_eq!(rest.filled(), b"rest");
        rest.compact();
        rest.consume(4);
        assert_eq!(rest.free()[4..11], [0; 7], "nothing of the password stayed behind");
    }

    #[tokio::test(flavor = "local")]
    async fn sequence_ids_count_both_sides_and_only_an_error_may_come_out_of_turn() {
        let (mut peer, stream) = pair().await;
        let (buffers, deadline) = (Buffers::new(1 << 20), deadline().await);
        let mut talk = Talk::new(stream, None);
        talk.send(&deadline, |out| out.push(b'x')).await.unwrap();
        peer.write_all(b"\x01\0\0\x01a\x02\0\0\x00\xff!\x01\0\0\x05b").await.unwrap();
        assert_eq!(*talk.receive(&buffers, &deadline, 9).await.unwrap(), b"a");
        assert_eq!(*talk.receive(&buffers, &deadline, 9).await.unwrap(), b"\xff!");
        let refused = talk.receive(&buffers, &deadline, 9).await;
        assert!(matches!(refused, Err(TalkError::Protocol(WireError::SequenceId))));
    }

    #[tokio::test(flavor = "local")]
    async fn a_peer_that_says_nothing_is_waited_for_until_the_deadline_or_until_room_is_needed() {
        let (_peer, stream) = pair().await;
        let buffers = Buffers::new(1 << 20);
        let deadlines = Deadlines::new();
        tokio::task::spawn_local(deadlines.clone().run());
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let deadline = deadlines.register(waker);
        let mut talk = Talk::new(stream, None);
        deadline.set(clock::now());
        assert!(matches!(talk.receive(&buffers, &deadline, 9).await, Err(TalkError::TimedOut)));
        deadline.set(clock::now() + Duration::from_secs(30));
        deadline.set_idle(Some(clock::now()));
        assert_eq!(deadlines.shed_idle(1), 1);
        assert!(matches!(talk.receive(&buffers, &deadline, 9).await, Err(TalkError::Shed)));
    }
}
