//! Huffman strings, read and written (RFC 7541 §5.2).
//!
//! Decoding looks up eleven bits at a time, which hold one code or two short ones. Ordinary text has codes of
//! five to eight bits; codes longer than eleven bits are rare and take a slower path.

use crate::huffman_codes::CODES;

/// Why a string can't be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A code is invalid, or the padding is wrong.
    Malformed,
    /// The decoded string is longer than the limit.
    TooLong,
}

/// Fewest bytes that `length` bytes of Huffman code can decode to: the longest code has 30 bits, and at most
/// 7 bits are padding.
pub(crate) const fn fewest_decoded_bytes(length: usize) -> usize {
    length.saturating_mul(8).saturating_sub(7) / 30
}

/// Most bytes that `length` bytes of Huffman code can decode to: the shortest code has 5 bits.
const fn most_decoded_bytes(length: usize) -> usize {
    length.saturating_mul(8) / 5
}

/// Bits looked up at once.
const LOOKUP_BITS: u32 = 11;

/// The symbols at the start of the next bits, packed so that one load gives everything: from the lowest bit
/// on, 6 bits for the number of bits used, 2 unused, 8 for eight times the count of symbols, and two symbols.
/// All zero for a code that is longer.
static LOOKUPS: [u32; 1 << LOOKUP_BITS] = lookups();

/// Codes are canonical: those of one length are consecutive numbers in the order of their symbols, and
/// greater than the start of any longer code. One row for each length above [`LOOKUP_BITS`].
struct LongCodes {
    bits: u32,
    /// The first code of that length, left-aligned in 32 bits.
    first: u32,
    /// How many codes there are, and where their symbols begin in [`LONG_SYMBOLS`].
    count: u32,
    start: usize,
}

const LONG_LENGTHS: usize = 15;
const LONG_SYMBOL_COUNT: usize = 175;
static LONG_CODES: ([LongCodes; LONG_LENGTHS], [u16; LONG_SYMBOL_COUNT]) = long_codes();

/// Bytes written at once.
const WRITE_BYTES: usize = 8;

/// Decodes `input` into the start of `out`, and returns the number of decoded bytes, at most `limit`.
///
/// `out` grows to what the string can need, but never beyond `limit` by more than eight bytes; it is not
/// cleared.
pub(crate) fn decode(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<usize, Failure> {
    let room = most_decoded_bytes(input.len()).min(limit) + WRITE_BYTES;
    if out.len() < room {
        out.resize(room, 0);
    }
    let mut reader =
        Reader { window: 0, bits: 0, out: out.get_mut(..room).ok_or(Failure::TooLong)?, count: 0 };
    let mut rest = input;
    while let Some(word) = rest.first_chunk::<8>() {
        let taken = reader.refill(u64::from_be_bytes(*word));
        rest = rest.get(taken..).unwrap_or_default();
        let step = reader.step()?;
        if step.stands_still && step.used <= 56 - LONGEST_CODE_BITS {
            reader.long_code()?;
        }
    }
    reader.finish(rest)?;
    if reader.count <= limit { Ok(reader.count) } else { Err(Failure::TooLong) }
}

struct Reader<'a> {
    /// The next bit is the highest one.
    window: u64,
    /// How many bits of the window are valid; those below are zero, or bits of the input.
    bits: u32,
    out: &'a mut [u8],
    count: usize,
}

