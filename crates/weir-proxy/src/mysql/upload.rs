//! Sends what comes from a client to a server: a command, which may be longer than what is buffered, and a
//! file that the server has asked for.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weir_io::buffers::{Buffer, Buffers, LARGE};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Stream};
use weir_io::wait::{WaitError, send_all, timed_out};
use weir_mysql::eof::SequenceShift;
use weir_mysql::packet::{PacketEvent, PacketReader};

use super::exchange::{ExchangeError, ServerFailure};
use super::server::ServerConnection;
use super::session::{CLIENT_PATIENCE, Incoming};
use crate::worker::ListenerSlot;

/// Replaces the beginning of a command that is sent to a server. The rest is sent unchanged.
#[derive(Clone, Copy, Default)]
pub struct Beginning<'a> {
    /// Bytes of the client's packet, including the header, that are not sent.
    pub replaced: usize,
    /// The bytes sent in their place.
    pub by: &'a [u8],
    /// Whether those are longer, and the packet already has the maximum length.
    pub is_reframed: bool,
}

/// A client and what was received from it.
pub struct Source<'a> {
    pub client: &'a mut Stream,
    /// The session's listener, which may be draining.
    pub slot: &'a ListenerSlot,
    /// Bytes that were received and not yet consumed.
    pub buffer: &'a mut Option<Buffer>,
    pub buffers: &'a Rc<Buffers>,
    /// The session's own deadline.
    pub deadline: &'a Deadline,
    /// Bytes that were received during the call.
    pub received: u64,
    /// The shift from the client's sequence ids to those that the server expects.
    shift: SequenceShift,
}

impl<'a> Source<'a> {
    /// For a client, with `buffer` as the received bytes that were not yet consumed.
    pub fn new(
        client: &'a mut Stream,
        slot: &'a ListenerSlot,
        buffer: &'a mut Option<Buffer>,
        buffers: &'a Rc<Buffers>,
        deadline: &'a Deadline,
    ) -> Source<'a> {
        Source { client, slot, buffer, buffers, deadline, received: 0, shift: SequenceShift::default() }
    }

    /// Sends a command; returns the sequence id of its last packet. A command that is whole in the buffer
    /// stays there, so that it can be sent again; any other is consumed.
    pub async fn send_command(
        &mut self,
        server: &mut ServerConnection,
        incoming: &Incoming,
        beginning: Beginning<'_>,
        now: Duration,
    ) -> Result<u8, ExchangeError> {
        if beginning.is_reframed {
            return Box::pin(self.send_reframed(server, incoming, beginning)).await;
        }
        let received = self.buffer.as_ref().map_or(&[][..], Buffer::filled);
        let here = received.len().min(incoming.packet_bytes());
        let rest = received.get(beginning.replaced..here).unwrap_or_default();
        self.deadline.set(now + CLIENT_PATIENCE);
        send_both(server, beginning.by, rest, self.deadline).await?;
        if incoming.is_whole {
            return Ok(incoming.header.sequence);
        }
        let mut reader = PacketReader::new();
        let mut first = true;
        loop {
            // In the first round, the bytes in the buffer have already been sent.
            let is_over = self.pass_packets(server, &mut reader, first, |_| true).await?;
            first = false;
            if let Some(sequence) = is_over {
                return Ok(sequence);
            }
            self.receive().await?;
        }
    }

    /// Sends a file: the client's packets up to an empty one, whose sequence id is returned. All ids are
    /// changed by `shift`. The client has been asked for the file and continues sending it, even if the
    /// server fails.
    pub async fn send_file(
        &mut self,
        server: &mut ServerConnection,
        shift: SequenceShift,
    ) -> Result<u8, ExchangeError> {
        self.shift = shift;
        self.send_packets(server).await.map_err(|error| match error {
            ExchangeError::Server { failure, .. } => ExchangeError::Server { failure, forwarded: true },
            other => other,
        })
    }

    async fn send_packets(&mut self, server: &mut ServerConnection) -> Result<u8, ExchangeError> {
        let mut reader = PacketReader::new();
        loop {
            if let Some(sequence) = self.pass_packets(server, &mut reader, false, |bytes| bytes == 0).await? {
                return Ok(sequence);
            }
            self.receive().await?;
        }
    }

    /// Forwards the buffer up to the end of the last payload, which `is_last` recognises by its length;
    /// returns the sequence id after which the server answers.
    async fn pass_packets(
        &mut self,
        server: &mut ServerConnection,
        reader: &mut PacketReader,
        is_sent: bool,
        is_last: impl Fn(u64) -> bool,
    ) -> Result<Option<u8>, ExchangeError> {
        let Some(buffer) = &mut *self.buffer else { return Ok(None) };
        let (mut taken, mut last) = (0, None);
        while last.is_none() {
            let input = buffer.filled().get(taken..).unwrap_or_default();
            let step = reader.advance(input, |_, _| 0).map_err(|_| ExchangeError::Client)?;
            taken += step.consumed;
            let ended = match step.event {
                PacketEvent::Partial { .. } => break,
                PacketEvent::Head(head) => head.is_whole.then_some(head.bytes.len() as u64),
                PacketEvent::Middle => None,
                PacketEvent::End { payload_bytes } => Some(payload_bytes),
            };
            if ended.is_some_and(&is_last) {
                last = Some(reader.next_sequence().wrapping_sub(1).wrapping_add(self.shift.added()));
            }
        }
        self.shift.apply(buffer.filled_mut().get_mut(..taken).unwrap_or_default());
        if !is_sent {
            pass(server, self.deadline, buffer.filled().get(..taken).unwrap_or_default()).await?;
        }
        done_with(self.buffer, taken);
        Ok(last)
    }

    pub(super) async fn receive(&mut self) -> Result<(), ExchangeError> {
        self.deadline.set(super::while_it_lasts(self.slot, clock::now() + CLIENT_PATIENCE));
        let mut buffer = match self.buffer.take() {
            Some(mut held) => {
                held.compact();
                held
            }
            None => self.buffers.borrow(LARGE).ok_or(ExchangeError::NoRoom)?,
        };
        let received = poll_fn(|context| match self.client.poll_receive(context, &mut buffer) {
            Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
            Poll::Pending => timed_out(self.deadline),
        });
        match received.await {
            Ok(count) if count > 0 => self.received += count as u64,
            _ => return Err(ExchangeError::Client),
        }
        *self.buffer = Some(buffer);
        Ok(())
    }
}

