//! What comes in pieces leaves in pieces, and one large body does not hold up the others.

use super::*;

use std::time::Duration;

use weir_tests::dialogue::{ScriptedBackend, processor_time_of};

#[test]
fn an_event_reaches_its_reader_before_the_next_one_is_there() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(CONFIG_OF_EVENTS).with("app", backend.address()).start();
    for coding in CODINGS {
        let mut client = weir.client("web");
        client.sends(format!("GET /events HTTP/1.1\r\nhost: a\r\naccept-encoding: {coding}\r\n\r\n"));
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        let head = client.receives_head();
        assert_eq!(head.fields.one("content-encoding"), Some(coding));
        let mut encoded = Vec::new();
        let mut expected = String::new();
        for number in 0..4 {
            let event = format!("data: event number {number}\n\n");
            wire.sends(format!("{:x}\r\n{event}\r\n", event.len()));
            expected.push_str(&event);
            // One chunk for each event, at once.
            let size = String::from_utf8(client.receives_until("\r\n")).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            encoded.extend(client.receives(size));
            client.receives_exactly("\r\n");
            if coding != "br" {
                assert_eq!(begun(weir.dir(), coding, &encoded), expected, "{coding}");
            }
        }
        wire.sends("0\r\n\r\n");
        let rest = client.receives_until("0\r\n\r\n");
        assert!(!rest.is_empty());
    }
}

const CONFIG_OF_EVENTS: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
compress = { types = "text/event-stream" }

[pool.app]
backends = ["@app"]
keep_alive = { max = 0 }
health = "off"
"#;

/// What can be decoded of content whose end has not come.
pub fn begun(dir: &Path, coding: &str, bytes: &[u8]) -> String {
    let file = dir.join("begun");
    std::fs::write(&file, bytes).expect("write");
    let path = file.display().to_string();
    let program = if coding == "gzip" { "gzip" } else { "zstd" };
    // Both give out what they have, then complain of the missing end.
    run_tool(&tool(program, program), &["-d", "-c", &path], b"", PATIENCE).stdout
}

/// That the answer is not held up is all that this says. Waits for the backend are turns of others too, so it
/// passes without turns of the compression's own; the test of what is kept does not.
#[test]
fn one_large_body_does_not_hold_up_the_others() {
    let backend = site();
    let weir = Setup::of(CONFIG_OF_ONE_WORKER).with("app", backend.address()).start();
    holds_nobody_up(&weir, ["/letters/8000000"; 2]);
}

/// Asks for small pages while the second of `paths` is compressed, after the first, which is as large and
/// says how much work it is.
///
/// How long a small one waits is measured in work that Weir does meanwhile: the time that goes by is that of
/// whatever else the machine has to do.
pub fn holds_nobody_up(weir: &Weir, paths: [&str; 2]) {
    let work = || processor_time_of(weir.pid());
    let before = work();
    assert!(large(weir, paths[0]) > 500_000);
    let whole = work() - before;
    let mut waits: Vec<Duration> = Vec::new();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| large(weir, paths[1]));
        let mut small = weir.client("web");
        while !reading.is_finished() {
            // Spread over the time it takes: who asks at once again would ask a hundred times in between two
            // turns.
            std::thread::sleep(Duration::from_millis(2));
            let before = work();
            small.sends("GET /page/200 HTTP/1.1\r\nhost: a\r\n\r\n");
            small.receives_status(200);
            waits.push(work() - before);
        }
        assert!(reading.join().expect("a body") > 500_000);
    });
    assert!(waits.len() > 5, "only {} answers meanwhile", waits.len());
    let (longest, count) = (waits.iter().max(), waits.len());
    // It is some 120 turns. A task that only wakes itself gets 61 before the runtime looks who else is there.
    let held_up: Duration = waits.iter().filter(|wait| **wait > whole / 16).sum();
    println!("{count} small answers meanwhile, longest {longest:?}, held up for {held_up:?} of {whole:?}");
    assert!(held_up < whole / 4, "{held_up:?} of {whole:?}, longest {longest:?} of {count}");
}

/// How many bytes a large page is, compressed.
fn large(weir: &Weir, path: &str) -> usize {
    let mut client = weir.client("web").with_patience(PATIENCE * 4);
    client.sends(format!(
        "GET {path} HTTP/1.1\r\nhost: shop.example\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n"
    ));
    let answer = client.receives_to_the_end();
    assert!(answer.ends_with(b"0\r\n\r\n"), "it is whole");
    answer.len()
}

const CONFIG_OF_ONE_WORKER: &str = r#"
[runtime]
workers = 1

[listener.web]
bind = "@web"
pool = "app"
compress = { codings = "gzip", level = { gzip = 9 } }

[pool.app]
backends = ["@app"]
health = "off"
"#;
