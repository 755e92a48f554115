//! Finds out what the `h2` crate does not tell about HTTP/2 field blocks (RFC 7541).
//!
//! The crate decodes a block, cuts a fragment off `:path` together with everything after it, and drops
//! pseudo-headers from trailers. Both make a request malformed (RFC 9113 §8.3.1, §8.1), but the crate does
//! not report it. So this module parses the blocks as well, as far as those two questions require: how each
//! field is represented, and the text of what may be `:path`.
//!
//! Nothing is decoded into memory. It keeps one byte for each entry of the dynamic table. It need not track
//! sizes and evictions, because an index counts insertions, and a reference to an evicted entry ends the
//! connection.

use crate::huffman::NumberSign;

/// Entries of the static table (RFC 7541 appendix A); those of the dynamic table follow.
const STATIC_ENTRIES: u32 = 61;
/// The last entry of the static table that is a pseudo-header.
const LAST_PSEUDO: u32 = 14;
/// The first and the last entry of the static table whose name is `:path`.
const FIRST_PATH: u32 = 4;
const LAST_PATH: u32 = 5;
/// Most bytes of an integer after its first; longer integers end the connection.
const INTEGER_BYTES: u32 = 4;

const PATH: &[u8] = b":path";
/// [`PATH`] as a Huffman string.
const CODED_PATH: &[u8] = &[0xb9, 0x58, 0xd3, 0x3f];
/// The code of a colon, which begins the names of pseudo-headers, in the upper seven bits.
const CODED_COLON: u8 = 0x5c << 1;

/// Bits of what is recorded about a field.
mod of {
    /// It is a pseudo-header.
    pub(super) const PSEUDO: u8 = 1;
    /// Its name is `:path`.
    pub(super) const PATH: u8 = 2;
    /// It is a `:path` with a number sign.
    pub(super) const FRAGMENT: u8 = 4;
    /// The bits that also hold for other fields with the same name.
    pub(super) const NAME: u8 = PSEUDO | PATH;
}

/// Parser for all field blocks of one connection, in their order: each changes the table that later ones
/// refer to.
#[derive(Debug)]
pub struct FieldBlocks {
    table: Table,
    next: NextByte,
    /// Bits of the current field, and whether it goes into the table.
    field: u8,
    is_inserted: bool,
    /// The current integer, and the number of its bytes after the first so far.
    integer: u32,
    integer_bytes: u32,
    text: Text,
    findings: u8,
}

/// What was found in a field block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// A pseudo-header.
    pub has_pseudo_header: bool,
    /// A `:path` with a number sign, which would begin a fragment.
    pub has_fragment: bool,
}

/// Entries that the table can have: as many as fit into the 4,096 bytes that every client may use by default
/// (RFC 9113 §6.5.2), at 32 bytes each besides its text.
const ENTRIES: usize = 4096 / 32;

/// What is recorded about the fields in the dynamic table.
#[derive(Debug)]
struct Table {
    entries: [u8; ENTRIES],
    /// Position of the newest entry; older ones follow.
    newest: usize,
}

/// Meaning of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextByte {
    /// The first of a field.
    Field,
    /// The next of an integer with this meaning.
    Integer(Of),
    /// The first of a string, which begins its length.
    Length(Part),
    /// Part of a string.
    Text,
    /// Ignored: the block is malformed, which ends the connection.
    Broken,
}

/// Meaning of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The index of a whole field.
    Field,
    /// The index of a name, or 0.
    Name,
    /// The size of the table.
    Size,
    /// The length of a string.
    Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Name,
    Value,
}

/// The current string.
#[derive(Debug)]
struct Text {
    part: Part,
    is_coded: bool,
    /// Total number of bytes, and how many are still to come.
    bytes: usize,
    left: usize,
    /// The first bytes of a name.
    start: [u8; PATH.len()],
    search: NumberSign,
}

impl Default for FieldBlocks {
    fn default() -> FieldBlocks {
        let text = Text {
            part: Part::Name,
            is_coded: false,
            bytes: 0,
            left: 0,
            start: Default::default(),
            search: NumberSign::default(),
        };
        FieldBlocks {
            table: Table { entries: [0; ENTRIES], newest: 0 },
            next: NextByte::Field,
            field: 0,
            is_inserted: false,
            integer: 0,
            integer_bytes: 0,
            text,
            findings: 0,
        }
    }
}

