//! Fuzzes QPACK: instructions and then a section never panic nor exceed the limits, and what was read is read
//! again from what Weir writes of it.
//!
//! `cargo run --release -p weir-http --example fuzz_qpack -- --seconds 60`; `WEIR_SEED` repeats a run.

mod fuzzing;

use std::process::ExitCode;

use weir_http::h3::{Fault, SectionError, SectionLimits, SectionRead, SectionWriter, qpack::Decoder, varint};

/// The first byte of an input says how many of the following bytes are instructions; the rest is a section.
const SEEDS: &[&[u8]] = &[
    b"\x00\0\0\xd1\xd7\xc1\x50\x01a",
    b"\x00\0\0\x51\x84\x60\xd5\x48\x5f\x2f\x03x-a\x83\x1c\x64\xff",
    b"\x10\x3f\xe1\x1f\x41n\x01v\xc0\x03abc\x82\x01w\x00\x05\x00\x80\x81\x82\x83",
    b"\x0c\x3f\xe1\x1f\xc0\x01a\xc0\x01b\xc0\x01c\x03\x81\x80\x10\x11\x00\x01x\x40\x01y",
];

const PIECES: &[&[u8]] = &[
    b"\x3f\xe1\x1f",
    b"\x3f\x21",
    b"\xc0\x01a",
    b"\x41n\x01v",
    b"\x80\x01z",
    b"\x00",
    b"\x01",
    b"\xd1",
    b"\x80",
    b"\x10",
    b"\x51\x81\x1f",
    b"\x23abc\x01d",
    b"\x2b\xf2\xb1\xa4\x83\xff\xff\xf7",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
];

const LIMITS: SectionLimits = SectionLimits { bytes: 3000, field_count: 40 };

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn main() -> ExitCode {
    fuzzing::run("QPACK", SEEDS, PIECES, |bytes, draws| {
        let Some((&count, rest)) = bytes.split_first() else { return Ok(0) };
        let (instructions, section) = rest.split_at(usize::from(count).min(rest.len()));
        let mut decoder = Decoder::new(draws.below(4097), 1);
        if let Err(fault) = decoder.receive_instructions(instructions) {
            return Ok(200 + fault as u64);
        }
        let fields = match read(&mut decoder, section)? {
            Ok(fields) => fields,
            Err(fault) => return Ok(100 + fault as u64),
        };
        if decoder.output().len() > 32 {
            return Err(format!("{} bytes acknowledge one section", decoder.output().len()));
        }
        written_again(&fields)?;
        Ok(fields.len().min(50) as u64)
    })
}

fn read(decoder: &mut Decoder, section: &[u8]) -> Result<Result<Fields, Fault>, String> {
    let mut fields = Fields::new();
    let read = decoder.read_section(0, section, LIMITS, |name, value| {
        fields.push((name.to_vec(), value.to_vec()));
        Ok::<(), ()>(())
    });
    let cost: usize = fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
    if cost > LIMITS.bytes || fields.len() > LIMITS.field_count {
        return Err(format!("{} fields of {cost} bytes were given out", fields.len()));
    }
    match read {
        Ok(SectionRead::Complete) => Ok(Ok(fields)),
        Ok(SectionRead::Blocked) if fields.is_empty() => Ok(Ok(fields)),
        Ok(SectionRead::Blocked) => Err("a blocked section gave fields".to_string()),
        Err(SectionError::Fault(fault)) => Ok(Err(fault)),
        Err(SectionError::Refused(())) => Err("no field was refused".to_string()),
    }
}

fn written_again(fields: &Fields) -> Result<(), String> {
    let mut out = Vec::new();
    let mut writer = SectionWriter::new(&mut out);
    for (name, value) in fields {
        writer.field(name, value);
    }
    writer.finish();
    let (length, length_bytes) = varint::read(&out[1..]).ok_or("no length was written")?;
    let section = &out[1 + length_bytes..];
    if section.len() as u64 != length {
        return Err(format!("a length of {length} was written before {} bytes", section.len()));
    }
    let lower: Fields =
        fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    match read(&mut Decoder::new(0, 0), section)? {
        Ok(again) if again == lower => Ok(()),
        other => Err(format!("written again it reads as {other:?}")),
    }
}
