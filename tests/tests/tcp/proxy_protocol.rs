//! The PROXY protocol, in and out (threat D8). Spelled by hand from the specification.

use std::net::SocketAddr;

use weir_tests::dialogue::{
    Backend, NO_HEALTH, NO_PROBES, ScriptedBackend, Setup, Weir, Wire, one_pool, until,
};

use super::front;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Accepts headers from these peers; hands them on in `version` if it is not empty.
fn tcp(accept: &str, version: &str, backend: SocketAddr) -> Weir {
    let send = if version.is_empty() { String::new() } else { format!("send_proxy = \"{version}\"") };
    let accept = if accept.is_empty() { String::new() } else { format!("accept_proxy = [{accept}]") };
    let listener = format!("{accept}\ntimeout = {{ header = \"1s\" }}");
    Setup::of(&front(&listener, &format!("{send}\n{NO_HEALTH}"))).with("app", backend).start()
}

const LOOPBACK: &str = "\"127.0.0.0/8\"";

fn version_2(command: u8, family: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("short");
    [SIGNATURE, &[0x20 | command, family], &length.to_be_bytes(), payload].concat()
}

/// 198.51.100.7:4711 to 203.0.113.9:443.
const ADDRESSES_V4: [u8; 12] = [198, 51, 100, 7, 203, 0, 113, 9, 0x12, 0x67, 0x01, 0xbb];

/// An HTTP listener that accepts headers from these peers, with these additional lines, and its backend,
/// which records what it is told about the client.
fn http(accept: &str, more: &str) -> (Weir, Backend) {
    let backend = Backend::saying("ok");
    let listener = format!("accept_proxy = [{accept}]\ntimeout = {{ header = \"1s\" }}\n{more}");
    (Setup::of(&one_pool(&listener, NO_PROBES)).with("app", backend.address()).start(), backend)
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

#[test]
fn the_client_named_by_a_required_header_is_the_client() {
    let v6: Vec<u8> = [
        &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..],
        &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
        &[0x12, 0x67, 0x01, 0xbb],
    ]
    .concat();
    let (weir, backend) = http(LOOPBACK, "");
    for (name, header, expected) in [
        ("v1 over IPv4", b"PROXY TCP4 198.51.100.7 203.0.113.9 4711 443\r\n".to_vec(), "198.51.100.7"),
        ("v1 over IPv6", b"PROXY TCP6 2001:db8::7 2001:db8::9 4711 443\r\n".to_vec(), "2001:db8::7"),
        ("v1 unknown", b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        ("v1 unknown with rest", b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), "127.0.0.1"),
        ("v2 over IPv4", version_2(1, 0x11, &ADDRESSES_V4), "198.51.100.7"),
        ("v2 over IPv6", version_2(1, 0x21, &v6), "2001:db8::7"),
        ("v2 local", version_2(0, 0x00, b""), "127.0.0.1"),
        (
            "v2 with TLVs",
            version_2(1, 0x11, &[&ADDRESSES_V4[..], &[0x04, 0, 3, 1, 2, 3, 0xe0, 0, 1, 9]].concat()),
            "198.51.100.7",
        ),
    ] {
        let mut client = weir.client("web");
        client.sends([&header[..], GET].concat());
        assert_eq!(client.receives_response().status, 200, "{name}");
        let fields = backend.requests().pop().expect("a request").fields;
        assert_eq!(fields.all("x-forwarded-for"), [expected], "{name}");
    }
}

#[test]
fn a_header_split_over_packets_is_the_same_header() {
    let (weir, backend) = http(LOOPBACK, "");
    for header in
        [b"PROXY TCP4 198.51.100.7 203.0.113.9 4711 443\r\n".to_vec(), version_2(1, 0x11, &ADDRESSES_V4)]
    {
        let mut client = weir.client("web");
        client.sends_byte_by_byte(&header);
        client.sends_byte_by_byte(GET);
        client.receives_status(200);
        let fields = backend.requests().pop().expect("a request").fields;
        assert_eq!(fields.all("x-forwarded-for"), ["198.51.100.7"]);
    }
}

