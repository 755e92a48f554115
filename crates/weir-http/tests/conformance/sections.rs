//! Decoded fields of HTTP/2 and HTTP/3 become heads, or are refused (RFC 9113 §8, RFC 9114 §4; threats B5,
//! B10 to B13, C3).

use super::*;
use weir_http::{RequestBuilder, StreamError, TargetForm, TrailerBuilder, Version};

type Pairs<'a> = &'a [(&'a str, &'a str)];

/// Builds a request; text and head.
fn built_with(
    limits: &Limits,
    fields: Pairs<'_>,
    end_stream: bool,
) -> Result<(RequestHead, Vec<u8>), Violation> {
    let (mut head, mut text) = (RequestHead::new(), Vec::new());
    let mut builder = RequestBuilder::new(Version::Http2, limits, &mut head, &mut text);
    for (name, value) in fields {
        builder.field(name.as_bytes(), value.as_bytes())?;
    }
    builder.finish(end_stream)?;
    Ok((head, text))
}

/// A GET of `https://a.test/` with these fields behind its pseudo-headers.
fn get_with(fields: Pairs<'_>) -> Result<(RequestHead, Vec<u8>), Violation> {
    built_with(&Limits::default(), &[GET, fields].concat(), true)
}

fn built(fields: Pairs<'_>, end_stream: bool) -> Result<(RequestHead, Vec<u8>), Violation> {
    built_with(&Limits::default(), fields, end_stream)
}

fn text_of(built: Result<(RequestHead, Vec<u8>), Violation>) -> String {
    String::from_utf8(built.unwrap().1).unwrap()
}

fn refusal(built: Result<(RequestHead, Vec<u8>), Violation>) -> Violation {
    match built {
        Err(violation) => violation,
        Ok((_, text)) => panic!("accepted: {}", text.escape_ascii()),
    }
}

const GET: Pairs<'_> = &[(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")];
const POST: Pairs<'_> =
    &[(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")];
const WEBSOCKET: Pairs<'_> = &[
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":path", "/chat?x"),
    (":authority", "a.test"),
];

#[test]
fn a_request_becomes_the_text_that_means_the_same_in_http_1() {
    let fields = [
        (":path", "/a/%2e/b.c?q=1&r"),
        (":authority", "a.test:8443"),
        (":method", "PUT"),
        (":scheme", "https"),
        ("accept", ""),
        ("te", "trailers"),
        ("x_forwarded_for", "1"),
        ("content-length", "12"),
        ("x-request-id", "abc"),
        ("expect", "100-continue"),
    ];
    let (head, text) = built(&fields, false).unwrap();
    assert_eq!(
        text.escape_ascii().to_string(),
        b"PUT /a/%2e/b.c?q=1&r HTTP/1.1\r\nhost: a.test:8443\r\naccept: \r\nte: trailers\r\nx_forwarded_for: 1\r\n\
          content-length: 12\r\nx-request-id: abc\r\nexpect: 100-continue\r\n\r\n"
            .escape_ascii()
            .to_string()
    );
    assert!(head.is_complete() && head.has_started() && head.keep_alive());
    assert_eq!((head.version(), head.method(), head.head_bytes()), (Version::Http2, Method::Put, text.len()));
    assert_eq!(head.method_text(&text), b"PUT");
    assert_eq!(head.target(&text), b"/a/%2e/b.c?q=1&r");
    assert_eq!((head.target_form(), head.scheme()), (TargetForm::Origin, Some(Scheme::Https)));
    assert_eq!((head.path(&text), head.query(&text)), (&b"/a/%2e/b.c"[..], Some(&b"q=1&r"[..])));
    assert!(!head.path_is_plain());
    assert_eq!(head.host(&text), Some(&b"a.test:8443"[..]));
    assert_eq!(head.value_by_name(b"Accept", &text), Some(&b""[..]));
    assert_eq!(head.request_id(&text), Some(&b"abc"[..]));
    assert!(head.te_trailers() && head.expect_continue());
    assert_eq!((head.body(), head.upgrade(&text)), (BodyLength::Length(12), None));
    assert_eq!(head.fields(&text).len(), 7);
}

