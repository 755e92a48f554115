//! Listeners at Unix sockets.

use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_tests::dialogue::{
    Backend, Door, PATIENCE, ScriptedBackend, Sets, Setup, Signal, Weir, Wire, pattern, run_tool, tool,
    until, until_within,
};

use super::fresh;

/// Listens there and elsewhere, with an answer that needs no backend.
pub(super) fn config(binds: &str, more: &str) -> String {
    format!(
        "[log]\naccess = \"@dir/access.log\"\n[listener.web]\nbind = {binds}\n{more}\n\
         [[listener.web.route]]\nrespond = {{ status = 200, body = \"here\" }}\n"
    )
}

fn connect(name: &str) -> std::io::Result<UnixStream> {
    match name.strip_prefix('@') {
        Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?),
        None => UnixStream::connect(name),
    }
}

fn ask_on(mut stream: UnixStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

pub(super) fn ask(name: &str) -> String {
    ask_on(connect(name).unwrap_or_else(|problem| panic!("{name}: {problem}"))).expect("an answer")
}

pub(super) fn is_socket(path: &str) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

pub(super) fn mode(path: &str) -> u32 {
    std::fs::metadata(path).unwrap_or_else(|problem| panic!("{path}: {problem}")).permissions().mode() & 0o777
}

#[test]
fn curl_is_served_at_a_path_and_at_an_abstract_name_and_has_no_address() {
    let (path, name) = (fresh("/"), fresh("@"));
    let backend = Backend::saying("ok");
    let weir = Setup::of(&format!(
        "[log]\naccess = \"@dir/access.log\"\n[listener.web]\nbind = [\"unix:{path}\", \"unix:{name}\", \"@web\"]\n\
         http = [\"h1\", \"h2\"]\npool = \"app\"\n[pool.app]\nbackends = [\"@app\"]\nhealth = \"off\"\n"
    ))
    .with("app", backend.address())
    .start();
    let curl = tool("curl", "curl");
    for words in [["--unix-socket", &path], ["--abstract-unix-socket", &name[1..]]] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let words =
                [&["-sS", version][..], &words, &["-H", "x-forwarded-for: 192.0.2.1", "http://shop/x"]]
                    .concat();
            let got = run_tool(&curl, &words, b"", PATIENCE);
            assert_eq!((got.code, got.stdout.as_str()), (0, "ok"), "{words:?}: {got:?}");
        }
    }
    for request in backend.requests() {
        assert_eq!(
            request.fields.one("x-forwarded-for"),
            None,
            "nobody believes it, and there is no address"
        );
        assert_eq!(request.fields.one("forwarded"), Some("for=unknown;proto=http;host=\"shop\""));
        assert_eq!(request.fields.one("host"), Some("shop"));
    }
    for line in weir.lines_of("access.log", 4) {
        assert!(line.contains("\"client\":\"unix:\""), "{line}");
    }
    let status = weir.admin().reads("/v1/status").json();
    let binds = status["listeners"][0]["bind"].clone();
    assert_eq!(
        (binds[0].clone(), binds[1].clone()),
        (format!("unix:{path}").into(), format!("unix:{name}").into())
    );
    // And at the address as ever.
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), "ok");
}

#[test]
fn a_proxy_in_front_says_who_the_client_is() {
    let (trusted, announced) = (fresh("@"), fresh("@"));
    let backend = Backend::saying("ok");
    let weir = Setup::of(&format!(
        "[log]\naccess = \"@dir/access.log\"\n\
         [listener.trusted]\nbind = \"unix:{trusted}\"\npool = \"app\"\ntrusted_proxies = [\"unix:\", \"10.0.0.0/8\"]\n\
         [listener.announced]\nbind = \"unix:{announced}\"\npool = \"app\"\naccept_proxy = \"unix:\"\n\
         [pool.app]\nbackends = [\"@app\"]\nhealth = \"off\"\n"
    ))
    .with("app", backend.address())
    .start();
    let (one, other) = (Door::to_unix(&trusted), Door::to_unix(&announced));
    let ask = |door: &Door, before: &str, field: &str| {
        let mut client = Wire::connect(door.address());
        client.sends(format!("{before}GET / HTTP/1.1\r\nhost: a\r\n{field}connection: close\r\n\r\n"));
        client.receives_status(200);
        backend.requests().pop().expect("a request").fields.one("x-forwarded-for").map(str::to_owned)
    };
    let told = "x-forwarded-for: 203.0.113.7, 10.0.0.9\r\n";
    assert_eq!(ask(&one, "", told).as_deref(), Some("203.0.113.7, 10.0.0.9"));
    assert_eq!(ask(&one, "", ""), None);
    assert_eq!(backend.requests().pop().expect("a request").fields.one("x-real-ip"), None);
    let header = "PROXY TCP4 203.0.113.8 192.0.2.1 4711 80\r\n";
    assert_eq!(ask(&other, header, told).as_deref(), Some("203.0.113.8"));
    assert_eq!(ask(&other, "PROXY UNKNOWN\r\n", ""), None);
    // Who is to announce the client and does not is not served.
    let mut mute = Wire::connect(other.address());
    mute.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    mute.receives_close();
    let lines = weir.lines_of("access.log", 4);
    for client in ["203.0.113.7:0", "203.0.113.8:4711", "unix:"] {
        assert!(
            lines.iter().any(|line| line.contains(&format!("\"client\":\"{client}\""))),
            "{client}: {lines:#?}"
        );
    }
}

