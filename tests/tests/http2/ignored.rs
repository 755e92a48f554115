//! What has to be ignored is ignored, and what RFC 9113 changed is followed: cases that h2spec, made for RFC
//! 7540, does not have.

use weir_tests::dialogue::http2::{
    END_HEADERS, END_STREAM, Frame, Outcome, block, code, frame, get, headers, kind, request, setting,
};
use weir_tests::dialogue::{Backend, NO_HEALTH, ScriptedBackend, Setup, one_pool};

use super::{both, connect};

/// RFC 9218 §7.1.
const PRIORITY_UPDATE: u8 = 0x10;
/// RFC 7838 §4 and RFC 8336 §2: a server's frames, from a client.
const ALTSVC: u8 = 0x0a;
const ORIGIN: u8 = 0x0c;

const ENABLE_CONNECT_PROTOCOL: u16 = 8;
const NO_RFC7540_PRIORITIES: u16 = 9;

fn is_hello(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered(0 | 200, content) if content == b"hello")
}

#[test]
fn frames_of_unknown_types_are_ignored_wherever_they_come() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let mut client = connect(&weir, b"");
    let update = [&1u32.to_be_bytes()[..], b"u=1, i"].concat();
    for (kind, payload) in
        [(PRIORITY_UPDATE, &update[..]), (ALTSVC, b"\0\0h3=\":1\""), (ORIGIN, b""), (0xfb, b"grease")]
    {
        client.sends(frame(kind, 0xff, 0, payload));
    }
    client.sends(headers(1, &request("POST", "/"), false));
    client.sends(frame(PRIORITY_UPDATE, 0, 0, &update));
    client.sends(frame(0xfb, 0, 1, b"between head and content"));
    client.sends(frame(kind::DATA, 0, 1, b"bo"));
    client.sends(frame(0xfb, 0x2d, 1, b"within the content"));
    client.sends(frame(kind::DATA, END_STREAM, 1, b"dy"));
    assert!(is_hello(&client.outcome_of(1)));
    assert_eq!(backend.requests()[0].body, b"body");
    client.sends(frame(0xfb, 0, 1, b"on a closed stream"));
    client.sends(frame(0xfb, 0, 7, b"on an idle one"));
    assert!(is_hello(&client.asks(3, "/")));
}

#[test]
fn unknown_settings_and_flags_and_the_reserved_bit_are_ignored() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let settings: Vec<u8> =
        [setting(0x1a2a, 7), setting(NO_RFC7540_PRIORITIES, 1), setting(0xffff, u32::MAX), setting(0, 0)]
            .concat();
    let mut client = connect(&weir, &settings);
    assert!(is_hello(&client.asks(1, "/")));
    const UNKNOWN_FLAGS: u8 = 0xd2;
    client.sends(frame(kind::HEADERS, END_HEADERS | UNKNOWN_FLAGS, 3, &block(&request("POST", "/"))));
    client.sends(frame(kind::DATA, END_STREAM | UNKNOWN_FLAGS, 0x8000_0003, b"body"));
    assert!(is_hello(&client.outcome_of(3)));
    assert_eq!(backend.requests()[1].body, b"body");
}

/// What a client may still send.
struct Windows {
    connection: i64,
    stream: i64,
    initial: i64,
}

