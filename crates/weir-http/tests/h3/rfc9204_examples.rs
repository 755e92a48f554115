//! The dialogue of RFC 9204 Appendix B, byte for byte. The decoder is given what the encoder there sends.

use super::*;

const LIMITS: SectionLimits = SectionLimits { bytes: 4096, field_count: 100 };

fn read(decoder: &mut Decoder, stream_id: u64, section: &str) -> (SectionRead, peer::Pairs) {
    let mut fields = peer::Pairs::new();
    let read = decoder.read_section(stream_id, &hex(section), LIMITS, |name, value| {
        fields.push(peer::text_of(name, value));
        Ok::<(), ()>(())
    });
    (read.unwrap(), fields)
}

fn said(decoder: &mut Decoder) -> Vec<u8> {
    let output = decoder.output().to_vec();
    decoder.sent(output.len());
    output
}

#[test]
fn the_dialogue_of_rfc_9204_appendix_b_reads_and_answers_as_it_says() {
    let mut decoder = Decoder::new(220, 1);

    // B.1: a literal field line with a name reference to the static table.
    let (status, fields) = read(&mut decoder, 0, "0000 510b 2f69 6e64 6578 2e68 746d 6c");
    assert_eq!((status, fields), (SectionRead::Complete, fields_of(&[(":path", "/index.html")])));
    assert_eq!(said(&mut decoder), b"");

    // B.2: the section comes before the insertions that it needs.
    assert_eq!(read(&mut decoder, 4, "0381 10 11").0, SectionRead::Blocked);
    let inserts = "3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468";
    decoder.receive_instructions(&hex(inserts)).unwrap();
    assert_eq!((decoder.poll_unblocked(), decoder.poll_unblocked()), (Some(4), None));
    let expected = fields_of(&[(":authority", "www.example.com"), (":path", "/sample/path")]);
    assert_eq!(read(&mut decoder, 4, "0381 10 11"), (SectionRead::Complete, expected));
    assert_eq!(said(&mut decoder), hex("84"));

    // B.3: an insertion that no section needs yet is acknowledged by itself.
    decoder
        .receive_instructions(&hex("4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565"))
        .unwrap();
    assert_eq!(said(&mut decoder), hex("01"));

    // B.4: the stream is reset before the duplicate comes that its section refers to.
    decoder.cancel(8).unwrap();
    assert_eq!(said(&mut decoder), hex("48"));
    decoder.receive_instructions(&hex("02")).unwrap();
    let expected =
        fields_of(&[(":authority", "www.example.com"), (":path", "/"), ("custom-key", "custom-value")]);
    assert_eq!(read(&mut decoder, 8, "0500 80 c1 81"), (SectionRead::Complete, expected));
    assert_eq!(said(&mut decoder), hex("88"));

    // B.5: an insertion that drops the oldest entry and names an older one.
    decoder.receive_instructions(&hex("810d 6375 7374 6f6d 2d76 616c 7565 32")).unwrap();
    assert_eq!(said(&mut decoder), hex("01"));
    // The entries that are left, by indexes relative to a base of 5: the newest first.
    let expected = fields_of(&[
        ("custom-key", "custom-value2"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
        (":path", "/sample/path"),
    ]);
    assert_eq!(read(&mut decoder, 12, "0600 80 81 82 83"), (SectionRead::Complete, expected));
    let gone = decoder.read_section(16, &hex("0600 84"), LIMITS, |_, _| Ok::<(), ()>(()));
    assert_eq!(gone, Err(SectionError::Fault(Fault::SectionReference)));
}

#[test]
fn every_kind_of_line_reads_as_rfc_9204_section_4_5_says() {
    let mut decoder = Decoder::new(4096, 0);
    // Capacity 4096; `n1: v1` and `n2: v2` with literal names.
    decoder.receive_instructions(&hex("3fe11f 42 6e31 02 7631 42 6e32 02 7632")).unwrap();
    let section = "03 80  \
        d1  \
        80  \
        10  \
        5f 1d 01 78  \
        70 01 79  \
        40 01 7a  \
        00 01 77  \
        23 616263 01 64  \
        33 616263 01 64";
    // Required Insert Count 2, base 1: the relative index 0 is the first entry, that behind the base the
    // second.
    let expected = fields_of(&[
        (":method", "GET"),
        ("n1", "v1"),
        ("n2", "v2"),
        ("content-type", "x"),
        (":authority", "y"),
        ("n1", "z"),
        ("n2", "w"),
        ("abc", "d"),
        ("abc", "d"),
    ]);
    assert_eq!(read(&mut decoder, 0, section), (SectionRead::Complete, expected));
}
