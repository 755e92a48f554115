//! Inserts the EOF packets that older clients expect into the answers of servers that send none.
//!
//! An EOF packet has no session state information; the OK packet that replaces it does. So Weir always uses
//! [`Capabilities::DEPRECATE_EOF`](crate::capability::Capabilities::DEPRECATE_EOF) with its servers. For a
//! client without that flag, Weir inserts an EOF packet after the definitions of columns and parameters, and
//! replaces the OK packet that ends rows by an EOF packet. Each inserted packet shifts the sequence ids of
//! all later packets of the answer.

use crate::capability::StatusFlags;
use crate::outcome::{EOF, ERR, EofPacket, OkPacket};
use crate::packet::{HEADER_BYTES, MAX_PAYLOAD_BYTES, PacketHeader, write_packet_with};

/// Most bytes of an OK packet up to and including its warnings.
const MOST_NUMBERS: usize = 1 + 9 + 9 + 2 + 2;

/// How far sequence ids are shifted because packets were inserted before them. Adjusts the ids in the bytes
/// that are forwarded, however those are split.
#[derive(Clone, Debug, Default)]
pub struct SequenceShift {
    added: u8,
    /// Bytes of payload still to come of the last packet whose header was seen.
    left: usize,
}

impl SequenceShift {
    /// Inserted packets (count, modulo 256).
    pub fn added(&self) -> u8 {
        self.added
    }

    /// Counts one more inserted packet. The next bytes must begin a packet.
    pub fn add(&mut self) {
        self.added = self.added.wrapping_add(1);
    }

    /// The reverse shift, for packets that the other side sends in the middle of the answer.
    pub fn back(&self) -> SequenceShift {
        SequenceShift { added: self.added.wrapping_neg(), left: 0 }
    }

    /// Shifts the sequence ids of the packets that begin in `bytes`. These must continue the bytes of the
    /// previous call, and must not end within a header. O(packets).
    pub fn apply(&mut self, bytes: &mut [u8]) {
        if self.added == 0 {
            return;
        }
        let mut at = self.left;
        while let Some(header) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<HEADER_BYTES>) {
            let PacketHeader { payload_bytes, sequence } = PacketHeader::parse(*header);
            *header = PacketHeader { payload_bytes, sequence: sequence.wrapping_add(self.added) }.to_bytes();
            at += HEADER_BYTES + payload_bytes as usize;
        }
        self.left = at.saturating_sub(bytes.len());
    }
}

/// The status of the EOF packet that replaces a server's OK packet with this status.
pub fn status_of(ok: StatusFlags) -> StatusFlags {
    StatusFlags(ok.0 & !StatusFlags::SESSION_STATE_CHANGED.0)
}

/// An EOF packet, with its header.
pub fn packet(sequence: u8, status: StatusFlags, warnings: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + EofPacket::BYTES);
    write_packet_with(&mut out, sequence, |out| EofPacket { warnings, status: status_of(status) }.write(out));
    out
}

