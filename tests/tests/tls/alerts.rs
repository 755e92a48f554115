//! What is wrong is told by an alert, and the alert arrives (RFC 8446 section 6.2).

use weir_tests::dialogue::{PATIENCE, Weir, run_tool, tool};

use super::{Authority, mirror, shop};

const UNEXPECTED_MESSAGE: u8 = 10;
const DECODE_ERROR: u8 = 50;

/// Orders that come to nothing. By `tls-alpn-01`, for which each greeting is read before it is answered.
const ORDERED: &str =
    r#"directory = "https://127.0.0.1:1/directory", domains = "other.example", store = "@dir/store""#;
const ON_DEMAND: &str = r#"on_demand = { ask = "http://127.0.0.1:1/" }"#;

/// With these orders, if any.
fn started(acme: &str) -> (Authority, Weir) {
    let backend = mirror();
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let orders = format!("tls = {{ acme = {{ {acme} }}, ");
    let config = if acme.is_empty() { shop(1) } else { shop(1).replace("tls = { ", &orders) };
    let weir = authority.setup(&config).with("app", backend.address()).start();
    (authority, weir)
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &(content.len() as u16).to_be_bytes(), content].concat()
}

/// Threat D4: whatever a client sends instead of a greeting, and however much, it is told what is wrong with
/// that.
#[test]
fn d4_an_error_before_anything_is_encrypted_is_told_by_an_alert_and_no_reset_destroys_it() {
    errors_are_told(&started("").1);
}

/// The connection was closed without a word.
#[test]
fn d4_an_error_in_a_greeting_is_told_by_an_alert_where_greetings_are_read_for_names() {
    errors_are_told(&started(ORDERED).1);
    errors_are_told(&started(&format!("{ORDERED}, {ON_DEMAND}")).1);
}

fn errors_are_told(weir: &Weir) {
    let begun = [&[1, 0, 2, 0][..], &[3; 60]].concat();
    let announced = [&[1, 0xff, 0xff, 0xff][..], &[0; 16_000]].concat();
    let much = vec![b'x'; 300_000];
    let tiny: Vec<u8> = [&[1, 0, 0x3e, 0x80][..], &[0; 16_000]]
        .concat()
        .iter()
        .flat_map(|byte| record(22, &[*byte]))
        .collect();
    for (what, sent, alert) in [
        ("no TLS, and a long text", [&b"GET / HTTP/1.1\r\n"[..], &much].concat(), DECODE_ERROR),
        ("a record that is too long", [&b"\x16\x03\x01\x48\x01"[..], &much].concat(), DECODE_ERROR),
        ("a greeting of 16 MiB", [record(22, &announced), much.clone()].concat(), DECODE_ERROR),
        ("a greeting in tiny records", tiny, DECODE_ERROR),
        ("a greeting that ends early", record(22, &[1, 0, 0, 3, 3, 3, 0]), DECODE_ERROR),
        (
            "another record within a message",
            [record(22, &begun), record(23, b"hello")].concat(),
            UNEXPECTED_MESSAGE,
        ),
        (
            "records without content",
            [record(22, &begun), record(21, b"\x01\x5a")].concat(),
            UNEXPECTED_MESSAGE,
        ),
    ] {
        let mut client = weir.client("web");
        client.sends(&sent);
        let told = client.receives_to_the_end();
        assert_eq!(told, [21, 3, 3, 0, 2, 2, alert], "{what}");
        assert!(!client.was_reset(), "{what}: the alert may be lost");
    }
}

/// Changes a byte of what it sends second, sends a megabyte behind it, and prints what it is told and how the
/// connection ends.
const BROKEN: &str = "
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[3])
context.maximum_version = getattr(ssl.TLSVersion, sys.argv[4])
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context.wrap_bio(incoming, outgoing, server_hostname='shop.example')
wire = socket.create_connection((sys.argv[1], int(sys.argv[2])))
flights = 0
while True:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    said = outgoing.read()
    if said:
        flights += 1
    if flights == 2:
        break
    wire.sendall(said)
    incoming.write(wire.recv(65536))
wire.sendall(said[:-1] + bytes([said[-1] ^ 1]) + (b'\\x17\\x03\\x03\\x3e\\x80' + b'x' * 16000) * 60)
try:
    while chunk := wire.recv(65536):
        incoming.write(chunk)
    end = 'closed'
except ConnectionResetError:
    end = 'reset'
try:
    tls.do_handshake()
    tls.read(1)
except ssl.SSLError as error:
    print(end, error.reason)
";

#[test]
fn d4_an_error_behind_the_greeting_is_told_by_an_alert_and_no_reset_destroys_it() {
    let (authority, weir) = started("");
    let (address, ca) = (weir.address("web"), authority.path("ca.pem"));
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    for version in ["TLSv1_3", "TLSv1_2"] {
        let finished =
            run_tool(&tool("python3", "python3"), &["-c", BROKEN, &host, &port, &ca, version], b"", PATIENCE);
        let told = finished.succeeded();
        assert_eq!(told.trim(), "closed SSLV3_ALERT_BAD_RECORD_MAC", "{version}: {finished:?}");
    }
}
