//! Lines on their way to a syslog daemon: rsyslog's own reading of them, and what happens while it is away.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use weir_tests::dialogue::{Backend, ONE_POOL, PATIENCE, Setup, Weir, free_address, listen_at, tool, until};

/// A running rsyslogd, killed when dropped.
struct Rsyslog(Child);

impl Drop for Rsyslog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts rsyslogd, which takes messages at these places and writes what it reads in them to `seen`.
fn rsyslog(dir: &Path, udp: SocketAddr, tcp: SocketAddr) -> Rsyslog {
    let (udp, tcp, dir_text) = (udp.port(), tcp.port(), dir.display());
    let config = format!(
        r#"
        global(workDirectory="{dir_text}" maxMessageSize="64k")
        module(load="imudp") input(type="imudp" address="127.0.0.1" port="{udp}")
        module(load="imtcp") input(type="imtcp" address="127.0.0.1" port="{tcp}")
        module(load="imuxsock" SysSock.Use="off") input(type="imuxsock" Socket="{dir_text}/log")
        template(name="seen" type="string" string="%syslogfacility-text%.%syslogseverity-text%|%app-name%|%procid%|%msgid%|%timereported:::date-year%|%msg%\n")
        *.* action(type="omfile" file="{dir_text}/seen" template="seen")
        "#
    );
    let file = dir.join("rsyslog.conf");
    std::fs::write(&file, config).expect("write");
    let mut command = Command::new(tool("rsyslogd", "rsyslog"));
    command.args(["-n", "-iNONE", "-f"]).arg(file);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("rsyslogd starts");
    let rsyslog = Rsyslog(child);
    until("rsyslogd to listen", || {
        (dir.join("log").exists() && std::net::TcpStream::connect(("127.0.0.1", tcp)).is_ok()).then_some(())
    });
    rsyslog
}

fn ask(weir: &Weir, path: &str) {
    let mut client = weir.client("web");
    client.sends(format!(
        "GET {path} HTTP/1.1\r\nhost: a\r\nuser-agent: caf\u{e9} \"x\"\r\nconnection: close\r\n\r\n"
    ));
    client.receives_status(200);
}

#[test]
fn rsyslog_reads_what_is_sent_to_its_socket_by_datagram_and_on_a_connection() {
    let backend = Backend::saying("ok");
    let (udp, tcp) = (free_address(), free_address());
    let config = r#"
        [access_log.local]
        target = "syslog:unix:@dir/log"
        syslog = { facility = "daemon", severity = "notice", app_name = "edge" }
        [access_log.datagrams]
        target = "@udp"
        line = "datagram $target $status"
        [access_log.connection]
        target = "@tcp"
        syslog = { facility = "local3" }
        fields = { at = "tcp" }
        "#;
    let config = format!("{config}{ONE_POOL}health = \"off\"");
    let setup = Setup::of(&config).with("app", backend.address());
    let setup = setup.with("udp", format!("syslog:udp:{udp}")).with("tcp", format!("syslog:tcp:{tcp}"));
    // It does not need to be there when Weir starts.
    let weir = setup.start();
    let _rsyslog = rsyslog(weir.dir(), udp, tcp);
    for number in 0..50 {
        ask(&weir, &format!("/{number}"));
    }
    let lines = weir.lines_of("seen", 150);
    assert_eq!(lines.len(), 150, "{lines:#?}");
    let pid = weir.pid().to_string();
    let mut counts = [0; 3];
    for line in &lines {
        let fields: Vec<&str> = line.splitn(6, '|').collect();
        let [marks, app, process, message_id, year, message] = fields[..] else { panic!("{line}") };
        assert!(process == pid && year.len() == 4, "{line}");
        let kind = match (marks, app, message_id) {
            ("daemon.notice", "edge", _) => 0,
            ("local0.info", "weir", "access") => 1,
            ("local3.info", "weir", "access") => 2,
            other => panic!("{other:?}: {line}"),
        };
        counts[kind] += 1;
        let message = message.trim_start();
        if kind == 1 {
            assert!(message.starts_with("datagram /") && message.ends_with(" 200"), "{line}");
            continue;
        }
        let told: Value = serde_json::from_str(message).unwrap_or_else(|problem| panic!("{problem}: {line}"));
        assert!(told["status"] == 200 && told["user_agent"] == "caf\u{e9} \"x\"", "{line}");
        assert_eq!(told.get("at").is_some(), kind == 2, "{line}");
    }
    assert_eq!(counts, [50; 3]);
}