impl Reader<'_> {
    /// Takes as many whole bytes of `word` as there is room for, and returns how many. At least 56 bits are
    /// valid afterwards.
    #[inline(always)]
    fn refill(&mut self, word: u64) -> usize {
        self.window |= word >> self.bits;
        let taken = (63 - self.bits) >> 3;
        self.bits |= 56;
        taken as usize
    }

    /// Decodes up to eight symbols. At least 56 bits must be valid.
    #[inline(always)]
    fn step(&mut self) -> Result<Consumed, Failure> {
        // Four lookups use at most 44 bits. The bits used, and eight times the count of symbols, are summed
        // side by side in one number.
        let (mut symbols, mut sums, mut lookup) = (0_u64, 0_u32, 0_u32);
        for _ in 0..4 {
            lookup = LOOKUPS[(self.window >> (64 - LOOKUP_BITS)) as usize];
            symbols |= u64::from(lookup >> 16).wrapping_shl(sums >> 8);
            sums += lookup & 0xffff;
            self.window = self.window.wrapping_shl(lookup);
        }
        let slot = self.out.get_mut(self.count..).and_then(|rest| rest.first_chunk_mut::<WRITE_BYTES>());
        *slot.ok_or(Failure::TooLong)? = symbols.to_le_bytes();
        self.count += (sums >> 11) as usize;
        let used = sums & 0xff;
        self.bits -= used;
        Ok(Consumed { used, stands_still: lookup == 0 })
    }

    /// Decodes one symbol whose code is too long for a lookup, and returns the code's length in bits. All of
    /// its bits must be there.
    #[cold]
    fn long_code(&mut self) -> Result<u32, Failure> {
        let (symbol, used) = long_code(self.window)?;
        *self.out.get_mut(self.count).ok_or(Failure::TooLong)? = symbol;
        self.count += 1;
        self.window <<= used;
        self.bits -= used;
        Ok(used)
    }

    /// Decodes the last bytes, fewer than eight, and checks the padding.
    fn finish(&mut self, rest: &[u8]) -> Result<(), Failure> {
        let mut last = [0xff; 8];
        for (place, &byte) in last.iter_mut().zip(rest) {
            *place = byte;
        }
        // Padding is the start of the end-of-string code, which is all ones. After the last byte there are
        // only ones here, at which the lookups stop.
        let mut word = u64::from_be_bytes(last);
        let mut bits_left = self.bits + 8 * rest.len() as u32;
        loop {
            let taken = self.refill(word);
            word = !(!word << (8 * taken));
            //= https://www.rfc-editor.org/rfc/rfc7541#section-5.2
            //# A padding strictly longer than 7 bits MUST be treated as a decoding
            //# error.  A padding not corresponding to the most significant bits of
            //# the code for the EOS symbol MUST be treated as a decoding error.  A
            //# Huffman-encoded string literal containing the EOS symbol MUST be
            //# treated as a decoding error.
            if bits_left < 8 && self.window == u64::MAX {
                return Ok(());
            }
            let Consumed { mut used, stands_still } = self.step()?;
            let is_padding = used + 8 > bits_left && self.window | u64::MAX >> self.bits == u64::MAX;
            if stands_still && !is_padding && used <= 56 - LONGEST_CODE_BITS {
                used += self.long_code()?;
            }
            // A code that used some of those ones was incomplete.
            bits_left = bits_left.checked_sub(used).ok_or(Failure::Malformed)?;
        }
    }
}

/// Bits of the code of a number sign, and the code.
const NUMBER_SIGN_BITS: u32 = 12;
const NUMBER_SIGN: u64 = 0xffa;

/// Looks for a number sign in a string that arrives in pieces, without decoding it into memory.
#[derive(Debug, Default)]
pub(crate) struct NumberSign {
    /// The lowest bit is the last one.
    window: u64,
    /// How many bits of the window are yet to be decoded.
    bits: u32,
}

impl NumberSign {
    /// Whether there is one in `piece`, or across the boundary before it.
    ///
    /// Finds nothing after an invalid code; the decoder refuses such a string.
    pub(crate) fn is_in(&mut self, piece: &[u8]) -> bool {
        let mut is_found = false;
        for &byte in piece {
            self.window = self.window << 8 | u64::from(byte);
            self.bits += 8;
            if self.bits >= 32 {
                is_found |= self.search();
            }
        }
        is_found | self.search()
    }

