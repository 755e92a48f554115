//! Follows whose turn it is to send on a connection, from packet headers alone. With this, Weir can send a
//! client an error before it closes a connection whose login it only relayed.

use crate::compressed::COMPRESSED_HEADER_BYTES;
use crate::packet::{HEADER_BYTES, PacketHeader};

/// `COM_STMT_SEND_LONG_DATA` and `COM_STMT_CLOSE`, which have no answer.
const WITHOUT_ANSWER: [u8; 2] = [0x18, 0x19];

/// The packet that a client expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// None: it is between two commands. An error sent now must have the sequence id 0.
    Between,
    /// The answer to what it has sent, of which nothing has been forwarded. Its first packet has this
    /// sequence id.
    Answer(u8),
}

/// Follows the packets of both sides after a login. Costs a few operations for each packet, and keeps none of
/// their content.
#[derive(Clone, Debug)]
pub struct Turns {
    client: Packets,
    server: Packets,
    /// Whether the server was the last to send.
    is_servers: bool,
    /// The expected sequence id of the next packet.
    next: u8,
    is_compressed: bool,
}

/// The packets of one side, compressed or not.
#[derive(Clone, Copy, Debug)]
struct Packets {
    header: [u8; COMPRESSED_HEADER_BYTES],
    header_bytes: usize,
    /// Bytes of the next header that have been received.
    have: usize,
    /// Bytes of the current payload that are still to come.
    left: u32,
    /// The first byte of the payload.
    first: Option<u8>,
    /// The sequence id of the last packet that began.
    sequence: u8,
    /// Whether its payload continues in the next packet.
    goes_on: bool,
    /// Whether the packet boundaries are known.
    is_known: bool,
}

impl Turns {
    /// Starts after the OK packet of a login. With compression, the packets followed are the compressed ones.
    pub fn new(is_compressed: bool) -> Turns {
        let side = Packets::new(if is_compressed { COMPRESSED_HEADER_BYTES } else { HEADER_BYTES });
        Turns { client: side, server: side, is_servers: true, next: 0, is_compressed }
    }

    /// Reads bytes from the client; `None` if they were relayed without being seen.
    pub fn client_said(&mut self, bytes: Option<&[u8]>) {
        if self.is_servers {
            // A command begins here, so anything before it that was not seen has ended.
            self.client.find();
            self.server.find();
        }
        self.is_servers = false;
        let Turns { client, next, .. } = self;
        client.go_over(bytes, |sequence| {
            let is_right = sequence == 0 || sequence == *next;
            *next = sequence.wrapping_add(1);
            is_right
        });
    }

    /// Reads bytes from the server; `None` if they were relayed without being seen.
    pub fn server_said(&mut self, bytes: Option<&[u8]>) {
        self.is_servers = true;
        let Turns { server, next, .. } = self;
        server.go_over(bytes, |sequence| {
            // The ids start again for the answer to a command that was sent together with the one before.
            let is_right = sequence == *next || sequence == 1;
            *next = sequence.wrapping_add(1);
            is_right
        });
    }

    /// The packet that the client expects next. `None` in the middle of a packet, or if that is unknown: then
    /// an error from Weir would be misread.
    pub fn turn(&self) -> Option<Turn> {
        if !self.client.is_between() || !self.server.is_between() {
            return None;
        }
        let has_no_answer = self.client.sequence == 0
            && !self.is_compressed
            && self.client.first.is_some_and(|command| WITHOUT_ANSWER.contains(&command));
        match self.is_servers || has_no_answer {
            true => Some(Turn::Between),
            // The packet within the compressed packet has a sequence id of its own.
            false if self.is_compressed => None,
            false => Some(Turn::Answer(self.next)),
        }
    }
}

impl Packets {
    fn new(header_bytes: usize) -> Packets {
        Packets {
            header: [0; COMPRESSED_HEADER_BYTES],
            header_bytes,
            have: 0,
            left: 0,
            first: None,
            sequence: 0,
            goes_on: false,
            is_known: true,
        }
    }

    /// Assumes that the next byte begins a packet, if the boundaries are unknown.
    fn find(&mut self) {
        if !self.is_known {
            *self = Packets::new(self.header_bytes);
        }
    }

    fn is_between(&self) -> bool {
        self.is_known && self.have == 0 && self.left == 0 && !self.goes_on
    }

