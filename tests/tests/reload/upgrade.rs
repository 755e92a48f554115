//! USR2: a new process takes over every listening socket while the old one finishes its work (R3).

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_tests::dialogue::{
    EVERY_PROTOCOL, NO_HEALTH, PATIENCE, ScriptedBackend, Setup, Signal, Weir, Wire, datagram_socket,
    free_address, until, until_within,
};

use super::{ask, ended_while_upgraded, named};

fn config() -> String {
    let dns = "[listener.dns.timeout]\nclient_idle = \"500ms\"";
    format!("[runtime]\ndrain = \"20s\"\n{EVERY_PROTOCOL}{NO_HEALTH}\n{dns}\n")
}

fn start(app: SocketAddr) -> Weir {
    Setup::of(&config()).with("app", app).with("names", free_address()).start()
}

/// Sends USR2 and waits until a new process serves; gives the ids of the old and the new one.
fn upgrade(weir: &Weir) -> (u32, u32) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    let admin = weir.admin();
    let new = until("the new process to answer", || {
        let answer = admin.tries_to_read("/v1/status")?;
        let pid = u32::try_from(answer.json()["pid"].as_u64()?).ok()?;
        (pid != old).then_some(pid)
    });
    (old, new)
}

fn is_gone(weir: &Weir, pid: u32) {
    until_within(Duration::from_secs(20), "the old process to end", || (!weir.is_running(pid)).then_some(()));
}

#[test]
fn a_new_process_takes_over_and_the_old_one_ends() {
    let backend = named("a");
    let weir = start(backend.address());
    for _ in 0..3 {
        let (old, new) = upgrade(&weir);
        assert_eq!(ask(&weir, "web").text(), "a");
        is_gone(&weir, old);
        assert_eq!(weir.pid(), new);
        assert_eq!(ask(&weir, "web").text(), "a");
        assert_eq!(weir.admin().reads("/readyz").status(), 200);
    }
}

#[test]
fn the_new_process_may_listen_on_all_addresses_where_the_old_one_had_one() {
    let backend = named("a");
    let config =
        |host: &str, port: u16| config().replace("bind = \"@web\"", &format!("bind = \"{host}:{port}\""));
    let front = free_address();
    let setup = Setup::of(&config("127.0.0.1", front.port()));
    let mut weir = setup.with("app", backend.address()).with("names", free_address()).start();
    weir.knows("web", front);
    weir.rewrites(&config("0.0.0.0", front.port()));
    let (old, new) = upgrade(&weir);
    is_gone(&weir, old);
    assert_eq!((ask(&weir, "web").text(), weir.pid()), ("a".to_owned(), new));
}

#[test]
fn a_term_in_the_middle_of_an_upgrade_waits_until_the_new_process_serves() {
    let backend = named("a");
    let weir = start(backend.address());
    let old = weir.pid();
    ended_while_upgraded(&weir);
    is_gone(&weir, old);
    let new = weir.pid();
    assert_eq!((ask(&weir, "web").text(), weir.admin().reads("/readyz").status()), ("a".to_owned(), 200));
    assert_ne!(old, new);
}

