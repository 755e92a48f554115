//! Huffman strings, read and written (RFC 7541 §5.2).
//!
//! Reading looks ten bits up at a time: they hold one code, or two of the shortest. What texts are made of has codes of
//! five to eight bits; codes above ten bits are rare and take a longer way.

use super::huffman_codes::CODES;

/// Why a string is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No code, or wrong padding.
    Malformed,
    /// It has more bytes than there is room for.
    TooLong,
}

/// Fewest bytes that `length` bytes of Huffman code can stand for: the longest code has 30 bits, and at most 7 pad.
pub(super) const fn fewest_decoded_bytes(length: usize) -> usize {
    length.saturating_mul(8).saturating_sub(7) / 30
}

/// Most bytes that `length` bytes of Huffman code can stand for: the shortest code has 5 bits.
const fn most_decoded_bytes(length: usize) -> usize {
    length.saturating_mul(8) / 5
}

/// Bits looked up at once.
const LOOKUP_BITS: u32 = 10;

/// What the next ten bits begin with.
#[derive(Clone, Copy)]
struct Lookup {
    symbols: [u8; 2],
    /// Symbols that are whole within the ten bits; 0 for a longer code.
    count: u8,
    /// Bits of the first symbol, and of all.
    first_bits: u8,
    bits: u8,
}

static LOOKUPS: [Lookup; 1 << LOOKUP_BITS] = lookups();

/// Codes are canonical: those of one length are consecutive numbers in the order of their symbols, and larger than the
/// start of any longer one. One row per length above ten bits.
struct LongCodes {
    bits: u32,
    /// The first code of that length, left-aligned in 32 bits.
    first: u32,
    /// How many there are, and where their symbols begin in [`LONG_SYMBOLS`].
    count: u32,
    start: usize,
}

const LONG_LENGTHS: usize = 16;
const LONG_SYMBOL_COUNT: usize = 178;
static LONG_CODES: ([LongCodes; LONG_LENGTHS], [u16; LONG_SYMBOL_COUNT]) = long_codes();

/// Reads `input` into the start of `out`, and says how many bytes it stands for, of which there may be at most `limit`.
///
/// `out` grows to what the string can need, never beyond `limit` by more than two bytes, and is not cleared.
pub(super) fn decode(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<usize, Failure> {
    let room = most_decoded_bytes(input.len()).min(limit) + 2;
    if out.len() < room {
        out.resize(room, 0);
    }
    let out = out.get_mut(..room).ok_or(Failure::TooLong)?;
    // The next bit is the highest one of the window.
    let (mut window, mut bits, mut count) = (0_u64, 0_u32, 0_usize);
    let mut words = input.chunks_exact(4);
    for word in &mut words {
        let word = word.first_chunk::<4>().map_or(0, |word| u32::from_be_bytes(*word));
        window |= u64::from(word) << (32 - bits);
        bits += 32;
        // Long codes have up to 30 bits, so that no code is cut off here.
        while bits >= 30 {
            let lookup = lookup(window);
            let slot = out.get_mut(count..count + 2).ok_or(Failure::TooLong)?;
            let used = if lookup.count > 0 {
                slot.copy_from_slice(&lookup.symbols);
                count += usize::from(lookup.count);
                u32::from(lookup.bits)
            } else {
                let (symbol, used) = long_code(window)?;
                slot.fill(symbol);
                count += 1;
                used
            };
            window <<= used;
            bits -= used;
        }
    }
    for &byte in words.remainder() {
        window |= u64::from(byte) << (56 - bits);
        bits += 8;
    }
    count = decode_tail(window, bits, count, out)?;
    if count <= limit { Ok(count) } else { Err(Failure::TooLong) }
}

/// Reads what is left when no more input comes: at most 29 bits and three bytes, then the padding.
fn decode_tail(mut window: u64, mut bits: u32, mut count: usize, out: &mut [u8]) -> Result<usize, Failure> {
    // Padding is the start of the code for the end, which is all ones: so are the bits behind it.
    window |= u64::MAX >> bits;
    loop {
        //= https://www.rfc-editor.org/rfc/rfc7541#section-5.2
        //# A padding strictly longer than 7 bits MUST be treated as a decoding
        //# error.  A padding not corresponding to the most significant bits of
        //# the code for the EOS symbol MUST be treated as a decoding error.  A
        //# Huffman-encoded string literal containing the EOS symbol MUST be
        //# treated as a decoding error.
        if bits < 8 && window == u64::MAX {
            return Ok(count);
        }
        let lookup = lookup(window);
        let (symbol, used) = match lookup.count {
            0 => long_code(window)?,
            _ => (lookup.symbols[0], u32::from(lookup.first_bits)),
        };
        bits = bits.checked_sub(used).ok_or(Failure::Malformed)?;
        *out.get_mut(count).ok_or(Failure::TooLong)? = symbol;
        count += 1;
        window = window << used | ((1 << used) - 1);
    }
}

#[inline(always)]
fn lookup(window: u64) -> Lookup {
    LOOKUPS[(window >> (64 - LOOKUP_BITS)) as usize]
}

#[cold]
fn long_code(window: u64) -> Result<(u8, u32), Failure> {
    let next = (window >> 32) as u32;
    let (rows, symbols) = &LONG_CODES;
    for row in rows {
        let offset = next.wrapping_sub(row.first) >> (32 - row.bits);
        if next >= row.first && offset < row.count {
            let symbol = symbols.get(row.start + offset as usize);
            // The end of the string has a code, which must not come.
            let symbol = symbol.and_then(|&symbol| u8::try_from(symbol).ok()).ok_or(Failure::Malformed)?;
            return Ok((symbol, row.bits));
        }
    }
    Err(Failure::Malformed)
}

/// Length of `text` in bytes as a Huffman string.
#[inline]
pub(super) fn encoded_length(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(CODES[usize::from(byte)].1)).sum();
    bits.div_ceil(8)
}

