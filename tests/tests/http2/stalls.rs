//! Windows: closed, opened by nothing, opened too far (threats B5, B7, B8). And what takes long and is none.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_tests::dialogue::http2::{
    END_HEADERS, END_STREAM, Frame, Http2, Outcome, block, code, frame, get, headers, kind, literal, request,
    reset, setting, window_update,
};
use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, Wire, until, usage_of};

use super::{BOTH, both, connect};

/// `SETTINGS_INITIAL_WINDOW_SIZE`.
const INITIAL_WINDOW: u16 = 4;

#[test]
fn b5_crumbs_of_a_cookie_beside_a_closed_window_are_refused_by_their_number() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let before = usage_of(weir.pid()).expect("running").resident_bytes;
    let mut clients = Vec::new();
    let mut refused = 0;
    for _ in 0..20 {
        let mut client = connect(&weir, &setting(INITIAL_WINDOW, 0));
        let mut fields = block(&request("GET", "/attack"));
        fields.extend(literal(0x40, b"cookie", b"a"));
        // Each a byte that refers to the field just named.
        fields.extend([0xbe; 1_800]);
        // Until it is closed for sending so much of this.
        for stream in (1..100).step_by(2) {
            if client
                .wire
                .tries_to_send(frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &fields))
                .is_err()
            {
                break;
            }
        }
        while let Ok(found) = client.receives_frame() {
            if found.kind == kind::HEADERS {
                assert_ne!(found.payload.first(), Some(&0x88), "answered 200");
                refused += 1;
                break;
            }
        }
        clients.push(client);
    }
    assert_eq!(refused, 20);
    assert_eq!(backend.served(), 0);
    let grown = usage_of(weir.pid()).expect("running").resident_bytes.saturating_sub(before);
    println!("1000 refused requests hold {grown} bytes");
    assert!(grown < 64 << 20, "{grown} bytes are held for requests that were refused");
}

#[test]
fn b7_a_stream_whose_window_stays_closed_is_given_up_and_its_backend_released() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[], vec![b'x'; 8 << 20]);
        After::Keep
    });
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        http = ["h2"]
        pool = "app"
        timeout = { client_body = "300ms" }
        [pool.app]
        backends = ["@app"]
        health = { check = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    // Closed from the start, and opened for a single byte.
    for window in [0, 1] {
        let mut client = connect(&weir, &setting(INITIAL_WINDOW, window));
        client.sends(get(1, "/"));
        let outcome = client.outcome_of(1);
        assert!(matches!(outcome, Outcome::Reset(_, Some(200))), "{outcome:?}");
        until("the backend to be released", || (backend.busy() == 0).then_some(()));
        client.sends(headers(3, &request("HEAD", "/"), true));
        let head = client.receives(kind::HEADERS, 3);
        assert_eq!(head.flags & 1, 1, "the connection serves on");
    }
}

#[test]
fn b8_a_window_opened_too_far_or_by_nothing_is_an_error() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let mut client = connect(&weir, b"");
    client.sends([window_update(0, 0x7fff_ffff), window_update(0, 0x7fff_ffff)].concat());
    assert_eq!(client.receives_the_end().0, Some(code::FLOW_CONTROL_ERROR));

    let opened = |by: u32| {
        let mut client = connect(&weir, b"");
        client.sends(headers(1, &request("POST", "/"), false));
        client.sends(window_update(1, by));
        client.outcome_of(1)
    };
    assert_eq!(opened(0x7fff_ffff), Outcome::Reset(code::FLOW_CONTROL_ERROR, None));
    let by_nothing = [Outcome::Reset(code::PROTOCOL_ERROR, None), Outcome::GoneAway(code::PROTOCOL_ERROR)];
    assert!(by_nothing.contains(&opened(0)));

    // Settings may make a window too large as well (RFC 9113 §6.9.2).
    let mut client = connect(&weir, b"");
    client.sends(headers(1, &request("POST", "/"), false));
    client.sends(window_update(1, 0x7fff_0000));
    let grown = setting(INITIAL_WINDOW, 0x7fff_ffff);
    client.sends(frame(kind::SETTINGS, 0, 0, &grown));
    let ended = client.outcome_of(1);
    let expected =
        [Outcome::GoneAway(code::FLOW_CONTROL_ERROR), Outcome::Reset(code::FLOW_CONTROL_ERROR, None)];
    assert!(expected.contains(&ended), "{ended:?}");
}

