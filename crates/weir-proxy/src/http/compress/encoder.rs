//! Encoders for content codings. They work one step at a time, into a buffer that the caller provides.

use brotli::enc::StandardAlloc;
use brotli::enc::encode::{BrotliEncoderOperation, BrotliEncoderStateStruct};
use flate2::{Compression, FlushCompress, Status};
use weir_config::Coding;
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

/// Largest window of any coding, as a power of two: decoders have to hold it too, and an encoder's memory
/// grows with it.
const WINDOW_BITS: u32 = 17;
/// Largest window of gzip (RFC 1951 §2).
const GZIP_WINDOW_BITS: u32 = 15;

/// An encoder for one body. Each step takes some input and fills some of the output buffer.
pub enum Encoder {
    Gzip(flate2::Compress),
    Brotli(Box<BrotliEncoderStateStruct<StandardAlloc>>),
    Zstd(CCtx<'static>),
}

/// How much output must follow the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// As much as the encoder likes: more input follows.
    More,
    /// Everything taken so far, so that the client can decode it. Must be requested again, without input,
    /// until it is complete.
    Flush,
    /// Everything, and the end of the content. Must be requested again until it is complete.
    Finish,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Bytes of input taken.
    pub consumed: usize,
    /// Bytes of output written.
    pub produced: usize,
    /// All input was taken and, for [`Then::Flush`] and [`Then::Finish`], all output was written.
    pub complete: bool,
}

/// The encoder ran out of memory, or was called in the wrong order.
#[derive(Debug)]
pub struct Broken;

impl Encoder {
    /// An encoder for a body of `length` bytes, if that is known: a short body needs less memory. `None` if
    /// no memory can be allocated.
    ///
    /// Allocates at most what [`memory_bytes`] says.
    pub fn new(coding: Coding, level: u32, length: Option<u64>) -> Option<Encoder> {
        let most = if coding == Coding::Gzip { GZIP_WINDOW_BITS } else { WINDOW_BITS };
        // With a window of twice the length, no byte falls out of it.
        let needed = length.map_or(most, |length| length.max(1).ilog2() + 1);
        match coding {
            Coding::Gzip => {
                let bits = needed.clamp(9, most) as u8;
                Some(Encoder::Gzip(flate2::Compress::new_gzip(Compression::new(level), bits)))
            }
            Coding::Brotli => {
                let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
                // From quality 5 on the library derives its table sizes from the window.
                let bits = if level < 5 { needed.clamp(10, most) } else { most };
                state.params.quality = level as i32;
                state.params.lgwin = bits as i32;
                Some(Encoder::Brotli(Box::new(state)))
            }
            Coding::Zstd => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(level as i32)).ok()?;
                context.set_parameter(CParameter::WindowLog(needed.clamp(10, most))).ok()?;
                if level > 3 {
                    // The tables of the higher levels are sized for windows of megabytes, and do not shrink
                    // with the window.
                    context.set_parameter(CParameter::HashLog(most)).ok()?;
                    context.set_parameter(CParameter::ChainLog(most)).ok()?;
                }
                // The length is then part of the frame, and the content is checked against it.
                context.set_pledged_src_size(length).ok()?;
                Some(Encoder::Zstd(context))
            }
        }
    }

    /// Makes one step. With an empty output buffer it does nothing.
    ///
    /// # Errors
    /// The body can't be encoded to its end.
    pub fn step(&mut self, input: &[u8], room: &mut [u8], then: Then) -> Result<Encoded, Broken> {
        match self {
            Encoder::Gzip(state) => gzip(state, input, room, then),
            Encoder::Brotli(state) => brotli(state, input, room, then),
            Encoder::Zstd(context) => zstd(context, input, room, then),
        }
    }
}

/// Most memory that an encoder holds while it works, in bytes; a test compares it with what the encoder
/// really allocates.
pub const fn memory_bytes(coding: Coding, level: u32) -> u64 {
    match coding {
        Coding::Gzip => 640 << 10,
        Coding::Brotli if level < 4 => 2 << 20,
        // It holds back results of several blocks in order to encode them together.
        Coding::Brotli => 8 << 20,
        Coding::Zstd => 2 << 20,
    }
}

fn gzip(state: &mut flate2::Compress, input: &[u8], room: &mut [u8], then: Then) -> Result<Encoded, Broken> {
    let (taken, made) = (state.total_in(), state.total_out());
    let flush = match then {
        Then::More => FlushCompress::None,
        Then::Flush => FlushCompress::Sync,
        Then::Finish => FlushCompress::Finish,
    };
    let status = state.compress(input, room, flush).map_err(|_| Broken)?;
    let consumed = (state.total_in() - taken) as usize;
    let produced = (state.total_out() - made) as usize;
    let complete = match then {
        Then::Finish => status == Status::StreamEnd,
        // Output that is left over would fill the buffer.
        Then::Flush => consumed == input.len() && produced < room.len(),
        Then::More => consumed == input.len(),
    };
    Ok(Encoded { consumed, produced, complete })
}

fn brotli(
    state: &mut BrotliEncoderStateStruct<StandardAlloc>,
    input: &[u8],
    room: &mut [u8],
    then: Then,
) -> Result<Encoded, Broken> {
    let operation = match then {
        Then::More => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
        Then::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
        Then::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
    };
    let (mut available_in, mut consumed) = (input.len(), 0);
    let (mut available_out, mut produced) = (room.len(), 0);
    let taken = state.compress_stream(
        operation,
        &mut available_in,
        input,
        &mut consumed,
        &mut available_out,
        room,
        &mut produced,
        &mut None,
        &mut |_, _, _, _| (),
    );
    if !taken {
        return Err(Broken);
    }
    let complete = match then {
        Then::Finish => state.is_finished(),
        Then::Flush => available_in == 0 && !state.has_more_output(),
        Then::More => available_in == 0,
    };
    Ok(Encoded { consumed, produced, complete })
}

