//! Floods of frames that cost the client nothing (threats B1 to B4, B6). The one who sends them is closed;
//! the others notice nothing.

use weir_tests::dialogue::http2::{
    END_HEADERS, END_STREAM, Http2, Outcome, block, code, frame, get, headers, kind, literal, request, reset,
    setting, window_update,
};
use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, usage_of};

use super::honest::beside;
use super::{BOTH, both, connect};

/// Sends what `next` makes, again and again until nobody takes it any more or `most` were sent; then how the
/// connection ended.
fn floods(client: &mut Http2, most: u32, next: impl FnMut(u32) -> Vec<u8>) -> (Option<u32>, Vec<u32>) {
    floods_in_pieces(client, 8_192, most, next)
}

/// [`floods`] with so many bytes to a write.
fn floods_in_pieces(
    client: &mut Http2,
    piece_bytes: usize,
    most: u32,
    mut next: impl FnMut(u32) -> Vec<u8>,
) -> (Option<u32>, Vec<u32>) {
    let mut number = 0;
    while number < most {
        let mut piece = Vec::new();
        while piece.len() < piece_bytes && number < most {
            piece.extend(next(number));
            number += 1;
        }
        if client.wire.tries_to_send(&piece).is_err() || client.wire.has_ended() {
            break;
        }
    }
    client.receives_the_end()
}

fn floods_counted(weir: &Weir) -> f64 {
    weir.metric("weir_rejected_total", &[("reason", "frame_flood")])
}

/// A name, and what makes the frames of one stream or number.
type Way = (&'static str, fn(u32) -> Vec<u8>);

/// The `n`th stream that a client opens.
fn stream(n: u32) -> u32 {
    2 * n + 1
}

#[test]
fn b1_requests_that_are_reset_at_once_end_the_connection_and_reach_few_backends() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    // Each request in a packet of its own, so that many have reached their exchange when they are reset; and
    // many in one.
    for piece_bytes in [1, 8_192] {
        let before = (backend.served(), floods_counted(&weir));
        let honest_before = backend.requests().iter().filter(|request| request.target == "/honest").count();
        let (goaway, _) = beside("rapid reset", &weir, || {
            let mut client = connect(&weir, b"");
            floods_in_pieces(&mut client, piece_bytes, 100_000, |n| {
                [get(stream(n), "/attack"), reset(stream(n), code::CANCEL)].concat()
            })
        });
        assert_eq!(goaway, Some(code::ENHANCE_YOUR_CALM));
        // Where it was the crate that ended the connection, it says so once the client has ended it, too.
        weir.reaches("weir_rejected_total", &[("reason", "frame_flood")], before.1 + 1.0);
        assert_eq!(floods_counted(&weir), before.1 + 1.0);
        let honest = backend.requests().iter().filter(|request| request.target == "/honest").count();
        let reached = backend.served() - before.0 - (honest - honest_before);
        assert!(reached < 200, "{reached} of the requests reached the backend");
    }
    // Threat D11: nor does it fill the log.
    assert!(!weir.stderr().contains("WARN"), "{}", weir.stderr());
}

/// It ended the connection on which the proxy had sent the requests of all other visitors, too.
#[test]
fn b1_a_visitor_who_resets_requests_through_a_trusted_proxy_ends_nobody_elses() {
    const RESETS: u32 = 500;
    let trusting = BOTH.replace("pool = \"app\"\n", "pool = \"app\"\ntrusted_proxies = [\"127.0.0.1\"]\n");
    for in_a_piece in [1, 100] {
        let backend = ScriptedBackend::start();
        let weir = Setup::of(&trusting).with("app", backend.address()).start();
        let mut proxy = connect(&weir, b"");
        proxy.sends(get(1, "/patient"));
        let mut wire = backend.accepts();
        wire.receives_request_head();
        let visitor = [&request("GET", "/attack")[..], &[("x-forwarded-for", "192.0.2.7")]].concat();
        let attacks: Vec<Vec<u8>> = (1..=RESETS)
            .map(|n| [headers(stream(n), &visitor, true), reset(stream(n), code::CANCEL)].concat())
            .collect();
        for piece in attacks.chunks(in_a_piece) {
            let _ = proxy.wire.tries_to_send(piece.concat());
        }
        wire.answers(200, &[], "hello");
        let outcome = proxy.outcome_of(1);
        assert_eq!(outcome, Outcome::Answered(200, b"hello".to_vec()), "{in_a_piece} at once");
    }
}

