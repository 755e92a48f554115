//! Which certificate, which version, which protocol; and handshakes that are not meant well (threats D1, D4,
//! D5, D7).

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use weir_tests::dialogue::Backend;

use super::{Authority, LAST, curl, mirror, s_client};

const CONFIG: &str = r#"
[runtime]
workers = 2
[log]
access = "@dir/access.log"
[listener.web]
bind = "@web"
http = ["h1"]
pool = "app"
timeout = { handshake = "700ms" }
[listener.web.tls]
certificates = [
    { cert = "@dir/first.pem", key = "@dir/first.key" },
    { cert = "@dir/shop.pem", key = "@dir/shop.key" },
    { cert = "@dir/shoprsa.pem", key = "@dir/shoprsa.key" },
    { cert = "@dir/wild.pem", key = "@dir/wild.key" },
]
[listener.pass]
protocol = "tcp"
bind = "@pass"
timeout = { handshake = "700ms" }
[[listener.pass.route]]
sni = "*.wild.example"
pool = "through"
[pool.through]
backends = ["@web"]
health = "off"
[pool.app]
backends = ["@app"]
health = "off"
"#;

fn authority() -> Authority {
    Authority::new()
        .signs("first", &["first.example"])
        .signs("shop", &["shop.example"])
        .signs_with("shoprsa", &["shop.example"], "rsa:2048", 30)
        .signs("wild", &["*.wild.example"])
}

fn running(backend: &Backend) -> (Authority, weir_tests::dialogue::Weir) {
    let authority = authority();
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    (authority, weir)
}

