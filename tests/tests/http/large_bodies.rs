//! Large bodies keep every byte, and never pile up inside Weir.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use weir_tests::dialogue::{After, Backend, Wire, fingerprint, pattern, until, until_within};

use super::plain;

#[test]
fn ten_mebibytes_pass_unchanged_in_both_directions_at_once() {
    let backend = Backend::serving(|request, wire| {
        wire.answers(200, &[("x-sum", &format!("{:x}", fingerprint(&request.body)))], &request.body);
        After::Keep
    });
    let weir = plain(&backend);
    let body = pattern(10, 10 << 20);
    for chunked in [false, true] {
        // The answer can only come when the whole upload is through, on however busy a machine.
        let mut client = weir.client("web").with_patience(Duration::from_secs(60));
        let mut writer = client.socket().try_clone().expect("a second handle");
        let sent = body.clone();
        let sender = std::thread::spawn(move || {
            if chunked {
                writer
                    .write_all(b"PUT / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
                    .expect("send");
                for piece in sent.chunks(100_003) {
                    writer
                        .write_all(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat())
                        .expect("send");
                }
                writer.write_all(b"0\r\n\r\n").expect("send");
            } else {
                let head = format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", sent.len());
                writer.write_all(head.as_bytes()).expect("send");
                writer.write_all(&sent).expect("send");
            }
        });
        let response = client.receives_status(200);
        sender.join().expect("the sender");
        assert_eq!(
            response.fields.one("x-sum"),
            Some(format!("{:x}", fingerprint(&body)).as_str()),
            "towards the backend"
        );
        assert!(response.body == body, "towards the client");
    }
}

/// Bytes of the long transfers: scaled down, unless `WEIR_LONG=1` asks for the whole 10 GiB.
fn long_transfer_bytes() -> u64 {
    if std::env::var("WEIR_LONG").is_ok_and(|value| value == "1") { 10 << 30 } else { 512 << 20 }
}

#[test]
fn a_slow_reader_makes_the_backend_wait_and_not_weir_grow() {
    let size = long_transfer_bytes();
    let backend = Backend::serving(move |_, wire| {
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n"));
        let block = vec![b'x'; 1 << 20];
        let _ = wire.socket().set_write_timeout(Some(Duration::from_secs(3600)));
        for _ in 0..size >> 20 {
            if wire.tries_to_send(&block).is_err() {
                return After::Close;
            }
        }
        After::Keep
    });
    let weir = plain(&backend);
    let before = weir.usage().resident_bytes;
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let head = client.receives_until("\r\n\r\n");
    // While nobody reads, what Weir has taken from the backend must come to rest.
    let mut last = u64::MAX;
    until("the transfer to come to rest", || {
        let taken = weir.metric("weir_bytes_total", &[]) as u64;
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut last, taken).eq(&taken).then_some(())
    });
    let resting = weir.usage().resident_bytes;
    assert!(
        resting < before + (20 << 20),
        "{} MiB more while the client does not read",
        (resting - before) >> 20
    );
    let mut reader = client.socket().try_clone().expect("a second handle");
    let mut block = vec![0; 1 << 20];
    // A part of the body may have come with the head.
    let mut got = client.total_bytes() - head.len() as u64;
    while got < size {
        let count = reader.read(&mut block).expect("read");
        assert!(count > 0, "ended after {got} of {size} bytes");
        got += count as u64;
    }
    let peak = weir.usage().peak_bytes;
    println!("{} MiB through; resident {} KiB before, {} KiB at peak", size >> 20, before >> 10, peak >> 10);
    assert!(peak < before + (20 << 20), "{} MiB more at peak", (peak - before) >> 20);
}

