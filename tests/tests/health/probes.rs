//! Active checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{
    After, Backend, ScriptedBackend, Setup, Signal, Weir, alone, free_address, until,
};

use super::{is_up, named, two_backends};

fn config(check: &str) -> String {
    two_backends(&format!("[pool.app.health]\n{check}"))
}

const FAST: &str = "interval = \"100ms\"\nfast_interval = \"20ms\"\ntimeout = \"100ms\"\npassive = \"off\"\n";

#[test]
fn probes_ask_at_the_port_that_health_names() {
    let status = Arc::new(AtomicU16::new(200));
    let (told, host) = (status.clone(), Arc::new(std::sync::Mutex::new(String::new())));
    let asked = host.clone();
    // Both backends are probed at a third one, on the same address.
    let probed = Backend::serving(move |request, wire| {
        *asked.lock().unwrap() = request.fields.one("host").unwrap_or_default().to_owned();
        wire.answers(told.load(Ordering::SeqCst), &[], "");
        After::Keep
    });
    let (a, b) = (named("a"), named("b"));
    let check = format!("check = \"http\"\nport = {}\n{FAST}", probed.address().port());
    let weir = Setup::of(&config(&check)).with("a", a.address()).with("b", b.address()).start();
    until("both to be up", || (is_up(&weir, a.address()) && is_up(&weir, b.address())).then_some(()));
    let expected = probed.address().to_string();
    until("the probed address to be asked", || (*host.lock().unwrap() == expected).then_some(()));
    status.store(503, Ordering::SeqCst);
    until("both to be down", || (!is_up(&weir, a.address()) && !is_up(&weir, b.address())).then_some(()));
    assert_eq!((a.served(), b.served()), (0, 0), "they get requests from clients only");
}

#[test]
fn a_status_out_of_the_expected_range_takes_a_backend_down_and_a_good_one_brings_it_back() {
    let status = Arc::new(AtomicU16::new(200));
    let told = status.clone();
    let sick = Backend::serving(move |request, wire| {
        if request.target == "/healthz?full" {
            assert_eq!(request.fields.one("host"), Some("probe.example"));
            wire.answers(told.load(Ordering::SeqCst), &[], "");
        } else {
            wire.answers(200, &[], "a");
        }
        After::Keep
    });
    let well = named("b");
    let check = format!(
        "check = \"http\"\npath = \"/healthz?full\"\nhost = \"probe.example\"\nexpect_status = [\"200-204\"]\nrise = 2\nfall = 3\n{FAST}"
    );
    let weir = Setup::of(&config(&check)).with("a", sick.address()).with("b", well.address()).start();
    until("both to be up", || (is_up(&weir, sick.address()) && is_up(&weir, well.address())).then_some(()));
    for bad in [205, 302, 404, 500, 503] {
        status.store(bad, Ordering::SeqCst);
        until(&format!("{bad} to take it down"), || (!is_up(&weir, sick.address())).then_some(()));
        let mut client = weir.client("web");
        for _ in 0..10 {
            client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(client.receives_status(200).text(), "b");
        }
        status.store(204, Ordering::SeqCst);
        until("204 to bring it back", || is_up(&weir, sick.address()).then_some(()));
    }
    // The result is shown.
    assert!(
        weir.metric("weir_probes_total", &[("backend", &sick.address().to_string()), ("result", "bad")])
            >= 13.0
    );
}

#[test]
fn fall_bad_probes_in_a_row_take_down_and_rise_good_ones_bring_up() {
    // Two of every three answers are bad: never three bad ones in a row.
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    let flapping = Backend::serving(move |_, wire| {
        let number = counting.fetch_add(1, Ordering::SeqCst);
        wire.answers(if number % 3 == 2 { 200 } else { 500 }, &[], "");
        After::Keep
    });
    let well = named("b");
    // A long timeout, so that no probe is bad for being late.
    let check = "check = \"http\"\nrise = 1\nfall = 3\ninterval = \"1s\"\nfast_interval = \"20ms\"\ntimeout = \"1s\"\npassive = \"off\"\n";
    let weir = Setup::of(&config(check)).with("a", flapping.address()).with("b", well.address()).start();
    until("ten probes", || (count.load(Ordering::SeqCst) >= 10).then_some(()));
    let status = weir.admin().reads("/v1/pools/app").json();
    assert_ne!(status["backends"][0]["health"], "down", "two bad probes in a row took it down: {status}");
}

#[test]
fn a_refused_connection_takes_a_backend_down() {
    for kind in ["http", "tcp"] {
        let (dead, well) = (free_address(), named("b"));
        let weir = Setup::of(&config(&format!("check = \"{kind}\"\n{FAST}")))
            .with("a", dead)
            .with("b", well.address())
            .start();
        until("the dead one to be down", || (!is_up(&weir, dead)).then_some(()));
        let back = Backend::serving_at(dead, |_, wire| {
            wire.answers(200, &[], "back");
            After::Keep
        });
        until("it to be back", || is_up(&weir, dead).then_some(()));
        drop(back);
    }
}

