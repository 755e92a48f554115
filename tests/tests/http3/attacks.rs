//! Attacks on HTTP/3 and what is under it, packet by packet (threats B1, C3 to C6, C10). Whoever attacks is
//! closed; the others notice nothing.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::http3::{
    CONTROL, DECODER, ENCODER, Http3, Outcome, capacity, code, frame, headers, insertion, kind, request,
    section,
};
use weir_tests::dialogue::quic::{self, Close, Quic, Space, frame as quic_frame};
use weir_tests::dialogue::{After, Backend, PATIENCE, ScriptedBackend, Weir, until, usage_of};

use super::{Authority, Client, authority, run};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2", "h3"]
pool = "app"
limits = { streams = 50 }
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// Most streams that [`CONFIG`] lets a client have at once.
const STREAMS: u64 = 50;

struct Scene {
    authority: Authority,
    backend: Backend,
    weir: Weir,
}

impl Scene {
    fn new() -> Scene {
        Scene::of(CONFIG)
    }

    /// One that gives up soon what is not complete.
    fn impatient() -> Scene {
        let times = "timeout = { header = \"3s\", handshake = \"3s\" }\n[pool.app]";
        Scene::of(&CONFIG.replace("[pool.app]", times))
    }

    fn of(config: &str) -> Scene {
        let authority = authority();
        let backend = Backend::serving(|request, wire| {
            let body = if request.target == "/large" { vec![b'x'; 3 << 20] } else { b"hello".to_vec() };
            wire.answers(200, &[], body);
            After::Keep
        });
        let weir = authority.setup(config).with("app", backend.address()).start();
        Scene { authority, backend, weir }
    }

    fn trust(&self) -> Arc<rustls::ClientConfig> {
        quic::trusting(self.authority.path("ca.pem").as_ref())
    }

    fn connect(&self) -> Http3 {
        Http3::connect(self.weir.address("web"), "shop.example", &self.trust())
    }

    fn floods(&self) -> f64 {
        self.weir.metric("weir_rejected_total", &[("reason", "frame_flood")])
    }

    /// Requests that reached the backend and were no honest client's.
    fn reached(&self) -> usize {
        self.backend.requests().iter().filter(|request| request.target == "/attack").count()
    }

    /// Runs `attack` beside an honest client, every request of which must be answered; gives how the attacker
    /// was closed.
    fn beside(&self, name: &str, attack: impl FnOnce(&mut Http3) -> Close) -> Close {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let honest = scope.spawn(|| {
                let mut answered = 0;
                run(async {
                    let mut client = Client::connect(&self.authority, self.weir.address("web")).await;
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(client.asks(b"").await, (200, b"hello".to_vec()), "{name}");
                        answered += 1;
                    }
                    assert_eq!(client.asks(b"").await.0, 200, "{name}");
                });
                answered
            });
            let attacked = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let mut attacker = self.connect();
                let begun = Instant::now();
                (attack(&mut attacker), begun.elapsed())
            }));
            stop.store(true, Ordering::Relaxed);
            let (close, took) = attacked.unwrap_or_else(|problem| std::panic::resume_unwind(problem));
            let answered = honest.join().expect("every honest request is answered");
            println!("{name}: closed after {took:?} with {close:?}; {answered} honest requests");
            close
        })
    }
}

/// Sends what `next` makes, in packets of their own, until the connection is closed or `most` were sent.
fn floods(client: &mut Http3, most: u64, mut next: impl FnMut(u64) -> Vec<u8>) -> Close {
    for number in 0..most {
        let packet = next(number);
        if client.quic.tries_to_send(packet).is_err() || (number % 8 == 0 && client.quic.closed().is_some()) {
            break;
        }
    }
    client.quic.receives_close()
}

/// The `n`th stream that a client opens for a request.
fn stream(n: u64) -> u64 {
    4 * n
}