/// The connection is closed without an answer, and no backend hears of it.
fn dropped(weir: &Weir, backend: &ScriptedBackend, name: &str, bytes: &[u8]) {
    let mut client = weir.client("front");
    let _ = client.tries_to_send(bytes);
    client.half_closes();
    let answer = client.receives_to_the_end();
    assert!(answer.is_empty(), "{name}: answered {:?}", String::from_utf8_lossy(&answer));
    if let Some(mut wire) = backend.accepts_if_any() {
        let seen = wire.receives_to_the_end();
        assert!(seen.is_empty(), "{name}: the backend got {:?}", String::from_utf8_lossy(&seen));
    }
}

#[test]
fn a_header_that_is_not_exactly_right_closes_the_connection() {
    let backend = ScriptedBackend::start();
    let weir = tcp(LOOPBACK, "", backend.address());
    let long = format!("PROXY TCP4 198.51.100.7 203.0.113.9 4711 443{}\r\n", " ".repeat(100));
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("missing", b"hello, no header\r\n".to_vec()),
        ("an HTTP request instead", GET.to_vec()),
        ("lower case", b"proxy TCP4 198.51.100.7 203.0.113.9 4711 443\r\n".to_vec()),
        ("two spaces", b"PROXY  TCP4 198.51.100.7 203.0.113.9 4711 443\r\n".to_vec()),
        ("LF alone", b"PROXY TCP4 198.51.100.7 203.0.113.9 4711 443\n".to_vec()),
        ("leading zero in the address", b"PROXY TCP4 198.051.100.7 203.0.113.9 4711 443\r\n".to_vec()),
        ("octal address", b"PROXY TCP4 0306.063.0144.07 203.0.113.9 4711 443\r\n".to_vec()),
        ("leading zero in the port", b"PROXY TCP4 198.51.100.7 203.0.113.9 04711 443\r\n".to_vec()),
        ("port 65536", b"PROXY TCP4 198.51.100.7 203.0.113.9 65536 443\r\n".to_vec()),
        ("address of 3 numbers", b"PROXY TCP4 198.51.100 203.0.113.9 4711 443\r\n".to_vec()),
        ("IPv6 in TCP4", b"PROXY TCP4 2001:db8::7 203.0.113.9 4711 443\r\n".to_vec()),
        ("IPv4 in TCP6", b"PROXY TCP6 198.51.100.7 203.0.113.9 4711 443\r\n".to_vec()),
        ("UDP4", b"PROXY UDP4 198.51.100.7 203.0.113.9 4711 443\r\n".to_vec()),
        ("no port", b"PROXY TCP4 198.51.100.7 203.0.113.9 4711\r\n".to_vec()),
        ("longer than 107 bytes", long.into_bytes()),
        ("endless", [b"PROXY TCP4 ".as_slice(), &[b'1'; 5000]].concat()),
        ("v2 of version 1", [SIGNATURE, &[0x11, 0x11, 0, 12], &ADDRESSES_V4].concat()),
        ("v2 with an unknown command", version_2(2, 0x11, &ADDRESSES_V4)),
        ("v2 with an unknown family", version_2(1, 0x41, &ADDRESSES_V4)),
        ("v2 too short for its addresses", version_2(1, 0x11, &ADDRESSES_V4[..11])),
        ("v2 IPv6 too short", version_2(1, 0x21, &ADDRESSES_V4)),
        (
            "v2 with a TLV that overruns",
            version_2(1, 0x11, &[&ADDRESSES_V4[..], &[0x04, 0, 200, 1]].concat()),
        ),
        ("v2 with half a TLV", version_2(1, 0x11, &[&ADDRESSES_V4[..], &[0x04, 0]].concat())),
        (
            "v2 with a wrong checksum",
            version_2(1, 0x11, &[&ADDRESSES_V4[..], &[0x03, 0, 4, 1, 2, 3, 4]].concat()),
        ),
        ("v2 of 60000 bytes", version_2(1, 0x11, &[&ADDRESSES_V4[..], &vec![0; 60_000]].concat())),
        ("a damaged signature", [b"\r\n\r\n\0\r\nQUIX\n\x21\x11\0\x0c".as_slice(), &ADDRESSES_V4].concat()),
    ];
    for (name, bytes) in &cases {
        dropped(&weir, &backend, name, bytes);
    }
    weir.reaches("weir_rejected_total", &[("reason", "bad_proxy_header")], cases.len() as f64);
}