fn zstd(context: &mut CCtx<'static>, input: &[u8], room: &mut [u8], then: Then) -> Result<Encoded, Broken> {
    let operation = match then {
        Then::More => ZSTD_EndDirective::ZSTD_e_continue,
        Then::Flush => ZSTD_EndDirective::ZSTD_e_flush,
        Then::Finish => ZSTD_EndDirective::ZSTD_e_end,
    };
    let mut source = InBuffer::around(input);
    let mut sink = OutBuffer::around(room);
    let left = context.compress_stream2(&mut sink, &mut source, operation).map_err(|_| Broken)?;
    let (consumed, produced) = (source.pos(), sink.pos());
    let complete = consumed == input.len() && (then == Then::More || left == 0);
    Ok(Encoded { consumed, produced, complete })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Compressible text, with repetitions near and far.
    pub fn text(length: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(length + 64);
        let mut number = 1_u64;
        while text.len() < length {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.extend_from_slice(format!("<li>{} of {}</li>\n", number >> 40, number >> 56).as_bytes());
        }
        text.truncate(length);
        text
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut number = 1_u64;
        let mut next = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    fn decoded(coding: Coding, encoded: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        match coding {
            Coding::Gzip => {
                flate2::read::GzDecoder::new(encoded).read_to_end(&mut plain).map(|_| ()).unwrap();
            }
            Coding::Brotli => {
                brotli::Decompressor::new(encoded, 4096).read_to_end(&mut plain).map(|_| ()).unwrap();
            }
            Coding::Zstd => {
                plain = vec![0; 8 << 20];
                let count = zstd_safe::decompress(plain.as_mut_slice(), encoded).unwrap();
                plain.truncate(count);
            }
        }
        plain
    }

    /// Encodes in pieces, with a flush after every `flush_every` pieces, into an output buffer of `room`
    /// bytes at a time.
    fn encoded(mut encoder: Encoder, plain: &[u8], piece: usize, flush_every: usize, room: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let mut drive = |input: &[u8], then: Then| {
            let mut rest = input;
            loop {
                let mut buffer = vec![0; room];
                let step = encoder.step(rest, &mut buffer, then).unwrap();
                out.extend_from_slice(&buffer[..step.produced]);
                rest = &rest[step.consumed..];
                if step.complete {
                    return;
                }
                assert!(step.produced + step.consumed > 0, "it stands still");
            }
        };
        for (index, piece) in plain.chunks(piece).enumerate() {
            drive(piece, Then::More);
            if index % flush_every == flush_every - 1 {
                drive(&[], Then::Flush);
            }
        }
        drive(&[], Then::Finish);
        out
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same_whatever_the_pieces() {
        for coding in Coding::ALL {
            for length in [0, 1, 10, 5000, 70_000, 300_000] {
                for plain in [text(length), noise(length)] {
                    for (piece, flush_every, room) in [(64 << 10, 100, 64 << 10), (777, 3, 50), (1, 1, 4096)]
                    {
                        if piece == 1 && length > 5000 {
                            continue;
                        }
                        for known in [None, Some(length as u64)] {
                            let encoder = Encoder::new(coding, 3, known).unwrap();
                            let encoded = encoded(encoder, &plain, piece, flush_every, room);
                            assert_eq!(
                                decoded(coding, &encoded),
                                plain,
                                "{coding:?} {length} {piece} {known:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    fn resident_bytes() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    /// Row D12.
    #[test]
    fn an_encoder_holds_no_more_than_is_charged_for_it() {
        const COUNT: u64 = 24;
        const NAME: &str = "http::compress::encoder::tests::an_encoder_holds_no_more_than_is_charged_for_it";
        // In a process of its own: memory that other tests hold at the same time would be counted too.
        if std::env::var_os("WEIR_TEST_ALONE").is_none() {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let ran =
                alone.args(["--exact", NAME, "--nocapture"]).env("WEIR_TEST_ALONE", "1").output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && said.contains("Brotli 6"), "{said}");
            return;
        }
        let levels = [
            (Coding::Gzip, 1),
            (Coding::Gzip, 9),
            (Coding::Zstd, 1),
            (Coding::Zstd, 3),
            (Coding::Zstd, 5),
            (Coding::Zstd, 12),
        ];
        let levels = levels.into_iter().chain((0..=6).map(|level| (Coding::Brotli, level)));
        let (plain, bad) = (text(1 << 20), noise(1 << 20));
        for (coding, level) in levels {
            let before = resident_bytes();
            let mut held = Vec::new();
            for index in 0..COUNT {
                let mut encoder = Encoder::new(coding, level, None).unwrap();
                let mut room = vec![0; 64 << 10];
                // Content that compresses badly and content that compresses well fill different tables.
                let content = if index % 2 == 0 { &plain } else { &bad };
                let mut rest: &[u8] = content;
                while !rest.is_empty() {
                    let step = encoder.step(rest, &mut room, Then::More).unwrap();
                    rest = &rest[step.consumed..];
                }
                if let Encoder::Zstd(context) = &encoder {
                    assert!(
                        context.sizeof() as u64 <= memory_bytes(coding, level),
                        "zstd {level}: {}",
                        context.sizeof()
                    );
                }
                held.push(encoder);
            }
            let each = resident_bytes().saturating_sub(before) / COUNT;
            println!("{coding:?} {level}: {} KiB of {}", each >> 10, memory_bytes(coding, level) >> 10);
            assert!(each <= memory_bytes(coding, level), "{coding:?} {level} holds {each} bytes");
        }
    }
}
