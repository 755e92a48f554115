//! Removes PADDING frames from packets before the protocol processes them.
//!
//! A packet may be nearly all padding: clients use it to fill up what they send in one call with
//! `UDP_SEGMENT`, and to probe the path. `quinn-proto` treats each byte of it as a frame, which takes some
//! fifty instructions. A packet full of them takes it longer than Weir needs for a whole request, which an
//! attacker could exploit. Here frames are skipped by their lengths alone; what does not look like frames is
//! left for `quinn-proto` to refuse.

use bytes::BytesMut;

use crate::frames::{frame_length, leading_padding};

/// Fewest bytes of padding that are worth moving the other bytes for.
const WORTHWHILE_BYTES: usize = 16;

/// Removes the padding from a decrypted payload. If there is nothing else one byte of it stays, as no payload
/// may be empty (RFC 9000 §12.4). The result is in an allocation of its own size, since code that holds parts
/// of it counts their length as memory.
pub fn remove(payload: &mut BytesMut) {
    let (padding, mut rest) = leading_padding(payload);
    let mut removed = padding;
    let mut kept = 0;
    // The first pass only reads: most packets have no padding, and are not copied.
    while let Some(length) = frame_length(rest) {
        let (padding, behind) = leading_padding(&rest[length..]);
        (kept, removed, rest) = (kept + length, removed + padding, behind);
    }
    if removed < WORTHWHILE_BYTES {
        return;
    }
    let mut without = BytesMut::with_capacity((kept + rest.len()).max(1));
    let (_, mut rest) = leading_padding(payload);
    while let Some(length) = frame_length(rest) {
        without.extend_from_slice(&rest[..length]);
        (_, rest) = leading_padding(&rest[length..]);
    }
    without.extend_from_slice(rest);
    if without.is_empty() {
        without.extend_from_slice(&[0]);
    }
    *payload = without;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frames::tests::FRAMES;

    fn without_padding(payload: &[u8]) -> Vec<u8> {
        let mut payload = BytesMut::from(payload);
        remove(&mut payload);
        payload.to_vec()
    }

    #[test]
    fn a_frame_to_the_end_keeps_its_zeros() {
        let stream = b"\x08\x04GET\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(without_padding(stream), stream);
        assert_eq!(without_padding(&[&[0; 40], &stream[..]].concat()), stream);
    }

    #[test]
    fn nothing_but_padding_leaves_one_byte() {
        assert_eq!(without_padding(&[0; 1200]), [0]);
    }

    #[test]
    fn what_is_not_known_stays_as_it_is() {
        let strange = [&[0x01], &[0; 20][..], &[0x3f, 0x00, 0x00], &[0; 20]].concat();
        assert_eq!(without_padding(&strange), [&[0x01], &[0x3f, 0x00, 0x00][..], &[0; 20]].concat());
    }

    proptest! {
        #[test]
        fn frames_come_out_in_order_and_whole(
            parts in prop::collection::vec((0..FRAMES.len(), 0..80_usize), 1..12),
            before in 0..80_usize,
        ) {
            let mut padded = vec![0; before];
            let mut plain = Vec::new();
            let mut zeros = before;
            for (frame, padding) in parts {
                padded.extend_from_slice(FRAMES[frame]);
                padded.resize(padded.len() + padding, 0);
                plain.extend_from_slice(FRAMES[frame]);
                zeros += padding;
            }
            let expected = if zeros < WORTHWHILE_BYTES { padded.clone() } else { plain };
            prop_assert_eq!(without_padding(&padded), expected);
        }

        #[test]
        fn no_payload_is_too_strange(payload in prop::collection::vec(any::<u8>(), 1..200)) {
            let left = without_padding(&payload);
            prop_assert!(!left.is_empty() && left.len() <= payload.len());
        }
    }
}