#[test]
fn b2_streams_that_the_client_makes_weir_reset_end_the_connection() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    // CVE-2025-8671: each makes the server reset the stream.
    let ways: [Way; 6] = [
        ("a window opened by nothing", |stream| window_update(stream, 0)),
        ("a window opened too far", |stream| window_update(stream, 0x7fff_ffff)),
        ("content behind the end", |stream| frame(kind::DATA, 0, stream, b"x")),
        ("a head behind the end", |stream| headers(stream, &[("x", "y")], true)),
        ("a priority of another length", |stream| frame(kind::PRIORITY, 0, stream, b"1234")),
        ("a stream that depends on itself", |stream| {
            frame(kind::PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[0]].concat())
        }),
    ];
    for (name, way) in ways {
        let (goaway, _) = beside(name, &weir, || {
            let mut client = connect(&weir, b"");
            floods(&mut client, 100_000, |n| [get(stream(n), "/attack"), way(stream(n))].concat())
        });
        assert!(goaway.is_some_and(|code| code != 0), "{name}: {goaway:?}");
        let attacks = backend.requests().iter().filter(|request| request.target == "/attack").count();
        backend.forgets();
        assert!(attacks < 1_200, "{name}: {attacks} requests reached the backend");
    }
}

#[test]
fn b3_a_head_in_endless_continuations_is_cut_off() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let pieces = [block(&[("x-a", &"v".repeat(1000))]), block(&[("x", "y")]), Vec::new()];
    for piece in pieces {
        let (goaway, resets) = beside("continuations", &weir, || {
            let mut client = connect(&weir, b"");
            client.sends(frame(kind::HEADERS, END_STREAM, 1, &block(&request("GET", "/attack"))));
            floods(&mut client, 1_000_000, |_| frame(kind::CONTINUATION, 0, 1, &piece))
        });
        assert!(goaway.is_some_and(|code| code != 0), "{} bytes: {goaway:?} {resets:?}", piece.len());
    }
    assert!(backend.requests().iter().all(|request| request.target == "/honest"));
    let peak = usage_of(weir.pid()).expect("running").peak_bytes;
    assert!(peak < 128 << 20, "{peak} bytes");
}

/// It ended the connection on which the proxy had sent the requests of all other visitors, too.
#[test]
fn b3_a_head_that_a_trusted_proxy_lets_pass_and_weir_does_not_ends_nobody_elses_request() {
    const FRAME_BYTES: usize = 16 << 10;
    const FIELDS: usize = 60;
    let backend = ScriptedBackend::start();
    let trusting = BOTH.replace("pool = \"app\"\n", "pool = \"app\"\ntrusted_proxies = [\"127.0.0.1\"]\n");
    let weir = Setup::of(&trusting).with("app", backend.address()).start();
    let mut proxy = connect(&weir, b"");
    proxy.sends(get(1, "/patient"));
    let mut wire = backend.accepts();
    wire.receives_request_head();
    let mut large = block(&request("GET", "/attack"));
    (0..FIELDS).for_each(|_| large.extend(block(&[("x-a", &"v".repeat(2000))])));
    let count = large.chunks(FRAME_BYTES).count();
    for (index, piece) in large.chunks(FRAME_BYTES).enumerate() {
        let kind = if index == 0 { kind::HEADERS } else { kind::CONTINUATION };
        let end = if index == 0 { END_STREAM } else { 0 };
        let last = if index + 1 == count { END_HEADERS } else { 0 };
        let _ = proxy.wire.tries_to_send(frame(kind, end | last, 3, piece));
    }
    assert!(matches!(proxy.outcome_of(3), Outcome::Answered(431, _)));
    wire.answers(200, &[], "hello");
    assert_eq!(proxy.outcome_of(1), Outcome::Answered(200, b"hello".to_vec()));
}

#[test]
fn b4_short_references_to_a_long_field_are_refused_before_they_take_memory() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    beside("hpack bomb", &weir, || {
        let mut client = connect(&weir, b"");
        let name_it = literal(0x40, b"x-bomb", &[b'v'; 4000]);
        let references = vec![0xbe; 15_000 - name_it.len()];
        for n in 0..50 {
            let mut fields = block(&request("GET", "/attack"));
            if n == 0 {
                fields.extend(&name_it);
            }
            fields.extend(&references);
            let bomb = frame(kind::HEADERS, END_HEADERS | END_STREAM, stream(n), &fields);
            if client.wire.tries_to_send(bomb).is_err() {
                return;
            }
        }
        let outcome = client.outcome_of(stream(0));
        assert!(
            matches!(outcome, Outcome::Answered(431, _) | Outcome::Reset(..) | Outcome::GoneAway(_)),
            "{outcome:?}"
        );
    });
    assert!(backend.requests().iter().all(|request| request.target == "/honest"));
    let peak = usage_of(weir.pid()).expect("running").peak_bytes;
    // 50 bombs of 60 MB.
    assert!(peak < 128 << 20, "{peak} bytes");
}

