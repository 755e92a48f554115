//! Digests that stand for keys in a table: SipHash-2-4 with 128 bits, seeded, so that nobody outside can
//! produce collisions.
//!
//! Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, and its reference code for the
//! longer output.

/// A digest that stands for a key.
pub(crate) type Digest = [u64; 2];

/// The digest of `data`, in the domain `tag`. 20 ns for an address.
pub(crate) fn digest(seed: [u64; 2], tag: u64, data: &[u8]) -> Digest {
    let mut state = SipState::new(seed);
    state.absorb(tag);
    state.finish(data, 8)
}

/// The secrets with which keys are hashed, so that nobody outside can make keys collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// Drawn once per process.
    pub own: [u64; 2],
    /// The same on all Weirs that count together; `None` if there are no others.
    pub shared: Option<[u64; 2]>,
}

impl Seeds {
    /// The seed of a limit that is to be shared or not, and whether it is.
    pub(crate) fn of(&self, is_to_be: bool) -> ([u64; 2], bool) {
        self.shared.filter(|_| is_to_be).map_or((self.own, false), |seed| (seed, true))
    }
}

struct SipState([u64; 4]);

impl SipState {
    fn new([k0, k1]: [u64; 2]) -> SipState {
        SipState([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v1);
        *v0 = v0.wrapping_add(*v3);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.rotate_left(32);
    }

    #[inline]
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    /// `before` is the number of bytes absorbed before `data`.
    fn finish(mut self, data: &[u8], before: usize) -> Digest {
        let (words, rest) = data.as_chunks::<8>();
        for word in words {
            self.absorb(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // The length, modulo 256, as the last byte.
        last[7] = (data.len() + before) as u8;
        self.absorb(u64::from_le_bytes(last));
        self.0[2] ^= 0xee;
        let low = self.settle();
        self.0[1] ^= 0xdd;
        [low, self.settle()]
    }

    fn settle(&mut self) -> u64 {
        (0..4).for_each(|_| self.round());
        self.0.iter().fold(0, |sum, part| sum ^ part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_reference_code() {
        // `vectors_sip128` of the reference code: key 00 01 … 0f, data empty, and 00.
        let seed = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        for (data, expected) in [
            (&[][..], 0xa381_7f04_ba25_a8e6_6df6_7214_c755_0293_u128),
            (&[0], 0xda87_c1d8_6b99_af44_3476_5911_9b22_fc45),
        ] {
            let [low, high] = SipState::new(seed).finish(data, 0);
            let bytes = [low.to_le_bytes(), high.to_le_bytes()].concat();
            assert_eq!(bytes, expected.to_be_bytes());
        }
    }

    #[test]
    fn the_tag_is_part_of_the_data() {
        let seed = [1, 2];
        let whole = [5u64.to_le_bytes().as_slice(), b"some longer value"].concat();
        assert_eq!(digest(seed, 5, b"some longer value"), SipState::new(seed).finish(&whole, 0));
        assert_ne!(digest(seed, 5, b"x"), digest(seed, 6, b"x"));
    }
}