#[test]
fn a_slow_backend_makes_the_client_wait_and_not_weir_grow() {
    let backend = weir_tests::dialogue::ScriptedBackend::start();
    let weir = weir_tests::dialogue::Setup::of(super::PLAIN).with("app", backend.address()).start();
    let before = weir.usage().resident_bytes;
    let mut client = weir.client("web");
    let size: usize = 256 << 20;
    client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"));
    let mut wire = backend.accepts();
    wire.receives_request_head();
    let mut writer = client.socket().try_clone().expect("a second handle");
    writer.set_write_timeout(None).expect("no bound: it is meant to be held up");
    let sender = std::thread::spawn(move || {
        let block = pattern(5, 1 << 20);
        for _ in 0..size >> 20 {
            writer.write_all(&block).expect("send");
        }
    });
    let mut last = f64::MAX;
    until("the transfer to come to rest", || {
        let taken = weir.metric("weir_bytes_total", &[]);
        std::thread::sleep(Duration::from_millis(200));
        (std::mem::replace(&mut last, taken) == taken).then_some(())
    });
    assert!(!sender.is_finished(), "the whole body went somewhere, and the backend has read nothing");
    let block = pattern(5, 1 << 20);
    for _ in 0..size >> 20 {
        assert!(wire.receives(1 << 20) == block);
    }
    sender.join().expect("the sender");
    wire.answers(201, &[], "");
    client.receives_status(201);
    let peak = weir.usage().peak_bytes;
    assert!(peak < before + (20 << 20), "{} MiB more at peak", (peak - before) >> 20);
}

#[test]
fn many_large_transfers_at_once_stay_within_256_kib_a_connection() {
    // S4: at most 256 KiB a connection.
    const CONNECTIONS: u64 = 64;
    let backend = Backend::serving(|_, wire| {
        // The kernel's buffers of both connections together have held 16 MiB.
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 64 << 20));
        let _ = wire.socket().set_write_timeout(Some(Duration::from_secs(60)));
        let piece = vec![b'x'; 1 << 20];
        let _ = (0..64).try_for_each(|_| wire.tries_to_send(&piece));
        After::Keep
    });
    let weir = plain(&backend);
    let before = weir.usage().resident_bytes;
    let mut clients: Vec<Wire> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = weir.client("web");
            client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            client
        })
        .collect();
    until("all to be busy", || (backend.busy() == CONNECTIONS as usize).then_some(()));
    for client in &mut clients {
        client.receives_until("\r\n\r\n");
    }
    let held = weir.usage().resident_bytes.saturating_sub(before);
    println!("{CONNECTIONS} stalled transfers: {} KiB a connection", (held / CONNECTIONS) >> 10);
    assert!(held / CONNECTIONS < 256 << 10, "{} KiB a connection", (held / CONNECTIONS) >> 10);
    drop(clients);
    // Freed within ten seconds of the attackers' leaving.
    until_within(Duration::from_secs(10), "the memory to be given back", || {
        (weir.usage().resident_bytes < before + (8 << 20)).then_some(())
    });
}

#[test]
fn what_a_backend_sends_behind_a_bulky_body_reaches_nobody() {
    const SIZE: usize = 3 << 20;
    let body = pattern(7, SIZE);
    let sent = body.clone();
    let backend = Backend::serving(move |_, wire| {
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n"));
        wire.sends([&sent[..], b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"].concat());
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    for _ in 0..3 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let response = client.receives_status(200);
        assert!(response.body == body, "the body, and nothing else");
    }
    assert_eq!(backend.connections(), 3, "a connection with bytes nobody asked for is not used again");
}

#[test]
fn a_bulky_body_that_breaks_off_is_seen_to() {
    let backend = Backend::serving(move |_, wire| {
        wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 8388608\r\n\r\n");
        wire.sends(vec![b'x'; 5 << 20]);
        After::Close
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_until("\r\n\r\n");
    let mut rest = Vec::new();
    let ended = client.socket().read_to_end(&mut rest);
    assert!(rest.len() < 8 << 20);
    assert!(ended.is_err(), "a reset, and not an ordinary end after {} bytes", rest.len());
}
