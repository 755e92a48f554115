//! Threat C4: whatever a peer sends, what it costs is bounded, and bounded before it is paid.

use super::peer::{Message, frame};
use super::*;

const SMALL: SectionLimits = SectionLimits { bytes: 1000, field_count: 20 };

fn count_fields(
    decoder: &mut Decoder,
    section: &[u8],
    limits: SectionLimits,
) -> (Result<SectionRead, Fault>, usize) {
    let mut count = 0;
    let read = decoder.read_section(0, section, limits, |_, _| {
        count += 1;
        Ok::<(), ()>(())
    });
    let read = read.map_err(|error| match error {
        SectionError::Fault(fault) => fault,
        SectionError::Refused(()) => unreachable!("nothing is refused here"),
    });
    (read, count)
}

#[test]
fn c4_one_byte_references_to_a_large_entry_stop_at_the_decoded_size() {
    let mut decoder = Decoder::new(4096, 0);
    // Capacity 4096, one entry of 4000 bytes, then a section of 60000 references to it: 240 MB if one let it.
    let mut instructions = hex("3fe11f 41 61 7f a01e");
    instructions.extend([b'v'; 3999]);
    decoder.receive_instructions(&instructions).unwrap();
    let bomb = [hex("02 00"), vec![0x80; 60_000]].concat();
    let limits = SectionLimits { bytes: 65_536, field_count: 100_000 };
    let (read, count) = count_fields(&mut decoder, &bomb, limits);
    assert_eq!((read, count), (Err(Fault::SectionTooLarge), 65_536 / 4032));
    assert_eq!(Fault::SectionTooLarge.scope(), Scope::Stream);
}

#[test]
fn c4_and_b5_tiny_fields_and_cookie_crumbs_count_32_bytes_each_and_are_counted() {
    let mut decoder = Decoder::new(0, 0);
    // `cookie:` with no value is in the static table: one byte for each field.
    let crumbs = [hex("00 00"), vec![0xc5; 60_000]].concat();
    let by_size = SectionLimits { bytes: 3800, field_count: usize::MAX };
    assert_eq!(count_fields(&mut decoder, &crumbs, by_size), (Err(Fault::SectionTooLarge), 100));
    let by_count = SectionLimits { bytes: usize::MAX, field_count: 77 };
    assert_eq!(count_fields(&mut decoder, &crumbs, by_count), (Err(Fault::TooManyFields), 77));
}

#[test]
fn c4_a_section_over_its_limit_is_refused_by_its_length_and_nothing_of_it_is_kept() {
    let mut peer = Peer::new();
    let limit = h3::Config::new(&Limits::default()).head.bytes as u64;
    let mut stream = peer.connection.admit(0).unwrap();
    let mut start = vec![0x01];
    varint::write(&mut start, limit + 1);
    assert_eq!(stream.advance(&start), Err(Fault::SectionTooLarge));
    // The stream may be read on, to nothing, while the answer is sent.
    let step = stream.advance(&[0; 1000]).unwrap();
    assert_eq!((step.consumed, step.event), (1000, StreamEvent::NeedMore));
    // Trailers have a limit of their own.
    let trailers = frame(0x01, &vec![0; Limits::default().trailer_bytes + 1]);
    let request = [peer::head(peer::GET), trailers].concat();
    assert_eq!(peer.requests(4, &request), Err(Fault::SectionTooLarge));
}

#[test]
fn c4_long_strings_are_refused_before_they_are_decoded() {
    let mut decoder = Decoder::new(4096, 0);
    // A Huffman string of 10000 bytes stands for at least 2666.
    let section = [hex("00 00 51 ff 91 4d"), vec![0x1c; 10_000]].concat();
    assert_eq!(count_fields(&mut decoder, &section, SMALL).0, Err(Fault::SectionTooLarge));
    // An insertion of 2^40 bytes is refused by its length: nothing is awaited.
    decoder.receive_instructions(&hex("3fe11f")).unwrap();
    let endless = hex("c0 7f 81 ff ff ff ff 1f");
    assert_eq!(decoder.receive_instructions(&endless), Err(Fault::InstructionTooLarge));
}

#[test]
fn c4_insertions_without_requests_are_a_flood() {
    for instruction in ["02 ", "c0 01 61", "00", "3fe11f"] {
        let mut decoder = Decoder::new(4096, 16);
        decoder.receive_instructions(&hex("3fe11f c00161 c00161 c00161")).unwrap();
        let instruction = hex(instruction);
        let refused = (1..100_000).find(|_| decoder.receive_instructions(&instruction).is_err());
        let count = refused.expect("the flood is noticed");
        assert!((500..3000).contains(&count), "{count}");
        assert_eq!(decoder.receive_instructions(&instruction), Err(Fault::InstructionFlood));
    }
    assert_eq!(Fault::InstructionFlood.code(), Code::ExcessiveLoad);
}

#[test]
fn insertions_that_serve_requests_are_never_a_flood() {
    let mut decoder = Decoder::new(4096, 16);
    decoder.receive_instructions(&hex("3fe11f")).unwrap();
    // Each request inserts five entries of 100 bytes and refers to the last.
    for round in 1..20_000_u64 {
        for _ in 0..5 {
            decoder.receive_instructions(&[&hex("c0 44")[..], &[b'v'; 0x44]].concat()).unwrap();
        }
        let encoded = (round * 5) % 256 + 1;
        let mut section = vec![encoded as u8];
        if encoded == 255 {
            section.push(0);
        }
        let section = if encoded == 256 { hex("ff 01 00 80") } else { [section, hex("00 80")].concat() };
        assert_eq!(count_fields(&mut decoder, &section, SMALL), (Ok(SectionRead::Complete), 1), "{round}");
        let said = decoder.output().len();
        decoder.sent(said);
    }
}

