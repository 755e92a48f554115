//! Threat C10: each misuse of frames and streams ends in exactly the code that RFC 9114 and RFC 9204 give it.

use super::peer::{GET, frame, head};
use super::*;

/// Bytes that a client sends on its streams, in order, and the error that they earn.
struct Misuse {
    what: &'static str,
    /// Stream id and bytes; request streams (0, 4, ...) end after their bytes.
    sends: Vec<(u64, Vec<u8>)>,
    fault: Fault,
    code: u64,
}

fn misuse(what: &'static str, sends: Vec<(u64, Vec<u8>)>, fault: Fault, code: u64) -> Misuse {
    Misuse { what, sends, fault, code }
}

/// Settings first, then these frames on the control stream.
fn control(frames: &[Vec<u8>]) -> Vec<(u64, Vec<u8>)> {
    vec![(2, uni(0x00, &[vec![settings_frame()], frames.to_vec()].concat().concat()))]
}

fn request(frames: &[Vec<u8>]) -> Vec<(u64, Vec<u8>)> {
    vec![(0, frames.concat())]
}

/// Plays the dialogue to its first fault, whole or byte by byte.
fn first_fault(misuse: &Misuse, piece_bytes: usize) -> Option<Fault> {
    let mut peer = Peer::silent(&h3::Config::new(&Limits::default()));
    for (stream_id, bytes) in &misuse.sends {
        if stream_id % 4 == 0 {
            if let Err(fault) = peer.requests_in_pieces(*stream_id, bytes, piece_bytes) {
                return Some(fault);
            }
            continue;
        }
        for piece in bytes.chunks(piece_bytes) {
            if let Err(fault) = peer.sends(*stream_id, piece) {
                return Some(fault);
            }
        }
    }
    None
}

fn check(misuses: &[Misuse]) {
    for misuse in misuses {
        for piece_bytes in [usize::MAX, 1] {
            let found = first_fault(misuse, piece_bytes);
            assert_eq!(found, Some(misuse.fault), "{} in pieces of {piece_bytes}", misuse.what);
        }
        assert_eq!(misuse.fault.code().value(), misuse.code, "{}", misuse.what);
    }
}

#[test]
fn c10_frames_on_the_wrong_stream_earn_h3_frame_unexpected() {
    let body = |kind| frame(kind, b"");
    let misuses = [
        misuse(
            "DATA on the control stream",
            control(&[body(0x0)]),
            Fault::MessageFrameOnControlStream,
            0x105,
        ),
        misuse(
            "HEADERS on the control stream",
            control(&[body(0x1)]),
            Fault::MessageFrameOnControlStream,
            0x105,
        ),
        misuse("PUSH_PROMISE there", control(&[body(0x5)]), Fault::MessageFrameOnControlStream, 0x105),
        misuse(
            "CANCEL_PUSH in a request",
            request(&[frame(0x3, &[0])]),
            Fault::ControlFrameOnRequestStream,
            0x105,
        ),
        misuse(
            "SETTINGS in a request",
            request(&[settings_frame()]),
            Fault::ControlFrameOnRequestStream,
            0x105,
        ),
        misuse(
            "GOAWAY in a request",
            request(&[frame(0x7, &[0])]),
            Fault::ControlFrameOnRequestStream,
            0x105,
        ),
        misuse(
            "MAX_PUSH_ID in a request",
            request(&[frame(0xd, &[0])]),
            Fault::ControlFrameOnRequestStream,
            0x105,
        ),
        misuse(
            "SETTINGS behind a head",
            request(&[head(GET), settings_frame()]),
            Fault::ControlFrameOnRequestStream,
            0x105,
        ),
        misuse("PUSH_PROMISE from a client", request(&[body(0x5)]), Fault::PushPromiseFromClient, 0x105),
    ];
    check(&misuses);
}

#[test]
fn c10_frame_types_of_http_2_earn_h3_frame_unexpected_on_every_stream() {
    for kind in [0x2, 0x6, 0x8, 0x9] {
        check(&[
            misuse("an HTTP/2 frame first", request(&[frame(kind, b"12345")]), Fault::FrameOfHttp2, 0x105),
            misuse("one behind a head", request(&[head(GET), frame(kind, b"")]), Fault::FrameOfHttp2, 0x105),
            misuse("one on the control stream", control(&[frame(kind, b"1234")]), Fault::FrameOfHttp2, 0x105),
        ]);
    }
}