/// Appends `text` as a Huffman string.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut window, mut bits) = (0_u64, 0_u32);
    for &byte in text {
        let (code, length) = CODES[usize::from(byte)];
        // At most 31 bits wait, and a code has at most 30.
        window = window << length | u64::from(code);
        bits += u32::from(length);
        if bits >= 32 {
            bits -= 32;
            out.extend_from_slice(&((window >> bits) as u32).to_be_bytes());
        }
    }
    if bits > 0 {
        let padded = window << (32 - bits) | u64::from(u32::MAX >> bits);
        let bytes = (padded as u32).to_be_bytes();
        out.extend_from_slice(bytes.get(..bits.div_ceil(8) as usize).unwrap_or_default());
    }
}

const fn lookups() -> [Lookup; 1 << LOOKUP_BITS] {
    let mut table = [Lookup { symbols: [0; 2], count: 0, first_bits: 0, bits: 0 }; 1 << LOOKUP_BITS];
    // First every code alone, with anything behind it; then pairs over them.
    let mut first = 0;
    while first < 256 {
        let (code, length) = CODES[first];
        let bits = length as u32;
        if bits <= LOOKUP_BITS {
            let low = (code as usize) << (LOOKUP_BITS - bits);
            let mut index = 0;
            while index < 1 << (LOOKUP_BITS - bits) {
                table[low + index] =
                    Lookup { symbols: [first as u8, 0], count: 1, first_bits: length, bits: length };
                index += 1;
            }
        }
        first += 1;
    }
    let mut index = 0;
    while index < table.len() {
        let alone = table[index];
        if alone.count == 1 {
            // What follows the first code, with ones behind it: a code that is whole within the ten bits is found there.
            let left = LOOKUP_BITS - alone.bits as u32;
            let rest = ((index << alone.bits) | ((1 << alone.bits) - 1)) & ((1 << LOOKUP_BITS) - 1);
            let mut second = 0;
            while second < 256 {
                let (code, length) = CODES[second];
                let bits = length as u32;
                if bits <= left && (rest >> (LOOKUP_BITS - bits)) as u32 == code {
                    table[index].symbols[1] = second as u8;
                    table[index].count = 2;
                    table[index].bits = alone.bits + length;
                }
                second += 1;
            }
        }
        index += 1;
    }
    table
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
            encode(text.as_bytes(), &mut out);
            assert_eq!((out.as_slice(), encoded_length(text.as_bytes())), (code.as_slice(), code.len()));
        }
    }

    #[test]
    fn every_byte_comes_back_behind_and_before_every_other() {
        for first in 0..=255 {
            for second in 0..=255 {
                let text = [first, second, first, b'a', second];
                let mut out = Vec::new();
                encode(&text, &mut out);
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
        encode(&[b'0'; 100], &mut code);
        let mut out = Vec::new();
        assert_eq!(decode(&code, 100, &mut out), Ok(100));
        assert_eq!(decode(&code, 99, &mut out), Err(Failure::TooLong));
        assert_eq!(out.len(), 102);
        out = Vec::new();
        assert_eq!(decode(&[0; 4096], 10, &mut out), Err(Failure::TooLong));
        assert_eq!(out.len(), 12);
        for length in 0..200 {
            assert!(fewest_decoded_bytes(length) <= most_decoded_bytes(length));
        }
    }
}