#[test]
fn a_head_may_stand_behind_other_bytes_and_be_built_again() {
    let (mut head, mut text) = (RequestHead::new(), b"before".to_vec());
    let limits = Limits::default();
    for round in 0..2 {
        text.truncate(6 * (1 - round));
        let mut builder = RequestBuilder::new(Version::Http3, &limits, &mut head, &mut text);
        for (name, value) in GET {
            builder.field(name.as_bytes(), value.as_bytes()).unwrap();
        }
        builder.finish(true).unwrap();
        assert_eq!((head.path(&text), head.host(&text)), (&b"/"[..], Some(&b"a.test"[..])));
        assert_eq!(head.head_bytes(), text.len());
        let identity = client(false);
        let mut out = Vec::new();
        write_request(&head, &text, &RequestContext::new(&identity, b"made-id"), &mut out);
        assert!(
            out.starts_with(b"GET / HTTP/1.1\r\nhost: a.test\r\nvia: 3 weir\r\n"),
            "{}",
            out.escape_ascii()
        );
    }
}

#[test]
fn each_method_needs_its_pseudo_headers() {
    // RFC 9113 §8.3.1, §8.5; RFC 8441 §4
    for missing in 0..4 {
        let mut fields = GET.to_vec();
        let (name, _) = fields.remove(missing);
        let expected =
            if name == ":authority" { Violation::HostMissing } else { Violation::PseudoFieldMissing };
        assert_eq!(refusal(built(&fields, true)), expected, "without {name}");
        fields.push(("x", "y"));
        assert_eq!(refusal(built(&fields, true)), expected, "without {name}");
    }
    for missing in [0, 2, 3, 4] {
        let mut fields = WEBSOCKET.to_vec();
        let (name, _) = fields.remove(missing);
        refusal(built(&fields, false));
        assert_ne!(name, ":protocol");
    }
    assert_eq!(refusal(built(&[], true)), Violation::PseudoFieldMissing);
    assert_eq!(refusal(built(&[(":method", "CONNECT")], true)), Violation::PseudoFieldMissing);
    let connect = [(":method", "CONNECT"), (":authority", "a.test:443")];
    let (head, text) = built(&connect, false).unwrap();
    assert_eq!(text, b"CONNECT a.test:443 HTTP/1.1\r\nhost: a.test:443\r\n\r\n");
    assert_eq!((head.method(), head.body()), (Method::Connect, BodyLength::None));
    for (name, value) in [(":scheme", "https"), (":path", "/")] {
        let fields = [&connect[..], &[(name, value)]].concat();
        assert_eq!(refusal(built(&fields, false)), Violation::PseudoFieldUnknown, "CONNECT with {name}");
    }
    let fields = [(":method", "CONNECT"), (":authority", "a.test")];
    assert_eq!(refusal(built(&fields, true)), Violation::TargetForm);
}

#[test]
fn b12_pseudo_headers_come_once_each_before_others_and_only_known_ones() {
    // B12, B13; RFC 9113 §8.3
    for repeated in GET {
        let fields = [GET, &[*repeated]].concat();
        assert_eq!(refusal(built(&fields, true)), Violation::PseudoFieldRepeated, "{}", repeated.0);
    }
    for unknown in [":status", ":Path", ":", ":host", ":path ", ":x"] {
        let fields = [GET, &[(unknown, "200")]].concat();
        assert_eq!(refusal(built(&fields, true)), Violation::PseudoFieldUnknown, "{unknown}");
    }
    assert_eq!(
        refusal(built(&[GET, &[(":protocol", "websocket")]].concat(), true)),
        Violation::PseudoFieldUnknown
    );
    assert_eq!(refusal(get_with(&[("x", "y"), (":path", "/")])), Violation::PseudoFieldLate);
    let late = [GET[0], GET[1], GET[2], ("x", "y"), GET[3]];
    assert_eq!(refusal(built(&late, true)), Violation::PseudoFieldMissing);
}

