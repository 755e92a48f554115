//! A request whose body is waited for goes where it would go once that is here, not where it would have gone
//! when it came (threat D43).

use weir_tests::dialogue::http2::{Http2, frame, headers, kind};
use weir_tests::dialogue::{After, Backend, Request, ScriptedBackend, Setup, Weir, Wire};

/// Says which it is, and how much came.
fn named(name: &'static str) -> Backend {
    Backend::serving(move |request, wire| {
        wire.answers(200, &[], format!("{name} {}", request.body.len()));
        After::Keep
    })
}

/// A listener before `app`, whose requests wait to be whole, or to be looked at.
fn config(of_listener: &str, of_pool: &str) -> String {
    format!(
        r#"
        [runtime]
        workers = 1
        buffer_directory = "@files"
        [listener.web]
        bind = "@web"
        pool = "app"
        set_request_header = {{ x-listener = "first" }}
        {of_listener}
        [pool.app]
        backends = ["@one", "@two"]
        {of_pool}
        "#
    )
}

const BUFFERED: &str = "buffer = true\nhealth = \"off\"\nset_request_header = { x-pool = \"app\" }";
const SORRY: &str = "[pool.sorry]\nbackends = [\"@sorry\"]\nhealth = \"off\"\n";

fn before(config: &str, backends: [(&str, String); 3]) -> Weir {
    let setup = Setup::of(config).with("files", std::env::temp_dir().display());
    backends.into_iter().fold(setup, |setup, (name, address)| setup.with(name, address)).start()
}

/// An upload that Weir has the head of, and `front` of what comes behind it.
fn begun(weir: &Weir, framing: &str, front: &str) -> Wire {
    let mut client = weir.client("web");
    let fields = format!("host: a\r\nexpect: 100-continue\r\ncontent-type: text/plain\r\n{framing}");
    client.sends(format!("POST /up HTTP/1.1\r\n{fields}\r\n\r\n"));
    client.receives_until("100 Continue\r\n\r\n");
    client.sends(front);
    client
}

const LENGTH: &str = "content-length: 10";
const CHUNKED: &str = "transfer-encoding: chunked\r\ntrailer: x-sum, x-other";
const IN_CHUNKS: [&str; 2] =
    ["5\r\nhello\r\n2\r\n w", "\r\n5\r\norld!\r\n0\r\nx-sum: 9\r\nx-other: 8\r\n\r\n"];

fn ends(mut client: Wire, rest: &str) -> String {
    client.sends(rest);
    client.receives_status(200).text()
}

#[test]
fn what_was_held_over_a_reload_or_a_removal_goes_to_a_backend_of_now() {
    let [one, two, three] = ["one", "two", "three"].map(named);
    let config = config("", BUFFERED);
    let addresses = [one.address(), two.address(), three.address()].map(|address| address.to_string());
    let [of_one, of_two, of_three] = addresses.clone();
    let mut weir = before(&config, [("one", of_one), ("two", of_two), ("three", of_three)]);
    let held: Vec<Wire> = (0..4).map(|_| begun(&weir, LENGTH, "01234")).collect();
    weir.command(&["remove", "app", &addresses[0]]).succeeded();
    for client in held {
        assert_eq!(ends(client, "56789"), "two 10");
    }
    let held: Vec<Wire> = (0..4).map(|_| begun(&weir, LENGTH, "01234")).collect();
    weir.reloads(
        &config
            .replace("\"@one\", \"@two\"", "\"@three\"")
            .replace("x-pool = \"app\"", "x-pool = \"another\", x-more = \"$host\""),
    );
    for client in held {
        assert_eq!(ends(client, "56789"), "three 10");
    }
    assert_eq!((one.served(), two.served()), (0, 4));
    // What its pool says of header fields now holds as well, beside what its listener says.
    let fields = &three.requests()[0].fields;
    let of = |name: &str| fields.all(name);
    assert_eq!((of("x-pool"), of("x-more"), of("x-listener")), (vec!["another"], vec!["a"], vec!["first"]));
}