    /// Decodes until fewer bits are left than the number sign has, or than the next code has.
    fn search(&mut self) -> bool {
        let mut is_found = false;
        while self.bits >= NUMBER_SIGN_BITS {
            let next = self.window << (64 - self.bits);
            let lookup = LOOKUPS[(next >> (64 - LOOKUP_BITS)) as usize];
            let used = if lookup != 0 {
                lookup & 0x3f
            } else if next >> (64 - NUMBER_SIGN_BITS) == NUMBER_SIGN {
                is_found = true;
                NUMBER_SIGN_BITS
            } else {
                match long_code(next) {
                    Ok((_, used)) if used <= self.bits => used,
                    Ok(_) => break,
                    Err(_) => self.bits,
                }
            };
            self.bits -= used;
        }
        is_found
    }
}

struct Consumed {
    used: u32,
    stands_still: bool,
}

/// Longest code of a symbol, in bits.
const LONGEST_CODE_BITS: u32 = 30;

#[cold]
fn long_code(window: u64) -> Result<(u8, u32), Failure> {
    let next = (window >> 32) as u32;
    let (rows, symbols) = &LONG_CODES;
    for row in rows {
        let offset = next.wrapping_sub(row.first) >> (32 - row.bits);
        if next >= row.first && offset < row.count {
            let symbol = symbols.get(row.start + offset as usize);
            // The end of the string has a code, but it must not occur.
            let symbol = symbol.and_then(|&symbol| u8::try_from(symbol).ok()).ok_or(Failure::Malformed)?;
            return Ok((symbol, row.bits));
        }
    }
    Err(Failure::Malformed)
}

/// Length of `text` in bytes as a Huffman string.
#[inline]
pub(crate) fn encoded_length(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(CODES[usize::from(byte)].1)).sum();
    bits.div_ceil(8)
}

/// Appends `text` as a Huffman string of `coded_length` bytes: see [`encoded_length`].
pub(crate) fn encode(text: &[u8], coded_length: usize, out: &mut Vec<u8>) {
    let mut at = out.len();
    let end = at + coded_length;
    // Makes room for whole words, so that each is written at once.
    out.resize(end + 4, 0);
    let (mut window, mut bits) = (0_u64, 0_u32);
    for &byte in text {
        let (code, length) = CODES[usize::from(byte)];
        // At most 31 bits are pending, and a code has at most 30.
        window = window << length | u64::from(code);
        bits += u32::from(length);
        if bits >= 32 {
            bits -= 32;
            put(out, at, (window >> bits) as u32);
            at += 4;
        }
    }
    if bits > 0 {
        put(out, at, (window << (32 - bits)) as u32 | u32::MAX >> bits);
    }
    out.truncate(end);
}

#[inline(always)]
fn put(out: &mut [u8], at: usize, word: u32) {
    if let Some(room) = out.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) {
        *room = word.to_be_bytes();
    }
}

const fn lookups() -> [u32; 1 << LOOKUP_BITS] {
    let mut table = [0; 1 << LOOKUP_BITS];
    let mut index = 0;
    while index < table.len() {
        if let Some((first, used)) = code_at(index, LOOKUP_BITS) {
            table[index] = (first as u32) << 16 | 8 << 8 | used;
            if let Some((second, more)) = code_at(index, LOOKUP_BITS - used) {
                table[index] = (second as u32) << 24 | (first as u32) << 16 | 16 << 8 | (used + more);
            }
        }
        index += 1;
    }
    table
}

/// The symbol and length of the code at the start of the low `bits` bits of `index`, if it is complete.
const fn code_at(index: usize, bits: u32) -> Option<(u8, u32)> {
    let mut symbol = 0;
    while symbol < 256 {
        let (code, length) = CODES[symbol];
        let length = length as u32;
        if length <= bits && (index & ((1 << bits) - 1)) >> (bits - length) == code as usize {
            return Some((symbol as u8, length));
        }
        symbol += 1;
    }
    None
}