#[test]
fn b12_a_path_is_refused_where_http_1_would_refuse_it() {
    // B12; RFC 9113 §8.3.1
    let with_path = |method, path| {
        built(&[(":method", method), (":scheme", "https"), (":authority", "a"), (":path", path)], true)
    };
    for path in
        ["", "?", "?x", "/a#b", "/#", "/a b", "/a\u{e9}", "/a?b#", "/\"", "/a\\b", "/<", "/a?b c", "/a\u{7f}"]
    {
        let violation = refusal(with_path("GET", path));
        assert!(
            matches!(
                violation,
                Violation::TargetSyntax | Violation::TargetForm | Violation::FieldValueSyntax
            ),
            "{path:?}: {violation:?}"
        );
        assert_eq!(violation.stream_error(), Some(StreamError::Malformed), "{path:?}");
    }
    for path in ["*", "a", "http://a/", "//\u{0}", "https://b/", "a:443", " /", "/ ", "/\r\nx: y", "/\n"] {
        refusal(with_path("GET", path));
    }
    refusal(with_path("OPTIONS", "*?x"));
    refusal(with_path("OPTIONS", "**"));
    let (head, text) = with_path("OPTIONS", "*").unwrap();
    assert_eq!(
        (head.target_form(), text.starts_with(b"OPTIONS * HTTP/1.1\r\n")),
        (TargetForm::Asterisk, true)
    );
    assert!(with_path("GET", "//x/[]|?a?/\\").is_ok());
}

#[test]
fn method_scheme_and_protocol_are_checked() {
    for (name, value, violation) in [
        (":method", "", Violation::MethodSyntax),
        (":method", "GET /", Violation::MethodSyntax),
        (":method", "G\r\nT", Violation::FieldValueSyntax),
        (":method", "GET ", Violation::FieldValuePadded),
        (":method", "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG", Violation::MethodTooLong),
        (":scheme", "", Violation::TargetScheme),
        (":scheme", "ftp", Violation::TargetScheme),
        (":scheme", "https://a", Violation::TargetScheme),
        (":authority", "", Violation::HostSyntax),
        (":authority", "u@a", Violation::TargetUserinfo),
        (":authority", "u:p@a:1", Violation::TargetUserinfo),
        (":authority", "a/b", Violation::HostSyntax),
        (":authority", "a b", Violation::HostSyntax),
        (":authority", "a:99999", Violation::HostSyntax),
        (":authority", "a,b", Violation::HostSyntax),
        (":authority", "a\r\nx: y", Violation::FieldValueSyntax),
    ] {
        let fields: Vec<_> =
            GET.iter().map(|&field| if field.0 == name { (name, value) } else { field }).collect();
        assert_eq!(refusal(built(&fields, true)), violation, "{name}: {value:?}");
    }
    for protocol in ["", "web socket", "h2c", "h2", "a, b"] {
        let fields: Vec<_> = WEBSOCKET
            .iter()
            .map(|&field| if field.0 == ":protocol" { (field.0, protocol) } else { field })
            .collect();
        assert_eq!(refusal(built(&fields, false)), Violation::ProtocolUnsupported, "{protocol:?}");
    }
}

#[test]
fn b12_host_beside_authority_must_name_the_same() {
    // B12; RFC 9113 §8.3.1, RFC 9114 §4.3.1
    assert_eq!(
        text_of(get_with(&[("host", "A.TEST:443"), ("x", "y")])),
        "GET / HTTP/1.1\r\nhost: a.test\r\nx: y\r\n\r\n"
    );
    for host in ["b.test", "a.test:80", "a.test.", "a.test:8443"] {
        assert_eq!(refusal(get_with(&[("host", host)])), Violation::HostMismatch, "{host}");
    }
    assert_eq!(refusal(get_with(&[("host", "")])), Violation::HostSyntax);
    assert_eq!(refusal(get_with(&[("host", "a.test"), ("host", "a.test")])), Violation::HostRepeated);
    let without = [GET[0], GET[1], GET[3]];
    let with_host = [&without[..], &[("x", "y"), ("host", "b.test:1")]].concat();
    let (head, text) = built(&with_host, true).unwrap();
    assert_eq!(head.host(&text), Some(&b"b.test:1"[..]));
    let twice = [&with_host[..], &[("host", "b.test:1")]].concat();
    assert_eq!(refusal(built(&twice, true)), Violation::HostRepeated);
    let userinfo = [&without[..], &[("host", "u@b")]].concat();
    assert_eq!(refusal(built(&userinfo, true)), Violation::HostSyntax);
}

