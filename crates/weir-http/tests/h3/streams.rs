//! Messages as they should be: what is read is what was sent.

use super::peer::{GET, Message, frame, head};
use super::*;

#[test]
fn a_request_with_content_and_trailers_reads_as_it_was_sent_in_any_pieces() {
    let request = [
        frame(0x21, b"noise"),
        head(GET),
        frame(0x00, b"hello, "),
        frame(0x00, b""),
        frame(0x1f * 9 + 0x21, b""),
        frame(0x00, &[b'w'; 20_000]),
        head(&[("x-sum", "17")]),
        frame(0x21, b"noise"),
    ]
    .concat();
    let expected = Message {
        sections: vec![fields_of(GET), fields_of(&[("x-sum", "17")])],
        content: [b"hello, ".to_vec(), vec![b'w'; 20_000]].concat(),
    };
    for piece_bytes in [1, 2, 3, 7, 64, 1200, usize::MAX] {
        let mut peer = Peer::new();
        assert_eq!(
            peer.requests_in_pieces(0, &request, piece_bytes).as_ref(),
            Ok(&expected),
            "{piece_bytes}"
        );
    }
}

#[test]
fn content_is_a_range_of_the_input_and_is_not_copied() {
    let mut peer = Peer::new();
    let mut stream = peer.connection.admit(0).unwrap();
    let request = head(GET);
    peer.reads(&mut stream, &request, &mut Message::default()).unwrap();
    let input = [&b"\x00\x44\x00"[..], &[b'x'; 1000]].concat();
    let step = stream.advance(&input).unwrap();
    assert_eq!((step.consumed, step.event), (1003, StreamEvent::Data(3..1003)));
    let step = stream.advance(&[b'x'; 30]).unwrap();
    assert_eq!((step.consumed, step.event), (24, StreamEvent::Data(0..24)));
    let step = stream.advance(b"xxxxxx").unwrap();
    // The frame has ended: `x` begins another, of an unknown type and a length that is not there.
    assert_eq!((step.consumed, step.event), (6, StreamEvent::NeedMore));
}

#[test]
fn a_blocked_section_is_read_when_its_insertions_have_come_and_what_follows_it_waits() {
    let mut peer = Peer::new();
    let mut stream = peer.connection.admit(0).unwrap();
    let input = [frame(0x01, &hex("02 00 80")), frame(0x00, b"body")].concat();
    let step = stream.advance(&input).unwrap();
    assert_eq!(step.consumed, 5);
    let StreamEvent::Section(section) = step.event else { panic!("{:?}", step.event) };
    let nothing = |_: &[u8], _: &[u8]| -> Result<(), ()> { panic!("nothing is visited while it is blocked") };
    assert_eq!(peer.connection.read_section(&mut stream, &input, section, nothing), Ok(SectionRead::Blocked));
    let step = stream.advance(&input[5..]).unwrap();
    assert_eq!((step.consumed, step.event), (0, StreamEvent::Blocked));
    assert_eq!(peer.receives(OwnStream::QpackDecoder), b"");

    // The insertion comes in two pieces; only the second makes it complete.
    peer.events();
    peer.sends(6, &uni(0x02, &hex("3fe11f 41 6e 03 61"))).unwrap();
    assert_eq!(peer.events(), []);
    assert_eq!(peer.connection.retry_section(&mut stream, nothing), Ok(SectionRead::Blocked));
    peer.connection.abandon(0).unwrap();
    assert_eq!(peer.receives(OwnStream::QpackDecoder), hex("03 40"));
}

#[test]
fn a_blocked_section_is_named_by_an_event_and_acknowledged_once_read() {
    let mut peer = Peer::new();
    peer.events();
    let mut stream = peer.connection.admit(0).unwrap();
    // In pieces, so that the stream has the section and not the input.
    for byte in frame(0x01, &hex("02 00 80")) {
        let input = [byte];
        let step = stream.advance(&input).unwrap();
        if let StreamEvent::Section(section) = step.event {
            let read = peer.connection.read_section(&mut stream, &input, section, |_, _| Ok::<(), ()>(()));
            assert_eq!(read, Ok(SectionRead::Blocked));
        }
    }
    assert!(stream.is_blocked());
    peer.sends(6, &uni(0x02, &hex("3fe11f 41 6e 03 616263"))).unwrap();
    assert_eq!(peer.events(), [Event::Unblocked(0)]);
    let mut fields = peer::Pairs::new();
    let read = peer.connection.retry_section(&mut stream, |name, value| {
        fields.push(peer::text_of(name, value));
        Ok::<(), ()>(())
    });
    assert_eq!((read, fields), (Ok(SectionRead::Complete), fields_of(&[("n", "abc")])));
    let mut message = Message::default();
    peer.reads(&mut stream, &frame(0x00, b"body"), &mut message).unwrap();
    assert_eq!((message.content, stream.finish()), (b"body".to_vec(), Ok(())));
    // The stream type, then the acknowledgement of the section, which says that the insertion came too.
    assert_eq!(peer.receives(OwnStream::QpackDecoder), hex("03 80"));
}

