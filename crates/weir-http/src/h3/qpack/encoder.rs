//! Encodes fields into field sections, with the static table and literals only (RFC 9204 §4.5).
//!
//! Weir's encoder inserts nothing, which RFC 9204 §2.1 permits: sections never refer to something that may be
//! lost, no stream of a client has to wait for another, and nothing is kept for a client that does not
//! acknowledge.

use std::borrow::BorrowMut;

use super::integer;
use super::static_table::{self, Match};
use crate::h3::varint;
use crate::huffman;

/// Length of the frame header that [`SectionWriter`] leaves room for: a type, and a length of two bytes.
const HEADER_BYTES: usize = 3;
/// Longest payload whose length fits into two bytes.
const SHORT_PAYLOAD_BYTES: usize = 0x3fff;

/// Writes one HEADERS frame: [`new`](Self::new), then the fields, pseudo-headers first, then
/// [`finish`](Self::finish).
///
/// ```
/// use weir_http::h3::SectionWriter;
///
/// let mut out = Vec::new();
/// let mut head = SectionWriter::new(&mut out);
/// head.status(200);
/// head.field(b"content-length", b"13");
/// head.finish();
/// // HEADERS of 7 bytes: prefix, `:status: 200`, the name `content-length` and its value as it is.
/// assert_eq!(out, b"\x01\x40\x07\0\0\xd9\x54\x0213");
/// ```
#[derive(Debug)]
#[must_use = "the frame has no length before `finish`"]
pub struct SectionWriter<B> {
    out: B,
    start: usize,
}

impl<B: BorrowMut<Vec<u8>>> SectionWriter<B> {
    /// Begins the frame at the end of `out`, which is an owned or borrowed vector.
    #[inline]
    pub fn new(mut out: B) -> SectionWriter<B> {
        let start = out.borrow().len();
        // The length is filled in at the end. The prefix follows: no insertions are required, and the base is
        // 0.
        out.borrow_mut().extend_from_slice(&[0x01, 0x40, 0x00, 0x00, 0x00]);
        SectionWriter { out, start }
    }

    /// Writes `:status`; `status` has three digits.
    #[inline]
    pub fn status(&mut self, status: u16) {
        let index = match status {
            200 => 25,
            304 => 26,
            404 => 27,
            503 => 28,
            204 => 64,
            206 => 65,
            302 => 66,
            _ => {
                let digits =
                    [status / 100 % 10, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
                return self.field(b":status", &digits);
            }
        };
        integer::write(self.out.borrow_mut(), 0xc0, 6, index);
    }

    /// Writes a field. The name is written in lower case, as HTTP/3 requires; the caller has checked that it
    /// is a token.
    ///
    /// `authorization`, `cookie` and `set-cookie` are marked as never to be inserted into a table (RFC 9204
    /// §7.1.3).
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match static_table::find(name, value) {
            Match::Field(index) => integer::write(self.out.borrow_mut(), 0xc0, 6, u64::from(index)),
            Match::Name(index) => {
                let never_indexed = if matches!(index, 5 | 14 | 84) { 0x20 } else { 0 };
                integer::write(self.out.borrow_mut(), 0x50 | never_indexed, 4, u64::from(index));
                self.text(0x00, 7, value);
            }
            Match::Nothing => self.literal(0x20, name, value),
        }
    }

    fn literal(&mut self, flags: u8, name: &[u8], value: &[u8]) {
        if name.iter().any(u8::is_ascii_uppercase) {
            self.text(flags, 3, &name.to_ascii_lowercase());
        } else {
            self.text(flags, 3, name);
        }
        self.text(0x00, 7, value);
    }

    /// Writes a string, Huffman-coded if that makes it shorter.
    #[inline]
    fn text(&mut self, flags: u8, prefix_bits: u32, text: &[u8]) {
        let coded_length = huffman::encoded_length(text);
        if coded_length < text.len() {
            integer::write(self.out.borrow_mut(), flags | 1 << prefix_bits, prefix_bits, coded_length as u64);
            huffman::encode(text, coded_length, self.out.borrow_mut());
        } else {
            integer::write(self.out.borrow_mut(), flags, prefix_bits, text.len() as u64);
            self.out.borrow_mut().extend_from_slice(text);
        }
    }

    /// Ends the frame; returns its length in bytes.
    pub fn finish(mut self) -> usize {
        self.close();
        self.out.borrow().len() - self.start
    }

    /// Ends the frame and returns the vector it was written to.
    pub fn into_out(mut self) -> B {
        self.close();
        self.out
    }

    fn close(&mut self) {
        let out = self.out.borrow_mut();
        let payload = out.len() - self.start - HEADER_BYTES;
        if payload <= SHORT_PAYLOAD_BYTES {
            let length = (payload as u16 | 0x4000).to_be_bytes();
            if let Some(room) = out.get_mut(self.start + 1..self.start + HEADER_BYTES) {
                room.copy_from_slice(&length);
            }
        } else {
            let mut length = Vec::new();
            varint::write(&mut length, payload as u64);
            out.splice(self.start + 1..self.start + HEADER_BYTES, length);
        }
    }
}
