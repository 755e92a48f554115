//! Every version in front with every version behind, with and without TLS: nobody can tell which it was but
//! by what he speaks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use weir_tests::dialogue::{
    After, Authority, Backend, PATIENCE, Weir, fingerprint, free_address, pattern, until,
};
use weir_tests::versions::{Answer, Behind, Client, Front, Part, Turns, VersionedBackend, run};

/// More than all windows and buffers on the way together.
const LARGE_BYTES: usize = 3 << 20;

/// Weir with a backend of each kind, each behind a listener with TLS and one without.
struct Matrix {
    authority: Authority,
    weir: Weir,
    _backends: Vec<VersionedBackend>,
}

impl Matrix {
    fn new() -> Matrix {
        Matrix::with("")
    }

    /// With this line in each listener.
    fn with(line: &str) -> Matrix {
        let authority = Authority::new().signs("shop", &["shop.example"]).signs("app", &["app.internal"]);
        let backends =
            Behind::ALL.map(|behind| VersionedBackend::start(free_address(), behind, &authority, "app"));
        let mut config = "[log]\naccess = \"@dir/access.log\"\n".to_owned();
        for behind in Behind::ALL {
            config += &listeners_and_pool(behind).replace("http = [", &format!("{line}\nhttp = ["));
        }
        let mut setup = authority.setup(&config);
        for (behind, backend) in Behind::ALL.iter().zip(&backends) {
            setup = setup.with(behind.word(), backend.address());
        }
        Matrix { authority, weir: setup.start(), _backends: backends.into() }
    }

    async fn connect(&self, front: Front, behind: Behind) -> Client {
        connect(&self.weir, &self.authority, front, behind).await
    }

    /// Runs `test` on a connection of each kind to each kind of backend.
    async fn each(&self, test: impl AsyncFn(&str, &mut Client)) {
        for front in Front::ALL {
            for behind in Behind::ALL {
                let cell = format!("{front:?} before {behind:?}");
                println!("{cell}");
                let mut client = self.connect(front, behind).await;
                let checked = async {
                    let hello = ask(&cell, &mut client, "GET", "/hello", &[], vec![]).await;
                    assert_eq!(hello.fields["x-behind"], behind.name(), "{cell}");
                    test(&cell, &mut client).await;
                };
                let in_time = tokio::time::timeout(PATIENCE, checked).await;
                assert!(in_time.is_ok(), "{cell}: nothing in {PATIENCE:?}\n{}", self.weir.story());
            }
        }
    }
}

async fn connect(weir: &Weir, authority: &Authority, front: Front, behind: Behind) -> Client {
    let address = weir.address(&listener(front, behind));
    Client::connect(front, authority, address, "shop.example").await.expect("a connection")
}

/// The name of the listener for one kind of client and one of backend.
fn listener(front: Front, behind: Behind) -> String {
    let kind = if front.is_tls() { "secure" } else { "plain" };
    format!("{kind}_{}", behind.word())
}

