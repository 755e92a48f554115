use weir_mysql::packet::{MAX_PAYLOAD_BYTES, write_packets};

use super::*;

const BOTH: [Algorithm; 2] = [Algorithm::Zlib, Algorithm::Zstd { level: 3 }];

/// Text that compresses to about a third.
fn text(length: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(length + 64);
    let mut number = 1_u64;
    while text.len() < length {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend_from_slice(format!("({}, 'row {}'), ", number >> 40, number >> 56).as_bytes());
    }
    text.truncate(length);
    text
}

/// Incompressible bytes.
fn noise(length: usize) -> Vec<u8> {
    let mut number = 1_u64;
    let mut next = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// The compressed payload of a packet as another implementation makes it, with no limit on its length.
fn deflated(algorithm: Algorithm, content: &[u8]) -> Vec<u8> {
    let mut out = vec![0; content.len() * 2 + 1024];
    let count = match algorithm {
        Algorithm::Zlib => {
            let mut state = Compress::new(Compression::new(6), true);
            let status = state.compress(content, &mut out, FlushCompress::Finish).unwrap();
            assert_eq!(status, Status::StreamEnd);
            state.total_out() as usize
        }
        Algorithm::Zstd { level } => {
            zstd_safe::compress(out.as_mut_slice(), content, i32::from(level)).unwrap()
        }
    };
    out.truncate(count);
    out
}

fn packet(sequence: u8, payload: &[u8], content_bytes: usize) -> Vec<u8> {
    let payload_bytes = payload.len() as u32;
    let header = CompressedHeader { payload_bytes, sequence, content_bytes: content_bytes as u32 };
    [&header.to_bytes()[..], payload].concat()
}

/// All content of `stream`, which arrives `slice_bytes` at a time and is unpacked into room of `room_bytes`,
/// or of the size that is asked for.
fn unpacked(
    algorithm: Algorithm,
    stream: &[u8],
    slice_bytes: usize,
    room_bytes: Option<usize>,
) -> Result<Vec<u8>, CompressionError> {
    let mut unpacker = Unpacker::new(algorithm);
    let mut turns = CompressedTurns::after_login();
    let (mut content, mut at, mut end) = (Vec::new(), 0, 0);
    loop {
        let input = &stream[at..end];
        assert!(input.len() <= LARGE + slice_bytes, "no more is waited for than a buffer holds");
        let mut room = vec![0; room_bytes.unwrap_or_else(|| unpacker.room_wanted(input))];
        let step = unpacker.step(input, &mut room, &mut turns)?;
        at += step.consumed;
        content.extend_from_slice(&room[..step.produced]);
        if step.needs > 0 {
            assert!(step.needs > end - at && step.needs <= LARGE, "{step:?}");
            if end == stream.len() {
                return Ok(content);
            }
            end = (end + slice_bytes).min(stream.len());
        } else if step == Unpacked::default() {
            assert!(at == end && !unpacker.owes(), "it stands still");
            return Ok(content);
        }
    }
}

/// A command with the sequence ids that the reader will give it.
fn command(length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write_packets(&mut out, 0, &text(length));
    out
}

#[test]
fn content_is_the_same_in_slices_of_every_size() {
    for algorithm in BOTH {
        let content = command(4000);
        let mut stream = Vec::new();
        for (sequence, piece) in content.chunks(1500).enumerate() {
            let sequence = sequence as u8;
            stream.extend(match sequence {
                1 => packet(sequence, piece, 0),
                _ => packet(sequence, &deflated(algorithm, piece), piece.len()),
            });
        }
        for slice_bytes in 1..stream.len() {
            let read = unpacked(algorithm, &stream, slice_bytes, None);
            assert!(read.as_ref() == Ok(&content), "{algorithm:?}, slices of {slice_bytes}");
        }
    }
}

#[test]
fn a_packet_longer_than_a_buffer_is_inflated_piece_by_piece() {
    for algorithm in BOTH {
        for content in [command(LARGE), command(300_000), command(MAX_PAYLOAD_BYTES - 4)] {
            let stream = packet(0, &deflated(algorithm, &content), content.len());
            let slices: &[usize] = if content.len() < 400_000 { &[1, 777, 70_000] } else { &[100_000] };
            for slice_bytes in slices {
                let read = unpacked(algorithm, &stream, *slice_bytes, None);
                assert!(read.as_ref() == Ok(&content), "{algorithm:?}, slices of {slice_bytes}");
            }
        }
    }
}

#[test]
fn a_payload_of_16_mib_and_more_spans_compressed_packets() {
    let content = command(MAX_PAYLOAD_BYTES + 100);
    for algorithm in BOTH {
        let mut stream = Vec::new();
        // Split within the header of its second packet.
        let cut = MAX_PAYLOAD_BYTES + 6;
        let (first, second) = content.split_at(cut - 10);
        stream.extend(packet(0, &deflated(algorithm, first), first.len()));
        stream.extend(packet(1, &deflated(algorithm, &second[..12]), 12));
        stream.extend(packet(2, &second[12..], 0));
        let read = unpacked(algorithm, &stream, 60_000, None);
        assert!(read.as_ref() == Ok(&content), "{algorithm:?}");
    }
}

#[test]
fn what_shrinks_is_deflated_and_what_does_not_or_is_short_goes_as_it_is() {
    for algorithm in BOTH {
        let mut room = vec![0; LARGE];
        for length in [LEAST_COMPRESSED_BYTES, 1000, LARGE] {
            let content = vec![b'x'; length];
            let count = deflate(algorithm, &content, &mut room).expect("it shrinks");
            let mut inflated = vec![0; length];
            assert_eq!(inflate(algorithm, &room[..count], &mut inflated), Ok(()));
            assert!(count < length && inflated == content, "{algorithm:?}, {length}");
        }
        assert_eq!(deflate(algorithm, &[b'x'; LEAST_COMPRESSED_BYTES - 1], &mut room), None);
        assert_eq!(deflate(algorithm, &noise(5000), &mut room), None, "{algorithm:?}");
        assert_eq!(deflate(algorithm, &text(5000), &mut room[..100]), None, "there is no room");
    }
}

#[test]
fn a_length_that_lies_is_refused_before_there_is_more_than_it_says() {
    for algorithm in BOTH {
        for length in [1000, 200_000] {
            let payload = deflated(algorithm, &vec![b'x'; length]);
            for said in [1, length - 1, length + 1, MAX_PAYLOAD_BYTES] {
                for slice_bytes in [9, usize::MAX / 2] {
                    let refused = unpacked(algorithm, &packet(0, &payload, said), slice_bytes, None);
                    assert_eq!(refused, Err(CompressionError::Content), "{algorithm:?} {length} {said}");
                }
            }
        }
    }
}

#[test]
fn sixteen_mebibytes_out_of_a_small_packet_take_a_buffer_at_a_time() {
    for algorithm in BOTH {
        let payload = deflated(algorithm, &vec![0; MAX_PAYLOAD_BYTES]);
        assert!(payload.len() < 32 << 10);
        let stream = packet(0, &payload, MAX_PAYLOAD_BYTES);
        let mut unpacker = Unpacker::new(algorithm);
        let mut turns = CompressedTurns::after_login();
        let (mut at, mut content_bytes) = (0, 0);
        while at < stream.len() || unpacker.owes() {
            let mut room = vec![0; unpacker.room_wanted(&stream[at..])];
            let step = unpacker.step(&stream[at..], &mut room, &mut turns).unwrap();
            assert!(step.produced <= LARGE && unpacker.held_bytes() <= (16 << 20) + (1 << 20), "{step:?}");
            at += step.consumed;
            content_bytes += step.produced;
        }
        assert_eq!(content_bytes, MAX_PAYLOAD_BYTES);
        assert_eq!(unpacker.held_bytes(), 0, "nothing is held between packets");
    }
}

#[test]
fn what_is_no_stream_of_the_algorithm_is_refused() {
    for algorithm in BOTH {
        let content = command(2000);
        let good = deflated(algorithm, &content);
        let mut torn = good.clone();
        torn.truncate(good.len() - 5);
        let trailed = [&good[..], b"more"].concat();
        let other = deflated(BOTH[usize::from(algorithm == Algorithm::Zlib)], &content);
        for payload in [torn, trailed, other, noise(2000)] {
            for said in [content.len(), 100_000] {
                let refused = unpacked(algorithm, &packet(0, &payload, said), usize::MAX / 2, None);
                assert_eq!(refused, Err(CompressionError::Content), "{algorithm:?}, {}", payload.len());
            }
        }
        let nothing = packet(0, b"", 7);
        assert_eq!(unpacked(algorithm, &nothing, 7, None), Err(CompressionError::Content));
    }
}

#[test]
fn packets_without_content_mean_nothing() {
    let stream = [packet(0, b"", 0), packet(1, b"\x01\0\0\0\x0e", 0)].concat();
    assert_eq!(unpacked(Algorithm::Zlib, &stream, 1, None), Ok(b"\x01\0\0\0\x0e".to_vec()));
}

#[test]
fn compressed_packets_out_of_order_are_refused() {
    let stream = [packet(0, b"\x01\0\0", 0), packet(2, b"\0\x0e", 0)].concat();
    assert_eq!(unpacked(Algorithm::Zlib, &stream, 99, None), Err(CompressionError::OutOfOrder));
}

#[test]
fn a_step_gives_content_of_one_packet_alone() {
    let stream = [packet(0, b"\x01\0\0\0\x0e", 0), packet(0, b"\x01\0\0\0\x0e", 0)].concat();
    let mut unpacker = Unpacker::new(Algorithm::Zlib);
    let mut room = [0; 64];
    let step = unpacker.step(&stream, &mut room, &mut CompressedTurns::after_login()).unwrap();
    assert_eq!(step, Unpacked { consumed: 12, produced: 5, needs: 0 });
}
