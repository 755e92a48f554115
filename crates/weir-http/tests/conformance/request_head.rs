//! Rows A8 to A15, A17, A18, A22 and A26: lines, fields, targets, hosts, versions, limits.

use super::*;
use weir_http::{KnownHeader, TargetForm, Version};

//= https://www.rfc-editor.org/rfc/rfc9112#section-2.2
//= type=test
//# A recipient of such a bare CR MUST consider that element to be invalid
//# or replace each bare CR with SP before processing the element or
//# forwarding the message.
#[test]
fn a8_bare_line_ends_are_refused_everywhere() {
    all_refused(
        Violation::BareLineFeed,
        &[
            b"\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET / HTTP/1.1\nhost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\n\n",
            b"GET / HTTP/1.1\r\nhost: a\r\nx: y\nz: w\r\n\r\n",
        ],
    );
    all_refused(
        Violation::BareCarriageReturn,
        &[
            b"\rGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET / HTTP/1.1\rX\nhost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\rX\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\n\rX",
            b"GET / HTTP/1.1\r\nhost: a\r\nx: y\rz: w\r\n\r\n",
        ],
    );
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-5.2
//= type=test
//# A server that receives an obs-fold in a request message that is not
//# within a "message/http" container MUST either reject the message by
//# sending a 400 (Bad Request), preferably with a representation
//# explaining that obsolete line folding is unacceptable
#[test]
fn a9_folded_lines_are_refused() {
    all_refused(
        Violation::LineFolding,
        &[
            b"GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n\tz\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\n \r\n\r\n",
        ],
    );
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-5.1
//= type=test
//# A server MUST reject, with a response status code of 400 (Bad Request),
//# any received request message that contains whitespace between a header
//# field name and colon.
#[test]
fn a10_lines_that_are_no_name_colon_value_are_refused() {
    all_refused(
        Violation::FieldNameSyntax,
        &[
            b"GET / HTTP/1.1\r\nhost : a\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost\t: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\nfoo bar: x\r\n\r\n",
        ],
    );
    all_refused(
        Violation::WhitespaceBeforeFields,
        &[b"GET / HTTP/1.1\r\n host: a\r\n\r\n", b"GET / HTTP/1.1\r\n\thost: a\r\nhost: b\r\n\r\n"],
    );
    all_refused(Violation::FieldWithoutColon, &[b"GET / HTTP/1.1\r\nhost: a\r\nfoo\r\n\r\n"]);
    // CVE-2023-25725: an empty name ended HAProxy's list of fields.
    all_refused(
        Violation::FieldNameEmpty,
        &[b"GET / HTTP/1.1\r\nhost: a\r\n: x\r\ncontent-length: 4\r\n\r\n"],
    );
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-5.5
//= type=test
//# Field values containing CR, LF, or NUL characters are invalid and dangerous
#[test]
fn a11_every_byte_that_is_no_token_is_refused_in_names_and_every_control_in_values() {
    for byte in 0..=255_u8 {
        let token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let name = [b"GET / HTTP/1.1\r\nhost: a\r\nfo", &[byte][..], b"o: x\r\n\r\n"].concat();
        // A colon ends the name early: `fo` with the value `o: x`.
        assert_eq!(request(&name).is_ok(), token || byte == b':', "name with {byte:#04x}");
        let value = [b"GET / HTTP/1.1\r\nhost: a\r\nfoo: x", &[byte][..], b"y\r\n\r\n"].concat();
        let allowed = byte == b'\t' || (byte >= 0x20 && byte != 0x7f);
        assert_eq!(request(&value).is_ok(), allowed, "value with {byte:#04x}");
    }
    all_refused(Violation::FieldValueSyntax, &[b"GET / HTTP/1.1\r\nhost: a\r\nx: \0\r\n\r\n"]);
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-3.2
//= type=test
//# Recipients of an invalid request-line SHOULD respond with either a 400
//# (Bad Request) error or a 301 (Moved Permanently) redirect with the
//# request-target properly encoded.
#[test]
fn a12_targets_that_hold_forbidden_bytes_are_refused() {
    all_refused(
        Violation::TargetSyntax,
        &[
            // CVE-2023-45539: `#` passed through HAProxy and path rules read another path than the backend.
            b"GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /?a#b HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /\xc3\xa9 HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /?\xff HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /\t HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /a\\b HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /<a> HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /\" HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /\x7f HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET  / HTTP/1.1\r\nhost: a\r\n\r\n",
        ],
    );
    all_refused(
        Violation::VersionSyntax,
        &[
            b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /  HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET / HTTP/1.1 \r\nhost: a\r\n\r\n",
            b"GET /\r\nhost: a\r\n\r\n",
        ],
    );
    all_refused(
        Violation::TargetForm,
        &[
            b"GET a/b HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET * HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET ?a HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET a:80 HTTP/1.1\r\nhost: a\r\n\r\n",
            b"OPTIONS ** HTTP/1.1\r\nhost: a\r\n\r\n",
            b"OPTIONS *?x HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET http:/a HTTP/1.1\r\nhost: a\r\n\r\n",
        ],
    );
    all_refused(
        Violation::MethodSyntax,
        &[b" / HTTP/1.1\r\nhost: a\r\n\r\n", b"G(T / HTTP/1.1\r\nhost: a\r\n\r\n"],
    );
}

#[test]
fn a12_what_browsers_leave_unencoded_is_accepted() {
    let bytes = b"GET /a[0]|{b}^`;c=d,e:f@g!$&'()*+~ HTTP/1.1\r\nhost: a\r\n\r\n";
    assert_eq!(request(bytes).unwrap().path(bytes), b"/a[0]|{b}^`;c=d,e:f@g!$&'()*+~");
    let bytes = b"GET /a?b=%&c=[1]|{2}\\^`?d//e HTTP/1.1\r\nhost: a\r\n\r\n";
    let head = request(bytes).unwrap();
    assert_eq!((head.path(bytes), head.query(bytes)), (&b"/a"[..], Some(&b"b=%&c=[1]|{2}\\^`?d//e"[..])));
    let bytes = b"GET /a? HTTP/1.1\r\nhost: a\r\n\r\n";
    assert_eq!(request(bytes).unwrap().query(bytes), Some(&b""[..]));
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2
//= type=test
//# When a proxy receives a request with an absolute-form of request-target,
//# the proxy MUST ignore the received Host header field (if any) and
//# instead replace it with the host information of the request-target.
#[test]
fn a13_the_authority_of_an_absolute_target_is_the_host_and_the_path_follows_from_it() {
    for (target, host_line, host, path, query) in [
        ("http://shop.example/a?b", "shop.example", "shop.example", "/a", Some("b")),
        ("http://shop.example", "shop.example", "shop.example", "/", None),
        ("https://h/", "h", "h", "/", None),
        ("HTTP://Shop.Example:80/", "shop.example", "Shop.Example:80", "/", None),
        ("https://h:443/", "h:443", "h:443", "/", None),
        ("http://h?q=/a", "h", "h", "/", Some("q=/a")),
        ("http://[2001:db8::1]:8080/x", "[2001:DB8::1]:8080", "[2001:db8::1]:8080", "/x", None),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nhost: {host_line}\r\n\r\n");
        let bytes = text.as_bytes();
        let head = request(bytes).unwrap_or_else(|violation| panic!("{target}: {violation}"));
        assert_eq!(head.target_form(), TargetForm::Absolute);
        assert_eq!(head.host(bytes), Some(host.as_bytes()), "{target}");
        assert_eq!(head.path(bytes), path.as_bytes(), "{target}");
        assert_eq!(head.query(bytes), query.map(str::as_bytes), "{target}");
    }
}

#[test]
fn a13_an_absolute_target_that_disagrees_with_host_or_names_a_user_is_refused() {
    all_refused(
        Violation::HostMismatch,
        &[
            b"GET http://a/ HTTP/1.1\r\nhost: b\r\n\r\n",
            b"GET http://a:81/ HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET https://a:80/ HTTP/1.1\r\nhost: a\r\n\r\n",
            b"CONNECT a:443 HTTP/1.1\r\nhost: b:443\r\n\r\n",
        ],
    );
    all_refused(
        Violation::TargetUserinfo,
        &[
            b"GET http://user@a/ HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET http://user:word@a/ HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET http://a@ HTTP/1.1\r\nhost: a\r\n\r\n",
            b"CONNECT u@a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n",
        ],
    );
    all_refused(Violation::TargetScheme, &[b"GET ftp://a/ HTTP/1.1\r\nhost: a\r\n\r\n"]);
    all_refused(
        Violation::HostSyntax,
        &[b"GET http:///x HTTP/1.1\r\nhost: a\r\n\r\n", b"GET http://a:x/ HTTP/1.1\r\nhost: a\r\n\r\n"],
    );
    all_refused(Violation::HostMissing, &[b"GET http://a/ HTTP/1.1\r\n\r\n"]);
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-3.2
//= type=test
//# A server MUST respond with a 400 (Bad Request) status code to any
//# HTTP/1.1 request message that lacks a Host header field and to any
//# request message that contains more than one Host header field line or
//# a Host header field with an invalid field value.
#[test]
fn a14_host_must_be_there_once_and_be_a_host() {
    all_refused(Violation::HostMissing, &[b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nx: y\r\n\r\n"]);
    all_refused(
        Violation::HostRepeated,
        &[
            b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\nHOST: b\r\n\r\n",
            b"GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n",
        ],
    );
    for host in [
        "",
        ":80",
        "a b",
        "a/b",
        "a?b",
        "a#b",
        "a@b",
        "a:b",
        "a:80:80",
        "a:65536",
        "a:000080",
        "a:-1",
        "[::1",
        "::1",
        "[::1]x",
        "[::1%25eth0]",
        "[1.2.3.4]",
        "[]",
        "a\"b",
        "a\\b",
        "a<b",
        "a%",
        "a%0d",
        "a%zz",
        "h\u{e9}",
        "a\tb",
        "http://a",
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(request_violation(bytes.as_bytes()), Violation::HostSyntax, "{host:?}");
    }
    for host in [
        "a",
        "a.b-c.example",
        "a.",
        "a:80",
        "a:",
        "a:0",
        "1.2.3.4:65535",
        "[::1]",
        "[2001:db8::1]:8080",
        "a_b",
        "a%20b",
    ] {
        let text = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(
            request(text.as_bytes()).unwrap().host(text.as_bytes()),
            Some(host.as_bytes()),
            "{host:?}"
        );
    }
    let bytes = b"GET / HTTP/1.0\r\n\r\n";
    assert_eq!(request(bytes).unwrap().host(bytes), None);
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-2.3
//= type=test
//# HTTP-version is case-sensitive.
#[test]
fn a15_only_http_1_1_and_1_0_are_spoken() {
    for (version, violation) in [
        ("HTTP/1.2", Violation::VersionUnsupported),
        ("HTTP/2.0", Violation::VersionUnsupported),
        ("HTTP/0.9", Violation::VersionUnsupported),
        ("HTTP/1.10", Violation::VersionSyntax),
        ("HTTP/11", Violation::VersionSyntax),
        ("HTTP/1", Violation::VersionSyntax),
        ("HTTP/1,1", Violation::VersionSyntax),
        ("http/1.1", Violation::VersionSyntax),
        ("HTTPS/1.1", Violation::VersionSyntax),
        ("", Violation::VersionSyntax),
    ] {
        let bytes = format!("GET / {version}\r\nhost: a\r\n\r\n");
        assert_eq!(request_violation(bytes.as_bytes()), violation, "{version:?}");
    }
    assert_eq!(Violation::VersionUnsupported.status(), 505);
    assert_eq!(request_violation(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Violation::TargetForm);
    assert_eq!(request(b"GET / HTTP/1.0\r\n\r\n").unwrap().version(), Version::Http10);
    assert_eq!(request(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap().version(), Version::Http11);
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1
//= type=test
//# A server that receives an Expect field value containing a member
//# other than 100-continue MAY respond with a 417 (Expectation Failed)
//# status code
#[test]
fn a17_only_one_plain_100_continue_is_an_expectation() {
    for value in [
        "100-continue-x",
        "x",
        "",
        "100-continue, 100-continue",
        "y 100-continue",
        "100-continue;q=1",
        "100 continue",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nexpect: {value}\r\n\r\n");
        assert_eq!(request_violation(bytes.as_bytes()), Violation::ExpectationUnknown, "{value:?}");
    }
    all_refused(
        Violation::ExpectationUnknown,
        &[b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nexpect: 100-continue\r\nexpect: 100-continue\r\n\r\n"],
    );
    assert_eq!(Violation::ExpectationUnknown.status(), 417);
    let expects = |bytes: &[u8]| request(bytes).unwrap().expect_continue();
    assert!(expects(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nexpect: 100-Continue\r\n\r\n"));
    assert!(expects(
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n"
    ));
    // Without a body there is nothing to wait for; HTTP/1.0 must be ignored.
    assert!(!expects(b"GET / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n\r\n"));
    assert!(!expects(b"POST / HTTP/1.0\r\nhost: a\r\ncontent-length: 1\r\nexpect: 100-continue\r\n\r\n"));
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-7.8
//= type=test
//# A server MUST ignore an Upgrade header field that is received in an
//# HTTP/1.0 request.
#[test]
fn a18_an_upgrade_is_one_protocol_named_with_connection_upgrade_and_never_h2c() {
    let upgrade = |text: &str| request(text.as_bytes()).unwrap().upgrade(text.as_bytes()).map(<[u8]>::to_vec);
    let with = |connection: &str, upgrade: &str| {
        format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: {connection}\r\nupgrade: {upgrade}\r\n\r\n")
    };
    assert_eq!(upgrade(&with("Upgrade", "websocket")), Some(b"websocket".to_vec()));
    assert_eq!(upgrade(&with("keep-alive, Upgrade", "foo/2")), Some(b"foo/2".to_vec()));
    for (connection, protocol) in [
        ("keep-alive", "websocket"),
        ("upgrade", "h2c"),
        ("upgrade, HTTP2-Settings", "H2C"),
        ("upgrade", "websocket, h2c"),
        ("upgrade", "websocket x"),
        ("upgrade", ""),
    ] {
        assert_eq!(upgrade(&with(connection, protocol)), None, "{connection} {protocol}");
    }
    assert_eq!(
        upgrade("GET / HTTP/1.0\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"),
        None
    );
}

fn limited(bytes: &[u8], limits: Limits) -> Result<Progress, Violation> {
    parse_request(bytes, &limits, &mut RequestHead::new())
}

//= https://www.rfc-editor.org/rfc/rfc6585#section-5
//= type=test
//# The 431 status code indicates that the server is unwilling to process
//# the request because its header fields are too large.
#[test]
fn a22_limits_hold_before_the_head_is_complete() {
    let limits = Limits::default();
    let mut line = b"GET /".to_vec();
    line.resize(8192, b'a');
    assert_eq!(limited(&line, limits), Ok(Progress::Partial));
    line.resize(8194, b'a');
    assert_eq!(limited(&line, limits), Err(Violation::RequestLineTooLong));
    assert_eq!(Violation::RequestLineTooLong.status(), 414);

    let mut block = b"GET / HTTP/1.1\r\nhost: a\r\nx: ".to_vec();
    block.resize(16 + 65535, b'a');
    assert_eq!(limited(&block, limits), Ok(Progress::Partial));
    block.push(b'a');
    assert_eq!(limited(&block, limits), Err(Violation::HeaderBlockTooLarge));
    assert_eq!(Violation::HeaderBlockTooLarge.status(), 431);

    let mut name = b"GET / HTTP/1.1\r\nhost: a\r\n".to_vec();
    name.resize(16 + 65536, b'a');
    assert_eq!(limited(&name, limits), Err(Violation::HeaderBlockTooLarge));

    let many =
        |count: usize| [b"GET / HTTP/1.1\r\nhost: a\r\n".to_vec(), b"x:\r\n".repeat(count - 1)].concat();
    assert_eq!(limited(&many(100), limits), Ok(Progress::Partial));
    assert_eq!(
        limited(&[many(100), b"\r\n".to_vec()].concat(), limits),
        Ok(Progress::Complete { head_bytes: 423 })
    );
    assert_eq!(limited(&[many(100), b"x".to_vec()].concat(), limits), Err(Violation::TooManyFields));
    assert_eq!(limited(&[b'M'; 33], limits), Err(Violation::MethodTooLong));
    assert_eq!(limited(&[b'M'; 32], limits), Ok(Progress::Partial));
}

#[test]
fn a22_a_head_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not() {
    let limits = Limits { request_line_bytes: 16, header_block_bytes: 12, ..Limits::default() };
    assert_eq!(
        limited(b"GET /23 HTTP/1.1\r\nhost: 67\r\n\r\n", limits),
        Ok(Progress::Complete { head_bytes: 30 })
    );
    assert_eq!(limited(b"GET /234 HTTP/1.1\r\nhost: a\r\n\r\n", limits), Err(Violation::RequestLineTooLong));
    assert_eq!(
        limited(b"GET /23 HTTP/1.1\r\nhost: 678\r\n\r\n", limits),
        Err(Violation::HeaderBlockTooLarge)
    );
}

#[test]
fn a22_connection_options_are_bounded() {
    let with = |count: usize| {
        format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: {}\r\n\r\n", vec!["x"; count].join(","))
    };
    assert!(request(with(16).as_bytes()).is_ok());
    assert_eq!(request_violation(with(17).as_bytes()), Violation::TooManyConnectionOptions);
    all_refused(Violation::ConnectionSyntax, &[b"GET / HTTP/1.1\r\nhost: a\r\nconnection: a b\r\n\r\n"]);
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-2.2
//= type=test
//# a server that is expecting to receive and parse a request-line SHOULD
//# ignore at least one empty line (CRLF) received prior to the
//# request-line.
#[test]
fn a_few_empty_lines_before_the_request_are_skipped() {
    let bytes = b"\r\n\r\nGET /x HTTP/1.1\r\nhost: a\r\n\r\n";
    let head = request(bytes).unwrap();
    assert_eq!((head.path(bytes), head.head_bytes()), (&b"/x"[..], bytes.len()));
    all_refused(Violation::LeadingEmptyLines, &[b"\r\n\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n"]);
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-9.3.8
//= type=test
//# A client MUST NOT send content in a TRACE request.
#[test]
fn a26_trace_and_connect_have_no_body_and_connect_names_host_and_port() {
    all_refused(Violation::TraceWithBody, &[b"TRACE / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n"]);
    all_refused(
        Violation::ConnectWithBody,
        &[b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\ntransfer-encoding: chunked\r\n\r\n"],
    );
    all_refused(
        Violation::TargetForm,
        &[
            b"CONNECT a HTTP/1.1\r\nhost: a\r\n\r\n",
            b"CONNECT a: HTTP/1.1\r\nhost: a\r\n\r\n",
            b"CONNECT / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"CONNECT http://a:80/ HTTP/1.1\r\nhost: a:80\r\n\r\n",
            b"CONNECT a:1?x HTTP/1.1\r\nhost: a:1\r\n\r\n",
        ],
    );
    let bytes = b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n";
    let head = request(bytes).unwrap();
    assert_eq!((head.target_form(), head.host(bytes)), (TargetForm::Authority, Some(&b"a:443"[..])));
}

#[test]
fn a26_methods_are_case_sensitive_and_unknown_ones_are_neither_safe_nor_idempotent() {
    for (text, method, safe, idempotent) in [
        ("GET", Method::Get, true, true),
        ("HEAD", Method::Head, true, true),
        ("POST", Method::Post, false, false),
        ("PUT", Method::Put, false, true),
        ("DELETE", Method::Delete, false, true),
        ("OPTIONS", Method::Options, true, true),
        ("TRACE", Method::Trace, true, true),
        ("PATCH", Method::Patch, false, false),
        ("get", Method::Other, false, false),
        ("BREW", Method::Other, false, false),
    ] {
        let bytes = format!("{text} / HTTP/1.1\r\nhost: a\r\n\r\n");
        let head = request(bytes.as_bytes()).unwrap();
        assert_eq!(
            (head.method(), head.method().is_safe(), head.method().is_idempotent()),
            (method, safe, idempotent)
        );
        assert_eq!(head.method_text(bytes.as_bytes()), text.as_bytes());
    }
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-9.3
//= type=test
//# If the received protocol is HTTP/1.1 (or later), the connection will
//# persist after the current response
#[test]
fn connections_persist_as_version_and_connection_say() {
    for (version, connection, expected) in [
        ("1.1", "", true),
        ("1.1", "connection: close\r\n", false),
        ("1.1", "connection: keep-alive, CLOSE\r\n", false),
        ("1.1", "connection: x\r\nconnection: close\r\n", false),
        ("1.0", "", false),
        ("1.0", "connection: Keep-Alive\r\n", true),
        ("1.0", "connection: keep-alive, close\r\n", false),
    ] {
        let bytes = format!("GET / HTTP/{version}\r\nhost: a\r\n{connection}\r\n");
        assert_eq!(request(bytes.as_bytes()).unwrap().keep_alive(), expected, "{version} {connection}");
    }
}

#[test]
fn fields_keep_their_order_and_case_and_lose_outer_whitespace() {
    let bytes = b"GET / HTTP/1.1\r\nHost:a\r\nX-One:\t 1 \t\r\nx-two:\r\nX-Three:  \r\nCookie: a=b c\r\n\r\n";
    let head = request(bytes).unwrap();
    let fields: Vec<_> = head.fields(bytes).map(|field| (field.name, field.value, field.known)).collect();
    let expected: [(&[u8], &[u8], KnownHeader); 5] = [
        (b"Host", b"a", KnownHeader::Host),
        (b"X-One", b"1", KnownHeader::Other),
        (b"x-two", b"", KnownHeader::Other),
        (b"X-Three", b"", KnownHeader::Other),
        (b"Cookie", b"a=b c", KnownHeader::Cookie),
    ];
    assert_eq!(fields, expected);
    assert_eq!(head.value_by_name(b"x-ONE", bytes), Some(&b"1"[..]));
    assert_eq!(head.value(KnownHeader::Cookie, bytes), Some(&b"a=b c"[..]));
    assert_eq!(head.value(KnownHeader::UserAgent, bytes), None);
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-5.3
//= type=test
//# a recipient MAY combine multiple field lines within a field section that
//# have the same field name into one field line
#[test]
fn a_field_on_several_lines_is_one_value() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nx-user: 1\r\nCookie: a=1\r\nX-User:\r\ncookie: b=2\r\nx-USER: 3, 4\r\n\r\n";
    let head = request(bytes).unwrap();
    let combined =
        |name: &str| head.combined(name.as_bytes(), bytes).map(|value| value.escape_ascii().to_string());
    assert_eq!(combined("x-user").as_deref(), Some("1, , 3, 4"));
    assert_eq!(combined("cookie").as_deref(), Some("a=1; b=2"));
    assert_eq!(combined("host").as_deref(), Some("a"));
    assert_eq!(combined("x-other"), None);
}

#[test]
fn a19_a_pipelined_request_is_left_for_the_next_parse() {
    let bytes = b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: b\r\n\r\nGARBAGE\n";
    let mut head = request(bytes).unwrap();
    assert_eq!(head.path(bytes), b"/1");
    let rest = &bytes[head.head_bytes()..];
    head.clear();
    assert!(matches!(parse_request(rest, &Limits::default(), &mut head), Ok(Progress::Complete { .. })));
    assert_eq!((head.path(rest), head.host(rest)), (&b"/2"[..], Some(&b"b"[..])));
    let rest = &rest[head.head_bytes()..];
    head.clear();
    assert_eq!(parse_request(rest, &Limits::default(), &mut head), Err(Violation::MethodSyntax));
}

#[test]
fn a_head_sent_byte_by_byte_costs_time_in_proportion_to_its_length() {
    // Quadratic work would be 2 * 10^9 byte steps here, many seconds; linear work is a few milliseconds.
    let limits = Limits::default();
    let mut bytes = b"GET /".to_vec();
    bytes.resize(8000, b'a');
    bytes.extend_from_slice(b" HTTP/1.1\r\nhost: a\r\n");
    bytes.resize(bytes.len() + 30000, b'n');
    bytes.push(b':');
    bytes.resize(bytes.len() + 30000, b'v');
    bytes.extend_from_slice(b"\r\n\r\n");
    let mut head = RequestHead::new();
    for end in 0..bytes.len() {
        assert_eq!(parse_request(&bytes[..end], &limits, &mut head), Ok(Progress::Partial));
    }
    assert_eq!(parse_request(&bytes, &limits, &mut head), Ok(Progress::Complete { head_bytes: bytes.len() }));
}
