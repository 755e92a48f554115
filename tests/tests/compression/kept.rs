//! What the cache keeps is encoded once, and kept so.

use super::*;

use std::time::Duration;

use weir_tests::dialogue::http2::{self, Http2};
use weir_tests::dialogue::{Response, ScriptedBackend, Wire, until};
use weir_tests::versions::{Client, Front, run};

/// As [`CONFIG`], with a cache.
const KEEPING: &str = r#"
[runtime]
workers = 1

[listener.web]
bind = "@web"
http = ["h1", "h2"]
[[listener.web.route]]
path = "/as-it-is/*"
pool = "app"
compress = false
[listener.web.route.cache]
[[listener.web.route]]
pool = "app"
compress = { types = ["text/*", "text/event-stream"], level = { gzip = 9 } }
[listener.web.route.cache]
object_max = "16MiB"

[listener.secure]
bind = "@secure"
http = ["h1", "h2", "h3"]
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[[listener.secure.route]]
pool = "app"
compress = true
[listener.secure.route.cache]

[cache]
memory = "128MiB"

[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
"#;

fn keeping(backend: &Backend) -> (Authority, Weir) {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let weir = authority.setup(KEEPING).with("app", backend.address()).start();
    (authority, weir)
}

/// `/N` a page of N bytes that may be kept, `/chunked/N` the same without a length, `/noise/N` N bytes
/// that do not shrink, `/letters/N` those that are slow to compress; `/private/N` is for one client.
/// Further fields are those that `x-answer` asks for.
fn shop() -> Backend {
    Backend::serving(|request, wire| {
        let count: usize = request.target.rsplit_once('/').and_then(|(_, count)| count.parse().ok()).unwrap();
        let kept = if request.target.contains("private") { "private" } else { "max-age=60" };
        let mut fields = vec![("content-type", "text/html"), ("etag", "\"v1\""), ("cache-control", kept)];
        let asked = request.fields.one("x-answer").unwrap_or_default().to_owned();
        for (name, value) in asked.split('|').filter_map(|field| field.split_once('=')) {
            fields.retain(|(known, _)| *known != name);
            fields.push((name, value));
        }
        if request.target.contains("noise") {
            wire.answers(200, &fields, pattern(3, count));
        } else if request.target.contains("letters") {
            wire.answers(200, &fields, letters(count));
        } else if request.target.contains("chunked") {
            let body = page(count);
            let mut text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n".to_owned();
            fields.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
            wire.sends(text + "\r\n");
            for piece in body.as_bytes().chunks(99_999) {
                wire.sends(format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)));
                // The others have time to come.
                std::thread::sleep(Duration::from_millis(5));
            }
            wire.sends("0\r\n\r\n");
        } else {
            wire.answers(200, &fields, page(count));
        }
        After::Keep
    })
}

fn gets(weir: &Weir, path: &str, fields: &str) -> Response {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\n{fields}\r\n"));
    client.receives_response()
}

const GZIP: &str = "accept-encoding: gzip\r\n";

fn runs(weir: &Weir) -> f64 {
    weir.metric("weir_cache_encodings_total", &[])
}

/// Until what was asked for is kept encoded: then it has a length.
fn kept(weir: &Weir, path: &str, coding: &str) -> Response {
    let fields = format!("accept-encoding: {coding}\r\n");
    until("the encoded page is kept", || {
        let page = gets(weir, path, &fields);
        assert_eq!(page.fields.one("content-encoding"), Some(coding), "{path}");
        page.fields.one("content-length").is_some().then_some(page)
    })
}