#[test]
fn b11_names_and_values_that_http_1_could_not_carry_are_refused() {
    // B11; RFC 9113 §8.2.1
    for (name, violation) in [
        ("", Violation::FieldNameEmpty),
        ("Accept", Violation::FieldNameUppercase),
        ("x-A", Violation::FieldNameUppercase),
        ("x y", Violation::FieldNameSyntax),
        ("x:", Violation::FieldNameSyntax),
        ("x\r\ny", Violation::FieldNameSyntax),
        ("x\0", Violation::FieldNameSyntax),
        ("x\u{e9}", Violation::FieldNameSyntax),
        ("x(", Violation::FieldNameSyntax),
    ] {
        assert_eq!(refusal(get_with(&[(name, "v")])), violation, "{name:?}");
    }
    for (value, violation) in [
        (" a", Violation::FieldValuePadded),
        ("a ", Violation::FieldValuePadded),
        ("\ta", Violation::FieldValuePadded),
        ("a\t", Violation::FieldValuePadded),
        (" ", Violation::FieldValuePadded),
        ("a\rb", Violation::FieldValueSyntax),
        ("a\nb", Violation::FieldValueSyntax),
        ("a\0b", Violation::FieldValueSyntax),
        ("a\u{7f}b", Violation::FieldValueSyntax),
        ("\r\n", Violation::FieldValueSyntax),
    ] {
        assert_eq!(refusal(get_with(&[("x", value)])), violation, "{value:?}");
        assert_eq!(refusal(get_with(&[("cookie", value)])), violation, "{value:?}");
    }
    assert!(get_with(&[("x", "a \t b"), ("y", "\u{e9}")]).is_ok());
}

#[test]
fn b10_fields_of_http_1_connections_are_refused() {
    // B10; RFC 9113 §8.2.2
    for (name, value) in [
        ("connection", "close"),
        ("connection", ""),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "identity"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("te", "trailers, deflate"),
        ("te", ""),
    ] {
        assert_eq!(refusal(get_with(&[(name, value)])), Violation::ConnectionField, "{name}: {value}");
    }
}

#[test]
fn c3_a_declared_length_is_one_number_and_a_body_must_follow_it() {
    // B10, C3; RFC 9113 §8.1.1, RFC 9114 §4.1.2
    let body = |length: Pairs<'_>, end| built(&[POST, length].concat(), end).map(|(head, _)| head.body());
    assert_eq!(body(&[], true), Ok(BodyLength::None));
    assert_eq!(body(&[], false), Ok(BodyLength::UntilClose));
    assert_eq!(body(&[("content-length", "7")], false), Ok(BodyLength::Length(7)));
    assert_eq!(body(&[("content-length", "0")], true), Ok(BodyLength::Length(0)));
    assert_eq!(body(&[("content-length", "7")], true), Err(Violation::BodyTooShort));
    let repeated = [("content-length", "7"), ("content-length", "7")];
    assert_eq!(body(&repeated, false), Err(Violation::ContentLengthRepeated));
    for bad in ["", "+7", "-1", "0x7", "7, 7", "7 7", "9223372036854775808"] {
        assert_eq!(body(&[("content-length", bad)], false), Err(Violation::ContentLengthSyntax), "{bad:?}");
    }
    let (head, text) = built(&[POST, &[("content-length", "007")]].concat(), false).unwrap();
    let identity = client(false);
    let mut out = Vec::new();
    write_request(&head, &text, &RequestContext::new(&identity, b"made-id"), &mut out);
    assert!(out.windows(20).any(|part| part == b"\r\ncontent-length: 7\r\n".get(..20).unwrap()));
    assert_eq!(request(&out).unwrap().body(), BodyLength::Length(7));
}

