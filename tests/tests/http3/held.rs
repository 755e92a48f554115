//! What waits for those who read nothing counts against the memory budget (threats D3 and S4).

use weir_tests::dialogue::http2::{Http2, kind, setting};
use weir_tests::dialogue::http3::{self, Http3, Outcome, headers, request};
use weir_tests::dialogue::quic::frame as quic_frame;
use weir_tests::dialogue::{Authority, ScriptedBackend, Setup, Wire, free_address, until};
use weir_tests::versions::{Behind, VersionedBackend};

use super::backends::{ONLY, OUTER};
use super::origin::Origin;
use super::*;

const BUDGET_BYTES: usize = 16 << 20;

fn with_budget(config: &str) -> String {
    let memory = format!("memory = \"{}MiB\"\nmemory_share_per_client = 1.0\n", BUDGET_BYTES >> 20);
    format!("[runtime]\nworkers = 1\n{memory}{config}")
}

fn refused(weir: &Weir) -> f64 {
    weir.metric("weir_rejected_total", &[("reason", "memory")])
}

/// What of an answer lay in the frame for which its client had no room was counted by nobody.
#[test]
fn s4_answers_that_clients_of_http_3_have_no_room_for_count_against_the_memory_budget() {
    const STREAMS: usize = 100;
    const ANSWER_BYTES: usize = 15_000;
    let authority = authority().signs("app", &["app.internal"]);
    let backend = VersionedBackend::start(free_address(), Behind::Http2, &authority, "app");
    let config = with_budget(&CONFIG.replace("health = \"off\"", "health = \"off\"\nprotocol = \"h2\""));
    let weir = authority.setup(&config).with("app", backend.address()).start();
    run(async {
        let mut transport = quinn::TransportConfig::default();
        // Of an answer it takes the head, and little more.
        transport.stream_receive_window(1000_u32.into());
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls(&authority)).unwrap();
        let mut client = quinn::ClientConfig::new(Arc::new(crypto));
        client.transport_config(Arc::new(transport));
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(client);
        let path = format!("/bytes/{ANSWER_BYTES}");
        let head = headers(&request("GET", &path));
        let mut slow = Vec::new();
        while refused(&weir) < 1.0 {
            let held = slow.len() * STREAMS * ANSWER_BYTES;
            assert!(held <= 3 * BUDGET_BYTES / 2, "{held} bytes wait, and nobody is refused");
            let connection = endpoint.connect(weir.address("web"), "shop.example").unwrap().await.unwrap();
            let mut streams = Vec::new();
            for _ in 0..STREAMS {
                let (mut asking, mut answer) = connection.open_bi().await.unwrap();
                asking.write_all(&head).await.unwrap();
                asking.finish().unwrap();
                // Its content has begun, or it was refused in fewer bytes.
                let _ = answer.read_exact(&mut [0; 500]).await;
                streams.push((asking, answer));
            }
            slow.push((connection, streams));
        }
        assert!(slow.len() > 1, "only {} clients wait", slow.len());
        for (connection, _) in &slow {
            connection.close(0_u32.into(), b"");
        }
        endpoint.wait_idle().await;
    });
    until("service again", || {
        let mut client = Http3::connect(weir.address("web"), "shop.example", &tls(&authority));
        matches!(client.asks(0, "/hello"), Outcome::Answered(200, _)).then_some(())
    });
}

/// As `http2::small_frames::d3_answers_that_wait_for_slow_clients_count_against_the_memory_budget` has it for
/// backends of HTTP/2.
#[test]
fn d3_answers_of_backends_of_http_3_that_wait_for_slow_clients_count_against_the_memory_budget() {
    const WINDOW_BYTES: usize = 256 << 10;
    let authority = Authority::new().signs("inner", &["app.internal"]);
    let origin = Origin::start(&authority, 100);
    let config = OUTER.replace("MORE", ONLY).replace("[runtime]\nworkers = 1\n", &with_budget(""));
    let weir = Setup::of(&config).with("ca", authority.path("ca.pem")).with("origin", origin.address).start();
    let mut slow: Vec<Http2> = Vec::new();
    while refused(&weir) < 1.0 {
        assert!(slow.len() <= BUDGET_BYTES / WINDOW_BYTES, "{} answers wait", slow.len());
        let mut client = Http2::client(weir.client("web"), &setting(4, 1));
        client.sends(weir_tests::dialogue::http2::get(1, "/bytes/1000000"));
        client.receives(kind::HEADERS, 1);
        slow.push(client);
    }
    assert!(slow.len() > 8, "only {} answers wait", slow.len());
    drop(slow);
    until("service again", || {
        let mut wire: Wire = weir.client("web");
        wire.sends("GET /hello HTTP/1.1\r\nhost: a\r\n\r\n");
        (wire.receives_response().status == 200).then_some(())
    });
}

/// As `http2::stalls::b26_streams_that_wait_count_against_the_memory_budget_whatever_they_wait_for` has it
/// for HTTP/2.
#[test]
fn b26_streams_of_http_3_that_wait_count_against_the_memory_budget() {
    const EXCHANGE_BYTES: usize = 11 << 10;
    const STREAMS: u64 = 100;
    let (authority, backend) = (authority(), ScriptedBackend::start());
    let busy = "backends = [{ address = \"@app\", max_connections = 1 }]\nqueue = { max = 100000, timeout = \"1h\" }";
    let config =
        CONFIG.replace("backends = [\"@app\"]", &format!("{busy}\ntimeout = {{ backend = \"1h\" }}"));
    let weir = authority.setup(&with_budget(&config)).with("app", backend.address()).start();
    let tls = tls(&authority);
    let connect = || Http3::connect(weir.address("web"), "shop.example", &tls);
    let mut waiting: Vec<Http3> = Vec::new();
    while refused(&weir) < 1.0 {
        let held = waiting.len() * STREAMS as usize * EXCHANGE_BYTES;
        assert!(held <= 3 * BUDGET_BYTES / 2, "{} clients wait, and nobody is refused", waiting.len());
        let mut client = connect();
        for number in 0..STREAMS {
            client.requests(4 * number, &headers(&request("GET", "/")));
        }
        client.quic.looks();
        waiting.push(client);
    }
    assert!(waiting.len() > 5, "only {} clients wait", waiting.len());
    // 503 where there is room for that, and else H3_REQUEST_REJECTED.
    let outcome = connect().asks(0, "/");
    assert!(matches!(outcome, Outcome::Answered(503, _) | Outcome::Reset(0x10b)), "{outcome:?}");
}