const fn long_codes() -> ([LongCodes; LONG_LENGTHS], [u16; LONG_SYMBOL_COUNT]) {
    let mut rows = [const { LongCodes { bits: 0, first: 0, count: 0, start: 0 } }; LONG_LENGTHS];
    let mut symbols = [0; LONG_SYMBOL_COUNT];
    let (mut row, mut filled, mut bits) = (0, 0, LOOKUP_BITS + 1);
    while bits <= 30 {
        let start = filled;
        let mut symbol = 0;
        while symbol < CODES.len() {
            if CODES[symbol].1 as u32 == bits {
                symbols[filled] = symbol as u16;
                filled += 1;
            }
            symbol += 1;
        }
        if filled > start {
            let first = CODES[symbols[start] as usize].0 << (32 - bits);
            rows[row] = LongCodes { bits, first, count: (filled - start) as u32, start };
            row += 1;
        }
        bits += 1;
    }
    assert!(row == LONG_LENGTHS && filled == LONG_SYMBOL_COUNT, "the long codes are counted wrongly");
    (rows, symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn decoded(input: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::new();
        let count = decode(input, usize::MAX - 8, &mut out)?;
        out.truncate(count);
        Ok(out)
    }

    #[test]
    fn the_examples_of_rfc_7541_hold_both_ways() {
        // RFC 7541 §C.4 and §C.6.
        for (text, code) in [
            ("www.example.com", "f1e3 c2e5 f23a 6ba0 ab90 f4ff"),
            ("no-cache", "a8eb 1064 9cbf"),
            ("custom-key", "25a8 49e9 5ba9 7d7f"),
            ("custom-value", "25a8 49e9 5bb8 e8b4 bf"),
            ("302", "6402"),
            ("private", "aec3 771a 4b"),
            ("Mon, 21 Oct 2013 20:13:21 GMT", "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff"),
            ("https://www.example.com", "9d29 ad17 1863 c78f 0b97 c8e9 ae82 ae43 d3"),
            ("307", "640e ff"),
            ("gzip", "9bd9 ab"),
            (
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
                "94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
            ),
        ] {
            let code = hex(code);
            assert_eq!(decoded(&code).as_deref(), Ok(text.as_bytes()));
            let mut out = Vec::new();
            encode(text.as_bytes(), encoded_length(text.as_bytes()), &mut out);
            assert_eq!(out, code);
        }
    }

    #[test]
    fn every_byte_comes_back_behind_and_before_every_other() {
        for first in 0..=255 {
            for second in 0..=255 {
                let text = [first, second, first, b'a', second];
                let mut out = Vec::new();
                encode(&text, encoded_length(&text), &mut out);
                assert_eq!(decoded(&out).as_deref(), Ok(&text[..]));
            }
        }
    }

    #[test]
    fn padding_is_at_most_seven_ones_and_the_end_is_never_said() {
        assert_eq!(decoded(b""), Ok(vec![]));
        // `a` is 00011; three bits pad.
        assert_eq!(decoded(&[0b0001_1111]), Ok(b"a".to_vec()));
        assert_eq!(decoded(&[0b0001_1110]), Err(Failure::Malformed));
        assert_eq!(decoded(&[0b0001_1111, 0xff]), Err(Failure::Malformed));
        assert_eq!(decoded(&[0xff]), Err(Failure::Malformed));
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xfc]), Err(Failure::Malformed));
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(Failure::Malformed));
        assert_eq!(decoded(&[0xff; 9]), Err(Failure::Malformed));
    }

    #[test]
    fn a_string_over_its_limit_is_refused_and_takes_no_room_beyond_it() {
        let mut code = Vec::new();
        encode(&[b'0'; 100], 63, &mut code);
        let mut out = Vec::new();
        assert_eq!(decode(&code, 100, &mut out), Ok(100));
        assert_eq!(decode(&code, 99, &mut out), Err(Failure::TooLong));
        assert_eq!(out.len(), 108);
        out = Vec::new();
        assert_eq!(decode(&[0; 4096], 10, &mut out), Err(Failure::TooLong));
        assert_eq!(out.len(), 18);
        for length in 0..200 {
            assert!(fewest_decoded_bytes(length) <= most_decoded_bytes(length));
        }
    }
}