/// Whether a server's sections are read is up to the client, which may cancel its requests.
#[test]
fn what_a_server_inserts_for_answers_that_nobody_reads_is_no_flood_and_what_a_client_does_is() {
    let limits = Limits::default();
    for (config, most) in [(h3::Config::of_backend(&limits), None), (h3::Config::new(&limits), Some(200))] {
        let mut connection = Connection::new(&config, 7);
        connection.receive(2, &uni(0x02, &hex("3fe11f"))).unwrap();
        let flood = (0..2000_u64).find(|number| {
            let inserted = connection.receive(2, &[&hex("c0 7f e9 06")[..], &[b'v'; 1000]].concat());
            connection.abandon(4 * number).unwrap();
            let said = connection.pending(OwnStream::QpackDecoder).len();
            connection.sent(OwnStream::QpackDecoder, said);
            inserted.is_err()
        });
        assert_eq!(flood.is_some(), most.is_some(), "{flood:?}");
        assert!(flood <= most, "{flood:?}");
    }
}

#[test]
fn c4_streams_beyond_the_promised_number_of_blocked_ones_end_the_connection() {
    let mut peer = Peer::new();
    let blocked = frame(0x01, &hex("02 00 80"));
    let mut streams = Vec::new();
    for stream_id in (0..16 * 4).step_by(4) {
        let mut stream = peer.connection.admit(stream_id).unwrap();
        let StreamEvent::Section(section) = stream.advance(&blocked).unwrap().event else { panic!() };
        let read = peer.connection.read_section(&mut stream, &blocked, section, |_, _| Ok::<(), ()>(()));
        assert_eq!(read, Ok(SectionRead::Blocked));
        assert!(stream.is_blocked());
        assert_eq!(stream.advance(b"\0\x01x").unwrap().event, StreamEvent::Blocked);
        streams.push(stream);
    }
    assert_eq!(peer.connection.blocked_count(), 16);
    // One that is given up makes room for another.
    peer.connection.abandon(8).unwrap();
    assert_eq!(peer.connection.blocked_count(), 15);
    for (stream_id, expected) in [(64, None), (68, Some(Fault::TooManyBlocked))] {
        let mut stream = peer.connection.admit(stream_id).unwrap();
        let StreamEvent::Section(section) = stream.advance(&blocked).unwrap().event else { panic!() };
        let read = peer.connection.read_section(&mut stream, &blocked, section, |_, _| Ok::<(), ()>(()));
        assert_eq!(read.err(), expected.map(SectionError::Fault));
    }
    assert_eq!(Fault::TooManyBlocked.code(), Code::QpackDecompressionFailed);
}

#[test]
fn a_section_that_is_tried_again_too_early_counts_as_blocked_once() {
    let mut decoder = Decoder::new(4096, 2);
    for _ in 0..10 {
        assert_eq!(count_fields(&mut decoder, &hex("02 00 80"), SMALL), (Ok(SectionRead::Blocked), 0));
    }
    assert_eq!(decoder.blocked_count(), 1);
    decoder.receive_instructions(&hex("3fe11f c00161")).unwrap();
    assert_eq!((decoder.poll_unblocked(), decoder.poll_unblocked()), (Some(0), None));
    assert_eq!(count_fields(&mut decoder, &hex("02 00 80"), SMALL), (Ok(SectionRead::Complete), 1));
}

#[test]
fn c4_a_peer_that_reads_no_acknowledgements_is_closed_before_they_fill_memory() {
    let mut decoder = Decoder::new(4096, 16);
    let refused = (0..1_000_000).find(|stream_id| decoder.cancel(4 * stream_id).is_err()).unwrap();
    assert!(refused < 16 * 1024, "{refused}");
    assert!(decoder.output().len() < 17 * 1024);
    assert_eq!(decoder.cancel(0), Err(Fault::AcknowledgementsUnread));
}

#[test]
fn unknown_frames_are_skipped_up_to_a_bound() {
    let mut peer = Peer::new();
    let some = [frame(0x21, &[1; 5000]), peer::head(peer::GET), frame(0x40, b"")].concat();
    assert_eq!(peer.requests(0, &some).unwrap().sections.len(), 1);
    let mut stream = peer.connection.admit(4).unwrap();
    let mut message = Message::default();
    let piece = frame(0x21, &[1; 16_000]);
    let count = (0..1000).take_while(|_| peer.reads(&mut stream, &piece, &mut message).is_ok()).count();
    assert!((60..70).contains(&count), "{count}");
    assert_eq!(peer.reads(&mut stream, &piece, &mut message), Err(Fault::UnknownFramesTooLarge));
    // On the control stream each request allows more: priorities of requests come there.
    let update = frame(0xf0700, b"\0u=3,i");
    let count = (0..100_000).take_while(|_| peer.sends(2, &update).is_ok()).count();
    assert!((8000..10_000).contains(&count), "{count}");
}

#[test]
fn streams_of_unknown_types_are_ignored_up_to_a_bound() {
    let mut peer = Peer::new();
    for index in 0..64 {
        assert_eq!(peer.sends(6 + 4 * index, &uni(0x21 + 0x1f * index, b"x")), Ok(PeerStream::Ignore));
    }
    assert_eq!(peer.sends(6 + 4 * 64, &uni(0x21, b"")), Err(Fault::TooManyStreams));
    let mut peer = Peer::new();
    let begun = (0..1000).take_while(|index| peer.sends(6 + 4 * index, &[0xc0]).is_ok()).count();
    assert_eq!(begun, 16);
    assert_eq!(peer.sends(6, &[0xc0, 0, 0, 0, 0, 0, 0x21]), Ok(PeerStream::Ignore));
}