#[test]
fn a_header_that_never_ends_is_given_up_in_time() {
    let backend = ScriptedBackend::start();
    let weir = tcp(LOOPBACK, "", backend.address());
    for start in ["PROXY TCP4 198.5", "\r\n\r\n", ""] {
        let mut client = weir.client("front");
        client.sends(start);
        client.receives_close();
    }
    backend.has_nobody_waiting();
    weir.reaches("weir_rejected_total", &[("reason", "header_timeout")], 3.0);
}

/// TCP listeners counted such a client as refused, and HTTP listeners did not count it.
#[test]
fn a_header_that_never_ends_counts_as_late_before_http_too() {
    let (weir, backend) = http(LOOPBACK, "");
    for start in ["PROXY TCP4 198.5", ""] {
        let mut client = weir.client("web");
        client.sends(start);
        client.receives_close();
    }
    weir.reaches("weir_rejected_total", &[("reason", "header_timeout")], 2.0);
    assert_eq!(backend.served(), 0);
}

#[test]
fn nobody_else_may_send_a_header() {
    // Spoofing: a peer outside `accept_proxy` sends a header; its bytes are parsed as a request, and refused.
    let (weir, backend) = http("\"198.51.100.0/24\"", "");
    for header in
        [b"PROXY TCP4 10.0.0.1 203.0.113.9 4711 443\r\n".to_vec(), version_2(1, 0x11, &ADDRESSES_V4)]
    {
        let mut client = weir.client("web");
        client.sends([&header[..], GET].concat());
        client.receives_status(400);
    }
    assert_eq!(backend.served(), 0);
    let mut client = weir.client("web");
    client.sends(GET);
    client.receives_status(200);
    assert_eq!(backend.requests()[0].fields.all("x-forwarded-for"), ["127.0.0.1"]);
}

#[test]
fn trust_goes_by_the_address_a_header_names_and_not_by_the_balancer_that_sent_it() {
    let forwarded_for = |trusted: &str| {
        let (weir, backend) = http(LOOPBACK, &format!("trusted_proxies = [\"{trusted}\"]"));
        let mut client = weir.client("web");
        client.sends(
            "PROXY TCP4 203.0.113.7 10.0.0.1 5555 80\r\n\
             GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 198.51.100.9\r\n\r\n",
        );
        client.receives_status(200);
        backend.requests()[0].fields.all("x-forwarded-for").join("|")
    };
    assert_eq!(forwarded_for("127.0.0.0/8"), "203.0.113.7", "anybody can speak through the balancer");
    assert_eq!(forwarded_for("203.0.113.0/24"), "198.51.100.9, 203.0.113.7", "the proxy behind the balancer");
}

#[test]
fn each_client_behind_a_balancer_has_its_own_share_of_connections() {
    let backend = Backend::saying("ok");
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        accept_proxy = [{LOOPBACK}]
        max_connections_per_client = 2
        [listener.raw]
        protocol = "tcp"
        bind = "@raw"
        pool = "app"
        accept_proxy = [{LOOPBACK}]
        max_connections_per_client = 2
        [pool.app]
        backends = ["@app"]
        health = {{ check = "off" }}
        "#
    );
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let from = |listener: &str, client: u8| {
        let mut wire = weir.client(listener);
        let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        wire.sends(format!("PROXY TCP4 203.0.113.{client} 10.0.0.1 5555 80\r\n{get}"));
        wire
    };
    let mut held = Vec::new();
    for client in [1, 1, 2, 2] {
        for listener in ["web", "raw"] {
            let mut wire = from(listener, client);
            wire.receives_status(200);
            held.push(wire);
        }
    }
    from("web", 1).receives_close();
    from("raw", 2).receives_close();
    weir.reaches("weir_rejected_total", &[("listener", "web"), ("reason", "client_connections")], 1.0);
    weir.reaches("weir_rejected_total", &[("listener", "raw"), ("reason", "client_connections")], 1.0);
    drop(held);
    until("a place of the first client's", || {
        let mut web = from("web", 1);
        web.tries_to_receive_response("GET").is_ok().then_some(())
    });
}