/// Bytes that are no UTF-8 become six each in JSON: a client could make its line too long for a datagram, and
/// then it was missing.
#[test]
fn d11_a_client_cannot_keep_its_line_from_a_target_by_making_it_long() {
    let backend = Backend::saying("ok");
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    receiver.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let config = r#"
        [access_log.datagrams]
        target = "@udp"
        [access_log.local]
        target = "syslog:unix:@dir/log"
        [access_log.wide]
        target = "@udp"
        fields = { FIELDS }
        "#;
    let names = || (0..20).map(|number| format!("x-{number}"));
    let fields: Vec<String> = names().map(|name| format!("\"{name}\" = \"$header.{name}\"")).collect();
    let config = config.replace("FIELDS", &fields.join(", "));
    let config = format!("{config}{ONE_POOL}health = \"off\"");
    let to = receiver.local_addr().expect("bound");
    let weir =
        Setup::of(&config).with("app", backend.address()).with("udp", format!("syslog:udp:{to}")).start();
    let local = UnixDatagram::bind(weir.dir().join("log")).expect("a socket");
    local.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let line = |receive: &dyn Fn(&mut [u8]) -> std::io::Result<usize>| {
        let mut bytes = vec![0; 1 << 20];
        let count = receive(&mut bytes).expect("a line");
        let text = String::from_utf8(bytes[..count].to_vec()).expect("UTF-8");
        let json = text.find('{').map(|at| &text[at..]).expect("JSON");
        serde_json::from_str::<Value>(json).unwrap_or_else(|problem| panic!("{problem}: {text}"))
    };
    let asks = |fields: &[(&str, usize)]| {
        let mut client = weir.client("web");
        let mut request = b"GET /long HTTP/1.1\r\nhost: a\r\nconnection: close\r\n".to_vec();
        for (name, count) in fields {
            request.extend_from_slice(format!("{name}: ").as_bytes());
            request.extend(std::iter::repeat_n(0x80, *count));
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        client.sends(&request);
        client.receives_status(200);
    };
    asks(&[("user-agent", 11_000)]);
    asks(&[("user-agent", 36_000)]);
    for _ in 0..2 {
        for told in [line(&|room| receiver.recv(room)), line(&|room| local.recv(room))] {
            let agent = told["user_agent"].as_str().unwrap_or_default();
            assert!(told["path"] == "/long" && agent.ends_with("..."), "{told}");
        }
        line(&|room| receiver.recv(room));
    }
    let names: Vec<String> = names().collect();
    asks(&names.iter().map(|name| (name.as_str(), 700)).collect::<Vec<_>>());
    // One log has no fields of its own, the other one more than fit.
    let both = [line(&|room| receiver.recv(room)), line(&|room| receiver.recv(room))];
    let wide = both.iter().find(|told| told.get("x-0").is_some()).expect("the one with fields");
    assert!(wide["path"] == "/long" && wide.get("x-19").is_none(), "{wide}");
    weir.reaches("weir_access_log_missing_total", &[("log", "wide"), ("reason", "cut")], 1.0);
    assert_eq!(weir.metric("weir_access_log_missing_total", &[("log", "wide"), ("reason", "target")]), 0.0);
}

/// What a client of RFC 6587 has sent on a connection, frame by frame; panics where lengths are wrong.
fn frames(mut bytes: &[u8]) -> Vec<String> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let blank = bytes.iter().position(|byte| *byte == b' ').expect("a length");
        let length: usize = std::str::from_utf8(&bytes[..blank]).expect("text").parse().expect("a number");
        let frame = bytes.get(blank + 1..blank + 1 + length).expect("a whole frame");
        frames.push(String::from_utf8(frame.to_vec()).expect("UTF-8"));
        bytes = &bytes[blank + 1 + length..];
    }
    frames
}

