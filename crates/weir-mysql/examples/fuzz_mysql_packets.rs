//! Fuzzes the packet reader: no panic, progress on every call, the same packets for every split, and packets
//! that are read as they were written.
//!
//! `cargo run --release -p weir-mysql --example fuzz_mysql_packets -- --seconds 60`; `WEIR_SEED` repeats
//! a run.

#[path = "../../weir-http/examples/fuzzing/mod.rs"]
mod fuzzing;

use std::process::ExitCode;

use weir_mysql::WireError;
use weir_mysql::packet::{PacketEvent, PacketReader, write_packets};

const SEEDS: &[&[u8]] = &[
    b"\x09\0\0\0\x03SELECT 1\x01\0\0\0\x0e",
    b"\0\0\0\x01\x07\0\0\x02\0\0\0\x02\0\0\0",
    b"\xff\xff\xff\0abc",
];

const PIECES: &[&[u8]] =
    &[b"\0\0\0\0", b"\x01\0\0\xff\x01", b"\xff\xff\xff\xfe", b"\x05\0\0\0\xfe\0\0\x02\0"];

fn main() -> ExitCode {
    fuzzing::run("packets", SEEDS, PIECES, |bytes, draws| {
        let wanted = draws.below(12);
        let whole = read(bytes, wanted, || usize::MAX)?;
        let split = read(bytes, wanted, || 1 + draws.below(7))?;
        if whole != split {
            return Err(format!("whole gives {whole:?}, split gives {split:?}"));
        }
        let mut out = Vec::new();
        let next = write_packets(&mut out, 7, bytes);
        let again = read(&out, usize::MAX, || 1 + draws.below(100))?;
        if next != 8 || again != Ok(vec![(bytes.to_vec(), Some(bytes.len() as u64))]) {
            return Err(format!("written it reads as {again:?}, and then {next}"));
        }
        Ok(whole.map_or(1, |packets| 2 + packets.len().min(20) as u64))
    })
}

/// Heads with the length of each payload, which the last lacks if it has not ended.
type Packets = Result<Vec<(Vec<u8>, Option<u64>)>, WireError>;

fn read(bytes: &[u8], wanted: usize, mut slice_bytes: impl FnMut() -> usize) -> Result<Packets, String> {
    let mut reader = PacketReader::new();
    let (mut packets, mut at, mut end) = (Vec::new(), 0_usize, 0_usize);
    loop {
        let step = match reader.advance(&bytes[at..end], |_, _| wanted) {
            Ok(step) => step,
            Err(error) => return Ok(Err(error)),
        };
        match step.event {
            PacketEvent::Partial { needs } if needs <= end - at => {
                return Err(format!("{needs} bytes are asked for, and {} are there", end - at));
            }
            PacketEvent::Partial { .. } if end == bytes.len() => return Ok(Ok(packets)),
            PacketEvent::Partial { .. } => end = end.saturating_add(slice_bytes()).min(bytes.len()),
            _ if step.consumed == 0 => return Err(format!("no progress: {step:?}")),
            PacketEvent::Head(head) => {
                packets.push((head.bytes.to_vec(), head.is_whole.then_some(head.bytes.len() as u64)));
            }
            PacketEvent::Middle => {}
            PacketEvent::End { payload_bytes } => match packets.last_mut() {
                Some((_, length @ None)) => *length = Some(payload_bytes),
                _ => return Err("a packet ends that did not begin".to_owned()),
            },
        }
        at += step.consumed;
    }
}
