//! Messages leave for HTTP/2 and HTTP/3 with the same fields as for HTTP/1.1, as those versions want them.

use super::*;
use weir_http::h1::encode;
use weir_http::{
    AddedField, Asked, ErrorForm, OwnAnswer, OwnResponse, Query, RequestBuilder, ResponseBuilder,
    ResponseContext, SentFraming, SetCookie, TrailerBuilder, Version, continue_fields, request_fields,
    response_fields, websocket, write_response,
};
use weir_http::{DroppedNames, FieldEdits};

type Pairs = Vec<(String, String)>;

/// Collects what `give` visits.
fn visited(give: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]))) -> Pairs {
    let mut pairs = Pairs::new();
    give(&mut |name, value| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        pairs.push((text(name), text(value)));
    });
    pairs
}

fn pairs(of: &[(&str, &str)]) -> Pairs {
    of.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// The fields that an HTTP/2 backend gets of a request that came in HTTP/1.1.
fn request_visited<'c>(
    bytes: &[u8],
    identity: &'c ClientIdentity,
    change: impl FnOnce(&mut RequestContext<'c>),
) -> Pairs {
    let head = request(bytes).unwrap();
    let mut context = RequestContext::new(identity, b"made-id");
    change(&mut context);
    visited(|mut visit| {
        request_fields(&head, bytes, &context, &mut visit);
    })
}

/// The fields that an HTTP/2 client gets of a response that came in HTTP/1.1.
fn response_visited(bytes: &[u8], context: &ResponseContext<'_>) -> (Pairs, SentFraming) {
    let head = response_to(context.request_method, bytes).unwrap();
    let mut sent = None;
    let pairs = visited(|mut visit| sent = Some(response_fields(&head, bytes, context, &mut visit)));
    (pairs, sent.unwrap())
}

fn to_h2(method: Method) -> ResponseContext<'static> {
    ResponseContext::new(Version::Http2, method, true)
}

#[test]
fn an_http_2_backend_gets_pseudo_headers_and_nothing_of_the_connection() {
    // RFC 9113 §8.2.2, §8.3.1
    let seen = request_visited(
        b"POST /a?b=c HTTP/1.1\r\nHost: Shop.test:81\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nAccept: */*\r\n\
          TE: trailers, deflate\r\nTransfer-Encoding: chunked\r\nCookie: a=1; b=2\r\nX-Forwarded-For: 9.9.9.9\r\n\
          Keep-Alive: 5\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nx_forwarded_for: 8.8.8.8\r\n\r\n",
        &client(false),
        |_| {},
    );
    let expected = pairs(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "Shop.test:81"),
        (":path", "/a?b=c"),
        ("accept", "*/*"),
        ("cookie", "a=1; b=2"),
        ("via", "1.1 weir"),
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-proto", "http"),
        ("x-real-ip", "203.0.113.7"),
        ("x-forwarded-host", "Shop.test:81"),
        ("forwarded", "for=203.0.113.7;proto=http;host=\"Shop.test:81\""),
        ("x-request-id", "made-id"),
        ("te", "trailers"),
    ]);
    assert_eq!(seen, expected);
}

#[test]
fn an_http_2_backend_is_asked_with_the_query_and_by_the_host_that_the_caller_names() {
    let of = |query| {
        let bytes = b"GET /a?b=1&c=2 HTTP/1.1\r\nHost: Shop.Test:80\r\n\r\n";
        let seen = request_visited(bytes, &client(false), |context| {
            context.query = query;
            context.host = Some(b"shop.test");
        });
        assert!(!seen.iter().any(|(_, value)| value.contains("Shop")), "{seen:?}");
        [seen[2].1.clone(), seen[3].1.clone()]
    };
    assert_eq!(of(Query::AsSent), ["shop.test", "/a?b=1&c=2"]);
    assert_eq!(of(Query::Of(Some(b"b=1"))), ["shop.test", "/a?b=1"]);
    assert_eq!(of(Query::Of(None)), ["shop.test", "/a"]);
}