#[test]
fn a_request_under_way_is_finished_by_the_old_process() {
    let backend = ScriptedBackend::start();
    let weir = start(backend.address());
    let mut client = weir.client("web");
    client.sends("GET /old HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let mut relayed = weir.client("relay");
    relayed.sends("hello");
    let mut relayed_wire = backend.accepts();
    relayed_wire.receives_exactly("hello");
    let (old, _) = upgrade(&weir);
    wire.answers(200, &[], "from the old one");
    assert_eq!(client.receives_status(200).text(), "from the old one");
    for round in 0..5 {
        relayed.sends(format!("round {round}"));
        relayed_wire.receives_exactly(format!("round {round}"));
    }
    assert!(weir.pids().contains(&old), "the old process left a relayed connection behind");
    relayed.half_closes();
    relayed_wire.receives_end();
    drop(relayed_wire);
    relayed.receives_close();
    is_gone(&weir, old);
}

/// The new process has nothing in flight at the backend and reported that, so an operator who then stopped
/// the backend cut requests off.
#[test]
fn drain_with_wait_waits_for_the_process_before_an_upgrade_too() {
    let backend = ScriptedBackend::start();
    let weir = start(backend.address());
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let (old, _) = upgrade(&weir);
    let address = backend.address().to_string();
    let drain = ["drain", "app", &address, "--wait", "--timeout", "1s"];
    let finished = weir.command(&drain);
    assert!(finished.code == 4 && finished.stderr.contains("the process before"), "{finished:?}");
    assert!(weir.command(&["status"]).succeeded().contains("the process before"));
    wire.answers(200, &[], "ok");
    client.receives_status(200);
    is_gone(&weir, old);
    assert_eq!(weir.command(&drain).code, 0);
    assert!(!weir.command(&["status"]).succeeded().contains("the process before"));
}

/// Sends a request for the status in pieces, over a tenth of a second.
fn asks_slowly(admin: SocketAddr) -> std::io::Result<()> {
    let mut wire = Wire::try_connect(admin)?;
    let request = format!("GET /v1/status HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    for part in request.as_bytes().chunks(8) {
        wire.tries_to_send(part)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    let answered = wire.tries_to_receive_response("GET");
    answered.map(drop).map_err(|(broken, _)| std::io::Error::other(format!("{broken:?}")))
}

/// Connections that the old process had accepted and not answered yet were reset.
#[test]
fn calls_of_the_admin_api_are_answered_over_upgrades() {
    struct Until<'d>(&'d AtomicBool);
    impl Drop for Until<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let backend = named("a");
    let weir = start(backend.address());
    let (admin, is_over) = (weir.admin(), AtomicBool::new(false));
    let call = || {
        let mut lost = 0;
        while !is_over.load(Ordering::Relaxed) {
            lost += usize::from(asks_slowly(admin.address()).is_err());
        }
        lost
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
        let until_then = Until(&is_over);
        for _ in 0..6 {
            let old = weir.pid();
            weir.signals_pid(old, Signal::USR2);
            is_gone(&weir, old);
        }
        drop(until_then);
        let lost: usize = callers.into_iter().map(|caller| caller.join().expect("a caller")).sum();
        assert_eq!(lost, 0, "{}", weir.story());
    });
}

#[test]
fn a_kept_connection_is_told_to_go_with_its_next_answer() {
    let backend = named("a");
    let weir = start(backend.address());
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_status(200);
    let (old, _) = upgrade(&weir);
    // Either it is closed while idle, or it is served once more and told to close; it never gets an answer
    // and then silence. Until the old process knows that the new one serves, its answers are ordinary ones.
    until("the connection to be told to go", || {
        if client.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").is_err() {
            return Some(());
        }
        let Ok(response) = client.tries_to_receive_response("GET") else { return Some(()) };
        assert_eq!(response.status, 200);
        response.closes().then_some(())
    });
    client.receives_close();
    is_gone(&weir, old);
}

#[test]
fn datagrams_reach_the_new_process() {
    let names = datagram_socket();
    names.set_read_timeout(Some(PATIENCE * 6)).expect("timeout");
    let address = names.local_addr().expect("address");
    std::thread::spawn(move || {
        let mut datagram = [0; 100];
        while let Ok((size, from)) = names.recv_from(&mut datagram) {
            let _ = names.send_to(&datagram[..size], from);
        }
    });
    let weir = Setup::of(&config()).with("app", free_address()).with("names", address).start();
    let ask = |question: &[u8]| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        socket.connect(weir.address("dns")).expect("connect");
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        socket.send(question).expect("send");
        let mut answer = [0; 100];
        let size = socket.recv(&mut answer).expect("an answer");
        assert_eq!(&answer[..size], question);
    };
    ask(b"before");
    let (old, _) = upgrade(&weir);
    for round in 0..50_u8 {
        ask(&[round]);
    }
    is_gone(&weir, old);
    ask(b"after");
}

