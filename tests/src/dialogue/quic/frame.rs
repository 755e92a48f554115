//! Frames as bytes (RFC 9000 §19).

use std::collections::BTreeSet;

use super::wire::put;

fn of(kind: u64, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, kind);
    numbers.iter().for_each(|number| put(&mut bytes, *number));
    bytes
}

/// `PING`.
pub fn ping() -> Vec<u8> {
    of(1, &[])
}

/// `ACK` of `first` packets up to `largest`, and of further ranges: (packets left out, packets), each less
/// one.
pub fn ack(largest: u64, first: u64, ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = of(2, &[largest, 0, ranges.len() as u64, first]);
    for (gap, length) in ranges {
        put(&mut bytes, *gap);
        put(&mut bytes, *length);
    }
    bytes
}

/// `ACK` of these numbers, the 32 latest runs of them.
pub(super) fn ack_of(numbers: &BTreeSet<u64>) -> Vec<u8> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers.iter().rev() {
        let count = runs.len();
        match runs.last_mut() {
            Some((low, _)) if *low == number + 1 => *low = number,
            _ if count == 32 => break,
            _ => runs.push((number, number)),
        }
    }
    let (low, high) = runs[0];
    let ranges: Vec<(u64, u64)> =
        runs.windows(2).map(|pair| (pair[0].0 - pair[1].1 - 2, pair[1].1 - pair[1].0)).collect();
    ack(high, high - low, &ranges)
}

/// `CRYPTO`.
pub fn crypto(offset: u64, data: &[u8]) -> Vec<u8> {
    [of(6, &[offset, data.len() as u64]), data.to_vec()].concat()
}

/// `STREAM`.
pub fn stream(id: u64, offset: u64, data: &[u8], is_last: bool) -> Vec<u8> {
    [of(0x0e | u64::from(is_last), &[id, offset, data.len() as u64]), data.to_vec()].concat()
}

/// `RESET_STREAM`.
pub fn reset_stream(id: u64, code: u64, size: u64) -> Vec<u8> {
    of(4, &[id, code, size])
}

/// `STOP_SENDING`.
pub fn stop_sending(id: u64, code: u64) -> Vec<u8> {
    of(5, &[id, code])
}

/// `MAX_DATA`.
pub fn max_data(most: u64) -> Vec<u8> {
    of(0x10, &[most])
}

/// `NEW_CONNECTION_ID`.
pub fn new_connection_id(sequence: u64, retired: u64) -> Vec<u8> {
    let id = [&[8][..], &sequence.to_be_bytes(), &[0x5a; 16]].concat();
    [of(0x18, &[sequence, retired]), id].concat()
}

/// `RETIRE_CONNECTION_ID`.
pub fn retire_connection_id(sequence: u64) -> Vec<u8> {
    of(0x19, &[sequence])
}

/// `PATH_CHALLENGE`.
pub fn path_challenge(data: u64) -> Vec<u8> {
    [of(0x1a, &[]), data.to_be_bytes().to_vec()].concat()
}