/// Whether the next packet, after the columns, says that rows must be fetched from a cursor. Then the only
/// EOF packet of the answer comes after the columns and ends it. If a cursor `is_asked` for, an error here
/// counts as yes, too: no EOF packet comes before it. `None` if too little of the packet is available.
pub fn opens_cursor(input: &[u8], is_asked: bool) -> Option<bool> {
    let (header, payload) = input.split_first_chunk()?;
    let payload_bytes = PacketHeader::parse(*header).payload_bytes as usize;
    let first = *payload.first()?;
    if is_asked && first == ERR {
        return Some(true);
    }
    if first != EOF || payload_bytes >= MAX_PAYLOAD_BYTES {
        return Some(false);
    }
    let whole_bytes = payload_bytes.min(MOST_NUMBERS);
    let numbers = payload.get(..whole_bytes)?;
    Some(OkPacket::parse_beginning(numbers).is_ok_and(|ok| ok.status.has(StatusFlags::CURSOR_EXISTS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::Capabilities;
    use crate::outcome::OK;
    use crate::packet::write_packets;

    #[test]
    fn sequence_ids_are_moved_wherever_the_bytes_are_cut_but_within_headers() {
        let (mut bytes, mut moved, mut headers) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, length) in [(253_u8, 3_usize), (254, 0), (255, 300), (0, 1)] {
            headers.push(bytes.len());
            write_packets(&mut bytes, sequence, &vec![7; length]);
            write_packets(&mut moved, sequence.wrapping_add(2), &vec![7; length]);
        }
        let is_cut =
            |at: usize| !headers.iter().any(|header| (header + 1..header + HEADER_BYTES).contains(&at));
        for first in (0..=bytes.len()).filter(|at| is_cut(*at)) {
            for second in (first..=bytes.len()).filter(|at| is_cut(*at)) {
                let mut shift = SequenceShift::default();
                shift.add();
                shift.add();
                let mut changed = bytes.clone();
                let (one, rest) = changed.split_at_mut(first);
                let (two, three) = rest.split_at_mut(second - first);
                [one, two, three].into_iter().for_each(|piece| shift.apply(piece));
                assert_eq!(changed, moved, "cut at {first} and {second}");
                shift.back().apply(&mut changed);
                assert_eq!(changed, bytes);
            }
        }
    }

    #[test]
    fn each_packet_of_a_long_payload_is_moved() {
        let (payload, mut bytes, mut moved) = (vec![7; MAX_PAYLOAD_BYTES + 5], Vec::new(), Vec::new());
        write_packets(&mut bytes, 4, &payload);
        write_packets(&mut moved, 5, &payload);
        let mut shift = SequenceShift::default();
        shift.add();
        for piece in bytes.chunks_mut(MAX_PAYLOAD_BYTES - 1) {
            shift.apply(piece);
        }
        assert!(bytes == moved);
    }

    #[test]
    fn nothing_is_changed_where_nothing_was_put_in() {
        let mut bytes = *b"\x01\0\0\x05a";
        SequenceShift::default().apply(&mut bytes);
        assert_eq!(bytes, *b"\x01\0\0\x05a");
    }

    #[test]
    fn an_eof_packet_says_nothing_of_changes() {
        assert_eq!(packet(7, StatusFlags(0x4022), 3), b"\x05\0\0\x07\xfe\x03\0\x22\0");
    }

    #[test]
    fn a_cursor_is_told_from_rows_as_soon_as_enough_is_here() {
        let end = |status: u16| {
            let mut out = Vec::new();
            write_packet_with(&mut out, 4, |out| {
                let ok = OkPacket { info: b"text", ..OkPacket::of(StatusFlags(status)) };
                ok.write(out, EOF, Capabilities::NONE);
            });
            out
        };
        let (cursor, rows) = (end(0x42), end(2));
        assert_eq!((opens_cursor(&cursor, false), opens_cursor(&rows, false)), (Some(true), Some(false)));
        for cut in 0..cursor.len() {
            assert_ne!(opens_cursor(&cursor[..cut], false), Some(false), "cut at {cut}");
        }
        assert_eq!(opens_cursor(b"\x05\0\0\x04\x01", false), Some(false), "a row");
        assert_eq!(opens_cursor(b"\x05\0\0\x04\xff", false), Some(false), "an error");
        assert_eq!(opens_cursor(b"\x05\0\0\x04\xff", true), Some(true), "an error before the cursor is open");
        assert_eq!(opens_cursor(&[5, 0, 0, 4, OK], false), Some(false), "a row in binary");
        assert_eq!(
            opens_cursor(b"\xff\xff\xff\x04\xfe", false),
            Some(false),
            "a row whose first value is long"
        );
        assert_eq!(opens_cursor(b"\x02\0\0\x04\xfe\0", false), Some(false), "it is the reader's to refuse");
    }
}
