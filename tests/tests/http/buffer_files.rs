//! Bodies that are longer than memory shall hold wait in files: slow clients hold no backend with these
//! either, nothing of them is left behind, and a disk that is full or lies costs no more than the wait.

mod faults;

use std::path::PathBuf;

use weir_tests::dialogue::http2::{
    Http2, Outcome, code, frame, get, headers, kind, request, reset, window_update,
};
use weir_tests::dialogue::{
    After, Authority, Backend, INNER, PATIENCE, ScriptedBackend, Setup, Signal, Weir, Wire, fingerprint,
    pattern, run_tool, tool, until,
};

const MIB: usize = 1 << 20;
/// Far more than memory may hold, and more than all sockets on the way take.
const BIG: usize = 64 * MIB;

/// A backend that takes one request at a time, behind 64 KiB of memory and this much disk.
const CONFIG: &str = r#"
[runtime]
workers = 1
memory = "64MiB"
buffer_directory = "@files"
buffer_files = "FILES"
memory_share_per_client = 1.0
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
[log]
access = "@dir/access.log"
[pool.app]
backends = [{ address = "@app", max_connections = 1 }]
buffer = { requests = "64KiB", requests_file = "1GiB", responses = "64KiB", responses_file = "1GiB" }
health = { check = "off" }
MORE
"#;

fn config(files: &str, more: &str) -> String {
    CONFIG.replace("FILES", files).replace("MORE", more)
}

fn folder() -> PathBuf {
    std::env::temp_dir()
}

fn start(backend: &Backend, files: &str) -> Weir {
    let setup = Setup::of(&config(files, "")).with("files", folder().display());
    setup.with("app", backend.address()).start()
}

/// Reports how much arrived, its hash, and the trailers. `/big` and `/trailers` get long answers.
fn backend() -> Backend {
    Backend::serving(|request, wire| {
        match request.target.as_str() {
            "/big" => wire.answers(200, &[], pattern(7, BIG)),
            "/trailers" => {
                wire.sends("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n");
                for part in pattern(7, 8 * MIB).chunks(100_000) {
                    wire.sends(format!("{:x}\r\n", part.len()));
                    wire.sends(part);
                    wire.sends("\r\n");
                }
                wire.sends("0\r\nx-sum: 7\r\n\r\n");
            }
            _ => {
                let sum = request.trailers.one("x-sum").unwrap_or_default();
                wire.answers(200, &[], format!("{}{sum}", summed(&request.body)));
            }
        }
        After::Keep
    })
}

fn summed(body: &[u8]) -> String {
    format!("{} {:x}", body.len(), fingerprint(body))
}

/// Weir in front of a backend that answers somebody's request only when it is told to, and both ends of that
/// exchange.
fn occupied(backend: &ScriptedBackend) -> (Weir, Wire, Wire) {
    let setup = Setup::of(&config("4GiB", "")).with("files", folder().display());
    let weir = setup.with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut asked = backend.accepts();
    asked.receives_until("\r\n\r\n");
    (weir, asked, client)
}

fn begins(weir: &Weir, length: usize) -> Wire {
    let mut client = weir.client("web");
    client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"));
    client
}

/// In chunks of this many bytes, followed by a trailer.
fn sends_chunked(weir: &Weir, body: &[u8], part: usize) -> Wire {
    let mut client = weir.client("web");
    client.sends("PUT / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n");
    for part in body.chunks(part) {
        client.sends(format!("{:x}\r\n", part.len()));
        client.sends(part);
        client.sends("\r\n");
    }
    client.sends("0\r\nx-sum: 42\r\n\r\n");
    client
}

fn others_are_served(weir: &Weir) {
    for _ in 0..3 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.receives_response().status, 200);
    }
}

fn counted(weir: &Weir, name: &str) -> f64 {
    weir.metric(name, &[("pool", "app")])
}

fn refused(weir: &Weir, reason: &str) -> f64 {
    weir.metric("weir_buffer_file_refusals_total", &[("reason", reason)])
}

fn nothing_is_left(weir: &Weir) {
    let is_zero = |name: &str| weir.metric(name, &[]) == 0.0;
    let are_zero = || is_zero("weir_buffer_files") && is_zero("weir_buffer_file_bytes");
    until("the files to be gone", || are_zero().then_some(()));
}

/// Descriptors of files in a folder that have been unlinked.
fn files_of(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_ours = |path: &PathBuf| {
        let to = std::fs::read_link(path).unwrap_or_default();
        to.starts_with(folder()) && to.display().to_string().ends_with("(deleted)")
    };
    paths.filter(is_ours).collect()
}