/// The same streams of one address leave memory to another (threat D34).
#[test]
fn d34_stalled_streams_of_http_3_leave_memory_to_another_address() {
    const STREAMS: u64 = 100;
    let (authority, backend) = (authority(), ScriptedBackend::start());
    let busy = "backends = [{ address = \"@app\", max_connections = 1 }]\nqueue = { max = 100000, timeout = \"1h\" }";
    let route =
        "[[listener.web.route]]\npath = \"/\"\nrespond = { status = 200, body = \"hello\" }\n[pool.app]";
    let config = CONFIG
        .replace("backends = [\"@app\"]", &format!("{busy}\ntimeout = {{ backend = \"1h\" }}"))
        .replace("[pool.app]", route);
    let config = format!("[runtime]\nworkers = 1\nmemory = \"16MiB\"\n{config}");
    let weir = authority.setup(&config).with("app", backend.address()).start();
    let tls = tls(&authority);
    let mut stalled: Vec<Http3> = Vec::new();
    while refused(&weir) < 1.0 {
        assert!(stalled.len() < 30, "{} clients wait, and nobody is refused", stalled.len());
        let mut client = Http3::connect(weir.address("web"), "shop.example", &tls);
        for number in 0..STREAMS {
            client.requests(4 * number, &headers(&request("GET", "/in-line")));
        }
        client.quic.looks();
        stalled.push(client);
    }
    run(async {
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let mut endpoint = quinn::Endpoint::client("127.0.0.2:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
        let connection = endpoint.connect(weir.address("web"), "shop.example").unwrap().await.unwrap();
        let mut other = Client::over(endpoint, connection).await;
        for _ in 0..3 {
            assert_eq!(other.asks(b"").await, (200, b"hello".to_vec()));
        }
    });
}

/// What backends of HTTP/3 send ahead was nobody's.
#[test]
fn d34_answers_of_backends_of_http_3_for_slow_clients_leave_memory_to_another_address() {
    let authority = Authority::new().signs("inner", &["app.internal"]);
    let origin = Origin::start(&authority, 100);
    let memory = "[runtime]\nworkers = 1\nmemory = \"16MiB\"\n";
    let config = OUTER.replace("MORE", ONLY).replace("[runtime]\nworkers = 1\n", memory);
    let weir = Setup::of(&config).with("ca", authority.path("ca.pem")).with("origin", origin.address).start();
    let mut slow: Vec<Http2> = Vec::new();
    while refused(&weir) < 1.0 {
        assert!(slow.len() < 100, "{} answers wait, and nobody is refused", slow.len());
        let mut client = Http2::client(weir.client("web"), &setting(4, 1));
        client.sends(weir_tests::dialogue::http2::get(1, "/bytes/1000000"));
        client.receives(kind::HEADERS, 1);
        slow.push(client);
    }
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into()).expect("an address of our own");
    socket.connect(&weir.address("web").into()).expect("connect");
    let mut other = Wire::over(socket.into(), "client");
    other.sends("GET /hello HTTP/1.1\r\nhost: a\r\n\r\n");
    other.receives_status(200);
}

/// Requests with content under way that are given up in every way leave nothing behind that counts.
#[test]
fn s4_uploads_over_http_3_that_are_given_up_leave_no_memory_in_use() {
    const STREAMS: u64 = 15;
    const EXCHANGE_BYTES: u64 = 11 << 10;
    let (authority, backend) = (authority(), ScriptedBackend::start());
    let busy = "backends = [{ address = \"@app\", max_connections = 1 }]\nqueue = { max = 100000, timeout = \"1h\" }";
    let config = CONFIG.replace("backends = [\"@app\"]", busy);
    let weir = authority.setup(&with_budget(&config)).with("app", backend.address()).start();
    let in_use = || weir.metric("weir_memory_in_use_bytes", &[]);
    let tls = tls(&authority);
    let at_rest = in_use();
    for round in 0..4 {
        let mut client = Http3::connect(weir.address("web"), "shop.example", &tls);
        let content =
            [headers(&request("POST", "/")), http3::frame(http3::kind::DATA, &[b'a'; 8000])].concat();
        for number in 0..STREAMS {
            client.begins(4 * number, 0, &content, false);
        }
        let held = (STREAMS * EXCHANGE_BYTES) as f64;
        until("uploads that wait", || (in_use() > at_rest + held).then_some(()));
        match round % 2 {
            0 => (0..STREAMS).for_each(|number| {
                let (stream, size) = (4 * number, content.len() as u64);
                let reset = quic_frame::reset_stream(stream, 0x10c, size);
                client.quic.sends([reset, quic_frame::stop_sending(stream, 0x10c)].concat());
            }),
            // CONNECTION_CLOSE with H3_NO_ERROR.
            _ => client.quic.sends([0x1d, 0x41, 0x00, 0x00]),
        }
        until("memory at rest", || (in_use() <= at_rest + 10_000.0).then_some(()));
        client.gives_up = true;
    }
}