#[test]
fn bytes_of_tcp_pass_and_the_backend_hears_that_the_client_has_no_address() {
    for (version, header) in [("v1", &b"PROXY UNKNOWN\r\n"[..]), ("v2", b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0")] {
        let name = fresh("/");
        let backend = ScriptedBackend::start();
        let _weir = Setup::of(&format!(
            "[listener.front]\nprotocol = \"tcp\"\nbind = \"unix:{name}\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"@app\"]\nsend_proxy = \"{version}\"\nhealth = \"off\"\n"
        ))
        .with("app", backend.address())
        .start();
        let door = Door::to_unix(&name);
        let mut client = Wire::connect(door.address());
        let mut wire = backend.accepts();
        wire.receives_exactly(header);
        let sent = pattern(1, 2 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                client.sends(&sent);
                client.half_closes();
            });
            assert!(wire.receives(sent.len()) == sent, "{version}");
            wire.receives_end();
        });
        wire.sends("bye");
        drop(wire);
        client.receives_exactly("bye");
        client.receives_close();
    }
}

#[test]
fn the_file_has_its_mode_and_owner_and_a_reload_changes_them() {
    let path = fresh("/");
    let binds = format!("\"unix:{path}\"");
    let text = |mode: &str| config(&binds, &format!("unix_socket = {{ {mode} }}"));
    let mut weir = Setup::of(&config(&binds, "")).start();
    assert_eq!(mode(&path), 0o660);
    weir.reloads(&text("mode = \"0600\""));
    assert_eq!(mode(&path), 0o600);
    assert!(ask(&path).ends_with("here"));
    let as_nobody = || {
        let words = [
            "--reuid=nobody",
            "--regid=nogroup",
            "--clear-groups",
            "curl",
            "-sS",
            "--unix-socket",
            &path,
            "http://a/",
        ];
        run_tool(&tool("setpriv", "util-linux"), &words, b"", PATIENCE)
    };
    let barred = as_nobody();
    assert!(barred.code != 0 && barred.stdout.is_empty(), "{barred:?}");
    weir.reloads(&text("mode = \"0660\", owner = \"nobody\", group = \"0\""));
    let allowed = as_nobody();
    assert_eq!((allowed.code, allowed.stdout.as_str()), (0, "here"), "{allowed:?}");
}

#[test]
fn a_socket_left_by_a_dead_process_is_replaced_and_removed_at_the_end() {
    let path = fresh("/");
    let mut weir = Setup::of(&config(&format!("\"unix:{path}\""), "")).start();
    for _ in 0..2 {
        weir.signals(Signal::KILL);
        until("nobody to listen", || connect(&path).is_err().then_some(()));
        assert!(is_socket(&path), "it was left behind");
        weir.starts_again();
        assert!(ask(&path).ends_with("here"));
    }
    weir.signals(Signal::TERM);
    assert!(weir.exits().success());
    assert!(!Path::new(&path).exists(), "it was removed");
}

#[test]
fn what_another_has_put_there_is_left_at_the_end() {
    let path = fresh("/");
    let mut weir = Setup::of(&config(&format!("\"unix:{path}\""), "")).start();
    std::fs::remove_file(&path).expect("it is there");
    let _other = UnixListener::bind(&path).expect("there is room now");
    weir.signals(Signal::TERM);
    assert!(weir.exits().success());
    assert!(is_socket(&path), "it is another's");
    let _ = std::fs::remove_file(&path);
}