#[test]
fn a_page_is_encoded_once_for_all_clients_of_every_version() {
    let backend = shop();
    let (authority, weir) = keeping(&backend);
    run(Duration::from_secs(60), async {
        for front in Front::ALL {
            let address = weir.address(if front.is_tls() { "secure" } else { "web" });
            let mut client =
                Client::connect(front, &authority, address, "shop.example").await.expect("a connection");
            for coding in ["gzip", "zstd", "gzip", "zstd"] {
                let answer = client.ask("GET", "/50000", &[("accept-encoding", coding)], vec![]).await;
                let answer = answer.unwrap_or_else(|failed| panic!("{front:?}: {failed:?}"));
                assert_eq!(answer.fields["content-encoding"], coding, "{front:?}");
                assert_eq!(answer.fields["vary"], "accept-encoding");
                assert_eq!(answer.fields["etag"], "W/\"v1\"");
                assert!(!answer.is_cut);
                assert!(
                    decoded(weir.dir(), coding, &answer.content) == page(50_000).into_bytes(),
                    "{front:?}"
                );
                if let Some(length) = answer.fields.get("content-length") {
                    assert_eq!(*length, answer.content.len().to_string());
                }
            }
            let plain = client.ask("GET", "/50000", &[], vec![]).await.expect("an answer");
            assert!(plain.content == page(50_000).into_bytes() && plain.fields["etag"] == "\"v1\"");
            assert_eq!(plain.fields["vary"], "accept-encoding");
        }
    });
    // One for each scheme and coding: answers by http and by https are kept apart.
    assert_eq!((backend.served(), runs(&weir)), (2, 4.0));
}

#[test]
fn curl_reads_what_is_kept_in_every_coding() {
    let backend = shop();
    let (_, weir) = keeping(&backend);
    let address = weir.address("web");
    let output = weir.dir().join("page").display().to_string();
    for (round, version) in ["--http1.1", "--http2-prior-knowledge", "--http1.1"].into_iter().enumerate() {
        for coding in CODINGS {
            for count in [1100, 70_000, 3_000_000] {
                let accept = format!("accept-encoding: {coding}");
                let url = format!("http://{address}/{count}");
                let arguments = [version, "--compressed", "--header", &accept, "--output", &output];
                let size = curl(&[&arguments[..], &["--write-out", "%{size_download}", &url]].concat());
                assert!(
                    std::fs::read(&output).unwrap() == page(count).into_bytes(),
                    "{version} {coding} {count}"
                );
                assert!(
                    size.parse::<usize>().unwrap() < count / 3 + 300,
                    "{version} {coding} {count}: {size}"
                );
            }
        }
        assert_eq!((backend.served(), runs(&weir)), (3, 9.0), "round {round}");
    }
}

#[test]
fn a_hundred_clients_for_one_cold_page_cause_one_request_and_one_encoder() {
    let backend = shop();
    let (_, weir) = keeping(&backend);
    let mut clients: Vec<Wire> = (0..100).map(|_| weir.client("web")).collect();
    for client in &mut clients {
        client.sends(format!("GET /chunked/3000000 HTTP/1.1\r\nhost: shop.example\r\n{GZIP}\r\n"));
    }
    let first = clients[0].receives_response();
    assert!(decoded(weir.dir(), "gzip", &first.body) == page(3_000_000).into_bytes());
    for client in &mut clients[1..] {
        let response = client.receives_response();
        assert_eq!(response.fields.one("content-encoding"), Some("gzip"));
        assert!(response.body == first.body);
    }
    assert!(kept(&weir, "/chunked/3000000", "gzip").body == first.body);
    assert_eq!((backend.served(), runs(&weir)), (1, 1.0));
}

