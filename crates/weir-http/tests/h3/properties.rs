//! Properties that hold for any bytes at all, and for any fields.

use super::peer::{Message, Pairs, frame, head};
use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A seed from `WEIR_SEED`, or a new one; printed, so that a failure can be had again.
#[expect(clippy::disallowed_methods, reason = "a run without a seed makes one")]
fn config() -> ProptestConfig {
    let given = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("WEIR_SEED={seed}");
    ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Default::default()
    }
}

/// Frames that matter, well formed or nearly, in any order.
fn request_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(head(peer::GET)),
        2 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|payload| frame(0x0, &payload)),
        2 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|payload| frame(0x1, &payload)),
        2 => (0_u64..20, prop::collection::vec(any::<u8>(), 0..9)).prop_map(|(kind, it)| frame(kind, &it)),
        1 => (any::<u32>(), prop::collection::vec(any::<u8>(), 0..9))
            .prop_map(|(draw, payload)| frame(0x1f * u64::from(draw) + 0x21, &payload)),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// Frames of a control stream.
fn control_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => Just(settings_frame()),
        3 => (0_u64..20, prop::collection::vec(any::<u8>(), 0..5)).prop_map(|(kind, it)| frame(kind, &it)),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| uni(0x00, &pieces.concat()))
}

/// Instructions of an encoder: a capacity, then mostly insertions.
fn instructions_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..20).prop_map(|value| {
            [&[0xc0 | 5, value.len() as u8][..], &value].concat()
        }),
        3 => (1_u8..8).prop_map(|length| [&[0x40 | length][..], &[b'n'; 8][..length as usize], &[1, b'v']].concat()),
        1 => (0_u8..3).prop_map(|index| vec![index]),
        1 => Just(hex("82 01 77")),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| [hex("3f 89 01"), pieces.concat()].concat())
}

fn fields_like() -> impl Strategy<Value = Pairs> {
    let name = prop_oneof![
        prop::sample::select(vec!["content-type", "cookie", ":path", ":status", "server", "x-a", "date"])
            .prop_map(str::to_string),
        "[a-z0-9!#$%&'*+.^_`|~-]{1,30}",
    ];
    let value =
        prop_oneof!["[ -~]{0,60}", "\\PC{0,20}", Just("200".to_string()), Just("text/plain".to_string())];
    prop::collection::vec((name, value), 0..12)
}

fn read_section(decoder: &mut Decoder, section: &[u8]) -> (Option<Fault>, Pairs) {
    let mut fields = Pairs::new();
    let limits = SectionLimits { bytes: 5000, field_count: 50 };
    let read = decoder.read_section(0, section, limits, |name, value| {
        fields.push(peer::text_of(name, value));
        Ok::<(), ()>(())
    });
    let fault = match read {
        Err(SectionError::Fault(fault)) => Some(fault),
        _ => None,
    };
    (fault, fields)
}

/// The reading of a request stream, in pieces, by a server with a small table.
fn message(bytes: &[u8], piece_bytes: usize) -> Result<Message, Fault> {
    let config = h3::Config { qpack_blocked_streams: 0, ..h3::Config::new(&Limits::default()) };
    Peer::silent(&config).requests_in_pieces(0, bytes, piece_bytes)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_is_written_is_read_whatever_the_fields(fields in fields_like()) {
        let pairs: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let written = head(&pairs);
        let (length, length_bytes) = varint::read(&written[1..]).unwrap();
        prop_assert_eq!(written.len(), 1 + length_bytes + length as usize);
        let read = read_section(&mut Decoder::new(0, 0), &written[1 + length_bytes..]);
        prop_assert_eq!(read, (None, fields));
    }

    #[test]
    fn any_split_of_a_request_gives_the_same_message_or_the_same_fault(
        bytes in request_like(),
        piece_bytes in 1_usize..40,
    ) {
        prop_assert_eq!(message(&bytes, usize::MAX), message(&bytes, piece_bytes));
    }

    #[test]
    fn any_split_of_a_control_stream_gives_the_same_events(bytes in control_like(), piece_bytes in 1_usize..9) {
        let play = |piece_bytes: usize| {
            let mut peer = Peer::silent(&h3::Config::new(&Limits::default()));
            let fault = bytes.chunks(piece_bytes).find_map(|piece| peer.sends(2, piece).err());
            (fault, peer.events())
        };
        prop_assert_eq!(play(bytes.len().max(1)), play(piece_bytes));
    }

    #[test]
    fn any_split_of_instructions_gives_the_same_table(bytes in instructions_like(), piece_bytes in 1_usize..9) {
        let play = |piece_bytes: usize| {
            let mut decoder = Decoder::new(300, 0);
            let fault = bytes.chunks(piece_bytes).find_map(|piece| decoder.receive_instructions(piece).err());
            let output = decoder.output().to_vec();
            // Every entry that there may be: for each insert count, what the newest entry is.
            let tables: Vec<_> = (2..=19)
                .map(|encoded| read_section(&mut decoder, &[encoded, 0, 0x80, 0x81, 0x82]))
                .collect();
            (fault, if fault.is_none() { output } else { Vec::new() }, tables)
        };
        prop_assert_eq!(play(bytes.len()), play(piece_bytes));
    }

    #[test]
    fn any_bytes_as_a_section_never_panic_and_stay_within_the_limits(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        prefix in prop::sample::select(vec!["0000", "0300", "0280", ""]),
    ) {
        let mut decoder = Decoder::new(300, 1);
        decoder.receive_instructions(&hex("3f8901 c00161 436e616d 0376616c")).unwrap();
        let (_, fields) = read_section(&mut decoder, &[hex(prefix), bytes].concat());
        prop_assert!(fields.len() <= 50);
        // Bytes that are no UTF-8 are escaped here, to at most four times their length.
        prop_assert!(fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= 4 * 5000);
    }

    #[test]
    fn any_bytes_on_any_stream_never_panic(
        pieces in prop::collection::vec((0_u64..6, prop::collection::vec(any::<u8>(), 0..30)), 0..20),
    ) {
        let mut peer = Peer::silent(&h3::Config::new(&Limits::default()));
        for (stream, bytes) in pieces {
            if peer.sends(2 + 4 * stream, &bytes).is_err() {
                break;
            }
        }
        while let Some(event) = peer.connection.poll_event() {
            prop_assert!(!matches!(event, Event::Unblocked(_)));
        }
    }
}