#[test]
fn b10_a_body_on_a_stream_is_complete_when_the_stream_ends_and_not_before() {
    let mut body = BodyReader::of_stream(BodyLength::Length(5));
    assert_eq!(body.advance(b"123").unwrap().data, 0..3);
    body.receive(2).unwrap();
    assert!(!body.is_complete());
    assert_eq!(body.remaining(), Some(0));
    assert_eq!(body.receive(1), Err(Violation::BodyTooLong));
    let mut body = BodyReader::of_stream(BodyLength::Length(5));
    assert_eq!(body.advance(b"123456"), Err(Violation::BodyTooLong));
    let mut body = BodyReader::of_stream(BodyLength::Length(5));
    body.advance(b"1234").unwrap();
    assert_eq!(body.finish_at_eof(), Err(Violation::BodyTooShort));
    assert!(body.drained().is_none());
    let mut body = BodyReader::of_stream(BodyLength::None);
    assert_eq!(body.advance(b"1"), Err(Violation::BodyTooLong));
    let mut body = BodyReader::of_stream(BodyLength::UntilClose);
    body.advance(b"1234").unwrap();
    assert_eq!((body.is_complete(), body.remaining()), (false, None));
    body.end_stream(None).unwrap();
    assert!(body.is_complete());
    assert_eq!(body.receive(1), Err(Violation::BodyTooLong));
    assert!(body.drained().is_some());
}

#[test]
fn a_body_without_a_declared_length_is_forwarded_in_chunks() {
    let (head, text) = built(POST, false).unwrap();
    let identity = client(false);
    let mut out = Vec::new();
    write_request(&head, &text, &RequestContext::new(&identity, b"made-id"), &mut out);
    assert_eq!(request(&out).unwrap().body(), BodyLength::Chunked);
    assert!(
        out.starts_with(b"POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\nvia: 2 weir\r\n")
    );
}