#[test]
fn a_long_upload_is_whole_before_its_backend_hears_of_it_and_memory_stays_flat() {
    let backend = backend();
    let weir = start(&backend, "4GiB");
    others_are_served(&weir);
    let before = weir.usage().resident_bytes;
    let body = pattern(3, BIG);
    let mut slow = begins(&weir, BIG);
    slow.sends(&body[..BIG - 1]);
    weir.reaches("weir_buffer_file_bytes", &[], (BIG - 2 * MIB) as f64);
    others_are_served(&weir);
    assert!(backend.requests().iter().all(|request| request.method == "GET"));
    assert_eq!(weir.metric("weir_buffer_files", &[]), 1.0);
    slow.sends(&body[BIG - 1..]);
    assert_eq!(slow.receives_status(200).text(), summed(&body));
    assert_eq!((counted(&weir, "weir_buffered_requests_total"), backend.connections()), (1.0, 1));
    nothing_is_left(&weir);
    let grown = weir.usage().peak_bytes.saturating_sub(before);
    println!("64 MiB by a file: at most {} KiB more memory", grown >> 10);
    assert!(grown < 8 * MIB as u64, "{grown} bytes");
    let line =
        weir.lines_of("access.log", 7).into_iter().find(|line| line.contains("PUT")).expect("its line");
    let logged: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(logged["bytes_received"].as_u64().map(|bytes| bytes >= BIG as u64), Some(true), "{line}");
}

