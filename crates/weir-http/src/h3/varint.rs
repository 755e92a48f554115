//! Integers of 1, 2, 4 or 8 bytes, whose first two bits give the length (RFC 9000 §16).

/// Largest value that can be written: 62 bits.
pub const MAX: u64 = (1 << 62) - 1;

/// Reads the integer at the start of `input`; returns its value and length in bytes. `None` when it is
/// incomplete.
#[inline]
pub fn read(input: &[u8]) -> Option<(u64, usize)> {
    let first = *input.first()?;
    match first >> 6 {
        0 => Some((u64::from(first), 1)),
        1 => {
            let bytes = input.first_chunk::<2>()?;
            Some((u64::from(u16::from_be_bytes(*bytes) & 0x3fff), 2))
        }
        2 => {
            let bytes = input.first_chunk::<4>()?;
            Some((u64::from(u32::from_be_bytes(*bytes) & 0x3fff_ffff), 4))
        }
        _ => {
            let bytes = input.first_chunk::<8>()?;
            Some((u64::from_be_bytes(*bytes) & MAX, 8))
        }
    }
}

/// How many bytes [`write`] takes for `value`: 1, 2, 4 or 8.
pub const fn length(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Appends `value` in the shortest form. Values above [`MAX`] can't be expressed and are reduced to it.
#[inline]
pub fn write(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x3f => out.push(value as u8),
        0x40..=0x3fff => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..=0x3fff_ffff => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value.min(MAX) | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_9000_read_as_their_values() {
        let examples: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in examples {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn what_is_written_reads_back_at_every_boundary() {
        for value in [0, 0x3f, 0x40, 0x3fff, 0x4000, 0x3fff_ffff, 0x4000_0000, MAX] {
            let mut out = Vec::new();
            write(&mut out, value);
            assert_eq!(out.len(), length(value));
            assert_eq!(read(&out), Some((value, out.len())));
        }
    }
}