#[test]
fn c10_frames_of_a_message_out_of_order_earn_h3_frame_unexpected() {
    let trailers = || head(&[("x-sum", "1")]);
    check(&[
        misuse("DATA first", request(&[frame(0x0, b"x")]), Fault::DataBeforeHeaders, 0x105),
        misuse("empty DATA first", request(&[frame(0x0, b"")]), Fault::DataBeforeHeaders, 0x105),
        misuse(
            "DATA behind trailers",
            request(&[head(GET), trailers(), frame(0x0, b"x")]),
            Fault::FrameAfterTrailers,
            0x105,
        ),
        misuse(
            "HEADERS behind trailers",
            request(&[head(GET), frame(0x0, b"x"), trailers(), trailers()]),
            Fault::FrameAfterTrailers,
            0x105,
        ),
    ]);
}

#[test]
fn c10_a_stream_that_ends_too_early_earns_h3_frame_error_or_h3_request_incomplete() {
    let whole = [head(GET), frame(0x0, b"hello")].concat();
    let head_bytes = head(GET).len();
    for cut in 0..whole.len() {
        let (fault, code) = match cut {
            0 => (Fault::RequestIncomplete, 0x10d),
            _ if cut == head_bytes => continue,
            _ => (Fault::TruncatedFrame, 0x106),
        };
        check(&[misuse("a request cut off", request(&[whole[..cut].to_vec()]), fault, code)]);
    }
    let only_unknown = frame(0x21, b"abc");
    check(&[misuse("unknown frames alone", request(&[only_unknown]), Fault::RequestIncomplete, 0x10d)]);
    check(&[misuse("half an unknown frame", request(&[vec![0x21, 5, 1]]), Fault::TruncatedFrame, 0x106)]);
    assert_eq!(Fault::RequestIncomplete.scope(), Scope::Stream);
    assert_eq!(Fault::TruncatedFrame.scope(), Scope::Connection);
}

#[test]
fn c10_the_control_stream_begins_with_settings_and_has_them_once() {
    for first in [frame(0x7, &[0]), frame(0xd, &[0]), frame(0x3, &[0]), frame(0x21, b""), frame(0x0, b"x")] {
        let sends = vec![(2, uni(0x00, &first))];
        check(&[misuse("another frame first", sends, Fault::FrameBeforeSettings, 0x10a)]);
    }
    check(&[
        misuse("SETTINGS twice", control(&[settings_frame()]), Fault::SettingsRepeated, 0x105),
        misuse(
            "SETTINGS without an end",
            vec![(2, uni(0x00, &[0x04, 0x80, 0x01, 0x00, 0x00]))],
            Fault::SettingsTooLarge,
            0x107,
        ),
    ]);
}

#[test]
fn c10_wrong_settings_earn_h3_settings_error() {
    let sent = |payload: &[u8]| vec![(2, uni(0x00, &frame(0x04, payload)))];
    for identifier in [0x00, 0x02, 0x03, 0x04, 0x05] {
        check(&[misuse("a setting of HTTP/2", sent(&[identifier, 0]), Fault::SettingOfHttp2, 0x109)]);
    }
    check(&[
        misuse("a setting twice", sent(&[0x06, 1, 0x01, 0, 0x06, 1]), Fault::SettingRepeated, 0x109),
        misuse("an unknown setting twice", sent(&[0x21, 1, 0x21, 2]), Fault::SettingRepeated, 0x109),
        misuse("extended CONNECT of 2", sent(&[0x08, 2]), Fault::SettingValue, 0x109),
        misuse("datagrams of 2", sent(&[0x33, 2]), Fault::SettingValue, 0x109),
        misuse("a setting without a value", sent(&[0x06]), Fault::ControlFramePayload, 0x106),
        misuse("a setting cut off", sent(&[0x06, 0x40]), Fault::ControlFramePayload, 0x106),
    ]);
}

#[test]
fn c10_control_frames_with_more_or_less_than_their_id_earn_h3_frame_error() {
    for kind in [0x3, 0x7, 0xd] {
        for payload in [&[][..], &[0x40], &[0, 0], &[0; 9], &[0xc0, 0, 0, 0]] {
            check(&[misuse(
                "a payload",
                control(&[frame(kind, payload)]),
                Fault::ControlFramePayload,
                0x106,
            )]);
        }
    }
}