#[test]
fn a_probe_answered_with_garbage_or_not_at_all_is_bad() {
    for (name, answer) in [
        ("garbage", "garbage\r\n\r\n"),
        ("half a head", "HTTP/1.1 200 OK\r\n"),
        ("nothing", ""),
        ("two lengths", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 1\r\n\r\n"),
    ] {
        let well = named("b");
        let odd = Backend::serving(move |_, wire| {
            wire.sends(answer);
            // Held open, so that only the probe's own timeout ends it.
            std::thread::sleep(Duration::from_millis(300));
            After::Close
        });
        let weir = Setup::of(&config(&format!("check = \"http\"\n{FAST}")))
            .with("a", odd.address())
            .with("b", well.address())
            .start();
        until(&format!("{name} to take it down"), || (!is_up(&weir, odd.address())).then_some(()));
        assert!(is_up(&weir, well.address()));
    }
}

#[test]
fn without_any_backend_up_clients_get_503_at_once() {
    let (a, b) = (free_address(), free_address());
    let weir = Setup::of(&config(&format!("check = \"tcp\"\n{FAST}"))).with("a", a).with("b", b).start();
    until("both to be down", || (!is_up(&weir, a) && !is_up(&weir, b)).then_some(()));
    let mut client = weir.client("web");
    let begun = Instant::now();
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_status(503);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    weir.reaches("weir_rejected_total", &[("reason", "no_backend")], 1.0);
}

#[test]
fn probes_end_with_their_pool_and_leave_no_connections_open() {
    let (a, b) = (ScriptedBackend::start(), named("b"));
    let mut weir = Setup::of(&config(&format!("check = \"tcp\"\n{FAST}")))
        .with("a", a.address())
        .with("b", b.address())
        .start();
    a.accepts().receives_close();
    weir.reloads(&config(&format!("check = \"tcp\"\n{FAST}")).replace("\"@a\", ", ""));
    // Whatever was on its way may still come; after that, nothing.
    let mut quiet_since = Instant::now();
    let begun = Instant::now();
    while quiet_since.elapsed() < Duration::from_millis(500) {
        assert!(begun.elapsed() < Duration::from_secs(5), "a removed backend is still probed");
        if a.accepts_if_any().is_some() {
            quiet_since = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_backend_that_answers_slowly_but_within_the_timeout_stays_up() {
    let slow = Backend::serving(|_, wire| {
        // As long in advance as a busy machine may need.
        std::thread::sleep(Duration::from_millis(2600));
        wire.answers(200, &[], "slow");
        After::Keep
    });
    let well = named("b");
    let check = "check = \"http\"\ninterval = \"4s\"\nfast_interval = \"100ms\"\ntimeout = \"4s\"\nrise = 1\nfall = 2\npassive = \"off\"\n";
    let weir = Setup::of(&config(check)).with("a", slow.address()).with("b", well.address()).start();
    let good = [("backend", slow.address().to_string()), ("result", "good".to_owned())];
    let good: Vec<(&str, &str)> = good.iter().map(|(name, value)| (*name, value.as_str())).collect();
    weir.reaches("weir_probes_total", &good, 3.0);
    assert!(!weir.stderr().contains("is down"), "{}", weir.story());
    assert!(is_up(&weir, slow.address()));
}

#[test]
fn a_stopped_backend_process_is_out_of_use_within_250_ms() {
    // R6: SIGSTOP makes a black hole: the kernel still accepts connections, nobody answers.
    let _quiet = alone();
    let address = free_address();
    let mut process = python_backend(address);
    let well = named("b");
    let check = "check = \"http\"\ninterval = \"100ms\"\nfast_interval = \"20ms\"\ntimeout = \"50ms\"\nrise = 1\nfall = 2\npassive = \"off\"\n";
    let weir = Setup::of(&config(check)).with("a", address).with("b", well.address()).start();
    // Three rounds, because a machine that is busy with something else at the moment says nothing about Weir.
    let mut medians = Vec::new();
    for _ in 0..3 {
        let mut times: Vec<Duration> = (0..5).map(|_| stop_and_measure(&weir, &process, address)).collect();
        times.sort_unstable();
        println!("out of use after SIGSTOP, at an interval of 100 ms: {times:.0?}");
        medians.push(times[2]);
        if times[2] <= Duration::from_millis(250) {
            break;
        }
    }
    let _ = process.kill();
    let _ = process.wait();
    assert!(medians.iter().any(|median| *median <= Duration::from_millis(250)), "medians {medians:?}");
}

/// Stops the process, waits until it is out of use, and lets it go on; gives how long that took.
fn stop_and_measure(weir: &Weir, process: &std::process::Child, address: std::net::SocketAddr) -> Duration {
    until("the backend to be up", || is_up(weir, address).then_some(()));
    let begun = Instant::now();
    signal(process, Signal::STOP);
    until("the stopped one to be out of use", || (!is_up(weir, address)).then_some(()));
    let took = begun.elapsed();
    signal(process, Signal::CONT);
    took
}

fn signal(process: &std::process::Child, signal: Signal) {
    let pid = i32::try_from(process.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("signal");
}

/// A backend that is a process of its own, so that it can be stopped.
pub fn python_backend(address: std::net::SocketAddr) -> std::process::Child {
    let program = "import http.server,sys\n\
        class H(http.server.BaseHTTPRequestHandler):\n\
        \x20def do_GET(s):\n\
        \x20 s.send_response(200); s.send_header('content-length','1'); s.end_headers(); s.wfile.write(b'p')\n\
        \x20def log_message(s,*a): pass\n\
        http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n";
    let child = std::process::Command::new(weir_tests::dialogue::tool("python3", "python3"))
        .args(["-c", program, &address.port().to_string()])
        .stdin(std::process::Stdio::null())
        .spawn()
        .expect("python3");
    until("the backend process to listen", || std::net::TcpStream::connect(address).ok().map(drop));
    child
}
