//! `bandwidth` of a route: how fast responses go to their clients. How long that takes is only ever compared
//! with the time that it must take at least.

use std::time::{Duration, Instant};

use weir_tests::dialogue::http2::{END_STREAM, Http2, get, kind, setting, window_update};
use weir_tests::dialogue::{After, Authority, Backend, Setup, Weir, free_address, pattern};
use weir_tests::versions::{Behind, Client, Front, VersionedBackend, run};

const KIB: usize = 1 << 10;

fn waits(weir: &Weir) -> f64 {
    weir.metric("weir_bandwidth_waits_total", &[("direction", "sent")])
}

fn config(behind: Behind) -> String {
    let (word, protocol) = (behind.word(), behind.protocol());
    let tls =
        if behind.is_tls() { r#"tls = { ca = "@dir/ca.pem", server_name = "app.internal" }"# } else { "" };
    let route = |kind: &str| {
        format!(
            "[[listener.{kind}_{word}.route]]\npath = \"/bytes/*\"\npool = \"{word}\"\n\
             bandwidth = {{ to_client = \"512KiB/s\", after = \"32KiB\", burst = \"10ms\" }}\n"
        )
    };
    format!(
        r#"
        [listener.plain_{word}]
        bind = "@plain_{word}"
        http = ["h1", "h2"]
        pool = "{word}"
        {}
        [listener.secure_{word}]
        bind = "@secure_{word}"
        http = ["h1", "h2", "h3"]
        pool = "{word}"
        tls = {{ certificates = [{{ cert = "@dir/shop.pem", key = "@dir/shop.key" }}] }}
        {}
        [pool.{word}]
        backends = ["@{word}"]
        protocol = "{protocol}"
        health = "off"
        {tls}
        "#,
        route("plain"),
        route("secure"),
    )
}

#[test]
fn a_response_takes_its_time_in_every_version_in_front_with_every_version_behind() {
    const BYTES: usize = 256 * KIB;
    let authority = Authority::new().signs("shop", &["shop.example"]).signs("app", &["app.internal"]);
    let backends =
        Behind::ALL.map(|behind| VersionedBackend::start(free_address(), behind, &authority, "app"));
    let config: String = Behind::ALL.into_iter().map(config).collect();
    let setup = authority.setup(&config);
    let known = Behind::ALL.iter().zip(&backends);
    let weir = known.fold(setup, |setup, (behind, it)| setup.with(behind.word(), it.address())).start();
    run(Duration::from_secs(100), async {
        for front in Front::ALL {
            for behind in Behind::ALL {
                let cell = format!("{front:?} before {behind:?}");
                let kind = if front.is_tls() { "secure" } else { "plain" };
                let address = weir.address(&format!("{kind}_{}", behind.word()));
                let mut client =
                    Client::connect(front, &authority, address, "shop.example").await.expect("a connection");
                let (before, began) = (waits(&weir), Instant::now());
                let answer =
                    client.ask("GET", &format!("/bytes/{BYTES}"), &[], vec![]).await.expect("an answer");
                // Of 256 KiB, 32 pass before and 16 at once: 208 KiB at 512 KiB/s.
                assert!(began.elapsed() >= Duration::from_millis(350), "{cell}: {:?}", began.elapsed());
                assert!(answer.content == pattern(1, BYTES), "{cell}");
                let after = waits(&weir);
                assert!(after > before, "{cell}");
                // What is no more than passes before waits for nothing, and another route has no limit.
                for (path, length) in [("/bytes/20000", 20_000), ("/hello", 5)] {
                    let answer = client.ask("GET", path, &[], vec![]).await.expect("an answer");
                    assert_eq!(answer.content.len(), length, "{cell}");
                }
                assert_eq!(waits(&weir), after, "{cell}");
            }
        }
    });
}

#[test]
fn a_slow_stream_holds_back_no_other_of_its_connection() {
    let backend = Backend::serving(|request, wire| {
        let count = if request.target == "/slow" { 1024 * KIB } else { 10 * KIB };
        wire.answers(200, &[], pattern(3, count));
        After::Keep
    });
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        pool = "app"
        [[listener.web.route]]
        path = "/slow"
        pool = "app"
        bandwidth = { to_client = "16KiB/s" }
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#,
    )
    .with("app", backend.address())
    .start();
    let windows = [setting(4, 2 << 20), setting(3, 100)].concat();
    let mut client = Http2::client(weir.client("web"), &windows);
    client.sends(window_update(0, 4 << 20));
    client.sends(get(1, "/slow"));
    let (mut of_slow, mut answered) = (0, 0);
    for stream in (3..63).step_by(2) {
        client.sends(get(stream, "/fast"));
        let mut received = 0;
        loop {
            let found = client.receives_frame().expect("a frame");
            let is_end = found.flags & END_STREAM != 0 && matches!(found.kind, kind::DATA | kind::HEADERS);
            match (found.kind, found.stream) {
                (kind::DATA, 1) => of_slow += found.payload.len(),
                (kind::DATA, other) if other == stream => received += found.payload.len(),
                _ => {}
            }
            assert!(!(is_end && found.stream == 1), "the slow one ended after {answered} others");
            if is_end && found.stream == stream {
                break;
            }
        }
        assert_eq!(received, 10 * KIB);
        answered += 1;
    }
    assert_eq!(answered, 30);
    assert!(of_slow < 1024 * KIB, "{of_slow}");
    while of_slow == 0 {
        let found = client.receives(kind::DATA, 1);
        of_slow += found.payload.len();
    }
    weir.reaches("weir_bandwidth_waits_total", &[("listener", "web"), ("direction", "sent")], 1.0);
}

#[test]
fn what_a_cache_has_is_paced_too_and_the_next_request_of_the_connection_is_not() {
    const BYTES: usize = 128 * KIB;
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[("cache-control", "max-age=60")], pattern(5, BYTES));
        After::Keep
    });
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [[listener.web.route]]
        path = "/kept"
        pool = "app"
        cache = { ttl = "60s" }
        bandwidth = { to_client = "512KiB/s", burst = "1ms" }
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#,
    )
    .with("app", backend.address())
    .start();
    let mut client = weir.client("web");
    let mut last = 0.0;
    for round in ["a miss", "a hit"] {
        let began = Instant::now();
        client.sends("GET /kept HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(client.receives_status(200).body == pattern(5, BYTES), "{round}");
        // All but 16 KiB, at 512 KiB/s.
        assert!(began.elapsed() >= Duration::from_millis(200), "{round}: {:?}", began.elapsed());
        let now = waits(&weir);
        assert!(now > last, "{round}");
        last = now;
        client.sends("GET /other HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(client.receives_status(200).body == pattern(5, BYTES), "after {round}");
        assert_eq!(waits(&weir), last, "after {round}");
    }
    assert_eq!(backend.served(), 3);
    let url = format!("http://{}/kept", weir.address("web"));
    let told = weir.command(&["explain", "http", "GET", &url]);
    assert!(told.succeeded().contains("bandwidth"), "{told:?}");
    assert!(told.succeeded().contains("512KiB/s of each response"), "{told:?}");
}

#[test]
fn a_client_that_leaves_while_its_response_waits_frees_the_backend() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[], pattern(5, 8 << 20));
        After::Keep
    });
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        pool = "app"
        bandwidth = { to_client = "16KiB/s" }
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#,
    )
    .with("app", backend.address())
    .start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives(1000);
    weir.reaches("weir_bandwidth_waits_total", &[("listener", "web")], 1.0);
    client.resets();
    weir.reaches("weir_ends_total", &[("reason", "client_closed")], 1.0);
}
