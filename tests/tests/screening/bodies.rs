//! Bodies that the screen for SQL injection and the application could read differently (threat D15).

use weir_tests::dialogue::{Backend, Response, Weir};

use super::{rejected, with_route};

const ATTACK: &str = "1' union select name,password from users-- ";
const FORM_ATTACK: &str = "id=1%27+union+select+name%2Cpassword+from+users--+";

/// A POST on a connection of its own; the body's length is added.
fn post(weir: &Weir, fields: &str, body: &[u8]) -> Response {
    let mut client = weir.client("web");
    let head = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}content-length: {}\r\n\r\n",
        body.len()
    );
    client.sends([head.as_bytes(), body].concat());
    client.receives_response_to("POST")
}

fn multipart(boundary: &str) -> String {
    format!("content-type: multipart/form-data; boundary={boundary}\r\n")
}

/// One part of a form whose boundary is `B`, and the end of the form.
fn only_part(parameters: &str, content: &str) -> String {
    format!("--B\r\ncontent-disposition: form-data; {parameters}\r\n\r\n{content}\r\n--B--\r\n")
}

/// Sends each body to a route that blocks: 403, and the backend sees nothing of it.
fn is_refused(cases: &[(&str, String, &[u8])]) {
    let backend = Backend::saying("hello");
    let weir = with_route(&backend, r#"sqli = "block""#).start();
    for (why, fields, body) in cases {
        assert_eq!(post(&weir, fields, body).status, 403, "{why}");
    }
    assert!(backend.requests().is_empty());
    assert_eq!(rejected(&weir, "sqli"), cases.len() as f64);
}

/// Sends each body to a route that blocks: 200.
fn passes(cases: &[(&str, String, &[u8])]) {
    let backend = Backend::saying("hello");
    let weir = with_route(&backend, r#"sqli = "block""#).start();
    for (why, fields, body) in cases {
        let answer = post(&weir, fields, body);
        assert_eq!((answer.status, answer.text()), (200, "hello".to_owned()), "{why}");
    }
    assert_eq!(backend.requests().len(), cases.len());
}

#[test]
fn d15_a_boundary_in_the_middle_of_a_line_hides_nothing_behind_it() {
    let hidden = only_part("name=\"id\"", &format!("x--B--{ATTACK}"));
    is_refused(&[("behind what looks like the end", multipart("B"), hidden.as_bytes())]);
}

#[test]
fn d15_a_boundary_with_a_backslash_is_refused() {
    let hidden = only_part("name=\"id\"", ATTACK);
    is_refused(&[("a quoted pair stands for `B`", multipart("\"\\B\""), hidden.as_bytes())]);
}

#[test]
fn d15_a_field_with_an_empty_file_name_is_read_as_a_field() {
    let hidden = only_part("name=\"id\"; filename=\"\"", ATTACK);
    is_refused(&[("no file has an empty name", multipart("B"), hidden.as_bytes())]);
}

#[test]
fn d15_two_content_types_are_refused() {
    let fields = "content-type: image/png\r\ncontent-type: application/x-www-form-urlencoded\r\n".to_owned();
    is_refused(&[("the second counts for some", fields, FORM_ATTACK.as_bytes())]);
}

#[test]
fn d15_what_a_body_is_called_does_not_keep_it_from_being_read() {
    let json = format!("{{\"id\": \"{ATTACK}\"}}");
    let typed = |value: &str| format!("content-type: {value}\r\n");
    let part = only_part("name=\"id\"", ATTACK);
    is_refused(&[
        ("no type at all", String::new(), FORM_ATTACK.as_bytes()),
        ("no type at all, JSON", String::new(), json.as_bytes()),
        ("text/plain, as browsers send without asking", typed("text/plain"), json.as_bytes()),
        ("another word for JSON", typed("application/x-json"), json.as_bytes()),
        ("a list of types", typed("application/json, text/html"), json.as_bytes()),
        ("another multipart", typed("multipart/mixed; boundary=B"), part.as_bytes()),
        ("no media type", typed("undefined"), FORM_ATTACK.as_bytes()),
    ]);
}

#[test]
fn d15_a_body_that_cannot_be_read_as_its_type_says_is_refused_and_named() {
    let utf16: Vec<u8> =
        format!("{{\"id\": \"{ATTACK}\"}}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let typed = |value: &str| format!("content-type: {value}\r\n");
    let gzip = typed("application/json") + "content-encoding: gzip\r\n";
    let base64 = "--B\r\ncontent-disposition: form-data; name=\"id\"\r\ncontent-transfer-encoding: base64\r\n\r\n\
        MScgdW5pb24gc2VsZWN0IDE=\r\n--B--\r\n";
    let cases: [(&str, String, &[u8]); 6] = [
        ("content-encoding", gzip, b"\x1f\x8b\x08\0\0\0\0\0\0\0"),
        ("charset", typed("application/x-www-form-urlencoded; charset=ibm037"), b"id=1"),
        ("content-type", typed("multipart/form-data; boundary=B; boundary=C"), b"--B--\r\n"),
        ("multipart", multipart("B"), b"--C\r\n\r\n1\r\n--C--\r\n"),
        ("part", multipart("B"), base64.as_bytes()),
        ("json", typed("application/json"), &utf16),
    ];
    let backend = Backend::saying("hello");
    for (word, fields, body) in &cases {
        let weir = with_route(&backend, r#"sqli = "block""#).start();
        assert_eq!(post(&weir, fields, body).status, 403, "{word}");
        let labels = [("listener", "web"), ("verdict", "unreadable")];
        assert_eq!(weir.metric("weir_sqli_requests_total", &labels), 1.0, "{word}");
        assert_eq!(rejected(&weir, "sqli"), 1.0, "{word}");
        let line = weir.lines_of("access.log", 1).remove(0);
        let said = format!(r#""end":"sqli","sqli":"body: unreadable {word}""#);
        assert!(line.contains(&said), "{line}");
    }
    assert!(backend.requests().is_empty());
    let weir = with_route(&backend, r#"sqli = "report""#).start();
    for (word, fields, body) in &cases {
        assert_eq!(post(&weir, fields, body).status, 200, "{word} is reported only");
    }
    let labels = [("listener", "web"), ("verdict", "unreadable")];
    assert_eq!(weir.metric("weir_sqli_requests_total", &labels), 6.0);
    assert!(weir.lines_of("access.log", 6).iter().all(|line| line.contains(r#""sqli":"body: unreadable "#)));
}

/// A browser sends a file input that was left empty so; curl, Python and .NET write the others.
#[test]
fn d15_bodies_of_browsers_and_clients_are_read_and_pass() {
    let browser = "------WebKitFormBoundaryx7\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\n\
        a rug for O'Hara, 1 or 2 m\r\n------WebKitFormBoundaryx7\r\nContent-Disposition: form-data; name=\"pic\"; filename=\"\"\r\n\
        Content-Type: application/octet-stream\r\n\r\n\r\n------WebKitFormBoundaryx7--\r\n";
    let file = "--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"O'Hara's.sql\"\r\n\
        Content-Type: application/sql\r\n\r\nx' union select 1,2--\n\r\n--B--\r\n";
    let dot_net = "--b1-2\r\nContent-Type: text/plain; charset=utf-8\r\n\
        Content-Disposition: form-data; name=f; filename=a.txt; filename*=utf-8''a.txt\r\n\r\nx\r\n--b1-2--\r\n";
    let typed = |value: &str| format!("content-type: {value}\r\n");
    passes(&[
        ("a browser", multipart("----WebKitFormBoundaryx7"), browser.as_bytes()),
        ("a file is not looked at", multipart("B"), file.as_bytes()),
        (".NET", multipart("\"b1-2\""), dot_net.as_bytes()),
        (
            "JSON with a mark",
            typed("application/json;charset=UTF-8"),
            "\u{feff}{\"a\": [1, null]}".as_bytes(),
        ),
        ("lines of JSON", typed("application/x-ndjson"), b"{\"a\": 1}\n{\"a\": 2}\n"),
        ("a form in Latin 1", typed("application/x-www-form-urlencoded; charset=ISO-8859-1"), b"n=Andr\xe9"),
        ("identity", typed("application/json") + "content-encoding: identity\r\n", b"[]"),
        ("an image", typed("image/png") + "content-encoding: gzip\r\n", b"\x89PNG' or 1=1--"),
    ]);
}
