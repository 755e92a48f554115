//! Fuzzes the streams of an HTTP/3 client: no panic, progress on every call, the same messages, events and
//! faults for every split, and nothing read beyond its limits.
//!
//! `cargo run --release -p weir-http --example fuzz_h3_streams -- --seconds 60`; `WEIR_SEED` repeats a run.

mod fuzzing;

use std::process::ExitCode;

use weir_http::Limits;
use weir_http::h3::{
    Config, Connection, Event, Fault, PeerStream, SectionError, SectionLimits, SectionRead, StreamEvent,
};

/// The first byte of an input says which stream: request, control, encoder or decoder, or any bytes on a new
/// one.
const SEEDS: &[&[u8]] = &[
    b"\x00\x01\x08\0\0\xd1\xd7\xc1\x50\x01a\0\x05hello",
    b"\x00\x01\x04\0\0\xd1\xd7\0\x05hello\x21\x03abc\x01\x06\0\0\x21x\x01y",
    b"\x00\x01\x05\x05\x00\x80\x81\x10\0\x01x",
    b"\x01\x04\x05\x01\x50\x00\x07\x10\x07\x01\x04\x0d\x01\x09\x21\x02xx",
    b"\x02\x3f\xe1\x1f\xc0\x0fwww.example.com\xc1\x0c/sample/path\x4acustom-key\x0ccustom-value\x02\x81\x0dcustom-value2",
    b"\x03\x44\x48\x7f\x01",
    b"\x04\x40\x21abc",
    b"\x04\x02\x3f\xe1\x1f",
];

const PIECES: &[&[u8]] = &[
    b"\x00\x05hello",
    b"\x01\x04\0\0\xd1\xd7",
    b"\x01\x03\x02\x00\x80",
    b"\x04\x00",
    b"\x07\x01\x04",
    b"\x0d\x01\x01",
    b"\x21\x02xx",
    b"\x3f\xe1\x1f",
    b"\x20",
    b"\xc0\x01a",
    b"\x41n\x81\x1f",
    b"\x00\x00\x51\x84\xff\xff\xff\x00",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00",
    b"\x80",
    b"\x10",
];

fn main() -> ExitCode {
    fuzzing::run("HTTP/3 streams", SEEDS, PIECES, |bytes, draws| {
        let limits = Limits { trailer_bytes: 200, trailer_count: 4, ..Limits::default() };
        let config = Config {
            head: SectionLimits { bytes: 600 + draws.below(400), field_count: 12 },
            qpack_blocked_streams: draws.below(3),
            ..Config::new(&limits)
        };
        let seed = draws.next() as u32;
        let whole = play(bytes, &config, seed, || usize::MAX)?;
        let split = play(bytes, &config, seed, || 1 + draws.below(9))?;
        if whole != split {
            return Err(format!("whole gives {whole:?}, split gives {split:?}"));
        }
        Ok(whole.fault.map_or(whole.fields.len().min(20) as u64, |fault| 100 + fault as u64))
    })
}

/// The result of an input.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    fault: Option<Fault>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    content: Vec<u8>,
    events: Vec<Event>,
    ignored: bool,
}

fn play(
    bytes: &[u8],
    config: &Config,
    draw: u32,
    mut piece_bytes: impl FnMut() -> usize,
) -> Result<Outcome, String> {
    let mut connection = Connection::new(config, draw);
    let mut outcome = Outcome::default();
    let Some((&first, mut rest)) = bytes.split_first() else { return Ok(outcome) };
    // The meaning of the encoder and request streams depends on the table.
    let opened: [(u64, &[u8]); 3] =
        [(2, b"\x00\x04\x00"), (6, b"\x02\x3f\xe1\x1f\x41n\x01v\xc0\x03abc"), (10, b"\x03")];
    for (stream_id, start) in opened {
        connection.receive(stream_id, start).map_err(|fault| format!("a good start earns {fault}"))?;
    }
    let target = [None, Some(2), Some(6), Some(10)].get(usize::from(first)).copied().unwrap_or(Some(14));
    let result = match target {
        None => request(&mut connection, config, rest, piece_bytes, &mut outcome)?,
        Some(stream_id) => {
            let mut result = Ok(());
            while !rest.is_empty() && result.is_ok() && !outcome.ignored {
                let (piece, behind) = rest.split_at(piece_bytes().min(rest.len()));
                rest = behind;
                result = connection
                    .receive(stream_id, piece)
                    .map(|said| outcome.ignored = said == PeerStream::Ignore);
            }
            result
        }
    };
    outcome.fault = result.err();
    // An event before a fault may be told or not: the connection ends with the fault.
    if outcome.fault.is_none() {
        outcome.events = std::iter::from_fn(|| connection.poll_event()).collect();
    }
    Ok(outcome)
}

fn request(
    connection: &mut Connection,
    config: &Config,
    bytes: &[u8],
    mut piece_bytes: impl FnMut() -> usize,
    outcome: &mut Outcome,
) -> Result<Result<(), Fault>, String> {
    let mut stream = connection.admit(0).ok_or("a request is refused without GOAWAY")?;
    let mut at = 0;
    while at < bytes.len() {
        let end = at.saturating_add(piece_bytes()).min(bytes.len());
        while at < end {
            let input = &bytes[at..end];
            let step = match stream.advance(input) {
                Ok(step) => step,
                Err(fault) => return Ok(Err(fault)),
            };
            match step.event {
                StreamEvent::Section(section) => {
                    let before = outcome.fields.len();
                    let read = connection.read_section(&mut stream, input, section, |name, value| {
                        outcome.fields.push((name.to_vec(), value.to_vec()));
                        Ok::<(), ()>(())
                    });
                    let new = &outcome.fields[before..];
                    let cost: usize = new.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
                    if cost > config.head.bytes || new.len() > config.head.field_count {
                        return Err(format!("{} fields of {cost} bytes were given out", new.len()));
                    }
                    match read {
                        Ok(SectionRead::Complete) => {}
                        // Nothing more of the stream is read.
                        Ok(SectionRead::Blocked) => return Ok(Ok(())),
                        Err(SectionError::Fault(fault)) => return Ok(Err(fault)),
                        Err(SectionError::Refused(())) => return Err("no field was refused".to_string()),
                    }
                }
                StreamEvent::Data(range) => outcome.content.extend_from_slice(&input[range]),
                StreamEvent::NeedMore if step.consumed < input.len() => {
                    return Err("bytes are left".to_string());
                }
                StreamEvent::NeedMore => {}
                StreamEvent::Blocked => return Err("the stream is blocked".to_string()),
            }
            if step.consumed == 0 {
                return Err(format!("no progress on {} bytes", input.len()));
            }
            at += step.consumed;
        }
    }
    Ok(stream.finish())
}
