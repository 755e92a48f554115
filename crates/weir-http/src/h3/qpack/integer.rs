//! Integers that share their first byte with flags (RFC 7541 §5.1, RFC 9204 §4.1.1).

/// Why an integer can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// More bytes are needed.
    Short,
    /// It has more than 62 bits, or so many leading zeros that it might never end.
    TooLarge,
}

/// Reads an integer whose first `prefix_bits` bits (1 to 8) are the low bits of the byte at `at`; returns its
/// value and the position after it.
#[inline(always)]
pub(super) fn read(input: &[u8], at: usize, prefix_bits: u32) -> Result<(u64, usize), Failure> {
    let mask = (0xff_u8) >> (8 - prefix_bits);
    let first = *input.get(at).ok_or(Failure::Short)? & mask;
    if first < mask { Ok((u64::from(first), at + 1)) } else { read_rest(input, at + 1, u64::from(mask)) }
}

//= https://www.rfc-editor.org/rfc/rfc9204#section-4.1.1
//# QPACK implementations MUST be able to decode integers up to and
//# including 62 bits long.
fn read_rest(input: &[u8], start: usize, prefix: u64) -> Result<(u64, usize), Failure> {
    let mut value = 0;
    for (index, &byte) in input.iter().skip(start).take(9).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let sum = value + prefix;
            return if sum >> 62 == 0 { Ok((sum, start + index + 1)) } else { Err(Failure::TooLarge) };
        }
    }
    // 62 bits need at most nine bytes of seven bits.
    Err(if input.len().saturating_sub(start) < 9 { Failure::Short } else { Failure::TooLarge })
}

/// Appends `value` with a prefix of `prefix_bits` bits; `flags` are the other bits of the first byte.
#[inline]
pub(super) fn write(out: &mut Vec<u8>, flags: u8, prefix_bits: u32, value: u64) {
    let mask = (0xff_u8) >> (8 - prefix_bits);
    if value < u64::from(mask) {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask);
    let mut rest = value - u64::from(mask);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_7541_hold_both_ways() {
        // RFC 7541 §C.1: 10 and 1337 in five bits, 42 in eight.
        for (value, prefix_bits, bytes) in
            [(10, 5, &[0x0a][..]), (1337, 5, &[0x1f, 0x9a, 0x0a]), (42, 8, &[0x2a])]
        {
            let mut out = Vec::new();
            write(&mut out, 0, prefix_bits, value);
            assert_eq!(out, bytes);
            assert_eq!(read(bytes, 0, prefix_bits), Ok((value, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1], 0, prefix_bits), Err(Failure::Short));
        }
    }

    #[test]
    fn sixty_two_bits_are_read_and_more_are_refused() {
        let largest = (1 << 62) - 1;
        for prefix_bits in 1..=8 {
            let mut out = Vec::new();
            write(&mut out, 0, prefix_bits, largest);
            assert_eq!(read(&out, 0, prefix_bits), Ok((largest, out.len())));
            out.clear();
            write(&mut out, 0, prefix_bits, largest + 1);
            assert_eq!(read(&out, 0, prefix_bits), Err(Failure::TooLarge));
        }
        assert_eq!(read(&[0xff; 10], 0, 8), Err(Failure::TooLarge));
        assert_eq!(read(&[0xff; 9], 0, 8), Err(Failure::Short));
        let endless_zeros = [[0x1f].as_slice(), &[0x80; 9]].concat();
        assert_eq!(read(&endless_zeros, 0, 5), Err(Failure::TooLarge));
    }
}
