//! What is compressed, and what is left alone.

use super::*;

use weir_tests::dialogue::{Response, Wire};

/// Asks on a connection of its own.
fn asks(weir: &Weir, request: &str) -> Response {
    let mut client = weir.client("web");
    client.sends(request);
    let method = request.split(' ').next().unwrap();
    client.receives_response_to(method)
}

fn gets(weir: &Weir, path: &str, fields: &str) -> Response {
    asks(weir, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n"))
}

const GZIP: &str = "accept-encoding: gzip\r\n";

#[test]
fn what_must_not_be_changed_or_gains_nothing_goes_as_it_came() {
    let backend = site();
    let (_, weir) = start(&backend);
    for (answer, why) in [
        ("content-type=text/html|content-encoding=br", "encoded already"),
        ("content-type=text/html|cache-control=no-transform", "no-transform"),
        ("content-type=text/html|status=206|content-range=bytes 0-3999/9999", "a part"),
        ("content-type=text/html|content-digest=sha-256=:x:", "a digest"),
        ("content-type=image/png", "a type that does not shrink"),
        ("content-type=text/event-stream", "events, unless they are named"),
        ("x=y", "no type"),
    ] {
        let response = gets(&weir, "/", &format!("{GZIP}x-answer: {answer}\r\n"));
        assert_eq!(response.body, page(4000).into_bytes(), "{why}");
        assert_eq!(response.fields.one("vary"), None, "{why}");
        assert_eq!(
            response.fields.one("content-length"),
            Some(page(4000).len().to_string().as_str()),
            "{why}"
        );
    }
    let small = gets(&weir, "/page/500", GZIP);
    assert_eq!((small.fields.one("content-encoding"), small.fields.one("vary")), (None, None));
    let route = gets(&weir, "/as-it-is/page/5000", GZIP);
    assert_eq!((route.fields.one("content-encoding"), route.fields.one("vary")), (None, None));
    let old = asks(&weir, &format!("GET /page/5000 HTTP/1.0\r\nhost: a\r\n{GZIP}\r\n"));
    assert_eq!(old.fields.one("content-encoding"), None, "HTTP/1.0 knows no chunks");
    assert_eq!(old.fields.one("vary"), Some("accept-encoding"));
}

/// RFC 9530: a digest may come behind the content that it is of.
#[test]
fn content_with_a_digest_behind_it_goes_as_it_came_or_without_the_digest() {
    let content = page(4000);
    let body = content.clone();
    let backend = Backend::serving(move |request, wire| {
        let announced =
            if request.target == "/announced" { "trailer: x-other, Content-Digest\r\n" } else { "" };
        wire.sends(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n{announced}transfer-encoding: chunked\r\n\r\n\
             {:x}\r\n{body}\r\n0\r\ncontent-digest: sha-256=:x:\r\netag: \"a\"\r\nx-other: 1\r\n\r\n",
            body.len()
        ));
        After::Keep
    });
    let (_, weir) = start(&backend);
    let announced = gets(&weir, "/announced", GZIP);
    assert_eq!((announced.fields.one("content-encoding"), announced.text()), (None, content));
    let trailers = &announced.trailers;
    assert_eq!((trailers.one("content-digest"), trailers.one("etag")), (Some("sha-256=:x:"), Some("\"a\"")));
    let encoded = gets(&weir, "/unannounced", GZIP);
    assert_eq!(encoded.fields.one("content-encoding"), Some("gzip"));
    let trailers = &encoded.trailers;
    assert_eq!((trailers.one("content-digest"), trailers.one("x-other")), (None, Some("1")), "{trailers:?}");
    assert_eq!(trailers.one("etag"), None, "it is that of the content as it came");
}

#[test]
fn a_route_has_its_own_codings_types_and_least_size() {
    let backend = site();
    let (_, weir) = start(&backend);
    let asked = "accept-encoding: zstd, gzip;q=0.1\r\nx-answer: content-type=image/svg+xml\r\n";
    let svg = gets(&weir, "/gzip-only/", asked);
    assert_eq!(svg.fields.one("content-encoding"), Some("gzip"));
    assert_eq!(decoded(weir.dir(), "gzip", &svg.body), page(4000).into_bytes());
    let html = gets(&weir, "/gzip-only/page/5000", asked);
    assert_eq!(html.fields.one("content-encoding"), None);
}

