//! Fuzzes the reader of answers: no panic, progress on every call, the same verdicts for every split and
//! every command, and nothing read behind an answer's end.
//!
//! `cargo run --release -p weir-mysql --example fuzz_mysql_answers -- --seconds 60`; `WEIR_SEED` repeats
//! a run.

#[path = "../../weir-http/examples/fuzzing/mod.rs"]
mod fuzzing;

use std::process::ExitCode;

use weir_mysql::answer::{AnswerEvent, AnswerReader, WholeAnswer};
use weir_mysql::capability::Capabilities;
use weir_mysql::command::ClientCommand;
use weir_mysql::outcome::SessionChanges;
use weir_mysql::response::{AnswerEnd, AnswerPart, LEAST_HEAD_BYTES};
use weir_mysql::session_track::TrackedChanges;

const COLUMN: &[u8] = b"\x16\0\0\x02\x03def\0\0\0\x01a\0\x0c\x3f\0\x01\0\0\0\x08\x81\0\0\0\0";

const SEEDS: &[&[u8]] = &[
    b"\x07\0\0\x01\0\0\0\x02\0\0\0",
    b"\x10\0\0\x01\0\x01\0\x02\x40\0\0\0\x07\x01\x05\x04shop",
    b"\x01\0\0\x01\x01\x03\0\0\x02\x03de\x01\0\0\x03\xfb\x07\0\0\x04\xfe\0\0\x0a\0\0\0\x07\0\0\x05\0\0\0\x02\0\0\0",
    b"\x01\0\0\x01\x01\x03\0\0\x02\x03de\x05\0\0\x03\xfe\0\0\x02\0\x02\0\0\x04\0\0\x05\0\0\x05\xfe\0\0\x42\0",
    b"\x0c\0\0\x01\0\x07\0\0\0\x01\0\x01\0\0\0\0\x03\0\0\x02\x03de\x03\0\0\x03\x03de",
    b"\x05\0\0\x01\xfb/tmp\x07\0\0\x04\0\0\0\x02\0\0\0",
    b"\x0c\0\0\x01\xff\x0a\x05#HY000abc",
];

const PIECES: &[&[u8]] = &[
    COLUMN,
    b"\x07\0\0\x02\xfe\0\0\x02\0\0\0",
    b"\x05\0\0\x03\xfe\0\0\x0a\0",
    b"\x01\0\0\x01\x02",
    b"\x00\x40",
    b"\xff\xff\xff\x02\xfe",
    b"\xfc\xff\xff",
];

fn main() -> ExitCode {
    fuzzing::run("answers", SEEDS, PIECES, |bytes, draws| {
        let command = ClientCommand::ALL[draws.below(ClientCommand::ALL.len())];
        let mut capabilities = Capabilities::SPOKEN;
        for flag in [Capabilities::DEPRECATE_EOF, Capabilities::SESSION_TRACK, Capabilities::LOCAL_FILES] {
            if draws.below(2) == 0 {
                capabilities = capabilities.without(flag);
            }
        }
        let limit = LEAST_HEAD_BYTES + draws.below(200);
        let Some(reader) = AnswerReader::new(command, 0, capabilities, limit) else { return Ok(0) };
        let reader = reader.telling_definitions(draws.below(2) == 0);
        let whole = read(bytes, reader.clone(), || usize::MAX)?;
        let split = read(bytes, reader, || 1 + draws.below(7))?;
        if whole != split {
            return Err(format!("{}: whole gives {whole:?}, split gives {split:?}", command.name()));
        }
        if let Some(at_once) = WholeAnswer::read(command, 0, capabilities, bytes) {
            // A reader that is told to tell nothing else, and everything of the end.
            let Some(reader) = AnswerReader::new(command, 0, capabilities, usize::MAX) else { return Ok(0) };
            let pieces = read(bytes, reader, || usize::MAX)?;
            let end = AnswerPart::Over(AnswerEnd::Ok(at_once.ok));
            if pieces != [(bytes.len(), format!("{end:?}"))] {
                return Err(format!(
                    "{}: {at_once:?} is read at once, and {pieces:?} piece by piece",
                    command.name()
                ));
            }
        }
        Ok(1 + whole.len().min(9) as u64 + 10 * u64::from(command.byte()))
    })
}

/// What is told, with the bytes up to it.
fn read(
    bytes: &[u8],
    mut reader: AnswerReader,
    mut slice_bytes: impl FnMut() -> usize,
) -> Result<Vec<(usize, String)>, String> {
    let (mut told, mut at, mut end) = (Vec::new(), 0_usize, 0_usize);
    while !reader.is_over() {
        let step = match reader.advance(&bytes[at..end]) {
            Ok(step) => step,
            Err(error) => {
                told.push((0, error.to_string()));
                return Ok(told);
            }
        };
        if step.before > step.consumed || step.consumed > end - at {
            return Err(format!("{step:?} of {} bytes", end - at));
        }
        at += step.consumed;
        match step.event {
            AnswerEvent::More { needs } if needs <= end - at => {
                return Err(format!("{needs} bytes are asked for, and {} are there", end - at));
            }
            AnswerEvent::More { .. } if end == bytes.len() => return Ok(told),
            AnswerEvent::More { .. } => end = end.saturating_add(slice_bytes()).min(bytes.len()),
            AnswerEvent::Part(_) if step.consumed == step.before => {
                return Err(format!("no progress: {step:?}"));
            }
            AnswerEvent::Part(part) => {
                if let AnswerPart::Over(over) | AnswerPart::ResultOver(over) = part
                    && let SessionChanges::Told(changes) = over.changes()
                {
                    let count = TrackedChanges::new(changes).count();
                    if count > changes.len() {
                        return Err(format!("{count} changes in {} bytes", changes.len()));
                    }
                }
                if matches!(part, AnswerPart::LocalInfile { .. }) {
                    reader.infile_sent(3);
                }
                told.push((at, format!("{part:?}")));
            }
        }
    }
    Ok(told)
}