fn listeners_and_pool(behind: Behind) -> String {
    let word = behind.word();
    let protocol = behind.protocol();
    let tls =
        if behind.is_tls() { r#"tls = { ca = "@dir/ca.pem", server_name = "app.internal" }"# } else { "" };
    format!(
        r#"
        [listener.plain_{word}]
        bind = "@plain_{word}"
        http = ["h1", "h2"]
        pool = "{word}"
        [listener.secure_{word}]
        bind = "@secure_{word}"
        http = ["h1", "h2", "h3"]
        pool = "{word}"
        tls = {{ certificates = [{{ cert = "@dir/shop.pem", key = "@dir/shop.key" }}] }}
        [pool.{word}]
        backends = ["@{word}"]
        protocol = "{protocol}"
        health = "off"
        {tls}
        "#
    )
}

async fn ask(
    cell: &str,
    client: &mut Client,
    method: &str,
    path: &str,
    fields: &[(&'static str, &str)],
    parts: Vec<Part>,
) -> Answer {
    match client.ask(method, path, fields, parts).await {
        Ok(answer) => answer,
        Err(failed) => panic!("{cell}: {method} {path}: {failed:?}"),
    }
}

/// `content` in pieces of a size that fits no frame.
fn pieces(content: &[u8]) -> Vec<Part> {
    content.chunks(50_021).map(|piece| Part::Content(Bytes::copy_from_slice(piece))).collect()
}

fn in_each_cell(test: impl AsyncFn(&str, &mut Client)) {
    let matrix = Matrix::new();
    run(Duration::from_secs(100), matrix.each(test));
}

#[test]
fn answers_come_in_the_version_that_was_asked_in() {
    let matrix = Matrix::new();
    run(Duration::from_secs(60), async {
        for front in Front::ALL {
            for behind in Behind::ALL {
                let cell = format!("{front:?} before {behind:?}");
                let mut client = matrix.connect(front, behind).await;
                let path = format!("/{front:?}/{behind:?}");
                let answer = ask(&cell, &mut client, "GET", &path, &[], vec![]).await;
                assert_eq!((answer.status.as_u16(), &answer.content[..]), (200, &b"hello"[..]), "{cell}");
                assert_eq!(answer.fields["content-length"], "5", "{cell}");
                assert_eq!(answer.fields["x-behind"], behind.name(), "{cell}");
            }
        }
    });
    let lines = matrix.weir.lines_of("access.log", Front::ALL.len() * Behind::ALL.len());
    for front in Front::ALL {
        for behind in Behind::ALL {
            let path = format!("\"/{front:?}/{behind:?}\"");
            let line = lines.iter().find(|line| line.contains(&path)).expect("logged");
            assert!(line.contains(&format!("\"protocol\":\"{}\"", front.version())), "{line}");
        }
    }
}

/// RFC 9113 §8.3.1, RFC 9114 §4.3.1: `:scheme` is that of the connection that the request is sent on,
/// whatever the client's is.
#[test]
fn a_backend_of_http_2_or_3_is_told_the_scheme_of_its_own_connection() {
    let matrix = Matrix::new();
    run(Duration::from_secs(60), async {
        for front in Front::ALL {
            for (behind, scheme) in
                [(Behind::Http2, "http"), (Behind::Http2Tls, "https"), (Behind::Http3, "https")]
            {
                let cell = format!("{front:?} before {behind:?}");
                let mut client = matrix.connect(front, behind).await;
                let answer = ask(&cell, &mut client, "GET", "/", &[], vec![]).await;
                assert_eq!(answer.fields["x-scheme"], scheme, "{cell}");
            }
        }
    });
}

#[test]
fn a_body_larger_than_every_window_goes_to_the_backend_whole() {
    let content = pattern(4, LARGE_BYTES);
    let expected = format!("{LARGE_BYTES} {:016x}", fingerprint(&content));
    let length = LARGE_BYTES.to_string();
    in_each_cell(async |cell, client| {
        for fields in [&[("content-length", length.as_str())][..], &[]] {
            let answer = ask(cell, client, "POST", "/digest", fields, pieces(&content)).await;
            assert_eq!(String::from_utf8_lossy(&answer.content), expected, "{cell} {fields:?}");
        }
    });
}

#[test]
fn a_body_larger_than_every_window_comes_to_the_client_whole() {
    let expected = pattern(1, LARGE_BYTES);
    let path = format!("/bytes/{LARGE_BYTES}");
    in_each_cell(async |cell, client| {
        let answer = ask(cell, client, "GET", &path, &[], vec![]).await;
        assert_eq!(answer.fields["content-length"], LARGE_BYTES.to_string(), "{cell}");
        assert!(answer.content == expected, "{cell}: {} bytes, changed", answer.content.len());
    });
}

#[test]
fn a_body_larger_than_every_window_goes_and_comes_back_at_once() {
    let content = pattern(5, LARGE_BYTES);
    in_each_cell(async |cell, client| {
        let answer = ask(cell, client, "POST", "/echo", &[], pieces(&content)).await;
        assert!(answer.content == content, "{cell}: {} bytes, changed", answer.content.len());
    });
}

#[test]
fn an_answer_to_head_has_a_length_and_no_content_and_the_connection_goes_on() {
    in_each_cell(async |cell, client| {
        for _ in 0..2 {
            let answer = ask(cell, client, "HEAD", "/bytes/70000", &[], vec![]).await;
            assert_eq!((answer.status.as_u16(), answer.content.len()), (200, 0), "{cell}");
            assert_eq!(answer.fields["content-length"], "70000", "{cell}");
            let answer = ask(cell, client, "GET", "/bytes/70000", &[], vec![]).await;
            assert_eq!(answer.content.len(), 70_000, "{cell}");
        }
    });
}

#[test]
fn trailers_pass_in_both_directions() {
    in_each_cell(async |cell, client| {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("42"));
        let parts = vec![Part::Content(Bytes::from_static(b"body")), Part::Trailers(trailers)];
        let fields = [("te", "trailers"), ("trailer", "x-sum")];
        let answer = ask(cell, client, "POST", "/echo", &fields, parts).await;
        assert_eq!(&answer.content[..], b"body", "{cell}");
        assert_eq!(answer.trailers.get("x-sum").map(HeaderValue::as_bytes), Some(&b"42"[..]), "{cell}");
    });
}

#[test]
fn an_answer_of_unknown_length_ends_where_it_ends() {
    in_each_cell(async |cell, client| {
        let answer = ask(cell, client, "GET", "/unknown", &[], vec![]).await;
        assert_eq!(String::from_utf8_lossy(&answer.content), "one two three", "{cell}");
        assert!(!answer.fields.contains_key("content-length"), "{cell}: {:?}", answer.fields);
    });
}

#[test]
fn an_answer_that_comes_before_the_request_has_ended_reaches_the_client() {
    in_each_cell(async |cell, client| {
        // The rest of the request is never sent before the whole answer is there.
        let parts =
            vec![Part::Content(Bytes::from_static(b"the beginning")), Part::Until("not for you".len())];
        let answer = ask(cell, client, "POST", "/early", &[], parts).await;
        assert_eq!((answer.status.as_u16(), &answer.content[..]), (403, &b"not for you"[..]), "{cell}");
    });
}

#[test]
fn an_answer_that_comes_while_a_large_request_is_sent_reaches_the_client() {
    let content = pattern(6, LARGE_BYTES);
    in_each_cell(async |cell, client| {
        let answer = ask(cell, client, "POST", "/early", &[], pieces(&content)).await;
        assert_eq!((answer.status.as_u16(), &answer.content[..]), (403, &b"not for you"[..]), "{cell}");
    });
}

#[test]
fn question_and_answer_may_take_turns_within_one_exchange() {
    let parts = (1..=20)
        .flat_map(|turn| [Part::Content(Bytes::from(vec![turn; 100])), Part::Until(usize::from(turn) * 100)]);
    let parts: Vec<Part> = parts.collect();
    in_each_cell(async |cell, client| {
        let answer = ask(cell, client, "POST", "/echo", &[], parts.clone()).await;
        assert_eq!(answer.content.len(), 2_000, "{cell}");
    });
}

/// As in remote calls that stream both ways: a word now and then, and each is answered.
#[test]
fn a_conversation_of_few_words_outlives_the_times_for_heads_and_idleness_and_the_rate_of_uploads() {
    const WORDS: usize = 16;
    let matrix = Matrix::with(r#"timeout = { header = "1s", client_idle = "1s", client_body = "5s" }"#);
    let word = |count| {
        [Part::Content(Bytes::from_static(b".")), Part::Until(count), Part::Pause(Duration::from_millis(500))]
    };
    let parts: Vec<Part> = (1..=WORDS).flat_map(word).collect();
    run(PATIENCE * 4, async {
        let mut conversations = tokio::task::JoinSet::new();
        for front in Front::ALL {
            for behind in Behind::ALL {
                let mut client = matrix.connect(front, behind).await;
                let parts = parts.clone();
                conversations
                    .spawn(async move { (front, behind, client.ask("POST", "/echo", &[], parts).await) });
            }
        }
        for (front, behind, answer) in conversations.join_all().await {
            let count = answer.as_ref().map(|answer| answer.content.len());
            assert_eq!(count.ok(), Some(WORDS), "{front:?} before {behind:?}: {answer:?}");
        }
    });
}

/// Each message is in frames of its own, and those of many streams share packets.
#[test]
fn many_conversations_of_small_messages_last_over_one_connection() {
    const STREAMS: usize = 40;
    // Twenty thousand messages each way; what took them for a flood closed the connection within a second.
    const TURNS: usize = 500;
    let matrix = Matrix::new();
    for front in [Front::Http2, Front::Http2Tls, Front::Http3] {
        let turns: Vec<_> = (0..STREAMS).map(|_| Arc::new(Turns::with_pause(Duration::ZERO))).collect();
        run(PATIENCE * 3, async {
            let client = matrix.connect(front, Behind::Http1).await;
            let mut conversations = tokio::task::JoinSet::new();
            for turns in &turns {
                let (mut client, turns) = (client.share().expect("many at once"), turns.clone());
                conversations
                    .spawn(async move { client.ask("POST", "/echo", &[], vec![Part::Turns(turns)]).await });
            }
            while turns.iter().any(|turns| turns.count() < TURNS) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            turns.iter().for_each(|turns| turns.stop());
            for answer in conversations.join_all().await {
                assert!(answer.is_ok(), "{front:?}: {answer:?}");
            }
        });
        println!("{front:?}: {} turns", turns.iter().map(|turns| turns.count()).sum::<usize>());
    }
}

/// A stream whose next event is far off belongs to nobody any more when its client has gone.
#[test]
fn who_gives_up_a_silent_answer_takes_the_backend_off_it() {
    let backend = Backend::serving(|_, wire| {
        wire.sends("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nevent\r\n");
        let begun = Instant::now();
        while !wire.has_ended() && begun.elapsed() < PATIENCE * 4 {
            std::thread::sleep(Duration::from_millis(10));
        }
        After::Close
    });
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let behind = Behind::Http1;
    let config = listeners_and_pool(behind);
    let weir = authority.setup(&config).with(behind.word(), backend.address()).start();
    run(PATIENCE * 2, async {
        for front in [Front::Http2, Front::Http2Tls, Front::Http3] {
            let mut client = connect(&weir, &authority, front, behind).await;
            let answer = client.ask("GET", "/events", &[], vec![]);
            let answer = tokio::time::timeout(Duration::from_millis(500), answer).await;
            assert!(answer.is_err(), "{front:?}: the answer has no end");
            println!("{front:?} has given it up");
            while backend.busy() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    assert_eq!(backend.served(), 3);
    // HTTP/1.1 has nothing but the connection to give up.
    let mut client = weir.client(&listener(Front::Http1, behind));
    client.sends("GET /events HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_head().status, 200);
    client.receives_exactly("5\r\nevent\r\n");
    client.resets();
    until("the backend is let go", || (backend.busy() == 0).then_some(()));
}