#[test]
fn uploads_of_each_framing_and_version_are_the_same_behind_the_file() {
    let backend = backend();
    let weir = start(&backend, "4GiB");
    let body = pattern(5, 9 * MIB + 17);
    let url = format!("http://{}/", weir.address("web"));
    for arguments in [
        &["--http2-prior-knowledge"][..],
        &["--http1.1", "--header", "expect: 100-continue"],
        &["--http1.1", "--header", "transfer-encoding: chunked"],
    ] {
        let mut all = vec!["--silent", "--noproxy", "*", "--upload-file", "-"];
        all.extend(arguments);
        all.push(&url);
        let said = run_tool(&tool("curl", "curl"), &all, &body, PATIENCE);
        assert_eq!(said.succeeded(), summed(&body), "{arguments:?}");
    }
    let mut client = sends_chunked(&weir, &body, 70_001);
    client.sends("GET /next HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), format!("{}42", summed(&body)));
    assert_eq!(client.receives_status(200).text(), summed(b""), "what stood behind it");
    assert_eq!(counted(&weir, "weir_buffered_requests_total"), 4.0);
    assert_eq!(weir.metric("weir_buffer_files_made_total", &[]), 4.0);
    nothing_is_left(&weir);
}

/// One request holds 8 of the 12 MiB that memory has for bodies, so that another gets at most 4.
#[test]
fn where_memory_is_short_the_file_begins_earlier() {
    let backend = backend();
    let config = config("4GiB", "").replace("memory = \"64MiB\"", "memory = \"16MiB\"");
    let config = config.replace("requests = \"64KiB\"", "requests = \"8MiB\"");
    let setup = Setup::of(&config).with("files", folder().display());
    let weir = setup.with("app", backend.address()).start();
    let body = pattern(3, 8 * MIB);
    let begins = |_| {
        let mut client = begins(&weir, body.len());
        client.sends(&body[..body.len() - 1]);
        client
    };
    let mut clients: Vec<Wire> = (0..2).map(begins).collect();
    weir.reaches("weir_buffer_file_bytes", &[], MIB as f64);
    assert_eq!(weir.metric("weir_buffer_files", &[]), 1.0);
    assert!(backend.requests().is_empty());
    for client in &mut clients {
        client.sends(&body[body.len() - 1..]);
        assert_eq!(client.receives_status(200).text(), summed(&body));
    }
    assert_eq!(counted(&weir, "weir_buffered_requests_total"), 2.0);
    nothing_is_left(&weir);
}

/// Backends of HTTP/2, and those that pick their version when they are connected to, get it framed anew.
#[test]
fn backends_of_http_2_and_those_that_pick_get_it_whole() {
    let authority = Authority::new().signs("inner", &["app.internal"]);
    let app = backend();
    let body = pattern(6, 9 * MIB + 1);
    for (speaks, asked) in [
        ("\"h1\", \"h2\"", "h2"),
        ("\"h1\", \"h2\"", "auto"),
        ("\"h1\"", "auto"),
        ("\"h1\", \"h2\", \"h3\"", "h3"),
    ] {
        let inner = INNER.replace("VERSIONS", speaks);
        let inner = authority.setup(&inner).with("app", app.address()).start();
        let tls = "tls = { ca = \"@ca\", server_name = \"app.internal\" }";
        let outer = config("4GiB", &format!("protocol = \"{asked}\"\n{tls}"));
        let outer = Setup::of(&outer).with("files", folder().display());
        let outer = outer.with("ca", authority.path("ca.pem")).with("app", inner.address("inner")).start();
        let mut plain = begins(&outer, body.len());
        plain.sends(&body);
        assert_eq!(plain.receives_status(200).text(), summed(&body), "{speaks} {asked}");
        let mut chunked = sends_chunked(&outer, &body, 300_000);
        assert_eq!(chunked.receives_status(200).text(), format!("{}42", summed(&body)), "{speaks} {asked}");
        assert_eq!(counted(&outer, "weir_buffered_requests_total"), 2.0);
        nothing_is_left(&outer);
    }
}

#[test]
fn a_long_response_leaves_its_backend_while_its_client_reads_nothing() {
    let backend = backend();
    let weir = start(&backend, "4GiB");
    others_are_served(&weir);
    let before = weir.usage().resident_bytes;
    let mut slow = weir.client("web");
    slow.sends("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.looks();
    until("the backend is free again", || (backend.served() == 4 && backend.busy() == 0).then_some(()));
    weir.reaches("weir_read_ahead_responses_total", &[("pool", "app")], 1.0);
    others_are_served(&weir);
    assert_eq!(backend.connections(), 1, "the connection is kept, too");
    let head = slow.receives_until("\r\n\r\n");
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    assert!(slow.receives(BIG) == pattern(7, BIG), "all of it, and in order");
    nothing_is_left(&weir);
    let grown = weir.usage().peak_bytes.saturating_sub(before);
    println!("64 MiB by a file: at most {} KiB more memory", grown >> 10);
    assert!(grown < 8 * MIB as u64, "{grown} bytes");
}

#[test]
fn a_stream_gets_the_rest_and_the_trailers_out_of_the_file_when_its_window_opens() {
    let backend = backend();
    let weir = start(&backend, "4GiB");
    let mut slow = Http2::client(weir.client("web"), b"");
    slow.sends(get(1, "/trailers"));
    slow.receives(kind::HEADERS, 1);
    until("the backend is free again", || (backend.served() == 1 && backend.busy() == 0).then_some(()));
    others_are_served(&weir);
    slow.sends(window_update(0, 16 << 20));
    slow.sends(window_update(1, 16 << 20));
    let mut body = Vec::new();
    let trailers = loop {
        let frame = slow.receives_frame().expect("more");
        match frame.kind {
            kind::DATA => body.extend_from_slice(&frame.payload),
            kind::HEADERS => break frame,
            _ => {}
        }
    };
    assert!(body == pattern(7, 8 * MIB));
    assert_eq!(trailers.flags & 1, 1, "the end of the stream");
    nothing_is_left(&weir);
}

#[test]
fn clients_that_leave_take_their_files_with_them() {
    let backend = backend();
    let weir = start(&backend, "4GiB");
    let mut uploader = begins(&weir, BIG);
    uploader.sends(pattern(1, BIG / 2));
    let mut reader = weir.client("web");
    reader.sends("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
    reader.receives(100);
    weir.reaches("weir_buffer_files", &[], 2.0);
    weir.reaches("weir_read_ahead_responses_total", &[("pool", "app")], 1.0);
    assert_eq!(files_of(weir.pid()).len(), 2);
    uploader.resets();
    reader.resets();
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "client_closed")], 2.0);
    nothing_is_left(&weir);
    assert_eq!(files_of(weir.pid()).len(), 0);
    assert_eq!(counted(&weir, "weir_backend_failures_total"), 0.0);
    others_are_served(&weir);
}