#[test]
fn b8_content_beyond_the_window_is_an_error() {
    let weir = {
        let silent = weir_tests::dialogue::ScriptedBackend::start();
        let weir = Setup::of(super::BOTH).with("app", silent.address()).start();
        let mut client: Http2 = connect(&weir, b"");
        client.sends(headers(1, &request("POST", "/"), false));
        let piece = frame(kind::DATA, 0, 1, &[0; 16_384]);
        // The backend takes nothing, so the window never opens again.
        for _ in 0..2_000 {
            if client.wire.tries_to_send(&piece).is_err() || client.wire.has_ended() {
                break;
            }
        }
        let ended = client.outcome_of(1);
        assert!(
            matches!(
                ended,
                Outcome::Reset(code::FLOW_CONTROL_ERROR, _) | Outcome::GoneAway(code::FLOW_CONTROL_ERROR)
            ),
            "{ended:?}"
        );
        weir
    };
    assert!(usage_of(weir.pid()).expect("running").peak_bytes < 128 << 20);
}

/// Threat S4: what clients may send ahead of anybody who takes it is little for each connection, and no more
/// is held than was sent.
#[test]
fn s4_windows_that_many_clients_fill_hold_what_was_sent_and_not_more() {
    const CLIENTS: usize = 40;
    let silent = weir_tests::dialogue::ScriptedBackend::start();
    let weir = Setup::of(super::BOTH).with("app", silent.address()).start();
    let before = usage_of(weir.pid()).expect("running").resident_bytes;
    let mut sent = 0;
    let clients: Vec<Http2> = (0..CLIENTS)
        .map(|_| {
            let mut client = connect(&weir, b"");
            let opened = client.receives(kind::WINDOW_UPDATE, 0).payload;
            let window = 65_535 + u32::from_be_bytes(opened[..4].try_into().expect("four bytes"));
            assert!(window <= 256 << 10, "{window} bytes");
            for stream in [1, 3, 5, 7] {
                client.sends(headers(stream, &request("POST", "/"), false));
                for _ in 0..window / 4 / 16_384 {
                    client.sends(frame(kind::DATA, 0, stream, &[0; 16_384]));
                    sent += 16_384;
                }
            }
            // Its acknowledgement shows that all was read.
            client.sends(frame(kind::PING, 0, 0, b"12345678"));
            client.receives(kind::PING, 0);
            client
        })
        .collect();
    let grown = usage_of(weir.pid()).expect("running").resident_bytes.saturating_sub(before);
    println!("{} connections that sent {sent} bytes hold {grown}", clients.len());
    assert!(grown < 4 * sent, "{grown} bytes for {sent}");
}

/// Clients with prior knowledge say all at once. Nothing that was to come before the request bounds what
/// comes after.
#[test]
fn an_exchange_whose_request_came_with_the_preface_outlives_the_times_for_heads_and_idleness() {
    let backend = ScriptedBackend::start();
    let config =
        BOTH.replace("http = [", "timeout = { header = \"300ms\", client_idle = \"300ms\" }\nhttp = [");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut client = Http2::client_with(weir.client("web"), b"", &get(1, "/"));
    let mut behind = backend.accepts();
    behind.receives_request();
    // Longer than both, and what a connection that is told of its end may still take.
    std::thread::sleep(Duration::from_secs(3));
    behind.answers(200, &[], "hello");
    assert_eq!(client.outcome_of(1), Outcome::Answered(200, b"hello".to_vec()));
}

