//! The WebSocket handshake in HTTP/1.1 (RFC 6455 §4), for upgrades with HTTP/2 or HTTP/3 on one side, which
//! have no such handshake (RFC 8441 §5): there Weir takes part in the handshake itself, instead of forwarding
//! it.
//!
//! The handshake only proves that the server understood the upgrade, and protects no secret, so it does not
//! matter that SHA-1 is broken.

use crate::known::KnownHeader;
use crate::message::ResponseHead;

/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 24;
/// Length of the answer to a key, in bytes.
pub const ACCEPT_BYTES: usize = 28;

/// The text that a server appends to the key before it hashes it (RFC 6455 §1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A `sec-websocket-key` from 128 random bits (RFC 6455 §4.1).
pub fn key(draw: [u8; 16]) -> [u8; KEY_BYTES] {
    let mut key = [b'='; KEY_BYTES];
    write_base64(&draw, &mut key);
    key
}

/// The `sec-websocket-accept` that answers a key (RFC 6455 §4.2.2).
pub fn accept(key: &[u8]) -> [u8; ACCEPT_BYTES] {
    let mut accept = [b'='; ACCEPT_BYTES];
    write_base64(&sha1(&[key, GUID].concat()), &mut accept);
    accept
}

//= https://www.rfc-editor.org/rfc/rfc6455#section-4.1
//# If the response lacks a |Sec-WebSocket-Accept| header field or
//# the |Sec-WebSocket-Accept| contains a value other than the
//# base64-encoded SHA-1 of the concatenation of the |Sec-WebSocket-
//# Key| (as a string, not base64-decoded) with the string "258EAFA5-
//# E914-47DA-95CA-C5AB0DC85B11" but ignoring any leading and
//# trailing whitespace, the client MUST _Fail the WebSocket
//# Connection_.
/// Whether a 101 has the right answer to a key that Weir made; without it nothing may be tunnelled (threat
/// A18).
pub fn is_accepted(head: &ResponseHead, buffer: &[u8], key: &[u8]) -> bool {
    head.value(KnownHeader::SecWebsocketAccept, buffer) == Some(&accept(key))
}

/// Writes `bytes` in base64 (RFC 4648 §4) to `out`, whose remainder must already hold the padding.
fn write_base64(bytes: &[u8], out: &mut [u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (group, out) in bytes.chunks(3).zip(out.chunks_mut(4)) {
        let word =
            (0..3).fold(0, |word, index| word << 8 | u32::from(group.get(index).copied().unwrap_or(0)));
        for (index, out) in out.iter_mut().take(group.len() + 1).enumerate() {
            *out = ALPHABET[(word >> (18 - 6 * index) & 63) as usize];
        }
    }
}

/// SHA-1 of a short text (RFC 3174).
fn sha1(text: &[u8]) -> [u8; 20] {
    let mut padded = text.to_vec();
    padded.push(0x80);
    padded.resize((text.len() + 8) / 64 * 64 + 56, 0);
    padded.extend_from_slice(&(text.len() as u64 * 8).to_be_bytes());
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in padded.as_chunks::<64>().0 {
        add_block(&mut state, block);
    }
    let mut digest = [0; 20];
    for (out, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *out = word.to_be_bytes();
    }
    digest
}

fn add_block(state: &mut [u32; 5], block: &[u8; 64]) {
    let mut words = [0_u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    for index in 16..80 {
        let mixed = words[index - 3] ^ words[index - 8] ^ words[index - 14] ^ words[index - 16];
        words[index] = mixed.rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (round, word) in words.into_iter().enumerate() {
        let (mix, constant) = match round {
            0..20 => (b & c | !b & d, 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => (b & c | b & d | c & d, 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6),
        };
        let next =
            a.rotate_left(5).wrapping_add(mix).wrapping_add(e).wrapping_add(constant).wrapping_add(word);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
    }
    for (sum, word) in state.iter_mut().zip([a, b, c, d, e]) {
        *sum = sum.wrapping_add(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: [u8; 20]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_examples_of_the_rfcs_come_out() {
        // RFC 6455 §1.3
        assert_eq!(&accept(b"dGhlIHNhbXBsZSBub25jZQ=="), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(&key(*b"the sample nonce"), b"dGhlIHNhbXBsZSBub25jZQ==");
        // RFC 3174 §7.3
        assert_eq!(hex(sha1(b"abc")), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(sha1(two_blocks)), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
        let ten_blocks = b"01234567".repeat(80);
        assert_eq!(hex(sha1(&ten_blocks)), "dea356a2cddd90c7a7ecedc5ebb563934f460452");
    }

    #[test]
    fn a_text_of_any_length_fills_whole_blocks() {
        // FIPS 180-4 §5.1.1; digests from coreutils' sha1sum.
        assert_eq!(hex(sha1(b"")), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        for (length, digest) in DIGESTS {
            assert_eq!(hex(sha1(&vec![b'a'; length])), digest, "{length} bytes");
        }
    }

    const DIGESTS: [(usize, &str); 9] = [
        (55, "c1c8bbdc22796e28c0e15163d20899b65621d65a"),
        (56, "c2db330f6083854c99d4b5bfb6e8f29f201be699"),
        (57, "f08f24908d682555111be7ff6f004e78283d989a"),
        (63, "03f09f5b158a7a8cdad920bddc29b81c18a551f5"),
        (64, "0098ba824b5c16427bd7a1122a5a442a25ec644d"),
        (65, "11655326c708d70319be2610e8a57d9a5b959d3b"),
        (119, "ee971065aaa017e0632a8ca6c77bb3bf8b1dfc56"),
        (120, "f34c1488385346a55709ba056ddd08280dd4c6d6"),
        (128, "ad5b3fdbcb526778c2839d2f151ea753995e26a0"),
    ];
}