impl FieldBlocks {
    /// Parses the next bytes of a block.
    ///
    /// Malformed input is skipped, as it ends the connection anyway. Takes some nanoseconds for a field, and
    /// one for each byte of a `:path` that is not in the table; allocates nothing.
    pub fn read(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            match self.next {
                NextByte::Text => {
                    let (piece, behind) = bytes.split_at(self.text.left.min(bytes.len()));
                    bytes = behind;
                    self.read_text(piece);
                    continue;
                }
                NextByte::Field => self.begin_field(first),
                NextByte::Integer(of) => self.go_on_with_integer(of, first),
                NextByte::Length(part) => {
                    self.text.part = part;
                    self.text.is_coded = first & 0x80 != 0;
                    self.begin_integer(Of::Length, first, 0x7f);
                }
                NextByte::Broken => return,
            }
            bytes = rest;
        }
    }

    /// Call this at the end of a block; returns what it contained.
    pub fn end(&mut self) -> Findings {
        self.next = NextByte::Field;
        let findings = std::mem::take(&mut self.findings);
        Findings { has_pseudo_header: findings & of::PSEUDO != 0, has_fragment: findings & of::FRAGMENT != 0 }
    }

    #[inline]
    fn begin_field(&mut self, first: u8) {
        self.field = 0;
        self.is_inserted = first & 0xc0 == 0x40;
        match first {
            0x80.. => self.begin_integer(Of::Field, first, 0x7f),
            0x40.. => self.begin_integer(Of::Name, first, 0x3f),
            0x20.. => self.begin_integer(Of::Size, first, 0x1f),
            _ => self.begin_integer(Of::Name, first, 0x0f),
        }
    }

    #[inline]
    fn begin_integer(&mut self, of: Of, first: u8, mask: u8) {
        self.integer = u32::from(first & mask);
        self.integer_bytes = 0;
        if first & mask == mask {
            self.next = NextByte::Integer(of);
        } else {
            self.end_integer(of);
        }
    }

    fn go_on_with_integer(&mut self, of: Of, byte: u8) {
        self.integer += u32::from(byte & 0x7f) << (7 * self.integer_bytes);
        self.integer_bytes += 1;
        if byte & 0x80 == 0 {
            self.end_integer(of);
        } else if self.integer_bytes == INTEGER_BYTES {
            self.next = NextByte::Broken;
        }
    }

    #[inline]
    fn end_integer(&mut self, of: Of) {
        match of {
            Of::Field => {
                self.field = self.table.entry(self.integer);
                self.end_field();
            }
            Of::Name if self.integer == 0 => self.next = NextByte::Length(Part::Name),
            Of::Name => {
                self.field = self.table.entry(self.integer) & of::NAME;
                self.next = NextByte::Length(Part::Value);
            }
            Of::Size => self.next = NextByte::Field,
            Of::Length => {
                self.text.bytes = self.integer as usize;
                self.text.left = self.text.bytes;
                self.text.search = NumberSign::default();
                if self.integer == 0 { self.end_text() } else { self.next = NextByte::Text }
            }
        }
    }

    #[inline]
    fn read_text(&mut self, piece: &[u8]) {
        let text = &mut self.text;
        let has_number_sign = match text.part {
            Part::Name => {
                let start = text.start.iter_mut().skip(text.bytes - text.left);
                start.zip(piece).for_each(|(kept, byte)| *kept = *byte);
                false
            }
            Part::Value if self.field & of::PATH == 0 => false,
            Part::Value if text.is_coded => text.search.is_in(piece),
            Part::Value => piece.contains(&b'#'),
        };
        if has_number_sign {
            self.field |= of::FRAGMENT;
        }
        text.left -= piece.len();
        if text.left == 0 {
            self.end_text();
        }
    }

    #[inline]
    fn end_text(&mut self) {
        let text = &self.text;
        if text.part == Part::Value {
            return self.end_field();
        }
        let path = if text.is_coded { CODED_PATH } else { PATH };
        let is_pseudo = match text.is_coded {
            true => text.start[0] & 0xfe == CODED_COLON,
            false => text.start[0] == b':',
        };
        if is_pseudo && text.bytes > 0 {
            let is_path = text.bytes == path.len() && text.start.starts_with(path);
            self.field = of::PSEUDO | if is_path { of::PATH } else { 0 };
        }
        self.next = NextByte::Length(Part::Value);
    }

    #[inline]
    fn end_field(&mut self) {
        if self.is_inserted {
            self.table.insert(self.field);
        }
        self.findings |= self.field;
        self.next = NextByte::Field;
    }
}

impl Table {
    /// What is recorded about the field that `index` refers to.
    #[inline]
    fn entry(&self, index: u32) -> u8 {
        let Some(age) = index.checked_sub(STATIC_ENTRIES + 1) else {
            return match index {
                FIRST_PATH..=LAST_PATH => of::NAME,
                1..=LAST_PSEUDO => of::PSEUDO,
                _ => 0,
            };
        };
        // A reference to an entry that does not exist ends the connection.
        self.entries[(self.newest + age as usize) % ENTRIES]
    }

