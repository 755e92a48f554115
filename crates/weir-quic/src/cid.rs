//! Connection IDs: they name the process and worker that have the connection, in a form that only we and the
//! kernel can read.
//!
//! They have twelve bytes: five random ones, process and worker (masked), and four that authenticate the ID:
//!
//! ```text
//! 0        5         6        8       12
//! | random | process | worker |  tag  |
//! ```
//!
//! The mask is a keyed hash of the random bytes that a classic BPF program can compute
//! ([`steering_program`]). It hides from observers which IDs lead to the same worker. It is not meant to
//! resist an attacker who can choose IDs, who would gain nothing: a packet with an ID that is not ours is
//! never forwarded. The tag is a truncated HMAC-SHA256.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{hmac, rand};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::keys::Keys;

/// Length of our connection IDs.
pub const BYTES: usize = 12;
const RANDOM_BYTES: usize = 5;
const SIGNED_BYTES: usize = 8;

/// The worker that has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Number of the process, see [`Keys::process`].
    pub process: u8,
    /// Number of the worker in it.
    pub worker: u16,
}

/// The keyed hash, in the same steps as [`emit_steering`].
fn mask(keys: &[u32; 4], id: &[u8]) -> u32 {
    let first = u32::from_be_bytes([id[0], id[1], id[2], id[3]]);
    let mut mixed = (first ^ keys[0]).wrapping_mul(keys[1]);
    mixed ^= mixed >> 15;
    mixed = mixed.wrapping_mul(keys[2]);
    mixed = u32::from(id[4]).wrapping_mul(keys[3]).wrapping_add(mixed);
    mixed ^= mixed >> 13;
    mixed = mixed.wrapping_mul(keys[1]);
    mixed ^ (mixed >> 16)
}

fn tag(keys: &Keys, id: &[u8]) -> [u8; BYTES - SIGNED_BYTES] {
    let signature = hmac::sign(keys.tag(), &id[..SIGNED_BYTES]);
    std::array::from_fn(|index| signature.as_ref()[index])
}

/// The owner of the connection with this `id`, provided the ID is ours, which [`is_genuine`] checks. `None`
/// if its length is wrong.
#[inline]
pub fn owner(keys: &Keys, id: &[u8]) -> Option<Owner> {
    if id.len() != BYTES {
        return None;
    }
    let mask = mask(keys.steering(), id);
    let worker = u16::from_be_bytes([id[6], id[7]]) ^ mask as u16;
    Some(Owner { process: id[5] ^ (mask >> 16) as u8, worker })
}

/// Whether this process or an earlier one with the same keys made this ID. About half a microsecond.
pub fn is_genuine(keys: &Keys, id: &[u8]) -> bool {
    id.len() == BYTES && id[SIGNED_BYTES..] == tag(keys, id)
}

/// The destination connection ID of a datagram's first packet (RFC 8999 §5); `None` if the datagram is too
/// short. A short header does not contain the length: all our IDs have the same one.
#[inline]
pub fn destination(datagram: &[u8]) -> Option<&[u8]> {
    if datagram.first()? & 0x80 == 0 {
        return datagram.get(1..1 + BYTES);
    }
    let length = usize::from(*datagram.get(5)?);
    datagram.get(6..6 + length)
}

/// Makes the connection IDs of one worker.
pub struct Generator {
    keys: Arc<Keys>,
    worker: u16,
}

impl Generator {
    /// For the worker with that number.
    pub fn new(keys: Arc<Keys>, worker: u16) -> Generator {
        Generator { keys, worker }
    }
}

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; BYTES];
        // aws-lc aborts rather than return bytes that are not random.
        let _ = rand::fill(&mut id[..RANDOM_BYTES]);
        let mask = mask(self.keys.steering(), &id);
        id[5] = self.keys.process() ^ (mask >> 16) as u8;
        id[6..8].copy_from_slice(&(self.worker ^ mask as u16).to_be_bytes());
        let tag = tag(&self.keys, &id);
        id[SIGNED_BYTES..].copy_from_slice(&tag);
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        if is_genuine(&self.keys, id) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A program for [`weir_io::system::datagrams::steer_group`] that returns the worker's number for a datagram
/// whose connection ID is as long as ours. For any other it returns a number that no socket has, so that the
/// kernel chooses by the addresses.
///
/// A client's first packets have an ID of its own choice. If that is as long as ours it also determines the
/// worker, which does no harm: all of those packets carry the same ID.
pub fn steering_program(keys: &Keys) -> Vec<libc::sock_filter> {
    use libc::{BPF_ABS, BPF_B, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET};
    let steering = keys.steering();
    let (short, long) = (emit_steering(steering, 1), emit_steering(steering, 6));
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![
        instruction(BPF_LD | BPF_B | BPF_ABS, 0, 0, 0),
        instruction(BPF_JMP | BPF_JSET | BPF_K, 0, 3, 0x80),
        instruction(BPF_LD | BPF_B | BPF_ABS, 0, 0, 5),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 1 + short.len() as u8, 0, BYTES as u32),
        instruction(BPF_RET | BPF_K, 0, 0, u32::MAX),
    ];
    program.extend(short);
    program.extend(long);
    program
}