#[test]
fn a_refused_field_ends_the_reading_and_the_section_counts_as_read() {
    let mut peer = Peer::new();
    peer.sends(6, &uni(0x02, &hex("3fe11f 41 6e 03 616263"))).unwrap();
    let mut stream = peer.connection.admit(0).unwrap();
    let input = frame(0x01, &hex("02 00 80 d1 d1"));
    let StreamEvent::Section(section) = stream.advance(&input).unwrap().event else { panic!() };
    let mut visited = 0;
    let read = peer.connection.read_section(&mut stream, &input, section, |_, _| {
        visited += 1;
        if visited == 2 { Err("no") } else { Ok(()) }
    });
    assert_eq!((read, visited), (Err(SectionError::Refused("no")), 2));
    assert_eq!(peer.receives(OwnStream::QpackDecoder), hex("03 80"));
    assert_eq!(stream.advance(b"\0\x01x").unwrap().event, StreamEvent::Data(2..3));
}

#[test]
fn a_tunnel_takes_content_and_nothing_else() {
    let mut peer = Peer::new();
    let mut stream = peer.connection.admit(0).unwrap();
    let mut message = Message::default();
    peer.reads(&mut stream, &head(GET), &mut message).unwrap();
    stream.become_tunnel();
    peer.reads(&mut stream, &[frame(0x00, b"ws"), frame(0x21, b"x")].concat(), &mut message).unwrap();
    assert_eq!((message.content.as_slice(), stream.finish()), (&b"ws"[..], Ok(())));
    assert_eq!(stream.advance(&head(&[("a", "b")])), Err(Fault::FrameInTunnel));
    assert_eq!(Fault::FrameInTunnel.code(), Code::FrameUnexpected);
}

#[test]
fn what_the_writer_says_of_a_response_is_the_bytes_of_the_static_table_and_of_literals() {
    let mut out = b"before".to_vec();
    let mut writer = SectionWriter::new(&mut out);
    writer.status(200);
    writer.field(b"Content-Type", b"text/html; charset=utf-8");
    writer.field(b"content-length", b"13");
    writer.field(b"X-ID", b"~~");
    writer.field(b"set-cookie", b"~");
    writer.status(418);
    assert_eq!(writer.finish(), out.len() - 6);
    let expected = "62 65 66 6f 72 65 \
        01 40 18 0000 d9 f4 54 02 3133 2b f2b1a4 02 7e7e 7e 01 7e 5f09 03 343138";
    assert_eq!(out, hex(expected));
    let mut decoder = Decoder::new(0, 0);
    let mut fields = peer::Pairs::new();
    let limits = SectionLimits { bytes: 1000, field_count: 10 };
    decoder
        .read_section(0, &out[9..], limits, |name, value| {
            fields.push(peer::text_of(name, value));
            Ok::<(), ()>(())
        })
        .unwrap();
    let expected = [
        (":status", "200"),
        ("content-type", "text/html; charset=utf-8"),
        ("content-length", "13"),
        ("x-id", "~~"),
        ("set-cookie", "~"),
        (":status", "418"),
    ];
    assert_eq!(fields, fields_of(&expected));
}

#[test]
fn a_head_of_more_than_16_kib_has_a_longer_length() {
    let mut peer = Peer::new();
    let value = "~".repeat(60_000);
    let fields: Vec<_> = [GET, &[("x-large", value.as_str())]].concat();
    let request = head(&fields);
    assert_eq!(request[..2], [0x01, 0x80]);
    assert_eq!(peer.requests(0, &request).unwrap().sections, [fields_of(&fields)]);
}