#[test]
fn c10_ids_that_grow_shrink_or_name_nothing_earn_h3_id_error() {
    check(&[
        misuse("GOAWAY grows", control(&[frame(0x7, &[4]), frame(0x7, &[5])]), Fault::GoAwayId, 0x108),
        misuse(
            "MAX_PUSH_ID shrinks",
            control(&[frame(0xd, &[4]), frame(0xd, &[3])]),
            Fault::PushIdReduced,
            0x108,
        ),
        misuse("CANCEL_PUSH of nothing", control(&[frame(0x3, &[0])]), Fault::PushIdUnknown, 0x108),
    ]);
}

#[test]
fn c10_streams_that_must_not_exist_earn_h3_stream_creation_error() {
    let settings = uni(0x00, &settings_frame());
    check(&[
        misuse(
            "two control streams",
            vec![(2, settings.clone()), (6, settings)],
            Fault::ControlStreamRepeated,
            0x103,
        ),
        misuse(
            "two encoder streams",
            vec![(2, uni(0x02, &[])), (6, uni(0x02, &[]))],
            Fault::QpackStreamRepeated,
            0x103,
        ),
        misuse(
            "two decoder streams",
            vec![(2, uni(0x03, &[])), (6, uni(0x03, &[]))],
            Fault::QpackStreamRepeated,
            0x103,
        ),
        misuse("a push stream", vec![(2, uni(0x01, &[0]))], Fault::PushStreamFromClient, 0x103),
    ]);
}

#[test]
fn c10_the_end_of_a_critical_stream_earns_h3_closed_critical_stream() {
    for (kind, rest) in [(0x00, settings_frame()), (0x02, vec![]), (0x03, vec![])] {
        let mut peer = Peer::silent(&h3::Config::new(&Limits::default()));
        peer.sends(2, &uni(kind, &rest)).unwrap();
        assert_eq!(peer.connection.closed(2), Err(Fault::CriticalStreamClosed));
    }
    assert_eq!(Fault::CriticalStreamClosed.code(), Code::ClosedCriticalStream);
    assert_eq!(Code::ClosedCriticalStream.value(), 0x104);
    // A stream of which only a part of the type came, or of an unknown type, may end.
    let mut peer = Peer::new();
    assert_eq!(peer.sends(6, &[0x40]), Ok(PeerStream::Read));
    assert_eq!(peer.connection.closed(6), Ok(()));
    assert_eq!(peer.sends(10, &uni(0x21, b"x")), Ok(PeerStream::Ignore));
    assert_eq!(peer.connection.closed(10), Ok(()));
}

#[test]
fn c10_wrong_instructions_on_qpack_streams_earn_the_codes_of_rfc_9204() {
    let encoder = |text: &str| vec![(2, uni(0x02, &hex(text)))];
    let decoder = |text: &str| vec![(2, uni(0x03, &hex(text)))];
    check(&[
        misuse("a capacity over ours", encoder("3f e2 1f"), Fault::InstructionCapacity, 0x201),
        misuse("an insertion without capacity", encoder("c0 01 61"), Fault::InstructionTooLarge, 0x201),
        misuse("an entry of 33 in 32", encoder("3f 01 41 61 00"), Fault::InstructionTooLarge, 0x201),
        misuse(
            "a static name that is none",
            encoder("3f e1 1f ff 24 01 61"),
            Fault::InstructionReference,
            0x201,
        ),
        misuse("a name of no entry", encoder("3f e1 1f 80 01 61"), Fault::InstructionReference, 0x201),
        misuse("a duplicate of no entry", encoder("3f e1 1f 00"), Fault::InstructionReference, 0x201),
        misuse(
            "an integer without end",
            encoder("3f ff ff ff ff ff ff ff ff ff"),
            Fault::InstructionInteger,
            0x201,
        ),
        misuse("a Huffman string of ones", encoder("3f e1 1f c0 81 ff"), Fault::InstructionHuffman, 0x201),
        misuse("an acknowledged section", decoder("84"), Fault::AcknowledgementUnfounded, 0x202),
        misuse("an increment", decoder("01"), Fault::AcknowledgementUnfounded, 0x202),
        misuse("an increment of 0", decoder("00"), Fault::AcknowledgementUnfounded, 0x202),
        misuse(
            "a stream without end",
            decoder("7f ff ff ff ff ff ff ff ff ff"),
            Fault::AcknowledgementInteger,
            0x202,
        ),
    ]);
    // A cancelled stream is nothing to us.
    assert_eq!(Peer::new().sends(6, &uni(0x03, &hex("44 48 7f 01"))), Ok(PeerStream::Read));
}