#[test]
fn crumbs_of_a_cookie_become_one_line() {
    // RFC 9113 §8.2.3
    for (fields, text) in [
        (
            &[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3"), ("x", "y")][..],
            "cookie: a=1; b=2; c=3\r\nx: y\r\n",
        ),
        (
            &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2"), ("z", ""), ("cookie", "c=3")],
            "cookie: a=1; b=2; c=3\r\nx: y\r\nz: \r\n",
        ),
        (&[("cookie", ""), ("cookie", ""), ("cookie", "b=2")], "cookie: b=2\r\n"),
        (&[("cookie", ""), ("x", "y"), ("cookie", "b=2"), ("cookie", "c=3")], "cookie: b=2; c=3\r\nx: y\r\n"),
        (&[("cookie", "a=1"), ("cookie", "")], "cookie: a=1\r\n"),
    ] {
        let (head, built) = get_with(fields).unwrap();
        let built_text = String::from_utf8(built.clone()).unwrap();
        assert_eq!(built_text, format!("GET / HTTP/1.1\r\nhost: a.test\r\n{text}\r\n"));
        // The spans point to what was written.
        let again = request(&built).unwrap();
        let seen: Vec<_> = head.fields(&built).map(|field| (field.name, field.value, field.known)).collect();
        let expected: Vec<_> =
            again.fields(&built).map(|field| (field.name, field.value, field.known)).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn b5_every_field_counts_for_more_than_its_bytes_also_a_crumb() {
    // B5: 2000 one-byte references to a short crumb are 64000 bytes and more to hold, however small they
    // came.
    let limits = Limits { header_block_bytes: 1000, ..Limits::default() };
    for (name, value) in [("cookie", "a"), ("x", ""), ("te", "trailers")] {
        let cost = name.len() + value.len() + 32;
        let room = 1000 - ("host".len() + "a.test".len() + 32);
        let most = room / cost;
        let good = [GET, &vec![(name, value); most]].concat();
        assert!(built_with(&limits, &good, true).is_ok(), "{name}");
        let more = [GET, &vec![(name, value); most + 1]].concat();
        assert_eq!(refusal(built_with(&limits, &more, true)), Violation::HeaderBlockTooLarge, "{name}");
    }
    let few = Limits { field_count: 3, ..Limits::default() };
    let three = [GET, &[("x", ""), ("cookie", "a"), ("cookie", "b")]].concat();
    assert!(built_with(&few, &three, true).is_ok());
    let four = [&three[..], &[("y", "")]].concat();
    assert_eq!(refusal(built_with(&few, &four, true)), Violation::TooManyFields);
    let line = Limits { request_line_bytes: "GET / HTTP/1.1".len(), ..Limits::default() };
    assert!(built_with(&line, GET, true).is_ok());
    let longer = [GET[0], GET[1], GET[2], (":path", "/a")];
    assert_eq!(refusal(built_with(&line, &longer, true)), Violation::RequestLineTooLong);
    let longest = "/".repeat(9000);
    let longer = [(":path", &*longest)];
    assert_eq!(refusal(built(&longer, true)), Violation::RequestLineTooLong);
}

#[test]
fn an_extended_connect_is_an_upgrade_request() {
    // RFC 8441 §4, RFC 9220
    let fields = [WEBSOCKET, &[("sec-websocket-version", "13")]].concat();
    let (head, text) = built(&fields, false).unwrap();
    assert!(text.starts_with(
        b"GET /chat?x HTTP/1.1\r\nhost: a.test\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    ));
    assert_eq!((head.method(), head.body()), (Method::Get, BodyLength::None));
    assert!(head.is_extended_connect());
    assert_eq!(head.upgrade(&text), Some(&b"websocket"[..]));
    let with_body = [WEBSOCKET, &[("content-length", "4")]].concat();
    assert_eq!(refusal(built(&with_body, false)), Violation::ConnectWithBody);
    let mut again = head;
    again.clear();
    assert!(!again.is_extended_connect());
}

#[test]
fn what_a_request_expects_is_known_as_in_http_1() {
    assert!(!get_with(&[("expect", "100-continue")]).unwrap().0.expect_continue());
    assert_eq!(refusal(get_with(&[("expect", "x")])), Violation::ExpectationUnknown);
    let trace = [
        (":method", "TRACE"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
        ("max-forwards", "3"),
    ];
    assert_eq!(built(&trace, true).unwrap().0.max_forwards(), Some(3));
    assert_eq!(refusal(built(&trace, false)), Violation::TraceWithBody);
}

#[test]
fn b13_trailers_are_checked_and_those_that_frame_or_authenticate_are_left_out() {
    // B13; RFC 9113 §8.1, RFC 9110 §6.5.1
    let limits = Limits { trailer_count: 8, ..Limits::default() };
    let mut builder = TrailerBuilder::new(limits.trailers_of_requests());
    for (name, value) in [
        ("grpc-status", "0"),
        ("content-length", "5"),
        ("host", "b"),
        ("authorization", "x"),
        ("set-cookie", "x"),
        ("content_length", "5"),
        ("x-sum", ""),
    ] {
        builder.field(name.as_bytes(), value.as_bytes()).unwrap();
    }
    let mut body = BodyReader::of_stream(BodyLength::UntilClose);
    body.end_stream(Some(builder.finish())).unwrap();
    let seen: Vec<_> = body.trailers().map(|field| (field.name, field.value)).collect();
    assert_eq!(seen, [(&b"grpc-status"[..], &b"0"[..]), (b"x-sum", b"")]);
    for (name, value, violation) in [
        (":path", "/", Violation::PseudoFieldLate),
        (":x", "/", Violation::PseudoFieldLate),
        ("transfer-encoding", "chunked", Violation::ConnectionField),
        ("te", "trailers", Violation::ConnectionField),
        ("X", "", Violation::FieldNameUppercase),
        ("x", "\n", Violation::FieldValueSyntax),
    ] {
        let refused =
            TrailerBuilder::new(limits.trailers_of_requests()).field(name.as_bytes(), value.as_bytes());
        assert_eq!(refused, Err(violation), "{name}");
    }
    let mut builder = TrailerBuilder::new(limits.trailers_of_requests());
    let accepted = (0..9).map_while(|_| builder.field(b"x", b"").ok()).count();
    assert_eq!(accepted, 8);
    let big = [b'a'; 9000];
    assert_eq!(
        TrailerBuilder::new(limits.trailers_of_requests()).field(b"x", &big),
        Err(Violation::TrailersTooLarge)
    );
}