#[test]
fn a_request_whose_listener_a_reload_changed_keeps_the_rules_that_it_came_under() {
    let [one, two, three] = ["one", "two", "three"].map(named);
    let config = config("", BUFFERED);
    let address = |backend: &Backend| backend.address().to_string();
    let backends = [("one", address(&one)), ("two", address(&two)), ("three", address(&three))];
    let mut weir = before(&config, backends);
    let held = begun(&weir, LENGTH, "01234");
    let other = format!("[pool.aaa]\nbackends = [\"@one\"]\n{}", config.replace("first", "second"));
    weir.reloads(&other.replace("\"@one\", \"@two\"", "\"@three\""));
    assert_eq!(ends(held, "56789"), "three 10");
    let fields = &three.requests()[0].fields;
    assert_eq!((fields.one("x-listener"), fields.one("x-pool")), (Some("first"), Some("app")));
}

/// Held with `of_pool`, and the whole pool taken out meanwhile.
fn falls_back(of_pool: &str, sorry: &str, asked: impl FnOnce(&Weir) -> Wire, rest: &str) -> Request {
    let [one, two] = ["one", "two"].map(named);
    let fallback = Backend::serving(|_, wire| {
        wire.answers(200, &[], "sorry");
        After::Keep
    });
    let config = config("", &format!("fallback_pool = \"sorry\"\n{of_pool}")) + SORRY + sorry;
    let address = |backend: &Backend| backend.address().to_string();
    let weir =
        before(&config, [("one", address(&one)), ("two", address(&two)), ("sorry", address(&fallback))]);
    let mut held = asked(&weir);
    for backend in [&one, &two] {
        weir.command(&["drain", "app", &address(backend)]).succeeded();
    }
    held.sends(rest);
    let answer = held.receives_status(200);
    assert_eq!(answer.text(), "sorry");
    assert_eq!(answer.fields.one("set-cookie").is_some(), sorry.contains("sticky"), "{answer:?}");
    assert_eq!(answer.fields.one("x-said"), sorry.contains("x-said").then_some("sorry"), "{answer:?}");
    assert_eq!(weir.metric("weir_fallbacks_total", &[("pool", "app")]), 1.0);
    assert_eq!(one.served() + two.served(), 0);
    fallback.requests().remove(0)
}

const OF_SORRY: &str = r#"
set_request_header = { x-sorry = "yes" }
set_response_header = { x-said = "sorry" }
remove_request_header = "x-other"
sticky = { cookie = "lb" }
"#;