#[test]
fn c10_sections_that_do_not_decode_earn_qpack_decompression_failed() {
    for (section, fault) in [
        ("", Fault::SectionTruncated),
        ("00", Fault::SectionTruncated),
        ("00 7f", Fault::SectionTruncated),
        ("00 00 51", Fault::SectionTruncated),
        ("00 00 51 05 61", Fault::SectionTruncated),
        ("00 00 23 61", Fault::SectionTruncated),
        ("00 00 ff", Fault::SectionTruncated),
        ("00 00 ff 24", Fault::SectionReference),
        ("00 00 80", Fault::SectionReference),
        ("00 00 10", Fault::SectionReference),
        ("00 00 00 01 61", Fault::SectionReference),
        ("00 00 40 01 61", Fault::SectionReference),
        ("00 05 84", Fault::SectionReference),
        ("00 80", Fault::SectionInsertCount),
        ("ff ff ff ff ff ff ff ff ff ff 00", Fault::SectionInteger),
        ("ff 02 00", Fault::SectionInsertCount),
        ("00 00 51 ff ff ff ff ff ff ff ff ff ff", Fault::SectionInteger),
        ("00 00 51 81 ff", Fault::SectionHuffman),
        ("00 00 51 81 1e", Fault::SectionHuffman),
        ("00 00 29 ff 00", Fault::SectionHuffman),
    ] {
        check(&[misuse("a section", request(&[frame(0x1, &hex(section))]), fault, 0x200)]);
    }
    // An insert count that wraps to one that no encoder can mean.
    let mut decoder = Decoder::new(4096, 16);
    let limits = SectionLimits { bytes: 1000, field_count: 10 };
    let impossible = decoder.read_section(0, &hex("ff 01 00"), limits, |_, _| Ok::<(), ()>(()));
    assert_eq!(impossible, Err(SectionError::Fault(Fault::SectionInsertCount)));
}

#[test]
fn c10_a_reference_at_or_above_the_declared_insert_count_earns_qpack_decompression_failed() {
    let limits = SectionLimits { bytes: 1000, field_count: 10 };
    // Required Insert Count 1, base 2 or 1, though two entries are there: the second must not be named.
    for section in ["02 01 80", "02 01 40 01 61", "02 00 10", "02 00 00 01 61"] {
        let mut decoder = Decoder::new(4096, 16);
        decoder.receive_instructions(&hex("3fe11f c00161 c00162")).unwrap();
        let read = decoder.read_section(0, &hex(section), limits, |_, _| Ok::<(), ()>(()));
        assert_eq!(read, Err(SectionError::Fault(Fault::SectionReference)), "{section}");
    }
    let mut decoder = Decoder::new(4096, 16);
    decoder.receive_instructions(&hex("3fe11f c00161 c00162")).unwrap();
    for section in ["02 01 81", "02 80 10", "03 01 81"] {
        let read = decoder.read_section(0, &hex(section), limits, |_, _| Ok::<(), ()>(()));
        assert_eq!(read, Ok(SectionRead::Complete), "{section}");
    }
}

#[test]
fn every_fault_has_a_word_and_a_sentence_of_its_own() {
    let words: std::collections::BTreeSet<_> = Fault::ALL.iter().map(|fault| fault.word()).collect();
    assert_eq!(words.len(), Fault::ALL.len());
    for fault in Fault::ALL {
        let sentence = fault.to_string();
        assert!(sentence.starts_with("found ") && sentence.contains(", expected "), "{sentence}");
        assert!(sentence.contains("(RFC "), "{sentence}");
    }
    for code in Code::ALL {
        assert_eq!(Code::ALL.iter().filter(|other| other.value() == code.value()).count(), 1);
    }
    assert_eq!(Code::MissingSettings.to_string(), "H3_MISSING_SETTINGS (0x10a)");
}