    #[inline]
    fn insert(&mut self, field: u8) {
        self.newest = (self.newest + ENTRIES - 1) % ENTRIES;
        self.entries[self.newest] = field;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::huffman;

    /// A client's encoder: every way to write a field, as `way` says, with a table that forgets as the law
    /// wants it to.
    #[derive(Default)]
    struct Encoder {
        table: Vec<(Vec<u8>, Vec<u8>)>,
    }

    const TABLE_BYTES: usize = 4096;
    const STATIC: [(&[u8], &[u8]); 6] = [
        (b":authority", b""),
        (b":method", b"GET"),
        (b":method", b"POST"),
        (b":path", b"/"),
        (b":path", b"/index.html"),
        (b":scheme", b"http"),
    ];

    impl Encoder {
        fn index_of(&self, wanted: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
            let known = STATIC.iter().position(|(name, value)| wanted(name, value)).map(|at| at + 1);
            let found = self.table.iter().rposition(|(name, value)| wanted(name, value));
            known.or(found.map(|at| self.table.len() - at + STATIC_ENTRIES as usize))
        }

        fn write(&mut self, name: &[u8], value: &[u8], way: u8, out: &mut Vec<u8>) {
            if way & 1 == 1
                && let Some(index) = self.index_of(|old_name, old| (old_name, old) == (name, value))
            {
                return integer(0x80, 7, index, out);
            }
            let inserts = way & 2 == 2;
            let (first, bits) = if inserts { (0x40, 6) } else { (0x10 * (way >> 2 & 1), 4) };
            let index = self.index_of(|old_name, _| old_name == name).filter(|_| way & 8 == 8);
            integer(first, bits, index.unwrap_or(0), out);
            if index.is_none() {
                string(name, way & 16 == 16, out);
            }
            string(value, way & 32 == 32, out);
            if inserts {
                self.table.push((name.to_vec(), value.to_vec()));
                let size = |table: &[(Vec<u8>, Vec<u8>)]| -> usize {
                    table.iter().map(|(name, value)| name.len() + value.len() + 32).sum()
                };
                while size(&self.table) > TABLE_BYTES {
                    self.table.remove(0);
                }
            }
        }
    }

    fn integer(first: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
        let most = (1 << bits) - 1;
        if value < most {
            return out.push(first | value as u8);
        }
        out.push(first | most as u8);
        let mut rest = value - most;
        while rest >= 128 {
            out.push(rest as u8 | 128);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn string(text: &[u8], is_coded: bool, out: &mut Vec<u8>) {
        if !is_coded {
            integer(0, 7, text.len(), out);
            return out.extend_from_slice(text);
        }
        let length = huffman::encoded_length(text);
        integer(0x80, 7, length, out);
        huffman::encode(text, length, out);
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        let any = proptest::collection::vec(any::<u8>(), 0..40);
        let of_paths = proptest::collection::vec(proptest::sample::select(&b"/ab#?%&=9 ~"[..]), 0..300);
        prop_oneof![any, of_paths]
    }

    fn name() -> impl Strategy<Value = Vec<u8>> {
        let known = [
            &b":path"[..],
            b":method",
            b":authority",
            b":status",
            b"host",
            b"x",
            b"path",
            b":pat",
            b":paths",
        ];
        let known = proptest::sample::select(known.map(<[u8]>::to_vec).to_vec());
        prop_oneof![4 => known, 1 => text()]
    }

    proptest! {
        #[test]
        fn what_blocks_have_is_found_however_they_are_written_and_cut(
            blocks in proptest::collection::vec(proptest::collection::vec((name(), text(), any::<u8>()), 0..12), 1..20),
            cut in 1_usize..50,
        ) {
            let (mut encoder, mut reader) = (Encoder::default(), FieldBlocks::default());
            for fields in blocks {
                let mut block = Vec::new();
                for (name, value, way) in &fields {
                    encoder.write(name, value, *way, &mut block);
                }
                block.chunks(cut).for_each(|piece| reader.read(piece));
                let expected = Findings {
                    has_pseudo_header: fields.iter().any(|(name, ..)| name.starts_with(b":")),
                    has_fragment: fields.iter().any(|(name, value, _)| name == PATH && value.contains(&b'#')),
                };
                prop_assert_eq!(reader.end(), expected);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(blocks in proptest::collection::vec(any::<Vec<u8>>(), 0..8)) {
            let mut reader = FieldBlocks::default();
            for block in blocks {
                reader.read(&block);
                reader.end();
            }
        }
    }

    #[test]
    fn an_integer_without_an_end_breaks_its_block_and_no_other() {
        let mut reader = FieldBlocks::default();
        reader.read(&[0xff; 100]);
        reader.read(&[0x84]);
        assert_eq!(reader.end(), Findings::default());
        reader.read(&[0x84]);
        assert!(reader.end().has_pseudo_header);
    }
}