impl Windows {
    fn note(&mut self, found: &Frame) {
        let number = |bytes: &[u8]| i64::from(u32::from_be_bytes(bytes.try_into().expect("four bytes")));
        match found.kind {
            kind::WINDOW_UPDATE if found.stream == 0 => self.connection += number(&found.payload),
            kind::WINDOW_UPDATE => self.stream += number(&found.payload),
            kind::SETTINGS => {
                let settings = found.payload.chunks(6).filter(|setting| setting[..2] == [0, 4]);
                for setting in settings {
                    let initial = number(&setting[2..]);
                    self.stream += initial - std::mem::replace(&mut self.initial, initial);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn padding_is_no_content_and_windows_open_for_it_again() {
    const PADDED: u8 = 8;
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let mut client = connect(&weir, b"");
    let head = [&[7][..], &block(&request("POST", "/")), &[0; 7]].concat();
    client.sends(frame(kind::HEADERS, END_HEADERS | PADDED, 1, &head));
    let padded = [&[255][..], &[b'x'; 1_000], &[0; 255]].concat();
    // More padding than a connection's window of a mebibyte holds.
    let mut windows = Windows { connection: 65_535, stream: 65_535, initial: 65_535 };
    for _ in 0..5_000 {
        while windows.connection.min(windows.stream) < padded.len() as i64 {
            let found = client.receives_frame().expect("room for more");
            windows.note(&found);
        }
        windows.connection -= padded.len() as i64;
        windows.stream -= padded.len() as i64;
        client.sends(frame(kind::DATA, PADDED, 1, &padded));
    }
    client.sends(frame(kind::DATA, END_STREAM | PADDED, 1, &[3, b'e', 0, 0, 0]));
    let outcome = client.outcome_of(1);
    assert!(is_hello(&outcome), "{outcome:?}");
    assert!(backend.requests()[0].body == [&vec![b'x'; 5_000_000][..], b"e"].concat());
}

#[test]
fn priorities_of_any_kind_change_nothing() {
    const PRIORITY: u8 = 0x20;
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let mut client = connect(&weir, b"");
    client.sends(frame(kind::PRIORITY, 0, 9, &[0x80, 0, 0, 0, 200]));
    let head = [&[0, 0, 0, 99, 16][..], &block(&request("GET", "/"))].concat();
    client.sends(frame(kind::HEADERS, END_HEADERS | END_STREAM | PRIORITY, 1, &head));
    assert!(is_hello(&client.outcome_of(1)), "a stream that depends on an idle one");
    let mut fields = request("GET", "/").to_vec();
    fields.push(("priority", "u=9, nonsense;;"));
    client.sends(headers(3, &fields, true));
    assert!(is_hello(&client.outcome_of(3)));
    assert_eq!(
        backend.requests()[1].fields.one("priority"),
        Some("u=9, nonsense;;"),
        "for the backend to judge"
    );
}

#[test]
fn a_setting_for_tunnels_is_zero_or_one() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let mut client = connect(&weir, &setting(ENABLE_CONNECT_PROTOCOL, 1));
    client.sends(frame(kind::SETTINGS, 0, 0, &setting(ENABLE_CONNECT_PROTOCOL, 0)));
    assert!(is_hello(&client.asks(1, "/")), "from a client it has no effect");
    let mut client = connect(&weir, &setting(ENABLE_CONNECT_PROTOCOL, 2));
    let _ = client.wire.tries_to_send(get(1, "/"));
    assert_eq!(client.receives_the_end().0, Some(code::PROTOCOL_ERROR));
}

#[test]
fn a_backend_that_takes_back_its_offer_of_tunnels_gets_none() {
    let backend = ScriptedBackend::start();
    let pool = format!("protocol = \"h2\"\n{NO_HEALTH}");
    let weir = Setup::of(&one_pool("http = [\"h2\"]", &pool)).with("app", backend.address()).start();
    let mut first = connect(&weir, b"");
    first.sends(get(1, "/"));
    let mut server =
        weir_tests::dialogue::http2::Http2::server(backend.accepts(), &setting(ENABLE_CONNECT_PROTOCOL, 1));
    let stream = server.receives_request();
    server.sends(frame(kind::SETTINGS, 0, 0, &setting(ENABLE_CONNECT_PROTOCOL, 0)));
    // Its acknowledgement shows that what came before was read.
    server.sends(frame(kind::PING, 0, 0, b"12345678"));
    server.receives(kind::PING, 0);
    server.sends(headers(stream, &[(":status", "204")], true));
    assert!(matches!(first.outcome_of(1), Outcome::Answered(204, _)));
    let mut client = connect(&weir, b"");
    let mut fields = request("CONNECT", "/chat").to_vec();
    fields.extend([(":protocol", "websocket"), ("sec-websocket-version", "13")]);
    client.sends(headers(1, &fields, false));
    let outcome = client.outcome_of(1);
    assert!(matches!(outcome, Outcome::Answered(502, _)), "{outcome:?}");
}