#[test]
fn path_host_and_scheme_for_an_http_2_backend_are_those_of_the_route() {
    let dropped = DroppedNames::new(["X-Env"]);
    let seen = request_visited(
        b"GET http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\nx-env: dev\r\n\r\n",
        &client(false),
        |context| {
            context.backend_host = Some(b"inner.test");
            context.edits = Some(FieldEdits { dropped: &dropped, values: None, lines: b"X-Env: prod\r\n" });
            context.path = Some(b"/inner/x");
            context.backend_scheme = Scheme::Https;
        },
    );
    let control = pairs(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "inner.test"),
        (":path", "/inner/x?y"),
    ]);
    assert_eq!(seen[..4], control);
    assert_eq!(seen.last(), Some(&("x-env".to_owned(), "prod".to_owned())));
    assert!(!seen.iter().any(|(name, value)| name == "host" || value == "dev"));
    let of = |bytes: &[u8], name: &str| {
        let seen = request_visited(bytes, &client(false), |context| context.default_host = b"b.test");
        seen.iter().find(|(seen, _)| seen == name).map(|(_, value)| value.clone())
    };
    assert_eq!(of(b"OPTIONS http://a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", ":path").as_deref(), Some("*"));
    assert_eq!(
        of(b"OPTIONS * HTTP/1.1\r\nHost: a.test\r\nmax-forwards: 3\r\n\r\n", ":path").as_deref(),
        Some("*")
    );
    assert_eq!(
        of(b"OPTIONS * HTTP/1.1\r\nHost: a\r\nmax-forwards: 3\r\n\r\n", "max-forwards").as_deref(),
        Some("2")
    );
    assert_eq!(of(b"GET http://a.test?q HTTP/1.1\r\nHost: a.test\r\n\r\n", ":path").as_deref(), Some("/?q"));
    assert_eq!(of(b"GET / HTTP/1.0\r\n\r\n", ":authority").as_deref(), Some("b.test"));
    assert_eq!(
        of(b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 007\r\n\r\n", "content-length").as_deref(),
        Some("7")
    );
    let connect = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n";
    assert_eq!(
        (of(connect, ":authority").as_deref(), of(connect, ":path"), of(connect, ":scheme")),
        (Some("a.test:443"), None, None)
    );
}

#[test]
fn an_upgrade_becomes_an_extended_connect_and_its_handshake_stays_here() {
    // RFC 8441 §5
    let bytes = b"GET /chat?x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let seen = request_visited(bytes, &client(false), |context| context.upgrade = true);
    let control = pairs(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/chat?x"),
        ("sec-websocket-version", "13"),
    ]);
    assert_eq!(seen[..6], control);
    assert!(!seen.iter().any(|(name, _)| name == "sec-websocket-key" || name == "upgrade"));
    let refused = request_visited(bytes, &client(false), |_| {});
    assert_eq!(refused[0].1, "GET");
    // An extended CONNECT stands for a GET without a body, and for nothing else.
    for other in [&b"POST /"[..], b"OPTIONS *"] {
        let bytes = [other, &bytes[b"GET /chat?x".len()..]].concat();
        let seen = request_visited(&bytes, &client(false), |context| context.upgrade = true);
        assert!(!seen.iter().any(|(name, value)| name == ":protocol" || value == "CONNECT"), "{seen:?}");
    }
    // The backend's 200 is a 101 for the client, with the answer to its key.
    let (mut head, mut text) = (ResponseHead::new(), Vec::new());
    let asked = Asked { method: Method::Get, upgrade: Some(b"websocket") };
    let limits = Limits::default();
    let mut builder = ResponseBuilder::new(Version::Http2, &limits, asked, &mut head, &mut text);
    builder.field(b":status", b"200").unwrap();
    builder.finish(false).unwrap();
    let accept = websocket::accept(b"dGhlIHNhbXBsZSBub25jZQ==");
    let context = ResponseContext {
        websocket_accept: &accept,
        ..ResponseContext::new(Version::Http11, Method::Get, true)
    };
    let mut out = Vec::new();
    write_response(&head, &text, &context, &mut out);
    let answer = response(&out).unwrap();
    assert!(answer.accepts_upgrade(&out, b"websocket"));
    assert!(websocket::is_accepted(&answer, &out, b"dGhlIHNhbXBsZSBub25jZQ=="));
    assert!(!websocket::is_accepted(&answer, &out, b"dGhlIHNhbXBsZSBub25jZQ="));
}