/// Uploads and downloads through `weir`, whose disk takes less than half of that.
fn all_streams_where_the_disk_is_full(weir: &Weir, reason: &str) {
    let body = pattern(8, 24 * MIB);
    let mut client = begins(weir, body.len());
    client.sends(&body);
    assert_eq!(client.receives_status(200).text(), summed(&body));
    weir.reaches("weir_buffer_file_refusals_total", &[("reason", reason)], 1.0);
    assert_eq!(counted(weir, "weir_unbuffered_requests_total"), 1.0);
    nothing_is_left(weir);
    let mut slow = weir.client("web");
    slow.sends("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
    weir.reaches("weir_buffer_file_refusals_total", &[("reason", reason)], 2.0);
    slow.receives_until("\r\n\r\n");
    assert!(slow.receives(BIG) == pattern(7, BIG), "all of it, and in order");
    nothing_is_left(weir);
    assert_eq!(refused(weir, "lost"), 0.0);
}

#[test]
fn beyond_the_limit_of_all_files_bodies_stream() {
    let backend = backend();
    let weir = start(&backend, "8MiB");
    all_streams_where_the_disk_is_full(&weir, "full");
}

/// The disk is a file system of 8 MiB; to mount it needs root.
#[test]
fn where_the_disk_is_full_bodies_stream() {
    let backend = backend();
    let unshare = tool("unshare", "util-linux").display().to_string();
    let mounted = std::env::temp_dir().join(format!("weir-full-disk-{}", std::process::id()));
    std::fs::create_dir_all(&mounted).expect("a folder");
    let script = format!("mount -t tmpfs -o size=8m none {} && exec \"$@\"", mounted.display());
    let under = [unshare.as_str(), "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
    let setup = Setup::of(&config("4GiB", "")).with("files", mounted.display());
    let weir = setup.with("app", backend.address()).under(&under).start();
    all_streams_where_the_disk_is_full(&weir, "disk");
    assert!(weir.stderr().contains("a file of a buffered body could not be written"), "{}", weir.stderr());
    drop(weir);
    std::fs::remove_dir(&mounted).expect("nothing is in it");
}

#[test]
fn more_files_than_may_be_are_not_made() {
    let backend = backend();
    let config = config("4GiB", "").replace("workers = 1", "workers = 1\nbuffer_files_max = 1");
    let weir = Setup::of(&config).with("files", folder().display()).with("app", backend.address()).start();
    let mut first = begins(&weir, 2 * MIB);
    first.sends(pattern(1, MIB));
    weir.reaches("weir_buffer_files", &[], 1.0);
    let body = pattern(2, 2 * MIB);
    let mut second = begins(&weir, body.len());
    second.sends(&body);
    assert_eq!(second.receives_status(200).text(), summed(&body));
    assert_eq!((refused(&weir, "count"), weir.metric("weir_buffer_files", &[])), (1.0, 1.0));
}

/// The first backend closes after it has received part of the body; the second gets all of it.
#[test]
fn what_is_in_a_file_is_sent_again() {
    let (closing, other) = (ScriptedBackend::start(), ScriptedBackend::start());
    let both = "backends = [\"@app\", \"@other\"]\nretry = { attempts = 2, on = [\"reset\", \"empty\"] }";
    let config = config("4GiB", "balance = \"first\"")
        .replace("backends = [{ address = \"@app\", max_connections = 1 }]", both)
        .replace("balance = \"first\"\n", "");
    let setup = Setup::of(&config).with("files", folder().display());
    let weir = setup.with("app", closing.address()).with("other", other.address()).start();
    let body = pattern(9, 12 * MIB);
    let mut client = begins(&weir, body.len());
    client.sends(&body);
    let (mut first, closed_one) = until("a backend is asked", || {
        [&closing, &other].into_iter().find_map(|it| Some((it.accepts_if_any()?, std::ptr::eq(it, &closing))))
    });
    first.receives(3 * MIB);
    first.resets();
    let mut second = if closed_one { other.accepts() } else { closing.accepts() };
    let request = second.receives_request();
    assert!(request.body == body, "{} bytes", request.body.len());
    second.answers(200, &[], "whole");
    assert_eq!(client.receives_status(200).text(), "whole");
    assert_eq!(counted(&weir, "weir_retries_total"), 1.0);
    nothing_is_left(&weir);
}

/// A server that refuses because of the head alone, reads no body and closes nothing.
#[test]
fn a_backend_that_answers_before_it_has_the_file_is_heard_and_its_connection_serves_nobody_else() {
    let backend = ScriptedBackend::start();
    let setup = Setup::of(&config("4GiB", "")).with("files", folder().display());
    let weir = setup.with("app", backend.address()).start();
    let mut client = begins(&weir, BIG);
    client.sends(pattern(1, BIG));
    let mut first = backend.accepts();
    first.receives_until("\r\n\r\n");
    // An interim response does not end it.
    first.sends("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
    first.answers(413, &[], "too much");
    assert_eq!(client.receives_status(413).text(), "too much");
    let mut next = weir.client("web");
    next.sends("GET /next HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut second = backend.accepts();
    assert_eq!(second.receives_request().target, "/next");
    second.answers(200, &[], "ok");
    assert_eq!(next.receives_status(200).text(), "ok");
    nothing_is_left(&weir);
}

#[test]
fn who_leaves_the_line_or_a_stream_takes_the_file_along() {
    let backend = ScriptedBackend::start();
    let (weir, mut first, mut other) = occupied(&backend);
    let mut in_line = begins(&weir, 2 * MIB);
    in_line.sends(pattern(1, 2 * MIB));
    weir.reaches("weir_queued_total", &[("pool", "app")], 1.0);
    assert_eq!(weir.metric("weir_buffer_files", &[]), 1.0);
    in_line.resets();
    nothing_is_left(&weir);
    let mut streams = Http2::client(weir.client("web"), b"");
    let part = frame(kind::DATA, 0, 1, &pattern(1, 16 << 10));
    streams.sends(headers(1, &request("PUT", "/"), false));
    for _ in 0..3 {
        streams.sends(&part);
    }
    // What was read makes room for more.
    streams.receives(kind::WINDOW_UPDATE, 1);
    streams.sends(&part);
    streams.sends(&part);
    weir.reaches("weir_buffer_files", &[], 1.0);
    streams.sends(reset(1, code::CANCEL));
    nothing_is_left(&weir);
    streams.sends(get(3, "/next"));
    first.answers(200, &[], "");
    assert_eq!(other.receives_response().status, 200);
    first.receives_until("GET /next");
    first.receives_until("\r\n\r\n");
    first.answers(200, &[], "ok");
    assert_eq!(streams.outcome_of(3), Outcome::Answered(200, b"ok".to_vec()));
}

/// 400 uploads, which together would be 200 MiB.
#[test]
fn many_that_come_and_go_leave_no_descriptor_behind_and_take_the_memory_of_a_few() {
    let backend = backend();
    let weir = start(&backend, "64MiB");
    others_are_served(&weir);
    let half = pattern(1, MIB);
    let at_rest = weir.usage().resident_bytes;
    let mut descriptors = None;
    for round in 0..10 {
        for number in 0..40 {
            let mut client = begins(&weir, 2 * MIB);
            let _ = client.tries_to_send(&half[..MIB / 40 * number]);
            client.resets();
        }
        nothing_is_left(&weir);
        until("its sessions to end", || (weir.metric("weir_sessions", &[]) == 0.0).then_some(()));
        let most = *descriptors.get_or_insert_with(|| weir.usage().descriptors) + 2;
        // Weir may only now get to accept the last of them.
        until(&format!("{most} descriptors, {round}"), || (weir.usage().descriptors <= most).then_some(()));
        let grown = weir.usage().peak_bytes.saturating_sub(at_rest);
        assert!(grown < 48 * MIB as u64, "{grown} bytes in round {round}");
    }
    others_are_served(&weir);
}

#[test]
fn a_file_under_way_outlives_reloads_and_upgrades_and_no_kill_leaves_it_behind() {
    let backend = backend();
    let mut weir = start(&backend, "4GiB");
    let body = pattern(4, BIG);
    let mut uploader = begins(&weir, BIG);
    uploader.sends(&body[..BIG / 4]);
    weir.reaches("weir_buffer_files", &[], 1.0);
    weir.reloads(&config("4GiB", "").replace("buffer_directory = \"@files\"", "buffer_directory = \"@dir\""));
    uploader.sends(&body[BIG / 4..BIG / 2]);
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the next process", || (weir.pids().len() == 2).then_some(()));
    uploader.sends(&body[BIG / 2..]);
    assert_eq!(uploader.receives_status(200).text(), summed(&body));
    drop(uploader);
    until("the old process to end", || (!weir.is_running(old)).then_some(()));
    let mut uploader = begins(&weir, BIG);
    uploader.sends(&body[..BIG / 4]);
    weir.reaches("weir_buffer_files", &[], 1.0);
    weir.signals(Signal::KILL);
    until("the end", || weir.pids().is_empty().then_some(()));
    let left: Vec<String> = std::fs::read_dir(weir.dir())
        .expect("its folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(".weir"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_config_says_where_files_are_and_explain_says_how_much_they_hold() {
    let backend = backend();
    let mut weir = start(&backend, "4GiB");
    let url = format!("http://{}/", weir.address("web"));
    let said = weir.command(&["explain", "http", "PUT", &url]).succeeded().to_owned();
    assert!(said.contains("requests up to 64KiB, and 1GiB more in a file"), "{said}");
    weir.rewrites(&config("4GiB", "").replace("@files", "/proc/nowhere"));
    let refused = weir.command(&["reload"]);
    assert_ne!(refused.code, 0);
    let told = format!("{refused:?}");
    assert!(told.contains("no file can be made in") && told.contains("weir.toml:5:20"), "{told}");
}