/// A backend that lets nobody send content from the second request on, and answers nothing; with the client
/// of the first.
fn takes_no_content(weir: &Weir, backend: &ScriptedBackend) -> (Wire, Http2) {
    let mut first = weir.client("web");
    first.sends("GET /other HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut server = Http2::server(backend.accepts(), &setting(INITIAL_WINDOW, 0));
    server.receives_request();
    (first, server)
}

#[test]
fn clients_that_leave_while_their_content_waits_for_a_backends_window_give_their_places_back() {
    let backend = ScriptedBackend::start();
    let listener =
        BOTH.replacen("[pool.app]", "timeout = { backend = \"1h\", client_body = \"1h\" }\n[pool.app]", 1);
    let config = format!("[runtime]\nworkers = 1\n{listener}protocol = \"h2\"\n");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let (_first, mut server) = takes_no_content(&weir, &backend);
    let under_way = |count: f64| {
        let found = || weir.metric("weir_backend_in_flight", &[("pool", "app")]);
        until(&format!("{count} requests to be under way"), || (found() == count).then_some(()));
    };
    let (head, content) = (headers(1, &request("POST", "/"), false), frame(kind::DATA, 0, 1, b"ten bytes."));

    let mut whole = weir.client("web");
    whole.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nten bytes.");
    server.receives_request();
    under_way(2.0);
    whole.resets();
    under_way(1.0);

    let mut with_the_head = connect(&weir, b"");
    with_the_head.sends([&head[..], &content].concat());
    server.receives_request();
    with_the_head.sends(reset(1, code::CANCEL));
    under_way(1.0);

    for is_answered in [false, true] {
        let mut behind_the_head = connect(&weir, b"");
        behind_the_head.sends(&head);
        let stream = server.receives_request();
        if is_answered {
            server.sends(headers(stream, &[(":status", "200")], false));
            behind_the_head.receives(kind::HEADERS, 1);
        }
        behind_the_head.sends(content.repeat(100));
        behind_the_head.sends(frame(kind::PING, 0, 0, b"are read"));
        behind_the_head.receives(kind::PING, 0);
        behind_the_head.sends(reset(1, code::CANCEL));
        under_way(1.0);
    }
}

/// Each had a copy of the page, out of every budget: 60 KB for a request of 15 bytes.
#[test]
fn b24_a_page_for_clients_that_take_none_of_it_is_there_once() {
    const PAGE_BYTES: usize = 60_000;
    const CLIENTS: usize = 20;
    const STREAMS: u32 = 100;
    let page = "x".repeat(PAGE_BYTES);
    let route =
        format!("[[listener.web.route]]\npath = \"/*\"\nrespond = {{ status = 200, body = \"{page}\" }}\n");
    let backend = Backend::saying("ok");
    let weir = Setup::of(&BOTH.replace("pool = \"app\"\n", &route)).with("app", backend.address()).start();
    let before = weir.usage().resident_bytes;
    let slow: Vec<Http2> = (0..CLIENTS)
        .map(|_| {
            let mut client = connect(&weir, &setting(INITIAL_WINDOW, 0));
            client.sends((0..STREAMS).flat_map(|number| get(1 + 2 * number, "/")).collect::<Vec<u8>>());
            client.receives(kind::HEADERS, 2 * STREAMS - 1);
            client
        })
        .collect();
    let grown = weir.usage().resident_bytes.saturating_sub(before) as usize;
    let all = CLIENTS * STREAMS as usize * PAGE_BYTES;
    println!("{} MiB more for {} MiB of pages that nobody takes", grown >> 20, all >> 20);
    assert!(grown < all / 2, "{grown} bytes more");
    // Whoever takes it gets it whole, in either version.
    assert_eq!(connect(&weir, b"").asks(1, "/"), Outcome::Answered(200, page.clone().into_bytes()));
    let mut client = weir.client("web");
    for _ in 0..2 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.receives_status(200).text(), page);
    }
    drop(slow);
}

/// What each exchange holds by itself was in no budget: a megabyte for a hundred streams of a connection.
#[test]
fn b26_streams_that_wait_count_against_the_memory_budget_whatever_they_wait_for() {
    const BUDGET_BYTES: usize = 16 << 20;
    const EXCHANGE_BYTES: usize = 11 << 10;
    const STREAMS: u32 = 100;
    let routes = r#"
        [[listener.web.route]]
        path = "/page"
        respond = { status = 200, body = "a page" }
        [[listener.web.route]]
        path = "/*"
        pool = "app"
        [pool.app]"#;
    let busy = "backends = [{ address = \"@app\", max_connections = 1 }]\nqueue = { max = 100000, timeout = \"1h\" }";
    let config = BOTH.replace("pool = \"app\"\n", "").replace("[pool.app]", routes);
    let config =
        config.replace("backends = [\"@app\"]", &format!("{busy}\ntimeout = {{ backend = \"1h\" }}"));
    let memory = format!("memory = \"{}MiB\"\nmemory_share_per_client = 1.0\n", BUDGET_BYTES >> 20);
    let config = format!("[runtime]\nworkers = 1\n{memory}{config}");
    for path in ["/page", "/in-line"] {
        let backend = ScriptedBackend::start();
        let weir = Setup::of(&config).with("app", backend.address()).start();
        let before = weir.usage().resident_bytes;
        let refused = || weir.metric("weir_rejected_total", &[("reason", "memory")]);
        // By then there is no memory for a new connection.
        let mut another = connect(&weir, b"");
        assert!(matches!(another.asks(1, "/page"), Outcome::Answered(200, _)));
        let mut clients = Vec::new();
        while refused() < 1.0 {
            let held = clients.len() * STREAMS as usize * EXCHANGE_BYTES;
            let grown = weir.usage().resident_bytes.saturating_sub(before);
            assert!(
                held <= 3 * BUDGET_BYTES / 2,
                "{path}: {} streams wait, which take {grown} bytes, and nobody is refused",
                clients.len() * STREAMS as usize
            );
            let mut client = connect(&weir, &setting(INITIAL_WINDOW, 0));
            client.sends((0..STREAMS).flat_map(|number| get(1 + 2 * number, path)).collect::<Vec<u8>>());
            // The first comes when all are here, the second when each has had its turn.
            for _ in 0..2 {
                client.sends(frame(kind::PING, 0, 0, b"all here"));
                client.receives(kind::PING, 0);
            }
            clients.push(client);
        }
        let grown = weir.usage().resident_bytes.saturating_sub(before);
        println!("{path}: {} streams at most wait, which take {} KiB", 100 * clients.len(), grown >> 10);
        assert!(clients.len() > 5, "{path}: only {} clients wait", clients.len());
        // What is not taken up may be sent again.
        assert_eq!(another.asks(3, path), Outcome::Reset(code::REFUSED_STREAM, None));
        drop(clients);
        let mut number = 3;
        until("service again", || {
            number += 2;
            matches!(another.asks(number, "/page"), Outcome::Answered(200, _)).then_some(())
        });
    }
}