/// H12: what somebody puts in its place.
#[test]
fn a_living_one_a_link_and_a_file_are_refused_at_start_and_by_a_reload() {
    let (good, path, victim) = (fresh("/"), fresh("/"), fresh("/"));
    std::fs::write(&victim, "precious").expect("a file");
    let mut weir = Setup::of(&config(&format!("\"unix:{good}\""), "")).start();
    let both = config(&format!("[\"unix:{good}\", \"unix:{path}\"]"), "");
    let refused = |weir: &mut Weir, why: &str| {
        weir.rewrites(&both);
        let finished = weir.command(&["reload"]);
        assert!(finished.code == 1 && format!("{finished:?}").contains(why), "{finished:?}");
        assert!(ask(&good).ends_with("here"), "the old one serves on");
        let mut second = Setup::of(&config(&format!("\"unix:{path}\""), "")).launch();
        assert_eq!(second.exits().code(), Some(1));
        assert!(second.stderr().contains(why), "{}", second.stderr());
    };
    let living = UnixListener::bind(&path).expect("a socket");
    refused(&mut weir, "another program listens there");
    drop(living);
    std::fs::remove_file(&path).expect("it is there");
    symlink(&victim, &path).expect("a link");
    refused(&mut weir, "a symbolic link stands there");
    std::fs::remove_file(&path).expect("it is there");
    std::fs::write(&path, "a file").expect("a file");
    refused(&mut weir, "no socket");
    assert_eq!(std::fs::read_to_string(&victim).expect("it is there"), "precious");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "a file");
    for file in [&path, &victim] {
        let _ = std::fs::remove_file(file);
    }
}

/// Clients that come without pause.
struct Arrivals {
    is_over: AtomicBool,
    served: AtomicU64,
    refused: AtomicU64,
    lost: Mutex<Vec<String>>,
}

fn arrive(names: &[&str], change: impl FnOnce(&dyn Fn())) -> u64 {
    let arrivals = Arrivals {
        is_over: AtomicBool::new(false),
        served: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        lost: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for name in names {
            let arrivals = &arrivals;
            scope.spawn(move || {
                while !arrivals.is_over.load(Ordering::Relaxed) {
                    let Ok(stream) = connect(name) else {
                        arrivals.refused.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    };
                    match ask_on(stream) {
                        Ok(answer) if answer.ends_with("here") => {
                            arrivals.served.fetch_add(1, Ordering::Relaxed);
                        }
                        other => arrivals.lost.lock().expect("no panic").push(format!("{name}: {other:?}")),
                    }
                }
            });
        }
        let _end = Sets(&arrivals.is_over);
        change(&|| {
            let wanted = arrivals.served.load(Ordering::Relaxed) + 30;
            until("some more to be served", || {
                (arrivals.served.load(Ordering::Relaxed) >= wanted).then_some(())
            });
        });
    });
    let lost = arrivals.lost.into_inner().expect("no panic");
    assert_eq!(lost, [] as [String; 0], "of {} that were served", arrivals.served.into_inner());
    arrivals.refused.into_inner()
}

#[test]
fn reloads_and_upgrades_keep_it_and_nobody_is_refused_or_lost() {
    let (path, name) = (fresh("/"), fresh("@"));
    let binds = format!("[\"unix:{path}\", \"unix:{name}\"]");
    let mut weir = Setup::of(&config(&binds, "")).start();
    let refused = arrive(&[&path, &name, &path, &name], |go_on| {
        for round in 0..6 {
            if round % 2 == 0 {
                weir.reloads(&config(&binds, &format!("max_connections = {}", 1000 + round)));
            } else {
                let old = weir.pid();
                weir.signals_pid(old, Signal::USR2);
                until_within(Duration::from_secs(20), "the old process to end", || {
                    (!weir.is_running(old)).then_some(())
                });
            }
            go_on();
        }
    });
    assert_eq!(refused, 0);
    weir.signals(Signal::TERM);
    until_within(Duration::from_secs(20), "the process to end", || weir.pids().is_empty().then_some(()));
    assert!(!Path::new(&path).exists(), "the last process removes it");
}

#[test]
fn who_was_let_in_at_one_that_goes_is_served_and_it_can_come_back_at_once() {
    let (stays, path, name) = (fresh("@"), fresh("/"), fresh("@"));
    let with = format!("[\"unix:{stays}\", \"unix:{path}\", \"unix:{name}\"]");
    let without = format!("\"unix:{stays}\"");
    let mut weir = Setup::of(&config(&with, "")).start();
    arrive(&[&path, &name, &path, &name], |go_on| {
        for round in 0..6 {
            weir.reloads(&config(&without, ""));
            assert!(!Path::new(&path).exists(), "round {round}");
            assert!(connect(&name).is_err(), "round {round}");
            weir.reloads(&config(&with, ""));
            go_on();
        }
        // By an upgrade to a config that has it not any more.
        weir.rewrites(&config(&without, ""));
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
        until_within(Duration::from_secs(20), "the old process to end", || {
            (!weir.is_running(old)).then_some(())
        });
        assert!(!Path::new(&path).exists() && connect(&name).is_err());
        assert!(ask(&stays).ends_with("here"));
    });
}
