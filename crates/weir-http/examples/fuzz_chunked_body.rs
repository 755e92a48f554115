//! Fuzzes chunked bodies: no panic, progress on every call, the same result for every split, content that
//! survives being written again, and no trailer that frames or routes.
//!
//! `cargo run --release -p weir-http --example fuzz_chunked_body -- --seconds 60`; `WEIR_SEED` repeats a run.

mod fuzzing;

use std::process::ExitCode;

use weir_http::h1::chunked::{write_chunk_end, write_chunk_head, write_last_chunk};
use weir_http::{BodyLength, BodyReader, KnownHeader, Limits, Violation};

const SEEDS: &[&[u8]] = &[
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;a=b;c=\"d\\\"e\"\r\nhello\r\n00a\r\n0123456789\r\n0\r\n\r\nGET / HTTP/1.1\r\n",
    b"1\r\nx\r\n0;last\r\nChecksum: abc\r\nContent-Length: 5\r\n\r\n",
    b"7fffffffffffffff\r\nabc",
];

const PIECES: &[&[u8]] = &[
    b"\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b";a=b",
    b";a=\"b\"",
    b"ffffffffffffffff",
    b"0000000000000000",
    b"\r\nHost: x",
    b"\n",
    b"\r",
];

fn main() -> ExitCode {
    fuzzing::run("chunked bodies", SEEDS, PIECES, |bytes, draws| {
        let limits = Limits {
            chunk_extension_bytes: draws.below(40),
            trailer_bytes: draws.below(80),
            trailer_count: draws.below(4),
            ..Limits::default()
        };
        let whole = read(bytes, &limits, || usize::MAX);
        let split = read(bytes, &limits, || 1 + draws.below(9));
        if whole != split {
            return Err(format!("whole gives {whole:?}, split gives {split:?}"));
        }
        let Ok(Body { content, rewritten, .. }) = &whole else {
            return Ok(whole.map_or_else(|violation| 2 + violation as u64, |_| 0));
        };
        let again = read(rewritten, &Limits::default(), || usize::MAX);
        match again {
            Ok(again) if again.content == *content && again.consumed == rewritten.len() => Ok(1),
            other => Err(format!("written again it reads as {other:?}: \"{}\"", rewritten.escape_ascii())),
        }
    })
}

#[derive(Debug, PartialEq)]
struct Body {
    content: Vec<u8>,
    consumed: usize,
    /// The same body as Weir writes it: one chunk, kept trailers.
    rewritten: Vec<u8>,
}

fn read(bytes: &[u8], limits: &Limits, mut piece_bytes: impl FnMut() -> usize) -> Result<Body, Violation> {
    let mut reader = BodyReader::new(BodyLength::Chunked, limits);
    let (mut content, mut consumed) = (Vec::new(), 0_usize);
    while !reader.is_complete() {
        let end = consumed.saturating_add(piece_bytes()).min(bytes.len());
        let input = &bytes[consumed..end];
        let step = reader.advance(input)?;
        content.extend_from_slice(&input[step.data.clone()]);
        consumed += step.consumed;
        if input.is_empty() {
            reader.finish_at_eof()?;
        }
        assert!(step.consumed > 0 || input.is_empty(), "no progress on {} bytes", input.len());
        assert!(step.complete == reader.is_complete(), "the step and the reader disagree");
    }
    let mut rewritten = Vec::new();
    if !content.is_empty() {
        write_chunk_head(&mut rewritten, content.len() as u64);
        rewritten.extend_from_slice(&content);
        write_chunk_end(&mut rewritten);
    }
    write_last_chunk(&mut rewritten, reader.trailers());
    let forbidden = [KnownHeader::ContentLength, KnownHeader::TransferEncoding, KnownHeader::Host];
    assert!(
        reader.trailers().all(|field| !forbidden.contains(&field.known)),
        "a framing or routing trailer was kept"
    );
    Ok(Body { content, consumed, rewritten })
}
