//! What a service manager is told (`sd_notify(3)`), and what it asks for.

use std::os::unix::net::UnixDatagram;

use weir_tests::dialogue::{PATIENCE, ScriptedBackend, Setup, Signal, until};

use super::{ended_while_upgraded, named};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// Where services say how they are.
struct Manager {
    socket: UnixDatagram,
    name: String,
}

impl Manager {
    fn new(name: &str) -> Manager {
        let name = std::env::temp_dir().join(format!("weir-e2e-manager-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&name);
        let socket = UnixDatagram::bind(&name).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Manager { socket, name: name.display().to_string() }
    }

    /// Fills its queue, as many services do that have much to say; by several, since each has a limit.
    fn is_busy(&self) -> Vec<UnixDatagram> {
        let mut others = Vec::new();
        loop {
            let other = UnixDatagram::unbound().expect("a socket");
            other.connect(&self.name).expect("it listens");
            other.set_nonblocking(true).expect("a flag");
            let mut count = 0;
            while other.send(b"of another service").is_ok() {
                count += 1;
            }
            others.push(other);
            if count == 0 {
                return others;
            }
        }
    }

    /// The next message that has this word.
    fn hears(&self, word: &str) -> String {
        let mut room = [0; 4096];
        loop {
            let count = self.socket.recv(&mut room).unwrap_or_else(|problem| panic!("{word}: {problem}"));
            let message = String::from_utf8_lossy(&room[..count]).into_owned();
            if message.contains(word) {
                return message;
            }
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.name);
    }
}

/// With one that other services have filled the queue of: what did not fit was never said, and a service that
/// never says READY=1 is killed.
#[test]
fn a_manager_that_is_busy_hears_all_of_it_later_and_in_order() {
    let backend = named("a");
    let manager = Manager::new("busy");
    let _others = manager.is_busy();
    let setup = Setup::of(CONFIG).with("app", backend.address());
    let mut weir = setup.environment("NOTIFY_SOCKET", &manager.name).start();
    weir.command(&["reload"]).succeeded();
    assert!(manager.hears("STATUS").starts_with("READY=1\n"));
    assert!(manager.hears("STATUS").starts_with("RELOADING=1\n"));
    assert!(manager.hears("STATUS").starts_with("READY=1\n"));
    let _others = manager.is_busy();
    weir.signals(Signal::USR2);
    until("an upgrade", || weir.stderr().contains("upgraded: the new process serves").then_some(()));
    let said = manager.hears("MAINPID=");
    let new = weir.admin().reads("/v1/status").json()["pid"].as_u64().expect("a number");
    assert!(said.contains(&format!("MAINPID={new}\n")), "{said} for {new}");
    weir.exits();
}

/// systemd waits for no process but its own children: it killed the new one at once when the service was
/// stopped after an upgrade.
#[test]
fn the_new_process_of_an_upgrade_is_no_child_of_the_old_one() {
    let backend = ScriptedBackend::start();
    let manager = Manager::new("parent");
    let setup = Setup::of(CONFIG).with("app", backend.address());
    let weir = setup.environment("NOTIFY_SOCKET", &manager.name).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    let said = manager.hears("MAINPID=");
    let new: u32 =
        said.lines().find_map(|line| line.strip_prefix("MAINPID=")?.parse().ok()).expect("a number");
    let status = std::fs::read_to_string(format!("/proc/{new}/status")).expect("it runs");
    assert!(status.contains("PPid:") && !status.contains(&format!("PPid:\t{old}\n")), "{status}");
    assert!(weir.is_running(old), "a request is under way there");
    wire.answers(200, &[], "ok");
    client.receives_status(200);
    until("the old one to end", || (!weir.is_running(old)).then_some(()));
    assert_eq!(weir.pid(), new);
}

/// It waited for the new process, which served on until the manager lost its patience and killed it, with all
/// that was under way.
#[test]
fn a_service_that_its_manager_ends_in_the_middle_of_an_upgrade_ends_whole() {
    let backend = named("a");
    let manager = Manager::new("end");
    let setup = Setup::of(CONFIG).with("app", backend.address());
    let mut weir = setup.environment("NOTIFY_SOCKET", &manager.name).start();
    ended_while_upgraded(&weir);
    manager.hears("MAINPID=");
    manager.hears("STOPPING=1");
    assert!(weir.exits().success());
    until("the new process to end", || weir.pids().is_empty().then_some(()));
}