#[test]
fn what_was_held_goes_to_the_fallback_as_that_has_it_where_no_backend_is_left() {
    let asked = |weir: &Weir| begun(weir, LENGTH, "01234");
    let request = falls_back(BUFFERED, OF_SORRY, asked, "56789");
    assert_eq!(request.body, b"0123456789");
    assert_eq!((request.fields.one("x-sorry"), request.fields.one("x-pool")), (Some("yes"), None));
    assert_eq!(request.fields.all("x-listener"), ["first"]);
    // In chunks, of which the trailers are held, too.
    let asked = |weir: &Weir| begun(weir, CHUNKED, IN_CHUNKS[0]);
    let request = falls_back(BUFFERED, OF_SORRY, asked, IN_CHUNKS[1]);
    assert_eq!((request.body.as_slice(), request.fields.one("x-sorry")), (&b"hello world!"[..], Some("yes")));
    assert_eq!((request.trailers.one("x-sum"), request.trailers.one("x-other")), (Some("9"), None));
    // From a pool of HTTP/2, for which nothing is framed.
    let of_pool = format!("{BUFFERED}\nprotocol = \"h2\"");
    let asked = |weir: &Weir| begun(weir, CHUNKED, IN_CHUNKS[0]);
    assert_eq!(falls_back(&of_pool, "", asked, IN_CHUNKS[1]).body, b"hello world!");
    // What is longer than is held goes on as it comes, behind that.
    let of_pool = BUFFERED.replace("true", "{ requests = \"4KiB\" }");
    let long = "x".repeat(10_000);
    let asked = |weir: &Weir| begun(weir, "content-length: 10010", "01234");
    assert_eq!(falls_back(&of_pool, "", asked, &format!("56789{long}")).body.len(), 10_010);
    // In a file.
    let of_pool = BUFFERED.replace("true", "{ requests = \"4KiB\", requests_file = \"1MiB\" }");
    let asked = |weir: &Weir| begun(weir, "content-length: 10010", "01234");
    assert_eq!(falls_back(&of_pool, "", asked, &format!("56789{long}")).body.len(), 10_010);
    let asked = |weir: &Weir| begun(weir, CHUNKED, IN_CHUNKS[0]);
    let rest = format!("\r\n5\r\norld!\r\n{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    assert_eq!(falls_back(&of_pool, "", asked, &rest).body.len(), 10_012);
}

#[test]
fn what_was_held_in_chunks_is_framed_anew_for_a_fallback_of_http_2() {
    let [one, two] = ["one", "two"].map(named);
    let fallback = ScriptedBackend::start();
    let sorry = format!("{SORRY}protocol = \"h2\"\n");
    let config = config("", &format!("fallback_pool = \"sorry\"\n{BUFFERED}")) + &sorry;
    let address = |backend: &Backend| backend.address().to_string();
    let backends =
        [("one", address(&one)), ("two", address(&two)), ("sorry", fallback.address().to_string())];
    let weir = before(&config, backends);
    let mut held = begun(&weir, CHUNKED, IN_CHUNKS[0]);
    for backend in [&one, &two] {
        weir.command(&["drain", "app", &address(backend)]).succeeded();
    }
    held.sends(IN_CHUNKS[1]);
    let mut server = Http2::server(fallback.accepts(), b"");
    let stream = server.receives_request();
    let mut content = Vec::new();
    while content.len() < 12 {
        content.extend_from_slice(&server.receives(kind::DATA, stream).payload);
    }
    assert_eq!(content, b"hello world!");
    let trailers = server.receives(kind::HEADERS, stream);
    assert_eq!(trailers.flags & 1, 1, "the end of the stream");
    server
        .sends([headers(stream, &[(":status", "200")], false), frame(kind::DATA, 1, stream, b"ok")].concat());
    assert_eq!(held.receives_status(200).text(), "ok");
}

#[test]
fn what_was_held_to_be_looked_at_goes_to_a_backend_of_now() {
    let [one, two, three] = ["one", "two", "three"].map(named);
    let config = config("sqli = \"block\"", "health = \"off\"");
    let address = |backend: &Backend| backend.address().to_string();
    let backends = [("one", address(&one)), ("two", address(&two)), ("three", address(&three))];
    let mut weir = before(&config, backends);
    let held = begun(&weir, LENGTH, "01234");
    weir.reloads(&config.replace("\"@one\", \"@two\"", "\"@three\""));
    assert_eq!(ends(held, "56789"), "three 10");
}

#[test]
fn a_request_that_was_asked_about_for_long_goes_to_a_backend_of_now() {
    let (auth, [one, two]) = (ScriptedBackend::start(), ["one", "two"].map(named));
    let of_listener = "auth = { forward = { pool = \"auth\", timeout = \"20s\" } }";
    let config =
        config(of_listener, "health = \"off\"") + "[pool.auth]\nbackends = [\"@auth\"]\nhealth = \"off\"\n";
    let config = config.replace("\"@one\", \"@two\"", "\"@one\"");
    let address = |backend: &Backend| backend.address().to_string();
    let backends = [("one", address(&one)), ("two", address(&two)), ("auth", auth.address().to_string())];
    let mut weir = before(&config, backends);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut service = auth.accepts();
    service.receives_request();
    weir.reloads(&config.replace("\"@one\"", "\"@two\""));
    service.answers(200, &[], "");
    assert_eq!(client.receives_status(200).text(), "two 0");
    assert_eq!(one.served(), 0);
}
