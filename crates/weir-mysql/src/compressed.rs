//! The compressed protocol: packets within compressed packets.
//!
//! After a login that agreed on compression, both sides send their packets as one stream of bytes, split into
//! compressed packets at any point. This module reads and writes the headers of compressed packets and counts
//! both kinds of sequence ids. It does not inflate or deflate.
//!
//! Source: MySQL internals, "Compression"; for the checks of sequence ids, `net_serv.cc` of the server.

use crate::packet::{HEADER_BYTES, MAX_PAYLOAD_BYTES};
use crate::wire_error::WireError;

/// Bytes of a compressed packet's header.
pub const COMPRESSED_HEADER_BYTES: usize = 7;

/// Content shorter than this (bytes) is sent uncompressed, as servers and clients do (`MIN_COMPRESS_LENGTH`).
pub const LEAST_COMPRESSED_BYTES: usize = 50;

/// The header of a compressed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedHeader {
    /// Bytes that follow the header, at most [`MAX_PAYLOAD_BYTES`].
    pub payload_bytes: u32,
    /// One more than that of the previous compressed packet, from either side; 0 begins a command.
    pub sequence: u8,
    /// Bytes of the payload after it is inflated; 0 if it is not compressed.
    pub content_bytes: u32,
}

impl CompressedHeader {
    /// Parses a header; any seven bytes are valid.
    pub fn parse(bytes: [u8; COMPRESSED_HEADER_BYTES]) -> CompressedHeader {
        let [a, b, c, sequence, d, e, f] = bytes;
        CompressedHeader {
            payload_bytes: u32::from_le_bytes([a, b, c, 0]),
            sequence,
            content_bytes: u32::from_le_bytes([d, e, f, 0]),
        }
    }

    /// The header's seven bytes. Only the lower 24 bits of both lengths fit.
    pub fn to_bytes(self) -> [u8; COMPRESSED_HEADER_BYTES] {
        let [a, b, c, _] = self.payload_bytes.to_le_bytes();
        let [d, e, f, _] = self.content_bytes.to_le_bytes();
        [a, b, c, self.sequence, d, e, f]
    }
}

/// Counts the compressed packets of a connection, and the packets within them, on the server's side.
///
/// The ids of a client's inner packets carry no information: both sides set them to those of the compressed
/// packets whenever they flush (`net_flush`), and servers do not check them. Received packets are renumbered
/// as without compression, so that later stages can rely on the ids. Sent packets are numbered as a server
/// does, because some clients check: the first packet of an answer, and of each further result, has the id of
/// the compressed packet that it begins, and the others count on from there.
#[derive(Clone, Debug)]
pub struct CompressedTurns {
    /// The id of the next compressed packet, from either side, within the same command.
    next: u8,
    /// The id of the next inner packet, from either side.
    next_within: u8,
    /// Whether Weir was the last to send.
    has_answered: bool,
    /// Whether the next content to be sent begins a further result of the same answer.
    begins_result: bool,
    /// How far the inner ids of the answer are above those without compression.
    shift: u8,
    received: Boundaries,
    sent: Boundaries,
}

impl CompressedTurns {
    /// The state right after a login was answered: the client sends next, and begins a command.
    pub fn after_login() -> CompressedTurns {
        CompressedTurns {
            next: 0,
            next_within: 0,
            has_answered: true,
            begins_result: false,
            shift: 0,
            received: Boundaries::default(),
            sent: Boundaries::default(),
        }
    }

    /// Checks the id of a compressed packet that the client has sent; its content must then go through
    /// [`Self::received`].
    ///
    /// # Errors
    /// [`WireError::SequenceId`]: it neither begins a command nor follows the packet before.
    pub fn receive(&mut self, sequence: u8) -> Result<(), WireError> {
        // After 255 packets from the client itself the id wraps to 0 without beginning a command.
        let may_begin = self.received.is_between() && (self.has_answered || self.next != 0);
        if sequence == 0 && may_begin {
            self.next_within = 0;
        } else if sequence != self.next {
            return Err(WireError::SequenceId);
        }
        self.next = sequence.wrapping_add(1);
        self.has_answered = false;
        self.begins_result = false;
        Ok(())
    }

    /// Numbers the inner packets of received content. Must be called in the order of arrival.
    pub fn received(&mut self, content: &mut [u8]) {
        let mut at = 0;
        while let Some(place) = self.received.next_id(content, &mut at) {
            if let Some(id) = content.get_mut(place) {
                *id = self.next_within;
            }
            self.next_within = self.next_within.wrapping_add(1);
        }
    }