#[test]
fn a_daemon_that_is_away_holds_up_no_request_and_gets_the_lines_that_waited() {
    let backend = Backend::saying("ok");
    let tcp = free_address();
    let config = r#"
        [access_log.far]
        target = "@tcp"
        line = "$target $header.user-agent"
        "#;
    let config = format!("{config}{ONE_POOL}health = \"off\"");
    let setup = Setup::of(&config).with("app", backend.address());
    let weir = setup.with("tcp", format!("syslog:tcp:{tcp}")).start();
    let mut client = weir.client("web");
    let agent = "x".repeat(4000);
    const REQUESTS: usize = 3500;
    for number in 0..REQUESTS {
        client.sends(format!("GET /{number} HTTP/1.1\r\nhost: a\r\nuser-agent: {agent}\r\n\r\n"));
        client.receives_status(200);
    }
    let missing = |reason: &str| {
        weir.metric("weir_access_log_missing_total", &[("log", "far"), ("reason", reason)]) as usize
    };
    assert!(missing("queue") > 0 && missing("queue") < REQUESTS);
    // Somebody listens at last: what waited comes, whole and in order, and nothing else is missing.
    let listener = TcpListener::bind(tcp).expect("the address is free");
    let (mut stream, _) = listener.accept().expect("a connection");
    let kept = REQUESTS - missing("queue");
    let mut bytes = Vec::new();
    let mut part = vec![0; 1 << 16];
    while bytes.iter().filter(|byte| **byte == b'/').count() < kept {
        let count = stream.read(&mut part).expect("read");
        assert!(count > 0, "the connection ended after {} bytes", bytes.len());
        bytes.extend_from_slice(&part[..count]);
    }
    while !bytes.ends_with(b"xxx") || frames_end(&bytes) != bytes.len() {
        let count = stream.read(&mut part).expect("read");
        bytes.extend_from_slice(&part[..count]);
    }
    let numbers: Vec<usize> = frames(&bytes)
        .iter()
        .map(|frame| {
            let message = frame.split(" access - /").nth(1).expect("a header");
            message.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
        })
        .collect();
    assert_eq!(numbers.len(), kept);
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert_eq!(missing("target"), 0);
    assert!(weir.stderr().contains("access log lines wait for their target"), "{}", weir.stderr());
}

/// What the kernel had taken and the daemon's host had not acknowledged was lost with the connection, and no
/// counter told.
#[test]
fn a_daemon_that_resets_its_connection_gets_again_what_it_had_not_acknowledged() {
    let backend = Backend::saying("ok");
    let tcp = free_address();
    let listener = listen_at(tcp);
    // Connections inherit it: little is acknowledged that nobody reads.
    socket2::SockRef::from(&listener).set_recv_buffer_size(16 << 10).expect("an option");
    let config = format!(
        "[access_log.far]\ntarget = '@tcp'\nline = '$target $header.user-agent'\n{ONE_POOL}health = \"off\""
    );
    let setup = Setup::of(&config).with("app", backend.address());
    let weir = setup.with("tcp", format!("syslog:tcp:{tcp}")).start();
    let mut client = weir.client("web");
    let agent = "x".repeat(4000);
    // More than sockets hold and less than the queue does.
    const REQUESTS: usize = 1600;
    for number in 0..REQUESTS {
        client.sends(format!("GET /{number} HTTP/1.1\r\nhost: a\r\nuser-agent: {agent}\r\n\r\n"));
        client.receives_status(200);
    }
    let (first, _) = listener.accept().expect("a connection");
    until("both buffers to be full", || {
        weir.stderr().contains("access log lines wait for their target").then_some(())
    });
    let mut bytes = vec![0; 1 << 20];
    let count = first.peek(&mut bytes).expect("what was acknowledged");
    bytes.truncate(count);
    let end = frames_end(&bytes);
    let acknowledged = frames(&bytes[..end]);
    assert!(!acknowledged.is_empty(), "{count} bytes");
    socket2::SockRef::from(&listener).set_recv_buffer_size(1 << 20).expect("an option");
    // With bytes that were not read, so that it is a reset.
    drop(first);
    let (mut second, _) = listener.accept().expect("another connection");
    let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
    let last = format!(" access - /{} ", REQUESTS - 1);
    let is_last = |line: &[u8]| line.windows(last.len()).any(|found| found == last.as_bytes());
    loop {
        let end = frames_end(&bytes);
        if end == bytes.len() && is_last(&bytes[end.saturating_sub(5000)..]) {
            break;
        }
        let count = second.read(&mut part).expect("read");
        assert!(count > 0, "the connection ended after {} bytes", bytes.len());
        bytes.extend_from_slice(&part[..count]);
    }
    let number = |frame: &String| -> usize {
        let message = frame.split(" access - /").nth(1).expect("a header");
        message.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    let numbers: Vec<usize> = acknowledged.iter().chain(&frames(&bytes)).map(number).collect();
    assert_eq!(numbers, (0..REQUESTS).collect::<Vec<_>>());
    for reason in ["queue", "target"] {
        assert_eq!(weir.metric("weir_access_log_missing_total", &[("log", "far"), ("reason", reason)]), 0.0);
    }
}

/// Where the last whole frame ends.
fn frames_end(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(blank) = bytes[end..].iter().position(|byte| *byte == b' ') {
        let length: usize =
            std::str::from_utf8(&bytes[end..end + blank]).expect("text").parse().expect("a number");
        if end + blank + 1 + length > bytes.len() {
            break;
        }
        end += blank + 1 + length;
    }
    end
}
