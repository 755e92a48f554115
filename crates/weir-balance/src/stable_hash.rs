//! The hash behind backend ids, ring points and Maglev permutations.
//!
//! It is part of Weir's external behaviour: sticky cookies live in browsers and two instances of Weir side by
//! side must agree, so it may never change between versions. That rules out the standard library's hasher
//! (seeded, unspecified) and hash crates (free to change). It does not resist an attacker who searches for
//! collisions: whoever can choose keys can just as well repeat one key.

use std::net::{IpAddr, SocketAddr};

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A 64-bit hash of `bytes`, the same on every machine and in every version of Weir.
///
/// O(bytes), eight at a time; does not allocate. Use it to make [`PickInput::key`](crate::PickInput::key).
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let mut state = mix64(bytes.len() as u64 ^ MULTIPLIER);
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word =
            u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        state = fold(state ^ word);
    }
    let mut last = 0;
    for &byte in words.remainder() {
        last = last << 8 | u64::from(byte);
    }
    mix64(fold(state ^ last))
}

/// The hash of a client's address, for choosing by it: without the port, and the same for an IPv4 address and
/// its IPv4-mapped IPv6 form (RFC 4291 §2.5.5.2), which a dual-stack socket reports.
pub fn address_hash(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => stable_hash(&address.octets()),
        IpAddr::V6(address) => stable_hash(&address.octets()),
    }
}

/// The hash of a TCP connection or UDP flow, for choosing by it: both addresses, both ports and the protocol
/// number (TCP 6, UDP 17). The kernel plane computes the same hash from a packet.
///
/// [`stable_hash`] of source address, destination address, source port, destination port (all in network byte
/// order) and protocol: 13 bytes for IPv4, 37 for IPv6. IPv4-mapped addresses (RFC 4291 section 2.5.5.2)
/// count as IPv4 unless the other address is IPv6.
pub fn flow_hash(source: SocketAddr, destination: SocketAddr, protocol: u8) -> u64 {
    let mut bytes = [0; 37];
    let mut length = 0;
    let mut put = |part: &[u8]| {
        bytes[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    };
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            put(&source.octets());
            put(&destination.octets());
        }
        (source, destination) => {
            for address in [source, destination] {
                match address {
                    IpAddr::V4(address) => put(&address.to_ipv6_mapped().octets()),
                    IpAddr::V6(address) => put(&address.octets()),
                }
            }
        }
    }
    put(&source.port().to_be_bytes());
    put(&destination.port().to_be_bytes());
    put(&[protocol]);
    stable_hash(&bytes[..length])
}

/// Spreads a 64-bit value so that every input bit flips each output bit with even chance.
///
/// Source: the finaliser of splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
/// 2014).
pub(crate) const fn mix64(value: u64) -> u64 {
    let value = value.wrapping_add(MULTIPLIER);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

const fn fold(value: u64) -> u64 {
    let product = (value ^ MULTIPLIER) as u128 * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64 ^ value.rotate_left(23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_never_change_between_versions() {
        // Sticky cookies in browsers carry these numbers; a change here logs every user out.
        assert_eq!(stable_hash(b"10.0.0.1:8080"), PINNED_ADDRESS);
        assert_eq!(stable_hash(b""), PINNED_EMPTY);
    }
    const PINNED_ADDRESS: u64 = 14_918_120_960_447_276_702;
    const PINNED_EMPTY: u64 = 9_420_337_767_494_878_285;

    #[test]
    fn a_client_has_one_hash_whichever_socket_shows_it() {
        let hash = |text: &str| address_hash(text.parse().unwrap());
        assert_eq!(hash("192.0.2.7"), hash("::ffff:192.0.2.7"));
        assert_eq!(hash("192.0.2.7"), stable_hash(&[192, 0, 2, 7]));
        assert_ne!(hash("192.0.2.7"), hash("192.0.2.8"));
        assert_ne!(hash("::1"), hash("::2"));
    }

    fn flow(source: &str, destination: &str, protocol: u8) -> u64 {
        flow_hash(source.parse().unwrap(), destination.parse().unwrap(), protocol)
    }

    #[test]
    fn the_hash_of_a_flow_never_changes_between_versions_and_planes() {
        // The eBPF program computes these from packets, and other Weirs must agree.
        let tcp = flow("192.0.2.7:40000", "198.51.100.1:443", 6);
        let bytes = [192, 0, 2, 7, 198, 51, 100, 1, 0x9c, 0x40, 0x01, 0xbb, 6];
        assert_eq!((tcp, tcp), (stable_hash(&bytes), 12_718_040_408_146_670_733));
        let udp = flow("[2001:db8::7]:40000", "[2001:db8:1::1]:443", 17);
        let mut bytes = [0; 37];
        bytes[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        bytes[15] = 7;
        bytes[16..22].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8, 0, 1]);
        bytes[31] = 1;
        bytes[32..].copy_from_slice(&[0x9c, 0x40, 0x01, 0xbb, 17]);
        assert_eq!((udp, udp), (stable_hash(&bytes), 2_408_879_536_612_272_728));
    }

    #[test]
    fn a_flow_has_one_hash_whichever_socket_shows_it_and_every_part_of_it_counts() {
        let known = flow("192.0.2.7:4000", "198.51.100.1:53", 17);
        assert_eq!(known, flow("[::ffff:192.0.2.7]:4000", "[::ffff:198.51.100.1]:53", 17));
        for other in [
            flow("192.0.2.8:4000", "198.51.100.1:53", 17),
            flow("192.0.2.7:4001", "198.51.100.1:53", 17),
            flow("192.0.2.7:4000", "198.51.100.2:53", 17),
            flow("192.0.2.7:4000", "198.51.100.1:54", 17),
            flow("192.0.2.7:4000", "198.51.100.1:53", 6),
            flow("198.51.100.1:53", "192.0.2.7:4000", 17),
        ] {
            assert_ne!(known, other);
        }
    }

    #[test]
    fn a_hundred_thousand_similar_addresses_have_different_hashes() {
        let mut seen = HashSet::new();
        for host in 0..=255u32 {
            for port in 0..400u32 {
                seen.insert(stable_hash(format!("10.0.0.{host}:{port}").as_bytes()));
            }
        }
        assert_eq!(seen.len(), 256 * 400);
    }

    #[test]
    fn a_flipped_bit_flips_about_half_of_the_output() {
        let mut flipped = 0u32;
        let text = *b"10.20.30.40:8080/some/path";
        for bit in 0..text.len() * 8 {
            let mut other = text;
            other[bit / 8] ^= 1 << (bit % 8);
            flipped += (stable_hash(&text) ^ stable_hash(&other)).count_ones();
        }
        let average = f64::from(flipped) / (text.len() * 8) as f64;
        assert!((28.0..36.0).contains(&average), "{average} of 64 bits");
    }

    #[test]
    fn length_and_trailing_zero_bytes_count() {
        assert_ne!(stable_hash(b"a"), stable_hash(b"a\0"));
        assert_ne!(stable_hash(b"\0"), stable_hash(b"\0\0"));
    }
}