/// Waits until the `n`th stream may be opened; false when the connection is closed.
fn may_open(client: &mut Http3, n: u64) -> bool {
    client.quic.waits("leave to open a stream", |quic| {
        quic.looks();
        if quic.closed().is_some() {
            Some(false)
        } else {
            (n < quic.seen.max_streams.max(STREAMS)).then_some(true)
        }
    })
}

#[test]
fn b1_requests_that_are_reset_at_once_in_http_3_end_the_connection() {
    let scene = Scene::new();
    let head = headers(&request("GET", "/attack"));
    // In one packet, and in one after the other.
    for apart in [false, true] {
        let before = scene.floods();
        let close = scene.beside("rapid reset", |client| {
            for n in 0..20_000 {
                if !may_open(client, n) {
                    break;
                }
                let open = quic_frame::stream(stream(n), 0, &head, true);
                let reset = [
                    quic_frame::reset_stream(stream(n), code::REQUEST_CANCELLED, head.len() as u64),
                    quic_frame::stop_sending(stream(n), code::REQUEST_CANCELLED),
                ]
                .concat();
                if apart {
                    client.quic.sends(open);
                    client.quic.sends(reset);
                } else {
                    client.quic.sends([open, reset].concat());
                }
            }
            client.quic.receives_close()
        });
        assert!(close.is_for(code::EXCESSIVE_LOAD, true), "{close:?}");
        assert_eq!(scene.floods(), before + 1.0);
    }
    assert!(scene.reached() < 500, "{}", scene.reached());
}

/// It ended the connection on which the proxy had sent the requests of all other visitors, too.
#[test]
fn b1_a_visitor_who_resets_requests_through_a_trusted_proxy_ends_nobody_elses_in_http_3() {
    const RESETS: u64 = 300;
    let (authority, backend) = (authority(), ScriptedBackend::start());
    let config = CONFIG.replace("pool = \"app\"\n", "pool = \"app\"\ntrusted_proxies = [\"127.0.0.1\"]\n");
    let weir = authority.setup(&config).with("app", backend.address()).start();
    let trust = quic::trusting(authority.path("ca.pem").as_ref());
    let mut proxy = Http3::connect(weir.address("web"), "shop.example", &trust);
    proxy.requests(0, &headers(&request("GET", "/patient")));
    let mut wire = backend.accepts();
    wire.receives_request_head();
    let visitor = [&request("GET", "/attack")[..], &[("x-forwarded-for", "192.0.2.7")]].concat();
    let head = headers(&visitor);
    for n in 1..=RESETS {
        assert!(may_open(&mut proxy, n), "closed behind {n} resets");
        let reset = quic_frame::reset_stream(stream(n), code::REQUEST_CANCELLED, head.len() as u64);
        let stop = quic_frame::stop_sending(stream(n), code::REQUEST_CANCELLED);
        let open = quic_frame::stream(stream(n), 0, &head, true);
        proxy.quic.sends([open, reset, stop].concat());
    }
    wire.answers(200, &[], "hello");
    assert_eq!(proxy.outcome_of(0), Outcome::Answered(200, b"hello".to_vec()));
}

#[test]
fn c3_a_request_that_is_not_as_long_as_it_declared_never_reaches_a_backend_whole() {
    let scene = Scene::new();
    let fields = |length: &'static str| {
        let mut fields = request("POST", "/attack").to_vec();
        fields.push(("content-length", length));
        headers(&fields)
    };
    let mut client = scene.connect();
    for (n, (length, content)) in
        [("5", &b""[..]), ("5", b"abc"), ("3", b"abcdef"), ("5, 5", b"abcde")].into_iter().enumerate()
    {
        let data = if content.is_empty() { Vec::new() } else { frame(kind::DATA, content) };
        client.requests(stream(n as u64), &[fields(length), data].concat());
        let outcome = client.outcome_of(stream(n as u64));
        let is_refused = matches!(outcome, Outcome::Answered(400, _) | Outcome::Reset(code::MESSAGE_ERROR));
        assert!(is_refused, "{length} {content:?}: {outcome:?}");
    }
    // The end comes in a packet of its own, when the head is on its way to the backend.
    let n = 10;
    client.begins(stream(n), 0, &fields("5"), false);
    client.begins(stream(n), fields("5").len() as u64, b"", true);
    let outcome = client.outcome_of(stream(n));
    assert!(
        matches!(outcome, Outcome::Answered(400, _) | Outcome::Reset(code::MESSAGE_ERROR)),
        "{outcome:?}"
    );
    assert_eq!(scene.backend.served(), 0);
    until("what was begun to be broken off", || (scene.backend.busy() == 0).then_some(()));
}

