//! Sends a command of several packets with a longer beginning than the client's. All its bytes shift, and
//! each packet takes over the bytes for which the previous one has no room.
//!
//! Source: MySQL internals, "Sending More Than 16Mb".

use weir_io::buffers::Buffer;
use weir_mysql::packet::{HEADER_BYTES, MAX_PAYLOAD_BYTES, PacketHeader};

use super::exchange::ExchangeError;
use super::server::ServerConnection;
use super::session::Incoming;
use super::upload::{Beginning, Source, done_with, pass};

/// Computes the new packets of such a command. Pure.
struct Reframe {
    /// Bytes of the client's current packet that are still to come.
    left: usize,
    /// Bytes for which the packet being sent has room.
    room: usize,
    /// Bytes that were taken from the client's packets and are not sent yet.
    carried: Vec<u8>,
}

/// The command would need one more packet than the client has sent, and the sequence ids of the answer would
/// not fit.
#[derive(Debug, PartialEq, Eq)]
struct OneMore;

impl Reframe {
    /// The state after the beginning of a first packet of maximum length: `left` bytes of it are still to
    /// come, and the packet being sent has room for `room`.
    fn new(left: usize, room: usize) -> Reframe {
        Reframe { left, room, carried: Vec::new() }
    }

    /// Takes bytes of the client's packet; returns those that are sent now. The rest is carried over.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(self.room));
        self.left -= bytes.len();
        self.room -= now.len();
        self.carried.extend_from_slice(later);
        now
    }

    /// Begins the client's next packet, after all of the previous one was taken; returns what must be sent
    /// before its bytes.
    fn next(&mut self, header: PacketHeader) -> Result<Vec<u8>, OneMore> {
        let own = header.payload_bytes as usize;
        let is_last = own < MAX_PAYLOAD_BYTES;
        let payload_bytes = if is_last { own + self.carried.len() } else { own };
        if is_last && payload_bytes >= MAX_PAYLOAD_BYTES {
            return Err(OneMore);
        }
        let sent = PacketHeader { payload_bytes: payload_bytes as u32, sequence: header.sequence };
        let begun = [&sent.to_bytes()[..], &self.carried].concat();
        self.left = own;
        self.room = payload_bytes - self.carried.len();
        self.carried.clear();
        Ok(begun)
    }
}

impl Source<'_> {
    /// As [`Source::send_command`], for a command of several packets that its beginning makes longer.
    ///
    /// # Errors
    /// [`ExchangeError::Unframed`] if it would need one more packet than the client has sent, which would
    /// also shift the sequence ids of the answer.
    pub(super) async fn send_reframed(
        &mut self,
        server: &mut ServerConnection,
        incoming: &Incoming,
        beginning: Beginning<'_>,
    ) -> Result<u8, ExchangeError> {
        let left = incoming.packet_bytes() - beginning.replaced;
        let mut reframe = Reframe::new(left, HEADER_BYTES + MAX_PAYLOAD_BYTES - beginning.by.len());
        let (mut sequence, mut is_last) = (incoming.header.sequence, false);
        done_with(self.buffer, beginning.replaced);
        pass(server, self.deadline, beginning.by).await?;
        loop {
            let here = self.buffer.as_ref().map_or(0, |buffer| buffer.filled().len().min(reframe.left));
            if here > 0 {
                let received = self.buffer.as_ref().map_or(&[][..], Buffer::filled);
                let now = reframe.take(received.get(..here).unwrap_or_default());
                pass(server, self.deadline, now).await?;
                done_with(self.buffer, here);
            }
            if reframe.left == 0 {
                if is_last {
                    return Ok(sequence);
                }
                let received = self.buffer.as_ref().map_or(&[][..], Buffer::filled);
                if let Some(header) = received.first_chunk::<HEADER_BYTES>() {
                    let header = PacketHeader::parse(*header);
                    sequence = sequence.wrapping_add(1);
                    if header.sequence != sequence {
                        return Err(ExchangeError::Client);
                    }
                    is_last = (header.payload_bytes as usize) < MAX_PAYLOAD_BYTES;
                    let begun = reframe.next(header).map_err(|OneMore| ExchangeError::Unframed)?;
                    done_with(self.buffer, HEADER_BYTES);
                    pass(server, self.deadline, &begun).await?;
                    continue;
                }
            }
            self.receive().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = MAX_PAYLOAD_BYTES;

    /// What is sent for a command of these payloads, if the first byte is replaced by `grown`.
    fn reframed(payloads: &[&[u8]], grown: &[u8], piece: usize) -> Result<Vec<u8>, OneMore> {
        let header = |bytes: usize, sequence: usize| PacketHeader {
            payload_bytes: bytes as u32,
            sequence: sequence as u8,
        };
        let mut sent = [&header(MAX, 0).to_bytes()[..], grown].concat();
        let mut reframe = Reframe::new(MAX - 1, MAX - grown.len());
        for (number, payload) in payloads.iter().enumerate() {
            let payload = if number == 0 { &payload[1..] } else { payload };
            if number > 0 {
                sent.extend(reframe.next(header(payload.len(), number))?);
            }
            for piece in payload.chunks(piece) {
                sent.extend_from_slice(reframe.take(piece));
            }
            assert_eq!(reframe.left, 0);
        }
        assert!(reframe.carried.is_empty() && reframe.room == 0);
        Ok(sent)
    }

    /// The joined payloads of packets, and their lengths.
    fn read(mut sent: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let (mut content, mut lengths) = (Vec::new(), Vec::new());
        while let Some((header, rest)) = sent.split_first_chunk() {
            let header = PacketHeader::parse(*header);
            assert_eq!(usize::from(header.sequence), lengths.len());
            lengths.push(header.payload_bytes as usize);
            content.extend_from_slice(&rest[..header.payload_bytes as usize]);
            sent = &rest[header.payload_bytes as usize..];
        }
        (content, lengths)
    }

    #[test]
    fn what_a_packet_has_no_room_for_is_in_the_next_one() {
        let full: Vec<u8> = (0..MAX).map(|at| (at % 251) as u8).collect();
        for last in [0, 7, MAX - 5] {
            for piece in [65_537, MAX] {
                let payloads = [&full[..], &full, &full[..last]];
                let sent = reframed(&payloads, b"types", piece).unwrap();
                let (content, lengths) = read(&sent);
                assert_eq!(lengths, [MAX, MAX, last + 4], "{last} {piece}");
                assert!(content == [b"types", &full[1..], &full, &full[..last]].concat(), "{last} {piece}");
            }
        }
    }

    #[test]
    fn one_packet_more_than_the_client_has_sent_is_refused() {
        let full = vec![7; MAX];
        for last in [MAX - 4, MAX - 1] {
            assert_eq!(reframed(&[&full[..], &full[..last]], b"types", MAX), Err(OneMore), "{last}");
        }
    }
}
