//! Fuzzes the count of compressed packets: no panic, the same ids for every split of the content, ids within
//! that go up by one, and headers that are read as they were written.
//!
//! `cargo run --release -p weir-mysql --example fuzz_mysql_compressed -- --seconds 60`; `WEIR_SEED` repeats
//! a run.

#[path = "../../weir-http/examples/fuzzing/mod.rs"]
mod fuzzing;

use std::process::ExitCode;

use weir_mysql::compressed::{COMPRESSED_HEADER_BYTES, CompressedHeader, CompressedTurns};
use weir_mysql::packet::{HEADER_BYTES, PacketHeader};

const SEEDS: &[&[u8]] = &[
    b"\x0d\0\0\0\0\0\0\x09\0\0\0\x03SELECT 1",
    b"\x05\0\0\0\0\0\0\x09\0\0\0\x03\x08\0\0\x01\0\0\0SELECT 1\x05\0\0\0\0\0\0\x01\0\0\0\x0e",
    b"\x05\0\0\0\0\0\0\x01\0\0\x2a\x1b\x05\0\0\x02\0\0\0\x01\0\0\x02a",
];

const PIECES: &[&[u8]] = &[
    b"\x04\0\0\0\0\0\0\0\0\0\0",
    b"\x04\0\0\x01\0\0\0\0\0\0\xff",
    b"\x07\0\0\xff\0\0\0\xff\xff\xff\x01abc",
    b"\0\0\0\0\0\0\0",
];

fn main() -> ExitCode {
    fuzzing::run("compressed", SEEDS, PIECES, |bytes, draws| {
        let whole = read(bytes, || usize::MAX)?;
        let split = read(bytes, || 1 + draws.below(5))?;
        if whole != split {
            return Err(format!("whole gives {whole:?}, split gives {split:?}"));
        }
        Ok(1 + whole.0.len().min(200) as u64)
    })
}

/// The content of all packets in order, numbered anew, and the ids of the answers. Each payload is taken for
/// content as it is, and answered where its header says an odd length for it.
fn read(bytes: &[u8], mut slice_bytes: impl FnMut() -> usize) -> Result<(Vec<u8>, Vec<u8>), String> {
    let mut turns = CompressedTurns::after_login();
    let (mut content, mut answers, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(header) = bytes.get(at..).and_then(<[u8]>::first_chunk::<COMPRESSED_HEADER_BYTES>) {
        let parsed = CompressedHeader::parse(*header);
        if parsed.to_bytes() != *header {
            return Err(format!("{header:?} is written as {:?}", parsed.to_bytes()));
        }
        at += COMPRESSED_HEADER_BYTES;
        if turns.receive(parsed.sequence).is_err() {
            break;
        }
        let end = (at + parsed.payload_bytes as usize).min(bytes.len());
        let mut payload = bytes[at..end].to_vec();
        at = end;
        let mut rest = payload.as_mut_slice();
        while !rest.is_empty() {
            let (slice, behind) = rest.split_at_mut(slice_bytes().min(rest.len()));
            turns.received(slice);
            rest = behind;
        }
        content.extend_from_slice(&payload);
        if parsed.content_bytes & 1 == 1 {
            let header = PacketHeader { payload_bytes: 0, sequence: parsed.sequence.wrapping_add(1) };
            let (content, mut numbered) = (header.to_bytes(), header.to_bytes());
            let is_renumbered = turns.is_renumbered(&content);
            let sequence = turns.send(&content, &mut numbered);
            if is_renumbered != (numbered != content) {
                return Err(format!("{numbered:?} of {content:?}"));
            }
            let follows = parsed.sequence.wrapping_add(1);
            if sequence != follows && sequence != 0 {
                return Err(format!("{sequence} answers {}", parsed.sequence));
            }
            answers.push(sequence);
        } else {
            counted(&content, answers.is_empty())?;
        }
    }
    Ok((content, answers))
}

/// Ids go up by one, or begin anew, as long as nothing was answered.
fn counted(content: &[u8], is_unanswered: bool) -> Result<(), String> {
    let (mut at, mut last) = (0, None::<u8>);
    while let Some(header) = content.get(at..).and_then(<[u8]>::first_chunk::<HEADER_BYTES>) {
        let header = PacketHeader::parse(*header);
        let follows = last.map_or(0, |last| last.wrapping_add(1));
        if is_unanswered && header.sequence != follows && header.sequence != 0 {
            return Err(format!("{} comes behind {last:?}", header.sequence));
        }
        last = Some(header.sequence);
        at += HEADER_BYTES + header.payload_bytes as usize;
    }
    Ok(())
}
