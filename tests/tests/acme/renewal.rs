//! When certificates are renewed, and who notices.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use weir_tests::dialogue::{Weir, free_address, until};

use super::{
    CONFIG, Pebble, Ports, asked, by, certificate, comes_to, is_issued, mirror, orders, setup, shown,
};

/// Asks on one connection whenever it is told to, and says `ok`.
const KEEPER: &str = "
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[3])
tls = context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2]))), server_hostname='shop.example')
for line in sys.stdin:
    tls.sendall(b'GET / HTTP/1.1\\r\\nhost: shop.example\\r\\n\\r\\n')
    data = tls.recv(65536)
    assert data.startswith(b'HTTP/1.1 200'), data
    print('ok', flush=True)
";

/// The certificate's file in the store of a test.
fn stored(weir: &Weir) -> PathBuf {
    PathBuf::from(certificate(weir, "secure")["file"].as_str().expect("a file"))
}

/// Pebble's certificates are valid for years, so Weir's clock is moved four years ahead.
#[test]
fn a_certificate_near_its_end_is_renewed_and_open_connections_do_not_notice() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let config = by("tls-alpn-01").replace(
        "http = [\"h1\"]\npool = \"app\"\n[listener.secure.tls",
        "http = [\"h1\"]\npool = \"app\"\ntimeout = { client_idle = \"60s\" }\n[listener.secure.tls",
    );
    let weir = setup(&config, ports, &pebble, &backend).with_fake_clock().start();
    is_issued(&weir, "secure");
    let before = shown(&weir, "shop.example");
    let address = weir.address("secure");
    let mut keeper = Command::new(weir_tests::dialogue::tool("python3", "python3"))
        .args(["-c", KEEPER, &address.ip().to_string(), &address.port().to_string()])
        .arg(pebble.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let (mut input, mut output) =
        (keeper.stdin.take().expect("piped"), BufReader::new(keeper.stdout.take().expect("piped")));
    let mut ask = || {
        let mut line = String::new();
        writeln!(input, "ask").expect("it listens");
        output.read_line(&mut line).expect("it answers");
        assert_eq!(line.trim(), "ok");
    };
    ask();
    weir.sets_clock("+1500d");
    // A reload has all certificates checked again; otherwise that could take up to ten minutes.
    assert_eq!(weir.command(&["reload"]).code, 0);
    comes_to(&weir, "issued", 2.0);
    ask();
    until("the new certificate to be shown", || (shown(&weir, "shop.example") != before).then_some(()));
    ask();
    drop(input);
    assert!(keeper.wait().expect("it ends").success());
    until("a line in the log", || weir.stderr().contains("certificate renewed").then_some(()));
}

/// A Weir stands before Pebble and adds what Pebble does not have: renewal information (RFC 9773).
const FRONT: &str = r#"
[listener.ca]
bind = "@front"
http = ["h1"]
pool = "pebble"
tls = { certificates = [{ cert = "@dir/front.pem", key = "@dir/front.key" }] }
[[listener.ca.route]]
path = "/dir"
[listener.ca.route.respond]
body = '{"newNonce": "https://localhost:PORT/nonce-plz", "newAccount": "https://localhost:PORT/sign-me-up", "newOrder": "https://localhost:PORT/order-plz", "revokeCert": "https://localhost:PORT/revoke-cert", "keyChange": "https://localhost:PORT/rollover-account-key", "renewalInfo": "https://localhost:PORT/renewal"}'
content_type = "application/json"
[[listener.ca.route]]
path = "/renewal/*"
add_response_header = { retry-after = "3600" }
respond = { body = '{"suggestedWindow": {"start": "START", "end": "END"}}', content_type = "application/json" }
[pool.pebble]
backends = ["@pebble"]
tls = { ca = "@dir/front-ca.pem", server_name = "localhost" }
health = "off"
"#;

/// The Weir in front of Pebble at `address`, which suggests renewal between `start` and `end`.
pub fn front(address: SocketAddr, start: &str, end: &str) -> String {
    FRONT.replace("PORT", &address.port().to_string()).replace("START", start).replace("END", end)
}

pub fn before(pebble: &Pebble, address: SocketAddr, front: &str) -> Weir {
    weir_tests::dialogue::Setup::of(front)
        .with("front", address)
        .with("pebble", pebble.address)
        .with_file("front.pem", &pebble.front_file("localhost.pem"))
        .with_file("front.key", &pebble.front_file("localhost.key"))
        .with_file("front-ca.pem", &pebble.front_ca())
        .start()
}

/// Makes the stored certificate an hour old; otherwise it would be left alone for a minute, whatever anybody
/// suggests.
pub fn ages(weir: &Weir) {
    let aged = Command::new("touch").arg("-d").arg("1 hour ago").arg(stored(weir)).status().expect("touch");
    assert!(aged.success());
}

/// A wait longer than clocks can express silently ended the task that renews.
#[test]
fn an_absurd_wait_that_the_authority_asks_for_ends_no_renewal() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let address = free_address();
    let absurd = front(address, "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z")
        .replace("retry-after = \"3600\"", "retry-after = \"18446744073709551615\"");
    let authority = before(&pebble, address, &absurd);
    let mut weir = setup(CONFIG, ports, &pebble, &backend)
        .with("directory", format!("https://localhost:{}/dir", address.port()))
        .start();
    is_issued(&weir, "secure");
    ages(&weir);
    weir.signals(weir_tests::dialogue::Signal::TERM);
    weir.starts_again();
    comes_to(&weir, "issued", 1.0);
    assert_eq!(weir.metric("weir_panics_total", &[]), 0.0, "{}", weir.stderr());
    drop(authority);
}

#[test]
fn a_certificate_is_renewed_when_the_authority_suggests_it() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let address = free_address();
    let front = |start: &str, end: &str| front(address, start, end);
    let mut authority =
        self::before(&pebble, address, &front("2100-01-01T00:00:00Z", "2100-01-02T00:00:00Z"));
    let mut weir = setup(CONFIG, ports, &pebble, &backend)
        .with("directory", format!("https://localhost:{}/dir", address.port()))
        .start();
    is_issued(&weir, "secure");
    let (before, file) = (shown(&weir, "shop.example"), stored(&weir));
    ages(&weir);
    let restart = |weir: &mut Weir| {
        weir.signals(weir_tests::dialogue::Signal::TERM);
        weir.starts_again();
    };
    restart(&mut weir);
    until("a plan", || certificate(&weir, "secure")["acme"]["next"].is_string().then_some(()));
    assert_eq!(
        (shown(&weir, "shop.example"), orders(&weir, "issued")),
        (before.clone(), 0.0),
        "it is not time yet"
    );
    authority.reloads(&front("2020-01-01T00:00:00+01:00", "2020-01-02T00:00:00+01:00"));
    restart(&mut weir);
    comes_to(&weir, "issued", 1.0);
    until("the new certificate to be shown", || (shown(&weir, "shop.example") != before).then_some(()));
    assert!(asked(&weir, &pebble, "www.shop.example").succeeded().ends_with("status 200"));
    assert_eq!((stored(&weir), orders(&weir, "refused")), (file, 0.0));
    let next = certificate(&weir, "secure")["acme"]["next"].clone();
    assert!(next.is_string(), "an authority that always suggests renewal is not followed at once: {next}");
    assert_eq!(orders(&weir, "issued"), 1.0);
}