#[test]
fn conditions_ranges_and_head_of_a_page_that_is_kept_encoded() {
    let backend = shop();
    let (_, weir) = keeping(&backend);
    let dated = "x-answer: last-modified=Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    gets(&weir, "/50000", dated);
    let encoded = kept(&weir, "/50000", "gzip");
    let length = encoded.body.len().to_string();
    assert_eq!(encoded.fields.one("content-length"), Some(length.as_str()));
    assert_eq!((encoded.fields.one("etag"), encoded.fields.one("accept-ranges")), (Some("W/\"v1\""), None));
    let mut client = weir.client("web");
    client.sends(format!("HEAD /50000 HTTP/1.1\r\nhost: shop.example\r\n{GZIP}\r\n"));
    let head = client.receives_response_to("HEAD");
    assert_eq!(head.fields.one("content-length"), Some(length.as_str()));
    assert_eq!((head.fields.one("content-encoding"), head.body.len()), (Some("gzip"), 0));

    for (tag, back) in [(GZIP, "W/\"v1\""), ("", "\"v1\"")] {
        for held in ["\"v1\"", "W/\"v1\""] {
            let known = gets(&weir, "/50000", &format!("{tag}if-none-match: {held}\r\n"));
            assert_eq!((known.status, known.fields.one("etag")), (304, Some(back)), "{tag}{held}");
            assert_eq!(known.fields.one("vary"), Some("accept-encoding"));
            assert_eq!(known.fields.one("content-encoding"), None);
        }
    }
    // A part is of the page as it is, whose tag is strong: it can't be taken for a part of the encoded one.
    let asked = |more: &str| gets(&weir, "/50000", &format!("{GZIP}range: bytes=10-19\r\n{more}"));
    for more in ["", "if-range: \"v1\"\r\n"] {
        let part = asked(more);
        assert_eq!((part.status, part.body.as_slice()), (206, &page(50_000).as_bytes()[10..20]));
        assert_eq!((part.fields.one("etag"), part.fields.one("content-encoding")), (Some("\"v1\""), None));
        assert_eq!(
            part.fields.one("content-range"),
            Some(format!("bytes 10-19/{}", page(50_000).len()).as_str())
        );
        assert_eq!(part.fields.one("vary"), Some("accept-encoding"));
    }
    // What this client holds may be the beginning of the encoded page: it gets all of it anew.
    for more in ["if-range: W/\"v1\"\r\n", "if-range: Sun, 06 Nov 1994 08:49:37 GMT\r\n"] {
        let whole = asked(more);
        assert_eq!((whole.status, whole.fields.one("content-encoding")), (200, Some("gzip")), "{more}");
        assert!(whole.body == encoded.body);
    }
    let plain = gets(&weir, "/50000", "range: bytes=10-19\r\nif-range: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    assert_eq!(plain.status, 206);
    assert_eq!((backend.served(), runs(&weir)), (1, 1.0));
}

#[test]
fn an_object_of_megabytes_that_is_being_encoded_holds_nobody_up() {
    let backend = shop();
    let (_, weir) = keeping(&backend);
    let paths = ["/alone/letters/8000000", "/letters/8000000"];
    for path in paths {
        gets(&weir, path, "");
    }
    streams::holds_nobody_up(&weir, paths);
    kept(&weir, paths[1], "gzip");
    assert_eq!(runs(&weir), 2.0, "each once");
}

#[test]
fn a_purge_takes_every_coding_with_it() {
    let backend = shop();
    let (_, weir) = keeping(&backend);
    for coding in ["gzip", "zstd"] {
        kept(&weir, "/500000", coding);
    }
    let before = weir.metric("weir_cache_bytes", &[]);
    assert!(before > 500_000.0 * 1.1, "{before}");
    let said = weir.command(&["cache", "purge", "--all"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(weir.metric("weir_cache_bytes", &[]) < before - 500_000.0 * 1.1);
    let anew = gets(&weir, "/500000", GZIP);
    assert!(anew.fields.one("cache-status").unwrap().contains("fwd=uri-miss"), "{:?}", anew.fields);
    kept(&weir, "/500000", "gzip");
    assert_eq!((backend.served(), runs(&weir)), (2, 3.0));
}

#[test]
fn a_page_that_was_confirmed_is_not_encoded_anew() {
    let backend = Backend::serving(|request, wire| {
        let fields = [("content-type", "text/html"), ("etag", "\"v1\""), ("cache-control", "max-age=1")];
        match request.fields.one("if-none-match") {
            Some(_) => wire.answers(304, &fields, ""),
            None => wire.answers(200, &fields, page(50_000)),
        }
        After::Keep
    });
    let (_, weir) = keeping(&backend);
    kept(&weir, "/a", "gzip");
    std::thread::sleep(Duration::from_millis(1100));
    let confirmed = gets(&weir, "/a", GZIP);
    assert!(confirmed.fields.one("cache-status").unwrap().contains("fwd-status=304"));
    assert!(confirmed.fields.one("content-length").is_some(), "it was kept encoded");
    assert!(decoded(weir.dir(), "gzip", &confirmed.body) == page(50_000).into_bytes());
    assert_eq!((backend.served(), runs(&weir)), (2, 1.0));
}

#[test]
fn what_must_not_be_changed_or_gains_nothing_is_kept_as_it_came_only() {
    let backend = shop();
    let (_, weir) = keeping(&backend);
    for (number, (answer, why)) in [
        ("content-encoding=br", "encoded already"),
        ("cache-control=max-age=60, no-transform", "no-transform"),
        ("content-digest=sha-256=:x:", "a digest"),
        ("content-type=image/png", "a type that does not shrink"),
    ]
    .into_iter()
    .enumerate()
    {
        for _ in 0..2 {
            let path = format!("/{number}/4000");
            let response = gets(&weir, &path, &format!("{GZIP}x-answer: {answer}\r\n"));
            assert_eq!(response.body, page(4000).into_bytes(), "{why}");
            assert_eq!(response.fields.one("etag"), Some("\"v1\""), "{why}");
            assert_eq!(response.fields.one("vary"), None, "{why}");
        }
    }
    for path in ["/500", "/as-it-is/50000"] {
        for _ in 0..2 {
            let response = gets(&weir, path, GZIP);
            assert_eq!((response.fields.one("content-encoding"), response.fields.one("vary")), (None, None));
        }
    }
    assert_eq!(runs(&weir), 0.0);
    // What encoding makes larger was encoded for who asked first, and is not again.
    gets(&weir, "/noise/300000", GZIP);
    until("it is known not to be worth it", || {
        gets(&weir, "/noise/300000", GZIP).fields.one("content-encoding").is_none().then_some(())
    });
    let again = gets(&weir, "/noise/300000", GZIP);
    assert_eq!(again.body, pattern(3, 300_000));
    assert_eq!(again.fields.one("vary"), Some("accept-encoding"));
    assert_eq!(runs(&weir), 1.0);
}

#[test]
fn what_is_not_to_be_kept_is_encoded_for_who_asked() {
    let backend = shop();
    let (_, weir) = keeping(&backend);
    for count in [2000, 900_000] {
        for _ in 0..2 {
            let response = gets(&weir, &format!("/private/{count}"), GZIP);
            assert_eq!(response.fields.one("content-encoding"), Some("gzip"));
            assert!(decoded(weir.dir(), "gzip", &response.body) == page(count).into_bytes());
        }
    }
    assert_eq!((backend.served(), runs(&weir)), (4, 0.0));
    // Larger than `object_max`, which shows only on the way.
    let large = gets(&weir, "/chunked/20000000", GZIP);
    assert!(decoded(weir.dir(), "gzip", &large.body) == page(20_000_000).into_bytes());
}

#[test]
fn an_event_passes_by_the_cache_before_the_next_one_is_there() {
    let backend = ScriptedBackend::start();
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let weir = authority.setup(KEEPING).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends(format!("GET /events HTTP/1.1\r\nhost: a\r\n{GZIP}\r\n"));
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.sends("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\ntransfer-encoding: chunked\r\n\r\n");
    let head = client.receives_head();
    assert_eq!(head.fields.one("content-encoding"), Some("gzip"));
    let (mut encoded, mut expected) = (Vec::new(), String::new());
    for number in 0..4 {
        let event = format!("data: event number {number}\n\n");
        wire.sends(format!("{:x}\r\n{event}\r\n", event.len()));
        expected.push_str(&event);
        until("the event is there", || {
            let size = String::from_utf8(client.receives_until("\r\n")).unwrap();
            encoded.extend(client.receives(usize::from_str_radix(size.trim(), 16).unwrap()));
            client.receives_exactly("\r\n");
            (streams::begun(weir.dir(), "gzip", &encoded) == expected).then_some(())
        });
    }
}

#[test]
fn who_comes_when_a_page_is_whole_but_not_encoded_yet_joins_its_encoder() {
    let backend = shop();
    let (_, weir) = keeping(&backend);
    let ask = "GET /15000000 HTTP/1.1\r\nhost: shop.example\r\naccept-encoding: br\r\n\r\n";
    let mut clients = [weir.client("web"), weir.client("web")];
    clients[0].sends(ask);
    weir.reaches("weir_cache_objects", &[], 1.0);
    clients[1].sends(ask);
    let bodies = clients.each_mut().map(|client| {
        let response = client.receives_response();
        assert_eq!(response.fields.one("content-encoding"), Some("br"));
        response.body
    });
    assert!(bodies[0] == bodies[1]);
    assert_eq!((backend.served(), runs(&weir)), (1, 1.0));
}

#[test]
fn what_proves_too_large_is_encoded_no_faster_than_its_reader_takes_it() {
    // Beyond `object_max` (16 MiB) by more than sockets hold, which take up to 36 MB where `tcp_rmem` ends at
    // 32 MiB, and less in all than fetches may gather: a quarter of the cache's memory.
    let backend = Backend::serving(|_, wire| {
        let _ = wire.tries_to_send(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        for number in 0..1000 {
            let _ = wire.tries_to_send("186a0\r\n");
            let _ = wire.tries_to_send(pattern(number, 100_000));
            let _ = wire.tries_to_send("\r\n");
        }
        After::Close
    });
    let config = KEEPING.replace("memory = \"128MiB\"", "memory = \"512MiB\"");
    assert_ne!(config, KEEPING);
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let weir = authority.setup(&config).with("app", backend.address()).start();
    let mut slow = weir.client("web");
    slow.sends("GET /large HTTP/1.1\r\nhost: shop.example\r\naccept-encoding: zstd\r\n\r\n");
    assert_eq!(slow.receives_head().fields.one("content-encoding"), Some("zstd"));
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(backend.busy(), 1, "the origin has got rid of all of it, though nobody reads");
    }
    drop(slow);
    until("the origin is let go", || (backend.busy() == 0).then_some(()));
}

/// Its entry would be found by what comes to stand at the address of its object.
#[test]
fn an_encoding_that_is_given_up_after_its_object_was_kept_is_made_by_another() {
    const CONFIG: &str = r#"
        [runtime]
        workers = 1
        [cache]
        memory = "16MiB"
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        [[listener.web.route]]
        path = "/own"
        respond = { status = 200, body = "own" }
        [[listener.web.route]]
        pool = "app"
        compress = true
        [listener.web.route.cache]
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#;
    const KIB: usize = 1 << 10;
    let backend = ScriptedBackend::start();
    let weir = Setup::of(CONFIG).with("app", backend.address()).start();
    let begins = |wire: &mut Wire, length: usize| {
        wire.receives_request();
        wire.sends(format!(
            "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n"
        ));
    };
    // All fetches may gather 4 MiB. One that stands still has most of it.
    let mut other = weir.client("web");
    other.sends("GET /other HTTP/1.1\r\nhost: a.test\r\n\r\n");
    let mut standing = backend.accepts();
    begins(&mut standing, 3001 * KIB);
    standing.sends(pattern(5, 3000 * KIB));
    other.receives_head();
    other.receives(3000 * KIB);
    // Its reader takes one window of it and no more, so that what is encoded has no room and is not kept.
    let noise = pattern(3, 620 * KIB);
    let mut reader = Http2::client(weir.client("web"), b"");
    let fields = [&http2::request("GET", "/page")[..], &[("accept-encoding", "gzip")]].concat();
    reader.sends(http2::headers(1, &fields, true));
    let mut wire = backend.accepts();
    begins(&mut wire, noise.len());
    wire.sends(&noise[..600 * KIB]);
    let mut read = 0;
    while read < 65_535 {
        let frame = reader.receives_frame().expect("content");
        read += if frame.kind == http2::kind::DATA { frame.payload.len() } else { 0 };
    }
    // Each answer gives the encoder another turn.
    for _ in 0..50 {
        other = weir.client("web");
        other.sends("GET /own HTTP/1.1\r\nhost: a.test\r\n\r\n");
        other.receives_status(200);
    }
    wire.sends(&noise[600 * KIB..]);
    until("the page is kept", || (weir.metric("weir_cache_objects", &[]) == 1.0).then_some(()));
    reader.wire.resets();
    until("it is encoded once more", || {
        let mut client = weir.client("web");
        client.sends("GET /page HTTP/1.1\r\nhost: a.test\r\naccept-encoding: gzip\r\n\r\n");
        let answer = client.receives_response();
        (answer.fields.one("content-encoding") == Some("gzip")).then_some(())
    });
}
