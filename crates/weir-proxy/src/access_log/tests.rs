//! Tests of records as lines of each format, and of lines on their way to a target that is stuck, moves or
//! can't be opened.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use weir_config::{AccessFormat, AccessTarget, Log};

use weir_stats::table::{End, Rejected};

use super::*;

mod own;

fn request<'a>() -> Record<'a> {
    Record {
        time: UNIX_EPOCH + Duration::from_millis(1_795_298_709_123),
        listener: "web",
        route: Some("api"),
        pool: Some("app"),
        backend: Some("10.0.0.1:8080"),
        client: "192.0.2.7:40312".parse().unwrap(),
        backend_protocol: Some(Spoken::Http2),
        protocol: Spoken::Http11,
        method: Some(b"GET"),
        host: Some(b"shop.example"),
        path: Some(b"/api/cart?id=\"1\""),
        status: Some(200),
        bytes_received: 431,
        bytes_sent: 2750,
        head_bytes_sent: 250,
        request_id: Some(b"0f3c"),
        cache: None,
        retries: 1,
        hedge: None,
        timers: Timers {
            client_header: Some(Duration::from_micros(120)),
            queue: Some(Duration::ZERO),
            connect: Some(Duration::from_micros(30_250)),
            backend_header: Some(Duration::from_millis(69)),
            auth: None,
            total: Duration::from_micros(1_109_999),
        },
        end: End::Done,
        would_reject: Reasons::default(),
        sqli: None,
        user: None,
        user_agent: Some(b"curl/8"),
        referer: None,
        tls: None,
        server_name: None,
    }
}

fn relayed<'a>() -> Record<'a> {
    Record {
        route: None,
        backend_protocol: None,
        protocol: Spoken::Tcp,
        method: None,
        host: None,
        path: None,
        status: None,
        head_bytes_sent: 0,
        request_id: None,
        timers: Timers { client_header: None, backend_header: None, ..request().timers },
        end: End::ClientIdle,
        user_agent: None,
        client: "[2001:db8::1]:5".parse().unwrap(),
        ..request()
    }
}