/// Removes `count` bytes from the front of what was received.
pub(super) fn done_with(buffer: &mut Option<Buffer>, count: usize) {
    if let Some(held) = buffer {
        held.consume(count);
        if held.is_empty() {
            *buffer = None;
        }
    }
}

/// Forwards bytes from the client to the server.
pub(super) async fn pass(
    server: &mut ServerConnection,
    deadline: &Deadline,
    bytes: &[u8],
) -> Result<(), ExchangeError> {
    deadline.set(clock::now() + CLIENT_PATIENCE);
    let sent = send_all(&mut *server.connection, bytes, deadline, || {}).await;
    sent.map_err(|error| lost(error.into()))
}

/// The failure of a server before the client received any of its answer.
pub(super) fn lost(failure: ServerFailure) -> ExchangeError {
    ExchangeError::Server { failure, forwarded: false }
}

/// Sends two pieces, in one system call if the kernel accepts both.
async fn send_both(
    server: &mut ServerConnection,
    mut one: &[u8],
    mut other: &[u8],
    deadline: &Deadline,
) -> Result<(), ExchangeError> {
    while !one.is_empty() || !other.is_empty() {
        let sent = poll_fn(|context| {
            let sent = match one.is_empty() {
                true => server.connection.poll_send(context, other),
                false => server.connection.poll_send_parts(context, &[one, other, b""]),
            };
            match sent {
                Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
                Poll::Pending => timed_out(deadline),
            }
        });
        let sent = sent.await.map_err(|error| lost(error.into()))?;
        let of_one = sent.min(one.len());
        (one, other) = (&one[of_one..], &other[sent - of_one..]);
    }
    Ok(())
}