#[test]
fn b6_floods_of_frames_without_content_are_closed_and_counted() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    // Stream 1 waits for the rest of its body, so that there is one to aim at.
    let ways: [Way; 7] = [
        ("settings", |_| frame(kind::SETTINGS, 0, 0, b"")),
        ("a table's size to and fro", |n| frame(kind::SETTINGS, 0, 0, &setting(1, n % 2 * 4096))),
        ("ping", |_| frame(kind::PING, 0, 0, b"12345678")),
        ("priority", |n| frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, n as u8])),
        ("empty data", |_| frame(kind::DATA, 0, 1, b"")),
        ("windows opened by one", |_| window_update(1, 1)),
        ("unknown frames", |_| frame(0x42, 0, 0, b"")),
    ];
    for (name, way) in ways {
        let before = floods_counted(&weir);
        let (goaway, _) = beside(name, &weir, || {
            let mut client = connect(&weir, b"");
            client.sends(headers(1, &request("POST", "/attack"), false));
            floods(&mut client, 1_000_000, way)
        });
        assert_eq!(goaway, Some(code::ENHANCE_YOUR_CALM), "{name}");
        assert_eq!(floods_counted(&weir), before + 1.0, "{name}");
    }
}

/// Both windows in steps of the content received, none above 1 KiB: as honest clients with small buffers do.
#[test]
fn b6_a_client_that_returns_both_windows_in_steps_of_a_kibibyte_is_served_to_the_end() {
    const CONTENT_BYTES: usize = 16 << 20;
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[], vec![b'x'; CONTENT_BYTES]);
        After::Keep
    });
    let weir = both(&backend);
    let mut client = connect(&weir, b"");
    client.sends(get(1, "/"));
    let (mut content, mut returned) = (0, 0);
    while content < CONTENT_BYTES {
        let found = client.receives_frame().unwrap_or_else(|broken| panic!("{broken} after {content} bytes"));
        assert!(!matches!(found.kind, kind::GOAWAY | kind::RST_STREAM), "{found:?} after {content} bytes");
        if found.kind == kind::DATA {
            content += found.payload.len();
        }
        while returned < content {
            let step = (content - returned).min(1024);
            client.sends([window_update(0, step as u32), window_update(1, step as u32)].concat());
            returned += step;
        }
    }
    assert_eq!(floods_counted(&weir), 0.0);
}

#[test]
fn frames_without_content_are_counted_against_the_listeners_own_limit() {
    let backend = Backend::saying("hello");
    let own = format!(
        "{BOTH}\n[listener.narrow]\nbind = \"@narrow\"\nhttp = [\"h1\", \"h2\"]\npool = \"app\"\nlimits = {{ control_frames = 50 }}\n"
    );
    let weir = Setup::of(&own).with("app", backend.address()).start();
    let ping = |_| frame(kind::PING, 0, 0, b"12345678");
    let pings = |listener: &str| floods(&mut Http2::client(weir.client(listener), b""), 200, ping);
    assert_eq!(pings("narrow").0, Some(code::ENHANCE_YOUR_CALM));
    weir.reaches("weir_rejected_total", &[("listener", "narrow"), ("reason", "frame_flood")], 1.0);
    let mut other = connect(&weir, b"");
    let pings: Vec<u8> = (0..200).flat_map(ping).collect();
    other.wire.sends(pings);
    assert!(matches!(other.asks(1, "/"), Outcome::Answered(200, _)));
    assert_eq!(weir.metric("weir_rejected_total", &[("listener", "web"), ("reason", "frame_flood")]), 0.0);
}

/// Each was bounded by itself; what was kept of them while they waited for a backend was in no budget.
#[test]
fn b25_heads_made_large_by_short_references_count_against_the_memory_budget_while_they_wait() {
    const BUDGET_BYTES: usize = 16 << 20;
    const VALUE: [u8; 3900] = [b'y'; 3900];
    const REFERENCES: usize = 15;
    const STREAMS: u32 = 100;
    let memory = format!(
        "[runtime]\nworkers = 1\nmemory = \"{}MiB\"\nmemory_share_per_client = 1.0\n{BOTH}",
        BUDGET_BYTES >> 20
    );
    let busy = "backends = [{ address = \"@app\", max_connections = 1 }]\nqueue = { max = 100000, timeout = \"1h\" }";
    let config =
        memory.replace("backends = [\"@app\"]", &format!("{busy}\ntimeout = {{ backend = \"1h\" }}"));
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let refused = || weir.metric("weir_rejected_total", &[("reason", "memory")]);
    let mut clients = Vec::new();
    while refused() < 1.0 {
        let held = clients.len() * STREAMS as usize * REFERENCES * VALUE.len();
        assert!(held <= 3 * BUDGET_BYTES / 2, "{held} bytes of heads wait, and nobody is refused");
        let mut client = connect(&weir, b"");
        for number in 0..STREAMS {
            let mut fields = block(&request("GET", "/"));
            match number {
                // Named once, and referred to by a byte from then on.
                0 => fields.extend(literal(0x40, b"x", &VALUE)),
                _ => fields.push(0xbe),
            }
            fields.extend([0xbe; REFERENCES - 1]);
            client.sends(frame(kind::HEADERS, END_HEADERS | END_STREAM, 1 + 2 * number, &fields));
        }
        client.sends(frame(kind::PING, 0, 0, b"all here"));
        client.receives(kind::PING, 0);
        clients.push(client);
    }
    assert!(clients.len() > 1, "only {} clients wait", clients.len());
}