#[test]
fn an_extended_connect_becomes_an_upgrade_with_a_key_of_ours() {
    // RFC 8441 §5, RFC 6455 §4.1
    let (mut head, mut text) = (RequestHead::new(), Vec::new());
    let limits = Limits::default();
    let mut builder = RequestBuilder::new(Version::Http2, &limits, &mut head, &mut text);
    for (name, value) in [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/chat"),
        ("sec-websocket-key", "theirs"),
    ] {
        builder.field(name.as_bytes(), value.as_bytes()).unwrap();
    }
    builder.finish(false).unwrap();
    let identity = client(false);
    let context = RequestContext {
        upgrade: true,
        websocket_key: b"dGhlIHNhbXBsZSBub25jZQ==",
        ..RequestContext::new(&identity, b"made-id")
    };
    let mut out = Vec::new();
    write_request(&head, &text, &context, &mut out);
    let again = request(&out).unwrap();
    assert_eq!((again.method(), again.upgrade(&out)), (Method::Get, Some(&b"websocket"[..])));
    let keys: Vec<_> = again.fields(&out).filter(|field| field.name == b"sec-websocket-key").collect();
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].value, b"dGhlIHNhbXBsZSBub25jZQ==");
    // Where it is not passed on, nothing of it is.
    out.clear();
    write_request(&head, &text, &RequestContext::new(&identity, b"made-id"), &mut out);
    assert_eq!(request(&out).unwrap().upgrade(&out), None);
    assert!(!out.windows(9).any(|part| part == b"\r\nupgrade"));
    // The backend's 101 is a 200 for the client, whose stream has no handshake.
    let (seen, sent) = response_visited(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\r\n",
        &to_h2(Method::Get),
    );
    assert_eq!(seen, pairs(&[(":status", "200"), ("sec-websocket-protocol", "chat"), ("via", "1.1 weir")]));
    assert!(sent.body.is_empty());
}