/// What may be sent on a connection (RFC 9113 section 5.2).
#[derive(Debug)]
struct Windows {
    connection: i64,
    initial: i64,
    streams: BTreeMap<u32, i64>,
}

impl Windows {
    fn notes(&mut self, found: &Frame) {
        let number = |at: usize| {
            found
                .payload
                .get(at..at + 4)
                .map_or(0, |bytes| i64::from(u32::from_be_bytes(bytes.try_into().expect("four bytes"))))
        };
        match (found.kind, found.stream) {
            (kind::WINDOW_UPDATE, 0) => self.connection += number(0),
            (kind::WINDOW_UPDATE, stream) => *self.streams.entry(stream).or_insert(self.initial) += number(0),
            (kind::SETTINGS, _) => {
                for at in (0..found.payload.len()).step_by(6) {
                    if found.payload[at..at + 2] == INITIAL_WINDOW.to_be_bytes() {
                        self.initial = number(at + 2);
                    }
                }
            }
            _ => {}
        }
    }

    /// Everything that came before the answer to a ping.
    fn hears(&mut self, client: &mut Http2) {
        client.sends(frame(kind::PING, 0, 0, b"anything?"[..8].as_ref()));
        loop {
            let found = client.receives_frame().expect("a frame");
            self.notes(&found);
            if found.kind == kind::PING && found.flags & 1 != 0 {
                return;
            }
        }
    }

    /// Sends on a stream until there is no window for more, and none comes.
    fn fills(&mut self, client: &mut Http2, stream: u32) {
        let mut in_vain = 0;
        while in_vain < 50 {
            self.hears(client);
            let window = self.streams.entry(stream).or_insert(self.initial);
            let room = (*window).min(self.connection).clamp(0, 16_384);
            if room == 0 {
                in_vain += 1;
                continue;
            }
            (*window, self.connection, in_vain) = (*window - room, self.connection - room, 0);
            client.sends(frame(kind::DATA, 0, stream, &vec![b'a'; room as usize]));
        }
    }
}

/// A content delivery network sends the requests of many visitors over one connection.
#[test]
fn b28_bodies_that_a_backend_does_not_read_leave_a_trusted_proxy_room_for_those_of_others() {
    let backend = ScriptedBackend::start();
    let config = BOTH.replace("[pool.app]", "trusted_proxies = [\"127.0.0.1\"]\n[pool.app]");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut proxy = connect(&weir, b"");
    let mut windows = Windows { connection: 65_535, initial: 65_535, streams: BTreeMap::new() };
    let mut unread = Vec::new();
    for stream in [1, 3] {
        proxy.sends(headers(stream, &request("POST", "/unread"), false));
        unread.push(backend.accepts());
        windows.fills(&mut proxy, stream);
    }
    assert!(windows.connection > 0, "{windows:?}");
    proxy.sends(headers(5, &request("POST", "/"), false));
    proxy.sends(frame(kind::DATA, END_STREAM, 5, b"some"));
    let mut wire = backend.accepts();
    assert_eq!(wire.receives_request().body, b"some");
    wire.answers(200, &[], "hello");
    assert_eq!(proxy.outcome_of(5), Outcome::Answered(200, b"hello".to_vec()));
}