#[test]
fn a_line_says_what_would_have_refused_the_request() {
    let mut would_reject = Reasons::default();
    assert!(would_reject.add(Rejected::RateLimited));
    assert!(!would_reject.add(Rejected::RateLimited));
    let shown = |would_reject| line(AccessFormat::Json, &Record { would_reject, ..request() });
    assert!(shown(would_reject).contains(r#""end":"done","would_reject":"rate_limited","user_agent""#));
    would_reject.add(Rejected::ConcurrencyLimited);
    assert!(shown(would_reject).contains(r#""would_reject":"rate_limited,concurrency_limited","#));
}

fn line(format: AccessFormat, record: &Record<'_>) -> String {
    let mut out = Vec::new();
    Renderer::default().line(&mut out, format, record);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_json_line_carries_every_field_in_seconds_and_bytes() {
    assert_eq!(
        line(AccessFormat::Json, &request()),
        concat!(
            r#"{"time":"2026-11-21T22:05:09.123Z","listener":"web","route":"api","pool":"app","backend":"10.0.0.1:8080","#,
            r#""client":"192.0.2.7:40312","protocol":"HTTP/1.1","method":"GET","host":"shop.example","#,
            r#""path":"/api/cart?id=\"1\"","status":200,"bytes_received":431,"bytes_sent":2750,"request_id":"0f3c","#,
            r#""retries":1,"client_header":0.000120,"queue":0.000000,"connect":0.030250,"backend_header":0.069000,"#,
            r#""total":1.109999,"end":"done","user_agent":"curl/8"}"#,
            "\n"
        )
    );
    assert_eq!(
        line(AccessFormat::Json, &relayed()),
        concat!(
            r#"{"time":"2026-11-21T22:05:09.123Z","listener":"web","pool":"app","backend":"10.0.0.1:8080","#,
            r#""client":"[2001:db8::1]:5","protocol":"TCP","bytes_received":431,"bytes_sent":2750,"retries":1,"#,
            r#""queue":0.000000,"connect":0.030250,"total":1.109999,"end":"client_idle"}"#,
            "\n"
        )
    );
}

#[test]
fn a_combined_line_is_what_apache_and_nginx_write() {
    assert_eq!(
        line(AccessFormat::Combined, &request()),
        "192.0.2.7 - - [21/Nov/2026:22:05:09 +0000] \"GET /api/cart?id=\\x221\\x22 HTTP/1.1\" 200 2500 \"-\" \"curl/8\"\n"
    );
    assert_eq!(
        line(AccessFormat::Combined, &relayed()),
        "2001:db8::1 - - [21/Nov/2026:22:05:09 +0000] \"-\" - 2750 \"-\" \"-\"\n"
    );
}

#[test]
fn a_haproxy_line_begins_with_the_time_of_accepting() {
    assert_eq!(
        line(AccessFormat::Haproxy, &request()),
        "192.0.2.7:40312 [21/Nov/2026:22:05:08.013] web app/10.0.0.1:8080 0/0/30/69/1109 200 2750 - - ---- 0/0/0/0/1 0/0 \
         \"GET /api/cart?id=#221#22 HTTP/1.1\"\n"
    );
    assert_eq!(
        line(AccessFormat::Haproxy, &relayed()),
        "[2001:db8::1]:5 [21/Nov/2026:22:05:08.013] web app/10.0.0.1:8080 0/30/1109 2750 cD 0/0/0/0/1 0/0\n"
    );
}

#[test]
fn a_haproxy_line_names_method_path_and_status_in_every_version_of_http() {
    for (protocol, version) in
        [(Spoken::Http10, "1.0"), (Spoken::Http11, "1.1"), (Spoken::Http2, "2.0"), (Spoken::Http3, "3.0")]
    {
        let line = line(AccessFormat::Haproxy, &Record { protocol, ..request() });
        let expected = format!(
            " 0/0/30/69/1109 200 2750 - - ---- 0/0/0/0/1 0/0 \"GET /api/cart?id=#221#22 HTTP/{version}\"\n"
        );
        assert!(line.ends_with(&expected), "{line}");
    }
}

#[test]
fn a_haproxy_line_has_0_for_a_queue_that_nobody_had_to_stand_in() {
    for (record, expected) in
        [(request(), " app/10.0.0.1:8080 0/0/30/69/1109 "), (relayed(), " app/10.0.0.1:8080 0/30/1109 ")]
    {
        let at_once = Record { timers: Timers { queue: None, ..record.timers }, ..record };
        let line = line(AccessFormat::Haproxy, &at_once);
        assert!(line.contains(expected), "{line}");
    }
    let left_the_line = Record {
        backend: None,
        timers: Timers { queue: None, connect: None, ..relayed().timers },
        ..relayed()
    };
    let line = line(AccessFormat::Haproxy, &left_the_line);
    assert!(line.contains(" app/<NOSRV> -1/-1/1109 "), "{line}");
}

#[test]
fn a_request_that_never_came_about_still_has_its_place_in_every_column() {
    let refused = Record {
        pool: None,
        backend: None,
        method: None,
        path: None,
        status: Some(400),
        end: End::BadRequest,
        timers: Timers { total: Duration::from_millis(3), ..Timers::default() },
        retries: 0,
        ..request()
    };
    assert_eq!(
        line(AccessFormat::Haproxy, &refused),
        "192.0.2.7:40312 [21/Nov/2026:22:05:09.120] web web/<NOSRV> -1/-1/-1/-1/3 400 2750 - - PR-- 0/0/0/0/0 0/0 \"<BADREQ>\"\n"
    );
}

proptest! {
    #[test]
    fn no_record_renders_to_more_than_one_line(
        method in prop::collection::vec(any::<u8>(), 0..12),
        path in prop::collection::vec(any::<u8>(), 0..40),
        host in prop::collection::vec(any::<u8>(), 0..20),
        agent in prop::collection::vec(any::<u8>(), 0..20),
        pool in ".{0,8}",
    ) {
        let record = Record {
            method: Some(&method),
            path: Some(&path),
            host: Some(&host),
            user_agent: Some(&agent),
            referer: Some(&path),
            tls: None,
            server_name: Some(&pool),
            request_id: Some(&agent),
            pool: Some(&pool.replace('\n', "_")),
            ..request()
        };
        for format in [AccessFormat::Json, AccessFormat::Combined, AccessFormat::Haproxy] {
            let mut out = Vec::new();
            Renderer::default().line(&mut out, format, &record);
            prop_assert_eq!(out.iter().position(|&byte| byte == b'\n'), Some(out.len() - 1));
            prop_assert!(out.iter().all(|&byte| byte >= b' ' || byte == b'\n'), "a raw control character");
            prop_assert!(std::str::from_utf8(&out).is_ok());
            if format == AccessFormat::Json {
                prop_assert_eq!(quotes_outside_escapes(&out) % 2, 0);
            }
        }
    }
}

fn quotes_outside_escapes(line: &[u8]) -> usize {
    let mut bytes = line.iter();
    let mut count = 0;
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'"' => count += 1,
            _ => {}
        }
    }
    count
}

/// A file for each test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("weir-access-log-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Scratch(path)
    }

    fn config(&self) -> Log {
        Log { access: AccessTarget::File(self.0.clone()), ..Log::default() }
    }

    fn lines(&self) -> usize {
        std::fs::read_to_string(&self.0).map_or(0, |text| text.lines().count())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn every_line_arrives_and_none_is_dropped_while_the_writer_keeps_up() {
    let scratch = Scratch::new("arrives");
    let log = AccessLog::start(&scratch.config(), &[]).unwrap();
    let worker = log.for_worker();
    let cells = ListenerCells::default();
    for _ in 0..10_000 {
        worker.write(&request(), &cells);
    }
    worker.flush();
    assert!(log.finish(LONG));
    assert_eq!(scratch.lines() as u64 + cells.log_dropped.total(), 10_000);
}

#[test]
fn a_stuck_target_drops_and_counts_lines_but_never_holds_up_the_worker() {
    let scratch = Scratch::new("stuck");
    // Opening a FIFO for reading and writing never blocks; as nobody reads, writing soon does.
    rustix::fs::mknodat(rustix::fs::CWD, &scratch.0, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut reader = std::fs::OpenOptions::new().read(true).write(true).open(&scratch.0).unwrap();
    let log = AccessLog::start(&scratch.config(), &[]).unwrap();
    let worker = log.for_worker();
    let cells = ListenerCells::default();
    for _ in 0..60_000 {
        worker.write(&request(), &cells);
    }
    assert!(cells.log_dropped.total() > 0);
    // Once somebody reads again, what was kept comes out complete.
    let mut first = [0; 8];
    reader.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"{\"time\":");
    let drain =
        std::thread::spawn(move || while reader.read(&mut [0; 65536]).is_ok_and(|count| count > 0) {});
    assert!(log.finish(LONG));
    drop(drain);
}

#[test]
fn after_rotation_lines_go_to_a_new_file() {
    let scratch = Scratch::new("rotate");
    let rotated = Scratch(scratch.0.with_extension("1"));
    let log = AccessLog::start(&scratch.config(), &[]).unwrap();
    let worker = log.for_worker();
    let cells = ListenerCells::default();
    worker.write(&request(), &cells);
    worker.flush();
    assert!(log.finish(LONG));
    std::fs::rename(&scratch.0, &rotated.0).unwrap();
    log.reopen();
    worker.write(&request(), &cells);
    worker.flush();
    assert!(log.finish(LONG));
    assert_eq!((rotated.lines(), scratch.lines()), (1, 1));
}

#[test]
fn a_line_that_was_cut_off_is_ended_when_its_file_is_opened_again() {
    let scratch = Scratch::new("torn");
    std::fs::write(&scratch.0, "half a li").unwrap();
    let log = AccessLog::start(&scratch.config(), &[]).unwrap();
    let worker = log.for_worker();
    let cells = ListenerCells::default();
    let writes = || {
        worker.write(&request(), &cells);
        worker.flush();
        assert!(log.finish(LONG));
        let text = std::fs::read_to_string(&scratch.0).unwrap();
        text.lines().map(|line| line.starts_with("{\"time\":")).collect::<Vec<_>>()
    };
    assert_eq!(writes(), [false, true]);
    std::fs::write(&scratch.0, "half a li").unwrap();
    log.reopen();
    assert_eq!(writes(), [false, true]);
    log.reopen();
    assert_eq!(writes(), [false, true, true]);
}

#[test]
fn a_reload_that_cannot_open_the_new_file_leaves_the_old_one_in_force() {
    let scratch = Scratch::new("keeps");
    let log = AccessLog::start(&scratch.config(), &[]).unwrap();
    let missing = Log { access: AccessTarget::File("/nonexistent/weir.log".into()), ..scratch.config() };
    assert_eq!(log.reconfigure(&missing, &[]).unwrap_err().kind(), io::ErrorKind::NotFound);
    let worker = log.for_worker();
    worker.write(&request(), &ListenerCells::default());
    worker.flush();
    assert!(log.finish(LONG));
    assert_eq!(scratch.lines(), 1);
    log.reconfigure(&Log { access: AccessTarget::Off, ..scratch.config() }, &[]).unwrap();
    assert!(!worker.enabled());
}

#[tokio::test(flavor = "current_thread")]
async fn a_batch_that_does_not_fill_up_is_written_after_its_time() {
    let scratch = Scratch::new("age");
    let log = AccessLog::start(&scratch.config(), &[]).unwrap();
    let worker = log.for_worker();
    let flushing = worker.clone().run();
    let writing = async {
        worker.write(&request(), &ListenerCells::default());
        tokio::time::sleep(2 * BATCH_AGE).await;
    };
    tokio::select! { () = flushing => {}, () = writing => {} }
    assert!(log.finish(LONG));
    assert_eq!(scratch.lines(), 1);
}