#[test]
fn an_http_2_client_gets_its_response_without_anything_of_the_connection() {
    // RFC 9113 §8.2.2, §8.3.2
    let dropped = DroppedNames::new(["Server"]);
    let edits =
        Some(FieldEdits { dropped: &dropped, values: None, lines: b"Server: weir\r\nX-Added: 1\r\n" });
    let field = AddedField::new(b"Set-Cookie", b"c=3").unwrap();
    let sticky = SetCookie { field, is_private: true };
    let context = ResponseContext {
        edits,
        sticky: Some(&sticky),
        request_id: b"made-id",
        date: b"today",
        ..to_h2(Method::Get)
    };
    let (seen, sent) = response_visited(
        b"HTTP/1.1 200 Fine\r\nServer: nginx\r\nTransfer-Encoding: chunked\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
          Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nKeep-Alive: 5\r\nUpgrade: h2c\r\nTE: x\r\nVia: 1.0 x\r\nETag:  \"q\" \r\n\r\n",
        &context,
    );
    let expected = pairs(&[
        (":status", "200"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("etag", "\"q\""),
        ("via", "1.0 x, 1.1 weir"),
        ("date", "today"),
        ("x-request-id", "made-id"),
        ("server", "weir"),
        ("x-added", "1"),
        ("set-cookie", "c=3"),
        ("cache-control", "private"),
    ]);
    assert_eq!(seen, expected);
    assert_eq!(sent, SentFraming { body: BodyLength::UntilClose, keep_alive: true });
}

#[test]
fn an_http_2_client_is_told_the_length_that_is_true() {
    let length = |bytes: &[u8], method| {
        let (seen, sent) = response_visited(bytes, &to_h2(method));
        let length = seen.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.clone());
        (length, sent.body)
    };
    let five = Some("5".to_owned());
    let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 005\r\n\r\n";
    assert_eq!(length(ok, Method::Get), (five.clone(), BodyLength::Length(5)));
    assert_eq!(length(ok, Method::Head), (five.clone(), BodyLength::None));
    assert_eq!(length(b"HTTP/1.1 304 x\r\ncontent-length: 5\r\n\r\n", Method::Get), (five, BodyLength::None));
    assert_eq!(length(b"HTTP/1.1 204 x\r\ncontent-length: 0\r\n\r\n", Method::Get), (None, BodyLength::None));
    assert_eq!(length(b"HTTP/1.0 200 x\r\n\r\n", Method::Get), (None, BodyLength::UntilClose));
    let (seen, _) = response_visited(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", &to_h2(Method::Get));
    assert_eq!(seen, pairs(&[(":status", "103"), ("link", "</x>"), ("via", "1.1 weir")]));
}

#[test]
fn an_answer_of_our_own_says_the_same_in_every_version() {
    let fields = [AddedField::new(b"X-Env", b"prod").unwrap()];
    let dropped = DroppedNames::new(["X-Served"]);
    let edits = Some(FieldEdits { dropped: &dropped, values: None, lines: b"X-Served: weir\r\n" });
    let bytes = b"TRACE /x HTTP/1.1\r\nHost: a\r\nCookie: secret\r\nMax-Forwards: 0\r\n\r\n";
    let head = request(bytes).unwrap();
    let in_form = |form| OwnAnswer::Error {
        status: 503,
        word: "no_backend",
        retry_after_seconds: Some(1),
        form,
        fields: &fields,
    };
    for answer in [
        OwnAnswer::error(503, "queue_full", Some(1)),
        OwnAnswer::error(405, "method_refused", None),
        in_form(ErrorForm::Problem),
        in_form(ErrorForm::Grpc { is_web: false, is_late: false }),
        in_form(ErrorForm::Page { content_type: "text/html", body: b"<p>" }),
        OwnAnswer::Simple { status: 200, fields: &fields, body: b"hello" },
        OwnAnswer::Simple { status: 204, fields: &fields, body: b"hello" },
        OwnAnswer::Redirect { status: 308, location: b"https://a/" },
        OwnAnswer::Redirect { status: 308, location: b"https://a/\r\nx: y" },
        OwnAnswer::Trace { head: &head, buffer: bytes },
        OwnAnswer::Options,
    ] {
        for head_only in [false, true] {
            let own = OwnResponse {
                keep_alive: true,
                head_only,
                request_id: b"id",
                date: b"today",
                edits,
                ..OwnResponse::default()
            };
            let mut text = Vec::new();
            answer.write(&own, usize::MAX, &mut text);
            let method = if head_only { Method::Head } else { Method::Get };
            let written = response_to(method, &text).unwrap();
            let mut expected = pairs(&[(":status", &answer.status().to_string())]);
            expected.extend(written.fields(&text).map(|field| {
                (
                    String::from_utf8_lossy(field.name).to_lowercase(),
                    String::from_utf8_lossy(field.value).into_owned(),
                )
            }));
            let mut body = Vec::new();
            let seen = visited(|mut visit| answer.visit(&own, &mut visit, &mut body));
            assert_eq!(seen, expected, "{answer:?}");
            let all = [&body, answer.lent(&own, 0)].concat();
            assert_eq!(all, text[written.head_bytes()..], "{answer:?}");
            // What is not lent is written as one; what is, is left out of both.
            let mut short = Vec::new();
            let copied = answer.write(&own, 0, &mut short);
            assert_eq!([&short, answer.lent(&own, 0)].concat(), text, "{answer:?}");
            assert_eq!(copied, body.len(), "{answer:?}");
            assert!(head_only <= body.is_empty());
        }
    }
    assert_eq!(visited(|mut visit| continue_fields(&mut visit)), pairs(&[(":status", "100")]));
    let mut out = Vec::new();
    encode::write_continue(&mut out);
    assert_eq!(response(&out).unwrap().status(), 100);
}

#[test]
fn trailers_of_a_stream_are_written_behind_the_last_chunk() {
    let mut body = BodyReader::new(BodyLength::Chunked, &Limits::default());
    body.advance(b"0\r\nGrpc-Status: 0\r\nContent-Length: 4\r\nX-Sum: a\r\n\r\n").unwrap();
    let seen: Vec<_> = body.trailers().map(|field| (field.name, field.value)).collect();
    assert_eq!(seen, [(&b"Grpc-Status"[..], &b"0"[..]), (b"X-Sum", b"a")]);
    // And back: what came on a stream is written behind the last chunk.
    let mut builder = TrailerBuilder::new(Limits::default().trailers_of_requests());
    builder.field(b"grpc-status", b"0").unwrap();
    let mut body = BodyReader::of_stream(BodyLength::UntilClose);
    body.end_stream(Some(builder.finish())).unwrap();
    let mut out = Vec::new();
    weir_http::h1::chunked::write_last_chunk(&mut out, body.trailers());
    assert_eq!(out, b"0\r\ngrpc-status: 0\r\n\r\n");
}

#[test]
fn the_identity_of_a_connection_says_the_same_however_it_is_rendered() {
    let (mut head, mut text) = (RequestHead::new(), Vec::new());
    let limits = Limits::default();
    let mut builder = RequestBuilder::new(Version::Http3, &limits, &mut head, &mut text);
    for (name, value) in [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/")] {
        builder.field(name.as_bytes(), value.as_bytes()).unwrap();
    }
    builder.finish(true).unwrap();
    let written = |identity: &ClientIdentity| {
        let mut out = Vec::new();
        write_request(&head, &text, &RequestContext::new(identity, b"made-id"), &mut out);
        String::from_utf8(out).unwrap()
    };
    let usual = written(&client(false).of_version(Version::Http3));
    assert_eq!(usual, written(&client(false)));
    assert!(usual.contains("\r\nvia: 3 weir\r\nx-forwarded-for: 203.0.113.7\r\n"));
}