/// [`mask`] and the steps after it as instructions, for an ID that begins at `base`.
fn emit_steering(keys: &[u32; 4], base: u32) -> Vec<libc::sock_filter> {
    use libc::{BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_K, BPF_LD, BPF_MEM, BPF_MISC};
    use libc::{BPF_MUL, BPF_RET, BPF_RSH, BPF_ST, BPF_TAX, BPF_W, BPF_X, BPF_XOR};
    let fold = |shift: u32| {
        [(BPF_MISC | BPF_TAX, 0), (BPF_ALU | BPF_RSH | BPF_K, shift), (BPF_ALU | BPF_XOR | BPF_X, 0)]
    };
    let mut steps: Vec<(u32, u32)> = vec![
        (BPF_LD | BPF_W | BPF_ABS, base),
        (BPF_ALU | BPF_XOR | BPF_K, keys[0]),
        (BPF_ALU | BPF_MUL | BPF_K, keys[1]),
    ];
    steps.extend(fold(15));
    steps.extend([
        (BPF_ALU | BPF_MUL | BPF_K, keys[2]),
        (BPF_ST, 0),
        (BPF_LD | BPF_B | BPF_ABS, base + 4),
        (BPF_ALU | BPF_MUL | BPF_K, keys[3]),
        (BPF_MISC | BPF_TAX, 0),
        (BPF_LD | BPF_MEM, 0),
        (BPF_ALU | BPF_ADD | BPF_X, 0),
    ]);
    steps.extend(fold(13));
    steps.push((BPF_ALU | BPF_MUL | BPF_K, keys[1]));
    steps.extend(fold(16));
    steps.extend([
        (BPF_ST, 0),
        (BPF_LD | BPF_H | BPF_ABS, base + 6),
        (BPF_MISC | BPF_TAX, 0),
        (BPF_LD | BPF_MEM, 0),
        (BPF_ALU | BPF_XOR | BPF_X, 0),
        (BPF_ALU | BPF_AND | BPF_K, 0xffff),
        (BPF_RET | BPF_A, 0),
    ]);
    steps.into_iter().map(|(code, k)| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }).collect()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::tests::rig::new_group;
    use weir_io::system::datagrams;

    #[test]
    fn an_id_leads_to_the_worker_and_the_process_that_made_it() {
        let keys = Arc::new(Keys::random().unwrap());
        let successor = keys.of_successor();
        for worker in [0, 1, 2, 255, 256, 65_535] {
            let id = Generator::new(keys.clone(), worker).generate_cid();
            let made = Owner { process: keys.process(), worker };
            assert_eq!(owner(&keys, &id), Some(made));
            assert_eq!(owner(&successor, &id), Some(made), "the next process reads it too");
            assert!(is_genuine(&successor, &id));
        }
    }

    #[test]
    fn an_id_that_was_changed_anywhere_is_not_genuine() {
        let keys = Arc::new(Keys::random().unwrap());
        let id = Generator::new(keys.clone(), 3).generate_cid();
        for index in 0..BYTES {
            let mut changed = id;
            changed[index] ^= 1;
            assert!(!is_genuine(&keys, &changed), "byte {index}");
        }
        assert!(!is_genuine(&keys, &id[..BYTES - 1]));
        assert!(!is_genuine(&Keys::random().unwrap(), &id));
    }

    #[test]
    fn ids_of_one_worker_have_nothing_in_common_that_shows() {
        let keys = Arc::new(Keys::random().unwrap());
        let mut generator = Generator::new(keys, 1);
        let ids: Vec<ConnectionId> = (0..256).map(|_| generator.generate_cid()).collect();
        for index in 0..BYTES {
            let values: std::collections::HashSet<u8> = ids.iter().map(|id| id[index]).collect();
            assert!(values.len() > 100, "byte {index} takes {} values of 256 draws", values.len());
        }
    }

    #[test]
    fn the_destination_is_found_in_both_kinds_of_header() {
        let short: Vec<u8> = (0x40..0x40 + 30).collect();
        assert_eq!(destination(&short), Some(&short[1..13]));
        assert_eq!(destination(&short[..12]), None);
        let long = [0xc3, 0, 0, 0, 1, 3, 7, 8, 9, 0, 0];
        assert_eq!(destination(&long), Some(&[7, 8, 9][..]));
        assert_eq!(destination(&long[..8]), None);
        assert_eq!(destination(&[]), None);
    }

    #[test]
    fn the_kernel_hands_a_datagram_to_the_socket_of_its_worker() {
        let keys = Arc::new(Keys::random().unwrap());
        let sockets: Vec<UdpSocket> = new_group(4).into_iter().map(UdpSocket::from).collect();
        datagrams::steer_group(&sockets[0], &steering_program(&keys)).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = sockets[0].local_addr().unwrap();
        for round in 0..16u16 {
            let worker = round % 4;
            let id = Generator::new(keys.clone(), worker).generate_cid();
            let short = [&[0x40], &id[..], &[0; 20]].concat();
            let long = [&[0xe0, 0, 0, 0, 1, BYTES as u8], &id[..], &[0; 20]].concat();
            for datagram in [short, long] {
                client.send_to(&datagram, address).unwrap();
                let mut inbox = datagrams::Inbox::empty();
                // Over loopback a datagram is there once it has been sent.
                assert_eq!(inbox.receive(&sockets[usize::from(worker)]).unwrap(), 1);
                assert_eq!(inbox.datagram(0).bytes, datagram);
            }
        }
    }
}