    /// Whether [`Self::send`] must renumber the inner packets of the next content; rarely true.
    pub fn is_renumbered(&mut self, content: &[u8]) -> bool {
        if let Some(first) = content.get(HEADER_BYTES - 1).filter(|_| self.sent.is_between()) {
            if *first == 0 && self.next_within != 0 {
                // An unsolicited error, as a server sends before it closes an idle connection: not an answer.
                (self.next, self.shift) = (0, 0);
            } else if !self.has_answered || self.begins_result {
                self.shift = self.next.wrapping_sub(*first);
            }
        }
        self.shift != 0
    }

    /// Takes the content of one compressed packet that is about to be sent, after a call of
    /// [`Self::is_renumbered`] with it; returns the id of the compressed packet. `numbered` is a copy of the
    /// content, which gets the ids that the client expects; it may be empty if none has to change.
    pub fn send(&mut self, content: &[u8], numbered: &mut [u8]) -> u8 {
        let mut at = 0;
        while let Some(place) = self.sent.next_id(content, &mut at) {
            let id = content.get(place).copied().unwrap_or_default();
            self.next_within = id.wrapping_add(1);
            if let Some(numbered) = numbered.get_mut(place) {
                *numbered = id.wrapping_add(self.shift);
            }
        }
        self.end_part()
    }

    /// Bytes still to be sent of the current inner payload; 0 between two.
    pub fn unsent_of_packet(&self) -> usize {
        self.sent.left as usize
    }

    /// Takes a part (`content`) of that payload; more of it follows in the same compressed packet.
    pub fn send_part(&mut self, content: &[u8]) {
        let within = content.get(..self.unsent_of_packet()).unwrap_or(content);
        self.sent.next_id(within, &mut 0);
    }

    /// Ends a compressed packet that was sent in parts; returns its id.
    pub fn end_part(&mut self) -> u8 {
        let sequence = self.next;
        self.next = sequence.wrapping_add(1);
        self.has_answered = true;
        self.begins_result = false;
        sequence
    }

    /// Notes that a whole result was sent and another follows. Its first packet has the id of the compressed
    /// packet that it begins, because servers flush after each result (`net_flush`). Some clients rely on
    /// this (mysql_common) and reject ids that simply count on as out of order.
    pub fn end_result(&mut self) {
        self.begins_result = true;
    }
}

/// Finds where packets begin in a stream of bytes, however it is split.
#[derive(Clone, Debug, Default)]
struct Boundaries {
    /// Bytes of the header that have passed; 0 within a payload.
    header_seen: usize,
    /// The length, from the header bytes that have passed.
    length: u32,
    /// Bytes of the payload that are still to come.
    left: u32,
    /// Whether the payload continues in the next packet.
    goes_on: bool,
}

impl Boundaries {
    /// Whether the last byte that passed ended a payload, or none has passed yet.
    fn is_between(&self) -> bool {
        self.header_seen == 0 && self.left == 0 && !self.goes_on
    }