/// A section of `count` references of a byte each to the newest entry, of which one was inserted.
fn references(count: usize) -> Vec<u8> {
    let mut bytes = section(&request("GET", "/attack"));
    // Required insert count 1, in the coding of RFC 9204 §4.5.1.1; base 1.
    bytes[0] = 2;
    bytes.extend(std::iter::repeat_n(0x80, count));
    bytes
}

#[test]
fn c4_short_references_to_a_long_entry_are_refused_before_they_take_memory_and_then_closed() {
    let scene = Scene::new();
    let close = scene.beside("qpack bomb", |client| {
        client.steers(ENCODER, &[capacity(4096), insertion(b"x-bomb", &[b'v'; 1000])].concat());
        let bomb = frame(kind::HEADERS, &references(15_000));
        for n in 0..1_000 {
            if !may_open(client, n) {
                break;
            }
            client.requests(stream(n), &bomb);
            let got = client.quic.receives_stream(stream(n));
            assert!(got.is_over() || client.quic.closed().is_some());
        }
        client.quic.receives_close()
    });
    assert!(close.is_for(code::EXCESSIVE_LOAD, true), "{close:?}");
    assert_eq!(scene.reached(), 0);
    let peak = usage_of(scene.weir.pid()).expect("running").peak_bytes;
    assert!(peak < 128 << 20, "{peak} bytes");
}

#[test]
fn c4_heads_that_wait_for_insertions_are_few_and_not_for_long() {
    let scene = Scene::impatient();
    let blocked = frame(kind::HEADERS, &references(1));
    let close = scene.beside("blocked streams", |client| {
        client.steers(ENCODER, &capacity(4096));
        for n in 0..40 {
            client.requests(stream(n), &blocked);
        }
        client.quic.receives_close()
    });
    assert!(close.is_for(code::DECOMPRESSION_FAILED, true), "{close:?}");
    // As many as may wait: each until its time is over.
    let mut client = scene.connect();
    client.steers(ENCODER, &capacity(4096));
    (0..16).for_each(|n| client.requests(stream(n), &blocked));
    for n in 0..16 {
        let outcome = client.outcome_of(stream(n));
        assert!(matches!(outcome, Outcome::Answered(408, _) | Outcome::Reset(_)), "{outcome:?}");
    }
    assert_eq!(client.asks(stream(16), "/honest"), Outcome::Answered(200, b"hello".to_vec()));
    assert_eq!(scene.reached(), 0);
}

#[test]
fn c4_insertions_that_no_request_uses_end_the_connection() {
    let scene = Scene::new();
    let close = scene.beside("encoder flood", |client| {
        client.steers(ENCODER, &capacity(4096));
        client.steers(ENCODER, &insertion(b"x-bomb", &[b'v'; 1000]));
        // A copy of the newest entry takes a byte (RFC 9204 §4.3.4).
        for _ in 0..100 {
            client.steers(ENCODER, &[0; 60]);
        }
        client.quic.receives_close()
    });
    assert!(close.is_for(code::EXCESSIVE_LOAD, true), "{close:?}");
}