#[test]
fn a_client_gets_the_certificate_of_the_name_it_asks_for_and_the_first_for_any_other() {
    let backend = mirror();
    let (_authority, weir) = running(&backend);
    for (name, subject) in [
        ("-servername shop.example", "shop"),
        ("-servername SHOP.example", "shop"),
        ("-servername a.wild.example", "wild"),
        ("-servername a.b.wild.example", "first"),
        ("-servername wild.example", "first"),
        ("-servername nobody.example", "first"),
        // D5: an address is no server name.
        ("-servername 127.0.0.1", "first"),
        ("-noservername", "first"),
        ("-servername shop.example -sigalgs RSA-PSS+SHA256", "shoprsa"),
        ("-servername shop.example -tls1_2", "shop"),
    ] {
        let shown = s_client(weir.address("web"), name, LAST).stdout;
        assert!(shown.contains(&format!("subject=CN = {subject}\n")), "{name}: {shown}");
        assert!(shown.contains("HTTP/1.1 200"), "{name}: {shown}");
    }
    assert!(weir.metric("weir_tls_handshakes_total", &[("listener", "web"), ("result", "full")]) >= 10.0);
    assert!(weir.metric("weir_certificate_expiry_timestamp_seconds", &[("listener", "web")]) > 1.7e9);
    let lines = weir.lines_of("access.log", 10);
    assert!(lines[0].contains(r#""tls_version":"TLSv1.3","tls_cipher":"TLS_"#), "{}", lines[0]);
    assert!(lines[0].contains(r#""server_name":"shop.example""#), "{}", lines[0]);
}

#[test]
fn backends_are_told_that_the_client_came_by_https() {
    let backend = mirror();
    let (authority, weir) = running(&backend);
    let answer = curl(&weir, "web", "shop.example", &["--cacert", &authority.path("ca.pem")]);
    assert!(answer.succeeded().contains("x-forwarded-proto: https\r\n"), "{answer:?}");
}

#[test]
fn what_is_passed_through_is_chosen_by_name_and_never_opened() {
    let backend = mirror();
    let (authority, weir) = running(&backend);
    let answer = curl(&weir, "pass", "a.wild.example", &["--cacert", &authority.path("ca.pem")]);
    assert!(answer.succeeded().ends_with("status 200"), "{answer:?}");
    let refused = curl(&weir, "pass", "shop.example", &["--cacert", &authority.path("ca.pem")]);
    assert_ne!(refused.code, 0, "no route has this name: {refused:?}");
    weir.reaches("weir_ends_total", &[("listener", "pass"), ("reason", "no_route")], 1.0);
}

/// Threat D7: a client that means another protocol is told so before it says a word of it.
#[test]
fn d7_a_client_that_offers_only_another_protocol_gets_an_alert() {
    let backend = mirror();
    let (_authority, weir) = running(&backend);
    let shown = s_client(weir.address("web"), "-alpn smtp,ftp", "");
    assert!(shown.stderr.contains("no application protocol"), "{shown:?}");
    weir.reaches("weir_tls_handshakes_total", &[("listener", "web"), ("result", "no_protocol")], 1.0);
    assert!(backend.requests().is_empty());
}

/// Threat D4 (CVE-2011-1473): a second handshake on a connection is refused; nobody makes us compute for
/// ever.
#[test]
fn d4_renegotiation_is_refused() {
    let backend = mirror();
    let (_authority, weir) = running(&backend);
    let address = weir.address("web").to_string();
    let arguments = ["s_client", "-connect", &address, "-tls1_2"];
    let openssl = weir_tests::dialogue::tool("openssl", "openssl");
    let shown = weir_tests::dialogue::run_tool(&openssl, &arguments, b"R\n", weir_tests::dialogue::PATIENCE);
    assert!(shown.stderr.contains("no renegotiation") || shown.stderr.contains("error"), "{shown:?}");
    assert!(s_client(weir.address("web"), "", LAST).stdout.contains("HTTP/1.1 200"));
}

/// Threats D1 and D4: a greeting that does not end is cut off in time, one that is too long at once, and both
/// where it is only read.
#[test]
fn d4_a_greeting_without_an_end_is_cut_off() {
    let backend = mirror();
    let (_authority, weir) = running(&backend);
    for listener in ["web", "pass"] {
        let mut slow = weir.client(listener);
        let begun = Instant::now();
        slow.sends(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
        slow.receives_close();
        let took = begun.elapsed().as_millis();
        assert!((600..5000).contains(&took), "{listener}: closed after {took} ms");
        weir.reaches("weir_tls_handshakes_total", &[("listener", "web"), ("result", "timed_out")], 1.0);
    }
    let mut flood = weir.client("web");
    // A greeting of 16 MiB is announced, in records of 16 KiB.
    let record = [&b"\x16\x03\x01\x40\x00"[..], &[1, 0xff, 0xff, 0xff], &[0; (16 << 10) - 4]].concat();
    let begun = Instant::now();
    while flood.tries_to_send(&record).is_ok() && begun.elapsed().as_millis() < 500 {}
    assert!(begun.elapsed().as_millis() < 500, "it was not cut off before its time was over");
    assert!(s_client(weir.address("web"), "", LAST).stdout.contains("HTTP/1.1 200"));
}

/// Sends the end of its handshake, a request and its own end in one piece.
const HASTY: &str = "
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[3])
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context.wrap_bio(incoming, outgoing, server_hostname='shop.example')
wire = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    try:
        tls.do_handshake()
        break
    except ssl.SSLWantReadError:
        wire.sendall(outgoing.read())
        incoming.write(wire.recv(65536))
tls.write(b'GET / HTTP/1.1\\r\\nhost: shop.example\\r\\nconnection: close\\r\\n\\r\\n')
try:
    tls.unwrap()
except ssl.SSLWantReadError:
    pass
wire.sendall(outgoing.read())
received = 0
while chunk := wire.recv(65536):
    received += len(chunk)
print(received)
";

/// The mirror's answer is longer than tickets and alerts are.
#[test]
fn a_request_that_comes_along_with_the_end_of_the_handshake_and_of_the_client_is_answered() {
    let backend = mirror();
    let (authority, weir) = running(&backend);
    let (address, ca) = (weir.address("web"), authority.path("ca.pem"));
    let arguments = ["-c", HASTY, &address.ip().to_string(), &address.port().to_string(), &ca];
    let python = weir_tests::dialogue::tool("python3", "python3");
    let finished = weir_tests::dialogue::run_tool(&python, &arguments, b"", weir_tests::dialogue::PATIENCE);
    assert_eq!(backend.requests().len(), 1, "{finished:?}");
    weir.reaches("weir_requests_total", &[("listener", "web"), ("code", "2xx")], 1.0);
}

/// Threat D4: records of a byte each make of a greeting of 16 KiB one of 96; it is cut off by what it takes,
/// long before its time is over.
#[test]
fn d4_a_greeting_in_tiny_records_is_cut_off_by_its_bytes() {
    let backend = mirror();
    let config = CONFIG.replace(r#"handshake = "700ms""#, r#"handshake = "30s""#);
    let weir = authority().setup(&config).with("app", backend.address()).start();
    let mut flood = weir.client("web");
    let greeting = [&[1, 0, 0x3e, 0x80, 3, 3][..], &[0; 16_000]].concat();
    let records: Vec<u8> = greeting.iter().flat_map(|byte| [0x16, 3, 1, 0, 1, *byte]).collect();
    let cut_off = records.chunks(1_200).take(60).any(|piece| flood.tries_to_send(piece).is_err());
    assert!(cut_off || flood.receives_to_the_end().len() < 16);
    weir.reaches("weir_tls_handshakes_total", &[("listener", "web"), ("result", "malformed")], 1.0);
}

#[test]
fn what_is_no_tls_gets_no_answer_from_a_backend() {
    let backend = mirror();
    let (_authority, weir) = running(&backend);
    let mut plain = weir.client("web");
    plain.sends(LAST);
    plain.receives_to_the_end();
    weir.reaches("weir_tls_handshakes_total", &[("listener", "web"), ("result", "not_tls")], 1.0);
    assert!(backend.requests().is_empty());
}

/// Threat C7: a ticket promises no early data, and a client that sends some all the same is not served before
/// the handshake is over.
#[test]
fn c7_early_data_over_tcp_is_not_taken() {
    let backend = mirror();
    let (_authority, weir) = running(&backend);
    let (session, early) = (weir.dir().join("session"), weir.dir().join("early"));
    std::fs::write(&early, LAST).expect("write");
    let (session, early) = (session.display(), early.display());
    s_client(weir.address("web"), &format!("-sess_out {session}"), LAST).succeeded();
    let shown = s_client(weir.address("web"), &format!("-sess_in {session} -early_data {early}"), LAST);
    assert!(shown.stdout.contains("Reused, TLSv1.3"), "{shown:?}");
    assert!(shown.stdout.contains("Early data was not sent"), "{shown:?}");
    assert!(shown.stdout.contains("HTTP/1.1 200"), "{shown:?}");
}

/// A session that another server of this name has given, and with it leave to send 16 KiB of early data.
fn session_of_another_server(authority: &Authority) -> String {
    let session = authority.path("session");
    let words = format!(
        "s_server -accept 127.0.0.1:0 -tls1_3 -early_data -cert {} -key {}",
        authority.path("shop.pem"),
        authority.path("shop.key")
    );
    let mut server = Command::new(weir_tests::dialogue::tool("openssl", "openssl"))
        .args(words.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("start openssl s_server");
    let lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let mut lines = lines.map(|line| line.expect("a line of openssl s_server"));
    let address = lines.find_map(|line| line.strip_prefix("ACCEPT ")?.parse().ok());
    let address = address.expect("the address that it accepts at");
    let client = {
        let words = format!("-servername shop.example -sess_out {session}");
        std::thread::spawn(move || s_client(address, &words, "said\n"))
    };
    // It prints what it is sent; the session went to the client before that.
    assert!(lines.any(|line| line == "said"));
    server.kill().expect("end openssl s_server");
    server.wait().expect("wait for openssl s_server");
    client.join().expect("the client");
    session
}

/// RFC 8446 section 4.2.10: early data that is not taken is skipped, up to a limit.
#[test]
fn early_data_for_another_server_is_skipped_and_the_request_behind_it_served() {
    let backend = mirror();
    let (authority, weir) = running(&backend);
    let session = session_of_another_server(&authority);
    let early = authority.path("early");
    for bytes in [100, 8_000, 12_000, 16_000] {
        std::fs::write(&early, vec![b'x'; bytes]).expect("write");
        let words = format!("-servername shop.example -sess_in {session} -early_data {early}");
        let shown = s_client(weir.address("web"), &words, LAST);
        assert!(shown.stdout.contains("Early data was rejected"), "{bytes}: {shown:?}");
        assert!(shown.stdout.contains("HTTP/1.1 200"), "{bytes}: {shown:?}");
    }
    assert_eq!(backend.requests().len(), 4);
}

/// Threat B16: HTTP/2 over TLS is agreed on by ALPN (RFC 9113 section 3.2); who did not agree does not get it
/// by its preface.
#[test]
fn b16_http2_over_tls_is_spoken_only_with_those_who_agreed_to_it() {
    let backend = mirror();
    let config = CONFIG.replace(r#"http = ["h1"]"#, r#"http = ["h1", "h2"]"#);
    let weir = authority().setup(&config).with("app", backend.address()).start();
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let shown = s_client(weir.address("web"), "-quiet", preface);
    assert!(shown.stdout.contains("HTTP/1.1 400") || shown.stdout.contains("HTTP/1.1 505"), "{shown:?}");
    assert!(s_client(weir.address("web"), "", LAST).stdout.contains("HTTP/1.1 200"));
    assert!(backend.requests().iter().all(|request| request.method != "PRI"));
}