    /// Goes through `bytes`. `begins` receives the sequence id of each packet and returns whether it is
    /// plausible.
    fn go_over(&mut self, bytes: Option<&[u8]>, mut begins: impl FnMut(u8) -> bool) {
        let Some(mut rest) = bytes else {
            self.is_known = false;
            return;
        };
        while let (Some((first, behind)), true) = (rest.split_first(), self.is_known) {
            if self.left > 0 {
                self.first = self.first.or(Some(*first));
                let count = rest.len().min(self.left as usize);
                self.left -= count as u32;
                rest = rest.get(count..).unwrap_or_default();
                continue;
            }
            rest = behind;
            if let Some(place) = self.header.get_mut(self.have) {
                *place = *first;
            }
            self.have += 1;
            if self.have == self.header_bytes {
                let [low, middle, high, sequence, ..] = self.header;
                let header = PacketHeader::parse([low, middle, high, sequence]);
                let goes_on = header.goes_on() && self.header_bytes == HEADER_BYTES;
                (self.have, self.left, self.first) = (0, header.payload_bytes, None);
                (self.sequence, self.goes_on) = (sequence, goes_on);
                self.is_known = begins(sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::write_packets;

    fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_packets(&mut out, sequence, payload);
        out
    }

    #[test]
    fn a_client_is_between_commands_when_the_server_has_spoken_last_and_whole() {
        for size in [1, 2, 3, 5, 100] {
            let mut turns = Turns::new(false);
            assert_eq!(turns.turn(), Some(Turn::Between));
            let query = packet(0, b"\x03SELECT 1");
            query.chunks(size).for_each(|piece| turns.client_said(Some(piece)));
            assert_eq!(turns.turn(), Some(Turn::Answer(1)));
            let answer = [packet(1, b"\x01"), packet(2, b"row"), packet(3, b"")].concat();
            let (most, last) = answer.split_at(answer.len() - 1);
            most.chunks(size).for_each(|piece| turns.server_said(Some(piece)));
            assert_eq!(turns.turn(), None, "a packet is under way");
            turns.server_said(Some(last));
            assert_eq!(turns.turn(), Some(Turn::Between));
        }
    }

    #[test]
    fn what_has_no_answer_leaves_a_client_between_commands() {
        let mut turns = Turns::new(false);
        turns.client_said(Some(&packet(0, b"\x19\x01\0\0\0")));
        assert_eq!(turns.turn(), Some(Turn::Between));
        // A file that a server has asked for may begin with any byte.
        turns.client_said(Some(&packet(0, b"\x03LOAD DATA LOCAL")));
        turns.server_said(Some(&packet(1, b"\xfbname")));
        turns.client_said(Some(&packet(2, b"\x19file")));
        assert_eq!(turns.turn(), Some(Turn::Answer(3)));
    }

    #[test]
    fn what_goes_by_unseen_or_out_of_order_is_not_known_until_the_next_command() {
        for unseen in [None, Some(&packet(7, b"row")[..])] {
            let mut turns = Turns::new(false);
            turns.client_said(Some(&packet(0, b"\x03SELECT 1")));
            turns.server_said(unseen);
            turns.server_said(Some(b"\0\0"));
            assert_eq!(turns.turn(), None);
            turns.client_said(Some(&packet(0, b"\x03SELECT 1")));
            assert_eq!(turns.turn(), Some(Turn::Answer(1)));
            turns.server_said(Some(&packet(1, b"\0")));
            assert_eq!(turns.turn(), Some(Turn::Between));
        }
    }

    #[test]
    fn a_payload_that_goes_on_is_under_way_between_its_packets() {
        let mut turns = Turns::new(false);
        let long = packet(0, &vec![3; (1 << 24) - 1]);
        turns.client_said(long.get(..long.len() - HEADER_BYTES));
        assert_eq!(turns.turn(), None);
        turns.client_said(Some(&[0, 0, 0, 1]));
        assert_eq!(turns.turn(), Some(Turn::Answer(2)));
    }

    #[test]
    fn of_compressed_packets_only_the_end_of_an_answer_is_known() {
        let mut turns = Turns::new(true);
        assert_eq!(turns.turn(), Some(Turn::Between));
        turns.client_said(Some(b"\x05\0\0\0\0\0\0\x01\0\0\0\x0e"));
        assert_eq!(turns.turn(), None);
        turns.server_said(Some(b"\x01\0\0\x01\0\0\0x"));
        assert_eq!(turns.turn(), Some(Turn::Between));
    }
}
