//! What comes in pieces leaves in pieces, and one large body does not hold up the others.

use super::*;

use std::time::{Duration, Instant};

use weir_tests::dialogue::ScriptedBackend;

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

#[test]
fn one_large_body_does_not_hold_up_the_others() {
    let backend = site();
    let weir = Setup::of(CONFIG_OF_ONE_WORKER).with("app", backend.address()).start();
    holds_nobody_up(&weir, "/page/20000000");
}

/// Asks for small pages while one of `path` is compressed.
pub fn holds_nobody_up(weir: &Weir, path: &str) {
    let mut large = weir.client("web");
    large.sends(format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\naccept-encoding: gzip\r\n\r\n"));
    large.receives_until("\r\n\r\n");
    let reading = std::thread::spawn(move || large.receives_until("0\r\n\r\n").len());
    let mut small = weir.client("web");
    let mut waits: Vec<Duration> = Vec::new();
    while !reading.is_finished() {
        // Spread over the time it takes: who asks at once again would ask a hundred times in between two
        // turns.
        std::thread::sleep(Duration::from_millis(2));
        let begun = Instant::now();
        small.sends("GET /page/200 HTTP/1.1\r\nhost: a\r\n\r\n");
        small.receives_status(200);
        waits.push(begun.elapsed());
    }
    assert!(reading.join().unwrap() > 500_000);
    assert!(waits.len() > 5, "only {} answers meanwhile", waits.len());
    let (longest, count) = (waits.iter().max(), waits.len());
    // A task that only wakes itself gets 61 turns before the runtime looks who else is there.
    let held_up: Duration = waits.iter().filter(|wait| **wait > Duration::from_millis(60)).sum();
    println!("{count} small answers meanwhile, longest {longest:?}, held up for {held_up:?}");
    assert!(held_up < Duration::from_millis(250), "{held_up:?}, longest {longest:?} of {count}");
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