#[test]
fn clients_choose_by_weight_and_may_refuse() {
    let backend = site();
    let (_, weir) = start(&backend);
    for (accept, coding) in [
        ("gzip, deflate, br, zstd", Some("zstd")),
        ("gzip, deflate, br", Some("br")),
        ("gzip;q=1, br;q=0.5", Some("gzip")),
        ("*", Some("zstd")),
        ("*;q=0.1, zstd;q=0, br;q=0", Some("gzip")),
        ("identity", None),
        ("gzip;q=0", None),
        ("identity, gzip;q=0.5", None),
        ("deflate, compress", None),
    ] {
        let response = gets(&weir, "/page/5000", &format!("accept-encoding: {accept}\r\n"));
        assert_eq!(response.fields.one("content-encoding"), coding, "{accept}");
        assert_eq!(response.fields.one("vary"), Some("accept-encoding"), "{accept}");
    }
}

#[test]
fn the_weakened_tag_of_an_encoded_page_is_confirmed_by_the_backend() {
    let backend = site();
    let (_, weir) = start(&backend);
    let page = gets(&weir, "/page/5000", GZIP);
    assert_eq!(page.fields.one("etag"), Some("W/\"v1\""));
    assert_eq!(page.fields.one("accept-ranges"), None, "ranges of the encoded page are not to be had");
    let unchanged = gets(&weir, "/page/5000", &format!("{GZIP}if-none-match: W/\"v1\"\r\n"));
    assert_eq!(unchanged.status, 304);
    assert_eq!(unchanged.fields.one("etag"), Some("W/\"v1\""), "it must match what the client holds");
    assert_eq!(unchanged.fields.one("vary"), Some("accept-encoding"));
    // Who holds the page as it came has the strong tag, and keeps it.
    let plain = gets(&weir, "/page/5000", "if-none-match: \"v1\"\r\n");
    assert_eq!((plain.status, plain.fields.one("etag")), (304, Some("\"v1\"")));
}

#[test]
fn the_answer_to_head_names_what_get_would_get() {
    let backend = site();
    let (_, weir) = start(&backend);
    let named = |response: &Response| -> Vec<(String, String)> {
        let hidden = ["date", "x-request-id", "transfer-encoding"];
        response.fields.0.iter().filter(|(name, _)| !hidden.contains(&name.as_str())).cloned().collect()
    };
    for fields in [GZIP, ""] {
        let get = gets(&weir, "/page/5000", fields);
        let head = asks(&weir, &format!("HEAD /page/5000 HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
        assert_eq!(named(&get), named(&head));
        assert!(head.body.is_empty());
    }
}

#[test]
fn a_connection_serves_on_behind_an_encoded_page() {
    let backend = site();
    let (_, weir) = start(&backend);
    let mut client: Wire = weir.client("web");
    for _ in 0..3 {
        for path in ["/page/5000", "/chunked/200000", "/page/900000"] {
            client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{GZIP}\r\n"));
            let response = client.receives_status(200);
            let count: usize = path.rsplit_once('/').unwrap().1.parse().unwrap();
            assert_eq!(decoded(weir.dir(), "gzip", &response.body), page(count).into_bytes(), "{path}");
        }
    }
    assert_eq!(backend.connections(), 1, "the backend's connection is kept too");
}

#[test]
fn when_the_memory_budget_is_short_pages_go_as_they_came() {
    // 16 MiB for two workers: an encoder of Brotli needs more than what is left once three quarters of a
    // share are in use.
    let backend = site();
    let config = "[runtime]\nworkers = 1\nmemory = \"16MiB\"\nmemory_share_per_client = 1.0\n[listener.web]\nbind = \"@web\"\npool = \"app\"\n\
                  compress = { codings = \"br\", level = { br = 5 } }\n[pool.app]\nbackends = [\"@app\"]\nhealth = \"off\"\n";
    let weir = Setup::of(config).with("app", backend.address()).start();
    // Clients that do not read hold their encoders.
    let mut stuck: Vec<Wire> = Vec::new();
    for _ in 0..8 {
        let mut client = weir.client("web");
        client.sends("GET /noise/30000000 HTTP/1.1\r\nhost: a\r\naccept-encoding: br\r\n\r\n");
        stuck.push(client);
    }
    weir.reaches(
        "weir_compressed_responses_total",
        &[("listener", "web"), ("coding", "short_of_memory")],
        1.0,
    );
    let response = gets(&weir, "/page/5000", "accept-encoding: br\r\n");
    assert_eq!(response.fields.one("content-encoding"), None);
    assert_eq!(response.fields.one("vary"), Some("accept-encoding"));
    assert_eq!(response.body, page(5000).into_bytes());
}