    /// The position of the next sequence id in `bytes`; those before `at` have been handled. `None` if there
    /// is no further one. O(1) for each header and each call.
    fn next_id(&mut self, bytes: &[u8], at: &mut usize) -> Option<usize> {
        loop {
            let rest = bytes.get(*at..).unwrap_or_default();
            let skipped = rest.len().min(self.left as usize);
            self.left -= skipped as u32;
            *at += skipped;
            let byte = *bytes.get(*at)?;
            let place = *at;
            *at += 1;
            if self.header_seen < HEADER_BYTES - 1 {
                self.length |= u32::from(byte) << (8 * self.header_seen);
                self.header_seen += 1;
                continue;
            }
            self.left = self.length;
            self.goes_on = self.length as usize == MAX_PAYLOAD_BYTES;
            (self.header_seen, self.length) = (0, 0);
            return Some(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{PacketHeader, write_packets};

    /// Sends content; returns the ids of the compressed packet and of the first packet within.
    fn sent(turns: &mut CompressedTurns, content: &[u8]) -> (u8, u8) {
        let mut numbered = content.to_vec();
        let is_renumbered = turns.is_renumbered(content);
        let sequence = turns.send(content, &mut numbered);
        assert_eq!(is_renumbered, numbered != content);
        (sequence, numbered[3])
    }

    fn ids(stream: &[u8]) -> Vec<u8> {
        let (mut ids, mut at) = (Vec::new(), 0);
        while let Some(header) = stream.get(at..).and_then(<[u8]>::first_chunk::<4>) {
            let header = PacketHeader::parse(*header);
            ids.push(header.sequence);
            at += HEADER_BYTES + header.payload_bytes as usize;
        }
        ids
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = CompressedHeader { payload_bytes: 0x0003_0201, sequence: 4, content_bytes: 0x0007_0605 };
        assert_eq!(header.to_bytes(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(CompressedHeader::parse(header.to_bytes()), header);
    }

    #[test]
    fn packets_within_are_numbered_anew_in_slices_of_every_size() {
        let stream = b"\x03\0\0\x09abc\0\0\0\x09\x01\0\0\x2ax";
        for slice_bytes in 1..=stream.len() {
            let mut turns = CompressedTurns::after_login();
            turns.receive(0).expect("it begins a command");
            let mut read = stream.to_vec();
            read.chunks_mut(slice_bytes).for_each(|slice| turns.received(slice));
            assert_eq!(ids(&read), [0, 1, 2], "slices of {slice_bytes}");
            assert_eq!(sent(&mut turns, b"\x01\0\0\x03\0").0, 1);
        }
    }

    #[test]
    fn what_a_client_sends_behind_an_answer_is_numbered_behind_it() {
        let mut turns = CompressedTurns::after_login();
        turns.receive(0).expect("LOAD DATA LOCAL");
        turns.received(&mut b"\x01\0\0\0x".to_vec());
        // The answer has three packets in one compressed packet.
        assert_eq!(sent(&mut turns, b"\0\0\0\x01\0\0\0\x02\0\0\0\x03").0, 1);
        turns.receive(2).expect("the file");
        // The client counts compressed packets.
        let mut file = b"\x01\0\0\x02a\0\0\0\x03".to_vec();
        turns.received(&mut file);
        assert_eq!(ids(&file), [4, 5]);
        // The answer has the id that a server would give it.
        assert_eq!(sent(&mut turns, b"\0\0\0\x06"), (3, 3));
        assert_eq!(sent(&mut turns, b"\0\0\0\x07"), (4, 4));
        turns.receive(0).expect("the next command");
        turns.received(&mut b"\x01\0\0\0\x0e".to_vec());
        assert_eq!(sent(&mut turns, b"\0\0\0\x01"), (1, 1));
    }

    #[test]
    fn each_command_begins_at_0_whether_the_one_before_has_an_answer_or_not() {
        let mut turns = CompressedTurns::after_login();
        for _ in 0..3 {
            turns.receive(0).expect("as COM_STMT_CLOSE, which has no answer");
            let mut command = b"\x01\0\0\x07\x19".to_vec();
            turns.received(&mut command);
            assert_eq!(ids(&command), [0]);
        }
        assert_eq!(sent(&mut turns, b"\0\0\0\x01").0, 1);
        assert_eq!(sent(&mut turns, b"\0\0\0\x02").0, 2);
        turns.receive(0).expect("the next");
        turns.received(&mut b"\x01\0\0\0\x0e".to_vec());
        assert_eq!(sent(&mut turns, b"\0\0\0\x01").0, 1);
    }

    #[test]
    fn an_id_that_does_not_follow_and_a_command_within_a_packet_are_refused() {
        let mut turns = CompressedTurns::after_login();
        assert_eq!(turns.clone().receive(1), Err(WireError::SequenceId), "nothing was sent before it");
        turns.receive(0).expect("a command");
        turns.received(&mut b"\x09\0\0\0\x03".to_vec());
        assert_eq!(turns.clone().receive(0), Err(WireError::SequenceId), "the packet is not over");
        assert_eq!(turns.clone().receive(2), Err(WireError::SequenceId));
        turns.receive(1).expect("it goes on");
    }

    #[test]
    fn after_255_of_a_long_file_comes_0_and_begins_nothing() {
        let mut turns = CompressedTurns::after_login();
        for sequence in 0..=255 {
            turns.receive(sequence).expect("in order");
            turns.received(&mut b"\0\0\0\0".to_vec());
        }
        turns.receive(0).expect("it goes on");
        let mut packet = b"\x01\0\0\0a\x01\0\0\x01b".to_vec();
        turns.received(&mut packet);
        assert_eq!(ids(&packet), [0, 1]);
        turns.receive(1).expect("it goes on");
        assert_eq!(sent(&mut turns, b"\0\0\0\x02").0, 2);
    }

    #[test]
    fn a_payload_of_several_packets_is_one() {
        let mut stream = Vec::new();
        write_packets(&mut stream, 7, &vec![0; MAX_PAYLOAD_BYTES]);
        let mut turns = CompressedTurns::after_login();
        turns.receive(0).expect("a command");
        let (first, last) = stream.split_at_mut(MAX_PAYLOAD_BYTES + HEADER_BYTES);
        turns.received(first);
        assert_eq!(turns.clone().receive(0), Err(WireError::SequenceId), "its last packet is to come");
        turns.receive(1).expect("it goes on");
        turns.received(last);
        assert_eq!((first[3], last[3]), (0, 1));
        turns.receive(0).expect("it is over");
    }

    /// Sends a result of `packets` packets, with at most `most` of them in each compressed packet. Returns,
    /// for each compressed packet, the ids that a client sees: its own, that of the first packet within, and
    /// that of the last.
    fn result_sent(turns: &mut CompressedTurns, first: u8, packets: usize, most: usize) -> Vec<(u8, u8, u8)> {
        let ids: Vec<u8> = (0..packets).map(|index| first.wrapping_add(index as u8)).collect();
        let mut seen = Vec::new();
        for piece in ids.chunks(most) {
            let mut content: Vec<u8> = piece.iter().flat_map(|id| [1, 0, 0, *id, 0]).collect();
            turns.is_renumbered(&content);
            let sequence = turns.send(&content.clone(), &mut content);
            let within = self::ids(&content);
            seen.push((sequence, within[0], within[within.len() - 1]));
        }
        seen
    }

    /// Observed from mysqld 9.7.4, with zlib and DEPRECATE_EOF, for a text with several results.
    #[test]
    fn each_result_begins_with_the_id_of_its_compressed_packet_as_on_a_server() {
        // SELECT 1; SELECT 2; DO 1; SELECT 3
        let mut turns = CompressedTurns::after_login();
        turns.receive(0).expect("a command");
        turns.received(&mut b"\x01\0\0\0\x03".to_vec());
        let (mut seen, mut first) = (Vec::new(), 1);
        for packets in [4, 4, 1, 4] {
            seen.extend(result_sent(&mut turns, first, packets, 200));
            turns.end_result();
            first += packets as u8;
        }
        assert_eq!(seen, [(1, 1, 4), (2, 2, 5), (3, 3, 3), (4, 4, 7)]);

        // A command in three compressed packets: the answer continues their ids.
        turns.receive(0).expect("a command");
        turns.received(&mut b"\x03\0\0\0\x03".to_vec());
        turns.receive(1).expect("it goes on");
        turns.receive(2).expect("it goes on");
        turns.received(&mut b"ab".to_vec());
        assert_eq!(result_sent(&mut turns, 1, 4, 200), [(3, 3, 6)]);
        turns.end_result();
        assert_eq!(result_sent(&mut turns, 5, 4, 200), [(4, 4, 7)]);

        // A long result, a short one and a long one: ids count on within each. The server puts 130 packets
        // into its first compressed packet, and 127 into the following ones.
        turns.receive(0).expect("a command");
        turns.received(&mut b"\x01\0\0\0\x03".to_vec());
        let head = result_sent(&mut turns, 1, 130, 130);
        let rest = result_sent(&mut turns, 131, 874, 127);
        assert_eq!((head[0], rest[0], rest[1]), ((1, 1, 130), (2, 131, 1), (3, 2, 128)));
        assert_eq!(rest[6].0, 8);
        turns.end_result();
        let first = 131_u8.wrapping_add(874_u16 as u8);
        assert_eq!(result_sent(&mut turns, first, 4, 200), [(9, 9, 12)]);
        turns.end_result();
        let last = result_sent(&mut turns, first.wrapping_add(4), 257, 130);
        assert_eq!(last[..2], [(10, 10, 139), (11, 140, 10)]);

        // LOAD DATA LOCAL of a file in three compressed packets, followed by a result.
        turns.receive(0).expect("a command");
        turns.received(&mut b"\x01\0\0\0\x03".to_vec());
        assert_eq!(result_sent(&mut turns, 1, 1, 1), [(1, 1, 1)]);
        for (sequence, packet) in [(2, &b"\x02\0\0\x021\n"[..]), (3, b"\x02\0\0\x032\n"), (4, b"\0\0\0\x04")]
        {
            turns.receive(sequence).expect("the file");
            turns.received(&mut packet.to_vec());
        }
        assert_eq!(result_sent(&mut turns, 5, 1, 1), [(5, 5, 5)]);
        turns.end_result();
        assert_eq!(result_sent(&mut turns, 6, 4, 200), [(6, 6, 9)]);
    }

    #[test]
    fn what_is_said_unasked_begins_at_0() {
        let mut turns = CompressedTurns::after_login();
        turns.receive(0).expect("a command");
        turns.received(&mut b"\x01\0\0\0\x0e".to_vec());
        assert_eq!(sent(&mut turns, b"\0\0\0\x01").0, 1);
        assert_eq!(sent(&mut turns, b"\x01\0\0\0\xff").0, 0);
    }
}