#[test]
fn a_relay_passes_a_header_it_did_not_ask_for_as_bytes() {
    let backend = ScriptedBackend::start();
    let weir = tcp("\"198.51.100.0/24\"", "", backend.address());
    let mut client = weir.client("front");
    client.sends("PROXY TCP4 10.0.0.1 203.0.113.9 4711 443\r\nhello");
    let mut wire = backend.accepts();
    wire.receives_exactly("PROXY TCP4 10.0.0.1 203.0.113.9 4711 443\r\nhello");
}

fn header_and_hello(weir: &Weir, backend: &ScriptedBackend, lead: &[u8]) -> (Wire, Wire) {
    let mut client = weir.client("front");
    client.sends([lead, b"hello"].concat());
    let wire = backend.accepts();
    (client, wire)
}

#[test]
fn a_backend_is_told_the_client_in_version_1() {
    let backend = ScriptedBackend::start();
    let weir = tcp("", "v1", backend.address());
    let (client, mut wire) = header_and_hello(&weir, &backend, b"");
    let (from, to) = (client.local(), client.peer());
    wire.receives_exactly(format!(
        "PROXY TCP4 {} {} {} {}\r\nhello",
        from.ip(),
        to.ip(),
        from.port(),
        to.port()
    ));
}

#[test]
fn a_backend_is_told_the_client_in_version_2() {
    let backend = ScriptedBackend::start();
    let weir = tcp("", "v2", backend.address());
    let (client, mut wire) = header_and_hello(&weir, &backend, b"");
    let head = wire.receives(16);
    assert_eq!(&head[..14], [SIGNATURE, &[0x21, 0x11]].concat());
    let payload = wire.receives(usize::from(u16::from_be_bytes([head[14], head[15]])));
    assert_eq!(payload[..8], [127, 0, 0, 1, 127, 0, 0, 1]);
    assert_eq!(payload[8..10], client.local().port().to_be_bytes());
    assert_eq!(payload[10..12], client.peer().port().to_be_bytes());
    wire.receives_exactly("hello");
}

#[test]
fn a_client_named_by_a_header_is_passed_on_and_its_tlvs_are_not() {
    let backend = ScriptedBackend::start();
    let weir = tcp(LOOPBACK, "v1", backend.address());
    let lead = version_2(1, 0x11, &[&ADDRESSES_V4[..], &[0xe0, 0, 4, b'e', b'v', b'i', b'l']].concat());
    let (_client, mut wire) = header_and_hello(&weir, &backend, &lead);
    wire.receives_exactly("PROXY TCP4 198.51.100.7 203.0.113.9 4711 443\r\nhello");
    let weir = tcp(LOOPBACK, "v2", backend.address());
    let (_client, mut wire) = header_and_hello(&weir, &backend, &lead);
    wire.receives_exactly([&version_2(1, 0x11, &ADDRESSES_V4)[..], b"hello"].concat());
}

#[test]
fn a_backend_of_http_is_told_before_the_first_request_of_each_connection() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&one_pool(
        "",
        r#"
        send_proxy = "v1"
        health = { check = "off" }
        "#,
    ))
    .with("app", backend.address())
    .start();
    // Two clients: a connection that was opened in the name of one must not carry a request of the other.
    for _ in 0..2 {
        let mut client = weir.client("web");
        client.sends(GET);
        let mut wire = backend.accepts();
        wire.receives_exactly(format!(
            "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n",
            client.local().port(),
            client.peer().port()
        ));
        wire.receives_request();
        wire.answers(200, &[], "ok");
        client.receives_status(200);
    }
}