/// A name, and what makes the frames of one packet from its number and from that of a packet received.
type Way = (&'static str, fn(u64, u64) -> Vec<u8>);

#[test]
fn c5_floods_of_frames_without_content_are_closed_and_counted() {
    let scene = Scene::new();
    let ways: [Way; 6] = [
        ("ping", |_, _| quic_frame::ping().repeat(1000)),
        ("challenges", |n, _| (0..100).flat_map(|each| quic_frame::path_challenge(n * 100 + each)).collect()),
        ("windows", |n, _| quic_frame::max_data((1 << 31) + n).repeat(100)),
        ("retired again and again", |_, _| quic_frame::retire_connection_id(1).repeat(300)),
        ("acknowledgements of nothing new", |_, received| quic_frame::ack(received, 0, &[]).repeat(200)),
        ("empty pieces of a stream", |_, _| quic_frame::stream(stream(1), 0, b"", false).repeat(200)),
    ];
    for (name, way) in ways {
        let before = scene.floods();
        let close = scene.beside(name, |client| {
            assert_eq!(client.asks(stream(0), "/honest"), Outcome::Answered(200, b"hello".to_vec()));
            let received = client.quic.largest();
            floods(client, 100_000, |number| way(number, received))
        });
        assert!(close.is_for(code::EXCESSIVE_LOAD, true), "{name}: {close:?}");
        assert_eq!(scene.floods(), before + 1.0, "{name}");
    }
    assert_eq!(scene.reached(), 0);
}

/// How a connection is closed that sends this packet.
fn closed_for(scene: &Scene, packet: Vec<u8>) -> (bool, u64) {
    let mut client = scene.connect();
    client.quic.sends(packet);
    let close = client.quic.receives_close();
    (close.is_application, close.code)
}

#[test]
fn c5_more_ids_or_streams_than_agreed_end_the_connection() {
    let scene = Scene::new();
    let ids: Vec<u8> = (1..20).flat_map(|n| quic_frame::new_connection_id(n, 0)).collect();
    assert_eq!(closed_for(&scene, ids), (false, quic::code::CONNECTION_ID_LIMIT_ERROR));
    let unknown = quic_frame::retire_connection_id(10_000);
    assert_eq!(closed_for(&scene, unknown), (false, quic::code::PROTOCOL_VIOLATION));
    let above = quic_frame::stream(stream(STREAMS), 0, b"x", false);
    assert_eq!(closed_for(&scene, above), (false, quic::code::STREAM_LIMIT_ERROR));
    let steering = quic_frame::stream(2 + 4 * 16, 0, b"\x21", false);
    assert_eq!(closed_for(&scene, steering), (false, quic::code::STREAM_LIMIT_ERROR));
    let beyond = quic_frame::stream(0, 1 << 20, b"x", false);
    assert_eq!(closed_for(&scene, beyond), (false, quic::code::FLOW_CONTROL_ERROR));
}

/// CVE-2024-22189: each new ID retires the one before, and what the server owes for it is never acknowledged.
#[test]
fn c5_a_storm_of_retired_ids_ends_the_connection_and_takes_no_memory() {
    let scene = Scene::new();
    let before = usage_of(scene.weir.pid()).expect("running").resident_bytes;
    let close = scene.beside("retired ids", |client| {
        client.quic.acknowledges = false;
        floods(client, 100_000, |n| {
            (0..30)
                .flat_map(|each| {
                    let sequence = n * 30 + each + 1;
                    quic_frame::new_connection_id(sequence, sequence)
                })
                .collect()
        })
    });
    let is_closed = close.is_for(quic::code::CONNECTION_ID_LIMIT_ERROR, false)
        || close.is_for(code::EXCESSIVE_LOAD, true);
    assert!(is_closed, "{close:?}");
    let grown = usage_of(scene.weir.pid()).expect("running").resident_bytes.saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
}

#[test]
fn c5_handshake_bytes_behind_a_gap_are_bounded_and_given_up() {
    let scene = Scene::impatient();
    let silent = || Quic::silent(scene.weir.address("web"), "shop.example", &scene.trust());
    let mut far = silent();
    far.tries_to_send_in(Space::Initial, &quic_frame::crypto(70_000, b"x")).expect("sent");
    let close = far.receives_close();
    assert!(close.is_for(quic::code::CRYPTO_BUFFER_EXCEEDED, false), "{close:?}");
    // The library has much to say of this one, at least to those who ask.
    let mut doubled = silent();
    doubled.greets();
    let again = quic_frame::crypto(60_000, b"x");
    let _ = doubled.tries_to_send_in(Space::Initial, &again);
    doubled.receives_close();
    // Behind the handshake nobody has anything to say in such frames but what is whole.
    let mut late = scene.connect();
    late.quic.sends(quic_frame::crypto(70_000, b"x"));
    assert_eq!(late.quic.receives_close().code, quic::code::CRYPTO_BUFFER_EXCEEDED);
    // Many small pieces with gaps, which stay below the bound: until the handshake must be over.
    let first = scene.weir.metric("weir_quic_handshakes_total", &[("result", "timed_out")]);
    let mut holes = silent();
    for piece in 0..10 {
        let pieces: Vec<u8> =
            (0..50).flat_map(|each| quic_frame::crypto(2 + (piece * 50 + each) * 2, b"x")).collect();
        if holes.tries_to_send_in(Space::Initial, &pieces).is_err() {
            break;
        }
    }
    scene.weir.reaches("weir_quic_handshakes_total", &[("result", "timed_out")], first + 1.0);
    let mut client = scene.connect();
    assert_eq!(client.asks(0, "/honest"), Outcome::Answered(200, b"hello".to_vec()));
    assert!(!scene.weir.stderr().contains("WARN"), "{}", scene.weir.stderr());
}

#[test]
fn c6_acknowledgements_of_packets_that_were_never_sent_end_the_connection() {
    let scene = Scene::new();
    let future = quic_frame::ack(100_000, 10, &[]);
    assert_eq!(closed_for(&scene, future), (false, quic::code::PROTOCOL_VIOLATION));
    // A client that acknowledges what it has not received, in order to be sent more: some numbers are never
    // used, and it names those too.
    let mut client = scene.connect();
    client.quic.acknowledges = false;
    client.requests(0, &headers(&request("GET", "/large")));
    let deadline = Instant::now() + PATIENCE;
    while client.quic.closed().is_none() && Instant::now() < deadline {
        let largest = client.quic.largest();
        let _ = client.quic.tries_to_send(quic_frame::ack(largest, largest, &[]));
        let _ = client.quic.receives_datagram(Instant::now() + Duration::from_millis(20));
    }
    let close = client.quic.receives_close();
    assert!(close.is_for(quic::code::PROTOCOL_VIOLATION, false), "{close:?}");
    assert!(!client.quic.stream(0).is_whole(), "it was closed only when all was sent");
}

#[test]
fn c10_streams_and_frames_that_must_not_be_are_answered_with_their_codes() {
    let scene = Scene::new();
    let steers = |stream: u64, bytes: &[u8]| {
        let mut client = scene.connect();
        client.steers(stream, bytes);
        let close = client.quic.receives_close();
        assert!(close.is_application, "{close:?}");
        close.code
    };
    let ended = |stream: u64| {
        let mut client = scene.connect();
        client.ends(stream);
        client.quic.receives_close().code
    };
    for stream in [CONTROL, ENCODER, DECODER] {
        assert_eq!(ended(stream), code::CLOSED_CRITICAL_STREAM, "{stream}");
    }
    assert_eq!(steers(CONTROL, &frame(kind::SETTINGS, b"")), code::FRAME_UNEXPECTED, "settings again");
    assert_eq!(steers(CONTROL, &frame(kind::DATA, b"x")), code::FRAME_UNEXPECTED);
    assert_eq!(steers(CONTROL, &frame(kind::HEADERS, &references(0))), code::FRAME_UNEXPECTED);
    assert_eq!(steers(CONTROL, &frame(6, &[0; 8])), code::FRAME_UNEXPECTED, "a PING of HTTP/2");
    let on_request = |bytes: &[u8]| {
        let mut client = scene.connect();
        client.requests(0, bytes);
        client.quic.receives_close().code
    };
    assert_eq!(on_request(&frame(kind::DATA, b"x")), code::FRAME_UNEXPECTED);
    assert_eq!(on_request(&frame(kind::SETTINGS, b"")), code::FRAME_UNEXPECTED);
    assert_eq!(on_request(&frame(kind::GOAWAY, &[0])), code::FRAME_UNEXPECTED);
    // Settings that only HTTP/2 has, and another frame before the settings.
    for (first, expected) in [
        (frame(kind::SETTINGS, &[4, 1]), code::SETTINGS_ERROR),
        (frame(kind::SETTINGS, &[6, 9, 6, 9]), code::SETTINGS_ERROR),
        (frame(kind::MAX_PUSH_ID, &[1]), code::MISSING_SETTINGS),
    ] {
        let mut quic = Quic::connect(scene.weir.address("web"), "shop.example", &scene.trust());
        quic.sends(quic_frame::stream(CONTROL, 0, &[&[0][..], &first].concat(), false));
        assert_eq!(quic.receives_close().code, expected);
    }
    assert_eq!(scene.reached(), 0);
}

/// A tunnel of an extended CONNECT: nothing but content may come in it (RFC 9114 §4.4).
#[test]
fn c10_a_field_section_in_a_tunnel_is_answered_with_its_code() {
    let authority = authority();
    let backend = ScriptedBackend::start();
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let trust = quic::trusting(authority.path("ca.pem").as_ref());
    let mut client = Http3::connect(weir.address("web"), "shop.example", &trust);
    let mut fields = request("CONNECT", "/chat").to_vec();
    fields.push((":protocol", "chat"));
    let opening = headers(&fields);
    client.begins(0, 0, &opening, false);
    let mut behind = backend.accepts();
    behind.receives_until("\r\n\r\n");
    behind.sends("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n");
    client.quic.waits("the tunnel to open", |quic| (!quic.stream(0).bytes.is_empty()).then_some(()));
    let said = frame(kind::DATA, b"hello");
    client.begins(0, opening.len() as u64, &said, false);
    behind.receives_until("hello");
    let trailers = headers(&[("x-late", "1")]);
    client.begins(0, (opening.len() + said.len()) as u64, &trailers, false);
    assert_eq!(client.quic.receives_close().code, code::FRAME_UNEXPECTED);
}

/// A client that opens windows and takes nothing: what it makes Weir hold is bounded (threat S4), however
/// much more it asked for.
#[test]
fn c5_answers_that_nobody_acknowledges_take_little_memory() {
    const CLIENTS: u64 = 10;
    const REQUESTS: u64 = 10;
    let scene = Scene::new();
    let before = usage_of(scene.weir.pid()).expect("running").resident_bytes;
    let mut clients: Vec<Http3> = (0..CLIENTS).map(|_| scene.connect()).collect();
    for client in &mut clients {
        client.quic.acknowledges = false;
        (0..REQUESTS).for_each(|n| client.requests(stream(n), &headers(&request("GET", "/large"))));
    }
    let all = (CLIENTS * REQUESTS) as usize;
    until("all to have reached the backend", || (scene.backend.requests().len() >= all).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    let grown = usage_of(scene.weir.pid()).expect("running").resident_bytes.saturating_sub(before);
    println!("{all} answers that nobody takes hold {grown} bytes");
    // Beside what waits on each of the ten connections, each exchange has a buffer.
    assert!(grown < CLIENTS * (128 << 10) + CLIENTS * REQUESTS * (160 << 10) + (8 << 20), "{grown} bytes");
}