#[test]
fn an_upgrade_to_a_refused_config_leaves_the_old_process_serving() {
    let backend = named("a");
    let weir = start(backend.address());
    let pid = weir.pid();
    let good = std::fs::read_to_string(weir.config_path()).expect("the config");
    std::fs::write(weir.config_path(), "[listener.web]\nbind = 7\n").expect("write");
    weir.signals_pid(pid, Signal::USR2);
    until("the log to say that it failed", || weir.stderr().contains("weir.toml:2:").then_some(()));
    until("the new process to be gone", || (weir.pids() == [pid]).then_some(()));
    for _ in 0..10 {
        assert_eq!(ask(&weir, "web").text(), "a");
    }
    // The process can still be upgraded.
    std::fs::write(weir.config_path(), good).expect("write");
    let (old, _) = upgrade(&weir);
    is_gone(&weir, old);
    assert_eq!(ask(&weir, "web").text(), "a");
}

#[test]
fn a_reload_works_after_an_upgrade() {
    let (a, b) = (named("a"), named("b"));
    let mut weir = Setup::of(&config())
        .with("app", a.address())
        .with("b", b.address())
        .with("names", free_address())
        .start();
    let (old, _) = upgrade(&weir);
    is_gone(&weir, old);
    weir.reloads(&config().replace("@app", "@b"));
    assert_eq!(ask(&weir, "web").text(), "b");
}

#[test]
fn connections_that_wait_to_be_accepted_are_not_lost() {
    // Connect without speaking, upgrade, then speak: nobody may have been reset.
    let backend = named("a");
    let weir = start(backend.address());
    let mut clients: Vec<_> = (0..100).map(|_| weir.client("web")).collect();
    let (_old, _) = upgrade(&weir);
    for client in &mut clients {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let response = client.tries_to_receive_response("GET");
        assert!(
            response.as_ref().is_ok_and(|response| response.status == 200),
            "connection {number}: {response:?}"
        );
    }
}

const THREE: &str = r#"
[runtime]
drain = "20s"
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@a", "@b", "@c"]
health = { check = "http", interval = "60s", fast_interval = "60s", timeout = "300ms", fall = 1, passive = "off" }
"#;

#[test]
fn a_new_process_knows_which_backends_are_out_and_what_weights_were_set() {
    let (a, b) = (named("a"), named("b"));
    // Its first probe is refused; the next would come only after a minute.
    let c = free_address();
    let weir = Setup::of(THREE).with("a", a.address()).with("b", b.address()).with("c", c).start();
    let admin = weir.admin();
    let state = |index: usize, key: &str| admin.reads("/v1/pools/app").json()["backends"][index][key].clone();
    until("the third to be found down", || (state(2, "state") == "down").then_some(()));
    let patch = |backend: &str, change: &str| {
        let path = format!("/v1/pools/app/backends/{backend}");
        assert_eq!(admin.calls("PATCH", &path, &[], change).status(), 200);
    };
    patch(&a.address().to_string(), r#"{"weight": 7}"#);
    patch(&b.address().to_string(), r#"{"state": "drain"}"#);
    let _c = weir_tests::dialogue::ScriptedBackend::at(c);
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the old process to be gone", || {
        assert_eq!(ask(&weir, "web").text(), "a", "a request during the upgrade");
        (!weir.is_running(old)).then_some(())
    });
    for _ in 0..20 {
        assert_eq!(ask(&weir, "web").text(), "a");
    }
    assert_eq!((state(0, "weight"), state(1, "state")), (7.into(), "draining".into()));
    patch(&b.address().to_string(), r#"{"state": "ready"}"#);
    until("the drained backend to be used again", || (ask(&weir, "web").text() == "b").then_some(()));
}
